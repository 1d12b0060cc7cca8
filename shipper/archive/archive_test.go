package archive_test

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
	"ingest-agent/segment"
	"ingest-agent/shipper/archive"
)

// TestArchivesWhatIsExported: what the cursor has left is copied, once, and then its segments go; what is pending is not. A stop
// also copies what is exported of a segment in part.
func TestArchivesWhatIsExported(t *testing.T) {
	bubble(t, func(t *testing.T, s *store, n *node) {
		n.start()
		n.run()
		bodies := n.add(42)
		pass(time.Minute)
		if got := s.archived(t); len(got) > 0 {
			t.Errorf("%d objects of what is pending", len(got))
		}
		before := n.segments()
		n.export(22)
		pass(5 * time.Second)
		got := s.bodies(t)
		if len(got) < 16 || len(got) > 22 || !slices.Equal(got, bodies[:len(got)]) {
			t.Errorf("archived %d of 22", len(got))
		}
		if after := n.segments(); after >= before-3 {
			t.Errorf("%d segments are %d", before, after)
		}
		for _, o := range s.archived(t) {
			if o.key.Owner != n.owner || o.key.Lane != laneA.String() || !o.key.Hour.Equal(time.Now().Truncate(time.Hour)) {
				t.Errorf("key %s", o.key)
			}
		}
		n.export(1) // the cursor is not saved yet
		n.archiver.Stop(t.Context())
		same(t, "archived by the stop", s.bodies(t), bodies[:23])
		if st := n.archiver.Stats(); st.MissedRecords != 0 || st.ArchivedBytes == 0 || st.ArchivedObjects != uint64(len(s.archived(t))) {
			t.Errorf("stats %+v", st)
		}
		n.end()
	})
}

// TestAnIdleSegmentIsArchived: without more traffic a segment ends by its age, and goes all the same.
func TestAnIdleSegmentIsArchived(t *testing.T) {
	bubble(t, func(t *testing.T, s *store, n *node) {
		n.start()
		n.run()
		var bodies []string
		for range 3 {
			bodies = append(bodies, n.add(1)...)
			n.export(1)
			pass(5 * time.Second)
		}
		if got := s.archived(t); len(got) > 0 {
			t.Errorf("%d objects of a segment that goes on", len(got))
		}
		pass(testAge)
		same(t, "archived", s.bodies(t), bodies)
		if got := s.archived(t); len(got) != 1 {
			t.Errorf("%d objects of one segment", len(got))
		}
		s.Forget()
		pass(10 * time.Minute)
		if calls := s.Forget(); len(calls) > 0 {
			t.Errorf("an archive with nothing to do called %q", calls)
		}
		n.end()
	})
}

// TestObjectsSpanLittle: objects are found by the hour of their first frame (archived checks that), and no frame is in two.
func TestObjectsSpanLittle(t *testing.T) {
	bubble(t, func(t *testing.T, s *store, n *node) {
		n.start(func(o *segment.LaneOptions) {
			o.Settings.SegmentSizeBytes, o.Settings.SegmentAge = 1<<20, 24*time.Hour
		})
		n.run()
		// The bubble begins at a full hour.
		hour := time.Now()
		for _, at := range []time.Duration{
			59 * time.Minute, 59*time.Minute + 29*time.Second, 60*time.Minute + 10*time.Second, 59*time.Minute + 59*time.Second,
			60*time.Minute + 11*time.Second, 60*time.Minute + 12*time.Second, 60*time.Minute + 41*time.Second + 1, 3 * time.Hour,
		} {
			f := &segment.Frame{Signal: segment.Logs, Received: hour.Add(at), Records: testRecords, Body: []byte(at.String())}
			if err := n.lane.Append(t.Context(), f); err != nil {
				t.Fatal(err)
			}
		}
		n.export(8)
		pass(time.Second)
		n.archiver.Stop(t.Context())
		var got []string
		for _, o := range s.archived(t) {
			var times []string
			for _, f := range o.frames {
				times = append(times, string(f.Body))
			}
			got = append(got, o.key.Hour.Format("15:")+strings.Join(times, " "))
		}
		slices.Sort(got)
		want := []string{"00:59m0s 59m29s", "00:59m59s 1h0m11s 1h0m12s", "01:1h0m10s", "01:1h0m41.000000001s", "03:3h0m0s"}
		same(t, "objects", got, want)
		n.end()
	})
}

