//go:build !linux

package child

import "os/exec"

// dieWithParent can do nothing here: only Linux ties a child's life to its parent's.
func dieWithParent(*exec.Cmd) {}
