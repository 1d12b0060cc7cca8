package export

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.opentelemetry.io/collector/pdata/plog/plogotlp"
	"go.opentelemetry.io/collector/pdata/pmetric/pmetricotlp"
	"go.opentelemetry.io/collector/pdata/ptrace/ptraceotlp"
	"go.uber.org/zap"
	spb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/protobuf/proto"

	"ingest-agent/segment"
)

// partialSuccess is a success answer in protobuf or JSON.
func partialSuccess(t *testing.T, signal segment.Signal, asJSON bool, rejected int64, message string) []byte {
	t.Helper()
	var answer interface {
		MarshalProto() ([]byte, error)
		MarshalJSON() ([]byte, error)
	}
	switch signal {
	case segment.Logs:
		a := plogotlp.NewExportResponse()
		a.PartialSuccess().SetRejectedLogRecords(rejected)
		a.PartialSuccess().SetErrorMessage(message)
		answer = a
	case segment.Traces:
		a := ptraceotlp.NewExportResponse()
		a.PartialSuccess().SetRejectedSpans(rejected)
		a.PartialSuccess().SetErrorMessage(message)
		answer = a
	case segment.Metrics:
		a := pmetricotlp.NewExportResponse()
		a.PartialSuccess().SetRejectedDataPoints(rejected)
		a.PartialSuccess().SetErrorMessage(message)
		answer = a
	}
	marshal := answer.MarshalProto
	if asJSON {
		marshal = answer.MarshalJSON
	}
	b, err := marshal()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestCase49PartialSuccess(t *testing.T) {
	for _, signal := range segment.Signals {
		for _, asJSON := range []bool{false, true} {
			for _, c := range []struct {
				rejected int64
				message  string
				want     uint64
				wantErr  string
			}{
				{3, "too old", 3, "3 of 10 records rejected: too old"},
				{0, "use the new endpoint", 0, "warning from the destination: use the new endpoint"},
				{0, "", 0, ""},
				{3, "", 3, "3 of 10"},
				{11, "more than there are", 10, "10 of 10"},
				{-4, "", 0, ""},
			} {
				srv := serve(t, func(w http.ResponseWriter, r *http.Request) {
					_, _ = io.Copy(io.Discard, r.Body)
					w.Header().Set("Content-Type", map[bool]string{false: "application/x-protobuf", true: "application/json"}[asJSON])
					_, _ = w.Write(partialSuccess(t, signal, asJSON, c.rejected, c.message))
				})
				out := newTestSink(t, httpOptions(srv.URL)).Deliver(t.Context(), request(t, signal, 2, 5))
				wantVerdict(t, out, segment.Delivered)
				if out.Rejected != c.want || (out.Err == nil) != (c.wantErr == "") || (out.Err != nil && !strings.Contains(out.Err.Error(), c.wantErr)) {
					t.Errorf("%v, JSON %v, %+v: rejected %d, %v", signal, asJSON, c, out.Rejected, out.Err)
				}
			}
		}
	}
}

// HTTP 2xx is a success whatever stands beside it; what can not be read as an answer is told, and counts nothing.
func TestOddSuccessAnswers(t *testing.T) {
	status, err := proto.Marshal(&spb.Status{Code: 3, Message: "refused"})
	if err != nil {
		t.Fatal(err)
	}
	three := partialSuccess(t, segment.Logs, false, 3, "m")
	for _, c := range []struct {
		contentType string
		body        []byte
		rejected    uint64
		wantErr     bool
	}{
		{"application/x-protobuf", []byte("\xff\xff"), 0, true},
		{"application/x-protobuf", status, 0, true},
		{"application/x-protobuf", nil, 0, false},
		{"application/x-protobuf; charset=utf-8", three, 3, true},
		{"Application/X-Protobuf", three, 3, true},
		{"application/x-protobuf", append(slices.Clone(three), unknownField...), 3, true},
		{"application/protobuf", three, 0, false}, // not a type of OTLP
		{"application/json", three, 0, true},
		{"application/json", []byte("{"), 0, true},
		{"application/json", []byte("null"), 0, false},
		{"application/json", []byte("{}"), 0, false},
		{"application/json", []byte(`{"code":3,"message":"refused"}`), 0, false},
		{"application/json", []byte(`{"partialSuccess":{"rejectedLogRecords":"2","errorMessage":"m"}}`), 2, true},
		{"application/json;charset=utf-8", []byte(`{"partialSuccess":{"rejectedLogRecords":2}, "new":[{}]}`), 2, true},
		{"application/json", []byte(`{"partialSuccess":{"rejectedLogRecords":99999999999999999999}}`), 0, true},
		{"application/json", []byte(strings.Repeat("[", 60_000)), 0, true},
		{"text/plain; charset=utf-8", []byte("OK"), 0, false},
		{";;", three, 0, false},
		{"", []byte("OK"), 0, false},
		{"application/x-protobuf", make([]byte, 50<<20), 0, false}, // larger than what is read
	} {
		srv := serve(t, func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			w.Header()["Content-Type"] = []string{c.contentType}
			_, _ = w.Write(c.body)
		})
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		out := newTestSink(t, httpOptions(srv.URL)).Deliver(t.Context(), request(t, segment.Logs, 5, 1))
		runtime.ReadMemStats(&after)
		wantVerdict(t, out, segment.Delivered)
		if (out.Err != nil) != c.wantErr || out.Rejected != c.rejected {
			t.Errorf("%s, %.60q: rejected %d, %v", c.contentType, c.body, out.Rejected, out.Err)
		}
		if grown := after.TotalAlloc - before.TotalAlloc; grown > 8<<20 {
			t.Errorf("%d bytes answer: %d bytes allocated", len(c.body), grown)
		}
	}
}

