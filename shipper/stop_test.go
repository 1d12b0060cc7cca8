package shipper_test

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"ingest-agent/objstore"
	"ingest-agent/recovery/owner"
	"ingest-agent/shipper"
)

func TestCase82StopShipsWhatIsLeft(t *testing.T) {
	bubble(t, func(t *testing.T, s *store, n *node) {
		n.start(func(o *shipper.Options) { o.After = time.Hour })
		n.add(laneA, "1")
		n.add(laneB, "2", "3")
		pass(time.Minute)
		if calls := s.Forget(); len(calls) > 0 {
			t.Errorf("calls %q", calls)
		}
		begin := time.Now()
		if err := n.stop(5 * time.Second); err != nil {
			t.Error(err)
		}
		if took := time.Since(begin); took > 2*time.Second {
			t.Errorf("stop took %s", took)
		}
		if keys := s.keys(t, "segments/"); len(keys) != 2 {
			t.Errorf("objects %q", keys)
		}
		wantState(t, s, n.id, owner.Retired, true)
		if seen, _ := s.register(t, n.id); seen.Holder != "" {
			t.Errorf("a retired register is held: %s", &seen)
		}
	})
}

func TestUploadsAreJoinedBeforeTheOwnerRetires(t *testing.T) {
	bubble(t, func(t *testing.T, s *store, n *node) {
		var flying atomic.Bool
		n.start()
		n.add(laneA, "1")
		pass(2 * testAfter)
		n.add(laneA, "2")
		s.Fail(func(ctx context.Context, op objstore.Op, key string) error {
			switch {
			case op == objstore.OpPut && strings.HasPrefix(key, "segments/"):
				flying.Store(true)
				<-ctx.Done()
				linger() // a call may end a little later than its context
				flying.Store(false)
				return objstore.ErrUnknown
			case op == objstore.OpPut && flying.Load() && n.ship.Stats().State != owner.Live:
				t.Error("the register is written by a stop while an upload is on its way")
			}
			return nil
		})
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		s.Forget()
		err := n.ship.Stop(ctx)
		if flying.Load() {
			t.Error("stopped while an upload is on its way")
		}
		if err == nil || !strings.Contains(err.Error(), "not all was shipped") {
			t.Errorf("stop: %v", err)
		}
		n.kill()
		<-n.ended
		wantState(t, s, n.id, owner.Retired, true)
		calls := s.Forget()
		if calls[len(calls)-1] != "put owners/"+n.id.String()+".json" {
			t.Errorf("the last call is not the register's: %q", calls)
		}
	})
}

func TestAFailedStopKeepsTheMarker(t *testing.T) {
	bubble(t, func(t *testing.T, s *store, n *node) {
		n.start()
		n.add(laneA, "1")
		pass(2 * testAfter)
		n.mustDrain(laneA, 0, "1")
		s.Fail(func(_ context.Context, op objstore.Op, _ string) error {
			if op == objstore.OpDelete {
				return objstore.ErrUnknown
			}
			return nil
		})
		if err := n.stop(20 * time.Second); err != nil {
			t.Error(err)
		}
		wantState(t, s, n.id, owner.Retired, false) // an object is left: others find it by this
		if keys := s.keys(t, "segments/"); len(keys) != 1 {
			t.Errorf("left %q", keys)
		}
	})
}

func TestStopEndsWithItsTime(t *testing.T) {
	bubble(t, func(t *testing.T, s *store, n *node) {
		n.start()
		n.add(laneA, "1")
		pass(2 * testAfter)
		s.Fail(func(ctx context.Context, _ objstore.Op, _ string) error {
			<-ctx.Done()
			return objstore.ErrUnknown
		})
		n.add(laneA, "2")
		begin := time.Now()
		if err := n.stop(10 * time.Second); err == nil {
			t.Error("no error")
		}
		if took := time.Since(begin); took > 10*time.Second {
			t.Errorf("took %s", took)
		}
		wantState(t, s, n.id, owner.Live, true)
	})
}
