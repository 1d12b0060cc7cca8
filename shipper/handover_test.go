package shipper_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"ingest-agent/objstore"
	"ingest-agent/objstore/lease"
	"ingest-agent/objstore/objtest"
	"ingest-agent/recovery/owner"
	"ingest-agent/segment"
	"ingest-agent/segment/vfs"
	"ingest-agent/shipper"
)

func isHanded(n *node) bool {
	select {
	case <-n.ship.HandedOver():
		return true
	default:
		return false
	}
}

// TestStartHandsOver: what an earlier process of the disk has shipped is given up before anything is shipped under the new id,
// and left out by the drain; what it had not shipped is this process's. However it ended.
func TestStartHandsOver(t *testing.T) {
	for _, end := range []string{"crash", "stop", "stop of all"} {
		t.Run(end, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *store, n *node) {
				n.start()
				n.add(laneA, "1", "2", "3")
				pass(2 * testAfter)
				n.mustDrain(laneA, 1, "1")
				old, later := n.id, []string{"4", "5"}
				if end != "stop of all" {
					s.Fail(func(_ context.Context, op objstore.Op, key string) error {
						if op == objstore.OpPut && strings.HasPrefix(key, "segments/") {
							return objstore.ErrUnknown
						}
						return nil
					})
				} else {
					later = nil
				}
				n.add(laneA, "4", "5")
				if end == "crash" {
					n.crash()
				} else if err := n.stop(20 * time.Second); (err == nil) != (end == "stop of all") {
					t.Error(err)
				}
				s.Fail(nil)
				n.open()
				if held := n.ship.Held(); !slices.Equal(held, []segment.LaneID{laneA}) {
					t.Errorf("held: %v", held)
				}
				if isHanded(n) {
					t.Error("handed over before anything was asked")
				}
				if err := n.ship.Settle(); err != nil {
					t.Fatal(err)
				}
				n.add(laneA, "6")
				n.run()
				pass(time.Second)
				if !isHanded(n) {
					t.Fatal("not handed over")
				}
				seen, body := s.register(t, old)
				if seen.State != owner.Adopted || seen.Holder != "" || !body.SignedOff || !body.Owes() {
					t.Errorf("old register %s: %+v", &seen, body)
				}
				n.mustDrain(laneA, 0, append(later, "6")...)
				if err := n.stop(time.Minute); err != nil {
					t.Error(err)
				}
				if text, err := vfs.ReadFile(n.fs, notePath, 1<<20); err != nil || strings.Contains(string(text), old.String()) {
					t.Errorf("the note still names the old id: %s (%v)", text, err)
				}
			})
		})
	}
}

// TestNothingIsShippedBeforeTheHandOver: while the old register is out of reach, nothing is put under the new id, spilled
// frames are not fetched, and local delivery may go on.
func TestNothingIsShippedBeforeTheHandOver(t *testing.T) {
	bubble(t, func(t *testing.T, s *store, n *node) {
		n.start()
		n.add(laneA, "1")
		pass(2 * testAfter)
		old := n.id
		n.crash()
		s.Fail(func(_ context.Context, _ objstore.Op, key string) error {
			if strings.Contains(key, old.String()) {
				return objstore.ErrUnknown
			}
			return nil
		})
		n.start()
		n.add(laneB, "2")
		s.Forget()
		pass(time.Hour)
		if puts := with(s.Forget(), "put"); len(puts) > 0 || isHanded(n) {
			t.Errorf("before the hand-over: %q", puts)
		}
		if _, err := n.ship.Fetch(t.Context(), laneA, segment.Start, segment.Position{Seq: 2, Entry: 1}); err == nil {
			t.Error("fetched before the hand-over")
		}
		// Again, several starts later: what those appended is not the first one's.
		n.crash()
		n.start()
		at := n.add(laneA, "3")
		n.crash()
		s.Fail(nil)
		n.start()
		pass(time.Minute)
		if _, body := s.register(t, old); !body.SignedOff || at.Before(body.Lanes[laneA].End()) {
			t.Errorf("%+v", body.Lanes[laneA])
		}
		n.mustDrain(laneA, 0, "3")
		n.mustDrain(laneB, 0, "2")
		n.crash()
	})
}

