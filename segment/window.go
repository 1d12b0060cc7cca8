package segment

import (
	"context"
	"sync"
	"time"
)

// slot is one item in a drain's window.
type slot struct {
	frame  *Frame
	bytes  int // charged to the window
	left   int // pieces of the frame that nothing has become of yet
	next   Position
	out    Totals
	again  Totals
	ledger Ledger
	done   bool
}

func (s *slot) oldest() (t time.Time) {
	if s.frame != nil {
		t = s.frame.Received
	}
	return t
}

// finish is called when a piece of so many records has come to its end, which the slot's ledger says already.
func (s *slot) finish(records uint32, tries int) {
	again := s.frame.Signal.Of(uint64(records) * uint64(tries))
	s.ledger.Resent = s.ledger.Resent.Add(again)
	if s.left--; s.left == 0 {
		s.done = true
		s.frame = nil // the body may be long gone before the cursor gets here
	}
}

// window holds the slots between the cursor and the reader, and bounds their bytes.
type window struct {
	slots []*slot

	mu    sync.Mutex
	used  int
	freed chan struct{}
}

// waitRoom waits until the window is not full. A single item may go over it.
func (w *window) waitRoom(ctx context.Context, limit func() int) bool {
	for ctx.Err() == nil {
		w.mu.Lock()
		room := w.used < limit()
		w.mu.Unlock()
		if room {
			return true
		}
		select {
		case <-w.freed:
		case <-ctx.Done():
		}
	}
	return false
}

func (w *window) take(n int) {
	w.mu.Lock()
	w.used += n + slotBytes
	w.mu.Unlock()
}

// slotBytes is what a frame costs in memory beyond its body, so that a flood of tiny frames is bounded too.
const slotBytes = 512

func (w *window) free(n int) {
	if n == 0 {
		return
	}
	w.mu.Lock()
	w.used -= n
	w.mu.Unlock()
	wake(w.freed)
}

// full reports whether the reader waits for room.
func (w *window) full(limit int) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.used >= limit
}
