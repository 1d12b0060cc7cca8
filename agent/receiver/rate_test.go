package receiver

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"ingest-agent/segment"
)

func after(err error) time.Duration {
	if refused, is := errors.AsType[*refusal](err); is {
		return refused.after
	}
	return 0
}

// A request of any size passes when nothing is owed; the delay is right to the millisecond; over time the rate holds.
func TestRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRates(map[string]int64{"a": 1000, "b": 0})["a"]
		for _, step := range []struct {
			name  string
			bytes int
			after time.Duration // 0: passes
		}{
			{"from the burst", 600, 0}, {"from its rest, and into debt", 5400, 0}, {"in debt", 1, 5001 * time.Millisecond}, {"only a look", 0, 5001 * time.Millisecond},
		} {
			if got := after(r.take(step.bytes)); got != step.after {
				t.Errorf("%s: delay %s, want %s", step.name, got, step.after)
			}
		}
		time.Sleep(5 * time.Second)
		if got := after(r.take(1)); got != time.Millisecond {
			t.Errorf("just paid off: delay %s", got)
		}
		time.Sleep(time.Millisecond)
		if err := r.take(10_000_000); err != nil {
			t.Errorf("far above the burst: %v", err)
		}
		r.giveBack(10_000_000)
		if err := r.take(1); err != nil {
			t.Errorf("after it was given back: %v", err)
		}
		time.Sleep(time.Hour) // saves up one burst, not more
		passed := 0
		for start := time.Now(); time.Since(start) < 100*time.Second; {
			if err := r.take(300); err != nil {
				time.Sleep(after(err))
				continue
			}
			passed += 300
		}
		if passed < 100_000 || passed > 101_300 {
			t.Errorf("%d bytes in 100 s at 1000 a second and a burst of 1000", passed)
		}
		var none *rate
		if none.giveBack(1); none.take(1<<40) != nil {
			t.Error("no rate refuses")
		}
	})
}

// A tenant over its rate is refused with the delay, before its body is read; others are not. What the store refuses is not
// held against the tenant.
func TestTenantRate(t *testing.T) {
	body := logsRequest(t, 0, 1, 100)
	var storeSays error
	run := start(t, func(o *Options) {
		o.Settings.TenantBytesPerSecond = map[string]int64{"slow": 1, "quick": 1 << 30}
		o.Settings.Tenant = func(_ context.Context, c Caller) (string, error) { return c.Header("X-Tenant")[0], nil }
		o.Store.(*keep).answer = func(context.Context, Request) error { return storeSays }
	})
	send := func(tenant string) answer {
		t.Helper()
		return run.send(t, "POST", "/v1/logs", bytes.NewReader(body), asProtobuf, "X-Tenant: "+tenant)
	}
	storeSays = &segment.RefusedError{Reason: segment.RefusedFull, After: time.Second}
	if got := send("slow"); got.status != 429 || run.tally.refusals("logs/full") != 1 {
		t.Errorf("store full: %d", got.status)
	}
	storeSays = nil
	if got := send("slow"); got.status != 200 {
		t.Errorf("first: %d, although nothing was accepted before", got.status)
	}
	got := send("slow")
	if got.status != 429 || len(got.header.Get("Retry-After")) < 3 || codes.Code(got.rpcStatus(t).GetCode()) != codes.ResourceExhausted {
		t.Errorf("over the rate: %d, Retry-After %q; want about %d s", got.status, got.header.Get("Retry-After"), len(body))
	}
	if got := run.send(t, "POST", "/v1/logs", strings.NewReader("broken"), asProtobuf, "Content-Encoding: gzip", "X-Tenant: slow"); got.status != 429 {
		t.Errorf("over the rate, with a broken body: %d, want 429", got.status)
	}
	for range 3 {
		if got := send("quick"); got.status != 200 {
			t.Errorf("another tenant: %d", got.status)
		}
		if got := send("unbounded"); got.status != 200 {
			t.Errorf("a tenant without a rate: %d", got.status)
		}
	}
	if n := run.tally.refusals("logs/" + RefusedTenantRate); n != 2 {
		t.Errorf("counted %v", run.tally.refused)
	}
	s := testSettings()
	s.TenantBytesPerSecond = map[string]int64{DefaultTenant: 1}
	if err := run.Apply(s); err != nil {
		t.Fatal(err)
	}
	conn := run.client(t)
	if _, err := call(t.Context(), conn, segment.Logs, body); err != nil {
		t.Errorf("gRPC, first: %v", err)
	}
	_, err := call(t.Context(), conn, segment.Logs, body)
	if delay := retryDelay(err); status.Code(err) != codes.ResourceExhausted || delay < 60*time.Second || delay > time.Duration(len(body))*time.Second {
		t.Errorf("gRPC, over the rate: %v, delay %s", err, retryDelay(err))
	}
	checkMemoryFree(t, run)
}