// TestHandOverOfWhatIsGone: an old register that is absent, adopted, drained or signed off already.
func TestHandOverOfWhatIsGone(t *testing.T) {
	for _, how := range []string{"absent", "adopted", "drained", "signed off", "buried"} {
		t.Run(how, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *store, n *node) {
				n.start()
				n.add(laneA, "1", "2")
				pass(2 * testAfter)
				n.add(laneA, "3")
				old := n.id
				n.crash()
				want := []string{"3"}
				key := objstore.OwnerKey{Owner: old.String()}.String()
				all := owner.Export(map[segment.LaneID]owner.Progress{laneA: {Exported: segment.Position{Seq: 2, Entry: 1}}})
				switch how {
				case "absent":
					want = []string{"1", "2", "3"} // it does not say what was taken
					if err := s.Bucket.Delete(t.Context(), key); err != nil {
						t.Fatal(err)
					}
				case "adopted":
					s.adopt(t, old)
				case "drained":
					s.adopt(t, old, all, owner.Finish())
				case "signed off":
					s.adopt(t, old, owner.SignOff())
				case "buried":
					want = []string{"1", "2", "3"}
					s.adopt(t, old, all, owner.Finish())
					seen, _ := s.register(t, old)
					if _, err := s.registerOf(old, "").Change(t.Context(), seen, lease.Fence, owner.Bury()); err != nil {
						t.Fatal(err)
					}
				}
				n.start()
				pass(time.Second)
				if !isHanded(n) {
					t.Fatal("not handed over")
				}
				if seen, body := s.register(t, old); how != "absent" && how != "buried" && !body.SignedOff {
					t.Errorf("not signed off: %s", &seen)
				} else if how == "absent" && seen.Version != "" {
					t.Errorf("created again: %s", &seen)
				}
				n.mustDrain(laneA, 0, want...)
				n.crash()
			})
		})
	}
}

// TestAClonedDirectory: a copy of the disk hands over what the original goes on shipping. It does not call exported what it
// never held, and skips nothing that it appended itself.
func TestAClonedDirectory(t *testing.T) {
	for _, again := range []bool{false, true} {
		t.Run(map[bool]string{false: "one start", true: "two starts"}[again], func(t *testing.T) { cloned(t, again) })
	}
}