// An answer without end on a status that refuses must not hold the attempt, nor its memory, until the timeout.
func TestHugeRefusal(t *testing.T) {
	for status, want := range map[int]segment.Verdict{400: segment.Refused, 413: segment.TooLarge, 503: segment.Retry} {
		srv := serve(t, func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			w.Header().Set("Content-Type", "text/plain")
			w.WriteHeader(status)
			for err := error(nil); err == nil; {
				_, err = w.Write(make([]byte, 64<<10))
			}
		})
		wantVerdict(t, newTestSink(t, httpOptions(srv.URL)).Deliver(t.Context(), request(t, segment.Logs, 1, 1)), want)
	}
}

func TestHangingDestination(t *testing.T) {
	arrived := make(chan struct{})
	srv := serve(t, func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		arrived <- struct{}{}
		<-r.Context().Done()
	})
	sink := newTestSink(t, httpOptions(srv.URL))
	stop := errors.New("the agent stops")
	ctx, cancel := context.WithCancelCause(t.Context())
	go func() {
		<-arrived
		cancel(stop)
	}()
	out := sink.Deliver(ctx, request(t, segment.Logs, 1, 1))
	wantVerdict(t, out, segment.Retry)
	if !errors.Is(out.Err, stop) {
		t.Errorf("error %v", out.Err)
	}

	o := httpOptions(srv.URL)
	o.Timeout = 20 * time.Millisecond
	go func() { <-arrived }()
	out = newTestSink(t, o).Deliver(t.Context(), request(t, segment.Logs, 1, 1))
	wantVerdict(t, out, segment.Retry)
	if !errors.Is(out.Err, errNoAnswer) {
		t.Errorf("error %v", out.Err)
	}
}

// An answer that drips is cut by the timeout of the attempt, and what it says until then confirms nothing.
func TestSlowAnswer(t *testing.T) {
	srv := serve(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Length", "100")
		_, _ = w.Write([]byte("x"))
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	})
	o := httpOptions(srv.URL)
	o.Timeout = 50 * time.Millisecond
	out := newTestSink(t, o).Deliver(t.Context(), request(t, segment.Logs, 1, 1))
	wantVerdict(t, out, segment.Retry)
	if !errors.Is(out.Err, errNoAnswer) {
		t.Errorf("error %v", out.Err)
	}
}

