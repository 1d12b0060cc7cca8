// Package shipper copies to the bucket what a node could not deliver in time, so that it outlives the node.
//
// Guarantee: what is exported is never shipped, and what is shipped stays in the duty of one register until it is exported. A
// lane's objects follow each other without overlap, and the next is put after a commit has named the last. Before the first
// object of an id there is a register, and before that a synced note on the disk. An object is deleted after a commit of the
// register that covers it, and a local segment is spilled after one that names it. Nothing is done under a register that this
// process may not hold; when another has taken it over, the process signs off and goes on under a new id. Trouble with the
// bucket is waited for, never given up on, and holds up neither what is taken nor what is delivered from the local disk.
//
// Assumption: what objstore and objstore/lease assume. Positions of a lane are never used twice in a data directory.
//
// Commit points: the note's rename, for what this disk may have shipped and whose duty its frames are; the register's Put, for
// what is named, exported and retired.
//
// One goroutine (Run) decides, in rounds: choose at most one object for each lane, put them side by side, name them all by
// one commit, delete what the commit covers. The heartbeat is the lease's own, and says each time what is exported.
package shipper

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/oklog/ulid/v2"
	"go.uber.org/zap"

	"ingest-agent/objstore"
	"ingest-agent/objstore/lease"
	"ingest-agent/recovery/owner"
	"ingest-agent/segment"
	"ingest-agent/segment/vfs"
)

// ErrUnavailable says that the bucket is out of reach, or that nothing is shipped any more: nobody can wait for a frame to be there.
var ErrUnavailable = errors.New("bucket unavailable")

// errNotReady is the reason of a Fetch that must be tried again.
var errNotReady = errors.New("not ready")

const (
	// objectBytes is about how large the bodies of an object are; a single larger frame goes alone.
	objectBytes = 8 << 20
	// defaultSideBySide is how many objects are in memory, and put, at once.
	defaultSideBySide = 4
	// lookPart: lanes are looked at so often within shipper.after, or within the time between two beats if that is shorter.
	lookPart = 8
	// beatPart is that of the lease: beats are so many parts of StaleAfter apart.
	beatPart = 6
	// putFactor: one try to put an object takes at most so many times StaleAfter; 8 MiB at 70 kB/s for a minute.
	putFactor = 2
	// callPart bounds an attempt at the register by a part of StaleAfter, so that the loop comes round.
	callPart = 2
	// retryFirstPart is the first delay after a failure, as a part of RetryMax.
	retryFirstPart = 128
	// urgentPart bounds the delays of a stop, as a part of RetryMax.
	urgentPart = 16
	// downAfter is after how many failed rounds in a row the bucket is known to be out of reach.
	downAfter = 3
	// minLook is the shortest time between two looks.
	minLook = 10 * time.Millisecond
	// shipShare is the part of a stop's time in which it ships; the rest is for the register.
	shipShare = 0.8
	// archiveWait is how long a stop waits for the archive to copy what is to be deleted.
	archiveWait = 2 * time.Second
	// eagerAt and spillAt are the shares of the disk in use from which everything is shipped at once, and spilled.
	eagerAt, spillAt = 0.5, 0.75
)

// Options configure a Shipper. All are needed but those that say otherwise.
type Options struct {
	Bucket objstore.Bucket
	// Owner is the process's id: a ULID that no other process has. It is the first shipping id, and the register's holder.
	Owner segment.OwnerID
	Node  string // for people
	// StaleAfter is recovery.stale_after: how long a holder may be silent. The same for all nodes.
	StaleAfter time.Duration
	After      time.Duration // shipper.after
	RetryMax   time.Duration // shipper.retry_max_interval

	FS   vfs.FS
	Note string // path of the note
	Log  *zap.Logger

	// Probe says whether preconditions are honoured. It is asked before the first write, until it answers. nil: they are.
	Probe func(ctx context.Context) (objstore.ProbeResult, error)
	// Pressure is the share of wal.max_bytes in use, 1 after a refusal. nil: there is none.
	Pressure func() float64
	// Archived says whether an object whose segment was spilled, and is exported, may be deleted as far as an archive is
	// concerned. It does not wait: after no, Wake is called when the answer is yes. nil: there is no archive.
	Archived func(key objstore.SegmentKey) bool
	// NewID makes ULIDs: write ids, and shipping ids after a sign-off. One call at a time. nil: random ones.
	NewID func() string
	// Jitter returns a number in [0, 1). Only the loop calls it. nil: random ones.
	Jitter func() float64
	// SideBySide is how many objects are in memory at once; 0: 4.
	SideBySide int
	// ObjectBytes is about how large an object may be; 0: 8 MiB.
	ObjectBytes int
}

