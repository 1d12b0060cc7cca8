package segment

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

	"go.uber.org/zap"
)

// memSource yields frames from memory, then waits for more or for the end.
type memSource struct {
	mu    sync.Mutex
	items []Item
	more  chan struct{}
	fail  int // how many reads fail first
	ahead int // frames handed out and not yet passed by the cursor
	most  int
}

func newMemSource(items ...Item) *memSource {
	return &memSource{items: items, more: make(chan struct{})}
}

func (s *memSource) Next(ctx context.Context) (Item, error) {
	s.mu.Lock()
	if s.fail > 0 {
		s.fail--
		s.mu.Unlock()
		return Item{}, errors.New("disk does not answer")
	}
	if len(s.items) > 0 {
		it := s.items[0]
		s.items = s.items[1:]
		s.ahead++
		s.most = max(s.most, s.ahead)
		s.mu.Unlock()
		return it, nil
	}
	s.mu.Unlock()
	<-ctx.Done()
	return Item{}, ctx.Err()
}

func (s *memSource) Close() error { return nil }

// memCursor records progress and checks that it is made of whole steps in order.
type memCursor struct {
	t      *testing.T
	src    *memSource
	mu     sync.Mutex
	at     Position
	out    Totals
	ledger Ledger
	steps  []Position
}

func (c *memCursor) Advance(p *Progress) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if p.To == (Position{}) {
		return // only the age of the oldest
	}
	if p.To.Before(c.at) {
		c.t.Errorf("cursor went back from %s to %s", c.at, p.To)
	}
	c.at = p.To
	c.out = c.out.Sub(p.Again).Add(p.Out)
	c.ledger.Add(&p.Ledger)
	c.steps = append(c.steps, p.To)
	if c.src != nil {
		c.src.mu.Lock()
		c.src.ahead -= int(p.Out.Frames)
		c.src.mu.Unlock()
	}
}

func (c *memCursor) state() (Position, Ledger) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.at, c.ledger.clone()
}

// sinkFunc makes a function a Sink.
type sinkFunc func(ctx context.Context, r *Request) Outcome

func (f sinkFunc) Deliver(ctx context.Context, r *Request) Outcome { return f(ctx, r) }

// deadFrames keeps what was set aside; it fails as often as fail says.
type deadFrames struct {
	mu   sync.Mutex
	ids  []string
	fail int
}

func (d *deadFrames) SetAside(_ context.Context, f *Frame, _ string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.fail > 0 {
		d.fail--
		return errors.New("no space")
	}
	d.ids = append(d.ids, string(f.Body))
	return nil
}

// frameItem is frame n of a segment, with a body that names it.
func frameItem(n int, tenant string, records int) Item {
	f := &Frame{
		ID: FrameID{Birth{Lane: LaneID{Destination: "default"}, Seq: 1}, Entry(n)}, Position: Position{1, Entry(n)},
		Signal: Logs, Tenant: tenant, Received: time.Now(), Records: uint32(records), Body: fmt.Appendf(nil, "<%s %d>", tenant, n),
	}
	return Item{Frame: f, Next: f.Position.After()}
}

func frameItems(n int, tenants ...string) (items []Item) {
	for i := 1; i <= n; i++ {
		items = append(items, frameItem(i, tenants[i%len(tenants)], 2))
	}
	return items
}

type drainTest struct {
	src  *memSource
	cur  *memCursor
	dead *deadFrames
	lim  Limits
}

func newDrainTest(t *testing.T, items ...Item) *drainTest {
	src := newMemSource(items...)
	return &drainTest{src: src, cur: &memCursor{t: t, src: src}, dead: &deadFrames{}, lim: Limits{
		InFlight: 4, MaxRequestBytes: 1 << 10, WindowBytes: 1 << 20, RetryInitial: 100 * time.Millisecond, RetryMax: 10 * time.Second,
	}}
}

// run drains for a while of fake time.
func (d *drainTest) run(sink Sink, during time.Duration) {
	ctx, cancel := context.WithTimeout(context.Background(), during)
	defer cancel()
	DrainOptions{Source: d.src, Cursor: d.cur, Sink: func() Sink { return sink }, Dead: d.dead,
		Limits: func() Limits { return d.lim }, Log: zap.NewNop()}.Run(ctx)
}

