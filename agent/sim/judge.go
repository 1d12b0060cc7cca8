package sim

import (
	"fmt"
	"sync"
	"time"

	"ingest-agent/segment"
)

// Promise says what an answer promised of a frame.
type Promise uint8

const (
	// NoPromise is for a frame that was stored and not answered, or whose disk was lost before it was shipped.
	NoPromise Promise = iota
	// OnDisk is the promise of ack: disk, for as long as the disk is kept. What a register has named is promised beyond that.
	OnDisk
	// InBucket is the promise of ack: bucket.
	InBucket
)

// Bounds are the windows in which a duplicate is not a violation.
type Bounds struct {
	// Window is before the last write of a register by a holder, as it was sent: what the holder delivered within it, or
	// after that write, may be delivered again by who takes over. At most half of StaleAfter by the slowest clock.
	Window time.Duration
	// Exact says that there are no faults at all: then no frame arrives twice, whatever the reason.
	Exact bool
}

// Judge keeps what happened, and finds the first violation. It is safe for many goroutines at once.
type Judge struct {
	bounds Bounds

	mu        sync.Mutex
	frames    map[segment.FrameID]*frame
	open      map[segment.FrameID]*frame // promised and not delivered
	owners    map[string]*register
	placed    map[laneKey][]placement // in the bucket, by owner and lane, not named yet
	objects   map[string][]placement  // in the bucket now, by key
	contents  map[string]uint64       // of all that was ever put under a segment's key
	copies    map[string]int          // process -> copy of a disk
	began     map[string]int          // process -> which it is of all
	sent      map[string]time.Time    // write id -> when it was first sent
	violation *ViolationError
	counts    Counts
}

// Counts are what happened, for people and to see that a judge was not blind.
type Counts struct {
	Promised, Delivered, Twice, Voided, Objects, Late int
}

// laneKey is a lane of an owner's register.
type laneKey struct {
	owner string
	lane  segment.LaneID
}

// frame is what is known of one.
type frame struct {
	id        segment.FrameID
	promise   Promise
	named     bool // by a register, once
	delivered []*Attempt
	places    []placement
}

// placement is a frame's place in an object of the bucket.
type placement struct {
	frame *frame
	at    laneKey
	pos   segment.Position
	key   string
}

// NewJudge returns a judge of a world in which nothing has happened yet.
func NewJudge(b Bounds) *Judge {
	return &Judge{
		bounds: b, frames: map[segment.FrameID]*frame{}, open: map[segment.FrameID]*frame{}, owners: map[string]*register{},
		placed: map[laneKey][]placement{}, objects: map[string][]placement{}, contents: map[string]uint64{}, copies: map[string]int{},
		began: map[string]int{}, sent: map[string]time.Time{},
	}
}

// breaks keeps the first violation. j.mu is held.
func (j *Judge) breaks(i Invariant, format string, args ...any) {
	if j.violation == nil {
		j.violation = &ViolationError{Invariant: i, What: fmt.Sprintf(format, args...)}
	}
}

// Err returns the first violation, or nil.
func (j *Judge) Err() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.violation == nil {
		return nil
	}
	return j.violation
}

// Counts returns what has happened.
func (j *Judge) Counts() Counts {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.counts
}

// Began is told that a process runs on a copy of a disk. Copies have numbers; a clone or a restored snapshot is another.
func (j *Judge) Began(process string, disk int) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.copies[process], j.began[process] = disk, len(j.began)
}

// Sent is told when the write of a register leaves its process.
func (j *Judge) Sent(writeID string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if _, again := j.sent[writeID]; !again {
		j.sent[writeID] = time.Now()
	}
}

// Stored is told of a frame that was appended.
func (j *Judge) Stored(id segment.FrameID) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.frames[id] != nil {
		j.breaks(I2, "frame %s was appended twice", id)
	}
	j.frames[id] = &frame{id: id}
}

// Answered is told of a success answer.
func (j *Judge) Answered(id segment.FrameID, p Promise) {
	j.mu.Lock()
	defer j.mu.Unlock()
	f := j.frames[id]
	f.promise = p
	j.counts.Promised++
	if len(f.delivered) > 0 {
		return
	}
	if j.open[id] = f; p == InBucket && !j.inDuty(f) {
		j.breaks(I1, "frame %s was answered and is not in the bucket", id)
	}
}

// inDuty says whether a register's duty covers the frame in the bucket. j.mu is held.
func (j *Judge) inDuty(f *frame) bool {
	for _, p := range f.places {
		if _, there := j.objects[p.key]; there && j.owners[p.at.owner].covers(p) {
			return true
		}
	}
	return false
}

// Lost is told that disks are gone; on says what the kept ones hold. What nothing holds any more and no register has named
// was not promised beyond its disk.
func (j *Judge) Lost(on func(segment.FrameID) bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for id, f := range j.open {
		if f.promise == OnDisk && !f.named && !on(id) {
			f.promise = NoPromise
			delete(j.open, id)
			j.counts.Voided++
		}
	}
}

// Check is I4, at this moment.
func (j *Judge) Check(on func(segment.FrameID) bool) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	for id, f := range j.open {
		if j.violation != nil {
			break
		}
		if !on(id) && !j.inDuty(f) {
			j.breaks(I4, "frame %s is nowhere: %s", id, j.whereabouts(f))
		}
	}
	if j.violation == nil {
		return nil
	}
	return j.violation
}

// whereabouts tells people where a frame was. j.mu is held.
func (j *Judge) whereabouts(f *frame) (s string) {
	for _, p := range f.places {
		_, there := j.objects[p.key]
		s += fmt.Sprintf("[%s at %s in the bucket: %v, register %s]", p.key, p.pos, there, j.owners[p.at.owner])
	}
	return s
}

// Registers returns how many registers of owners there are.
func (j *Judge) Registers() (n int) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, r := range j.owners {
		if r.there {
			n++
		}
	}
	return n
}

// Open returns how many frames are promised and not delivered.
func (j *Judge) Open() int {
	j.mu.Lock()
	defer j.mu.Unlock()
	return len(j.open)
}

// Undelivered describes some of what is promised and not delivered.
func (j *Judge) Undelivered() (s string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for id, f := range j.open {
		if s += fmt.Sprintf("%s %s\n", id, j.whereabouts(f)); len(s) > 2000 {
			break
		}
	}
	return s
}

// State returns the state of the register of an owner, "" for none.
func (j *Judge) State(owner string) string {
	j.mu.Lock()
	defer j.mu.Unlock()
	if r := j.owners[owner]; r != nil && r.there {
		return r.record.State
	}
	return ""
}

// SignedOff says whether the register of an owner says that it has signed off.
func (j *Judge) SignedOff(owner string) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	r := j.owners[owner]
	return r != nil && r.there && r.body.SignedOff
}

// Fails is told of what is wrong beyond what the Judge sees itself.
func (j *Judge) Fails(i Invariant, format string, args ...any) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.breaks(i, format, args...)
}

// Stopped is told that a process has stopped and says that nothing is left to do for it: its register is at rest then, or
// another's.
func (j *Judge) Stopped(process, owner string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if r := j.owners[owner]; r != nil && r.there && r.record.Holder != "" && r.beginner == r.record.Holder {
		j.breaks(I14, "%s has stopped, and its register is %s", process, r)
	}
}
