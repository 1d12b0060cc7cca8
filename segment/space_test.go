package segment

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

func reserveNow(s *Space, tenant string, n int64) *RefusedError {
	r, _ := errors.AsType[*RefusedError](s.reserve(context.Background(), tenant, n, false))
	return r
}

func TestSpaceRefusesBeforeTheLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := NewSpace(SpaceOptions{MaxBytes: 1000, TenantShare: 0.5})
		if r := reserveNow(s, "a", 1001); r == nil || r.Reason != RefusedTooLarge || r.After != 0 {
			t.Errorf("what can never fit: %v", r)
		}
		if r := reserveNow(s, "a", 900); r != nil {
			t.Errorf("a tenant alone may take all: %v", r)
		}
		if r := reserveNow(s, "b", 101); r == nil || r.Reason != RefusedFull || r.After <= 0 {
			t.Errorf("over the limit: %v", r)
		}
		if r := reserveNow(s, "b", 100); r != nil {
			t.Error(r)
		}
		s.release(map[string]int64{"a": 200})
		if r := reserveNow(s, "a", 1); r == nil || r.Reason != RefusedTenantShare {
			t.Errorf("a tenant over its share while another has data: %v", r)
		}
		if r := reserveNow(s, "b", 200); r != nil {
			t.Error(r)
		}
		if s.Used() != 1000 {
			t.Errorf("used %d", s.Used())
		}
	})
}

func TestSpaceWaitsForWhatComesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := NewSpace(SpaceOptions{MaxBytes: 1000, FullWait: time.Second})
		told := 0
		s.WhenRefused(func() { told++ })
		if r := reserveNow(s, "a", 1000); r != nil {
			t.Fatal(r)
		}
		time.AfterFunc(500*time.Millisecond, func() { s.release(map[string]int64{"a": 300}) })
		begin := time.Now()
		if r := reserveNow(s, "a", 200); r != nil || time.Since(begin) != 500*time.Millisecond {
			t.Errorf("%v after %v", r, time.Since(begin))
		}
		if told == 0 {
			t.Error("lanes were not told")
		}
		begin = time.Now()
		if r := reserveNow(s, "a", 200); r == nil || time.Since(begin) != time.Second {
			t.Errorf("%v after %v", r, time.Since(begin))
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
		defer cancel()
		if err := s.reserve(ctx, "a", 200, false); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("client went away: %v", err)
		}
	})
}

// The delay that is told follows the rate at which space comes back.
func TestSpaceDelayFollowsTheDrain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := NewSpace(SpaceOptions{MaxBytes: 1 << 20})
		s.charge("a", 1<<20)
		if r := reserveNow(s, "a", 1000); r.After != unknownDelay {
			t.Errorf("nothing came back yet: %v", r.After)
		}
		for range 100 { // 1,000 bytes a second
			time.Sleep(100 * time.Millisecond)
			s.release(map[string]int64{"a": 100})
			s.charge("a", 100)
		}
		if r := reserveNow(s, "a", 10_000); r.After < 8*time.Second || r.After > 13*time.Second {
			t.Errorf("10,000 bytes at 1,000 a second: %v", r.After)
		}
		if r := reserveNow(s, "a", 1); r.After != minDelay {
			t.Errorf("shortest: %v", r.After)
		}
		if r := reserveNow(s, "a", 1<<20); r.After != maxDelay {
			t.Errorf("longest: %v", r.After)
		}
	})
}

func TestSpaceKeepsTheFloor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		free := uint64(2000)
		s := NewSpace(SpaceOptions{MaxBytes: 1 << 30, MinFreeBytes: 500, Free: func() (uint64, error) {
			mu.Lock()
			defer mu.Unlock()
			return free, nil
		}})
		if r := reserveNow(s, "a", 1400); r != nil {
			t.Fatal(r)
		}
		if r := reserveNow(s, "a", 200); r == nil || r.Reason != RefusedDisk || r.After <= 0 {
			t.Errorf("below the floor, before the volume was asked again: %v", r)
		}
		if !s.pressed() {
			t.Error("no pressure")
		}
		mu.Lock()
		free = 5000
		mu.Unlock()
		time.Sleep(freeInterval)
		if r := reserveNow(s, "a", 200); r != nil {
			t.Errorf("space came back: %v", r)
		}
	})
}

// Until the old segments are measured, the estimate errs on the side of the limit.
func TestSpaceIsCarefulWhileMeasuring(t *testing.T) {
	s := NewSpace(SpaceOptions{MaxBytes: 1000})
	done := s.measuring()
	s.charge("", 600)
	if r := reserveNow(s, "a", 200); r == nil {
		t.Error("taken on an estimate")
	}
	done()
	done()
	if r := reserveNow(s, "a", 200); r != nil {
		t.Error(r)
	}
}

func TestTenantShares(t *testing.T) {
	s := NewSpace(SpaceOptions{MaxBytes: 1000, TenantShare: 0.5, TenantShares: map[string]float64{"small": 0.1}})
	for _, c := range []struct {
		tenant string
		bytes  int64
		want   RefuseReason
	}{{"other", 100, ""}, {"small", 101, RefusedTenantShare}, {"small", 100, ""}, {"small", 1, RefusedTenantShare}, {"large", 400, ""}} {
		r, _ := errors.AsType[*RefusedError](s.reserve(context.Background(), c.tenant, c.bytes, false))
		if (r == nil) != (c.want == "") || r != nil && r.Reason != c.want {
			t.Errorf("%d bytes for %s: %v, want %q", c.bytes, c.tenant, r, c.want)
		}
	}
}
