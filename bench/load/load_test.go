package load

import (
	"bytes"
	"context"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/encoding/protowire"

	"ingest-agent/bench/seqset"
	"ingest-agent/bench/sink"
	"ingest-agent/bench/wire"
)

func newSink(t *testing.T) *sink.Sink {
	t.Helper()
	s, err := sink.New(sink.Config{GRPC: "auto"})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Up(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Down(true); err != nil {
			t.Error(err)
		}
	})
	return s
}

func run(t *testing.T, ctx context.Context, cfg Config) (*Load, Result) {
	t.Helper()
	l, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	r, err := l.Run(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return l, r
}

func httpAddr(s *sink.Sink) string { return strings.TrimPrefix(s.URL(), "http://") }

func sameSet(t *testing.T, what string, a, b *seqset.Set) {
	t.Helper()
	if n, ranges := a.Minus(b, 5); n != 0 {
		t.Errorf("%s: %d only in the first: %v", what, n, ranges)
	}
	if n, ranges := b.Minus(a, 5); n != 0 {
		t.Errorf("%s: %d only in the second: %v", what, n, ranges)
	}
}

func TestAcknowledgedIsWhatArrived(t *testing.T) {
	for _, coding := range []string{wire.None, wire.Gzip, wire.Zstd} {
		s := newSink(t)
		var log bytes.Buffer
		var hooked atomic.Int64
		l, r := run(t, t.Context(), Config{
			GRPC: s.GRPCAddr(), HTTP: httpAddr(s), Senders: 2, Records: 10, Compression: coding, Requests: 120,
			AckLog: &log, OnAck: func(uint64, int) { hooked.Add(1) },
		})
		stats := s.Stats()
		if r.Requests != 120 || r.Failed() != 0 || r.AckedRecords != 1200 || r.Latency.Count() != 120 || hooked.Load() != 120 {
			t.Errorf("%s: %+v, hook called %d times", coding, r.String(), hooked.Load())
		}
		if stats.Records != 1200 || stats.Duplicates != 0 || stats.Bad != 0 || stats.Requests != 120 {
			t.Errorf("%s: sink %+v", coding, stats)
		}
		sameSet(t, coding+": acknowledged and arrived", l.Acked(), s.Received())
		var logged seqset.Set
		if err := ReadAckLog(&log, &logged); err != nil {
			t.Fatal(err)
		}
		sameSet(t, coding+": acknowledged and logged", l.Acked(), &logged)
	}
}

func TestRefusedIsNotAcknowledged(t *testing.T) {
	for status, failures := range map[int][]string{
		http.StatusServiceUnavailable: {"grpc Unavailable", "http 503"},
		http.StatusTooManyRequests:    {"grpc ResourceExhausted", "http 429"},
		http.StatusBadRequest:         {"grpc InvalidArgument", "http 400"},
	} {
		s := newSink(t)
		s.Behave(sink.Behavior{Status: status})
		l, r := run(t, t.Context(), Config{GRPC: s.GRPCAddr(), HTTP: httpAddr(s), Senders: 1, Records: 1, Requests: 10})
		if l.Acked().Count() != 0 || s.Received().Count() != 0 || r.Failed() != 10 {
			t.Errorf("%d: %d acknowledged, %d arrived, %v", status, l.Acked().Count(), s.Received().Count(), r.Failures)
		}
		for _, f := range failures {
			if r.Failures[f] == 0 {
				t.Errorf("%d: no failure %q in %v", status, f, r.Failures)
			}
		}
	}
}

func TestRetryUntilAcknowledged(t *testing.T) {
	s := newSink(t)
	s.Behave(sink.Behavior{LoseAnswer: true, Requests: 6})
	l, r := run(t, t.Context(), Config{GRPC: s.GRPCAddr(), HTTP: httpAddr(s), Senders: 1, Records: 5, Requests: 20, Retry: true})
	stats := s.Stats()
	if r.Failed() != 6 || r.Resent != 6 || l.Acked().Count() != 100 || stats.Distinct != 100 || stats.Duplicates != 30 {
		t.Errorf("load %s, sink %+v", r.String(), stats)
	}
}

func TestGoesOnWhileTheOtherSideIsDown(t *testing.T) {
	s := newSink(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	l, err := New(Config{GRPC: s.GRPCAddr(), HTTP: httpAddr(s), Senders: 2, Records: 1})
	if err != nil {
		t.Fatal(err)
	}
	results := make(chan Result)
	go func() {
		r, err := l.Run(ctx)
		if err != nil {
			t.Error(err)
		}
		results <- r
	}()
	until := func(what string, done func(Result) bool) {
		t.Helper()
		for deadline := time.Now().Add(20 * time.Second); !done(l.Snapshot()); time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("%s: not reached", what)
			}
		}
	}
	until("first acknowledgements", func(r Result) bool { return r.AckedRecords > 20 })
	if err := s.Down(true); err != nil {
		t.Fatal(err)
	}
	down := l.Snapshot()
	until("failures of both kinds", func(r Result) bool {
		return r.Failures[FailureConnection] > 4 && r.Failures["grpc Unavailable"] > 4
	})
	if err := s.Up(); err != nil {
		t.Fatal(err)
	}
	until("acknowledgements again", func(r Result) bool { return r.AckedRecords > down.AckedRecords+20 })
	cancel()
	<-results
	if n, ranges := l.Acked().Minus(s.Received(), 5); n != 0 {
		t.Errorf("%d acknowledged that never arrived: %v", n, ranges)
	}
}

