package recovery_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"ingest-agent/objstore"
	"ingest-agent/objstore/lease"
	"ingest-agent/recovery"
	"ingest-agent/recovery/owner"
	"ingest-agent/segment"
)

func (d *dead) state() string { s, _ := d.seen(); return s.State }

func (d *dead) holder() string { s, _ := d.seen(); return s.Holder }

func TestRetiredOwnerIsDrained(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, dest := newStore(t), newDestination()
		d := gone(t, b, id(1), lane0, 5, 4)
		o := options(b, "a", dest)
		var told segment.Ledger
		o.Adopted = func(_ string, _ segment.LaneID, p segment.Progress) { told.Add(&p.Ledger) }
		n := run(o)
		defer n.kill()
		passUntil(t, testScan, func() bool { return d.state() == owner.Drained })
		d.wantDrained()
		if frames, twice := dest.taken(); frames != 20 || twice != 0 {
			t.Errorf("%d frames delivered, %d twice; want 20, 0", frames, twice)
		}
		if l := n.Stats().Ledger; l.Delivered.Sum() != 20*testRecords || l.Out() != l.Delivered || told.Out() != l.Out() {
			t.Errorf("ledger %+v, told of %+v", l, told)
		}
	})
}

// TestClaimIsMadeOnWhatWasJudged: an owner that beats again between the look and the claim keeps its register.
func TestClaimIsMadeOnWhatWasJudged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, dest := newStore(t), newDestination()
		d := newDead(t, b.Bucket, id(1), lane0)
		d.put(lane0, 4, 100)
		d.name()
		pass(2 * testStale)
		beats := 0
		b.Fail(func(ctx context.Context, op objstore.Op, key string) error {
			if op == objstore.OpPut && strings.HasPrefix(key, objstore.OwnersPrefix) {
				beats++
				return d.lease.Renew(ctx, nil)
			}
			return nil
		})
		n := run(options(b, "a", dest))
		defer n.kill()
		passUntil(t, testStale, func() bool { return beats > 0 })
		if s, _ := d.seen(); s.State != owner.Live || s.Holder != d.id.String() || s.Epoch != 1 {
			t.Errorf("the register was taken from a holder that beats: %s", &s)
		}
		if frames, _ := dest.taken(); frames != 0 {
			t.Errorf("%d frames of it were delivered", frames)
		}
		if n.Stats().Conflicts == 0 {
			t.Error("no conflict was counted")
		}
	})
}

// TestPartialFailureKeepsTheRest: what could not be delivered keeps its register and its objects, is free at once, and is drained
// when that is possible again.
func TestPartialFailureKeepsTheRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, dest := newStore(t), newDestination()
		d := gone(t, b, id(1), lane0, 5, 4)
		dest.refuses = func(f *segment.Frame) bool { return f.Position.Seq > 2 }
		n := run(options(b, "a", dest))
		defer n.kill()
		passUntil(t, 2*testStale, func() bool { return n.Stats().Adoptions[recovery.Released] == 1 })
		s, body := d.seen()
		if l := body.Lanes[lane0]; s.State != owner.Adopted || s.Holder != "" || l.Exported.Before(at(2, 5)) || !l.Owes() {
			t.Errorf("after a partial failure: %s, %+v", &s, l)
		}
		if left := keys(t, b, objstore.SegmentsPrefix); len(left) != 3 {
			t.Errorf("objects left: %v, want three", left)
		}
		dest.mu.Lock()
		dest.refuses = nil
		dest.mu.Unlock()
		passUntil(t, 10*testStale, func() bool { return d.state() == owner.Drained })
		d.wantDrained()
		if frames, twice := dest.taken(); frames != 20 || twice != 0 {
			t.Errorf("%d frames delivered, %d twice; want 20, 0", frames, twice)
		}
	})
}

// TestBucketTroubleGivesBack: the same where it is the bucket that fails.
func TestBucketTroubleGivesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, dest := newStore(t), newDestination()
		d := gone(t, b, id(1), lane0, 5, 4)
		b.Fail(func(_ context.Context, op objstore.Op, key string) error {
			if op == objstore.OpGet && slices.Contains(d.objects[lane0][2:], key) {
				return objstore.ErrDenied
			}
			return nil
		})
		n := run(options(b, "a", dest))
		defer n.kill()
		passUntil(t, 2*testStale, func() bool { return n.Stats().Adoptions[recovery.Released] == 1 })
		if s, body := d.seen(); s.State != owner.Adopted || s.Holder != "" || body.Lanes[lane0].Exported != at(2, 5) {
			t.Errorf("given back as %s, %+v", &s, body.Lanes[lane0])
		}
		b.Fail(nil)
		passUntil(t, 10*testStale, func() bool { return d.state() == owner.Drained })
		d.wantDrained()
	})
}

// TestReplacementLooksAgain: a node that starts before its predecessor is stale does not find it then, and does later.
func TestReplacementLooksAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, dest := newStore(t), newDestination()
		d := newDead(t, b, id(1), lane0)
		d.put(lane0, 4, 100)
		d.name()
		n := run(options(b, "a", dest))
		defer n.kill()
		pass(testStale / 2)
		if d.state() != owner.Live {
			t.Errorf("it was adopted in state %s before it was stale", d.state())
		}
		took := passUntil(t, testStale+2*testScan, func() bool { return d.state() == owner.Drained })
		t.Logf("drained %s after the start", took+testStale/2)
		d.wantDrained()
	})
}

// TestLanesAreStreamed: a lane is not read into memory: what is read and not delivered is bounded by the drain's window.
func TestLanesAreStreamed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, dest := newStore(t), newDestination()
		d := gone(t, b, id(1), lane0, 40, 4) // small ones: the window is the drain's
		big := newDead(t, b, id(2), lane0)
		for range 30 {
			big.put(lane0, 2, 512<<10)
		}
		big.name()
		big.retire()
		dest.set(true)
		b.Forget()
		n := run(options(b, "a", dest))
		defer n.kill()
		pass(testStale / 2)
		reads := count(b.Forget(), "get segments/"+big.id.String())
		if reads < 2 || reads > 6 {
			t.Errorf("%d objects of 1 MiB were read while the destination is down, with a window of 4 MiB", reads)
		}
		dest.set(false)
		passUntil(t, 10*testStale, func() bool { return d.state() == owner.Drained && big.state() == owner.Drained })
		if most := b.Most(objstore.OpGet, "segments"); most > 2 {
			t.Errorf("%d objects were read at once by two adoptions", most)
		}
		big.wantDrained()
	})
}

// TestStopGivesBack: what runs at a stop is given back at once, with what was reached.
func TestStopGivesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, dest := newStore(t), newDestination()
		d := gone(t, b, id(1), lane0, 5, 4)
		dest.refuses = func(f *segment.Frame) bool { return f.Position.Seq > 2 }
		n := run(options(b, "a", dest))
		passUntil(t, testScan, func() bool { frames, _ := dest.taken(); return frames == 8 })
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		begin := time.Now()
		if err := n.Stop(ctx); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(begin); took > time.Second {
			t.Errorf("the stop took %s", took)
		}
		if s, body := d.seen(); s.Holder != "" || body.Lanes[lane0].Exported.Before(at(2, 5)) {
			t.Errorf("given back as %s, %+v", &s, body.Lanes[lane0])
		}
		other := newDestination()
		m := run(options(b, "b", other))
		defer m.kill()
		passUntil(t, testScan, func() bool { return d.state() == owner.Drained })
		if frames, _ := other.taken(); frames != 12 {
			t.Errorf("the next took %d frames, want the other 12", frames)
		}
	})
}

// TestStopWhileTheBucketHangs: a stop ends with its time.
func TestStopWhileTheBucketHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, dest := newStore(t), newDestination()
		gone(t, b, id(1), lane0, 5, 4)
		dest.set(true)
		n := run(options(b, "a", dest))
		pass(testScan)
		b.Fail(func(ctx context.Context, _ objstore.Op, _ string) error { return delay(ctx, time.Hour) })
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		begin := time.Now()
		if err := n.Stop(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("stop: %v", err)
		}
		if took := time.Since(begin); took > 6*time.Second {
			t.Errorf("the stop took %s", took)
		}
	})
}

// TestKilledAdopterIsReplaced: its claim is taken when it has been silent for long enough, and not before.
func TestKilledAdopterIsReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, dest := newStore(t), newDestination()
		d := gone(t, b, id(1), lane0, 5, 4)
		dest.refuses = func(f *segment.Frame) bool { return f.Position.Seq > 2 }
		n := run(options(b, "a", dest))
		pass(testScan / 2)
		holder := d.holder()
		n.kill()
		if holder == "" || d.holder() != holder {
			t.Fatalf("adopted by %q, then %q", holder, d.holder())
		}
		other := newDestination()
		m := run(options(b, "b", other))
		defer m.kill()
		took := passUntil(t, testStale+2*testScan, func() bool { return d.holder() != holder })
		if took < testStale/2 {
			t.Errorf("taken over %s after the kill", took)
		}
		passUntil(t, testScan, func() bool { return d.state() == owner.Drained })
		d.wantDrained()
		if frames, _ := other.taken(); frames != 12 {
			t.Errorf("the next took %d frames, want the other 12", frames)
		}
	})
}

// TestAdopterWithoutTheBucketStops: who cannot beat exports nothing any more when another may have taken over.
func TestAdopterWithoutTheBucketStops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newStore(t)
		d := gone(t, b, id(1), lane0, 300, 4)
		mine := view(b.Bucket)
		slow := newDestination()
		slow.slow = 100 * time.Millisecond // for each frame
		n := run(options(mine, "a", slow))
		defer n.kill()
		pass(testScan / 2)
		cutAt := time.Now()
		mine.Fail(func(_ context.Context, op objstore.Op, key string) error {
			if op == objstore.OpPut {
				return objstore.ErrUnknown
			}
			return nil
		})
		pass(testStale)
		slow.mu.Lock()
		last := slow.last
		slow.mu.Unlock()
		if last.Before(cutAt) || last.Sub(cutAt) > testStale/2+time.Second {
			t.Errorf("it exported until %s after it was cut off", last.Sub(cutAt))
		}
		fast := newDestination()
		m := run(options(b, "b", fast))
		defer m.kill()
		passUntil(t, 3*testStale, func() bool { return d.state() == owner.Drained })
		a, _ := slow.taken()
		f, _ := fast.taken()
		const rate, window = 2 * 10, 30 // frames in a second by two requests; seconds from the last beat to the lapse
		if a+f < 1200 || a+f > 1200+rate*(window+2) || f > 1000 {
			t.Errorf("%d and %d frames delivered of 1200", a, f)
		}
	})
}

// TestStuckLaneHoldsUpNoOther: neither lanes of the same owner, nor other owners.
func TestStuckLaneHoldsUpNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, dest := newStore(t), newDestination()
		stuck := segment.LaneID{Destination: "default", Shard: 7}
		dest.refuses = func(f *segment.Frame) bool { return f.ID.Lane == stuck }
		var all []*dead
		for i := range uint64(6) {
			d := newDead(t, b, id(i+1), lane0, stuck)
			d.put(lane0, 4, 100)
			d.put(stuck, 2, 100)
			d.name()
			d.retire()
			all = append(all, d)
		}
		n := run(options(b, "a", dest))
		defer n.kill()
		passUntil(t, 4*testStale, func() bool { frames, _ := dest.taken(); return frames == 24 }) // two at a time
		for _, d := range all {
			if _, body := d.seen(); !body.Lanes[stuck].Owes() {
				t.Errorf("owner %s owes nothing of the lane that is stuck", d.id)
			}
		}
	})
}

