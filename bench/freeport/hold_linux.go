package freeport

import (
	"fmt"
	"syscall"
)

// hold takes a port of the loopback address to the end of the process, or says that it is taken. Nobody who asks for a port that
// is free is given it, and no other Pick; it refuses connections; and who listens on it, as Go does with SO_REUSEADDR, may: the
// kernel allows that beside a socket with that option that does not listen. It is set behind the bind, so that this bind fails
// where another holds the port already.
func hold(port int) error {
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("hold port: %w", err)
	}
	err = syscall.Bind(fd, &syscall.SockaddrInet4{Port: port, Addr: [4]byte{127, 0, 0, 1}})
	if err == nil {
		err = syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 1)
	}
	if err != nil {
		_ = syscall.Close(fd) // nothing was written to it
		return fmt.Errorf("hold port %d: %w", port, err)
	}
	return nil
}
