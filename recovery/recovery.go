// Package recovery finishes the work of owners that are gone: it finds their registers, adopts them, and drains what they left
// in the bucket through the same loop and the same sinks as everything else.
//
// Guarantee: what an owner has named, and what it wrote and did not live to name, is exported by one adopter at a time, and an
// object is deleted only after a commit that covers it. Whatever ends an adoption early, its register and its objects stay, with
// what was reached, and are free for anybody at once; or, where that cannot be said to the bucket any more, once the adopter has
// been silent for long enough. Nobody acts on a register that it may not hold. The look-out never ends: what is not claimable
// now is looked at again. A scan waits for no adoption, and no adoption for another.
//
// Assumption: what objstore and objstore/lease assume, among it that preconditions are honoured; otherwise nothing is adopted.
//
// Commit points: the Put of the owner's register that says what is exported; of a burial, the Put that says so.
//
// One node of the fleet holds fleet/scan.json and scans: it lists owners and segments, reads the registers that have changed, and
// writes who is claimable into that same register. All others read it, and it is all that they ask for. Claims are made from the
// list, in an order of each node's own.
package recovery

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/oklog/ulid/v2"
	"go.uber.org/zap"

	"ingest-agent/objstore"
	"ingest-agent/objstore/lease"
	"ingest-agent/segment"
)

const (
	// commitBytes is how much is exported, of bodies of one lane, before a commit is due, whatever the time.
	commitBytes = 8 << 20
	// commitEvery is the time between two commits of an adoption, and stallAfter how long one of its lanes may come to nothing
	// before it is given up.
	commitEvery = time.Second
	stallAfter  = time.Minute
	// deletesAtOnce is how many objects are deleted side by side, and deleteChunk how many are kept in mind before that.
	deletesAtOnce = 8
	deleteChunk   = 512
	// archivedAtOnce is how many objects of an adoption are in memory at once to be archived.
	archivedAtOnce = 2
	// fetchesAtOnce bounds the registers that a scan reads side by side.
	fetchesAtOnce = 16
	// releasePart bounds what is said to the bucket at the end, and one look at a register, as a part of StaleAfter.
	releasePart = 2
	// defaultConcurrency is how many adoptions run side by side.
	defaultConcurrency = 2
)

// Options configure a Recovery. All are needed but those that say otherwise.
type Options struct {
	Bucket objstore.Bucket
	// Holder is a ULID that nobody else has, the process's shipper among them: the holder of what is adopted and scanned.
	Holder string
	Node   string // for people
	// Own says whether an owner's id is in present use by this process. nil: none is.
	Own func(owner string) bool
	// Only is the one owner that is looked at. "": all are.
	Only string
	// Probe says whether preconditions are honoured. It is asked before the first write, until it answers. nil: they are.
	Probe func(ctx context.Context) (objstore.ProbeResult, error)

	ScanInterval time.Duration // recovery.scan_interval
	StaleAfter   time.Duration // recovery.stale_after: the same for all nodes
	Retention    time.Duration // recovery.tombstone_retention
	Concurrency  int           // recovery.concurrency; 0: 2
	CommitEvery  time.Duration // 0: a second
	StallAfter   time.Duration // how long a lane may come to nothing before it is given up; 0: a minute

	// Knows says whether a destination is configured here.
	Knows func(destination string) bool
	// Drain drains a lane, until ctx ends: at the latest when its cursor is at the end. It returns when all that it started has
	// ended.
	Drain func(ctx context.Context, lane Adopted)
	// Adopted is told, behind the commit, what became of records that were taken over. It is called by many goroutines, for one
	// owner by one. nil: nobody is.
	Adopted func(owner string, lane segment.LaneID, p segment.Progress)
	// Quarantine keeps what is damaged in an object. nil: nothing is kept.
	Quarantine func(lane segment.LaneID, key string, data []byte, damage []segment.Damage) error
	// Archive keeps a copy of what an object of an adopted lane holds before a position, which is exported, before the object is
	// deleted. After an error the object stays, and is tried again. It is called by many goroutines. nil: nothing is kept.
	Archive func(ctx context.Context, key objstore.SegmentKey, exported segment.Position) error
	Log     *zap.Logger

	// NewID makes ULIDs: write ids. One call at a time. nil: random ones.
	NewID func() string
	// Jitter returns a number in [0, 1), for the order of claims and the time between scans. One goroutine calls it. nil: random
	// ones.
	Jitter func() float64
}

