package receiver

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"ingest-agent/segment"
)

// held is a store that keeps each request until it is released.
type held struct {
	entered chan Request
	release chan error
	ended   chan error // what a context said, if obey is set
	obey    bool
}

func newHeld() *held {
	return &held{entered: make(chan Request, 100), release: make(chan error, 100), ended: make(chan error, 100)}
}

func (h *held) accept(ctx context.Context, r Request) error {
	h.entered <- r
	if h.obey {
		select {
		case <-ctx.Done():
			h.ended <- ctx.Err()
			return ctx.Err()
		case err := <-h.release:
			return err
		}
	}
	return <-h.release
}

// sendBoth sends a request over each transport in the background, and yields what came of it: 200 and 0 for success.
func (run *running) sendBoth(t *testing.T, body []byte) (overHTTP <-chan int, overGRPC <-chan error) {
	t.Helper()
	httpDone, grpcDone := make(chan int, 1), make(chan error, 1)
	go func() {
		resp, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(post(run.url, body))
		if err != nil {
			httpDone <- 0
			return
		}
		_ = resp.Body.Close()
		httpDone <- resp.StatusCode
	}()
	conn := run.client(t)
	go func() {
		_, err := call(context.Background(), conn, segment.Logs, body)
		grpcDone <- err
	}()
	return httpDone, grpcDone
}

func post(url string, body []byte) *http.Request {
	req, err := http.NewRequest(http.MethodPost, url+"/v1/logs", bytes.NewReader(body))
	if err != nil {
		panic(err)
	}
	req.Header.Set("Content-Type", protobufType)
	return req
}

// Case 16: no answer before the store has it.
func TestCase16AnswerComesAfterTheStore(t *testing.T) {
	store := newHeld()
	run := start(t, func(o *Options) { o.Store.(*keep).answer = store.accept })
	overHTTP, overGRPC := run.sendBoth(t, logsRequest(t, 0, 1, 10))
	<-store.entered
	<-store.entered
	select {
	case <-overHTTP:
		t.Error("HTTP answered before the request was stored")
	case err := <-overGRPC:
		t.Errorf("gRPC answered before the request was stored: %v", err)
	case <-time.After(100 * time.Millisecond):
	}
	store.release <- nil
	store.release <- nil
	if got := <-overHTTP; got != 200 {
		t.Errorf("HTTP: %d", got)
	}
	if err := <-overGRPC; err != nil {
		t.Error(err)
	}
}

// Case 68: a client that gives up after its request was handed over changes nothing: it is kept whole, once for each
// time that it was received.
func TestCase68ClientGoesAway(t *testing.T) {
	for _, obey := range []bool{false, true} { // the store is past, or before, the point of no return
		store := newHeld()
		store.obey = obey
		run := start(t, func(o *Options) { o.Store.(*keep).answer = store.accept })
		body := logsRequest(t, 0, 5, 1000)
		ctx, cancel := context.WithCancel(t.Context())
		answered := make(chan error, 2)
		conn := run.client(t)
		go func() {
			_, err := call(ctx, conn, segment.Logs, body)
			answered <- err
		}()
		go func() {
			resp, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(post(run.url, body).WithContext(ctx))
			if err == nil {
				_ = resp.Body.Close()
			}
			answered <- err
		}()
		for range 2 {
			if r := <-store.entered; !bytes.Equal(r.Body, body) {
				t.Error("the store got something else")
			}
		}
		cancel()
		for range 2 {
			if err := <-answered; err == nil {
				t.Error("answered with success")
			}
		}
		want := 0
		for range 2 {
			if obey {
				if err := <-store.ended; err == nil { // the store hears of it on both transports
					t.Error("the request's context ended without a cause")
				}
			} else {
				want++
				store.release <- nil
			}
		}
		<-drained(t, run)
		stored := run.keep.requests()
		for _, r := range stored {
			if !bytes.Equal(r.Body, body) {
				t.Error("half a request is stored")
			}
		}
		if len(stored) != want {
			t.Errorf("%d requests stored, want %d", len(stored), want)
		}
		if n := run.tally.refusals("logs/" + RefusedCanceled); n != 2-want {
			t.Errorf("counted %v", run.tally.refused)
		}
	}
}

// drained stops the receiver and is closed when nothing is in hand.
func drained(t *testing.T, run *running) <-chan struct{} {
	t.Helper()
	if err := run.Shutdown(t.Context()); err != nil {
		t.Error(err)
	}
	return run.inHand.idle
}

