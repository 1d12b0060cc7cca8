package archive_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/oklog/ulid/v2"

	"ingest-agent/objstore"
	"ingest-agent/objstore/objtest"
	"ingest-agent/shipper/archive"
)

// fillHours puts n objects into each of the hours before now, and returns the keys by age in hours.
func fillHours(t *testing.T, s *store, hours, n int) map[int][]string {
	t.Helper()
	keys := map[int][]string{}
	for age := range hours {
		for i := range n {
			key := objstore.ArchiveKey{Hour: time.Now().UTC().Truncate(time.Hour).Add(-time.Duration(age) * time.Hour), SegmentKey: objstore.SegmentKey{
				Owner: ulid.Make().String(), Lane: laneA.String(), Seq: 1, First: 1, Last: uint32(i + 1),
			}}.String()
			if _, err := s.Bucket.Put(t.Context(), key, strings.NewReader("x"), objstore.IfAbsent()); err != nil {
				t.Fatal(err)
			}
			keys[age] = append(keys[age], key)
		}
	}
	return keys
}

func (s *store) has(t *testing.T, key string) bool {
	t.Helper()
	obj, err := s.Bucket.Get(context.Background(), key, objstore.GetOptions{})
	if errors.Is(err, objstore.ErrNotFound) {
		return false
	}
	if err != nil {
		t.Fatal(err)
	}
	return obj.Body.Close() == nil
}

// sweepers runs archivers without lanes on views of one bucket.
func sweepers(n *node, views ...*store) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var all sync.WaitGroup
	for i, view := range views {
		o := n.options()
		o.Bucket, o.Jitter = view, func() float64 { return 0.5 + float64(i)/100 }
		all.Go(func() { archive.New(o).Run(ctx) })
	}
	return func() {
		cancel()
		all.Wait()
	}
}

// TestSweep: hours that have ended longer ago than the retention go, by the bucket's clock, and nothing else.
func TestSweep(t *testing.T) {
	for _, skew := range []time.Duration{0, -2 * time.Hour} {
		bubble(t, func(t *testing.T, s *store, n *node) {
			n.start()
			s.SetSkew(skew)
			const hours, each = 60, 50 // three pages
			keys := fillHours(t, s, hours, each)
			foreign := objstore.ArchivePrefix + "1998/readme"
			if _, err := s.Bucket.Put(t.Context(), foreign, strings.NewReader("x"), objstore.IfAbsent()); err != nil {
				t.Fatal(err)
			}
			stop := sweepers(n, s)
			pass(31 * time.Minute) // it looks after 30
			kept := int((testRetention - skew) / time.Hour)
			for age, of := range keys {
				for _, key := range of {
					// At half past, the hour of 24 hours ago has ended 23.5 hours ago.
					if got, want := s.has(t, key), age <= kept; got != want {
						t.Fatalf("skew %v: object of %d hours ago is there: %v", skew, age, got)
					}
				}
			}
			if !s.has(t, foreign) {
				t.Error("a foreign object was deleted")
			}
			stop()
			n.end()
		})
	}
}

// TestOneSweeps: of all nodes, and the others ask for one register in an hour.
func TestOneSweeps(t *testing.T) {
	bubble(t, func(t *testing.T, s *store, n *node) {
		n.start()
		views := []*store{s, {objtest.NewFaulty(s.Bucket)}, {objtest.NewFaulty(s.Bucket)}, {objtest.NewFaulty(s.Bucket)}}
		fillHours(t, s, 30, 10)
		stop := sweepers(n, views...)
		pass(10*time.Hour + 35*time.Minute)
		lists, others := 0, 0
		for _, v := range views {
			for _, call := range v.Forget() {
				switch {
				case strings.HasPrefix(call, "list"):
					lists++
				case !strings.HasPrefix(call, "delete"):
					others++
				}
			}
		}
		stop()
		// 4 nodes look 11 times each; who sweeps writes twice more.
		if lists < 8 || lists > 14 {
			t.Errorf("%d sweeps in 10 hours", lists)
		}
		if others > 4*12+2*lists {
			t.Errorf("%d other requests", others)
		}
		n.end()
	})
}

// TestSweepIsTakenOver from one that was killed in it.
func TestSweepIsTakenOver(t *testing.T) {
	bubble(t, func(t *testing.T, s *store, n *node) {
		n.start()
		keys := fillHours(t, s, 30, 20)
		ctx, cancel := context.WithCancel(context.Background())
		s.Fail(func(_ context.Context, op objstore.Op, _ string) error {
			if op == objstore.OpDelete {
				cancel()
			}
			if ctx.Err() != nil {
				return objstore.ErrUnknown // also of what it says at its end
			}
			return nil
		})
		archive.New(n.options()).Run(ctx)
		other := &store{objtest.NewFaulty(s.Bucket)}
		stop := sweepers(n, other)
		pass(2 * time.Hour)
		for _, key := range keys[28] {
			if s.has(t, key) {
				t.Fatalf("%s is left", key)
			}
		}
		stop()
		n.end()
	})
}
