package export

import (
	"context"
	"fmt"
	"io"
	"math"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	spb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"

	"ingest-agent/segment"
)

// held is a value that a test sets and a server's handlers read.
type held[T any] struct {
	mu  sync.Mutex
	now T
}

func (h *held[T]) set(v T) { h.mu.Lock(); defer h.mu.Unlock(); h.now = v }
func (h *held[T]) get() T  { h.mu.Lock(); defer h.mu.Unlock(); return h.now }

// wantHTTP are the verdicts on HTTP statuses as the OTLP specification lists them.
func wantHTTP(status int) segment.Verdict {
	switch {
	case status >= 200 && status <= 299:
		return segment.Delivered
	case status == 413:
		return segment.TooLarge
	case status == 429, status == 502, status == 503, status == 504:
		return segment.Retry
	}
	return segment.Refused
}

func TestCase43HTTPStatusAndRetryAfter(t *testing.T) {
	type answer struct {
		status     int
		retryAfter string
	}
	var next held[answer]
	date := time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC) // far from our clock: a date counts from the Date beside it
	srv := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		a := next.get()
		w.Header().Set("Date", date.Format(http.TimeFormat))
		if a.retryAfter != "" {
			w.Header().Set("Retry-After", a.retryAfter)
		}
		w.WriteHeader(a.status)
	})
	sink := newTestSink(t, httpOptions(srv.URL))
	forms := []struct {
		retryAfter string
		want       time.Duration
	}{
		{"", 0},
		{"7", 7 * time.Second},
		{"  007\t", 7 * time.Second},
		{"0", 0},
		{"86400", 24 * time.Hour},
		{"9223372036", 9223372036 * time.Second},
		{"9223372037", maxDelay}, // over what the type holds
		{"99999999999999999999999", maxDelay},
		{date.Add(9 * time.Second).Format(http.TimeFormat), 9 * time.Second},
		{date.Add(24 * time.Hour).Format(time.RFC850), 24 * time.Hour},
		{date.Add(24 * time.Hour).Format(time.ANSIC), 24 * time.Hour},
		{"Fri, 31 Dec 9999 23:59:59 GMT", maxDelay},
		{date.Add(-time.Hour).Format(http.TimeFormat), 0},
		{"soon", 0},
		{"-5", 0},
		{"+5", 0},
		{"1.5", 0},
		{"7, 8", 0},
	}
	r := request(t, segment.Logs, 1, 1)
	for code := 200; code <= 599; code++ {
		for i, form := range forms {
			if i > 0 && (code < 400 || code > 511) {
				break // a delay changes nothing there, nor below
			}
			next.set(answer{code, form.retryAfter})
			want, wantDelay := wantHTTP(code), time.Duration(0)
			if want == segment.Retry {
				wantDelay = form.want
			}
			out := sink.Deliver(t.Context(), r)
			if out.Verdict != want || out.RetryAfter != wantDelay || (out.Err == nil) != (want == segment.Delivered) {
				t.Errorf("HTTP %d, Retry-After %q: verdict %d after %v (%v), want %d after %v",
					code, form.retryAfter, out.Verdict, out.RetryAfter, out.Err, want, wantDelay)
			}
		}
	}
}

// What comes before an answer is none; an answer that never comes is a reason to try again.
func TestCase43HTTPStatusesBelow200(t *testing.T) {
	const ok = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
	for answer, want := range map[string]segment.Verdict{
		"HTTP/1.1 100 Continue\r\n\r\n" + ok:                                                                        segment.Delivered,
		"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n" + ok:                                                       segment.Delivered,
		"HTTP/1.1 150 What\r\n\r\nHTTP/1.1 400 Bad\r\nContent-Length: 0\r\n\r\n":                                    segment.Refused,
		"HTTP/1.1 100 Continue\r\n\r\n":                                                                             segment.Retry,
		"HTTP/1.1 199 Then nothing\r\n\r\n":                                                                         segment.Retry,
		"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n":                             segment.Retry,
		strings.Repeat("HTTP/1.1 103 Early Hints\r\nLink: </"+strings.Repeat("x", 1000)+">\r\n\r\n", 100) + ok:      segment.Retry,
		"HTTP/1.1 099 Below\r\nContent-Length: 0\r\n\r\n":                                                           segment.Refused,
		"HTTP/1.1 999 Above\r\nContent-Length: 0\r\n\r\n":                                                           segment.Refused,
		"HTTP/1.1 -200 OK\r\nContent-Length: 0\r\n\r\n":                                                             segment.Retry,
		"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n12345":                                    segment.Retry,
		"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Type: application/json\r\nContent-Length: 1\r\n\r\n{": segment.Delivered,
	} {
		url, requests := rawServer(t, answer)
		out := newTestSink(t, httpOptions(url)).Deliver(t.Context(), request(t, segment.Logs, 1, 1))
		if out.Verdict != want || len(requests.get()) != 1 {
			t.Errorf("%.40q: verdict %d, want %d, %d requests (%v)", answer, out.Verdict, want, len(requests.get()), out.Err)
		}
	}
}