func TestShutdownFinishesRequestsInHand(t *testing.T) {
	store := newHeld()
	run := start(t, func(o *Options) { o.Store.(*keep).answer = store.accept })
	body := logsRequest(t, 0, 1, 10)
	overHTTP, overGRPC := run.sendBoth(t, body)
	<-store.entered
	<-store.entered
	stopped := make(chan error, 1)
	go func() { stopped <- run.Shutdown(context.Background()) }()
	<-run.inHand.stopping
	select {
	case err := <-stopped:
		t.Fatalf("shutdown did not wait: %v", err)
	default:
	}
	store.release <- nil
	store.release <- nil
	if got := <-overHTTP; got != 200 {
		t.Errorf("HTTP: %d", got)
	}
	if err := <-overGRPC; err != nil {
		t.Error(err)
	}
	if err := <-stopped; err != nil {
		t.Error(err)
	}
	if _, err := net.Dial("tcp", run.grpc); err == nil {
		t.Error("still listening")
	}
}

// A request that begins in the moment of the stop, on a connection that is open, is refused with a delay.
func TestRequestsAfterTheStopAreRefused(t *testing.T) {
	run := start(t, nil)
	run.inHand.stop()
	body := logsRequest(t, 0, 1, 10)
	if got := run.send(t, "POST", "/v1/logs", bytes.NewReader(body), asProtobuf); got.status != 503 || got.header.Get("Retry-After") != "1" {
		t.Errorf("HTTP: %d, Retry-After %q", got.status, got.header.Get("Retry-After"))
	}
	if _, err := call(t.Context(), run.client(t), segment.Logs, body); status.Code(err) != codes.Unavailable || retryDelay(err) != shortDelay {
		t.Errorf("gRPC: %v, delay %s", err, retryDelay(err))
	}
	if n := run.tally.refusals("logs/" + string(segment.RefusedStopping)); n != 2 || len(run.keep.requests()) != 0 {
		t.Errorf("counted %v, %d stored", run.tally.refused, len(run.keep.requests()))
	}
}

func used(run *running) (n int) {
	for _, l := range run.listeners {
		l.mu.Lock()
		for c := range l.open {
			if c.used.Load() {
				n++
			}
		}
		l.mu.Unlock()
	}
	return n
}

// Connections on which nothing was sent do not hold up a stop, nor do half a gRPC preface and half an HTTP request once
// the time is over.
func TestShutdownWithSilentConnections(t *testing.T) {
	for _, sends := range []string{"", "P"} {
		run := start(t, nil)
		for _, addr := range []string{run.grpc, strings.TrimPrefix(run.url, "http://")} {
			c, err := net.Dial("tcp", addr)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = c.Close() })
			if _, err := io.WriteString(c, sends); err != nil {
				t.Fatal(err)
			}
		}
		if sends == "" {
			waitFor(t, func() bool { return accepted(run) == 2 })
		} else {
			waitFor(t, func() bool { return used(run) == 2 })
		}
		patience := map[string]time.Duration{"": 5 * time.Second, "P": time.Second}[sends]
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		began := time.Now()
		if err := run.Shutdown(ctx); err != nil { // nothing was in hand: nothing was cut off
			t.Errorf("%q: %v", sends, err)
		}
		cancel()
		// Left to the servers, it would take 10 s, which is what they give a client to begin.
		limit := map[string]time.Duration{"": 4 * time.Second, "P": 6 * time.Second}[sends]
		if took := time.Since(began); took > limit {
			t.Errorf("%q: the stop took %s", sends, took)
		}
	}
}

func accepted(run *running) (n int) {
	for _, l := range run.listeners {
		l.mu.Lock()
		n += len(l.open)
		l.mu.Unlock()
	}
	return n
}

func TestShutdownCutsWhatTakesTooLong(t *testing.T) {
	store := newHeld()
	store.obey = true
	run := start(t, func(o *Options) { o.Store.(*keep).answer = store.accept })
	overHTTP, overGRPC := run.sendBoth(t, logsRequest(t, 0, 1, 10))
	<-store.entered
	<-store.entered
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := run.Shutdown(ctx); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "2 requests were cut off") {
		t.Errorf("%v", err)
	}
	if got := <-overHTTP; got != 0 && got != 503 {
		t.Errorf("HTTP: %d", got)
	}
	if err := <-overGRPC; status.Code(err) != codes.Unavailable && status.Code(err) != codes.Canceled {
		t.Errorf("gRPC: %v", err)
	}
}