func cloned(t *testing.T, again bool) {
	t.Helper()
	bubble(t, func(t *testing.T, s *store, n *node) {
		var first []string
		n.start()
		n.add(laneA, "1", "2")
		pass(2 * testAfter)
		clone := newNode(t, s)
		clone.disks[laneA] = n.disks[laneA].Clone()
		text, err := vfs.ReadFile(n.fs, notePath, 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		if err := vfs.WriteFileAtomic(clone.fs, notePath, text, 0o644); err != nil {
			t.Fatal(err)
		}
		if again {
			// The copy's first start cannot reach the bucket. What it appends is not the old id's for all that.
			s.Fail(func(context.Context, objstore.Op, string) error { return objstore.ErrUnknown })
			clone.start()
			clone.add(laneA, "c0")
			clone.crash()
			s.Fail(nil)
			first = []string{"c0"}
		}
		n.add(laneA, "3", "4", "5", "6", "7") // in the same segment, and in ones that the copy uses for its own
		pass(2 * testAfter)
		old := n.id
		if !again { // it cannot hand over before boot_wait is over
			s.Fail(func(context.Context, objstore.Op, string) error { return objstore.ErrUnknown })
		}
		clone.start()
		clone.add(laneA, "c1", "c2")
		if again {
			pass(time.Second)
			clone.mustDrain(laneA, 0, append(first, "c1", "c2")...)
		} else {
			clone.mustDrain(laneA, 0, "1", "2", "c1", "c2")
			s.Fail(nil)
			pass(time.Second)
		}
		_, body := s.register(t, old)
		if l := body.Lanes[laneA]; (segment.Position{Seq: 1, Entry: 3}).Before(l.Exported) || !again && l.End() != (segment.Position{Seq: 2, Entry: 4}) {
			t.Errorf("the copy calls exported what it never held: %+v", l)
		}
		clone.add(laneA, "c3")
		clone.mustDrain(laneA, 0, "c3")

		// The original finds out, and goes on under another id with what it had not shipped.
		n.add(laneA, "8")
		pass(testStale)
		if st := n.ship.Stats(); st.Owner == old || st.Fenced != 1 {
			t.Errorf("stats %+v", st)
		}
		n.mustDrain(laneA, 0, "8")
		clone.crash()
		n.crash()
	})
}

// TestCase73Fenced: a process that was paused for longer than the lease is adopted meanwhile, and drained. When it goes on it
// writes nothing under the old id and deletes nothing; what was taken it leaves out, the rest it delivers and ships under
// a new id. The same after a restart.
func TestCase73Fenced(t *testing.T) {
	for _, restart := range []bool{false, true} {
		t.Run(map[bool]string{false: "goes on", true: "restarts"}[restart], func(t *testing.T) {
			bubble(t, func(t *testing.T, s *store, n *node) {
				n.start()
				n.add(laneA, "1", "2")
				pass(2 * testAfter)
				old := n.id
				var paused atomic.Bool
				paused.Store(true)
				resume := make(chan struct{})
				s.Fail(func(ctx context.Context, _ objstore.Op, _ string) error {
					if !paused.Load() {
						return nil
					}
					select {
					case <-resume:
						return objstore.ErrUnknown
					case <-ctx.Done():
						return objstore.ErrUnknown
					}
				})
				n.add(laneA, "3", "4", "5")
				pass(2 * testStale)
				adopter := s.adopt(t, old)
				if err := adopter.Commit(t.Context(), owner.Export(map[segment.LaneID]owner.Progress{laneA: {Exported: segment.Position{Seq: 1, Entry: 2}}})); err != nil {
					t.Fatal(err)
				}
				before := s.keys(t, "segments/"+old.String())
				s.Forget()
				if restart {
					n.crash()
				}
				paused.Store(false)
				close(resume)
				if restart {
					n.start()
				}
				n.ship.Wake()
				pass(testStale)
				for _, c := range s.Forget() {
					if strings.HasPrefix(c, "put segments/"+old.String()) || strings.HasPrefix(c, "delete segments/"+old.String()) {
						t.Errorf("a fenced owner does %q", c)
					}
				}
				if after := s.keys(t, "segments/"+old.String()); !slices.Equal(before, after) {
					t.Errorf("objects were %q, are %q", before, after)
				}
				_, body := s.register(t, old)
				if !body.SignedOff || body.Lanes[laneA].End() != (segment.Position{Seq: 1, Entry: 3}) {
					t.Errorf("not signed off: %+v", body)
				}
				st := n.ship.Stats()
				if st.Owner == old || !restart && st.Fenced != 1 {
					t.Errorf("stats %+v", st)
				}
				wantState(t, s, st.Owner, owner.Live, true)
				if keys := s.keys(t, "segments/"+st.Owner.String()); len(keys) == 0 || !strings.Contains(keys[0], "-0000000003-") {
					t.Errorf("under the new id: %q", keys)
				}
				n.mustDrain(laneA, 0, "3", "4", "5")
				if err := n.stop(time.Minute); err != nil {
					t.Error(err)
				}
				wantState(t, s, st.Owner, owner.Idle, false)
			})
		})
	}
}

// TestSignOffIsRepeatableFault: whatever fails in it, a call whose answer is lost or a file operation, it is done in the end,
// once.
func TestSignOffIsRepeatableFault(t *testing.T) {
	for fail := range int64(12) {
		bubble(t, func(t *testing.T, s *store, n *node) {
			var broken atomic.Bool
			var steps atomic.Int64
			next := func() bool { return broken.Load() && steps.Add(1) == fail+1 }
			n.start(func(o *shipper.Options) {
				o.FS = vfs.NewFault(n.fs, func(vfs.Op) error {
					if next() {
						return errors.New("disk fails")
					}
					return nil
				})
			})
			n.add(laneA, "1")
			pass(2 * testAfter)
			old := n.id
			s.adopt(t, old)
			broken.Store(true)
			s.Fail(func(context.Context, objstore.Op, string) error {
				if next() {
					return objtest.ErrAnswerLost
				}
				return nil
			})
			n.add(laneA, "2")
			pass(4 * testStale)
			if st := n.ship.Stats(); st.Owner == old || st.Fenced != 1 || steps.Load() <= fail {
				t.Errorf("fault %d of %d: %+v", fail, steps.Load(), st)
			}
			n.mustDrain(laneA, 0, "2")
			n.crash()
		})
	}
}

// TestAnAbsentRegisterIsNotCreatedAgain: an owner whose register was buried goes on under a new id, with all that it has.
func TestAnAbsentRegisterIsNotCreatedAgain(t *testing.T) {
	bubble(t, func(t *testing.T, s *store, n *node) {
		n.start()
		n.add(laneA, "1")
		pass(2 * testAfter)
		n.mustDrain(laneA, 0, "1")
		pass(testStale)
		old := n.id
		wantState(t, s, old, owner.Idle, false)
		if err := s.Bucket.Delete(t.Context(), objstore.OwnerKey{Owner: old.String()}.String()); err != nil {
			t.Fatal(err)
		}
		n.add(laneA, "2")
		pass(testStale)
		if seen, _ := s.register(t, old); seen.Version != "" {
			t.Errorf("created again: %s", &seen)
		}
		st := n.ship.Stats()
		wantState(t, s, st.Owner, owner.Live, true)
		n.mustDrain(laneA, 0, "2")
		n.crash()
	})
}

// TestCase86StopsActingWhenItCannotRenew: cut off from the bucket, the owner neither puts nor deletes from half of stale_after
// on, and goes on taking and delivering; when it is back in time, it goes on under the same id.
// TestNothingIsPutUnderALeaseThatIsOver: an upload that hangs ends with the lease, which others may take from then on.
// TestCase76ClockSkew: a store that refuses this host's clock for a minute: nothing is lost or given up, Stats tell, and it
// recovers.
// TestNote: a damaged note is set aside and costs duplicates only; one of a later version is left alone, and refused.
// TestSkipIsKept: what is handed over stays so over crashes, until a saved cursor is behind it; then the note forgets it.
// TestAStoreWithoutPreconditions is shipped to, as a copy: nobody takes it over, so the disk goes on delivering what it holds,
// nothing is spilled, and ack: bucket is refused.
func TestAStoreWithoutPreconditions(t *testing.T) {
	bubble(t, func(t *testing.T, s *store, n *node) {
		weak := func(o *shipper.Options) {
			o.Probe = func(context.Context) (objstore.ProbeResult, error) {
				return objstore.ProbeResult{Found: "it refuses them"}, nil
			}
			o.Bucket = refusing{s}
			o.Pressure = func() float64 { return 1 }
		}
		n.start(weak)
		n.add(laneA, "1", "2", "3", "4", "5", "6", "7", "8", "9")
		pass(2 * testAfter)
		old := n.id
		wantState(t, s, old, owner.Live, true)
		if err := n.ship.Wait(t.Context(), laneA, segment.Start); !errors.Is(err, objstore.ErrUnsupported) {
			t.Errorf("ack: bucket: %v", err)
		}
		if err := n.ship.Ready(); !errors.Is(err, objstore.ErrUnsupported) {
			t.Errorf("ready: %v", err)
		}
		if st := n.ship.Stats(); st.SpilledBytes > 0 {
			t.Errorf("spilled %d bytes", st.SpilledBytes)
		}
		n.crash()
		n.start(weak)
		n.add(laneA, "10")
		pass(2 * testAfter)
		if !isHanded(n) {
			t.Error("drains are held")
		}
		if seen, _ := s.register(t, old); seen.State != owner.Live {
			t.Errorf("handed over to nobody: %s", &seen)
		}
		n.mustDrain(laneA, 0, "1", "2", "3", "4", "5", "6", "7", "8", "9", "10")
		pass(2 * testStale)
		if keys := s.keys(t, "segments/"); len(keys) > 0 {
			t.Errorf("left: %q", keys)
		}
		wantState(t, s, old, owner.Adopted, false)
		n.crash()
	})
}