// TestBucketAwayAndBack: exported segments wait while there is space, and nothing is missed.
func TestBucketAwayAndBack(t *testing.T) {
	bubble(t, func(t *testing.T, s *store, n *node) {
		n.start()
		n.run()
		s.Fail(away)
		bodies := n.add(40)
		n.export(40)
		pass(time.Hour)
		if kept := n.segments(); kept < 8 {
			t.Errorf("%d segments wait", kept)
		}
		if calls := len(s.Forget()); calls > 400 {
			t.Errorf("%d calls in an hour without a bucket", calls)
		}
		if st := n.archiver.Stats(); st.LastError == "" || st.MissedRecords > 0 {
			t.Errorf("stats %+v", st)
		}
		s.Fail(nil)
		pass(time.Minute)
		same(t, "archived", s.bodies(t), bodies)
		if st := n.archiver.Stats(); st.LastError != "" || st.MissedRecords > 0 {
			t.Errorf("stats %+v", st)
		}
		if kept := n.segments(); kept > 1 {
			t.Errorf("%d segments stay", kept)
		}
		n.end()
	})
}

// TestSpaceGoesFirst: whether the bucket is away or hangs, taking goes on: what is exported goes when its space is needed, no
// more than that, and its records are counted.
func TestSpaceGoesFirst(t *testing.T) {
	hangs := func(ctx context.Context, _ objstore.Op, _ string) error {
		<-ctx.Done()
		return objstore.ErrUnknown
	}
	for name, fault := range map[string]func(context.Context, objstore.Op, string) error{"away": away, "hangs": hangs} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *store, n *node) {
				n.start()
				n.run()
				s.Fail(fault)
				for range 300 { // three times the disk
					n.add(1)
					n.export(1)
					pass(200 * time.Millisecond)
				}
				pass(time.Minute)
				used := float64(n.space.Used()) / (100 << 10)
				if used < 0.6 || used >= 0.75 {
					t.Errorf("%.2f of the disk in use", used)
				}
				missed := n.archiver.Stats().MissedRecords
				s.Fail(nil)
				pass(5 * time.Minute) // also what hangs ends
				got := s.bodies(t)
				if missed == 0 || missed+uint64(len(got))*testRecords != 300*testRecords {
					t.Errorf("missed %d records, archived %d frames of 300", missed, len(got))
				}
				n.end()
			})
		})
	}
}

// TestABucketOnTheSameDiskLeavesRoom: nothing is put while the disk has no room beside the lanes'.
func TestABucketOnTheSameDiskLeavesRoom(t *testing.T) {
	bubble(t, func(t *testing.T, s *store, n *node) {
		n.start()
		var spare atomic.Bool
		n.run(func(o *archive.Options) { o.Spare = spare.Load })
		bodies := n.add(20)
		n.export(20)
		pass(testAge + time.Minute)
		if got := s.bodies(t); len(got) > 0 {
			t.Errorf("%d frames archived on a full disk", len(got))
		}
		spare.Store(true)
		pass(time.Minute)
		same(t, "archived", s.bodies(t), bodies)
		n.end()
	})
}

// TestPressureAloneMissesNothing: a disk that is full of what is pending is no reason to miss what comes out, as long as the
// bucket takes it.
func TestPressureAloneMissesNothing(t *testing.T) {
	bubble(t, func(t *testing.T, s *store, n *node) {
		n.start()
		n.run(func(o *archive.Options) { o.Taken = func() float64 { return 1 } })
		bodies := n.add(80)
		for range 40 {
			n.export(2)
			pass(500 * time.Millisecond)
		}
		pass(testAge)
		same(t, "archived", s.bodies(t), bodies)
		if st := n.archiver.Stats(); st.MissedRecords > 0 {
			t.Errorf("stats %+v", st)
		}
		n.end()
	})
}

