package segment

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"sync"
	"time"

	"go.uber.org/zap"

	"ingest-agent/segment/vfs"
)

// Ack says what an answer promises: wal.ack.
type Ack string

// The promises a lane keeps by itself.
const (
	AckDisk Ack = "disk" // frame and directory entries are synced
	AckOS   Ack = "os"   // the frame is in the page cache, synced within SyncInterval
)

// LaneOptions configure a lane. All fields are needed but Observe.
type LaneOptions struct {
	FS         vfs.FS
	Dir        string // the data directory's lanes folder; the lane lives in <Dir>/<ID>
	ID         LaneID
	Owner      OwnerID
	Space      *Space
	Quarantine *Quarantine
	Log        *zap.Logger
	Settings   Settings
	Observe    Observer
	// DrainOnly opens a lane that takes no new frames: one of earlier settings, whose backlog is to be delivered.
	DrainOnly bool
	// Remote reads back what was spilled; nil: nothing ever is.
	Remote Remote
	// Skip is where the frames end that are another owner's duty; zero: all are this lane's.
	Skip Position
	// KeepExported keeps exported segments until Archived is told that they may go.
	KeepExported bool
}

// Settings are the parts of a lane's options that may change while it runs.
type Settings struct {
	Ack              Ack
	Codec            Codec
	SegmentSizeBytes int64
	SegmentAge       time.Duration
	SyncInterval     time.Duration // AckOS
}

// Observer is told what the metrics need; any of the functions may be nil.
type Observer struct {
	Synced func(d time.Duration) // after each sync on the append path
	Batch  func(frames int)      // after each commit
	// Written is told the offset behind the last write and the last sync of a segment after each call of the log library.
	Written func(seq Seq, written, synced int64)
}

const (
	// maxWaitingBytes bounds what waits for the committer, so that a disk that hangs does not fill the memory.
	maxWaitingBytes = 64 << 20
	// maxBatchFrames bounds the frames of one commit.
	maxBatchFrames = 16 << 10
	// saveInterval is how often the cursor is written at most. A crash repeats what was delivered within it.
	saveInterval = 100 * time.Millisecond
	// retryInterval is how often a failed write of cursor, seal or directory is tried again.
	retryInterval = time.Second
	// maxOpen bounds the second copies of headers in the cursor file, so that they fit.
	maxOpen = 64
)

// Lane is a durable queue of frames in numbered segments, with an export cursor. One goroutine appends (the committer), one
// does everything that may take its time (the keeper): sealing, preparing the next segment, saving the cursor, removing.
//
// Commit points: Append returns nil after the frame and the directory entries that lead to it are as durable as Ack says.
// Advance is durable when the keeper has saved it; until then a crash repeats it. A segment is removed only after a saved
// cursor is past it.
type Lane struct {
	o    LaneOptions
	dir  string
	done sync.WaitGroup
	errs *limitedLog // for what each request may say again while a disk fails

	createMu sync.Mutex // one new segment at a time, so that numbers rise in the order of use; taken before saveMu

	saveMu sync.Mutex // one save at a time; taken before mu
	store  *cursorStore

	mu           sync.Mutex
	settings     Settings
	waiting      []*pending
	waitingBytes int64
	stopping     bool
	closed       bool
	segs         []*segInfo // all on disk but the spare, in order
	spare        *writer    // prepared for the committer
	sealing      []sealJob
	in           Totals        // durable
	tail         Position      // behind the last durable frame
	moved        chan struct{} // closed when tail moves or the lane closes
	cur          CursorState   // as it will be saved
	changed      bool          // cur differs from what is saved
	saved        Position      // Exported as last saved
	oldest       time.Time     // receive time of the first pending frame, as far as the drain knows
	trouble      error         // why the last commit or save failed; nil when all is well
	limitUnsaved bool          // a limit is not on disk: the lane refuses
	skip         Position      // up to where frames are another owner's duty
	skipFrom     Position      // from where on: the cursor stood there when it was said
	archived     Position      // KeepExported: before it segments may go
	reading      Seq           // the segment that the drain reads from the disk
	firstSeq     Seq           // the first number of this process
	recent       recentBlocks  // for the drain

	activeFile    vfs.File  // of the active segment, for syncs that no answer waits for
	syncedTo      Position  // tail at the last such sync
	syncedAt      time.Time // and when
	endActive     bool      // the active segment is to be ended
	committerDone bool
	noSpare       bool // the last try to prepare failed
	preparedAt    time.Time
	estimate      int64  // charged for segments that are not measured yet
	measured      func() // tells the space that nothing is estimated any more

	commitWake chan struct{}
	keepWake   chan struct{}
	stopKeeper chan struct{}

	pool sync.Pool // of *pending

	removeMu sync.Mutex // one removal of segments at a time; taken before saveMu
	reader   Reader     // the shipper's alone

	// The committer's alone.
	active *writer
	enc    *blockEncoder
	frames []storedFrame
	since  time.Time // of the first frame in active; under mu
}

