package agent

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/oklog/ulid/v2"
	"go.uber.org/zap"

	"ingest-agent/agent/config"
	"ingest-agent/segment"
	"ingest-agent/segment/vfs"
)

// parkWorld is a lane with its parked lanes and a destination that refuses some tenants for a while.
type parkWorld struct {
	t      *testing.T
	dir    string
	ctx    context.Context // ends the drains
	end    context.CancelFunc
	drains sync.WaitGroup
	space  *segment.Space
	park   *parking
	health health
	limits segment.Limits
	lane   *segment.Lane

	mu      sync.Mutex
	lanes   []*segment.Lane
	refuses func(tenant string) bool
	got     map[string][]string // bodies by tenant
	at      map[string]time.Time
}

func newParkWorld(t *testing.T, limits segment.Limits) *parkWorld {
	w := &parkWorld{
		t: t, dir: t.TempDir(), limits: limits, got: map[string][]string{}, at: map[string]time.Time{},
		refuses: func(string) bool { return false },
		space:   segment.NewSpace(segment.SpaceOptions{MaxBytes: 64 << 20, MoveReserveBytes: 4 << 20}),
	}
	return w
}

func (w *parkWorld) open(id segment.LaneID) *segment.Lane {
	l, err := segment.OpenLane(segment.LaneOptions{
		FS: vfs.OS(), Dir: w.dir, ID: id, Owner: segment.OwnerID(ulid.Make()), Space: w.space, Log: zap.NewNop(),
		Quarantine: segment.NewQuarantine(vfs.OS(), w.dir+"-quarantine", 1<<20),
		Settings:   segment.Settings{Ack: segment.AckDisk, SegmentSizeBytes: 64 << 10, SegmentAge: time.Second},
	})
	if err != nil {
		w.t.Fatal(err)
	}
	w.mu.Lock()
	w.lanes = append(w.lanes, l)
	w.mu.Unlock()
	return l
}

// start opens the lane and what is found of its parked lanes.
func (w *parkWorld) start() {
	w.ctx, w.end = context.WithCancel(w.t.Context())
	w.lanes, w.health = nil, health{}
	id := func(n int) segment.LaneID { return segment.LaneID{Destination: "default", Parked: n} }
	w.park = newParking(&w.health, func() bool { return w.limits.Ordered }, func(n int) (*segment.Lane, error) {
		l := w.open(id(n))
		w.drain(l)
		return l, nil
	})
	found, _, err := segment.ListLanes(vfs.OS(), w.dir)
	if err != nil {
		w.t.Fatal(err)
	}
	w.lane = w.open(id(0))
	for _, id := range found {
		if id.Parked > 0 {
			w.park.found(id.Parked, w.open(id))
		}
	}
	for _, l := range w.lanes {
		w.drain(l)
	}
}

func (w *parkWorld) drain(l *segment.Lane) {
	o := segment.DrainOptions{
		Source: l.Source(), Cursor: l, Sink: func() segment.Sink { return w }, Limits: func() segment.Limits { return w.limits },
		Log: zap.NewNop(), Park: w.park, Parked: l.ID().Parked > 0,
	}
	w.drains.Go(func() {
		o.Run(w.ctx)
		if err := o.Source.Close(); err != nil {
			w.t.Error(err)
		}
	})
}

func (w *parkWorld) stop() {
	w.end()
	w.drains.Wait()
	for _, l := range w.lanes {
		if err := l.Close(); err != nil {
			w.t.Error(err)
		}
	}
}

// Deliver implements segment.Sink.
func (w *parkWorld) Deliver(_ context.Context, r *segment.Request) segment.Outcome {
	time.Sleep(10 * time.Millisecond)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.refuses(r.Tenant) {
		return segment.Outcome{Verdict: segment.Retry, RetryAfter: time.Second, Err: errors.New("429")}
	}
	for i := range r.Frames {
		body := string(r.Frames[i].Body)
		w.got[r.Tenant] = append(w.got[r.Tenant], body)
		w.at[body] = time.Now()
	}
	return segment.Outcome{Verdict: segment.Delivered}
}