// TestCrashBetweenCopyAndRemoval: what was copied and not removed is copied again by the next start, under its own id; a frame is
// the same by its own id.
func TestCrashBetweenCopyAndRemoval(t *testing.T) {
	bubble(t, func(t *testing.T, s *store, n *node) {
		n.start()
		bodies := n.add(40)
		n.export(40)
		pass(time.Second)
		var kill sync.Once
		s.Fail(func(context.Context, objstore.Op, string) error {
			kill.Do(func() { n.kill() })
			return objtest.ErrAnswerLost
		})
		n.run()
		pass(time.Second)
		first := n.owner
		if got := len(s.archived(t)); got == 0 {
			t.Fatal("nothing was copied before the crash")
		}
		s.Fail(nil)
		n.end()
		n.start()
		n.run()
		pass(10 * time.Second)
		owners, ids := map[string]bool{}, map[segment.FrameID]bool{}
		var once []string
		for _, o := range s.archived(t) {
			owners[o.key.Owner] = true
			for _, f := range o.frames {
				if f.ID.Owner.String() != first {
					t.Errorf("frame %s was born elsewhere", f.ID)
				}
				if !ids[f.ID] {
					once = append(once, string(f.Body))
				}
				ids[f.ID] = true
			}
		}
		slices.Sort(once)
		same(t, "archived", once, bodies)
		if !owners[first] || !owners[n.owner] {
			t.Errorf("archived under %v", owners)
		}
		if kept := n.segments(); kept > 1 {
			t.Errorf("%d segments stay", kept)
		}
		n.end()
	})
}

// TestUnknownOutcome: a copy whose answer was lost is put again by the same key, and not counted twice.
func TestUnknownOutcome(t *testing.T) {
	bubble(t, func(t *testing.T, s *store, n *node) {
		n.start()
		bodies := n.add(30)
		n.export(30)
		pass(testAge)
		var first sync.Map
		s.Fail(func(_ context.Context, op objstore.Op, key string) error {
			if _, again := first.LoadOrStore(key, true); op == objstore.OpPut && !again {
				return objtest.ErrAnswerLost
			}
			return nil
		})
		n.run()
		pass(5 * time.Minute)
		same(t, "archived", s.bodies(t), bodies)
		n.end()
	})
}

// TestWhatIsHandedOverIsOthers: the frames between the cursor and the skip are archived by who adopts them; what was exported
// before, and comes behind, is archived here.
func TestWhatIsHandedOverIsOthers(t *testing.T) {
	for _, restart := range []bool{false, true} {
		bubble(t, func(t *testing.T, s *store, n *node) {
			n.start()
			bodies := n.add(40)
			n.export(10)
			pass(time.Second)
			to := n.lane.State().Exported
			to = segment.Position{Seq: to.Seq + 3, Entry: 2}
			if restart {
				n.end()
				n.start(func(o *segment.LaneOptions) { o.Skip = to })
			} else {
				n.lane.Skip(to)
			}
			n.run()
			n.export(30)
			pass(time.Second)
			n.archiver.Stop(t.Context())
			got := s.bodies(t)
			if len(got) <= 10 || len(got) >= 40 {
				t.Fatalf("archived %d of 40", len(got))
			}
			want := slices.Concat(bodies[:10], bodies[40-(len(got)-10):])
			same(t, "archived", got, want)
			for _, o := range s.archived(t) {
				for _, f := range o.frames {
					if at := f.Position; !at.Before(to) || string(f.Body) <= bodies[9] {
						continue
					}
					t.Errorf("frame %s was handed over", f.Position)
				}
			}
			if kept := n.segments(); kept > 2 { // the present one, and after a restart the one that the cursor has not left
				t.Errorf("%d segments stay", kept)
			}
			n.end()
		})
	}
}

// TestStopWithoutBucket ends with its time, and the next start goes on.
func TestStopWithoutBucket(t *testing.T) {
	bubble(t, func(t *testing.T, s *store, n *node) {
		n.start()
		n.run()
		s.Fail(away)
		bodies := n.add(20)
		n.export(20)
		pass(time.Minute)
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		begin := time.Now()
		n.archiver.Stop(ctx)
		if took := time.Since(begin); took != 3*time.Second {
			t.Errorf("stop took %v", took)
		}
		n.end()
		s.Fail(nil)
		n.start()
		n.run()
		pass(10 * time.Second)
		same(t, "archived", s.bodies(t), bodies)
		n.end()
	})
}

// TestWeakBucket: where preconditions are not honoured, none is sent, and no register is written.
func TestWeakBucket(t *testing.T) {
	bubble(t, func(t *testing.T, s *store, n *node) {
		n.start()
		n.run(func(o *archive.Options) {
			o.Probe = func(context.Context) (objstore.ProbeResult, error) { return objstore.ProbeResult{}, nil }
		})
		bodies := n.add(20)
		n.export(20)
		pass(2 * time.Hour)
		same(t, "archived", s.bodies(t), bodies)
		for _, call := range s.Forget() {
			if strings.Contains(call, objstore.FleetPrefix) {
				t.Errorf("call %s", call)
			}
		}
		n.end()
	})
}
