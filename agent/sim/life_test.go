package sim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/oklog/ulid/v2"
	"go.uber.org/zap"

	"ingest-agent/objstore"
	"ingest-agent/objstore/objtest"
	"ingest-agent/segment"
	"ingest-agent/shipper"
	"ingest-agent/shipper/shippertest"
)

// node is a machine of the simulation, with the disk that is in it now.
type node struct {
	w      *world
	name   string
	gate   *objtest.Node
	disk   *disk
	saved  *disk // a snapshot, or nil
	ack    Promise
	limit  int64 // of bytes on the disk
	life   *life // the last one
	ruined bool  // what becomes of the disk after the last death was decided
}

// life is one process on a node: what the agent wires together, with a sequential drain.
type life struct {
	n      *node
	w      *world
	p      *objtest.Process
	d      *disk
	id     segment.OwnerID
	ids    idSource
	ship   *shipper.Shipper
	bucket objstore.Bucket // as the shipper sees it
	others objstore.Bucket // as recovery does
	// holder is the name of what it adopts, and holders makes the ids of its recovery: in an order that nothing depends on.
	holder  string
	holders idSource

	lanes []*lane
	mu    sync.Mutex
	wait  bool // the drains have given up waiting for the hand-over
}

// lane is one process's view of a lane. What a killed process does with it has no effect, from the moment of the kill.
type lane struct {
	*shippertest.Lane
	l      *life
	rng    *rand.Rand // of the drain
	mu     sync.Mutex
	saving *time.Timer // nil: all is saved
}

func (l *lane) Spill(ctx context.Context, to segment.Position) (int64, error) {
	if !l.l.p.Alive() {
		return 0, errDead
	}
	return l.Lane.Spill(ctx, to)
}

func (l *lane) Read(from segment.Position, maxBytes int) (*segment.Batch, error) {
	if !l.l.p.Alive() {
		return nil, errDead
	}
	return l.Lane.Read(from, maxBytes)
}

func (l *lane) Skip(to segment.Position) {
	if l.l.p.Alive() {
		l.Lane.Skip(to)
	}
}

// Advance moves the cursor, and sees to it that it is saved a moment later.
func (l *lane) Advance(p *segment.Progress) {
	if !l.l.p.Alive() {
		return
	}
	l.Lane.Advance(p)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.saving == nil {
		l.saving = time.AfterFunc(l.l.p.Span(time.Duration(l.rng.Int64N(int64(saveEvery)))), l.save)
	}
}

func (l *lane) save() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.saving != nil {
		l.saving.Stop()
	}
	if l.saving = nil; l.l.p.Alive() {
		l.Lane.Save()
	}
}

// end stops what a killed process would not do any more.
func (l *lane) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.saving != nil {
		l.saving.Stop()
	}
	l.Kill()
}

// idSource makes ULIDs that depend on the process alone.
type idSource struct {
	mu  sync.Mutex
	rng *rand.Rand
}

func (s *idSource) next() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.id().String()
}

func (s *idSource) id() (id segment.OwnerID) {
	u := ulid.ULID(id)
	for i := range u {
		u[i] = byte(s.rng.Uint32())
	}
	_ = u.SetTime(ulid.Timestamp(time.Now())) // of this century
	return segment.OwnerID(u)
}

// run is the node's program.
func (n *node) run(ctx context.Context, p *objtest.Process) {
	n.disk.crash()
	sub := func() *rand.Rand { return rand.New(rand.NewPCG(p.Rand().Uint64(), p.Rand().Uint64())) }
	l := &life{n: n, w: n.w, p: p, d: n.disk, ids: idSource{rng: sub()}}
	l.id = l.ids.id()
	if n.w.variant.keepID && !n.disk.owner.IsZero() {
		l.id = n.disk.owner
	}
	n.disk.owner = l.id
	if n.w.variant.noNote {
		_ = n.disk.files.Remove(notePath) // there may be none
	}
	if n.w.variant.reuse {
		for _, d := range n.disk.lanes {
			d.Forget()
		}
	}
	n.life = l
	l.holders.rng = sub()
	l.holder = l.holders.next()
	l.bucket = n.w.wrap(ctx, p, noted{p.BucketFor("shipper"), n.w})
	l.others = n.w.wrap(ctx, p, noted{p.BucketFor("recovery"), n.w})
	if err := l.open(sub()); err != nil {
		n.w.judge.Fails(I14, "%s does not start: %v", p.Name(), err)
		return
	}
	n.w.judge.Began(p.Name(), n.disk.copy)
	l.live(ctx, sub)
	for _, lane := range l.lanes {
		lane.end()
	}
}

