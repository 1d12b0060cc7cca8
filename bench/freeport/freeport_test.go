package freeport

import (
	"net"
	"testing"
)

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
