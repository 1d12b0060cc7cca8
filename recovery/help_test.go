package recovery_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/oklog/ulid/v2"
	"go.uber.org/zap"

	"ingest-agent/objstore"
	"ingest-agent/objstore/lease"
	"ingest-agent/objstore/memory"
	"ingest-agent/objstore/objtest"
	"ingest-agent/recovery"
	"ingest-agent/recovery/owner"
	"ingest-agent/segment"
)

const (
	testScan = 30 * time.Second
	// testRecords is what each frame of a test holds.
	testRecords = 10
)

var lane0 = segment.LaneID{Destination: "default"}

func id(n uint64) segment.OwnerID {
	var u ulid.ULID
	u[0], u[14], u[15] = 1, byte(n>>8), byte(n)
	return segment.OwnerID(u)
}

// store is a bucket as one node reaches it, with an eye on what is deleted.
type store struct {
	*objtest.Faulty
	mu    sync.Mutex
	early []string // objects that were to be deleted before a register covered it
}

func newStore(t *testing.T) *store {
	s := view(memory.New())
	t.Cleanup(func() {
		if len(s.early) > 0 {
			t.Errorf("deleted before a commit that covers it (I8): %v", s.early)
		}
	})
	return s
}

func view(b *memory.Bucket) *store { return &store{Faulty: objtest.NewFaulty(b)} }

func (s *store) Delete(ctx context.Context, key string) error {
	if !s.covered(key) {
		s.mu.Lock()
		s.early = append(s.early, key)
		s.mu.Unlock()
	}
	return s.Faulty.Delete(ctx, key)
}

// covered says whether an object may go by what its owner's register says now.
func (s *store) covered(key string) bool {
	k, err := objstore.ParseKey(key)
	o, ok := k.(objstore.SegmentKey)
	if err != nil || !ok {
		return true
	}
	seen, err := lease.New(lease.Options{Bucket: s.Bucket, Key: objstore.OwnerKey{Owner: o.Owner}.String()}).Observe(context.Background(), lease.Seen{})
	if err != nil {
		return false
	}
	body, err := owner.Read(&seen.Record)
	if err != nil {
		return false
	}
	lane, err := segment.ParseLaneID(o.Lane)
	l := body.Lanes[lane]
	if err != nil || l == nil {
		return false
	}
	end := segment.Position{Seq: segment.Seq(o.Seq), Entry: segment.Entry(o.Last) + 1}
	return !l.Exported.Before(end) || body.SignedOff && !l.Owes()
}

// delay waits as a slow store does.
func delay(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", objstore.ErrUnknown, ctx.Err())
	}
}

// keys lists what there is below a prefix.
func keys(t *testing.T, b objstore.Bucket, prefix string) (all []string) {
	t.Helper()
	o := objstore.ListOptions{Prefix: prefix}
	for {
		p, err := b.List(context.Background(), o)
		if err != nil {
			t.Fatal(err)
		}
		for _, i := range p.Objects {
			all = append(all, i.Key)
		}
		if p.Next == "" {
			return all
		}
		o.Token = p.Next
	}
}

// dead is an owner as its process left it.
type dead struct {
	t       *testing.T
	b       objstore.Bucket
	id      segment.OwnerID
	reg     *lease.Register
	lease   *lease.Lease
	in      map[segment.LaneID]segment.Totals
	ends    map[segment.LaneID]segment.Position
	objects map[segment.LaneID][]string
}

// newDead begins the register of an owner with lanes, and is its process.
func newDead(t *testing.T, b objstore.Bucket, id segment.OwnerID, lanes ...segment.LaneID) *dead {
	t.Helper()
	d := &dead{t: t, b: b, id: id, in: map[segment.LaneID]segment.Totals{}, ends: map[segment.LaneID]segment.Position{},
		objects: map[segment.LaneID][]string{}}
	d.reg = lease.New(lease.Options{Bucket: b, Key: objstore.OwnerKey{Owner: id.String()}.String(), Holder: id.String(), Node: "gone", StaleAfter: testStale})
	p := map[segment.LaneID]owner.Progress{}
	for _, l := range lanes {
		d.ends[l] = segment.Start
		p[l] = owner.Progress{Exported: segment.Start}
	}
	var err error
	if d.lease, err = d.reg.Acquire(context.Background(), lease.Seen{}, owner.Begin(p)); err != nil {
		t.Fatal(err)
	}
	return d
}