// TestUnknownDestinationStays: what nobody here knows the destination of is reported, claimed by no one, and left for a node that
// does; what else the owner owes is drained.
func TestUnknownDestinationStays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, dest := newStore(t), newDestination()
		other := segment.LaneID{Destination: "other"}
		d := newDead(t, b, id(1), lane0, other)
		d.put(lane0, 4, 100)
		d.put(other, 3, 100)
		d.name()
		d.retire()
		n, m := run(options(b, "a", dest)), run(options(b, "b", dest))
		defer n.kill()
		defer m.kill()
		passUntil(t, testScan, func() bool { s, _ := d.seen(); return s.State == owner.Adopted && s.Holder == "" })
		pass(2 * testScan)
		b.Forget()
		pass(30 * time.Minute)
		calls := b.Forget()
		if puts, lists := count(calls, "put owners/"), count(calls, "list "+objstore.OwnerPrefix(d.id.String())); puts > 0 || lists > 2 {
			t.Errorf("in half an hour that changed nothing: %d writes of the register, %d listings of the owner", puts, lists)
		}
		if frames, _ := dest.taken(); frames != 4 {
			t.Errorf("%d frames delivered, want the 4 for a known destination", frames)
		}
		if u := n.Stats().Unknown[d.id.String()]; !slices.Equal(u, []string{"other"}) {
			t.Errorf("reported as unknown: %v", u)
		}
		o := options(b, "c", dest)
		o.Knows = func(string) bool { return true }
		k := run(o)
		defer k.kill()
		passUntil(t, 2*testScan, func() bool { return d.state() == owner.Drained })
		d.wantDrained()
	})
}

// TestOwnIDIsNotAdopted: a process never adopts the id that it uses, whatever its register looks like.
func TestOwnIDIsNotAdopted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, dest := newStore(t), newDestination()
		d := newDead(t, b, id(1), lane0)
		d.put(lane0, 4, 100)
		d.name()
		o := options(b, "a", dest)
		o.Own = func(id string) bool { return id == d.id.String() }
		n := run(o)
		defer n.kill()
		pass(5 * testStale)
		if s, _ := d.seen(); s.State != owner.Live || s.Epoch != 1 {
			t.Errorf("own register: %s", &s)
		}
	})
}

// TestNothingIsWrittenToAWeakBucket: where preconditions are not honoured, nothing is adopted and nothing is scanned.
func TestNothingIsWrittenToAWeakBucket(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, dest := newStore(t), newDestination()
		d := gone(t, b, id(1), lane0, 1, 4)
		o := options(b, "a", dest)
		o.Probe = func(context.Context) (objstore.ProbeResult, error) {
			return objstore.ProbeResult{Found: "overwritten"}, nil
		}
		b.Forget()
		n := run(o)
		defer n.kill()
		pass(5 * testStale)
		if calls := b.Forget(); count(calls, "put ")+count(calls, "delete ") > 0 || d.state() != owner.Retired {
			t.Errorf("calls %v", calls)
		}
		if n.Stats().Refused == "" {
			t.Error("it does not say that adoption is refused")
		}
		if _, err := recovery.New(o).Pass(context.Background()); !errors.Is(err, objstore.ErrUnsupported) {
			t.Errorf("pass: %v", err)
		}
	})
}

// TestUnknownOutcomeOfAClaimIsTakenUp: a claim whose answer was lost, and which is in force, is worked on.
func TestUnknownOutcomeOfAClaimIsTakenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, dest := newStore(t), newDestination()
		d := gone(t, b, id(1), lane0, 2, 4)
		o := options(b, "a", dest)
		reg := lease.New(lease.Options{Bucket: b, Key: objstore.OwnerKey{Owner: d.id.String()}.String(), Holder: o.Holder, StaleAfter: testStale})
		s, _ := d.seen()
		if _, err := reg.Acquire(context.Background(), s, owner.Adopt()); err != nil { // by this process, which never heard of it
			t.Fatal(err)
		}
		n := run(o)
		defer n.kill()
		passUntil(t, testScan, func() bool { return d.state() == owner.Drained })
		d.wantDrained()
	})
}