// After 101 the answer's body is the connection, which no timeout of the transport ends.
func TestSwitchedProtocolDoesNotHang(t *testing.T) {
	srv := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		c, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer c.Close()
		_, _ = c.Write([]byte("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n"))
		_, _ = io.Copy(io.Discard, c) // until the client is gone
	})
	wantVerdict(t, newTestSink(t, httpOptions(srv.URL)).Deliver(t.Context(), request(t, segment.Logs, 1, 1)), segment.Retry)
}

// retryDetail is one form of what a status can say about a delay.
type retryDetail struct {
	name    string
	details []*anypb.Any
	present bool // a RetryInfo that can be read
	want    time.Duration
}

func retryDetails(t testing.TB) []retryDetail {
	packed := func(m proto.Message) *anypb.Any {
		t.Helper()
		a, err := anypb.New(m)
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	info := func(d *durationpb.Duration) []*anypb.Any {
		return []*anypb.Any{packed(&errdetails.ErrorInfo{Reason: "x"}), packed(&errdetails.RetryInfo{RetryDelay: d})}
	}
	broken := packed(&errdetails.RetryInfo{RetryDelay: durationpb.New(time.Second)})
	broken.Value = []byte{0x0a, 0xff}
	return []retryDetail{
		{"none", nil, false, 0},
		{"7 s", info(durationpb.New(7 * time.Second)), true, 7 * time.Second},
		{"no delay", info(nil), true, 0},
		{"0", info(durationpb.New(0)), true, 0},
		{"negative", info(durationpb.New(-time.Second)), true, 0},
		{"one day", info(durationpb.New(24 * time.Hour)), true, 24 * time.Hour},
		{"huge", info(&durationpb.Duration{Seconds: math.MaxInt64, Nanos: math.MaxInt32}), true, maxDelay},
		{"huge negative", info(&durationpb.Duration{Seconds: math.MinInt64, Nanos: math.MinInt32}), true, 0},
		{"garbage", []*anypb.Any{broken}, false, 0},
		{"garbage before it", append([]*anypb.Any{broken}, info(durationpb.New(time.Second))...), true, time.Second},
		{"unknown type", []*anypb.Any{{TypeUrl: "type.example/Mystery", Value: []byte("x")}}, false, 0},
	}
}

func TestCase43GRPCCodesAndRetryInfo(t *testing.T) {
	var next held[*spb.Status]
	addr := serveGRPC(t, func(context.Context, grpcCall) ([]byte, error) { return nil, status.FromProto(next.get()).Err() })
	sink := newTestSink(t, grpcOptions(addr))
	r := request(t, segment.Logs, 1, 1)
	all := []codes.Code{17, 999, math.MaxInt32}
	for code := codes.OK; code <= codes.Unauthenticated; code++ {
		all = append(all, code)
	}
	for _, code := range all {
		for _, form := range retryDetails(t) {
			next.set(&spb.Status{Code: int32(code), Message: "because", Details: form.details})
			want, wantDelay := segment.Refused, time.Duration(0)
			switch code {
			case codes.OK:
				want = segment.Delivered
			case codes.Canceled, codes.DeadlineExceeded, codes.Aborted, codes.OutOfRange, codes.Unavailable, codes.DataLoss:
				want, wantDelay = segment.Retry, form.want
			case codes.ResourceExhausted:
				if form.present {
					want, wantDelay = segment.Retry, form.want
				}
			}
			out := sink.Deliver(t.Context(), r)
			if out.Verdict != want || out.RetryAfter != wantDelay || (out.Err == nil) != (want == segment.Delivered) ||
				(out.Err != nil && !strings.Contains(out.Err.Error(), "because")) {
				t.Errorf("%v, RetryInfo %s: verdict %d after %v (%v), want %d after %v",
					code, form.name, out.Verdict, out.RetryAfter, out.Err, want, wantDelay)
			}
		}
	}
}

func TestConfiguredRetryCodesGRPC(t *testing.T) {
	var next held[*spb.Status]
	addr := serveGRPC(t, func(context.Context, grpcCall) ([]byte, error) { return nil, status.FromProto(next.get()).Err() })
	o := grpcOptions(addr)
	o.RetryCodes = []int{int(codes.PermissionDenied), int(codes.ResourceExhausted)}
	sink := newTestSink(t, o)
	for _, c := range []struct {
		code    codes.Code
		message string
		want    segment.Verdict
	}{
		{codes.PermissionDenied, "token expired", segment.Retry},
		{codes.ResourceExhausted, "too busy", segment.Retry},
		{codes.ResourceExhausted, "grpc: received message larger than max (9 vs. 8)", segment.TooLarge}, // would never end
		{codes.Unauthenticated, "who is there", segment.Refused},
	} {
		next.set(&spb.Status{Code: int32(c.code), Message: c.message})
		wantVerdict(t, sink.Deliver(t.Context(), request(t, segment.Logs, 1, 1)), c.want)
	}
}

// There is no code for a message over a server's limit, only its words.
func TestGRPCSizeRefusals(t *testing.T) {
	var next held[*spb.Status]
	addr := serveGRPC(t, func(context.Context, grpcCall) ([]byte, error) { return nil, status.FromProto(next.get()).Err() })
	sink := newTestSink(t, grpcOptions(addr))
	info := retryDetails(t)[1].details
	for _, c := range []struct {
		code    codes.Code
		message string
		details []*anypb.Any
		want    segment.Verdict
	}{
		{codes.ResourceExhausted, "grpc: received message larger than max (5000000 vs. 4194304)", nil, segment.TooLarge},
		{codes.ResourceExhausted, "grpc: received message after decompression larger than max 4194304", nil, segment.TooLarge},
		{codes.ResourceExhausted, "SERVER: Received message larger than max (5000000 vs. 4194304)", nil, segment.TooLarge},
		{codes.ResourceExhausted, "gRPC message exceeds maximum size 4194304: 5000000", nil, segment.TooLarge},
		{codes.ResourceExhausted, "Received message exceeds the maximum configured message size.", nil, segment.TooLarge},
		{codes.ResourceExhausted, "request is larger than 16777216 bytes", nil, segment.TooLarge},
		{codes.OutOfRange, "Error, decoded message length too large: found 9 bytes, the limit is: 8 bytes", nil, segment.TooLarge},
		{codes.ResourceExhausted, "grpc: received message larger than max (9 vs. 8)", info, segment.Retry},
		{codes.ResourceExhausted, "quota exceeded", nil, segment.Refused},
		{codes.InvalidArgument, "log body is larger than max", nil, segment.Refused},
	} {
		next.set(&spb.Status{Code: int32(c.code), Message: c.message, Details: c.details})
		if out := sink.Deliver(t.Context(), request(t, segment.Logs, 2, 1)); out.Verdict != c.want {
			t.Errorf("%v %q: verdict %d, want %d", c.code, c.message, out.Verdict, c.want)
		}
	}
}

// An answer that is too large for us has the same words as a request that is too large for the server, but it may have been
// taken: to cut it into parts would end in the dead letter.
func TestHugeAnswerGRPC(t *testing.T) {
	addr := serveGRPC(t, func(context.Context, grpcCall) ([]byte, error) { return make([]byte, 5<<20), nil })
	wantVerdict(t, newTestSink(t, grpcOptions(addr)).Deliver(t.Context(), request(t, segment.Logs, 1, 1)), segment.Retry)
}

// A proxy in front of a gRPC server answers in HTTP.
func TestGRPCAnsweredInHTTP(t *testing.T) {
	var code held[int]
	srv := serveH2C(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		w.WriteHeader(code.get())
		_, _ = w.Write([]byte("<html>"))
	})
	sink := newTestSink(t, grpcOptions(srv))
	for status, want := range map[int]segment.Verdict{
		200: segment.Refused, 400: segment.Refused, 401: segment.Refused, 403: segment.Refused, 404: segment.Refused,
		413: segment.TooLarge, 429: segment.Retry, 500: segment.Refused, 502: segment.Retry, 503: segment.Retry, 504: segment.Retry,
	} {
		code.set(status)
		if out := sink.Deliver(t.Context(), request(t, segment.Logs, 1, 1)); out.Verdict != want {
			t.Errorf("HTTP %d: verdict %d, want %d (%v)", status, out.Verdict, want, out.Err)
		}
	}
}