// put writes an object of n frames of a lane, behind the last, which ends its segment.
func (d *dead) put(l segment.LaneID, n, bodyBytes int) string {
	d.t.Helper()
	from := d.ends[l]
	b := segment.Batch{Header: segment.Header{Birth: segment.Birth{Owner: d.id, Lane: l, Seq: from.Seq}, Created: time.Unix(1, 0).UTC()}}
	b.Before = d.in[l]
	b.After = b.Before
	for i := range n {
		body := make([]byte, max(bodyBytes, 1))
		for j := range body {
			body[j] = byte(i + j)
		}
		pos := segment.Position{Seq: from.Seq, Entry: from.Entry + segment.Entry(i)}
		b.Frames = append(b.Frames, segment.Frame{
			ID: segment.FrameID{Birth: b.Header.Birth, Number: pos.Entry}, Position: pos, Signal: segment.Logs, Tenant: "default",
			Received: time.Unix(2, 0), Records: testRecords, Body: body,
		})
		b.After = b.After.Add(segment.Totals{Frames: 1, Records: segment.Logs.Of(testRecords), Bytes: uint64(len(body))})
	}
	data, err := segment.EncodeRange(&b)
	if err != nil {
		d.t.Fatal(err)
	}
	key := objstore.SegmentKey{Owner: d.id.String(), Lane: l.String(), Seq: uint64(from.Seq), First: uint32(b.First()), Last: uint32(b.Last())}.String()
	if _, err := d.b.Put(context.Background(), key, strings.NewReader(string(data)), objstore.IfAbsent()); err != nil {
		d.t.Fatal(err)
	}
	d.in[l], d.ends[l] = b.After, from.NextSegment()
	d.objects[l] = append(d.objects[l], key)
	return key
}

// name commits what was put.
func (d *dead) name() {
	d.t.Helper()
	p := map[segment.LaneID]owner.Progress{}
	for l, end := range d.ends {
		p[l] = owner.Progress{Exported: segment.Start, Shipped: end, Records: d.in[l].Records}
	}
	if err := d.lease.Commit(context.Background(), owner.Ship(p)); err != nil {
		d.t.Fatal(err)
	}
}

// export says how far the owner has exported a lane.
func (d *dead) export(l segment.LaneID, to segment.Position, frames uint64) {
	d.t.Helper()
	p := map[segment.LaneID]owner.Progress{l: {Exported: to, Passed: segment.Logs.Of(frames * testRecords)}}
	if err := d.lease.Commit(context.Background(), owner.Ship(p)); err != nil {
		d.t.Fatal(err)
	}
}

func (d *dead) retire() {
	d.t.Helper()
	if err := d.lease.Release(context.Background(), owner.Retire(nil)); err != nil {
		d.t.Fatal(err)
	}
}

// gone is a retired owner with objects of some frames each in one lane.
func gone(t *testing.T, b objstore.Bucket, id segment.OwnerID, l segment.LaneID, objects, frames int) *dead {
	t.Helper()
	d := newDead(t, b, id, l)
	for range objects {
		d.put(l, frames, 100)
	}
	d.name()
	d.retire()
	return d
}

// seen reads the register, past what is done to calls.
func (d *dead) seen() (lease.Seen, *owner.Body) {
	d.t.Helper()
	b := d.b
	if s, ok := b.(*store); ok {
		b = s.Bucket
	}
	s, err := lease.New(lease.Options{Bucket: b, Key: objstore.OwnerKey{Owner: d.id.String()}.String()}).Observe(context.Background(), lease.Seen{})
	if err != nil {
		d.t.Fatal(err)
	}
	body, err := owner.Read(&s.Record)
	if err != nil {
		d.t.Fatal(err)
	}
	return s, body
}

func (d *dead) change(how lease.How, e lease.Edit) {
	d.t.Helper()
	s, _ := d.seen()
	if _, err := d.reg.Change(context.Background(), s, how, e); err != nil {
		d.t.Fatal(err)
	}
}