func TestShutdownDoesNotWaitForAHangingStore(t *testing.T) {
	store := newHeld()
	run := start(t, func(o *Options) { o.Store.(*keep).answer = store.accept })
	overHTTP, overGRPC := run.sendBoth(t, logsRequest(t, 0, 1, 10))
	<-store.entered
	<-store.entered
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := run.Shutdown(ctx); err == nil || !strings.Contains(err.Error(), "2 requests are still with the store") {
		t.Errorf("%v", err)
	}
	store.release <- nil
	store.release <- nil
	<-overHTTP
	if err := <-overGRPC; err == nil {
		t.Error("answered on a connection that was cut")
	}
}

func TestFailedListenerIsFatal(t *testing.T) {
	for i, name := range []string{"gRPC", "HTTP"} {
		t.Run(name, func(t *testing.T) {
			run := start(t, nil)
			if err := run.listeners[i].Listener.Close(); err != nil {
				t.Fatal(err)
			}
			if err := <-run.Fatal(); !strings.Contains(err.Error(), "serve "+name) {
				t.Errorf("%v", err)
			}
		})
	}
}

func TestStartFailsWhole(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	freeAddr := free.Addr().String()
	_ = free.Close()
	r, err := New(Options{GRPCEndpoint: freeAddr, HTTPEndpoint: taken.Addr().String(), Settings: testSettings(), Store: new(keep)})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.Start(); err == nil || !strings.Contains(err.Error(), "listen for HTTP") {
		t.Fatalf("%v", err)
	}
	again, err := net.Listen("tcp", freeAddr)
	if err != nil {
		t.Fatalf("the other port is left open: %v", err)
	}
	_ = again.Close()
	if err := r.Shutdown(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestOptionsAreChecked(t *testing.T) {
	good := Options{Settings: testSettings(), Store: new(keep)}
	for name, spoil := range map[string]func(o *Options){
		"store":        func(o *Options) { o.Store = nil },
		"gRPC size":    func(o *Options) { o.Settings.GRPCMaxRequestSizeBytes = 0 },
		"HTTP size":    func(o *Options) { o.Settings.HTTPMaxRequestSizeBytes = maxRequestSizeBytes + 1 },
		"read timeout": func(o *Options) { o.Settings.ReadTimeout = 0 },
	} {
		bad := good
		spoil(&bad)
		if _, err := New(bad); err == nil {
			t.Errorf("no error for a bad %s", name)
		}
	}
	if _, err := New(good); err != nil {
		t.Error(err)
	}
}

// A busy receiver refuses with a delay instead of taking more into memory.
func TestMemoryOfBodiesIsBounded(t *testing.T) {
	store := newHeld()
	run := start(t, func(o *Options) {
		o.Settings.HTTPMaxRequestSizeBytes = 16 << 20
		o.Settings.GRPCMaxRequestSizeBytes = 16 << 20
		o.Store.(*keep).answer = store.accept
	})
	conn := run.client(t)
	big := logsOfSize(t, 16<<20)
	var failed atomic.Int32
	done := make(chan struct{})
	for i := range inFlightRequests {
		go func() {
			defer func() { done <- struct{}{} }()
			if i%2 == 0 {
				if _, err := call(context.Background(), conn, segment.Logs, big); err != nil {
					failed.Add(1)
				}
				return
			}
			resp, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(post(run.url, big))
			if err != nil || resp.StatusCode != http.StatusOK {
				failed.Add(1)
				return
			}
			_ = resp.Body.Close()
		}()
	}
	for range inFlightRequests {
		<-store.entered
	}
	small := logsRequest(t, 0, 1, 10)
	if got := run.send(t, "POST", "/v1/logs", bytes.NewReader(small), asProtobuf); got.status != 429 || got.header.Get("Retry-After") != "1" {
		t.Errorf("HTTP: %d, Retry-After %q", got.status, got.header.Get("Retry-After"))
	}
	if got := run.send(t, "POST", "/v1/logs", bytes.NewReader(gzipped(t, small)), asProtobuf, "Content-Encoding: gzip"); got.status != 429 {
		t.Errorf("HTTP, gzip: %d", got.status)
	}
	_, err := call(t.Context(), conn, segment.Logs, small, grpc.UseCompressor("gzip"))
	if status.Code(err) != codes.ResourceExhausted || retryDelay(err) != shortDelay {
		t.Errorf("gRPC: %v, delay %s", err, retryDelay(err))
	}
	if n := run.tally.refusals("logs/" + RefusedBusy); n != 3 {
		t.Errorf("counted %v", run.tally.refused)
	}
	for range inFlightRequests {
		store.release <- nil
	}
	for range inFlightRequests {
		<-done
	}
	if failed.Load() != 0 {
		t.Errorf("%d requests within the bound failed", failed.Load())
	}
	checkMemoryFree(t, run)
}