// Shipper ships the lanes of one process.
type Shipper struct {
	o      Options
	wake   chan struct{}
	handed chan struct{} // closed when the earlier ids are handed over
	done   chan struct{} // closed when Run has returned

	mu       sync.Mutex
	lanes    map[segment.LaneID]*track
	waiters  []*waiter
	lease    *lease.Lease // nil: the register is not held
	earlier  []earlierID  // not handed over yet
	skip     map[segment.LaneID]segment.Position
	settled  bool
	started  bool
	ended    bool
	stop     context.Context //nolint:containedctx // that of Stop, for the loop; nil: go on
	cancelOp context.CancelFunc
	down     bool
	weak     error // the bucket does not honour preconditions
	stats    Stats

	// The loop's alone.
	note     *note
	noteMu   sync.Mutex // Settle may be called by another, before Run
	bucket   objstore.Bucket
	probed   bool
	id       segment.OwnerID
	register *lease.Register
	seen     lease.Seen
	look     bool            // seen is not known to be current
	begun    bool            // the register is known to have been there
	open     bool            // an acquire may be in force, or may still land: it is settled by another, also if nothing is due any more
	fenced   bool            // the register is another's: sign off
	act      context.Context //nolint:containedctx // ends when the lease does; nil: no keeper runs
	endKeep  func()
	restAt   time.Time // since when nothing is owed; zero: something is
	failed   int       // rounds in a row
	bad      error     // trouble of this round
	good     bool      // something succeeded in this round
	retryAt  time.Time // of everything but lanes, which have their own
	delay    time.Duration
	turn     uint64
	hurry    bool // the next round is due at once
	urgent   bool // a stop has begun: delays are short, and begin anew
	known    knownBody
	kept     bool // an object that is exported waits for the archive
	stopped  error
}

// Stats is what metrics and people want to know.
type Stats struct {
	Owner segment.OwnerID `json:"owner"` // the present shipping id
	// State is the register's as this process knows it; "" for none.
	State          string `json:"state"`
	Objects        int    `json:"objects"` // in the bucket, under the present id
	ShippedObjects uint64 `json:"shipped_objects"`
	ShippedBytes   uint64 `json:"shipped_bytes"`
	SpilledBytes   uint64 `json:"spilled_bytes"`
	Conflicts      uint64 `json:"conflicts"` // changes of a register that were lost to another's
	Fenced         uint64 `json:"fenced"`    // sign-offs in mid-life
	Missing        uint64 `json:"missing"`   // objects that were not there any more when they were read back
	Down           bool   `json:"down"`      // the bucket is known to be out of reach
	// LastError is the last trouble, "" when a round went well.
	LastError string `json:"last_error"`
	// Lag is for how long the oldest frame has waited that is due and not named yet.
	Lag time.Duration `json:"lag_ns"`
}