// destination takes requests, and notes what came.
type destination struct {
	mu      sync.Mutex
	frames  map[segment.FrameID]int
	order   []segment.FrameID
	down    bool
	slow    time.Duration // a request takes so long
	last    time.Time     // when one was taken
	refuses func(f *segment.Frame) bool
}

func newDestination() *destination { return &destination{frames: map[segment.FrameID]int{}} }

func (d *destination) Deliver(ctx context.Context, r *segment.Request) segment.Outcome {
	if d.slow > 0 && delay(ctx, d.slow*time.Duration(len(r.Frames))) != nil {
		return segment.Outcome{Verdict: segment.Retry, Err: ctx.Err()}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.down || ctx.Err() != nil {
		return segment.Outcome{Verdict: segment.Retry, Err: errors.New("down")}
	}
	for i := range r.Frames { // one: Limits
		if d.refuses != nil && d.refuses(&r.Frames[i]) {
			return segment.Outcome{Verdict: segment.Retry, Err: errors.New("not this one")}
		}
		d.frames[r.Frames[i].ID]++
		d.order = append(d.order, r.Frames[i].ID)
	}
	d.last = time.Now()
	return segment.Outcome{Verdict: segment.Delivered}
}

func (d *destination) set(down bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.down = down
}

// taken is how many frames came, and how many more than once.
func (d *destination) taken() (frames, twice int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, n := range d.frames {
		if n > 1 {
			twice++
		}
	}
	return len(d.frames), twice
}

type noDead struct{}

func (noDead) SetAside(context.Context, *segment.Frame, string) error { return nil }

// node is a Recovery with its options.
type node struct {
	*recovery.Recovery
	kill func()
}

// options are those of a node whose destination is dest.
func options(b objstore.Bucket, name string, dest *destination) recovery.Options {
	rng := rand.New(rand.NewPCG(uint64(len(name)), uint64(name[len(name)-1])))
	return recovery.Options{
		Bucket: b, Holder: ulid.Make().String(), Node: name, ScanInterval: testScan, StaleAfter: testStale, Retention: testRetention,
		Knows: func(d string) bool { return d == "default" }, Log: zap.NewNop(), Jitter: rng.Float64,
		Drain: func(ctx context.Context, l recovery.Adopted) {
			segment.DrainOptions{
				Source: l.Source, Cursor: l.Cursor, Dead: noDead{}, Log: zap.NewNop(),
				Sink: func() segment.Sink { return dest },
				Limits: func() segment.Limits {
					return segment.Limits{InFlight: 2, MaxRequestBytes: 1, WindowBytes: 4 << 20, RetryInitial: time.Second, RetryMax: 10 * time.Second}
				},
			}.Run(ctx)
		},
	}
}

// run starts a node.
func run(o recovery.Options) *node {
	n := &node{Recovery: recovery.New(o)}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		n.Run(ctx)
	}()
	n.kill = func() { cancel(); <-done }
	return n
}

// pass lets time go on.
func pass(d time.Duration) {
	time.Sleep(d) // of a bubble
	synctest.Wait()
}

// passUntil lets time go on until ok, and says how long that took.
func passUntil(t *testing.T, most time.Duration, ok func() bool) time.Duration {
	t.Helper()
	begin := time.Now()
	for {
		synctest.Wait()
		if ok() {
			return time.Since(begin)
		}
		if time.Since(begin) > most {
			t.Fatalf("not within %s", most)
		}
		time.Sleep(time.Second / 4)
	}
}

// wantDrained checks that an owner is drained and left nothing.
func (d *dead) wantDrained() {
	d.t.Helper()
	s, b := d.seen()
	if s.State != owner.Drained || s.Holder != "" || b.Owes() {
		d.t.Errorf("owner %s: %s, owes %v", d.id, &s, b.Owes())
	}
	if left := keys(d.t, d.b, objstore.OwnerPrefix(d.id.String())); len(left) > 0 {
		d.t.Errorf("owner %s: objects left: %v", d.id, left)
	}
}

func count(calls []string, prefix string) int {
	return len(slices.DeleteFunc(slices.Clone(calls), func(c string) bool { return !strings.HasPrefix(c, prefix) }))
}
