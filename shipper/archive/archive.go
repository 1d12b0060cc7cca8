// Package archive keeps copies of exported frames in the bucket, below archive/, by the hour in which they were received.
//
// Whoever moves the cursor over frames archives them: from the segments of a lane, which stay on the disk until then; from a
// segment object that was spilled or adopted, before it is deleted. An object has frames of one segment, all of which were
// received in the hour of its key or later, and at most wal.segment_age after its first.
//
// Guarantee: taking and delivering never wait for the archive. Frames that it could not take while their space was needed, or
// by a number of tries, are counted as missed. A frame is in the archive at least once: a crash repeats what was copied and
// not removed, under another owner's id or in other ranges, so that readers take each frame once by its id.
//
// Assumption: what objstore assumes. Parked lanes are not archived: their frames passed the cursor of the lane from which they
// were moved.
//
// Commit point: the bucket's Put. Where a lane's copies end is not kept: a segment is removed after all of it is copied, so
// that what is on the disk is what is still to be done.
//
// Run has three loops: of lanes, in rounds (choose some, copy what is next of them side by side, let go of the segments); of
// objects that are asked for; and of the sweep of old hours.
package archive

import (
	"cmp"
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/oklog/ulid/v2"
	"go.uber.org/zap"

	"ingest-agent/objstore"
	"ingest-agent/segment"
)

const (
	// objectBytes is about how large the bodies of an object are; a single larger frame goes alone.
	objectBytes = 8 << 20
	// lanesAtOnce and objectsAtOnce are how many objects are in memory, and put, at once.
	lanesAtOnce, objectsAtOnce = 4, 2
	// lookEvery is how often lanes are looked at, and lookStopping in a stop. It asks neither disk nor bucket.
	lookEvery, lookStopping = time.Second, 50 * time.Millisecond
	// putTimeout bounds one try to copy an object: 8 MiB at 70 kB/s.
	putTimeout = 2 * time.Minute
	// retryFirst is the first delay after a failure, and urgentPart bounds those of a stop, as a part of RetryMax.
	retryFirst = time.Second
	urgentPart = 16
	// giveUpAt is the share of the disk in use from which segments go that have waited for patience, or for a bucket that fails.
	giveUpAt = 0.75
	patience = 2 * time.Second
	// watchEvery is how often a copy that goes on is held against that.
	watchEvery = 250 * time.Millisecond
	// objectTries is after how many failures in a row an object is let go that is to be deleted.
	objectTries = 3
	// defaultObjectPatience is how long these must have lasted.
	defaultObjectPatience = time.Minute
	// objectRetry is after when an object is tried again that failed.
	objectRetry = 5 * time.Second
	// maxAsked bounds the objects that are asked for, and forgetAsked when one is forgotten about which nobody asks any more.
	maxAsked    = 256
	forgetAsked = 10 * time.Minute
	// tellMissedEvery bounds the lines of the log about what is missed.
	tellMissedEvery = time.Minute
)

// Options configure an Archiver. All are needed but those that say otherwise.
type Options struct {
	Bucket objstore.Bucket
	// Owner is the id under which copies of this process's own lanes are filed: the present shipping id, or the process's.
	Owner      func() string
	SegmentAge time.Duration // wal.segment_age: what an object spans at most
	RetryMax   time.Duration // shipper.retry_max_interval
	Log        *zap.Logger
	// Taken is the share of the disk in use (segment.Space.Taken). nil: there is always room.
	Taken func() float64
	// Spare says whether a bucket has room that is on the disk of the lanes, which must not fill up with it. nil: it is elsewhere.
	Spare func() bool
	// Probe says whether preconditions are honoured. It is asked before the first write, until it answers. nil: they are.
	Probe func(ctx context.Context) (objstore.ProbeResult, error)
	// Settled is called when something is settled that Copied was asked about. nil: nobody waits.
	Settled func()
	// ObjectPatience is for how long copying objects must have failed before they are let go; 0: a minute.
	ObjectPatience time.Duration

	// The sweep's: fleet/archive.json is held by a process that nobody else is, another than the process's other holders.
	Holder     string
	Node       string        // for people
	StaleAfter time.Duration // recovery.stale_after: the same for all nodes
	Retention  time.Duration // archive.retention

	// NewID makes ULIDs: write ids. nil: random ones.
	NewID func() string
	// Jitter returns a number in [0, 1). It is called by two goroutines. nil: random ones.
	Jitter func() float64
}

