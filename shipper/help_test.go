package shipper_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"

	"ingest-agent/objstore"
	"ingest-agent/objstore/lease"
	"ingest-agent/objstore/memory"
	"ingest-agent/objstore/objtest"
	"ingest-agent/recovery/owner"
	"ingest-agent/segment"
	"ingest-agent/segment/vfs"
	"ingest-agent/shipper"
	"ingest-agent/shipper/shippertest"
)

const (
	testAfter = 5 * time.Second
	testStale = time.Minute
	testRetry = 30 * time.Second
	notePath  = "/data/shipped.json"
)

// store is the bucket of a node.
type store struct{ *objtest.Faulty }

func newStore() *store { return &store{objtest.NewFaulty(memory.New())} }

// keys lists what is there under a prefix, past the counting.
func (s *store) keys(t *testing.T, prefix string) (keys []string) {
	t.Helper()
	page, err := s.Bucket.List(context.Background(), objstore.ListOptions{Prefix: prefix})
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range page.Objects {
		keys = append(keys, o.Key)
	}
	return keys
}

func (s *store) registerOf(id segment.OwnerID, holder string) *lease.Register {
	return lease.New(lease.Options{
		Bucket: s.Bucket, Key: objstore.OwnerKey{Owner: id.String()}.String(), Holder: holder, Node: "other", StaleAfter: testStale,
	})
}

// register reads an owner's register.
func (s *store) register(t *testing.T, id segment.OwnerID) (lease.Seen, *owner.Body) {
	t.Helper()
	seen, err := s.registerOf(id, "").Observe(context.Background(), lease.Seen{})
	if err != nil {
		t.Fatal(err)
	}
	body, err := owner.Read(&seen.Record)
	if err != nil {
		t.Fatal(err)
	}
	return seen, body
}

// adopt takes an owner over, as if it had been silent.
func (s *store) adopt(t *testing.T, id segment.OwnerID, edits ...lease.Edit) *lease.Lease {
	t.Helper()
	r := s.registerOf(id, "01ADOPTER00000000000000000")
	seen, err := r.Observe(context.Background(), lease.Seen{})
	if err != nil {
		t.Fatal(err)
	}
	if seen.Holder != "" {
		if seen, err = r.Change(context.Background(), seen, lease.Fence, nil); err != nil {
			t.Fatal(err)
		}
	}
	l, err := r.Acquire(context.Background(), seen, owner.Adopt())
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range edits {
		if err := l.Commit(context.Background(), e); err != nil {
			t.Fatal(err)
		}
	}
	return l
}

// node is a machine: disks, and a process on them.
type node struct {
	t     *testing.T
	store *store
	fs    *vfs.Mem
	disks map[segment.LaneID]*shippertest.LaneDisk

	id    segment.OwnerID
	ship  *shipper.Shipper
	lanes map[segment.LaneID]*shippertest.Lane
	kill  context.CancelFunc
	ended chan struct{}
	sets  []func(*shipper.Options) // of all its processes
}

var (
	laneA = segment.LaneID{Destination: "default"}
	laneB = segment.LaneID{Destination: "default", Shard: 1}
)

func newNode(t *testing.T, s *store) *node {
	t.Helper()
	n := &node{t: t, store: s, fs: vfs.NewMem(), disks: map[segment.LaneID]*shippertest.LaneDisk{}}
	for _, id := range []segment.LaneID{laneA, laneB} {
		n.disks[id] = shippertest.NewLaneDisk(id)
	}
	if err := vfs.MkdirAll(n.fs, "/data", 0o755); err != nil {
		t.Fatal(err)
	}
	return n
}

var ids struct {
	sync.Mutex
	n uint64
}

// newID makes ULIDs that differ.
func newID() string {
	ids.Lock()
	defer ids.Unlock()
	ids.n++
	return fmt.Sprintf("01ARZ3NDEKTSV4RRFF%08d", ids.n)
}

// start starts a process, without its drains.
func (n *node) start(set ...func(*shipper.Options)) {
	n.t.Helper()
	n.open(set...)
	if err := n.ship.Settle(); err != nil {
		n.t.Fatal(err)
	}
	n.run()
}

