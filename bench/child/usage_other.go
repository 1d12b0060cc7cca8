//go:build !linux

package child

import "errors"

// Usage is not known here.
func (p *Process) Usage() (Usage, error) {
	return Usage{}, errors.New("read usage: only Linux tells it")
}