// segInfo is what a lane knows of one of its segments.
type segInfo struct {
	seq     Seq
	end     int64 // bytes that may be read; -1: the whole file
	last    Entry // of an open or ended segment
	open    bool  // appended to
	cutting bool  // its file is being cut
	spilled bool  // its file is being removed, and is in the bucket
	totals  *Totals
	size    map[string]int64 // charged bytes by tenant
	counted bool             // size is known
}

type sealJob struct {
	w   *writer
	seg *segInfo
}

// pending is a frame that waits for its commit.
type pending struct {
	frame    storedFrame
	at       Position // where it was stored
	reserved int64
	done     chan error
}

func newPending() *pending { return &pending{done: make(chan error, 1)} }

// Append stores a frame and returns nil when it is durable. ctx ends only the wait for space: once a frame is handed over it
// is stored whole, whoever still waits for the answer. The frame's body must not change any more. A non-zero
// ID.Owner is kept as the frame's birth id (a frame that moves between lanes); Position is set to where it was stored.
// Errors: *RefusedError, after which nothing is stored, or ctx's.
func (l *Lane) Append(ctx context.Context, f *Frame) error {
	p, err := l.reserve(ctx, f)
	if err != nil {
		return err
	}
	if err := l.enqueue(p); err != nil {
		return err
	}
	return l.await(p, f)
}

// AppendAll stores frames in order, by one commit if they fit into one. It returns nil when all are durable; after an error
// some of them may be.
func (l *Lane) AppendAll(ctx context.Context, frames []Frame) error {
	all := make([]*pending, 0, len(frames))
	for i := range frames {
		p, err := l.reserve(ctx, &frames[i])
		if err != nil {
			l.giveBack(all)
			return err
		}
		all = append(all, p)
	}
	if err := l.enqueue(all...); err != nil {
		return err
	}
	var errs error
	for i, p := range all {
		errs = errors.Join(errs, l.await(p, &frames[i]))
	}
	return errs
}

// reserve makes a frame ready to be enqueued and takes the space for it.
func (l *Lane) reserve(ctx context.Context, f *Frame) (*pending, error) {
	if len(f.Body) > MaxBodyBytes || len(f.Tenant) > MaxTenantBytes || !f.Signal.Valid() {
		return nil, &RefusedError{Reason: RefusedTooLarge, Err: fmt.Errorf("frame of %d bytes, signal %d", len(f.Body), f.Signal)}
	}
	p, ok := l.pool.Get().(*pending)
	if !ok {
		p = newPending()
	}
	p.frame = storedFrame{
		kind: kindData, signal: f.Signal, flags: f.Flags & storableFlags, records: f.Records,
		received: f.Received.UnixNano(), tenant: f.Tenant, body: f.Body,
	}
	if !f.ID.Owner.IsZero() {
		id := f.ID
		p.frame.birth = &id
	}
	p.reserved = int64(p.frame.size()) + maxEntryOverheadBytes + tenantRoomBytes(f.Tenant)
	if err := l.o.Space.reserve(ctx, f.Tenant, p.reserved, l.o.ID.Parked > 0); err != nil {
		l.free(p)
		return nil, err
	}
	return p, nil
}