// Archiver archives what one process exports.
type Archiver struct {
	o    Options
	wake chan struct{}
	asks chan struct{} // Copied was asked about something new
	done chan struct{} // closed when Run has returned

	mu       sync.Mutex
	tracks   []*track
	asked    map[objstore.SegmentKey]*asked
	probed   bool
	weak     bool // the bucket does not honour preconditions
	objects  failing
	started  bool
	ending   bool // Stop was called
	cancelOp context.CancelFunc
	stats    Stats
	untold   uint64 // records that are missed and not told of
	toldAt   time.Time

	// The lanes' loop's alone.
	retryAt time.Time
	delay   time.Duration // after the last failure; 0: the last round was good
	turn    uint64
}

// failing is a run of failures.
type failing struct {
	n     int
	since time.Time
}

// asked is an object that is to be copied before it is deleted.
type asked struct {
	done    bool
	at      time.Time // when it was last asked about
	retryAt time.Time
}

// Stats is what metrics and people want to know.
type Stats struct {
	ArchivedObjects uint64 `json:"archived_objects"`
	ArchivedBytes   uint64 `json:"archived_bytes"`
	MissedRecords   uint64 `json:"missed_records"`
	SweptObjects    uint64 `json:"swept_objects"`
	// LastError is the last trouble, "" when a round went well.
	LastError string `json:"last_error"`
}

// New returns an archiver. It asks the bucket nothing. Copy may be called without Run.
func New(o Options) *Archiver {
	if o.NewID == nil {
		o.NewID = func() string { return ulid.Make().String() }
	}
	if o.Jitter == nil {
		o.Jitter = rand.Float64
	}
	if o.Taken == nil {
		o.Taken = func() float64 { return 0 }
	}
	if o.Spare == nil {
		o.Spare = func() bool { return true }
	}
	if o.Settled == nil {
		o.Settled = func() {}
	}
	o.ObjectPatience = cmp.Or(o.ObjectPatience, defaultObjectPatience)
	return &Archiver{
		o: o, wake: make(chan struct{}, 1), asks: make(chan struct{}, 1), done: make(chan struct{}),
		asked: map[objstore.SegmentKey]*asked{},
	}
}

// Add makes the archiver archive a lane, which keeps its exported segments (segment.LaneOptions.KeepExported).
func (a *Archiver) Add(l *segment.Lane) {
	a.mu.Lock()
	a.tracks = append(a.tracks, &track{lane: l, reader: l.NewReader(), at: segment.Start})
	a.mu.Unlock()
	a.Wake()
}

// Keeps says whether a lane is archived.
func Keeps(lane segment.LaneID) bool { return lane.Parked == 0 }

// Wake makes the archiver look at its lanes now: after a refusal, say.
func (a *Archiver) Wake() { wake(a.wake) }

func wake(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default: // it will look anyway
	}
}

// Run archives until Stop is called, or until ctx ends: then it ends at once, as a killed process would, but with all that it
// started.
func (a *Archiver) Run(ctx context.Context) {
	defer close(a.done)
	op, cancel := context.WithCancel(ctx)
	a.mu.Lock()
	over := a.started
	a.started, a.cancelOp = true, cancel
	a.mu.Unlock()
	if over {
		cancel()
		return
	}
	var beside sync.WaitGroup
	beside.Go(func() { a.sweepLoop(op) })
	beside.Go(func() { a.objectLoop(op) })
	a.laneLoop(op)
	cancel()
	beside.Wait()
	for _, t := range a.tracksNow() {
		t.reader.Close()
	}
}

// laneLoop archives lanes until a stop has nothing left to do.
func (a *Archiver) laneLoop(op context.Context) {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for op.Err() == nil {
		next := a.round(op)
		if a.stopping() && !a.left() {
			return
		}
		if next <= 0 {
			continue
		}
		timer.Reset(next)
		select { // whichever it is, the next round looks at everything
		case <-a.wake:
		case <-timer.C:
		case <-op.Done():
		}
	}
}

func (a *Archiver) stopping() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.ending
}

func (a *Archiver) tracksNow() []*track {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.tracks)
}

// Stop archives what is exported, also of a segment that is exported in part, and ends what runs, soon after ctx at the latest.
// The lanes are not drained any more. What was not archived stays on the disk, and the next start goes on with it.
func (a *Archiver) Stop(ctx context.Context) {
	a.mu.Lock()
	if !a.started {
		a.started = true
		a.mu.Unlock()
		return
	}
	a.ending = true
	cancel := a.cancelOp
	a.mu.Unlock()
	defer context.AfterFunc(ctx, cancel)()
	a.Wake()
	<-a.done
	if a.left() {
		a.o.Log.Warn("not all that was delivered is archived; it stays on the disk, and the next start archives it")
	}
}

// Stats returns how things stand.
func (a *Archiver) Stats() Stats {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.stats
}

func (a *Archiver) update(change func(*Stats)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	change(&a.stats)
}