// An answer that is on its way when the load is stopped must not be missed: the record was acknowledged.
func TestRequestInHandIsFinishedAfterStop(t *testing.T) {
	arrived, release := make(chan struct{}), make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		arrived <- struct{}{}
		<-release
	}))
	defer server.Close()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() {
		<-arrived
		cancel()
		close(release)
	}()
	l, r := run(t, ctx, Config{HTTP: server.Listener.Addr().String(), Senders: 1, Records: 3})
	if r.AckedRecords != 3 || l.Acked().Count() != 3 || r.Failed() != 0 {
		t.Errorf("%s", r.String())
	}
}

func TestOpenLoopCountsFromTheDueTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPace(10)
		p.begin()
		for n, wantDue := range []time.Duration{0, 100 * time.Millisecond, 200 * time.Millisecond, 300 * time.Millisecond} {
			due, ok := p.wait(t.Context(), uint64(n))
			if !ok || due.Sub(p.start) != wantDue {
				t.Fatalf("request %d is due at %v, want %v", n, due.Sub(p.start), wantDue)
			}
			if n == 1 {
				time.Sleep(500 * time.Millisecond) // an answer that takes long: the next ones are late at once
			}
		}
		if now := time.Since(p.start); now != 600*time.Millisecond {
			t.Errorf("requests that were late had to wait: it is %v, want 600ms", now)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, ok := p.wait(ctx, 1000); ok {
			t.Error("goes on after the end")
		}
	})
}

func TestHistogramAgainstSortedList(t *testing.T) {
	var h Histogram
	var all []time.Duration
	rng := rand.New(rand.NewPCG(1, 2))
	for range 20_000 {
		d := time.Duration(rng.Uint64() >> (rng.IntN(60) + 2))
		h.Add(d)
		all = append(all, d)
	}
	slices.Sort(all)
	var two Histogram
	two.Add(1)
	two.Add(3)
	if got := two.Quantile(0.5); got != 1 {
		t.Errorf("half of {1, 3} is not longer than %d, want 1", got)
	}
	for _, q := range []float64{0.001, 0.5, 0.9, 0.99, 1} {
		exact := all[max(int(q*float64(len(all))), 1)-1]
		if got := h.Quantile(q); got < exact || float64(got) > float64(exact)*(1+1.0/subBuckets)+1 {
			t.Errorf("quantile %v is %d, exactly %d", q, got, exact)
		}
	}
	if h.Max() != all[len(all)-1] || h.Count() != uint64(len(all)) {
		t.Errorf("max %d, count %d", h.Max(), h.Count())
	}
}

func TestAnswersOfSuccess(t *testing.T) {
	partial := func(rejected uint64) []byte {
		inner := protowire.AppendVarint(protowire.AppendTag(nil, fieldRejected, protowire.VarintType), rejected)
		return protowire.AppendBytes(protowire.AppendTag(nil, fieldPartialSuccess, protowire.BytesType), inner)
	}
	for _, c := range []struct {
		name   string
		answer []byte
		want   string
	}{
		{"empty", nil, ""},
		{"nothing rejected", partial(0), ""},
		{"one rejected", partial(1), FailurePartial},
		{"torn", partial(1)[:3], FailureAnswer},
		{"HTML", []byte("<html>"), FailureAnswer},
	} {
		if got := checkAnswer(c.answer); got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

func TestAckLogCutShort(t *testing.T) {
	var s seqset.Set
	if err := ReadAckLog(strings.NewReader("1 10\n11 10\n21 1"), &s); err != nil || s.Count() != 20 {
		t.Errorf("%d numbers, error %v; want 20 and none", s.Count(), err)
	}
	if err := ReadAckLog(strings.NewReader("1 10\nten\n"), &s); err == nil || !strings.Contains(err.Error(), "line 2") {
		t.Errorf("bad line: error %v", err)
	}
}
