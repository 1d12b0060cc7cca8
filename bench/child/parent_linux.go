package child

import (
	"os/exec"
	"syscall"
)

// dieWithParent lets no agent outlive the harness, however that ends.
func dieWithParent(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }
