package shipper_test

import (
	"context"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"ingest-agent/objstore"
	"ingest-agent/objstore/objtest"
	"ingest-agent/recovery/owner"
	"ingest-agent/segment"
	"ingest-agent/shipper"
)

// TestShipsWhatIsOld: what is not exported within shipper.after is shipped, with all that is durable behind it, in the order
// note, register, object, commit; the commits beat; what is exported goes after a commit; then the register rests, and nothing
// is asked any more.
func TestShipsWhatIsOld(t *testing.T) {
	bubble(t, func(t *testing.T, s *store, n *node) {
		n.start()
		n.add(laneA, "1", "2")
		pass(testAfter - time.Second)
		n.add(laneA, "3")
		if calls := s.Forget(); len(calls) > 0 {
			t.Errorf("calls before shipper.after: %q", calls)
		}
		pass(2 * time.Second)
		key := "segments/" + n.id.String() + "/default.0/00000000000000000001-0000000001-0000000003.seg"
		register := "owners/" + n.id.String() + ".json"
		if calls, want := s.Forget(), []string{"put " + register, "put " + key, "put " + register}; !slices.Equal(calls, want) {
			t.Errorf("calls %q, want %q", calls, want)
		}
		seen, body := s.register(t, n.id)
		l := body.Lanes[laneA]
		if seen.State != owner.Live || l.Shipped != (segment.Position{Seq: 1, Entry: 4}) || l.Owed != (segment.Counts{30}) || len(body.Lanes) != 1 {
			t.Errorf("register %s: %+v", &seen, l)
		}
		pass(time.Minute)
		if calls := s.Forget(); len(calls) != 6 {
			t.Errorf("a minute of owing makes calls %q, want 6 beats", calls)
		}
		n.mustDrain(laneA, 1, "1")
		pass(testStale / 6)
		if _, body := s.register(t, n.id); body.Lanes[laneA].Exported != (segment.Position{Seq: 1, Entry: 2}) || body.Lanes[laneA].Owed != (segment.Counts{20}) {
			t.Errorf("a beat does not say what is exported: %+v", body.Lanes[laneA])
		}
		n.mustDrain(laneA, 0, "2", "3")
		s.Forget()
		pass(testStale)
		if calls := s.Forget(); len(with(calls, "delete")) != 1 || calls[len(calls)-1] != "put "+register || calls[len(calls)-2] != "list segments/"+n.id.String()+"/" {
			t.Errorf("calls to rest: %q", calls)
		}
		wantState(t, s, n.id, owner.Idle, false)
		if keys := s.keys(t, "segments/"); len(keys) > 0 {
			t.Errorf("left: %q", keys)
		}
		pass(time.Hour)
		if calls := s.Forget(); len(calls) > 0 {
			t.Errorf("an idle owner makes calls %q", calls)
		}
		n.add(laneA, "4")
		pass(2 * testAfter)
		if seen, _ := s.register(t, n.id); seen.State != owner.Live || seen.Epoch != 2 {
			t.Errorf("after more to ship: %s", &seen)
		}
		if err := n.stop(time.Minute); err != nil {
			t.Error(err)
		}
	})
}

// TestDeliveredIsNeverShipped: an hour of a healthy node makes no request at all.
func TestDeliveredIsNeverShipped(t *testing.T) {
	bubble(t, func(t *testing.T, s *store, n *node) {
		n.start()
		for range 720 {
			n.add(laneA, "a")
			n.add(laneB, "b")
			pass(testAfter - 2*time.Second)
			n.mustDrain(laneA, 0, "a")
			n.mustDrain(laneB, 0, "b")
			pass(2 * time.Second)
		}
		if err := n.stop(time.Minute); err != nil {
			t.Error(err)
		}
		if calls := s.Forget(); len(calls) > 0 {
			t.Errorf("%d calls of a node that owes nothing: %q", len(calls), calls[:min(10, len(calls))])
		}
	})
}

// TestCleanDrainUploadsNothing: a stop after everything was delivered makes no request, also where the last segment is sealed
// by it; and one of a node that has shipped leaves no object, and an idle register.
func TestCleanDrainUploadsNothing(t *testing.T) {
	bubble(t, func(t *testing.T, s *store, n *node) {
		n.start()
		n.add(laneA, "1")
		n.mustDrain(laneA, 0, "1")
		n.lanes[laneA].Seal()
		if err := n.stop(time.Minute); err != nil {
			t.Error(err)
		}
		if calls := s.Forget(); len(calls) > 0 {
			t.Errorf("calls %q", calls)
		}
		n.start()
		n.add(laneA, "2")
		pass(2 * testAfter)
		n.mustDrain(laneA, 0, "2")
		n.lanes[laneA].Seal()
		s.Forget()
		if err := n.stop(time.Minute); err != nil {
			t.Error(err)
		}
		if puts := with(s.Forget(), "put segments/"); len(puts) > 0 {
			t.Errorf("a clean drain uploads %q", puts)
		}
		if keys := s.keys(t, "segments/"); len(keys) > 0 {
			t.Errorf("a clean drain leaves %q", keys)
		}
		wantState(t, s, n.id, owner.Idle, false)
	})
}

// TestCase82StopShipsWhatIsLeft: a stop ships what is not exported, whatever shipper.after says, and retires the register, at
// once. The marker stays: whoever scans finds it.
// TestUploadsAreJoinedBeforeTheOwnerRetires: an upload that is on its way when the time to ship is over has ended before the
// register says that nothing more comes.
// TestAFailedStopKeepsTheMarker: whatever fails, the register is never deleted or empty, and says what is owed.
// TestStopEndsWithItsTime: a bucket that does not answer does not hold up a stop.
// TestUnknownOutcomesArePutAgain: the same key with the same bytes, and one that is there already is settled by its bytes.
func TestUnknownOutcomesArePutAgain(t *testing.T) {
	bubble(t, func(t *testing.T, s *store, n *node) {
		n.start()
		n.add(laneA, "1", "2")
		lost := 2
		s.Fail(func(_ context.Context, op objstore.Op, key string) error {
			if op == objstore.OpPut && strings.HasPrefix(key, "segments/") && lost > 0 {
				lost--
				n.add(laneA, "more")
				return objtest.ErrAnswerLost
			}
			return nil
		})
		pass(2 * testAfter)
		calls := with(s.Forget(), "put segments/")
		if len(calls) < 3 || calls[0] != calls[1] || calls[1] == calls[2] {
			t.Errorf("puts %q", calls)
		}
		_, body := s.register(t, n.id)
		if l := body.Lanes[laneA]; l.Shipped.Before(segment.Position{Seq: 1, Entry: 3}) {
			t.Errorf("shipped %+v", l)
		}
		if st := n.ship.Stats(); st.Down || st.LastError != "" {
			t.Errorf("stats %+v", st)
		}
		n.crash()
	})
}

// TestRetriesNeverGiveUp: a bucket that fails for a day is asked at most every retry_max_interval or so, and then gets all.
func TestRetriesNeverGiveUp(t *testing.T) {
	for _, kind := range []error{objstore.ErrUnknown, objstore.ErrDenied} {
		t.Run(objstore.Outcome(kind), func(t *testing.T) {
			bubble(t, func(t *testing.T, s *store, n *node) {
				n.start()
				n.add(laneA, "1")
				s.Fail(func(context.Context, objstore.Op, string) error { return kind })
				pass(24 * time.Hour)
				if calls := len(s.Forget()); calls < 1000 || calls > 24*3600 {
					t.Errorf("%d calls in a day", calls)
				}
				if st := n.ship.Stats(); !st.Down || st.LastError == "" || st.Lag < 23*time.Hour {
					t.Errorf("stats %+v", st)
				}
				s.Fail(nil)
				pass(testRetry + time.Second)
				wantState(t, s, n.id, owner.Live, true)
				n.crash()
			})
		})
	}
}

// TestRegisterComesBeforeObjects: no object is put while the register is not confirmed, nor the note written.
func TestRegisterComesBeforeObjects(t *testing.T) {
	bubble(t, func(t *testing.T, s *store, n *node) {
		n.start()
		s.Fail(func(_ context.Context, op objstore.Op, key string) error {
			if op == objstore.OpPut && strings.HasPrefix(key, "owners/") {
				if _, err := n.fs.OpenFile(notePath, 0, 0); err != nil {
					t.Error("register before the note")
				}
				return objstore.ErrUnknown
			}
			return nil
		})
		n.add(laneA, "1")
		pass(time.Minute)
		if puts := with(s.Forget(), "put segments/"); len(puts) > 0 {
			t.Errorf("puts %q", puts)
		}
		s.Fail(nil)
		pass(time.Minute)
		wantState(t, s, n.id, owner.Live, true)

		// A lane that the register does not name yet is named before its first object.
		n.add(laneB, "2")
		s.Fail(func(_ context.Context, op objstore.Op, key string) error {
			if op == objstore.OpPut && strings.Contains(key, "/default.1/") {
				if _, body := s.register(t, n.id); body.Lanes[laneB] == nil {
					t.Error("object of a lane that the register does not name")
				}
			}
			return nil
		})
		pass(2 * testAfter)
		if _, body := s.register(t, n.id); !body.Lanes[laneB].Owes() {
			t.Error("not shipped")
		}
		n.crash()
	})
}

// TestMemoryIsBounded: no more than SideBySide objects are put, or kept to be put again, whatever the number of lanes.
func TestMemoryIsBounded(t *testing.T) {
	bubble(t, func(t *testing.T, s *store, n *node) {
		n.start(func(o *shipper.Options) { o.SideBySide = 2 })
		var at segment.LaneID
		for i := range 10 {
			at = segment.LaneID{Destination: "many", Shard: i}
			n.addLane(at)
			n.add(at, "x")
		}
		keys, mu := map[string]bool{}, sync.Mutex{}
		s.Fail(func(_ context.Context, op objstore.Op, key string) error {
			if op == objstore.OpPut && strings.HasPrefix(key, "segments/") {
				mu.Lock()
				keys[key] = true
				mu.Unlock()
				return objstore.ErrUnknown
			}
			return nil
		})
		pass(10 * time.Minute)
		mu.Lock()
		defer mu.Unlock()
		if len(keys) != 2 {
			t.Errorf("%d objects are tried: %v", len(keys), keys)
		}
		s.Fail(nil)
		pass(time.Minute)
		if keys := s.keys(t, "segments/"); len(keys) != 10 {
			t.Errorf("%d objects", len(keys))
		}
		n.crash()
	})
}

// TestObjectsFollowEachOther: a lane's object follows the last without overlap or hole, however it is cut.
func TestObjectsFollowEachOther(t *testing.T) {
	bubble(t, func(t *testing.T, s *store, n *node) {
		n.start(func(o *shipper.Options) { o.ObjectBytes = 30 })
		for range 23 {
			n.add(laneA, "ten bytes.")
		}
		pass(2 * testAfter)
		n.add(laneA, "ten bytes.")
		pass(2 * testAfter)
		at := segment.Start
		for _, k := range s.keys(t, "segments/") {
			key, err := objstore.ParseKey(k)
			if err != nil {
				t.Fatal(err)
			}
			sk := key.(objstore.SegmentKey)
			first := segment.Position{Seq: segment.Seq(sk.Seq), Entry: segment.Entry(sk.First)}
			if first != at && first != at.NextSegment() {
				t.Errorf("%s does not follow %s", k, at)
			}
			at = segment.Position{Seq: first.Seq, Entry: segment.Entry(sk.Last) + 1}
		}
		if _, body := s.register(t, n.id); body.Lanes[laneA].Shipped != at.NextSegment() {
			t.Errorf("shipped %s, objects to %s", body.Lanes[laneA].Shipped, at)
		}
		n.crash()
	})
}

// TestWait is ack: bucket: it returns after the commit, which all that wait share, or when the frame is exported.
// TestOtherBytesAreNoEcho: an object that is there with other bytes is not ours, and is never named.
func TestOtherBytesAreNoEcho(t *testing.T) {
	bubble(t, func(t *testing.T, s *store, n *node) {
		n.start()
		n.add(laneA, "1")
		key := objstore.SegmentKey{Owner: n.id.String(), Lane: laneA.String(), Seq: 1, First: 1, Last: 1}.String()
		if _, err := s.Bucket.Put(t.Context(), key, strings.NewReader("foreign"), objstore.IfAbsent()); err != nil {
			t.Fatal(err)
		}
		pass(testStale)
		wantState(t, s, n.id, owner.Live, false)
		if st := n.ship.Stats(); !strings.Contains(st.LastError, "other bytes") {
			t.Errorf("stats %+v", st)
		}
		n.crash()
	})
}

// TestAnUnknownAcquireIsSettled: a register that was begun, or taken up again, without our hearing of it does not stay live
// when nothing is due any more; and a stop settles it too.
func TestAnUnknownAcquireIsSettled(t *testing.T) {
	for _, stop := range []bool{false, true} {
		bubble(t, func(t *testing.T, s *store, n *node) {
			n.start()
			n.add(laneA, "1")
			s.Fail(func(_ context.Context, op objstore.Op, key string) error {
				if strings.HasPrefix(key, "owners/") {
					return map[bool]error{true: objtest.ErrAnswerLost, false: objstore.ErrUnknown}[op == objstore.OpPut]
				}
				return nil
			})
			pass(2 * testAfter)
			n.mustDrain(laneA, 0, "1")
			pass(10 * time.Minute)
			wantState(t, s, n.id, owner.Live, false)
			s.Fail(nil)
			if stop {
				if err := n.stop(20 * time.Second); err != nil {
					t.Error(err)
				}
			} else {
				pass(2 * testStale)
			}
			wantState(t, s, n.id, owner.Idle, false)
			if puts := with(s.Forget(), "put segments/"); len(puts) > 0 {
				t.Errorf("puts of what is exported: %q", puts)
			}
			if !stop {
				n.crash()
			}
		})
	}
}

// TestWaitIsForTheCommit: an object that no register names does not count.
// TestExportedMeanwhileIsNotPutAgain: an object that could not be put is given up when the drain has passed it, and one that
// has landed all the same is swept before the register rests.
func TestExportedMeanwhileIsNotPutAgain(t *testing.T) {
	bubble(t, func(t *testing.T, s *store, n *node) {
		n.start()
		n.add(laneA, "1")
		pass(2 * testAfter)
		var key atomic.Value
		s.Fail(func(_ context.Context, op objstore.Op, k string) error {
			if op == objstore.OpPut && strings.HasPrefix(k, "segments/") {
				key.Store(k)
				return objstore.ErrUnknown
			}
			return nil
		})
		n.add(laneA, "2")
		pass(2 * testAfter)
		n.mustDrain(laneA, 0, "1", "2")
		pass(0)
		s.Fail(nil)
		if _, err := s.Bucket.Put(t.Context(), key.Load().(string), strings.NewReader("late"), objstore.IfAbsent()); err != nil {
			t.Fatal(err)
		}
		s.Fail(func(_ context.Context, op objstore.Op, k string) error {
			if op == objstore.OpDelete && k == key.Load() {
				return objstore.ErrUnknown
			}
			return nil
		})
		s.Forget()
		pass(2 * testStale)
		wantState(t, s, n.id, owner.Live, false) // it does not rest while something is left
		s.Fail(nil)
		pass(2 * testStale)
		if puts := with(s.Forget(), "put segments/"); len(puts) > 0 {
			t.Errorf("puts of what is exported: %q", puts)
		}
		if keys := s.keys(t, "segments/"); len(keys) > 0 {
			t.Errorf("left: %q", keys)
		}
		wantState(t, s, n.id, owner.Idle, false)
		n.crash()
	})
}

// TestWaitWhileTheBucketIsAway: who waits is told, and everybody else at once, until the bucket is back.
