// Package shippertest is a lane in memory, for tests and simulations of shipping and recovery: LaneDisk is what survives a
// process, Lane is one process's view of it.
//
// It guarantees what segment.Lane does as far as these need it: numbers of segments are never used twice, a process appends to
// segments of its own only, the cursor is durable when it is saved and may go back to there with a crash, positions have one
// spelling, what is spilled is read back from a segment.Remote or counted as lost. Beyond that it is exact where a real lane
// can only tell from what is left: it knows of every frame that ever was.
package shippertest

import (
	"sort"
	"sync"
	"time"

	"ingest-agent/segment"
)

// LaneDisk is a lane as it lies on a disk. It is safe for many goroutines at once, and is meant for one Lane at a time: a
// process that was killed has no effect on it any more (see Lane.Kill).
type LaneDisk struct {
	id segment.LaneID

	mu      sync.Mutex
	frames  []stored // all that were ever appended, in order
	segs    map[segment.Seq]*seg
	nextSeq segment.Seq
	saved   cursor
	life    *Lane // the process that may change it
}

// stored is a frame, which stays known when its body is gone.
type stored struct {
	pos    segment.Position
	frame  segment.Frame
	before segment.Totals // of the lane
}

type seg struct {
	header segment.Header
	last   segment.Entry
	open   bool
	gone   bool // exported or spilled
}

// cursor is what is saved.
type cursor struct {
	exported segment.Position
	spilled  segment.Position
}

// NewLaneDisk returns an empty lane.
func NewLaneDisk(id segment.LaneID) *LaneDisk {
	return &LaneDisk{id: id, segs: map[segment.Seq]*seg{}, nextSeq: 1, saved: cursor{exported: segment.Start}}
}

// Clone is a copy of the disk as a crash at this moment would leave it, with a life of its own.
func (d *LaneDisk) Clone() *LaneDisk {
	d.mu.Lock()
	defer d.mu.Unlock()
	c := &LaneDisk{id: d.id, segs: map[segment.Seq]*seg{}, nextSeq: d.nextSeq, saved: d.saved}
	c.frames = append(c.frames, d.frames...)
	for n, g := range d.segs {
		other := *g
		c.segs[n] = &other
	}
	return c
}

// Forget makes the disk forget which numbers of segments were used, but for those that lie on it: what a lane would do that
// does not keep the next number durably. It is for simulations of that fault.
func (d *LaneDisk) Forget() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.nextSeq = 1
	for n, g := range d.segs {
		if !g.gone {
			d.nextSeq = max(d.nextSeq, n+1)
		}
	}
}

// Holds says whether the frame with this id lies on the disk and is at or behind the saved cursor.
func (d *LaneDisk) Holds(id segment.FrameID) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	for i := range d.frames {
		f := &d.frames[i]
		if f.frame.ID == id && !f.pos.Before(d.saved.exported) && !d.segs[f.pos.Seq].gone {
			return true
		}
	}
	return false
}

// Pending returns the frames that lie on the disk at or behind the saved cursor.
func (d *LaneDisk) Pending() []segment.Frame {
	d.mu.Lock()
	defer d.mu.Unlock()
	var all []segment.Frame
	for i := d.at(d.saved.exported); i < len(d.frames); i++ {
		if f := &d.frames[i]; !d.segs[f.pos.Seq].gone {
			all = append(all, f.frame)
		}
	}
	return all
}

// LocalBytes is the size of the bodies that lie on the disk.
func (d *LaneDisk) LocalBytes() (n int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for i := range d.frames {
		if f := &d.frames[i]; !d.segs[f.pos.Seq].gone {
			n += int64(len(f.frame.Body))
		}
	}
	return n
}

// at is the index of the first frame at or behind a position. d.mu is held.
func (d *LaneDisk) at(p segment.Position) int {
	return sort.Search(len(d.frames), func(i int) bool { return !d.frames[i].pos.Before(p) })
}

// totals is what was appended before a position. d.mu is held.
func (d *LaneDisk) totals(p segment.Position) segment.Totals {
	if i := d.at(p); i < len(d.frames) {
		return d.frames[i].before
	}
	return d.in()
}

// in is what was ever appended. d.mu is held.
func (d *LaneDisk) in() segment.Totals {
	if len(d.frames) == 0 {
		return segment.Totals{}
	}
	last := &d.frames[len(d.frames)-1]
	return last.before.Add(totalsOf(&last.frame))
}

func totalsOf(f *segment.Frame) segment.Totals {
	return segment.Totals{Frames: 1, Records: f.Signal.Of(uint64(f.Records)), Bytes: uint64(len(f.Body))}
}

// Options are those of a process that opens a lane.
type Options struct {
	Owner  segment.OwnerID
	Remote segment.Remote
	Skip   segment.Position
	// SegmentFrames seals a segment that has so many frames; 0: only Seal does.
	SegmentFrames int
}

// Open starts a process on the lane, after the last one has ended or was killed. Nothing that the last one did not save of
// its cursor is left.
func (d *LaneDisk) Open(o Options) *Lane {
	d.mu.Lock()
	defer d.mu.Unlock()
	l := &Lane{d: d, o: o, firstSeq: d.nextSeq, exported: d.saved.exported, spilled: d.saved.spilled, skip: o.Skip, moved: make(chan struct{})}
	for _, g := range d.segs {
		g.open = false
	}
	l.exported = l.spell(l.exported)
	d.life = l
	return l
}

// spell gives the end of a sealed segment its one spelling. d.mu is held.
func (l *Lane) spell(p segment.Position) segment.Position {
	if g := l.d.segs[p.Seq]; g != nil && !g.open && p.Entry == g.last+1 {
		return p.NextSegment()
	}
	return p
}

// create begins a new segment. d.mu is held.
func (l *Lane) create() *seg {
	g := &seg{open: true, header: segment.Header{
		Birth: segment.Birth{Owner: l.o.Owner, Lane: l.d.id, Seq: l.d.nextSeq}, Created: time.Now().UTC(),
	}}
	l.d.segs[l.d.nextSeq] = g
	l.active = l.d.nextSeq
	l.d.nextSeq++ // before the first frame: the number is durable
	return g
}