// A stream that ends without a status is no refusal, whatever code grpc makes of it.
func TestGRPCStreamCut(t *testing.T) {
	for name, cut := range map[string]func(w http.ResponseWriter){
		"in place of the answer": func(http.ResponseWriter) { panic(http.ErrAbortHandler) },
		"in the answer": func(w http.ResponseWriter) {
			w.Header().Set("Content-Type", "application/grpc")
			_, _ = w.Write([]byte{0, 0, 0, 0, 9, 1})
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		},
		"behind the answer": func(w http.ResponseWriter) {
			w.Header().Set("Content-Type", "application/grpc")
			_, _ = w.Write([]byte{0, 0, 0, 0, 0})
		},
	} {
		addr := serveH2C(t, func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			cut(w)
		})
		out := newTestSink(t, grpcOptions(addr)).Deliver(t.Context(), request(t, segment.Logs, 1, 1))
		if out.Verdict != segment.Retry {
			t.Errorf("cut %s: verdict %d (%v)", name, out.Verdict, out.Err)
		}
	}
}

func TestUserAgentNamesAProductFirst(t *testing.T) {
	var got collector[string]
	srv := serve(t, func(_ http.ResponseWriter, r *http.Request) { got.add(r.UserAgent()) })
	addr := serveGRPC(t, func(_ context.Context, c grpcCall) ([]byte, error) {
		got.add(c.metadata.Get("user-agent")[0])
		return nil, nil
	})
	for _, o := range []Options{httpOptions(srv.URL), grpcOptions(addr)} {
		o.Headers = map[string]string{"user-agent": "acme/2"}
		wantVerdict(t, newTestSink(t, o).Deliver(t.Context(), request(t, segment.Logs, 1, 1)), segment.Delivered)
	}
	if want := fmt.Sprint("[acme/2 ingest-agent/test acme/2 ingest-agent/test grpc-go/", grpc.Version, "]"); fmt.Sprint(got.get()) != want {
		t.Errorf("got %s, want %s", got.get(), want)
	}
}

