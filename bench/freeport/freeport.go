// Package freeport finds loopback addresses for servers that are stopped and started again on the same port.
//
// Such a port must not be one that the kernel gives to outgoing connections: while the server is down, a client could be
// given it, or even connect to itself. So the ports come from below the kernel's range for outgoing connections. They are held
// to the end of the process, on Linux: no other process that picks is given them while the server is down.
package freeport

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
)

const (
	lowest         = 10000 // below live the services of a machine
	defaultHighest = 32768 // Linux's own start of the range for outgoing connections
	tries          = 1000
)

// Pick returns n different addresses 127.0.0.1:port that nobody listens on.
func Pick(n int) ([]string, error) {
	highest := outgoingStart()
	var addresses []string
	for range tries {
		if len(addresses) == n {
			return addresses, nil
		}
		port := lowest + rand.IntN(highest-lowest)
		address := fmt.Sprintf("127.0.0.1:%d", port)
		if !slices.Contains(addresses, address) && hold(port) == nil {
			addresses = append(addresses, address)
		}
	}
	return nil, errors.New("find free ports: too many are taken")
}

// outgoingStart is the first port that the kernel gives to outgoing connections.
func outgoingStart() int {
	var low, high int
	text, err := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range")
	if err != nil {
		return defaultHighest
	}
	if _, err := fmt.Sscan(string(text), &low, &high); err != nil || low <= lowest+tries {
		return defaultHighest
	}
	return low
}