// New returns a shipper. It reads the note, and asks the bucket nothing. Lanes are added, then Settle is called, then frames may
// be appended, then Run. Errors: the note's, of a disk that does not read, or of a note of a later version.
func New(o Options) (*Shipper, error) {
	if o.NewID == nil {
		o.NewID = func() string { return ulid.Make().String() }
	}
	next, turn := o.NewID, &sync.Mutex{}
	o.NewID = func() string { // the heartbeat asks for them, too
		turn.Lock()
		defer turn.Unlock()
		return next()
	}
	if o.Jitter == nil {
		o.Jitter = rand.Float64
	}
	if o.Pressure == nil {
		o.Pressure = func() float64 { return 0 }
	}
	o.SideBySide = cmp.Or(o.SideBySide, defaultSideBySide)
	o.ObjectBytes = cmp.Or(o.ObjectBytes, objectBytes)
	n, damaged, err := openNote(o.FS, o.Note)
	if err != nil {
		return nil, err
	}
	s := &Shipper{
		o: o, wake: make(chan struct{}, 1), handed: make(chan struct{}), done: make(chan struct{}),
		lanes: map[segment.LaneID]*track{}, note: n, bucket: o.Bucket,
	}
	data := n.data.clone()
	s.earlier, s.skip = data.Earlier, data.Skip
	s.use(o.Owner)
	if damaged {
		o.Log.Error("note of what was shipped is damaged and set aside; what was shipped and not spilled may be delivered twice",
			zap.String("path", o.Note+damagedSuffix))
	}
	if len(s.earlier) == 0 {
		close(s.handed)
	}
	return s, nil
}

// use makes id the present shipping id.
func (s *Shipper) use(id segment.OwnerID) {
	s.id, s.begun, s.look, s.open, s.seen = id, false, false, false, lease.Seen{}
	s.register = s.registerOf(id)
	s.mu.Lock()
	s.stats.Owner, s.stats.State = id, ""
	s.mu.Unlock()
}

func (s *Shipper) registerOf(id segment.OwnerID) *lease.Register {
	return lease.New(lease.Options{
		Bucket: s.bucket, Key: objstore.OwnerKey{Owner: id.String()}.String(), Holder: s.o.Owner.String(), Node: s.o.Node,
		StaleAfter: s.o.StaleAfter, NewID: s.o.NewID,
	})
}

// Held returns the lanes whose drain must wait for HandedOver, or for boot_wait: earlier processes may have shipped of them
// what is still on the disk. It is known right after New.
func (s *Shipper) Held() []segment.LaneID {
	s.mu.Lock()
	defer s.mu.Unlock()
	var ids []segment.LaneID
	for _, e := range s.earlier {
		ids = append(ids, e.Lanes...)
	}
	slices.SortFunc(ids, segment.LaneID.Compare)
	return slices.Compact(ids)
}

// HandedOver is closed when the drains of the lanes in Held may go on.
func (s *Shipper) HandedOver() <-chan struct{} { return s.handed }

// SkipOf is what segment.LaneOptions.Skip of a lane has to be.
func (s *Shipper) SkipOf(lane segment.LaneID) segment.Position {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.skip[lane]
}

// AddLane makes the shipper ship a lane. It may be called at any time.
func (s *Shipper) AddLane(l Lane) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := newTrack(l)
	s.lanes[l.ID()] = t
	if to := s.skip[l.ID()]; t.state.Skip.Before(to) {
		l.Skip(to)
	}
	known := slices.ContainsFunc(s.earlier, func(e earlierID) bool { return slices.Contains(e.Lanes, l.ID()) })
	if to := t.state.Spilled; !s.settled && !known && t.state.Exported.Before(to) && s.skip[l.ID()].Before(to) {
		// It was named by the register of an id that no note tells of any more: whoever adopts that delivers it.
		s.o.Log.Error("note of shipping does not tell who has what was spilled; it is left to other nodes", zap.Stringer("lane", l.ID()))
		l.Skip(to)
		s.skip[l.ID()] = to
	}
	s.Wake()
}

