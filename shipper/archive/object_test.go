package archive_test

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/oklog/ulid/v2"

	"ingest-agent/objstore"
	"ingest-agent/segment"
	"ingest-agent/shipper/archive"
)

// put puts a segment object of n frames of an owner's lane, behind the first skipped ones of its segment.
func (s *store) put(t *testing.T, lane segment.LaneID, seq segment.Seq, skipped, n int) (key objstore.SegmentKey, bodies []string) {
	t.Helper()
	owner := segment.OwnerID(ulid.Make())
	b := segment.Batch{Header: segment.Header{Birth: segment.Birth{Owner: owner, Lane: lane, Seq: seq}, Created: time.Now()}}
	for i := range n {
		number := segment.Entry(skipped + i + 1)
		bodies = append(bodies, fmt.Sprintf("%d.%03d", seq, number))
		b.Frames = append(b.Frames, segment.Frame{
			ID: segment.FrameID{Birth: b.Header.Birth, Number: number}, Position: segment.Position{Seq: seq, Entry: number},
			Signal: segment.Logs, Received: time.Now(), Records: testRecords, Body: []byte(bodies[i]),
		})
	}
	data, err := segment.EncodeRange(&b)
	if err != nil {
		t.Fatal(err)
	}
	key = objstore.SegmentKey{Owner: owner.String(), Lane: lane.String(), Seq: uint64(seq), First: uint32(b.First()), Last: uint32(b.Last())}
	if _, err := s.Bucket.Put(t.Context(), key.String(), bytes.NewReader(data), objstore.IfAbsent()); err != nil {
		t.Fatal(err)
	}
	return key, bodies
}

// TestCopy: what is exported of an adopted object is archived under its owner's id, and no more than that.
func TestCopy(t *testing.T) {
	bubble(t, func(t *testing.T, s *store, n *node) {
		n.start()
		a := archive.New(n.options())
		key, bodies := s.put(t, laneA, 7, 3, 10)
		copyTo := func(to segment.Position) {
			t.Helper()
			if err := a.Copy(t.Context(), key, to); err != nil {
				t.Error(err)
			}
		}
		copyTo(segment.Position{Seq: 7, Entry: 4})
		same(t, "archived of what is not exported", s.bodies(t), nil)
		copyTo(segment.Position{Seq: 7, Entry: 9})
		same(t, "archived of what is exported in part", s.bodies(t), bodies[:5])
		if o := s.archived(t)[0]; o.key.Owner != key.Owner || o.key.Seq != 7 || o.key.First != 4 || o.key.Last != 8 {
			t.Errorf("key %s", o.key)
		}
		copyTo(segment.Position{Seq: 7, Entry: 9}) // again
		same(t, "archived twice", s.bodies(t), bodies[:5])
		gone := key
		gone.Seq++
		if err := a.Copy(t.Context(), gone, segment.Position{Seq: 9, Entry: 1}); err != nil {
			t.Errorf("an object that others have deleted: %v", err)
		}
		parked, _ := s.put(t, segment.LaneID{Destination: "default", Parked: 1}, 1, 0, 1)
		if err := a.Copy(t.Context(), parked, segment.Position{Seq: 9, Entry: 1}); err != nil || len(s.archived(t)) != 1 {
			t.Errorf("a parked lane is archived, whose frames were moved from another (%v)", err)
		}
		n.end()
	})
}

// TestAnObjectIsLetGo after some tries over some time, and counted; while its lease ends, or it cannot be read, it is not.
func TestAnObjectIsLetGo(t *testing.T) {
	bubble(t, func(t *testing.T, s *store, n *node) {
		n.start()
		a := archive.New(n.options())
		key, _ := s.put(t, laneA, 1, 0, 10)
		end := segment.Position{Seq: 2, Entry: 1}
		s.Fail(away)
		for range 10 {
			pass(time.Minute)
			if a.Copy(t.Context(), key, end) == nil {
				t.Fatal("an object that cannot be read is let go")
			}
		}
		for range 10 {
			pass(time.Minute)
			ctx, stop := context.WithCancel(t.Context())
			s.Fail(func(ctx context.Context, op objstore.Op, key string) error {
				if op == objstore.OpPut {
					stop()
				}
				return refused(ctx, op, key)
			})
			if a.Copy(ctx, key, end) == nil {
				t.Fatal("an object is let go since its adopter stops")
			}
		}
		s.Fail(refused)
		for i, wait := range []time.Duration{0, 0, 0, 0, time.Minute} {
			pass(wait)
			if err := a.Copy(t.Context(), key, end); (err == nil) != (i == 4) {
				t.Errorf("try %d: %v", i+1, err)
			}
		}
		if err := a.Copy(t.Context(), key, end); err != nil || a.Stats().MissedRecords != 200 {
			t.Errorf("the next is not let go at its first try (%v), or not counted: %+v", err, a.Stats())
		}
		s.Fail(nil)
		if err := a.Copy(t.Context(), key, end); err != nil {
			t.Error(err)
		}
		s.Fail(refused)
		if a.Copy(t.Context(), func() objstore.SegmentKey { k, _ := s.put(t, laneA, 5, 0, 1); return k }(), segment.Position{Seq: 6, Entry: 1}) == nil {
			t.Error("a success does not begin the count anew")
		}
		n.end()
	})
}

// TestCopied answers at once, and has the object copied beside everything else.
func TestCopied(t *testing.T) {
	bubble(t, func(t *testing.T, s *store, n *node) {
		n.start()
		var settled atomic.Int32
		n.run(func(o *archive.Options) { o.Settled = func() { settled.Add(1) } })
		key, bodies := s.put(t, laneA, 3, 0, 10)
		s.Fail(away)
		for range 100 {
			if n.archiver.Copied(key) {
				t.Fatal("it is not copied")
			}
			pass(time.Second)
		}
		if calls := len(s.Forget()); calls < 10 || calls > 30 {
			t.Errorf("%d calls in 100 s", calls)
		}
		s.Fail(nil)
		pass(10 * time.Second)
		same(t, "archived", s.bodies(t), bodies)
		if settled.Load() != 1 || !n.archiver.Copied(key) {
			t.Errorf("settled %d times", settled.Load())
		}
		if parked := (objstore.SegmentKey{Owner: key.Owner, Lane: "default.0.p1", Seq: 1, First: 1, Last: 1}); !n.archiver.Copied(parked) {
			t.Error("an object of a parked lane is kept")
		}
		n.end()
	})
}

// TestCopiedIsBounded: what nobody asks about any more is forgotten.
func TestCopiedIsBounded(t *testing.T) {
	bubble(t, func(t *testing.T, s *store, n *node) {
		n.start()
		n.run()
		s.Fail(away)
		ask := func(owner string) {
			for seq := range uint64(1000) {
				n.archiver.Copied(objstore.SegmentKey{Owner: owner, Lane: laneA.String(), Seq: seq + 1, First: 1, Last: 1})
			}
		}
		first, second := ulid.Make().String(), ulid.Make().String()
		ask(first)
		s.Forget()
		pass(4 * time.Second)
		if gets := len(s.Forget()); gets == 0 || gets > 256 {
			t.Errorf("%d objects are asked for", gets)
		}
		pass(11 * time.Minute)
		ask(second)
		s.Forget()
		pass(5 * time.Second)
		calls := s.Forget()
		for _, call := range calls {
			if strings.Contains(call, first) {
				t.Fatalf("call %s for an object that nobody asks about", call)
			}
		}
		if len(calls) == 0 {
			t.Error("nothing new is copied")
		}
		n.end()
	})
}