func (l *Lane) enqueue(all ...*pending) error {
	var size int64
	for _, p := range all {
		size += p.reserved
	}
	l.mu.Lock()
	var refused *RefusedError
	switch {
	case l.stopping:
		refused = &RefusedError{Reason: RefusedStopping, After: unknownDelay}
	case l.waitingBytes > 0 && l.waitingBytes+size > maxWaitingBytes:
		refused = &RefusedError{Reason: RefusedSync, After: minDelay, Err: errors.New("the disk does not keep up")}
	default:
		l.waiting = append(l.waiting, all...)
		l.waitingBytes += size
	}
	l.mu.Unlock()
	if refused != nil {
		l.giveBack(all)
		return refused
	}
	wake(l.commitWake)
	return nil
}

func (l *Lane) giveBack(all []*pending) {
	for _, p := range all {
		l.o.Space.settle(p.frame.tenant, p.reserved, 0)
		l.free(p)
	}
}

// await returns the commit's outcome.
func (l *Lane) await(p *pending, f *Frame) error {
	err := <-p.done
	f.Position = p.at
	l.free(p)
	return err
}

func (l *Lane) free(p *pending) {
	p.frame, p.at = storedFrame{}, Position{}
	l.pool.Put(p)
}

func wake(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default: // it will look anyway
	}
}

// Set changes the settings; a new codec takes effect with the next segment.
func (l *Lane) Set(s Settings) {
	l.mu.Lock()
	l.settings = s
	l.mu.Unlock()
	wake(l.commitWake)
	wake(l.keepWake)
}

// Progress is one step of the export cursor.
type Progress struct {
	To     Position
	Out    Totals // what was passed by this step
	Ledger Ledger // what became of its records
	Again  Totals // counted as passed before, wrongly: comes again
	// Oldest is the receive time of the next frame, zero if that is not known or there is none.
	Oldest time.Time
}

// Advance moves the cursor. It is called by the one drain of the lane, in order.
func (l *Lane) Advance(p *Progress) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.cur.Exported.Before(p.To) {
		l.cur.Exported = p.To
	}
	for _, g := range l.segs {
		if !g.open && g.last > 0 && l.cur.Exported == (Position{g.seq, g.last + 1}) {
			l.cur.Exported = l.cur.Exported.NextSegment() // ended meanwhile: its end has one spelling
		}
	}
	l.cur.Out = l.cur.Out.Sub(p.Again).Add(p.Out)
	l.in = l.in.Max(l.cur.Out) // a footer that is not the segment's own may have said less
	l.cur.Ledger.Delivered = l.cur.Ledger.Delivered.Sub(p.Again.Records)
	l.cur.Ledger.Add(&p.Ledger)
	if !p.Oldest.IsZero() || l.cur.Out == l.in {
		l.oldest = p.Oldest // else nobody knows yet, and the last one is nearer than none
	}
	l.changed = true
	wake(l.keepWake)
	if l.cur.Out == l.in && l.o.Space.pressed() {
		wake(l.commitWake)
	}
}

// ID returns the lane's id.
func (l *Lane) ID() LaneID { return l.o.ID }