func bodies(r *Request) string {
	var b strings.Builder
	for _, f := range r.Frames {
		b.Write(f.Body)
	}
	return b.String()
}

// I11: whatever fails and in whatever order answers come, the cursor stands on a prefix of what was delivered.
func TestI11CursorMovesOverAPrefixOnly(t *testing.T) {
	for seed := range uint64(30) {
		synctest.Test(t, func(t *testing.T) {
			const n = 200
			d := newDrainTest(t, frameItems(n, "a", "b", "c")...)
			d.lim.MaxRequestBytes = 40
			rng := rand.New(rand.NewPCG(seed, 1))
			var mu sync.Mutex
			delivered := map[Entry]int{}
			sink := sinkFunc(func(ctx context.Context, r *Request) Outcome {
				mu.Lock()
				wait, fate := time.Duration(rng.IntN(1000))*time.Millisecond, rng.IntN(4)
				at, _ := d.cur.state()
				for e := Entry(1); e < at.Entry; e++ {
					if delivered[e] == 0 {
						t.Errorf("seed %d: cursor at %s, but frame %d was never delivered", seed, at, e)
					}
				}
				mu.Unlock()
				time.Sleep(wait)
				if fate == 0 {
					return Outcome{Verdict: Retry, Err: errors.New("busy")}
				}
				mu.Lock()
				defer mu.Unlock()
				for _, f := range r.Frames {
					delivered[f.ID.Number]++
				}
				if fate == 1 { // taken, but the answer is lost
					return Outcome{Verdict: Retry, Err: errors.New("cut")}
				}
				return Outcome{Verdict: Delivered}
			})
			d.run(sink, time.Hour)
			at, ledger := d.cur.state()
			if at != (Position{1, n + 1}) || ledger.Delivered[0] != 2*n || ledger.Out() != d.cur.out.Records {
				t.Errorf("seed %d: cursor %s, ledger %+v", seed, at, ledger)
			}
			if ledger.Resent[0] == 0 {
				t.Errorf("seed %d: nothing counted as sent again", seed)
			}
		})
	}
}

// Case 46 of the field's bug reports: one part of a batch fails, the others succeed.
func TestCase46FirstPartRetried(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDrainTest(t, frameItems(3, "a")...)
		d.lim.MaxRequestBytes = 6 // one frame a request
		var mu sync.Mutex
		tries := map[string]int{}
		var early Position
		sink := sinkFunc(func(_ context.Context, r *Request) Outcome {
			mu.Lock()
			defer mu.Unlock()
			b := bodies(r)
			if tries[b]++; b == "<a 1>" && tries[b] == 1 {
				return Outcome{Verdict: Retry, RetryAfter: 3 * time.Second}
			}
			if b == "<a 1>" {
				early, _ = d.cur.state()
			}
			return Outcome{Verdict: Delivered}
		})
		start := time.Now()
		d.run(sink, time.Minute)
		if at, _ := d.cur.state(); at.Entry != 4 || tries["<a 1>"] != 2 {
			t.Errorf("cursor %s, tries %v", at, tries)
		}
		if early.Entry > 1 {
			t.Errorf("cursor was at %s before the first part was taken", early)
		}
		if time.Since(start) < 3*time.Second {
			t.Error("the destination's delay was not honoured")
		}
	})
}

func TestMergesUpToTheLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		items := frameItems(40, "a", "b")
		big := frameItem(41, "a", 1)
		big.Frame.Body = []byte(strings.Repeat("x", 500))
		odd := frameItem(42, "a", 1)
		odd.Frame.Flags = FlagInvalidUTF8
		items = append(items, big, odd, frameItem(43, "a", 1))
		d := newDrainTest(t, items...)
		d.lim.MaxRequestBytes, d.lim.InFlight = 60, 1
		var sizes []int // one request at a time
		sink := sinkFunc(func(_ context.Context, r *Request) Outcome {
			time.Sleep(time.Second) // so that frames gather
			if size := r.Size(); size > 60 && len(r.Frames) > 1 {
				t.Errorf("request of %d bytes in %d frames", size, len(r.Frames))
			}
			sizes = append(sizes, len(r.Frames))
			for _, f := range r.Frames {
				if f.Tenant != r.Tenant {
					t.Errorf("frame of %s in a request of %s", f.Tenant, r.Tenant)
				}
				if f.Flags&FlagInvalidUTF8 != 0 && len(r.Frames) > 1 {
					t.Error("frame with invalid UTF-8 merged with others")
				}
			}
			return Outcome{Verdict: Delivered}
		})
		d.run(sink, time.Hour)
		if at, _ := d.cur.state(); at.Entry != 44 {
			t.Errorf("cursor %s", at)
		}
		if slices.Max(sizes) < 5 {
			t.Errorf("requests were not merged: %v", sizes)
		}
	})
}

func TestOrderedKeepsOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDrainTest(t, frameItems(60, "a")...)
		d.lim.Ordered, d.lim.MaxRequestBytes = true, 30
		var last Entry
		calls := 0
		sink := sinkFunc(func(_ context.Context, r *Request) Outcome {
			if calls++; calls%3 == 0 {
				return Outcome{Verdict: Retry}
			}
			for _, f := range r.Frames {
				if f.ID.Number <= last {
					t.Errorf("frame %d after %d", f.ID.Number, last)
				}
				last = f.ID.Number
			}
			return Outcome{Verdict: Delivered}
		})
		d.run(sink, time.Hour)
		if last != 60 {
			t.Errorf("last %d", last)
		}
	})
}

// What is refused for good is found by halving and set aside alone; the rest is delivered.
func TestRefusedFrameStandsAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDrainTest(t, frameItems(64, "a")...)
		d.dead.fail = 2 // and a dead letter that cannot be written is no loss
		requests := 0
		sink := sinkFunc(func(_ context.Context, r *Request) Outcome {
			requests++
			time.Sleep(time.Millisecond) // so that frames gather
			if strings.Contains(bodies(r), "<a 50>") {
				return Outcome{Verdict: Refused, Err: errors.New("bad")}
			}
			return Outcome{Verdict: Delivered}
		})
		d.lim.InFlight = 1
		d.run(sink, time.Hour)
		at, ledger := d.cur.state()
		if at.Entry != 65 || ledger.DeadLetter[0] != 2 || ledger.Delivered[0] != 126 {
			t.Errorf("cursor %s, ledger %+v", at, ledger)
		}
		if !slices.Equal(d.dead.ids, []string{"<a 50>"}) {
			t.Errorf("set aside: %v", d.dead.ids)
		}
		if requests > 1+1+2*6+2 { // the first frame, all others, two for each halving, two tries of the dead letter
			t.Errorf("%d requests to find one frame of 64", requests)
		}
	})
}

func TestPartialSuccessIsCountedNotRetried(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDrainTest(t, frameItem(1, "a", 4), frameItem(2, "a", 6))
		d.lim.InFlight = 1
		requests := 0
		d.run(sinkFunc(func(_ context.Context, r *Request) Outcome {
			requests++
			return Outcome{Verdict: Delivered, Rejected: min(3, r.Records())}
		}), time.Hour)
		_, ledger := d.cur.state()
		if want := uint64(3 * requests); ledger.Rejected[0] != want || ledger.Delivered[0] != 10-want || requests > 2 {
			t.Errorf("%d requests, ledger %+v", requests, ledger)
		}
	})
}

// One tenant that is refused with a delay must not hold up the others of its lane.
func TestOneTenantRetriesOthersGoOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDrainTest(t, frameItems(90, "a", "b", "slow")...)
		var mu sync.Mutex
		delivered := map[string]int{}
		d.run(sinkFunc(func(_ context.Context, r *Request) Outcome {
			if r.Tenant == "slow" {
				return Outcome{Verdict: Retry, RetryAfter: time.Minute}
			}
			mu.Lock()
			defer mu.Unlock()
			delivered[r.Tenant] += len(r.Frames)
			return Outcome{Verdict: Delivered}
		}), 10*time.Second)
		if delivered["a"] != 30 || delivered["b"] != 30 {
			t.Errorf("delivered %v", delivered)
		}
		if at, _ := d.cur.state(); at.Entry > 2 {
			t.Errorf("cursor %s passed a frame that was not delivered", at)
		}
	})
}

func TestMaxAgeDropsAndCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDrainTest(t, frameItems(10, "a")...)
		d.lim.MaxAge = time.Hour
		begin := time.Now()
		d.run(sinkFunc(func(context.Context, *Request) Outcome {
			if time.Since(begin) < 2*time.Hour {
				return Outcome{Verdict: Retry}
			}
			return Outcome{Verdict: Delivered}
		}), 4*time.Hour)
		at, ledger := d.cur.state()
		if at.Entry != 11 || ledger.Lost[LostMaxAge][0] != 20 || ledger.Delivered[0] != 0 {
			t.Errorf("cursor %s, ledger %+v", at, ledger)
		}
	})
}

