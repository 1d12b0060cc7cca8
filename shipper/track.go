package shipper

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"ingest-agent/objstore"
	"ingest-agent/recovery/owner"
	"ingest-agent/segment"
)

const (
	// markPart: the tail of a lane is marked so many times within shipper.after.
	markPart = 4
	// maxMarks bounds the marks of a lane that cannot be shipped.
	maxMarks = 2 * markPart
)

// track is what the shipper knows of a lane. Under the shipper's mu, but for what is the loop's alone: the heartbeat looks at the
// lane as well.
type track struct {
	lane  Lane
	state segment.State // at the last look

	// done is how far the lane's disk knows it is exported, with the records before that; ahead is how far the drain has come
	// since, and becomes done when a saved cursor has reached it: a crash must not bring back what the register calls done.
	done, ahead passed
	// skipped is where the frames of others end that the drain has not passed yet, once the lane was read from there.
	skipped passed

	named   bool // the note and the register name it
	shipped segment.Position
	records segment.Counts // before shipped
	refs    []ref          // objects that the bucket has

	// The loop's alone.
	next   segment.Position // nothing before it is to be shipped
	due    segment.Position // up to where it is to be shipped now
	marks  []mark           // of the tail; under mu
	hand   *object
	turn   uint64    // of the last object
	takeAt time.Time // nothing is taken before
}

type passed struct {
	to      segment.Position
	records segment.Counts
}

// mark says that what lies before to was there at a time.
type mark struct {
	to segment.Position
	at time.Time
}

// ref is an object that is in the bucket.
type ref struct {
	key         objstore.SegmentKey
	end         segment.Position
	first, last segment.Position
}

// object is one that is being put, or is to be put again.
type object struct {
	t       *track
	ref     ref
	records segment.Counts // of the lane, before its end
	data    []byte
	from    segment.Position // where the lane stood
	hole    bool             // frames between the last object and this one were exported
	retryAt time.Time
	delay   time.Duration
	err     error
}

func newTrack(l Lane) *track {
	t := &track{lane: l, state: l.State()}
	t.done.to, t.ahead.to = t.state.Saved, t.state.Saved
	t.glance()
	return t
}

// glance takes over where the lane stands. The shipper's mu is held.
func (t *track) glance() {
	t.state = t.lane.State()
	st := &t.state
	if !st.Saved.Before(t.ahead.to) {
		t.done = t.ahead
	}
	t.ahead = passed{st.Exported, st.Out.Records}
	if !st.Saved.Before(st.Exported) {
		t.done = t.ahead
	}
}

// progress is what the register is to say of the lane.
func (t *track) progress() owner.Progress {
	p := owner.Progress{Exported: t.done.to, Passed: t.done.records, Shipped: t.shipped, Records: t.records}
	if p.Exported.Before(t.state.Skip) { // nothing before it is this owner's
		if p.Exported = t.state.Skip; t.skipped.to == p.Exported {
			p.Passed = t.skipped.records
		}
	}
	return p
}

// start is where the next object begins, or behind it.
func (t *track) start() segment.Position {
	return latest(t.next, t.state.Exported, t.state.Skip)
}

func latest(all ...segment.Position) segment.Position {
	return slices.MaxFunc(all, segment.Position.Compare)
}

// gap says whether frames before the next object were exported that the register does not call so yet, and no object holds.
// Who adopts the lane would take them for lost, so the object waits for the cursor to be saved.
func (t *track) gap() bool {
	start := t.start()
	return t.next != start && t.done.to.Before(start) && t.state.Skip.Before(start)
}

// owes says whether frames are on the disk that are neither exported nor put.
func (t *track) owes() bool { return t.start().Before(t.state.Tail) }

// assess marks the tail, and finds out what is due. all: everything is. The shipper's mu is held.
func (t *track) assess(now time.Time, after time.Duration, all bool) {
	start := t.start()
	t.marks = slices.DeleteFunc(t.marks, func(m mark) bool { return !start.Before(m.to) })
	if !t.owes() {
		return
	}
	if n := len(t.marks); n == 0 || n < maxMarks && now.Sub(t.marks[n-1].at) >= after/markPart && t.marks[n-1].to.Before(t.state.Tail) {
		t.marks = append(t.marks, mark{t.state.Tail, now})
	}
	// The receive time is exact where the oldest frame of all is the oldest that is not shipped.
	oldest := t.state.Oldest
	old := !oldest.IsZero() && !t.state.Exported.Before(t.next) && now.Sub(oldest) >= after
	if all || old || now.Sub(t.marks[0].at) >= after {
		t.due = latest(t.due, t.state.Tail)
	}
}

// isDue says whether something of the lane is to be shipped now.
func (t *track) isDue() bool { return t.start().Before(t.due) }

// take reads the next object, if there is one. It does not ask the bucket.
func (s *Shipper) take(t *track) error {
	s.mu.Lock()
	from, tail := t.start(), t.state.Tail
	s.mu.Unlock()
	b, err := t.lane.Read(from, s.o.ObjectBytes)
	if errors.Is(err, io.EOF) {
		t.next = latest(t.next, tail) // all before the tail was read, and is damaged or gone
		return nil
	}
	if err != nil {
		return fmt.Errorf("read lane %s: %w", t.lane.ID(), err)
	}
	data, err := segment.EncodeRange(b)
	if err != nil {
		return fmt.Errorf("encode object of lane %s: %w", t.lane.ID(), err)
	}
	seq := b.Header.Seq
	s.mu.Lock()
	defer s.mu.Unlock()
	if t.skipped.to != t.state.Skip { // it is the first behind it
		t.skipped = passed{t.state.Skip, b.Before.Records}
	}
	t.hand = &object{t: t, data: data, records: b.After.Records, from: from, hole: from != t.next, ref: ref{
		key: objstore.SegmentKey{
			Owner: s.id.String(), Lane: t.lane.ID().String(), Seq: uint64(seq), First: uint32(b.First()), Last: uint32(b.Last()),
		},
		first: segment.Position{Seq: seq, Entry: b.First()}, last: segment.Position{Seq: seq, Entry: b.Last()}, end: b.Next,
	}}
	return nil
}

// dropExported gives up an object that is exported by now: if it is in the bucket all the same, it lies before what the
// register calls exported.
func (t *track) dropExported() {
	if t.hand != nil && !t.state.Exported.Before(t.hand.ref.end) {
		t.hand = nil
	}
}

// looks takes over where all lanes stand, and returns them in the order in which they are to be served: first who is waited
// for, then who waits longest.
func (s *Shipper) looks(now time.Time, all bool) []*track {
	s.mu.Lock()
	defer s.mu.Unlock()
	ts := make([]*track, 0, len(s.lanes))
	for _, t := range s.lanes {
		t.glance()
		t.assess(now, s.o.After, all)
		t.dropExported()
		ts = append(ts, t)
	}
	waited := map[*track]int{}
	for _, w := range s.waiters {
		if t := s.lanes[w.lane]; t != nil {
			t.due = latest(t.due, w.at.After())
			waited[t] = -1
		}
	}
	slices.SortFunc(ts, func(a, b *track) int {
		return cmp.Or(cmp.Compare(waited[a], waited[b]), cmp.Compare(a.turn, b.turn), a.lane.ID().Compare(b.lane.ID()))
	})
	return ts
}