// rawServer answers each connection's requests with the same bytes and closes it if the bytes are not a whole answer.
func rawServer(t *testing.T, answer string) (url string, requests *collector[string]) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	requests = &collector[string]{}
	var wg sync.WaitGroup
	t.Cleanup(func() { _ = l.Close(); wg.Wait() })
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			if r, err := http.ReadRequest(bufio.NewReader(c)); err == nil {
				_, _ = io.Copy(io.Discard, r.Body)
				requests.add(r.URL.Path)
				_, _ = io.WriteString(c, answer)
			}
			_ = c.Close()
		}
	})
	return "http://" + l.Addr().String(), requests
}

// Each cut is one attempt: nothing below the sink may send the request again.
func TestCutConnection(t *testing.T) {
	for _, answer := range []string{
		"",
		"HTTP/1.1 2",
		"HTTP/1.1 200 OK\r\nContent-Type: application/x-protobuf\r\n",
		"HTTP/1.1 200 OK\r\nContent-Type: application/x-protobuf\r\nContent-Length: 10\r\n\r\n12345",
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n12345\r\n",
		"SSH-2.0-OpenSSH\r\n",
		"HTTP/1.1 200 OK\r\nX: " + strings.Repeat("x", 2*maxAnswerBytes) + "\r\n\r\n",
	} {
		url, requests := rawServer(t, answer)
		out := newTestSink(t, httpOptions(url)).Deliver(t.Context(), request(t, segment.Logs, 1, 1))
		if out.Verdict != segment.Retry || out.Err == nil {
			t.Errorf("%.40q: verdict %d, %v", answer, out.Verdict, out.Err)
		}
		if n := len(requests.get()); n != 1 {
			t.Errorf("%.40q: sent %d times", answer, n)
		}
	}
}

// The transport would send a request again that it holds for repeatable when a reused connection is cut. Nothing may be on
// the wire twice that the caller does not know of.
func TestNothingIsSentTwice(t *testing.T) {
	var requests collector[string]
	srv := serve(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		requests.add(r.RemoteAddr)
		if len(requests.get()) == 1 {
			return
		}
		c, _, err := http.NewResponseController(w).Hijack()
		if err == nil {
			err = c.Close()
		}
		if err != nil {
			t.Error(err)
		}
	})
	o := httpOptions(srv.URL)
	o.Headers = map[string]string{"Idempotency-Key": "k"}
	sink := newTestSink(t, o)
	wantVerdict(t, sink.Deliver(t.Context(), request(t, segment.Logs, 1, 1)), segment.Delivered)
	wantVerdict(t, sink.Deliver(t.Context(), request(t, segment.Logs, 1, 1)), segment.Retry)
	if n := len(requests.get()); n != 2 {
		t.Errorf("%d requests for 2 attempts", n)
	}
}

func TestDestinationIsDown(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	out := newTestSink(t, httpOptions("http://user:hunter2@"+addr+"/?key=hunter2")).Deliver(t.Context(), request(t, segment.Logs, 1, 1))
	wantVerdict(t, out, segment.Retry)
	if strings.Contains(out.Err.Error(), "hunter2") {
		t.Errorf("error shows a secret: %v", out.Err)
	}
}

// A server may answer before it has read the request, and close the connection under the transport that still sends. The
// bodies must not be touched after Deliver, which the race detector sees.
func TestAnswerBeforeTheBodyIsSent(t *testing.T) {
	for status, want := range map[int]segment.Verdict{200: segment.Retry, 400: segment.Refused, 413: segment.TooLarge, 503: segment.Retry} {
		srv := serve(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) })
		big := make([]byte, 16<<20)
		r := &segment.Request{Signal: segment.Logs, Frames: []segment.Frame{frame(segment.Logs, 1, big, 1)}}
		out := newTestSink(t, httpOptions(srv.URL)).Deliver(t.Context(), r)
		clear(big)
		if out.Verdict != want {
			t.Errorf("HTTP %d: verdict %d, want %d (%v)", status, out.Verdict, want, out.Err)
		}
	}
}