// noted tells the judge when registers are sent.
type noted struct {
	objstore.Bucket
	w *world
}

func (b noted) Put(ctx context.Context, key string, body io.ReadSeeker, c objstore.Condition) (objstore.PutResult, error) {
	if strings.HasPrefix(key, objstore.OwnersPrefix) {
		var r struct {
			WriteID string `json:"write_id"`
		}
		if err := json.NewDecoder(body).Decode(&r); err == nil {
			b.w.judge.Sent(r.WriteID)
		}
	}
	b.w.asked(objstore.OpPut, key)
	return b.Bucket.Put(ctx, key, body, c)
}

func (b noted) Get(ctx context.Context, key string, o objstore.GetOptions) (*objstore.Object, error) {
	b.w.asked(objstore.OpGet, key)
	return b.Bucket.Get(ctx, key, o)
}

func (b noted) Delete(ctx context.Context, key string) error {
	b.w.asked(objstore.OpDelete, key)
	return b.Bucket.Delete(ctx, key)
}

func (b noted) List(ctx context.Context, o objstore.ListOptions) (*objstore.Page, error) {
	b.w.asked(objstore.OpList, o.Prefix+o.Delimiter)
	return b.Bucket.List(ctx, o)
}

// open does what a start does before the first request is taken.
func (l *life) open(rng *rand.Rand) error {
	jitter := rng.Float64
	s, err := shipper.New(shipper.Options{
		Bucket: l.bucket, Owner: l.id, Node: l.n.name, StaleAfter: l.p.Span(staleAfter), After: l.p.Span(shipAfter), RetryMax: l.p.Span(retryMax),
		FS: l.d.fs(l.p), Note: notePath, Log: zap.NewNop(), NewID: l.ids.next, Jitter: jitter, ObjectBytes: l.w.set.objectBytes, SideBySide: 2,
		Pressure: func() float64 { return float64(l.d.localBytes()) / float64(l.n.limit) },
	})
	if err != nil {
		return err
	}
	l.ship = s
	for _, id := range l.w.laneIDs(l.n) {
		view := l.d.lanes[id].Open(shippertest.Options{Owner: l.id, Remote: s, Skip: s.SkipOf(id), SegmentFrames: segmentFrames})
		one := &lane{Lane: view, l: l, rng: rand.New(rand.NewPCG(rng.Uint64(), 0))}
		l.lanes = append(l.lanes, one)
		s.AddLane(one)
	}
	return s.Settle()
}

// live runs the process until it is killed or stops by itself.
func (l *life) live(ctx context.Context, sub func() *rand.Rand) {
	var all, taking, draining sync.WaitGroup
	defer all.Wait()
	take, noMore := context.WithCancel(ctx)
	drain, drained := context.WithCancel(ctx)
	defer noMore()
	defer drained()
	all.Go(func() { l.ship.Run(ctx) })
	held := map[segment.LaneID]bool{}
	for _, id := range l.ship.Held() {
		held[id] = true
	}
	for _, one := range l.lanes {
		takes, drains := sub(), sub()
		taking.Go(func() { l.take(take, one, takes) })
		draining.Go(func() { l.drainOwn(drain, one, held[one.ID()], drains) })
	}
	recovered := l.recover(ctx, sub())
	rng := sub()
	if l.w.stops && rng.IntN(3) > 0 {
		_ = l.p.Sleep(ctx, time.Duration(rng.Int64N(int64(20*staleAfter)))) // ctx tells
	} else {
		<-ctx.Done()
	}
	noMore()
	stopRecovery := time.Now()
	recovered()
	l.late("recovery", stopRecovery)
	taking.Wait()
	if ctx.Err() == nil {
		_ = l.p.Sleep(ctx, time.Duration(rng.Int64N(int64(stopBudget/2)))) // it drains
	}
	drained()
	draining.Wait()
	if ctx.Err() == nil {
		l.stop(ctx)
	}
}

