package shipper

import (
	"context"
	"fmt"

	"ingest-agent/objstore"
	"ingest-agent/segment"
)

// waiter waits for a frame to be in the bucket.
type waiter struct {
	lane segment.LaneID
	at   segment.Position
	done chan error // has room for one
}

// Wait returns nil when the frame at a position of a lane, which is durable on the disk, is in the bucket and named by the
// register, or is exported. All that wait are served by the next round. Errors: ErrUnavailable, at once while the bucket is
// known to be out of reach; objstore.ErrUnsupported where the bucket cannot keep the promise; ctx's. The frame stays on the
// disk, and will be delivered.
func (s *Shipper) Wait(ctx context.Context, lane segment.LaneID, at segment.Position) error {
	w := &waiter{lane: lane, at: at, done: make(chan error, 1)}
	s.mu.Lock()
	err := s.readyLocked()
	if err == nil {
		s.waiters = append(s.waiters, w)
	}
	s.mu.Unlock()
	if err != nil {
		return err
	}
	s.Wake()
	select {
	case err := <-w.done:
		return err
	case <-ctx.Done():
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, other := range s.waiters {
		if other == w {
			s.waiters = append(s.waiters[:i:i], s.waiters[i+1:]...)
			return fmt.Errorf("wait for the bucket: %w", ctx.Err())
		}
	}
	return <-w.done // it was answered meanwhile
}

// Ready returns why Wait would fail at once, or nil.
func (s *Shipper) Ready() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.readyLocked()
}

func (s *Shipper) readyLocked() error {
	switch {
	case s.weak != nil:
		return fmt.Errorf("acknowledge by the bucket: %w: %w", objstore.ErrUnsupported, s.weak)
	case s.ended:
		return fmt.Errorf("%w: stopped", ErrUnavailable)
	case s.down:
		return fmt.Errorf("%w: %s", ErrUnavailable, s.stats.LastError)
	}
	return nil
}

// answer answers those whose frames are named, exported, or others' duty by now.
func (s *Shipper) answer() {
	l := s.leased()
	named := map[segment.LaneID]segment.Position{}
	if l != nil {
		body, err := s.body()
		if err != nil {
			s.trouble(err)
			return
		}
		for id, lane := range body.Lanes {
			named[id] = lane.Shipped
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	left := s.waiters[:0]
	for _, w := range s.waiters {
		t := s.lanes[w.lane]
		switch {
		case s.weak != nil:
			w.done <- fmt.Errorf("acknowledge by the bucket: %w: %w", objstore.ErrUnsupported, s.weak)
		case w.at.Before(named[w.lane]), t != nil && (w.at.Before(t.state.Exported) || w.at.Before(t.state.Skip)):
			w.done <- nil
		default:
			left = append(left, w)
		}
	}
	clear(s.waiters[len(left):])
	s.waiters = left
}

// settleWaiters answers all with err.
func (s *Shipper) settleWaiters(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, w := range s.waiters {
		w.done <- err
	}
	s.waiters = nil
}