func (w *parkWorld) set(refuses func(tenant string) bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.refuses = refuses
}

func (w *parkWorld) send(tenant string, n int) {
	w.t.Helper()
	body := fmt.Appendf(make([]byte, 0, 1024), "%s %06d ", tenant, n)
	f := segment.Frame{Signal: segment.Logs, Tenant: tenant, Received: time.Now(), Records: 1, Body: body[:cap(body)]}
	if err := w.lane.Append(context.Background(), &f); err != nil {
		w.t.Errorf("%s %d: %v", tenant, n, err)
	}
}

// number is what body n of a tenant begins with.
func (w *parkWorld) check(tenant string, n int, ordered bool) {
	w.t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	seen := map[string]int{}
	for i, body := range w.got[tenant] {
		seen[body[:len(tenant)+7]]++
		if want := fmt.Sprintf("%s %06d", tenant, i); ordered && body[:len(want)] != want {
			w.t.Fatalf("%s: body %d is %q", tenant, i, body[:len(want)])
		}
	}
	if len(seen) != n || len(w.got[tenant]) != n {
		w.t.Errorf("%s: %d delivered, %d of them different, want %d", tenant, len(w.got[tenant]), len(seen), n)
	}
}

func parkLimits() segment.Limits {
	return segment.Limits{
		InFlight: 4, MaxRequestBytes: 64 << 10, WindowBytes: 256 << 10, RetryInitial: 200 * time.Millisecond,
		RetryMax: 30 * time.Second, ParkAfter: 30 * time.Second,
	}
}

// One tenant is answered 429 for ten minutes. The other, in the same lane, is delivered as fast as it comes in; nothing is
// lost, and the backlog drains when the destination takes it again.
func TestOneTenantRefusedForTenMinutes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newParkWorld(t, parkLimits())
		w.start()
		w.set(func(tenant string) bool { return tenant == "a" })
		const seconds = 600
		begin := time.Now()
		sent := 0
		var longest time.Duration
		for i := range seconds {
			for range 4 { // 4 KiB a second of the one that is refused: the window is full after a minute
				w.send("a", sent)
				sent++
			}
			at := time.Now()
			w.send("b", i)
			time.Sleep(time.Until(begin.Add(time.Duration(i+1) * time.Second)))
			w.mu.Lock()
			body := w.got["b"]
			if len(body) == i+1 {
				longest = max(longest, w.at[body[i]].Sub(at))
			} else {
				t.Errorf("second %d: %d of b are delivered", i, len(body))
			}
			w.mu.Unlock()
		}
		t.Logf("b took at most %v", longest)
		if p := w.lane.Pending(); p.Frames > 4*35 {
			t.Errorf("%d frames wait in the lane", p.Frames)
		}
		w.check("b", seconds, false)
		for _, l := range w.lanes[1:] {
			if st := l.Stats(); st.Ledger.Moved.Sum() > 0 {
				t.Errorf("%d were moved on from %s", st.Ledger.Moved.Sum(), l.ID())
			}
		}
		if len(w.lanes) != 2 {
			t.Errorf("%d parked lanes for one tenant's signal", len(w.lanes)-1)
		}
		w.set(func(string) bool { return false })
		time.Sleep(5 * time.Minute)
		w.check("a", sent, false)
		w.send("a", sent)
		time.Sleep(time.Second)
		w.check("a", sent+1, false)
		if n := len(w.park.parked); n != 0 {
			t.Errorf("%d are still parked", n)
		}
		w.stop()
	})
}

// A burst of what is refused fills the window before anything else is seen: the window is moved away to see what is behind.
func TestBurstOfWhatIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newParkWorld(t, parkLimits())
		w.start()
		w.set(func(tenant string) bool { return tenant == "a" })
		for i := range 500 { // three windows
			w.send("a", i)
		}
		w.send("b", 0)
		time.Sleep(8 * time.Minute)
		w.check("b", 1, false)
		w.set(func(string) bool { return false })
		time.Sleep(6 * time.Minute)
		w.check("a", 500, false)
		w.stop()
	})
}