func TestConnectionsAreReusedAndClosed(t *testing.T) {
	const inFlight = 4
	var mu sync.Mutex
	open, opened := 0, 0
	closed := sync.NewCond(&mu)
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) }))
	srv.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		mu.Lock()
		defer mu.Unlock()
		switch state {
		case http.StateNew:
			open++
			opened++
		case http.StateClosed:
			open--
			closed.Broadcast()
		}
	}
	srv.Start()
	defer srv.Close()
	sink, err := New("default", httpOptions(srv.URL))
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for range inFlight {
		wg.Go(func() {
			for range 50 {
				if out := sink.Deliver(context.Background(), request(t, segment.Logs, 1, 1)); out.Verdict != segment.Delivered {
					t.Error(out.Err)
				}
			}
		})
	}
	wg.Wait()
	mu.Lock()
	defer mu.Unlock()
	// A connection goes back to the pool a moment after its answer, so a few more than in flight may be made.
	if opened > 4*inFlight {
		t.Errorf("%d connections for 200 requests, %d in flight", opened, inFlight)
	}
	if err := sink.Close(); err != nil {
		t.Error(err)
	}
	for open > 0 { // hangs, and so fails, if one is leaked
		closed.Wait()
	}
}

func TestTLS(t *testing.T) {
	var protos collector[string]
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		protos.add(r.Proto)
	}))
	srv.EnableHTTP2 = true
	srv.TLS = &tls.Config{ClientAuth: tls.RequireAnyClientCert}
	srv.Config.ErrorLog = zap.NewStdLog(zap.NewNop())
	srv.StartTLS()
	defer srv.Close()
	dir := t.TempDir()
	write := func(name, kind string, der []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	key, err := x509.MarshalPKCS8PrivateKey(srv.TLS.Certificates[0].PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	cert := write("cert.pem", "CERTIFICATE", srv.Certificate().Raw)
	keyFile := write("key.pem", "PRIVATE KEY", key)
	client := TLSOptions{CertFile: cert, KeyFile: keyFile}
	for name, c := range map[string]struct {
		change func(*TLSOptions)
		want   segment.Verdict
	}{
		"trusted":               {func(o *TLSOptions) { o.CAFile = cert }, segment.Delivered},
		"not trusted":           {func(*TLSOptions) {}, segment.Retry},
		"not verified":          {func(o *TLSOptions) { o.InsecureSkipVerify = true }, segment.Delivered},
		"name in certificate":   {func(o *TLSOptions) { o.CAFile, o.ServerNameOverride = cert, "example.com" }, segment.Delivered},
		"name not in it":        {func(o *TLSOptions) { o.CAFile, o.ServerNameOverride = cert, "example.org" }, segment.Retry},
		"no client certificate": {func(o *TLSOptions) { *o = TLSOptions{CAFile: cert} }, segment.Retry},
	} {
		o := httpOptions(srv.URL)
		o.TLS = client
		c.change(&o.TLS)
		out := newTestSink(t, o).Deliver(t.Context(), request(t, segment.Logs, 1, 1))
		if out.Verdict != c.want {
			t.Errorf("%s: verdict %d, want %d (%v)", name, out.Verdict, c.want, out.Err)
		}
	}
	for _, p := range protos.get() {
		if p != "HTTP/2.0" {
			t.Errorf("sent with %s", p)
		}
	}
	if len(protos.get()) != 3 {
		t.Errorf("%d requests", len(protos.get()))
	}
	o := httpOptions(srv.URL)
	o.TLS.CAFile = keyFile
	if _, err := New("default", o); err == nil || !strings.Contains(err.Error(), "no PEM certificate") {
		t.Errorf("a key as ca_file: %v", err)
	}
}