// stop is the end of a graceful stop.
func (l *life) stop(ctx context.Context) {
	for _, one := range l.lanes {
		one.save()
		one.Seal()
		one.save()
	}
	began := time.Now()
	budget, cancel := context.WithTimeout(ctx, l.p.Span(stopBudget))
	defer cancel()
	id := l.ship.Stats().Owner
	err := l.ship.Stop(budget)
	if !l.p.Alive() {
		return
	}
	l.late("shipper", began)
	l.p.Note("stopped: %v", err == nil)
	l.w.happened("stopped")
	if err == nil {
		l.w.happened("stopped with all shipped")
		l.w.judge.Stopped(l.p.Name(), id.String())
	}
}

// late is I14: a step of the stop that took longer than its budget, and what an answer of a lease may take beyond.
func (l *life) late(what string, began time.Time) {
	if took := time.Since(began); l.p.Alive() && took > l.p.Span(stopBudget)+l.p.Span(time.Second) {
		l.w.judge.Fails(I14, "%s of %s took %s to stop", what, l.p.Name(), took)
	}
}

// take is who sends: it stores a frame now and then, and waits for what the answer promises.
func (l *life) take(ctx context.Context, one *lane, rng *rand.Rand) {
	for l.p.Sleep(ctx, time.Duration(rng.Int64N(int64(2*l.w.set.takeEvery)))) == nil && !l.w.quiet.Load() {
		for range 1 + rng.IntN(3) {
			l.takeOne(ctx, one, rng)
			// Two calls of Wake at one moment may be one round of the shipper, or two.
			_ = l.p.Sleep(ctx, time.Duration(rng.Int64N(int64(time.Second)))) // the loop asks
		}
	}
}

func (l *life) takeOne(ctx context.Context, one *lane, rng *rand.Rand) {
	if l.d.localBytes() >= l.n.limit {
		l.w.happened("refused")
		l.ship.Wake()
		return
	}
	if l.n.ack == InBucket && l.ship.Ready() != nil {
		l.w.happened("answered 503")
		return
	}
	f := segment.Frame{Signal: segment.Logs, Tenant: "t", Received: time.Now(), Records: 1 + rng.Uint32N(3), Body: make([]byte, 1+rng.IntN(l.w.set.frameBytes))}
	for i := range f.Body {
		f.Body[i] = byte(rng.Uint32())
	}
	if !l.p.Alive() || one.Append(&f) != nil {
		return
	}
	l.w.judge.Stored(f.ID)
	if l.n.ack == OnDisk {
		l.w.judge.Answered(f.ID, OnDisk)
		return
	}
	limit, cancel := context.WithTimeout(ctx, l.p.Span(time.Duration(rng.Int64N(int64(staleAfter)))))
	defer cancel()
	err := l.ship.Wait(limit, one.ID(), f.Position)
	switch {
	case !l.p.Alive():
	case err == nil:
		l.w.happened("answered by the bucket")
		l.w.judge.Answered(f.ID, InBucket)
	case errors.Is(err, shipper.ErrUnavailable):
		l.w.happened("answered 503 after waiting")
	default:
		l.w.happened("answered too late")
	}
}

// drainOwn delivers a lane from the disk.
func (l *life) drainOwn(ctx context.Context, one *lane, held bool, rng *rand.Rand) {
	if held {
		timer := time.NewTimer(l.p.Span(bootWait) + time.Duration(rng.IntN(1000)))
		defer timer.Stop()
		select {
		case <-l.ship.HandedOver():
			// The shipper goes on at the same instant, and what it ships next depends on what the drain has passed.
			_ = l.p.Sleep(ctx, 1+time.Duration(rng.IntN(1000)))
		case <-timer.C:
			l.w.happened("waited in vain for the hand-over")
			l.mu.Lock()
			l.wait = true
			l.mu.Unlock()
		case <-ctx.Done():
			return
		}
	}
	sink := &sink{l: l, lane: one.ID(), rng: rng, passed: func(pos segment.Position) bool {
		s := one.State()
		return pos.Before(s.Saved) || pos.Before(s.Skip)
	}}
	l.drain(ctx, segment.DrainOptions{Source: sink.sees(one.Source()), Cursor: one, Sink: func() segment.Sink { return sink }}, rng)
}