// What the transport would refuse with each request, or let win over what the agent sets, is refused at once.
func TestHeadersThatCanNotBeConfigured(t *testing.T) {
	own := []string{"Content-Type", "content-encoding", "CONTENT-LENGTH", "Transfer-Encoding", "Connection", "Proxy-Connection",
		"Keep-Alive", "TE", "Trailer", "Upgrade", "Expect", "Ingest-Agent-Frames"}
	for _, o := range []Options{httpOptions("http://h:1"), grpcOptions("h:1")} {
		for _, name := range append([]string{"", "a b", "ä", ":path"}, own...) {
			o.Headers = map[string]string{name: "v"}
			if _, err := New("default", o); err == nil {
				t.Errorf("%s: header %q was taken", o.Type, name)
			}
		}
		o.Headers = map[string]string{"Authorization": "Bearer x", "X-Scope-OrgID": "t", "x.y_z-1": ""}
		s, err := New("default", o)
		if err != nil {
			t.Errorf("%s: %v", o.Type, err)
			continue
		}
		mustClose(t, s)
	}
	for _, c := range []struct{ name, value string }{
		{"grpc-timeout", "1S"}, {"host", "h"}, {"a", "ä"}, {"a!", "v"},
	} {
		if _, _, err := requestMetadata(map[string]string{c.name: c.value}); err == nil {
			t.Errorf("gRPC: metadata %s: %q was taken", c.name, c.value)
		}
	}
	md, _, err := requestMetadata(map[string]string{"X-Trace-Bin": "\x00\xff"})
	if want := (metadata.MD{"x-trace-bin": {"\x00\xff"}}); err != nil || fmt.Sprint(md) != fmt.Sprint(want) {
		t.Errorf("got %v, %v", md, err)
	}
}