// A destination that is down for all is no reason to move anything but for the rare trial, and what comes in stays in its
// lane.
func TestOutageParksLittle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limits := parkLimits()
		w := newParkWorld(t, limits)
		w.start()
		w.set(func(string) bool { return true })
		const frames = 3000
		for i := range frames {
			w.send("ab"[i%2:i%2+1], i/2)
		}
		time.Sleep(time.Hour)
		st := w.lane.Stats()
		if moved := st.Ledger.Moved.Sum(); moved == 0 || moved > 8*uint64(limits.WindowBytes)/1024 {
			t.Errorf("%d of %d were moved", moved, frames)
		}
		w.set(func(string) bool { return false })
		time.Sleep(10 * time.Minute)
		w.check("a", frames/2, false)
		w.check("b", frames/2, false)
		w.stop()
	})
}

// As long as the window has room, an outage for all moves nothing.
func TestOutageParksNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newParkWorld(t, parkLimits())
		w.start()
		w.set(func(string) bool { return true })
		for i := range 20 {
			w.send("a", i)
			w.send("b", i)
		}
		time.Sleep(time.Hour)
		if st := w.lane.Stats(); st.Ledger.Moved.Sum() > 0 {
			t.Errorf("%d were moved", st.Ledger.Moved.Sum())
		}
		w.set(func(string) bool { return false })
		time.Sleep(time.Minute)
		w.check("a", 20, false)
		w.check("b", 20, false)
		w.stop()
	})
}

// Where order counts, what is parked stays before what comes later, also over a restart.
func TestParkingKeepsOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limits := parkLimits()
		limits.Ordered = true
		w := newParkWorld(t, limits)
		w.start()
		w.set(func(tenant string) bool { return tenant == "a" })
		n := 0
		send := func(seconds int) {
			for range seconds {
				w.send("a", n)
				w.send("b", n)
				n++
				time.Sleep(time.Second)
			}
		}
		send(120)
		if st := w.lane.Stats(); st.Ledger.Moved.Sum() == 0 {
			t.Error("nothing was parked")
		}
		w.stop()
		w.start()
		w.set(func(string) bool { return false })
		send(60)
		time.Sleep(5 * time.Minute)
		w.check("a", n, true)
		w.check("b", n, true)
		w.stop()
	})
}

func TestRoutesOfTenants(t *testing.T) {
	r := newRoutes(&config.Config{
		Routes:  []config.Route{{Tenant: "a", Destination: "first"}, {Tenant: "a", Destination: "second"}, {Tenant: "b", Destination: "second"}},
		Tenants: map[string]config.Tenant{"b": {Destination: "third"}, "a": {}},
	})
	for tenant, want := range map[string]string{"a": "first", "b": "third", "c": config.DefaultDestination} {
		if got := r.destination(tenant); got != want {
			t.Errorf("tenant %s goes to %s, want %s", tenant, got, want)
		}
	}
}

// What comes while the first move is on its way belongs behind it.
func TestHoldsWhileAMoveIsOnItsWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limits := parkLimits()
		limits.Ordered = true
		w := newParkWorld(t, limits)
		w.start()
		open, gate := w.park.open, make(chan struct{})
		w.park.open = func(n int) (*segment.Lane, error) {
			<-gate
			return open(n)
		}
		frames := []segment.Frame{{Signal: segment.Logs, Tenant: "a", Received: time.Now(), Records: 1, Body: make([]byte, 8)}}
		moved := make(chan error)
		go func() { moved <- w.park.Move(t.Context(), frames) }()
		synctest.Wait()
		if !w.park.Holds("a", segment.Logs) || w.park.Holds("b", segment.Logs) || w.park.Holds("a", segment.Traces) {
			t.Error("it is not known that a move is on its way, or of what")
		}
		close(gate)
		if err := <-moved; err != nil {
			t.Error(err)
		}
		time.Sleep(time.Minute)
		if w.park.Holds("a", segment.Logs) {
			t.Error("still held when all is delivered")
		}
		w.stop()
	})
}