// Recovery looks after the owners of a bucket, for one process.
type Recovery struct {
	o    Options
	scan *lease.Register // fleet/scan.json
	wake chan struct{}   // the board, a result, or a stop
	done chan struct{}   // closed when Run has returned

	mu      sync.Mutex
	ids     sync.Mutex // NewID is asked by one at a time
	owners  map[string]*known
	board   []Claimable // in the order in which they are tried
	edition uint64      // of the board
	results []result
	probed  bool
	started bool
	stop    context.CancelFunc // ends the work
	kill    context.CancelFunc // and what would be said after it
	stats   Stats
	working map[string]bool // owners that are being looked at, or adopted

	adoptions sync.WaitGroup
	reads     sync.WaitGroup // of registers, by scans
}

// known is what this process knows of an owner.
type known struct {
	seen    lease.Seen
	state   Look             // Body and Err of seen
	listed  objstore.Version // by the last scan; "" if it did not
	hinted  bool             // the last scan saw its prefix
	late    objstore.Version // the version with which it had objects that are still to be exported
	reading bool
}

// New returns a Recovery. It asks the bucket nothing.
func New(o Options) *Recovery {
	if o.NewID == nil {
		o.NewID = func() string { return ulid.Make().String() }
	}
	if o.Jitter == nil {
		o.Jitter = rand.Float64
	}
	if o.Own == nil {
		o.Own = func(string) bool { return false }
	}
	o.Concurrency = cmp.Or(o.Concurrency, defaultConcurrency)
	o.CommitEvery = cmp.Or(o.CommitEvery, commitEvery)
	o.StallAfter = cmp.Or(o.StallAfter, stallAfter)
	r := &Recovery{
		o: o, wake: make(chan struct{}, 1), done: make(chan struct{}), owners: map[string]*known{}, working: map[string]bool{},
		stats: newStats(),
	}
	r.scan = r.register(objstore.FleetKey{Task: "scan"})
	return r
}

func (r *Recovery) register(key objstore.Key) *lease.Register {
	return lease.New(lease.Options{
		Bucket: r.o.Bucket, Key: key.String(), Holder: r.o.Holder, Node: r.o.Node, StaleAfter: r.o.StaleAfter, NewID: r.newID,
	})
}

func (r *Recovery) newID() string {
	r.ids.Lock()
	defer r.ids.Unlock()
	return r.o.NewID()
}

// Run looks out, adopts and drains until Stop is called, or until ctx ends: then it ends at once, as a killed process would,
// but with all that it started.
func (r *Recovery) Run(ctx context.Context) {
	defer close(r.done)
	life, kill := context.WithCancel(ctx)
	defer kill()
	work, stop := context.WithCancel(life)
	defer stop()
	r.mu.Lock()
	over := r.started
	r.started, r.stop, r.kill = true, stop, kill
	r.mu.Unlock()
	if over {
		return
	}
	defer context.AfterFunc(work, r.Wake)()
	var scanner sync.WaitGroup
	scanner.Go(func() { r.lookOut(work, life) })
	r.claim(work, life)
	r.adoptions.Wait()
	scanner.Wait()
}

// Stop ends what runs: each adoption is given back with what it has reached, and the scan to whoever is next. It returns when all
// has ended, soon after ctx at the latest; what could not be said to the bucket by then, others find out by the silence.
func (r *Recovery) Stop(ctx context.Context) error {
	r.mu.Lock()
	if !r.started {
		r.started = true
		r.mu.Unlock()
		return nil
	}
	stop, kill := r.stop, r.kill
	r.mu.Unlock()
	defer context.AfterFunc(ctx, kill)()
	stop()
	<-r.done
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("stop recovery: %w", err)
	}
	return nil
}

// Wake makes the claims go on.
func (r *Recovery) Wake() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// errRefused is why nothing is adopted on a bucket that does not honour preconditions.
var errRefused = errors.New("nothing is taken over")

// allowed makes sure that the bucket honours preconditions, before the first write.
func (r *Recovery) allowed(ctx context.Context) error {
	r.mu.Lock()
	probed, refused := r.probed, r.stats.Refused
	r.mu.Unlock()
	if probed || r.o.Probe == nil {
		if refused != "" {
			return fmt.Errorf("%w: %s", errRefused, refused)
		}
		return nil
	}
	result, err := r.o.Probe(ctx)
	if err != nil {
		return fmt.Errorf("probe bucket: %w", err)
	}
	err = result.Require("adoption")
	r.mu.Lock()
	r.probed = true
	if err != nil {
		r.stats.Refused = err.Error()
	}
	r.mu.Unlock()
	if err != nil {
		r.o.Log.Error("nothing is taken over from other nodes", zap.Error(err))
		return fmt.Errorf("%w: %w", errRefused, err)
	}
	return nil
}
