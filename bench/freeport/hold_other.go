//go:build !linux

package freeport

import (
	"fmt"
	"net"
)

// hold says whether a port is taken. It does not keep it.
func hold(port int) error {
	l, err := net.Listen("tcp4", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		return fmt.Errorf("try port: %w", err)
	}
	return l.Close()
}
