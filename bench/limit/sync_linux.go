package limit

import (
	"os"
	"syscall"
)

// dataSync syncs a file's bytes and what is needed to read them, but not its times.
func dataSync(f *os.File) error { return syscall.Fdatasync(int(f.Fd())) }
