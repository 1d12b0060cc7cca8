package recovery_test

import (
	"context"
	"fmt"
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

// idle is an owner that owes nothing, as it lies between two outages.
func idle(t *testing.T, b objstore.Bucket, id segment.OwnerID) *dead {
	t.Helper()
	d := newDead(t, b, id, lane0)
	d.rest(1, 0)
	return d
}

// rest makes the owner idle, with everything before a segment exported.
func (d *dead) rest(seq segment.Seq, frames uint64) {
	d.t.Helper()
	p := map[segment.LaneID]owner.Progress{lane0: {Exported: at(seq, 1), Passed: segment.Logs.Of(frames * testRecords)}}
	if err := d.lease.Release(context.Background(), owner.Rest(p)); err != nil {
		d.t.Fatal(err)
	}
}

// TestHealthyNodeReadsTheListOnly: a node beside the one that scans asks the bucket for nothing but the list, once in each
// interval.
func TestHealthyNodeReadsTheListOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, dest := newStore(t), newDestination()
		for i := range uint64(20) {
			idle(t, b, id(i+1))
		}
		scans := run(options(b, "a", dest))
		defer scans.kill()
		pass(testScan)
		mine := view(b.Bucket)
		n := run(options(mine, "b", dest))
		defer n.kill()
		pass(time.Hour)
		calls := mine.Forget()
		if reads := count(calls, "get "+scanKey); reads != len(calls) || reads < 120 || reads > 140 {
			t.Errorf("%d calls in an hour, %d of them for the list", len(calls), reads)
		}
		if !scans.Stats().Scanning || n.Stats().Scanning {
			t.Error("the second took the scan")
		}
	})
}

// TestScanReadsWhatHasChanged: a register is read when its version is another, and not more than 16 at a time; the list is
// written when it changes.
func TestScanReadsWhatHasChanged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, dest := newStore(t), newDestination()
		for i := range uint64(1200) { // two pages
			idle(t, b.Bucket, id(i+1))
		}
		lag := newDead(t, b.Bucket, id(2000), lane0)
		b.Fail(func(ctx context.Context, op objstore.Op, key string) error {
			if op == objstore.OpGet && strings.HasPrefix(key, objstore.OwnersPrefix) {
				return delay(ctx, 50*time.Millisecond)
			}
			return nil
		})
		n := run(options(b, "a", dest))
		defer n.kill()
		pass(testScan / 2)
		calls := b.Forget()
		if reads, lists := count(calls, "get owners/"), count(calls, "list "); reads != 1201 || lists > 5 {
			t.Errorf("the first scan read %d registers with %d pages", reads, lists)
		}
		if most := b.Most(objstore.OpGet, "owners"); most != 16 {
			t.Errorf("%d registers at a time", most)
		}
		before := n.Stats().Scans
		for range 20 {
			if err := lag.lease.Renew(context.Background(), nil); err != nil {
				t.Fatal(err)
			}
			pass(testScan)
		}
		scans := int(n.Stats().Scans - before)
		calls = b.Forget()
		if reads := count(calls, "get owners/"); reads < 19 || reads > 21 {
			t.Errorf("%d reads of registers in %d scans, of which one beats", reads, scans)
		}
		if lists := count(calls, "list "); lists != 3*scans {
			t.Errorf("%d pages in %d scans, want two of owners and one of segments each", lists, scans)
		}
		if beats := count(calls, "put "); beats > 65 { // each sixth of StaleAfter
			t.Errorf("%d writes in ten minutes", beats)
		}
	})
}

// TestScanIsTakenOver: when the node that scans is gone, another does, and finds who has died meanwhile; when it stops, at the
// next look.
func TestScanIsTakenOver(t *testing.T) {
	for _, stops := range []bool{false, true} {
		t.Run(fmt.Sprintf("stops=%v", stops), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b, dest := newStore(t), newDestination()
				first := run(options(b, "a", dest))
				pass(testScan)
				second := run(options(b, "b", dest))
				defer second.kill()
				pass(testScan)
				most := testStale + 2*testScan
				if stops {
					most = testScan
					if err := first.Stop(t.Context()); err != nil {
						t.Fatal(err)
					}
				} else {
					first.kill()
				}
				d := gone(t, b, id(1), lane0, 1, 1)
				passUntil(t, most, func() bool { return second.Stats().Scanning })
				passUntil(t, testScan, func() bool { return d.state() == owner.Drained })
			})
		})
	}
}

