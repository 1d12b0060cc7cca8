package shipper_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"ingest-agent/objstore"
	"ingest-agent/recovery/owner"
	"ingest-agent/segment"
)

func TestCase86StopsActingWhenItCannotRenew(t *testing.T) {
	bubble(t, func(t *testing.T, s *store, n *node) {
		n.start()
		n.add(laneA, "1", "2")
		pass(2 * testAfter)
		cut := time.Now()
		s.Fail(func(_ context.Context, op objstore.Op, key string) error {
			if since := time.Since(cut); since > testStale/2 && strings.HasPrefix(key, "segments/") {
				t.Errorf("%s %s, %s after the bucket went away", op, key, since)
			}
			return objstore.ErrUnknown
		})
		for range 24 {
			n.add(laneA, "x")
			pass(testAfter)
		}
		n.mustDrain(laneA, 3, "1", "2", "x")
		pass(time.Minute)
		s.Fail(nil)
		pass(2 * testRetry)
		seen, body := s.register(t, n.id)
		if seen.State != owner.Live || seen.Epoch != 1 || body.Lanes[laneA].Exported != (segment.Position{Seq: 1, Entry: 4}) || !body.Lanes[laneA].Owes() {
			t.Errorf("%s: %+v", &seen, body.Lanes[laneA])
		}
		n.crash()
	})
}

func TestNothingIsPutUnderALeaseThatIsOver(t *testing.T) {
	bubble(t, func(t *testing.T, s *store, n *node) {
		n.start()
		n.add(laneA, "1")
		pass(2 * testAfter)
		n.add(laneA, "2")
		cut := time.Now()
		ended := make(chan time.Duration, 100)
		s.Fail(func(ctx context.Context, op objstore.Op, key string) error {
			if op == objstore.OpPut && strings.HasPrefix(key, "segments/") {
				<-ctx.Done()
				ended <- time.Since(cut)
			}
			return objstore.ErrUnknown
		})
		pass(10 * time.Minute)
		if len(ended) != 1 {
			t.Fatalf("%d uploads", len(ended))
		}
		if after := <-ended; after > testStale/2 {
			t.Errorf("an upload goes on for %s", after)
		}
		n.crash()
	})
}

func TestCase76ClockSkew(t *testing.T) {
	bubble(t, func(t *testing.T, s *store, n *node) {
		n.start()
		n.add(laneA, "1")
		pass(2 * testAfter)
		s.Fail(func(context.Context, objstore.Op, string) error {
			return errors.Join(objstore.ErrClockSkew, objstore.ErrUnknown)
		})
		n.add(laneA, "2")
		pass(time.Minute)
		if st := n.ship.Stats(); !strings.Contains(st.LastError, "clock skewed") {
			t.Errorf("stats %+v", st)
		}
		s.Fail(nil)
		pass(2 * testRetry)
		if seen, body := s.register(t, n.id); seen.Epoch != 1 || !body.Lanes[laneA].Shipped.Before(segment.Position{Seq: 2, Entry: 1}) || body.Lanes[laneA].Shipped != (segment.Position{Seq: 1, Entry: 3}) {
			t.Errorf("%s %+v", &seen, body.Lanes[laneA])
		}
		if st := n.ship.Stats(); st.LastError != "" || st.Fenced != 0 {
			t.Errorf("stats %+v", st)
		}
		n.crash()
	})
}
