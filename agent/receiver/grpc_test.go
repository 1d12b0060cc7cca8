package receiver

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"go.opentelemetry.io/collector/pdata/plog/plogotlp"
	"go.opentelemetry.io/collector/pdata/pmetric/pmetricotlp"
	"go.opentelemetry.io/collector/pdata/ptrace/ptraceotlp"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"ingest-agent/segment"
)

func TestGRPCTakesEachSignalAndCoding(t *testing.T) {
	run := start(t, nil)
	conn := run.client(t)
	logs, traces, metrics := plogotlp.NewExportRequest(), ptraceotlp.NewExportRequest(), pmetricotlp.NewExportRequest()
	for text, r := range map[string]interface{ UnmarshalJSON([]byte) error }{
		oneLogJSON: logs,
		`{"resourceSpans":[{"scopeSpans":[{"spans":[{"name":"x"}]}]}]}`:                                      traces,
		`{"resourceMetrics":[{"scopeMetrics":[{"metrics":[{"name":"x","gauge":{"dataPoints":[{},{}]}}]}]}]}`: metrics,
	} {
		if err := r.UnmarshalJSON([]byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	for _, coding := range []string{"identity", "gzip", "zstd"} {
		with := grpc.UseCompressor(coding)
		_, err1 := plogotlp.NewGRPCClient(conn).Export(t.Context(), logs, with)
		_, err2 := ptraceotlp.NewGRPCClient(conn).Export(t.Context(), traces, with)
		_, err3 := pmetricotlp.NewGRPCClient(conn).Export(t.Context(), metrics, with)
		if err := errors.Join(err1, err2, err3); err != nil {
			t.Errorf("%s: %v", coding, err)
		}
	}
	want := []Request{}
	for range 3 {
		want = append(want, Request{Signal: segment.Logs}, Request{Signal: segment.Traces}, Request{Signal: segment.Metrics})
	}
	for i, r := range run.keep.requests() {
		if r.Signal != want[i].Signal || r.Tenant != DefaultTenant || r.Info.Records != map[segment.Signal]int{1: 1, 2: 1, 3: 2}[r.Signal] {
			t.Errorf("request %d: %+v", i, r)
		}
	}
}

// Bodies belong to the store: buffers that are used again must not show through.
func TestBodiesAreNotShared(t *testing.T) {
	run := start(t, nil)
	conn := run.client(t)
	sent := make(map[string]bool)
	var mu sync.Mutex
	var senders sync.WaitGroup
	for s := range 4 {
		senders.Go(func() {
			for i := range 30 {
				body := logsRequest(t, s*1000+i, 1, 100*i*i)
				body = append(body, 0xf8, 0x3f, byte(i)) // an unknown field: kept byte for byte
				mu.Lock()
				sent[string(body)] = true
				mu.Unlock()
				coding := []string{"identity", "gzip", "zstd"}[i%3]
				if s%2 == 0 {
					if _, err := call(t.Context(), conn, segment.Logs, body, grpc.UseCompressor(coding)); err != nil {
						t.Error(err)
					}
					continue
				}
				encoded := [][]byte{body, gzipped(t, body), zstdSized(t, body)}[i%3]
				if got := run.send(t, "POST", "/v1/logs", bytes.NewReader(encoded), asProtobuf, "Content-Encoding: "+coding); got.status != 200 {
					t.Errorf("%d %q", got.status, got.body)
				}
			}
		})
	}
	senders.Wait()
	for _, r := range run.keep.requests() {
		if !sent[string(r.Body)] {
			t.Fatal("a stored body is not one that was sent")
		}
		delete(sent, string(r.Body))
	}
	if len(sent) != 0 {
		t.Errorf("%d bodies are not stored", len(sent))
	}
}

func TestGRPCEmptyRequestIsSuccessAndNotStored(t *testing.T) {
	run := start(t, func(o *Options) { o.Store = failing{errors.New("asked")} })
	for _, body := range []string{"", "\x0a\x00"} {
		if out, err := call(t.Context(), run.client(t), segment.Logs, []byte(body)); err != nil || len(out) != 0 {
			t.Errorf("%q: %q, %v", body, out, err)
		}
	}
}

func retryDelay(err error) time.Duration {
	for _, d := range status.Convert(err).Details() {
		if info, ok := d.(*errdetails.RetryInfo); ok {
			return info.GetRetryDelay().AsDuration()
		}
	}
	return 0
}

func TestCase55GRPC(t *testing.T) {
	for _, test := range storeAnswers {
		t.Run(test.name, func(t *testing.T) {
			run := start(t, func(o *Options) { o.Store = failing{test.err} })
			_, err := call(t.Context(), run.client(t), segment.Traces, traceRequest(t))
			if status.Code(err) != test.code || retryDelay(err) != test.after {
				t.Errorf("%v with delay %s, want %v with %s", err, retryDelay(err), test.code, test.after)
			}
			checkDiscreet(t, status.Convert(err).Message())
			if n := run.tally.refusals("traces/" + test.reason); n != 1 {
				t.Errorf("counted %v, want 1 for %s", run.tally.refused, test.reason)
			}
			checkMemoryFree(t, run)
		})
	}
}

func traceRequest(t *testing.T) []byte {
	t.Helper()
	r := ptraceotlp.NewExportRequest()
	if err := r.UnmarshalJSON([]byte(`{"resourceSpans":[{"scopeSpans":[{"spans":[{"name":"x"}]}]}]}`)); err != nil {
		t.Fatal(err)
	}
	b, err := r.MarshalProto()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestGRPCRefusesBadRequests(t *testing.T) {
	run := start(t, nil)
	conn := run.client(t)
	fits, tooLong := logsOfSize(t, testLimit), logsOfSize(t, testLimit+1)
	for _, c := range []struct {
		name   string
		body   []byte
		coding string
		code   codes.Code
		reason string
	}{
		{"broken protobuf", []byte("\x0a\x05"), "identity", codes.InvalidArgument, RefusedBadData},
		{"half a request", fits[:100], "gzip", codes.InvalidArgument, RefusedBadData},
		{"at the limit", fits, "identity", codes.OK, ""},
		{"at the limit, gzip", fits, "gzip", codes.OK, ""},
		{"at the limit, zstd", fits, "zstd", codes.OK, ""},
		{"above the limit", tooLong, "identity", codes.ResourceExhausted, RefusedTooLarge},
		{"above the limit, gzip", tooLong, "gzip", codes.ResourceExhausted, RefusedTooLarge},
		{"above the limit, zstd", tooLong, "zstd", codes.ResourceExhausted, RefusedTooLarge},
	} {
		before := run.tally.refusals("logs/" + c.reason)
		_, err := call(t.Context(), conn, segment.Logs, c.body, grpc.UseCompressor(c.coding))
		if status.Code(err) != c.code || retryDelay(err) != 0 {
			t.Errorf("%s: %v, delay %s; want %v and none", c.name, err, retryDelay(err), c.code)
		}
		if c.reason != "" { // the library answers before the receiver hears of it
			waitFor(t, func() bool { return run.tally.refusals("logs/"+c.reason) == before+1 })
		}
	}
	if n := len(run.keep.requests()); n != 3 {
		t.Errorf("%d requests stored, want 3", n)
	}
	lower := testSettings()
	lower.GRPCMaxRequestSizeBytes = testLimit - 1
	if err := run.Apply(lower); err != nil {
		t.Fatal(err)
	}
	if _, err := call(t.Context(), conn, segment.Logs, fits); status.Code(err) != codes.ResourceExhausted || retryDelay(err) != 0 {
		t.Errorf("after the limit was lowered: %v", err)
	}
	err := conn.Invoke(t.Context(), "/opentelemetry.proto.collector.logs.v1.LogsService/Other", &fits, new([]byte), grpc.ForceCodecV2(rawBytes{}))
	if status.Code(err) != codes.Unimplemented {
		t.Errorf("unknown method: %v", err)
	}
}

// The library looks for the end of a call after the first message: a second one must neither be stored nor leak memory.
func TestGRPCSecondMessageIsRefused(t *testing.T) {
	run := start(t, nil)
	stream, err := run.client(t).NewStream(t.Context(), &grpc.StreamDesc{ClientStreams: true}, "/"+grpcService(segment.Logs)+"/Export", grpc.ForceCodecV2(rawBytes{}))
	if err != nil {
		t.Fatal(err)
	}
	body := logsRequest(t, 0, 1, 10)
	for range 2 {
		if err := stream.SendMsg(&body); err != nil {
			t.Fatal(err)
		}
	}
	_ = stream.CloseSend() // its outcome is that of RecvMsg
	if err := stream.RecvMsg(new([]byte)); status.Code(err) != codes.Internal {
		t.Errorf("%v", err)
	}
	if n := len(run.keep.requests()); n != 0 {
		t.Errorf("%d requests stored", n)
	}
	checkMemoryFree(t, run)
}

func checkMemoryFree(t *testing.T, run *running) {
	t.Helper()
	l := run.live.Load()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	for name, acquire := range map[string]func() error{
		"bodies":    func() error { return l.bodies.Acquire(ctx, bodiesBytes(l.Settings)) },
		"receiving": func() error { return l.receiving.Acquire(ctx, int64(receivePlaces(l.GRPCMaxRequestSizeBytes))) },
		"objects":   func() error { return l.json.objects.Acquire(ctx, l.json.maxObjects) },
	} {
		if acquire() != nil {
			t.Errorf("%s are still held", name)
		}
	}
}

func TestCase61SlowGRPC(t *testing.T) {
	run := start(t, func(o *Options) { o.Settings.ReadTimeout = 200 * time.Millisecond })
	conn := run.client(t)
	for _, sends := range []int{0, 1} { // no message at all; a message, but never the end of the call
		stream, err := conn.NewStream(t.Context(), &grpc.StreamDesc{ClientStreams: true}, "/"+grpcService(segment.Logs)+"/Export", grpc.ForceCodecV2(rawBytes{}))
		if err != nil {
			t.Fatal(err)
		}
		body := logsRequest(t, 0, 1, 10)
		for range sends {
			if err := stream.SendMsg(&body); err != nil {
				t.Fatal(err)
			}
		}
		// CANCELLED is what the library answers; OTLP clients send again.
		if err := stream.RecvMsg(new([]byte)); status.Code(err) != codes.Canceled {
			t.Errorf("%d messages: %v", sends, err)
		}
	}
	checkMemoryFree(t, run)
	waitFor(t, func() bool { return run.tally.refusals("logs/"+RefusedTimeout) == 2 })
	if n := len(run.keep.requests()); n != 0 {
		t.Errorf("%d requests stored", n)
	}
}

// With every receiving place taken by slow clients, others are told to come back.
func TestGRPCReceivingPlacesAreBounded(t *testing.T) {
	run := start(t, func(o *Options) { o.Settings.ReadTimeout = 300 * time.Millisecond })
	l := run.live.Load()
	places := int64(receivePlaces(l.GRPCMaxRequestSizeBytes))
	if err := l.receiving.Acquire(t.Context(), places); err != nil {
		t.Fatal(err)
	}
	_, err := call(t.Context(), run.client(t), segment.Logs, logsRequest(t, 0, 1, 10))
	if status.Code(err) != codes.ResourceExhausted || retryDelay(err) != shortDelay {
		t.Errorf("%v, delay %s", err, retryDelay(err))
	}
	l.receiving.Release(places)
	if _, err := call(t.Context(), run.client(t), segment.Logs, logsRequest(t, 0, 1, 10)); err != nil {
		t.Error(err)
	}
}

func TestTenants(t *testing.T) {
	run := start(t, func(o *Options) {
		o.Settings.Tenant = func(_ context.Context, c Caller) (string, error) {
			if !strings.HasPrefix(c.RemoteAddr, "127.0.0.1:") {
				return "", fmt.Errorf("remote address %q", c.RemoteAddr)
			}
			switch v := c.Header("X-Tenant"); {
			case len(v) == 0:
				return "", fmt.Errorf("read token: %w", ErrUnauthenticated)
			case v[0] == "locked":
				return "", ErrForbidden
			case v[0] == "odd":
				return "", ErrMalformed
			case v[0] == "broken":
				return "", errSecret
			default:
				return v[0], nil
			}
		}
	})
	body := logsRequest(t, 0, 1, 10)
	for _, c := range []struct {
		tenant string
		http   int
		code   codes.Code
	}{
		{"acme", 200, codes.OK}, {"", 401, codes.Unauthenticated}, {"locked", 403, codes.PermissionDenied},
		{"odd", 400, codes.InvalidArgument}, {"broken", 503, codes.Unavailable},
	} {
		ctx, headers := t.Context(), []string{asProtobuf}
		if c.tenant != "" {
			ctx = metadata.AppendToOutgoingContext(ctx, "x-tenant", c.tenant)
			headers = append(headers, "X-Tenant: "+c.tenant)
		}
		got := run.send(t, "POST", "/v1/logs", bytes.NewReader(body), headers...)
		if got.status != c.http || (got.header.Get("Retry-After") != "") != (c.http == 503) {
			t.Errorf("%q over HTTP: %d %v", c.tenant, got.status, got.header)
		}
		if c.http == 401 && got.header.Get("WWW-Authenticate") == "" {
			t.Error("401 without WWW-Authenticate")
		}
		_, err := call(ctx, run.client(t), segment.Logs, body)
		if status.Code(err) != c.code || (retryDelay(err) != 0) != (c.http == 503) {
			t.Errorf("%q over gRPC: %v", c.tenant, err)
		}
		checkDiscreet(t, "x"+status.Convert(err).Message())
	}
	for _, r := range run.keep.requests() {
		if r.Tenant != "acme" {
			t.Errorf("stored for %q", r.Tenant)
		}
	}
	if n := run.tally.accepted["logs/acme"]; n != 2 {
		t.Errorf("%d records counted", n)
	}
}

// Who may not send is told so without a byte of the body.
func TestTenantIsResolvedBeforeTheBody(t *testing.T) {
	for code, c := range map[codes.Code]struct {
		err    error
		status string
	}{
		codes.Unauthenticated: {ErrUnauthenticated, "401"}, codes.PermissionDenied: {ErrForbidden, "403"}, codes.InvalidArgument: {ErrMalformed, "400"},
	} {
		run := start(t, func(o *Options) {
			o.Settings.Tenant = func(context.Context, Caller) (string, error) { return "", c.err }
		})
		conn, err := net.Dial("tcp", strings.TrimPrefix(run.url, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(conn, "POST /v1/logs HTTP/1.1\r\nHost: x\r\n"+asProtobuf+"\r\nContent-Length: 1000\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		got := make([]byte, 12)
		if _, err := io.ReadFull(conn, got); err != nil || string(got) != "HTTP/1.1 "+c.status {
			t.Errorf("%q, %v; want %s", got, err, c.status)
		}
		_ = conn.Close()
		stream, err := run.client(t).NewStream(t.Context(), &grpc.StreamDesc{ClientStreams: true}, "/"+grpcService(segment.Logs)+"/Export", grpc.ForceCodecV2(rawBytes{}))
		if err != nil {
			t.Fatal(err)
		}
		if err := stream.RecvMsg(new([]byte)); status.Code(err) != code || retryDelay(err) != 0 {
			t.Errorf("gRPC: %v, want %v", err, code)
		}
	}
}

func TestHealth(t *testing.T) {
	var mu sync.Mutex
	var cause error
	run := start(t, func(o *Options) {
		o.Ready = func() error {
			mu.Lock()
			defer mu.Unlock()
			return cause
		}
	})
	client := grpc_health_v1.NewHealthClient(run.client(t))
	check := func(service string) (string, error) {
		r, err := client.Check(t.Context(), &grpc_health_v1.HealthCheckRequest{Service: service})
		return r.GetStatus().String(), err
	}
	for _, service := range []string{"", grpcService(segment.Logs), grpcService(segment.Traces), grpcService(segment.Metrics)} {
		if s, err := check(service); s != "SERVING" || err != nil {
			t.Errorf("%q: %s, %v", service, s, err)
		}
	}
	if _, err := check("other"); status.Code(err) != codes.NotFound {
		t.Errorf("unknown service: %v", err)
	}
	watch, err := client.Watch(t.Context(), &grpc_health_v1.HealthCheckRequest{})
	if err != nil {
		t.Fatal(err)
	}
	expect := func(want string) {
		t.Helper()
		if r, err := watch.Recv(); err != nil || r.GetStatus().String() != want {
			t.Fatalf("watch: %v, %v; want %s", r, err, want)
		}
	}
	expect("SERVING")
	mu.Lock()
	cause = errors.New("disk")
	mu.Unlock()
	expect("NOT_SERVING")
	if s, err := check(""); s != "NOT_SERVING" || err != nil {
		t.Errorf("not ready: %s, %v", s, err)
	}
	// A watch does not hold up the stop.
	if err := run.Shutdown(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := watch.Recv(); status.Code(err) != codes.Unavailable {
		t.Errorf("watch after the stop: %v", err)
	}
}