// Case 38: an outage of days loses nothing, and the oldest comes first.
func TestCase38OutageOfFourDays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDrainTest(t, frameItems(500, "a", "b")...)
		begin := time.Now()
		d.lim.RetryMax = 5 * time.Minute
		var mu sync.Mutex
		var first Entry
		d.run(sinkFunc(func(_ context.Context, r *Request) Outcome {
			if time.Since(begin) < 96*time.Hour {
				return Outcome{Verdict: Retry, Err: errors.New("down")}
			}
			mu.Lock()
			defer mu.Unlock()
			if first == 0 {
				first = r.Frames[0].ID.Number
			}
			return Outcome{Verdict: Delivered}
		}), 97*time.Hour)
		at, ledger := d.cur.state()
		oldest := Entry(d.lim.InFlight) // each has a delay of its own; which of them ends first is chance
		if at.Entry != 501 || ledger.Delivered[0] != 1000 || len(ledger.Lost) != 0 || first > oldest {
			t.Errorf("cursor %s, first %d, ledger %+v", at, first, ledger)
		}
	})
}

func TestWindowBoundsWhatIsReadAhead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDrainTest(t, frameItems(5000, "a")...)
		d.lim.WindowBytes = 20 * slotBytes
		d.src.fail = 3 // a source that does not answer at once is asked again
		d.run(sinkFunc(func(ctx context.Context, _ *Request) Outcome {
			<-ctx.Done()
			return Outcome{Verdict: Retry, Err: ctx.Err()}
		}), time.Hour)
		if d.src.most < 10 || d.src.most > 22 {
			t.Errorf("%d frames read ahead", d.src.most)
		}
	})
}

// Losses move the cursor and are counted, in their place.
func TestLossIsPassedInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lost := Item{Next: Position{1, 5}, Lost: Totals{3, Counts{7, 0, 0}, 100}, Cause: LostCorrupt}
		d := newDrainTest(t, frameItem(1, "a", 1), lost, frameItem(5, "a", 1))
		hold := make(chan struct{})
		time.AfterFunc(time.Minute, func() { close(hold) })
		d.lim.MaxRequestBytes = 6 // each frame alone
		first := make(chan struct{}, 2)
		d.run(sinkFunc(func(_ context.Context, r *Request) Outcome {
			<-hold
			if r.Frames[0].ID.Number == 5 {
				<-first // so that the one behind the loss ends last
				return Outcome{Verdict: Delivered}
			}
			first <- struct{}{}
			if at, _ := d.cur.state(); at.Entry > 2 {
				t.Errorf("cursor %s is past a frame in flight", at)
			}
			return Outcome{Verdict: Delivered}
		}), time.Hour)
		at, ledger := d.cur.state()
		if at.Entry != 6 || ledger.Lost[LostCorrupt][0] != 7 || ledger.Delivered[0] != 2 {
			t.Errorf("cursor %s, ledger %+v", at, ledger)
		}
		if d.cur.steps[0].Entry < 2 {
			t.Errorf("steps %v", d.cur.steps)
		}
	})
}

// A sink that is swapped while requests fail is used by the next attempt.
func TestSinkCanBeSwapped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDrainTest(t, frameItems(10, "a")...)
		var mu sync.Mutex
		var sink Sink = sinkFunc(func(context.Context, *Request) Outcome { return Outcome{Verdict: Retry} })
		ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
		defer cancel()
		time.AfterFunc(time.Minute, func() {
			mu.Lock()
			defer mu.Unlock()
			sink = sinkFunc(func(context.Context, *Request) Outcome { return Outcome{Verdict: Delivered} })
		})
		DrainOptions{Source: d.src, Cursor: d.cur, Dead: d.dead, Limits: func() Limits { return d.lim }, Log: zap.NewNop(),
			Sink: func() Sink {
				mu.Lock()
				defer mu.Unlock()
				return sink
			}}.Run(ctx)
		if at, _ := d.cur.state(); at.Entry != 11 {
			t.Errorf("cursor %s", at)
		}
	})
}