// drain is segment.DrainOptions.Run, one frame after the other.
func (l *life) drain(ctx context.Context, o segment.DrainOptions, rng *rand.Rand) {
	pause := func(most time.Duration) { _ = l.p.Sleep(ctx, time.Duration(rng.Int64N(int64(most)))) } // ctx tells
	for ctx.Err() == nil {
		it, err := o.Source.Next(ctx)
		if err != nil {
			if ctx.Err() == nil {
				pause(2 * time.Second)
			}
			continue
		}
		p := segment.Progress{To: it.Next, Out: it.Lost.Add(it.HandedOver)}
		p.Ledger.HandedOver = it.HandedOver.Records
		if it.Lost != (segment.Totals{}) {
			p.Ledger.Lost = map[segment.Cause]segment.Counts{it.Cause: it.Lost.Records}
			l.p.Note("lost %d frames: %s", it.Lost.Frames, it.Cause)
			l.w.lost.Add(int64(it.Lost.Frames))
			// Nothing destroys an object or a byte here.
			l.w.judge.Fails(I4, "%s counts %+v as lost before %s: %s", l.p.Name(), it.Lost, it.Next, it.Cause)
		}
		if f := it.Frame; f != nil {
			r := segment.Request{Tenant: f.Tenant, Signal: f.Signal, Frames: []segment.Frame{*f}}
			for o.Sink().Deliver(ctx, &r).Verdict != segment.Delivered {
				if ctx.Err() != nil {
					return
				}
				pause(4 * time.Second)
			}
			records := f.Signal.Of(uint64(f.Records))
			p.Out = p.Out.Add(segment.Totals{Frames: 1, Records: records, Bytes: uint64(len(f.Body))})
			p.Ledger.Delivered = records
		}
		o.Cursor.Advance(&p)
	}
}

// sink is the destination, as a drain of a process reaches it.
type sink struct {
	l      *life
	lane   segment.LaneID
	owner  string // of an adopted lane
	rng    *rand.Rand
	passed func(segment.Position) bool

	// What holds since the frame was read: it may be tried again for long.
	wasPassed bool
	ships     []string
}

// sees is a source that tells the sink what the process knew of a frame when it was read.
func (s *sink) sees(src segment.Source) segment.Source { return &seenSource{src, s} }

type seenSource struct {
	segment.Source
	sink *sink
}

func (s *seenSource) Next(ctx context.Context) (segment.Item, error) {
	it, err := s.Source.Next(ctx)
	if err == nil && it.Frame != nil && s.sink.passed != nil {
		s.sink.wasPassed, s.sink.ships = s.sink.passed(it.Frame.Position), []string{s.sink.l.ship.Stats().Owner.String()}
	}
	return it, err
}

// Deliver makes one attempt.
func (s *sink) Deliver(ctx context.Context, r *segment.Request) segment.Outcome {
	l, f := s.l, &r.Frames[0]
	if id := l.ship.Stats().Owner.String(); !slices.Contains(s.ships, id) {
		s.ships = append(slices.Clone(s.ships), id)
	}
	l.mu.Lock()
	a := &Attempt{
		Frame: f.ID, Lane: s.lane, Position: f.Position, Process: l.p.Name(), ID: l.holder, Waited: l.wait, Passed: s.wasPassed,
		Ships: s.ships,
	}
	l.mu.Unlock()
	a.From.Copy = l.d.copy
	if s.owner != "" {
		a.From = Source{Owner: s.owner}
	}
	if !l.p.Alive() || ctx.Err() != nil {
		return segment.Outcome{Verdict: segment.Retry, Err: errDead}
	}
	l.w.judge.Begin(a)
	err := l.p.Do(ctx, "deliver", s.lane.String()+" "+a.From.Owner, func() error {
		if l.w.sinkDown {
			return fmt.Errorf("sink is down: %w", objstore.ErrUnknown)
		}
		l.w.judge.Landed(a)
		l.w.gate.Note("%s arrives from %s", f.ID, a.Process)
		return nil
	})
	if err != nil {
		return segment.Outcome{Verdict: segment.Retry, Err: err}
	}
	l.w.judge.Succeeded(a)
	return segment.Outcome{Verdict: segment.Delivered}
}
