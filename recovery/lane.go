package recovery

import (
	"context"
	"sync"
	"time"

	"ingest-agent/recovery/owner"
	"ingest-agent/segment"
)

// Adopted is a lane of another owner that is to be drained: by segment.DrainOptions.Run, with the sinks of its destination.
type Adopted struct {
	Owner  string
	Lane   segment.LaneID
	Source segment.Source
	Cursor segment.Cursor
}

// laneDrain is the drain of an adopted lane, as the adoption sees it: it takes the drain's progress, until the next commit.
type laneDrain struct {
	id     segment.LaneID
	end    segment.Position
	stop   context.CancelFunc // ends the drain
	commit func()             // asks for a commit soon
	ended  chan struct{}      // closed when the drain has returned

	mu     sync.Mutex
	at     owner.Progress // how far it has come
	step   segment.Progress
	bytes  uint64    // of step
	passed []ref     // objects that were read, and may go once at is committed
	moved  time.Time // when there was progress, or a piece of an object was read
}

func newLaneDrain(id segment.LaneID, l *owner.Lane) *laneDrain {
	return &laneDrain{
		id: id, end: l.End(), at: owner.Progress{Exported: l.Exported, Passed: l.Passed}, ended: make(chan struct{}), moved: time.Now(),
	}
}

// Advance takes the drain's progress. It waits for nothing.
func (l *laneDrain) Advance(p *segment.Progress) {
	if p.To == (segment.Position{}) {
		return // only what is next
	}
	l.mu.Lock()
	merge(&l.step, p)
	l.bytes += p.Out.Bytes
	l.at.Passed = l.at.Passed.Add(p.Out.Records)
	if l.at.Exported.Before(p.To) {
		l.at.Exported, l.moved = p.To, time.Now()
	}
	over, much := !l.at.Exported.Before(l.end), l.bytes >= commitBytes
	l.mu.Unlock()
	if over {
		l.stop()
	}
	if over || much {
		l.commit()
	}
}

// merge adds a step of progress to those before it.
func merge(to, p *segment.Progress) {
	if to.To.Before(p.To) {
		to.To = p.To
	}
	to.Out = to.Out.Add(p.Out)
	to.Ledger.Add(&p.Ledger)
	to.Oldest = p.Oldest
}

// read notes that a piece of an object has come.
func (l *laneDrain) read() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.moved = time.Now()
}

// gone notes that the source has passed an object.
func (l *laneDrain) gone(o ref) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.passed = append(l.passed, o)
}

// take hands over the progress since the last time; ok: there is some.
func (l *laneDrain) take() (at owner.Progress, step segment.Progress, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	step = l.step
	l.step, l.bytes = segment.Progress{}, 0
	return l.at, step, step.To != segment.Position{}
}

// covered hands over the objects that end at or before a position.
func (l *laneDrain) covered(exported segment.Position) (gone []ref) {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := 0
	for n < len(l.passed) && !exported.Before(l.passed[n].end()) {
		n++
	}
	gone = l.passed[:n:n]
	l.passed = l.passed[n:]
	return gone
}

// over says whether the lane is exported up to its end.
func (l *laneDrain) over() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return !l.at.Exported.Before(l.end)
}

// stuck says whether nothing has come or gone for so long.
func (l *laneDrain) stuck(d time.Duration) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return time.Since(l.moved) >= d
}

// running says whether the drain has not returned.
func (l *laneDrain) running() bool {
	select {
	case <-l.ended:
		return false
	default:
		return true
	}
}
