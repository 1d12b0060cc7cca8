package shipper_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"ingest-agent/objstore"
	"ingest-agent/segment"
	"ingest-agent/shipper"
)

func TestWait(t *testing.T) {
	bubble(t, func(t *testing.T, s *store, n *node) {
		n.start(func(o *shipper.Options) { o.After = time.Hour })
		errs := make(chan error, 40)
		for i := range 20 {
			for _, lane := range []segment.LaneID{laneA, laneB} {
				at := n.add(lane, "x")
				go func() {
					err := n.ship.Wait(t.Context(), lane, at)
					if _, body := s.register(t, n.id); err == nil && !at.Before(body.Lanes[lane].Shipped) {
						err = errors.New("answered before it is named")
					}
					errs <- err
				}()
			}
			if i == 9 {
				pass(0)
			}
		}
		pass(time.Millisecond)
		for range 40 {
			select {
			case err := <-errs:
				if err != nil {
					t.Fatal(err)
				}
			default:
				t.Fatal("still waiting")
			}
		}
		if calls := with(s.Forget(), "put owners/"); len(calls) > 15 {
			t.Errorf("%d commits for 40 requests: %q", len(calls), calls)
		}
		n.crash()
		if err := n.ship.Wait(t.Context(), laneA, segment.Position{Seq: 99, Entry: 1}); !errors.Is(err, shipper.ErrUnavailable) {
			t.Errorf("after the end: %v", err)
		}
	})
}

func TestWaitIsForTheCommit(t *testing.T) {
	bubble(t, func(t *testing.T, s *store, n *node) {
		n.start()
		n.add(laneA, "1")
		pass(2 * testAfter)
		s.Fail(func(_ context.Context, op objstore.Op, key string) error {
			if op == objstore.OpPut && strings.HasPrefix(key, "owners/") {
				return objstore.ErrUnknown
			}
			return nil
		})
		done := make(chan error, 1)
		at := n.add(laneA, "2")
		go func() { done <- n.ship.Wait(t.Context(), laneA, at) }()
		pass(5 * time.Minute)
		if keys := s.keys(t, "segments/"); len(keys) != 2 {
			t.Fatalf("objects %q", keys)
		}
		if err := <-done; !errors.Is(err, shipper.ErrUnavailable) {
			t.Errorf("wait: %v", err)
		}
		n.crash()
	})
}

func TestWaitWhileTheBucketIsAway(t *testing.T) {
	bubble(t, func(t *testing.T, s *store, n *node) {
		n.start()
		if err := n.ship.Ready(); err != nil {
			t.Error(err)
		}
		s.Fail(func(context.Context, objstore.Op, string) error { return objstore.ErrUnknown })
		begin := time.Now()
		if err := n.ship.Wait(t.Context(), laneA, n.add(laneA, "1")); !errors.Is(err, shipper.ErrUnavailable) {
			t.Errorf("wait: %v", err)
		}
		if took := time.Since(begin); took > 2*time.Minute {
			t.Errorf("told after %s", took)
		}
		begin = time.Now()
		if err := n.ship.Wait(t.Context(), laneA, n.add(laneA, "2")); !errors.Is(err, shipper.ErrUnavailable) || time.Since(begin) > 0 {
			t.Errorf("wait: %v, after %s", err, time.Since(begin))
		}
		if err := n.ship.Ready(); !errors.Is(err, shipper.ErrUnavailable) {
			t.Errorf("ready: %v", err)
		}
		n.mustDrain(laneA, 0, "1", "2") // delivery goes on
		s.Fail(nil)
		pass(2 * testRetry)
		if err := n.ship.Ready(); err != nil {
			t.Errorf("ready after the bucket is back: %v", err)
		}
		if err := n.ship.Wait(t.Context(), laneA, n.add(laneA, "3")); err != nil {
			t.Errorf("wait: %v", err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := n.ship.Wait(ctx, laneA, segment.Position{Seq: 50, Entry: 1}); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("wait for what never comes: %v", err)
		}
		n.crash()
	})
}
