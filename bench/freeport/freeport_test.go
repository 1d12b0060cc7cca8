package freeport

import (
	"errors"
	"net"
	"runtime"
	"strconv"
	"syscall"
	"testing"
)

// TestPickedPortsAreHeld: who is down on a picked port finds it free again, and nobody else picks it meanwhile.
func TestPickedPortsAreHeld(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("ports are held on Linux only")
	}
	addresses, err := Pick(1)
	if err != nil {
		t.Fatal(err)
	}
	_, text, err := net.SplitHostPort(addresses[0])
	if err != nil {
		t.Fatal(err)
	}
	port, err := strconv.Atoi(text)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 { // up, down, up again
		if c, err := net.Dial("tcp4", addresses[0]); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("connected to %v while it is down: %v", c, err)
		}
		if err := hold(port); !errors.Is(err, syscall.EADDRINUSE) {
			t.Errorf("another picked it while it is down: %v", err)
		}
		l, err := net.Listen("tcp4", addresses[0])
		if err != nil {
			t.Fatal(err)
		}
		if err := hold(port); !errors.Is(err, syscall.EADDRINUSE) {
			t.Errorf("another picked it while it is up: %v", err)
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestPickedPortsDifferAndCanBeListenedOn(t *testing.T) {
	addresses, err := Pick(20)
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range addresses {
		l, err := net.Listen("tcp4", a)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = l.Close() }) // held to the end: a second one of the same address would fail
		if port := l.Addr().(*net.TCPAddr).Port; port >= outgoingStart() {
			t.Errorf("port %d is one that outgoing connections are given (from %d)", port, outgoingStart())
		}
	}
}
