package shipper_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/oklog/ulid/v2"
	"go.uber.org/zap"

	"ingest-agent/objstore"
	"ingest-agent/recovery/owner"
	"ingest-agent/segment"
	"ingest-agent/segment/vfs"
	"ingest-agent/shipper"
)

var _ shipper.Lane = (*segment.Lane)(nil)

// full is a disk that is in use by what lies in a lane.
func full(n *node, maxBytes int) func(*shipper.Options) {
	return func(o *shipper.Options) {
		o.Pressure = func() float64 { return float64(n.disks[laneA].LocalBytes()) / float64(maxBytes) }
	}
}

// spilled fills a disk, lets it be spilled, and returns the bodies.
func spilled(t *testing.T, s *store, n *node) (bodies []string) {
	t.Helper()
	n.start(full(n, 400))
	for i := range 100 {
		bodies = append(bodies, fmt.Sprintf("%09d.", i))
		n.add(laneA, bodies[i])
		if i%10 == 9 {
			n.ship.Wake()
			pass(0)
		}
		if used := n.disks[laneA].LocalBytes(); used > 400 {
			t.Fatalf("%d bytes in use", used)
		}
	}
	if st := n.ship.Stats(); st.SpilledBytes < 500 {
		t.Fatalf("stats %+v", st)
	}
	return bodies
}

// TestSpillBridgesAFullDisk: eager from half of the disk on, and from three quarters on segments go, but only what the register
// names. All comes back, in order, once, and then nothing is left.
func TestSpillBridgesAFullDisk(t *testing.T) {
	bubble(t, func(t *testing.T, s *store, n *node) {
		bodies := spilled(t, s, n)
		n.mustDrain(laneA, 50, bodies[:50]...)
		pass(testStale)
		n.mustDrain(laneA, 0, bodies[50:]...)
		pass(2 * testStale)
		if keys := s.keys(t, "segments/"); len(keys) > 0 {
			t.Errorf("left: %q", keys)
		}
		wantState(t, s, n.id, owner.Idle, false)
		n.crash()
	})
}

// TestOnlyWhatIsNamedIsSpilled: while the register cannot be written, no local copy goes.
func TestOnlyWhatIsNamedIsSpilled(t *testing.T) {
	bubble(t, func(t *testing.T, s *store, n *node) {
		n.start(func(o *shipper.Options) { o.Pressure = func() float64 { return 1 } })
		n.add(laneA, "0")
		pass(2 * testAfter)
		s.Fail(func(_ context.Context, op objstore.Op, key string) error {
			if op == objstore.OpPut && strings.HasPrefix(key, "owners/") {
				return objstore.ErrUnknown
			}
			return nil
		})
		for range 20 {
			n.add(laneA, "x")
		}
		pass(time.Hour)
		if len(s.keys(t, "segments/")) < 2 {
			t.Error("nothing was put")
		}
		if st := n.ship.Stats(); st.SpilledBytes > 0 {
			t.Errorf("spilled %d bytes that no register names", st.SpilledBytes)
		}
		n.crash()
	})
}