// TestWhoDoesNotSeeGivesTheScanAway: a node that beats and cannot list is no scanner.
func TestWhoDoesNotSeeGivesTheScanAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, dest := newStore(t), newDestination()
		blind := view(b.Bucket)
		blind.Fail(func(_ context.Context, op objstore.Op, _ string) error {
			if op == objstore.OpList {
				return objstore.ErrDenied
			}
			return nil
		})
		first := run(options(blind, "a", dest))
		defer first.kill()
		pass(testScan / 2)
		if !first.Stats().Scanning {
			t.Fatal("it does not scan")
		}
		second := run(options(b, "b", dest))
		defer second.kill()
		d := gone(t, b, id(1), lane0, 1, 1)
		passUntil(t, 6*testScan, func() bool { return d.state() == owner.Drained })
	})
}

// TestListIsBoundedAndComesRound: more owners than the list takes, of which most cannot be drained here, keep none from its turn.
func TestListIsBoundedAndComesRound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, dest := newStore(t), newDestination()
		other := segment.LaneID{Destination: "other"}
		for i := range uint64(1100) {
			gone(t, b.Bucket, id(i+1), other, 1, 1)
		}
		last := gone(t, b, id(5000), lane0, 1, 1)
		o := options(b, "a", newDestination())
		o.Knows = func(string) bool { return false }
		n := run(o)
		defer n.kill()
		pass(testScan / 2)
		m := run(options(view(b.Bucket), "b", dest))
		defer m.kill()
		passUntil(t, 4*testScan, func() bool { return last.state() == owner.Drained })
		s, err := lease.New(lease.Options{Bucket: b.Bucket, Key: scanKey}).Observe(t.Context(), lease.Seen{})
		if err != nil || len(s.Body) > 64<<10 {
			t.Errorf("the list has %d bytes, %v", len(s.Body), err)
		}
	})
}

// TestSweepOfLateObjects: what comes late below what is exported is deleted, what is not exported is adopted and delivered, and
// what is the owner's own is deleted.
func TestSweepOfLateObjects(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, dest := newStore(t), newDestination()
		below := newDead(t, b, id(1), lane0) // idle: one object came after its frames were exported
		below.put(lane0, 4, 100)
		below.name()
		below.rest(2, 4)
		beyond := newDead(t, b, id(2), lane0) // idle: one is not exported
		beyond.rest(1, 0)
		beyond.put(lane0, 3, 100)
		drained := gone(t, b, id(3), lane0, 1, 2)
		signedOff := gone(t, b, id(4), lane0, 1, 2)
		n := run(options(b, "a", dest))
		defer n.kill()
		passUntil(t, testScan, func() bool { return drained.state() == owner.Drained && signedOff.state() == owner.Drained })
		signedOff.change(lease.Amend, owner.SignOff())
		drained.put(lane0, 5, 100)
		signedOff.put(lane0, 7, 100)
		passUntil(t, testStale+3*testScan, func() bool { return len(keys(t, b.Bucket, objstore.SegmentsPrefix)) == 0 })
		passUntil(t, testScan, func() bool { return beyond.state() == owner.Drained && drained.state() == owner.Drained })
		if below.state() != owner.Idle {
			t.Errorf("the owner whose late object was exported is %s", below.state())
		}
		if frames, twice := dest.taken(); frames != 3+2+2+5 || twice > 0 {
			t.Errorf("%d frames delivered, %d twice; want 12, 0", frames, twice)
		}
		if n.Stats().Swept != 2 {
			t.Errorf("%d objects swept, want 2", n.Stats().Swept)
		}
	})
}

// TestBurial: a register that owes nothing goes when the retention is over and nothing is there, and not before.
func TestBurial(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, dest := newStore(t), newDestination()
		idle(t, b, id(1))
		gone(t, b, id(2), lane0, 1, 2)
		half := idle(t, b, id(3)) // buried, and its deletion did not come through
		half.change(lease.Fence, owner.Bury())
		live := newDead(t, b, id(4), lane0)
		live.put(lane0, 1, 100)
		live.name()
		foreign := idle(t, b, id(5)) // what is below its prefix is none of ours
		if _, err := b.Put(t.Context(), objstore.OwnerPrefix(foreign.id.String())+"note", strings.NewReader("x"), objstore.Condition{}); err != nil {
			t.Fatal(err)
		}
		o := options(b, "a", dest)
		o.Own = func(id string) bool { return id == live.id.String() }
		o.Retention = 12 * time.Hour
		n := run(o)
		defer n.kill()
		pass(o.Retention - time.Hour)
		if left := keys(t, b, objstore.OwnersPrefix); len(left) != 4 {
			t.Errorf("before the retention is over: %v", left)
		}
		pass(2 * time.Hour)
		if left := keys(t, b, objstore.OwnersPrefix); len(left) != 1 || !strings.Contains(left[0], live.id.String()) {
			t.Errorf("after the retention: %v", left)
		}
		if left := keys(t, b, objstore.SegmentsPrefix); len(left) != 2 {
			t.Errorf("objects left: %v", left)
		}
	})
}

// TestOrphansStay: objects without a register are told of and stay.
func TestOrphansStay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, dest := newStore(t), newDestination()
		orphan := newDead(t, b, id(1), lane0)
		orphan.put(lane0, 1, 100)
		if err := b.Delete(t.Context(), objstore.OwnerKey{Owner: orphan.id.String()}.String()); err != nil {
			t.Fatal(err)
		}
		n := run(options(b, "a", dest))
		defer n.kill()
		pass(2 * time.Hour)
		if s := n.Stats().Orphans; len(s) != 1 || s[0] != orphan.id.String() || len(keys(t, b, objstore.SegmentsPrefix)) != 1 {
			t.Errorf("orphans %v", s)
		}
	})
}

// TestUnreadableRegisterIsLeftAlone: that of a later version of the program, and it is not asked for again and again.
func TestUnreadableRegisterIsLeftAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, dest := newStore(t), newDestination()
		key := objstore.OwnerKey{Owner: id(1).String()}.String()
		if _, err := b.Put(t.Context(), key, strings.NewReader(`{"format":2}`), objstore.Condition{}); err != nil {
			t.Fatal(err)
		}
		d := gone(t, b, id(2), lane0, 1, 1)
		n := run(options(b, "a", dest))
		defer n.kill()
		pass(10 * testScan)
		if reads := count(b.Forget(), "get "+key); reads != 1 {
			t.Errorf("%d reads of a register that nobody here can read", reads)
		}
		d.wantDrained()
	})
}

func TestPass(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, dest := newStore(t), newDestination()
		for i := range uint64(10) {
			gone(t, b, id(i+1), lane0, 3, 2)
		}
		beats := newDead(t, b, id(20), lane0)
		beats.put(lane0, 1, 100)
		beats.name()
		unknown := gone(t, b, id(21), segment.LaneID{Destination: "other"}, 1, 4)
		stuck := gone(t, b, id(22), lane0, 1, 1)
		dest.refuses = func(f *segment.Frame) bool { return f.ID.Owner == stuck.id }
		late := idle(t, b, id(23))
		late.put(lane0, 2, 100)
		pass(2 * testStale)
		if err := beats.lease.Renew(t.Context(), nil); err != nil {
			t.Fatal(err)
		}
		_, stop := beats.lease.Keep(t.Context(), nil)
		defer stop()
		o := options(b, "a", dest)
		o.ScanInterval = 0
		rep, err := recovery.New(o).Pass(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if frames, twice := dest.taken(); frames != 62 || twice > 0 || rep.Adoptions[recovery.Drained] != 11 {
			t.Errorf("%d frames, %d twice, adoptions %v", frames, twice, rep.Adoptions)
		}
		if len(rep.Left) != 2 || rep.Left[0].Owner != unknown.id.String() || rep.Left[0].Verdict.Kind != recovery.UnknownDestination ||
			rep.Left[0].Records.Sum() != 4*testRecords || rep.Left[1].Owner != stuck.id.String() || rep.Left[1].Outcome != recovery.Released {
			t.Errorf("left: %+v", rep.Left)
		}
		if beats.state() != owner.Live || unknown.state() != owner.Retired || stuck.holder() != "" {
			t.Errorf("states %s %s, %q", beats.state(), unknown.state(), stuck.holder())
		}
		for _, k := range keys(t, b, objstore.FleetPrefix) {
			t.Errorf("a pass leaves %s", k)
		}
	})
}

// TestPassEndsWithItsContext: what runs is given back.
func TestPassEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, dest := newStore(t), newDestination()
		d := gone(t, b, id(1), lane0, 3, 2)
		dest.set(true)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		if _, err := recovery.New(options(b, "a", dest)).Pass(ctx); err == nil {
			t.Error("no error")
		}
		if s, _ := d.seen(); s.State != owner.Adopted || s.Holder != "" {
			t.Errorf("left as %s", &s)
		}
	})
}

// TestPassOfOne looks at one owner only.
func TestPassOfOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, dest := newStore(t), newDestination()
		d, other := gone(t, b, id(1), lane0, 1, 1), gone(t, b, id(2), lane0, 1, 1)
		o := options(b, "a", dest)
		o.Only = d.id.String()
		rep, err := recovery.New(o).Pass(t.Context())
		if err != nil || d.state() != owner.Drained || other.state() != owner.Retired || rep.Owners != 1 {
			t.Errorf("%+v, %v; %s, %s", rep, err, d.state(), other.state())
		}
	})
}