func (n *node) open(set ...func(*shipper.Options)) {
	n.t.Helper()
	id, err := segment.ParseOwnerID(newID())
	if err != nil {
		n.t.Fatal(err)
	}
	n.id = id
	o := shipper.Options{
		Bucket: n.store, Owner: id, Node: "test", StaleAfter: testStale, After: testAfter, RetryMax: testRetry,
		FS: n.fs, Note: notePath, Log: zap.NewNop(), NewID: newID, Jitter: func() float64 { return 0.5 },
	}
	for _, f := range slices.Concat(n.sets, set) {
		f(&o)
	}
	if n.ship, err = shipper.New(o); err != nil {
		n.t.Fatal(err)
	}
	n.lanes = map[segment.LaneID]*shippertest.Lane{}
	for lane, disk := range n.disks {
		n.lanes[lane] = disk.Open(shippertest.Options{Owner: id, Remote: n.ship, Skip: n.ship.SkipOf(lane), SegmentFrames: 4})
		n.ship.AddLane(n.lanes[lane])
	}
}

func (n *node) run() {
	ctx, kill := context.WithCancel(context.Background())
	n.kill, n.ended = kill, make(chan struct{})
	go func() {
		defer close(n.ended)
		n.ship.Run(ctx)
	}()
}

// crash ends the process. What was not saved is gone.
func (n *node) crash() {
	n.kill()
	<-n.ended
	for _, l := range n.lanes {
		l.Kill()
	}
}

// stop ends it in order.
func (n *node) stop(within time.Duration) error {
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	err := n.ship.Stop(ctx)
	synctest.Wait()
	select {
	case <-n.ended:
	default:
		n.t.Error("Run has not returned although Stop has")
	}
	n.kill()
	return err
}

// add appends frames with these bodies.
func (n *node) add(lane segment.LaneID, bodies ...string) (last segment.Position) {
	n.t.Helper()
	for _, b := range bodies {
		f := &segment.Frame{Signal: segment.Logs, Tenant: "default", Records: 10, Body: []byte(b)}
		if err := n.lanes[lane].Append(f); err != nil {
			n.t.Fatal(err)
		}
		last = f.Position
	}
	return last
}

// drain delivers up to max frames of a lane (0: all there are), saves, and returns their bodies. A lost frame is "lost".
func (n *node) drain(lane segment.LaneID, most int) (bodies []string, err error) {
	l := n.lanes[lane]
	src := l.Source()
	for most == 0 || len(bodies) < most {
		ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
		it, err := src.Next(ctx)
		cancel()
		if errors.Is(err, context.DeadlineExceeded) {
			break
		}
		if err != nil {
			l.Save()
			return bodies, err
		}
		for range it.Lost.Frames {
			bodies = append(bodies, "lost")
		}
		if it.Frame != nil {
			bodies = append(bodies, string(it.Frame.Body))
		}
		l.Advance(&segment.Progress{To: it.Next})
	}
	l.Save()
	return bodies, nil
}

func (n *node) mustDrain(lane segment.LaneID, most int, want ...string) {
	n.t.Helper()
	got, err := n.drain(lane, most)
	if err != nil || !slices.Equal(got, want) {
		n.t.Errorf("drained %q (%v), want %q", got, err, want)
	}
}

// pass lets time pass, and everything settle.
func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// bubble is a test in its own time.
func bubble(t *testing.T, f func(t *testing.T, s *store, n *node)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := newStore()
		f(t, s, newNode(t, s))
	})
}

// puts are the calls that write objects.
func with(calls []string, prefix string) (some []string) {
	for _, c := range calls {
		if strings.HasPrefix(c, prefix) {
			some = append(some, c)
		}
	}
	return some
}

func wantState(t *testing.T, s *store, id segment.OwnerID, state string, owes bool) {
	t.Helper()
	seen, body := s.register(t, id)
	if seen.State != state || body.Owes() != owes {
		t.Errorf("register %s owes %v, want state %q, owes %v", &seen, body.Owes(), state, owes)
	}
}

// addLane adds a lane to the process that runs.
func (n *node) addLane(id segment.LaneID) {
	n.disks[id] = shippertest.NewLaneDisk(id)
	n.lanes[id] = n.disks[id].Open(shippertest.Options{Owner: n.id, Remote: n.ship, SegmentFrames: 4})
	n.ship.AddLane(n.lanes[id])
}

// refusing is a store that does not know preconditions.
type refusing struct{ *store }

func (r refusing) Put(ctx context.Context, key string, body io.ReadSeeker, c objstore.Condition) (objstore.PutResult, error) {
	if c.Conditional() {
		return objstore.PutResult{}, objstore.ErrUnsupported
	}
	return r.store.Put(ctx, key, body, c)
}

// linger takes a second.
func linger() { time.Sleep(time.Second) }