// Settle makes durable where the frames of earlier ids end, which is before the first frame that this process appends. It is
// called when all lanes of the disk have been added and nothing was appended, and may be tried again.
func (s *Shipper) Settle() error {
	s.noteMu.Lock()
	defer s.noteMu.Unlock()
	s.mu.Lock()
	d := s.note.data.clone()
	changed := false
	for id, to := range s.skip {
		if d.Skip[id].Before(to) {
			d.Skip[id], changed = to, true
		}
	}
	changed = s.prune(&d) || changed
	for i := range d.Earlier {
		e := &d.Earlier[i]
		if e.Ends != nil {
			continue
		}
		changed, e.Ends = true, map[segment.LaneID]segment.Position{}
		for id, t := range s.lanes {
			e.Ends[id] = segment.Position{Seq: t.lane.FirstSeq(), Entry: 1}
		}
	}
	s.mu.Unlock()
	if changed {
		if err := s.note.replace(d); err != nil {
			return err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.earlier, s.settled = d.Earlier, true
	return nil
}

// prune drops skips that a saved cursor has reached. s.mu is held.
func (s *Shipper) prune(d *noteData) (changed bool) {
	for id, to := range d.Skip {
		if t := s.lanes[id]; t != nil && !t.lane.State().Saved.Before(to) {
			delete(d.Skip, id)
			changed = true
		}
	}
	return changed
}

// Wake makes the shipper look at its lanes now: after a refusal, say.
func (s *Shipper) Wake() {
	select {
	case s.wake <- struct{}{}:
	default: // it will look anyway
	}
}

// Run ships until Stop is called, or until ctx ends: then it ends at once, as a killed process would, but with all that it
// started.
func (s *Shipper) Run(ctx context.Context) {
	defer close(s.done)
	op, cancel := context.WithCancel(ctx)
	defer cancel()
	s.mu.Lock()
	over := s.ended
	s.started, s.cancelOp = true, cancel
	s.mu.Unlock()
	if over {
		return
	}
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for ctx.Err() == nil {
		select {
		case <-s.wake: // this round is what it was for, not one more
		default:
		}
		next := s.round(op)
		if stop := s.stopping(); stop != nil && (op.Err() != nil || s.shippedAll()) {
			s.finish(stop)
			break
		}
		if next <= 0 {
			continue
		}
		timer.Reset(next)
		select { // whichever it is, the next round looks at everything
		case <-s.wake:
		case <-timer.C:
		case <-op.Done():
		}
	}
	s.unkeep()
	s.end()
}

// end tells all who wait that nothing comes any more.
func (s *Shipper) end() {
	s.mu.Lock()
	s.ended, s.lease = true, nil
	for _, t := range s.lanes {
		t.refs = nil
	}
	s.mu.Unlock()
	s.settleWaiters(fmt.Errorf("%w: stopped", ErrUnavailable))
}

func (s *Shipper) stopping() context.Context {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stop
}

// Stop ships what is owed, in most of the time that ctx leaves, joins all that runs, and retires the register, or lets it rest
// if nothing is owed. The lanes are sealed and not drained any more. It returns soon after ctx ends; the error says what was
// not done, which others or the next start on this disk will find.
func (s *Shipper) Stop(ctx context.Context) error {
	s.mu.Lock()
	if !s.started { // nothing was shipped
		s.started, s.ended = true, true
		s.mu.Unlock()
		return nil
	}
	s.stop = ctx
	cancel := s.cancelOp
	s.mu.Unlock()
	ship := ctx
	if deadline, ok := ctx.Deadline(); ok {
		var end context.CancelFunc
		ship, end = context.WithTimeout(ctx, time.Duration(float64(time.Until(deadline))*shipShare))
		defer end()
	}
	defer context.AfterFunc(ship, cancel)()
	s.Wake()
	<-s.done
	return s.stopped
}

// Stats returns how things stand.
func (s *Shipper) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := s.stats
	st.Down = s.down
	now := time.Now()
	for _, t := range s.lanes {
		st.Objects += len(t.refs)
		if len(t.marks) > 0 {
			st.Lag = max(st.Lag, now.Sub(t.marks[0].at))
		}
	}
	return st
}

// knownBody is the body of the register as it was last decoded.
type knownBody struct {
	writeID string
	body    *owner.Body
}

// body is what the register says, as far as this process knows. It is not to be changed.
func (s *Shipper) body() (*owner.Body, error) {
	last := s.lease.Last()
	if s.known.body == nil || s.known.writeID != last.WriteID {
		b, err := owner.Read(&last.Record)
		if err != nil {
			return nil, fmt.Errorf("read own register: %w", err)
		}
		s.known = knownBody{last.WriteID, b}
	}
	return s.known.body, nil
}