// TestASpilledObjectGoes only after a cursor that is saved is past it: a crash must not ask for it again.
func TestASpilledObjectGoesAfterTheCursorIsSaved(t *testing.T) {
	bubble(t, func(t *testing.T, s *store, n *node) {
		spilled(t, s, n)
		before := s.keys(t, "segments/")
		src := n.lanes[laneA].Source()
		for range 60 {
			it, err := src.Next(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			n.lanes[laneA].Advance(&segment.Progress{To: it.Next})
		}
		pass(2 * testStale)
		if after := s.keys(t, "segments/"); !slices.Equal(before, after) {
			t.Errorf("%d objects are %d, and no cursor was saved", len(before), len(after))
		}
		n.lanes[laneA].Save()
		pass(2 * testStale)
		if after := s.keys(t, "segments/"); len(after) >= len(before) {
			t.Error("nothing was deleted")
		}
		n.crash()
	})
}

// TestRestartWithSpilledFrames: they are in the duty of the old register, and the new process leaves them out.
func TestRestartWithSpilledFrames(t *testing.T) {
	bubble(t, func(t *testing.T, s *store, n *node) {
		bodies := spilled(t, s, n)
		old := n.id
		n.crash()
		n.start()
		pass(time.Second)
		_, body := s.register(t, old)
		end := body.Lanes[laneA].End()
		first := int(end.Seq-1)*4 + int(end.Entry) - 1
		n.mustDrain(laneA, 0, bodies[first:]...)
		n.crash()
	})
}

// TestFetch: what stands in the way of reading back is an error, which the drain tries again; only an object of this owner
// that is gone is passed, and the next one comes.
func TestFetch(t *testing.T) {
	bubble(t, func(t *testing.T, s *store, n *node) {
		spilled(t, s, n)
		end := n.lanes[laneA].State().Tail
		get := func(pos segment.Position) (*segment.Stored, error) { return n.ship.Fetch(t.Context(), laneA, pos, end) }
		keys := s.keys(t, "segments/")
		st, err := get(segment.Start)
		if err != nil || st.Seq != 1 || st.Last != 4 {
			t.Fatalf("%+v, %v", st, err)
		}
		s.Fail(func(_ context.Context, op objstore.Op, _ string) error {
			if op == objstore.OpGet {
				return objstore.ErrUnknown
			}
			return nil
		})
		if st, err := get(segment.Start); st != nil || !errors.Is(err, objstore.ErrUnknown) {
			t.Errorf("a bucket that fails: %+v, %v", st, err)
		}
		s.Fail(nil)
		if err := s.Bucket.Delete(t.Context(), keys[0]); err != nil {
			t.Fatal(err)
		}
		if st, err := get(segment.Start); err != nil || st.Seq != 2 || n.ship.Stats().Missing != 1 {
			t.Errorf("an object that is gone: %+v, %v", st, err)
		}
		if st, err := n.ship.Fetch(t.Context(), laneA, segment.Start, segment.Position{Seq: 2, Entry: 1}); st != nil || err != nil {
			t.Errorf("nothing before the other position: %+v, %v", st, err)
		}
		if _, err := n.ship.Fetch(t.Context(), segment.LaneID{Destination: "unknown"}, segment.Start, end); err == nil {
			t.Error("a lane that is not known")
		}
		// Gone because another has taken over, which this process does not know yet: no loss.
		s.adopt(t, n.id)
		if err := s.Bucket.Delete(t.Context(), keys[1]); err != nil {
			t.Fatal(err)
		}
		if st, err := get(segment.Start); st != nil || err == nil || n.ship.Stats().Missing != 1 {
			t.Errorf("an object that an adopter has deleted: %+v, %v", st, err)
		}
		n.crash()
	})
}

// TestFetchStopsWithTheLease: a reader of spilled objects stops when another may have taken over.
func TestFetchStopsWithTheLease(t *testing.T) {
	bubble(t, func(t *testing.T, s *store, n *node) {
		spilled(t, s, n)
		s.Fail(func(_ context.Context, op objstore.Op, key string) error {
			if strings.HasPrefix(key, "owners/") {
				return objstore.ErrUnknown
			}
			return nil
		})
		pass(testStale)
		s.Forget()
		_, err := n.ship.Fetch(t.Context(), laneA, segment.Position{Seq: 3, Entry: 1}, n.lanes[laneA].State().Tail)
		if gets := with(s.Forget(), "get segments/"); err == nil || len(gets) > 0 {
			t.Errorf("fetched under a lease that has lapsed: %q (%v)", gets, err)
		}
		n.crash()
	})
}

// TestCase77SpilledObjectGone: the lane counts the frames of an object that somebody has deleted as lost, and delivers the rest.
func TestCase77SpilledObjectGone(t *testing.T) {
	bubble(t, func(t *testing.T, s *store, n *node) {
		bodies := spilled(t, s, n)
		keys := s.keys(t, "segments/")
		if err := s.Bucket.Delete(t.Context(), keys[2]); err != nil {
			t.Fatal(err)
		}
		got, err := n.drain(laneA, 0)
		lost := 0
		for _, b := range got {
			if b == "lost" {
				lost++
			}
		}
		if err != nil || len(got) != len(bodies) || lost == 0 || lost > 10 || n.ship.Stats().Missing != 1 {
			t.Errorf("%d items, %d of them lost (%v)", len(got), lost, err)
		}
		n.crash()
	})
}

// countingSink takes everything once it is open.
type countingSink struct {
	open atomic.Bool
	mu   sync.Mutex
	got  map[string]int
}

func (c *countingSink) Deliver(_ context.Context, r *segment.Request) segment.Outcome {
	if !c.open.Load() {
		return segment.Outcome{Verdict: segment.Retry, Err: io.ErrUnexpectedEOF}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range r.Frames {
		c.got[string(r.Frames[i].Body)]++
	}
	return segment.Outcome{Verdict: segment.Delivered}
}

type noDead struct{}

func (noDead) SetAside(context.Context, *segment.Frame, string) error { return nil }

// TestARealLane: segments on a disk, ack: bucket, spilled, delivered, and nothing left.
func TestARealLane(t *testing.T) {
	s, dir, id := newStore(), t.TempDir(), segment.OwnerID(ulid.Make())
	space := segment.NewSpace(segment.SpaceOptions{MaxBytes: 256 << 10, FullWait: 10 * time.Second})
	sh, err := shipper.New(shipper.Options{
		Bucket: s, Owner: id, Node: "test", StaleAfter: testStale, After: 200 * time.Millisecond, RetryMax: testRetry,
		FS: vfs.OS(), Note: filepath.Join(dir, "shipped.json"), Log: zap.NewNop(),
		Pressure: func() float64 { return float64(space.Used()) / (256 << 10) },
	})
	if err != nil {
		t.Fatal(err)
	}
	l, err := segment.OpenLane(segment.LaneOptions{
		FS: vfs.OS(), Dir: filepath.Join(dir, "lanes"), ID: laneA, Owner: id, Space: space, Log: zap.NewNop(), Remote: sh,
		Quarantine: segment.NewQuarantine(vfs.OS(), filepath.Join(dir, "quarantine"), 1<<20),
		Settings:   segment.Settings{Ack: segment.AckDisk, SegmentSizeBytes: 16 << 10, SegmentAge: time.Hour, SyncInterval: time.Second},
	})
	if err != nil {
		t.Fatal(err)
	}
	sh.AddLane(l)
	if err := sh.Settle(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var ran sync.WaitGroup
	ran.Go(func() { sh.Run(context.Background()) })
	sink := &countingSink{got: map[string]int{}}
	limits := segment.Limits{InFlight: 2, MaxRequestBytes: 64 << 10, WindowBytes: 64 << 10, RetryInitial: time.Millisecond, RetryMax: 10 * time.Millisecond}
	drain := segment.DrainOptions{
		Source: l.Source(), Cursor: l, Sink: func() segment.Sink { return sink }, Limits: func() segment.Limits { return limits },
		Dead: noDead{}, Log: zap.NewNop(),
	}
	ran.Go(func() { drain.Run(ctx) })
	const frames = 1000
	pad := strings.Repeat("x", 1000)
	for i := range frames { // four times the disk
		f := &segment.Frame{Signal: segment.Logs, Tenant: "default", Records: 1, Received: time.Now(), Body: fmt.Appendf(nil, "%06d %s", i, pad)}
		if err := l.Append(t.Context(), f); err != nil {
			t.Fatal(err)
		}
		if i%50 == 49 {
			if err := sh.Wait(t.Context(), laneA, f.Position); err != nil {
				t.Fatal(err)
			}
		}
	}
	if st := sh.Stats(); st.SpilledBytes < 512<<10 {
		t.Errorf("stats %+v", st)
	}
	sink.open.Store(true)
	tick, limit := time.NewTicker(5*time.Millisecond), time.After(time.Minute)
	defer tick.Stop()
	for left := true; left; {
		select {
		case <-tick.C:
			left = l.Pending().Frames > 0
		case <-limit:
			t.Fatalf("not delivered: %+v", l.Stats())
		}
	}
	l.Stop()
	cancel()
	stop, end := context.WithTimeout(context.Background(), 20*time.Second)
	defer end()
	// The end of the last segment moves the cursor once more: only when that is saved, too, nothing is owed.
	for st := l.State(); st.Saved != st.Tail || st.Tail.Entry != 1; st = l.State() {
		<-tick.C
	}
	if err := sh.Stop(stop); err != nil {
		t.Error(err)
	}
	ran.Wait()
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	for body, n := range sink.got {
		if n != 1 {
			t.Errorf("%d times: %.6s", n, body)
		}
	}
	if st := l.Stats(); len(sink.got) != frames || st.Ledger.Lost != nil {
		t.Errorf("%d of %d delivered, %+v", len(sink.got), frames, st.Ledger)
	}
	if keys := s.keys(t, "segments/"); len(keys) > 0 {
		t.Errorf("left: %q", keys)
	}
	wantState(t, s, id, owner.Idle, false)
}