// Stats is the state of a lane at one moment.
type Stats struct {
	In            Totals              `json:"in"`
	Out           Totals              `json:"out"`
	Ledger        Ledger              `json:"ledger"`
	Accepted      map[string]Accepted `json:"accepted,omitempty"` // In by tenant
	Exported      Position            `json:"exported"`
	Saved         Position            `json:"saved"` // Exported as it would be found after a crash
	Tail          Position            `json:"tail"`
	Segments      int                 `json:"segments"`
	DiskBytes     int64               `json:"disk_bytes"`
	Oldest        time.Time           `json:"oldest"` // receive time of the first pending frame; zero: nothing is pending
	Trouble       string              `json:"trouble,omitempty"`
	WaitingFrames int                 `json:"waiting_frames"`
}

// Pending is what came in and did not go out yet.
func (s *Stats) Pending() Totals { return s.In.Sub(s.Out) }

// Stats returns the lane's state.
func (l *Lane) Stats() Stats {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := Stats{
		In: l.in, Out: l.cur.Out, Ledger: l.cur.Ledger.clone(), Exported: l.cur.Exported, Saved: l.saved,
		Tail: l.tail, Segments: len(l.segs), WaitingFrames: len(l.waiting), Accepted: maps.Clone(l.cur.Accepted),
	}
	for _, g := range l.segs {
		for _, n := range g.size {
			s.DiskBytes += n
		}
	}
	if l.spare != nil {
		s.DiskBytes += l.spare.written
	}
	if s.Pending() != (Totals{}) {
		s.Oldest = l.oldest
	}
	if l.trouble != nil {
		s.Trouble = l.trouble.Error()
	}
	return s
}

// Pending is what came in and did not go out yet.
func (l *Lane) Pending() Totals {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.in.Sub(l.cur.Out)
}

// Check returns why a small request would be refused now, or nil.
func (l *Lane) Check() *RefusedError {
	l.mu.Lock()
	stopping, trouble := l.stopping, l.trouble
	l.mu.Unlock()
	if stopping {
		return &RefusedError{Reason: RefusedStopping, After: unknownDelay}
	}
	if trouble != nil {
		return refusal(trouble)
	}
	return l.o.Space.Check()
}

// Stop makes the lane refuse new frames, commits those that wait and seals. The drain may go on.
func (l *Lane) Stop() {
	l.mu.Lock()
	if l.stopping {
		l.mu.Unlock()
		return
	}
	l.stopping = true
	l.mu.Unlock()
	wake(l.commitWake)
}

// Close stops the lane, saves the cursor, removes what is exported and releases every file. The drain and the shipper must have
// ended.
func (l *Lane) Close() error {
	l.Stop()
	l.mu.Lock()
	closed := l.closed
	l.closed = true
	l.mu.Unlock()
	if closed {
		return nil
	}
	close(l.stopKeeper)
	l.done.Wait()
	l.reader.Close()
	l.dropSpare()
	err := l.save()
	if err == nil {
		l.removeExported()
	}
	if cerr := l.store.close(); err == nil && cerr != nil {
		err = fmt.Errorf("close cursor: %w", cerr)
	}
	return err
}

// dropSpare removes the prepared segment, which holds nothing.
func (l *Lane) dropSpare() {
	l.mu.Lock()
	w := l.spare
	l.spare = nil
	l.mu.Unlock()
	if w != nil {
		l.discard(w)
	}
}

// trace tells the observer about a segment's writes.
func (l *Lane) trace(seq Seq) func(written, synced int64) {
	if l.o.Observe.Written == nil {
		return nil
	}
	return func(written, synced int64) { l.o.Observe.Written(seq, written, synced) }
}

func (l *Lane) segmentDir(seq Seq) string   { return filepath.Join(l.dir, seq.String()) }
func (l *Lane) segmentFile(seq Seq) string  { return filepath.Join(l.dir, seq.String(), logFile) }
func (l *Lane) logger() *zap.Logger         { return l.o.Log.With(zap.Stringer("lane", l.o.ID)) }
func (l *Lane) signalMoved()                { close(l.moved); l.moved = make(chan struct{}) }
func (g *segInfo) charge(t string, n int64) { g.size[t] += n }
