package fleet

import (
	"errors"
	"fmt"

	"ingest-agent/bench/child"
)

// end kills a process, or asks it to stop, and waits for the end.
func end(p *child.Process, term bool) error {
	select {
	case <-p.Exited():
		return fmt.Errorf("it ended by itself: %w", errors.Join(p.Err(), errors.New("before it was told to")))
	default:
	}
	limit := deathTimeout
	if term {
		limit += shutdownTimeout
		p.Terminate()
	} else {
		p.Kill()
	}
	if !p.Wait(limit) {
		destroy(p)
		return fmt.Errorf("it lives %v after it was told to end", limit)
	}
	if term && p.Err() != nil {
		return fmt.Errorf("stopped: %w", p.Err())
	}
	return nil
}

// destroy leaves no process. It may be called again.
func destroy(p *child.Process) {
	p.Kill()
	<-p.Exited()
}
