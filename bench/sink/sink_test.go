package sink

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"ingest-agent/bench/otlpgen"
	"ingest-agent/segment"
)

const recordsPerRequest = 3

type fixture struct {
	*Sink
	t   *testing.T
	gen *otlpgen.Generator
}

func newFixture(t *testing.T, cfg Config) fixture {
	t.Helper()
	g, err := otlpgen.New(1, recordsPerRequest)
	if err != nil {
		t.Fatal(err)
	}
	s, err := New(cfg)
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
	return fixture{s, t, g}
}

// post sends a request on a connection of its own. The status is 0 if there was no answer.
func (f fixture) post(ctx context.Context, first uint64) (code int, header http.Header) {
	f.t.Helper()
	return f.postBody(ctx, f.gen.Append(nil, segment.Logs, 0, first))
}

func (f fixture) postBody(ctx context.Context, body []byte) (code int, header http.Header) {
	f.t.Helper()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, f.URL()+"/v1/logs", bytes.NewReader(body))
	if err != nil {
		f.t.Fatal(err)
	}
	r.Header.Set("Content-Type", protobufType)
	resp, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(r)
	if err != nil {
		return 0, nil
	}
	defer resp.Body.Close()
	return resp.StatusCode, resp.Header
}

func TestCountsDuplicatesWithTheirTimes(t *testing.T) {
	g, err := otlpgen.New(1, recordsPerRequest)
	if err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		const ms = time.Millisecond
		var got []Duplicate
		tally := newTally(func(d Duplicate) { got = append(got, d) })
		for _, first := range []uint64{1, 100, 2, 3} { // at 10, 20, 30 and 40 ms
			time.Sleep(10 * ms)
			if err := tally.take(segment.Logs, g.Append(nil, segment.Logs, 0, first)); err != nil {
				t.Fatal(err)
			}
		}
		want := []Duplicate{
			{2, 10 * ms, 30 * ms}, {3, 10 * ms, 30 * ms}, // 4 is new
			{3, 30 * ms, 40 * ms}, {4, 30 * ms, 40 * ms},
		}
		if !slices.Equal(got, want) {
			t.Errorf("%v, want %v", got, want)
		}
		s := tally.snapshot()
		if s.Requests != 4 || s.Records != 12 || s.Distinct != 8 || s.Duplicates != 4 || s.Largest != 102 {
			t.Errorf("%+v", s)
		}
		for _, c := range []struct {
			from, to time.Duration
			want     uint64
		}{{0, 40 * ms, 12}, {10 * ms, 10 * ms, 3}, {11 * ms, 39 * ms, 6}, {41 * ms, time.Hour, 0}} {
			if n := tally.between(c.from, c.to); n != c.want {
				t.Errorf("%d from %v to %v, want %d", n, c.from, c.to, c.want)
			}
		}
	})
}

func TestDownAndUpOnTheSameAddress(t *testing.T) {
	f := newFixture(t, Config{GRPC: "auto"})
	for i, cut := range []bool{false, true, false} {
		if code, _ := f.post(t.Context(), uint64(100*i+1)); code != http.StatusOK {
			t.Fatalf("up: %d", code)
		}
		if err := f.Down(cut); err != nil {
			t.Fatal(err)
		}
		if code, _ := f.post(t.Context(), 1); code != 0 {
			t.Fatalf("down: %d", code)
		}
		if err := f.Up(); err != nil {
			t.Fatal(err)
		}
	}
	if s := f.Stats(); s.Records != 9 || s.Duplicates != 0 {
		t.Errorf("%+v", s)
	}
}

func TestBehaviors(t *testing.T) {
	const counted, not = recordsPerRequest, 0
	for _, c := range []struct {
		name       string
		b          Behavior
		code       int
		retryAfter string
		counted    uint64
	}{
		{"takes", Behavior{}, 200, "", counted},
		{"slow", Behavior{Delay: time.Millisecond}, 200, "", counted},
		{"unavailable", Behavior{Status: 503, RetryAfter: 1500 * time.Millisecond}, 503, "2", not},
		{"slow to refuse", Behavior{Status: 400, Delay: time.Millisecond}, 400, "", not},
		{"loses the answer", Behavior{LoseAnswer: true}, 0, "", counted},
	} {
		f := newFixture(t, Config{})
		c.b.Requests = 1
		f.Behave(c.b)
		code, header := f.post(t.Context(), 1)
		if code != c.code || header.Get("Retry-After") != c.retryAfter || f.Stats().Records != c.counted {
			t.Errorf("%s: %d, Retry-After %q, %+v", c.name, code, header.Get("Retry-After"), f.Stats())
		}
		if code, _ := f.post(t.Context(), 10); code != 200 {
			t.Errorf("%s: the request after it: %d", c.name, code)
		}
	}
}

func TestHangEndsWithClientOrSink(t *testing.T) {
	f := newFixture(t, Config{GRPC: "auto"})
	f.Behave(Behavior{Hang: true})
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if code, _ := f.post(ctx, 1); code != 0 {
		t.Errorf("answered %d", code)
	}
	answered := make(chan int)
	go func() {
		code, _ := f.post(t.Context(), 10)
		answered <- code
	}()
	for f.script.seen() < 2 {
		time.Sleep(time.Millisecond)
	}
	if err := f.Down(false); err != nil {
		t.Fatal(err)
	}
	if code := <-answered; code != 0 {
		t.Errorf("answered %d", code)
	}
	if s := f.Stats(); s.Records != 0 || s.Refused != 2 {
		t.Errorf("%+v", s)
	}
}

func TestBadRequests(t *testing.T) {
	f := newFixture(t, Config{})
	good := f.gen.Append(nil, segment.Logs, 0, 1)
	altered := bytes.Replace(good, []byte("bench.seq"), []byte("bench.Seq"), 1)
	for name, body := range map[string][]byte{
		"torn":              good[:len(good)-1],
		"altered":           altered,
		"number 0":          f.gen.Append(nil, segment.Logs, 0, 0),
		"number too large":  f.gen.Append(nil, segment.Logs, 0, 1<<40),
		"of another signal": f.gen.Append(nil, segment.Traces, 0, 1),
	} {
		before := f.Stats()
		code, _ := f.postBody(t.Context(), body)
		if s := f.Stats(); code != 400 || s.Bad != before.Bad+1 || s.Records != 0 {
			t.Errorf("%s: %d, %+v", name, code, s)
		}
	}
}

// A client that is killed in the middle of a request has not sent a bad one.
func TestClientGoneInTheMiddleIsNotBad(t *testing.T) {
	f := newFixture(t, Config{})
	r := httptest.NewRequest(http.MethodPost, "/v1/logs", &broken{good: f.gen.Append(nil, segment.Logs, 0, 1)[:50]})
	r.Header.Set("Content-Type", protobufType)
	f.handler().ServeHTTP(httptest.NewRecorder(), r)
	if s := f.Stats(); s.Bad != 0 || s.Records != 0 {
		t.Errorf("%+v", s)
	}
}

// broken gives its bytes, then the error of a connection that was cut.
type broken struct{ good []byte }

func (b *broken) Read(p []byte) (int, error) {
	if len(b.good) == 0 {
		return 0, http.ErrHandlerTimeout
	}
	n := copy(p, b.good)
	b.good = b.good[n:]
	return n, nil
}

func TestQuiesceWaitsForWhatWasSent(t *testing.T) {
	f := newFixture(t, Config{})
	f.Behave(Behavior{Delay: 50 * time.Millisecond})
	for i := range uint64(20) {
		// Sent in full, and the client leaves without waiting for the answer: what a killed agent does. The delay is ended by
		// the client's end, so count every request as either taken or refused.
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Millisecond)
		f.post(ctx, 10*i+1)
		cancel()
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if err := f.Quiesce(ctx); err != nil {
		t.Fatal(err)
	}
	settled := f.Stats()
	if err := f.Down(false); err != nil {
		t.Fatal(err)
	}
	if s := f.Stats(); s.Requests != settled.Requests || s.Refused != settled.Refused || s.Requests+s.Refused == 0 {
		t.Errorf("counted after quiesce: %+v, then %+v", settled, s)
	}
	if err := f.Quiesce(ctx); err != nil {
		t.Errorf("while down: %v", err)
	}
}

func TestQuiesceWaitsForOpenConnections(t *testing.T) {
	f := newFixture(t, Config{})
	c, err := net.Dial("tcp", strings.TrimPrefix(f.URL(), "http://"))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := f.Quiesce(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("with a client on the line: error %v", err)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	if err := f.Quiesce(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestStatusInTermsOfGRPC(t *testing.T) {
	for code, want := range map[int]codes.Code{
		400: codes.InvalidArgument, 401: codes.Unauthenticated, 403: codes.PermissionDenied, 404: codes.Unimplemented,
		413: codes.ResourceExhausted, 429: codes.ResourceExhausted, 500: codes.Unknown, 502: codes.Unavailable,
		503: codes.Unavailable, 504: codes.DeadlineExceeded,
	} {
		s := status.Convert(Behavior{Status: code, RetryAfter: time.Second}.err())
		if s.Code() != want || len(s.Details()) != 1 {
			t.Errorf("%d: %v with %d details", code, s.Code(), len(s.Details()))
		}
	}
}

func TestControl(t *testing.T) {
	f := newFixture(t, Config{})
	control := httptest.NewServer(f.Control())
	defer control.Close()
	command := func(path string) int {
		t.Helper()
		resp, err := http.Post(control.URL+path, "", nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := resp.Body.Close(); err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode
	}
	for _, step := range []struct {
		path       string
		code, post int
	}{
		{"/behavior?status=429&retry_after=1s", 204, 429},
		{"/behavior?status=banana", 400, 429},
		{"/behavior?colour=red", 400, 429},
		{"/behavior", 204, 200},
		{"/down?cut=true", 204, 0},
		{"/up", 204, 200},
	} {
		if code := command(step.path); code != step.code {
			t.Errorf("%s: %d, want %d", step.path, code, step.code)
		}
		if code, _ := f.post(t.Context(), 1); code != step.post {
			t.Errorf("after %s a request is answered %d, want %d", step.path, code, step.post)
		}
	}
	resp, err := http.Get(control.URL + "/stats")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var s Stats
	if err := json.NewDecoder(resp.Body).Decode(&s); err != nil || s.Records != 6 || s.Refused != 3 {
		t.Errorf("%+v, %v", s, err)
	}
	if _, err := parseBehavior(url.Values{"hang": {"true"}, "delay": {"1s"}, "requests": {"2"}, "lose_answer": {"1"}}); err != nil {
		t.Error(err)
	}
	if _, err := parseBehavior(url.Values{"status": {"99"}}); err == nil || !strings.Contains(err.Error(), "status") {
		t.Errorf("status 99: %v", err)
	}
}
