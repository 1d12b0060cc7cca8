package receiver

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"ingest-agent/segment"
)

const (
	asProtobuf = "Content-Type: application/x-protobuf"
	asJSON     = "Content-Type: application/json"
)

const oneLogJSON = `{"resourceLogs":[{"scopeLogs":[{"logRecords":[{"body":{"stringValue":"x"}}]}]}]}`

func TestHTTPTakesEachSignalAndEncoding(t *testing.T) {
	run := start(t, nil)
	bodies := map[segment.Signal]string{
		segment.Logs:    oneLogJSON,
		segment.Traces:  `{"resourceSpans":[{"scopeSpans":[{"spans":[{"name":"x"}]}]}]}`,
		segment.Metrics: `{"resourceMetrics":[{"scopeMetrics":[{"metrics":[{"name":"x","sum":{"dataPoints":[{"asInt":"1"}]}}]}]}]}`,
	}
	want := 0
	for _, signal := range segment.Signals {
		path := "/v1/" + signal.String()
		got := run.send(t, "POST", path, strings.NewReader(bodies[signal]), "Content-Type: application/json; charset=utf-8")
		if got.status != 200 || string(got.body) != "{}" || got.header.Get("Content-Type") != jsonType {
			t.Fatalf("%s: JSON answer %d %q %v", signal, got.status, got.body, got.header)
		}
		want++
		stored := run.keep.requests()[want-1]
		if stored.Signal != signal || stored.Tenant != DefaultTenant || stored.Info.Records != 1 {
			t.Fatalf("%s: stored %+v", signal, stored)
		}
		// What was stored is protobuf, and is kept byte for byte when it is sent as such.
		got = run.send(t, "POST", path, bytes.NewReader(stored.Body), asProtobuf)
		if got.status != 200 || len(got.body) != 0 || got.header.Get("Content-Type") != protobufType {
			t.Fatalf("%s: protobuf answer %d %q %v", signal, got.status, got.body, got.header)
		}
		want++
		if again := run.keep.requests()[want-1]; !bytes.Equal(again.Body, stored.Body) {
			t.Fatalf("%s: stored %x, sent %x", signal, again.Body, stored.Body)
		}
		if n := run.tally.accepted[signal.String()+"/"+DefaultTenant]; n != 2 {
			t.Errorf("%s: %d records counted, want 2", signal, n)
		}
	}
}

func TestHTTPEmptyRequestIsSuccessAndNotStored(t *testing.T) {
	run := start(t, func(o *Options) { o.Store = failing{errors.New("asked")} })
	for _, c := range []struct{ body, contentType string }{
		{"", asProtobuf}, {"{}", asJSON}, {`{"resourceLogs":[]}`, asJSON}, {`{"resourceLogs":[{"scopeLogs":[{}]}]}`, asJSON}, {"\x0a\x00", asProtobuf},
	} {
		if got := run.send(t, "POST", "/v1/logs", strings.NewReader(c.body), c.contentType); got.status != 200 {
			t.Errorf("%q: %d %q", c.body, got.status, got.body)
		}
	}
}

type failing struct{ err error }

func (f failing) Accept(context.Context, Request) error { return f.err }

func TestHTTPRefusesBadRequests(t *testing.T) {
	run := start(t, nil)
	good := logsRequest(t, 0, 1, 10)
	tests := []struct {
		name         string
		method, path string
		body         string
		headers      []string
		status       int
		code         codes.Code
		reason       string // "" if not counted
		json         bool   // form of the error body
		header       string // "name: value" that must be there
	}{
		{"other path", "POST", "/v1/profiles", "", []string{asProtobuf}, 404, codes.Unimplemented, "", false, ""},
		{"path below", "POST", "/v1/logs/", "", []string{asJSON}, 404, codes.Unimplemented, "", true, ""},
		{"root", "POST", "/", "", nil, 404, codes.Unimplemented, "", false, ""},
		{"GET", "GET", "/v1/logs", "", nil, 405, codes.Unimplemented, RefusedUnsupported, false, "Allow: POST"},
		{"PUT", "PUT", "/v1/logs", "{}", []string{asJSON}, 405, codes.Unimplemented, RefusedUnsupported, true, "Allow: POST"},
		{"no type", "POST", "/v1/logs", "{}", nil, 415, codes.InvalidArgument, RefusedUnsupported, false, ""},
		{"text", "POST", "/v1/logs", "{}", []string{"Content-Type: text/plain"}, 415, codes.InvalidArgument, RefusedUnsupported, false, ""},
		{"text, takes JSON", "POST", "/v1/logs", "{}", []string{"Content-Type: text/plain", "Accept: text/html, application/json;q=0.9"}, 415, codes.InvalidArgument, RefusedUnsupported, true, ""},
		{"text, takes anything", "POST", "/v1/logs", "{}", []string{"Content-Type: text/plain", "Accept: */*"}, 415, codes.InvalidArgument, RefusedUnsupported, false, ""},
		{"broken protobuf", "POST", "/v1/logs", "\x0a\x05", []string{asProtobuf}, 400, codes.InvalidArgument, RefusedBadData, false, ""},
		{"half a request", "POST", "/v1/logs", string(good[:len(good)-1]), []string{asProtobuf}, 400, codes.InvalidArgument, RefusedBadData, false, ""},
		{"broken JSON", "POST", "/v1/logs", `{"resourceLogs":[`, []string{asJSON}, 400, codes.InvalidArgument, RefusedBadData, true, ""},
		{"no JSON", "POST", "/v1/logs", "", []string{asJSON}, 400, codes.InvalidArgument, RefusedBadData, true, ""},
		{"JSON null", "POST", "/v1/logs", "null", []string{asJSON}, 400, codes.InvalidArgument, RefusedBadData, true, ""},
		{"JSON array", "POST", "/v1/logs", "[" + oneLogJSON + "]", []string{asJSON}, 400, codes.InvalidArgument, RefusedBadData, true, ""},
		{"two JSON values", "POST", "/v1/logs", oneLogJSON + oneLogJSON, []string{asJSON}, 400, codes.InvalidArgument, RefusedBadData, true, ""},
		{"field without name", "POST", "/v1/logs", `{"" : 1,` + oneLogJSON[1:], []string{asJSON}, 400, codes.InvalidArgument, RefusedBadData, true, ""},
		{"not gzip", "POST", "/v1/logs", string(good), []string{asProtobuf, "Content-Encoding: gzip"}, 400, codes.InvalidArgument, RefusedBadData, false, ""},
		{"half a gzip", "POST", "/v1/logs", string(gzipped(t, good)[:20]), []string{asProtobuf, "Content-Encoding: gzip"}, 400, codes.InvalidArgument, RefusedBadData, false, ""},
		{"empty gzip", "POST", "/v1/logs", "", []string{asProtobuf, "Content-Encoding: gzip"}, 400, codes.InvalidArgument, RefusedBadData, false, ""},
		{"not zstd", "POST", "/v1/logs", string(good), []string{asProtobuf, "Content-Encoding: zstd"}, 400, codes.InvalidArgument, RefusedBadData, false, ""},
		{"br", "POST", "/v1/logs", "x", []string{asJSON, "Content-Encoding: br"}, 415, codes.InvalidArgument, RefusedUnsupported, true, "Accept-Encoding: gzip, zstd"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			before := run.tally.refusals("logs/" + test.reason)
			got := run.send(t, test.method, test.path, strings.NewReader(test.body), test.headers...)
			if got.status != test.status {
				t.Fatalf("status %d %q, want %d", got.status, got.body, test.status)
			}
			if isJSON := got.header.Get("Content-Type") == jsonType; isJSON != test.json {
				t.Errorf("content type %q, want JSON: %v", got.header.Get("Content-Type"), test.json)
			}
			if s := got.rpcStatus(t); codes.Code(s.GetCode()) != test.code || s.GetMessage() == "" {
				t.Errorf("error body %v, want code %v and a text", s, test.code)
			}
			if name, value, found := strings.Cut(test.header, ": "); found && got.header.Get(name) != value {
				t.Errorf("header %s is %q, want %q", name, got.header.Get(name), value)
			}
			if got.header.Get("Retry-After") != "" {
				t.Error("Retry-After for a request that is never taken")
			}
			if test.reason != "" && run.tally.refusals("logs/"+test.reason) != before+1 {
				t.Errorf("not counted as %s: %v", test.reason, run.tally.refused)
			}
		})
	}
	if n := len(run.keep.requests()); n != 0 {
		t.Errorf("%d requests are stored", n)
	}
}

// storeAnswers is case 55: what a store says, and what the client hears on both transports.
var storeAnswers = []struct {
	name   string
	err    error
	http   int
	code   codes.Code
	after  time.Duration // 0: no delay
	header string        // Retry-After
	reason string
}{
	{"full", &segment.RefusedError{Reason: segment.RefusedFull, After: 2500 * time.Millisecond}, 429, codes.ResourceExhausted, 2500 * time.Millisecond, "3", "full"},
	{"disk", &segment.RefusedError{Reason: segment.RefusedDisk, After: time.Millisecond}, 429, codes.ResourceExhausted, time.Millisecond, "1", "disk"},
	{"tenant share", &segment.RefusedError{Reason: segment.RefusedTenantShare, After: 7 * time.Second}, 429, codes.ResourceExhausted, 7 * time.Second, "7", "tenant_share"},
	{"sync", &segment.RefusedError{Reason: segment.RefusedSync, After: time.Second, Err: errSecret}, 503, codes.Unavailable, time.Second, "1", "sync"},
	{"sync, no delay known", fmt.Errorf("append: %w", &segment.RefusedError{Reason: segment.RefusedSync}), 503, codes.Unavailable, shortDelay, "1", "sync"},
	{"stopping", &segment.RefusedError{Reason: segment.RefusedStopping, After: 3 * time.Second}, 503, codes.Unavailable, 3 * time.Second, "3", "stopping"},
	{"too large", &segment.RefusedError{Reason: segment.RefusedTooLarge, After: time.Second}, 413, codes.ResourceExhausted, 0, "", "too_large"},
	{"unknown reason", &segment.RefusedError{Reason: "new", After: time.Second}, 503, codes.Unavailable, time.Second, "1", "new"},
	{"other", errSecret, 503, codes.Unavailable, shortDelay, "1", RefusedInternal},
	{"canceled by itself", context.Canceled, 503, codes.Unavailable, shortDelay, "1", RefusedInternal},
}

// errSecret holds what no client may see.
var errSecret = errors.New("open /var/lib/agent/lanes/default.0 on node-17.internal: goroutine 7 [running]")

func TestCase55HTTP(t *testing.T) {
	for _, test := range storeAnswers {
		t.Run(test.name, func(t *testing.T) {
			run := start(t, func(o *Options) { o.Store = failing{test.err} })
			for _, headers := range [][]string{{asProtobuf}, {asJSON}} {
				body := logsRequest(t, 0, 1, 10)
				if headers[0] == asJSON {
					body = []byte(oneLogJSON)
				}
				got := run.send(t, "POST", "/v1/logs", bytes.NewReader(body), headers...)
				if got.status != test.http || got.header.Get("Retry-After") != test.header {
					t.Errorf("%s: %d, Retry-After %q; want %d, %q", headers[0], got.status, got.header.Get("Retry-After"), test.http, test.header)
				}
				if want := strings.TrimPrefix(headers[0], "Content-Type: "); got.header.Get("Content-Type") != want {
					t.Errorf("error body is %s, want %s", got.header.Get("Content-Type"), want)
				}
				s := got.rpcStatus(t)
				if codes.Code(s.GetCode()) != test.code {
					t.Errorf("%s: code %v, want %v", headers[0], codes.Code(s.GetCode()), test.code)
				}
				checkDiscreet(t, s.GetMessage())
			}
			if n := run.tally.refusals("logs/" + test.reason); n != 2 {
				t.Errorf("counted %v, want 2 for %s", run.tally.refused, test.reason)
			}
			checkMemoryFree(t, run)
		})
	}
}

func checkDiscreet(t *testing.T, text string) {
	t.Helper()
	for _, bad := range []string{"/var", "node-17", "goroutine", "lanes"} {
		if strings.Contains(text, bad) {
			t.Errorf("answer %q shows %q", text, bad)
		}
	}
	if text == "" {
		t.Error("answer without a text")
	}
}

func TestCase59Codings(t *testing.T) {
	run := start(t, nil)
	plain := logsRequest(t, 0, 3, 100)
	for _, c := range []struct {
		coding string
		body   []byte
		status int
	}{
		{"identity", plain, 200}, {"", plain, 200}, {"GZIP", gzipped(t, plain), 200}, {"x-gzip", gzipped(t, plain), 200},
		{" zstd ", zstdSized(t, plain), 200}, {"ZSTD", zstdStreamed(t, plain), 200},
		{"br", plain, 415}, {"gzip, gzip", gzipped(t, gzipped(t, plain)), 415}, {"deflate", plain, 415}, {"snappy", plain, 415},
		{"identity, gzip", gzipped(t, plain), 415},
	} {
		got := run.send(t, "POST", "/v1/logs", bytes.NewReader(c.body), asProtobuf, "Content-Encoding: "+c.coding)
		if got.status != c.status {
			t.Errorf("%q: %d %q, want %d", c.coding, got.status, got.body, c.status)
		}
		if c.status == 415 {
			if text := got.rpcStatus(t).GetMessage(); !strings.Contains(text, "identity, gzip, zstd") {
				t.Errorf("%q: text %q does not name what is supported", c.coding, text)
			}
		}
	}
	stored := run.keep.requests()
	if len(stored) != 6 {
		t.Fatalf("%d requests stored, want 6", len(stored))
	}
	for i, r := range stored {
		if !bytes.Equal(r.Body, plain) {
			t.Errorf("request %d is not what was sent", i)
		}
	}
}

func TestCase58AllMembersCount(t *testing.T) {
	run := start(t, nil)
	a, b := logsRequest(t, 0, 5, 100), logsRequest(t, 5, 5, 100)
	half := len(a) / 2
	for _, c := range []struct {
		name, coding string
		body         []byte
	}{
		{"gzip, cut inside a message", "gzip", gzipped(t, a[:half], a[half:])},
		{"gzip", "gzip", gzipped(t, a, b)},
		{"zstd, cut inside a message", "zstd", zstdStreamed(t, a[:half], a[half:])},
		{"zstd", "zstd", append(zstdSized(t, a), zstdSized(t, b)...)},
	} {
		before := run.keep.records()
		want := 10
		if strings.Contains(c.name, "inside") {
			want = 5
		}
		got := run.send(t, "POST", "/v1/logs", bytes.NewReader(c.body), asProtobuf, "Content-Encoding: "+c.coding)
		if n := run.keep.records() - before; got.status != 200 || n != want {
			t.Errorf("%s: %d, %d records stored; want 200, %d", c.name, got.status, n, want)
		}
		before = run.keep.records()
		got = run.send(t, "POST", "/v1/logs", bytes.NewReader(append(c.body, "rubbish"...)), asProtobuf, "Content-Encoding: "+c.coding)
		if n := run.keep.records() - before; got.status != 400 || n != 0 {
			t.Errorf("%s with rubbish behind it: %d, %d records stored; want 400, 0", c.name, got.status, n)
		}
	}
}

func TestHTTPLimitsAtTheByte(t *testing.T) {
	run := start(t, nil)
	fits, tooLong := logsOfSize(t, testLimit), logsOfSize(t, testLimit+1)
	chunked := func(b []byte) io.Reader { return struct{ io.Reader }{bytes.NewReader(b)} } // length unknown
	for _, c := range []struct {
		name    string
		make    func(b []byte) io.Reader
		headers []string
	}{
		{"length", func(b []byte) io.Reader { return bytes.NewReader(b) }, nil},
		{"chunked", chunked, nil},
		{"gzip", func(b []byte) io.Reader { return bytes.NewReader(gzipped(t, b)) }, []string{"Content-Encoding: gzip"}},
		{"zstd with size", func(b []byte) io.Reader { return bytes.NewReader(zstdSized(t, b)) }, []string{"Content-Encoding: zstd"}},
		{"zstd without size", func(b []byte) io.Reader { return chunked(zstdStreamed(t, b)) }, []string{"Content-Encoding: zstd"}},
		{"zstd in frames", func(b []byte) io.Reader { return chunked(zstdStreamed(t, b[:9], b[9:99], b[99:])) }, []string{"Content-Encoding: zstd"}},
	} {
		headers := append([]string{asProtobuf}, c.headers...)
		before := len(run.keep.requests())
		if got := run.send(t, "POST", "/v1/logs", c.make(fits), headers...); got.status != 200 {
			t.Errorf("%s: at the limit: %d %q", c.name, got.status, got.body)
			continue
		}
		if stored := run.keep.requests()[before].Body; !bytes.Equal(stored, fits) {
			t.Errorf("%s: stored something else", c.name)
		}
		if got := run.send(t, "POST", "/v1/logs", c.make(tooLong), headers...); got.status != 413 || got.header.Get("Retry-After") != "" {
			t.Errorf("%s: above the limit: %d %q", c.name, got.status, got.body)
		}
	}
	// A lower limit takes effect without a restart.
	lower := testSettings()
	lower.HTTPMaxRequestSizeBytes = testLimit - 1
	if err := run.Apply(lower); err != nil {
		t.Fatal(err)
	}
	if got := run.send(t, "POST", "/v1/logs", bytes.NewReader(fits), asProtobuf); got.status != 413 {
		t.Errorf("after the limit was lowered: %d", got.status)
	}
}

func TestCase61SlowAndEndlessBodies(t *testing.T) {
	run := start(t, func(o *Options) { o.Settings.ReadTimeout = 200 * time.Millisecond })
	for _, head := range []string{"Transfer-Encoding: chunked\r\n\r\n1\r\n\x0a\r\n", "Content-Length: 100\r\n\r\n\x0a",
		"Content-Encoding: gzip\r\nContent-Length: 100\r\n\r\n\x1f"} {
		conn, err := net.Dial("tcp", strings.TrimPrefix(run.url, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(conn, "POST /v1/logs HTTP/1.1\r\nHost: x\r\n"+asProtobuf+"\r\n"+head); err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(conn) // the server answers and closes
		if err != nil || !bytes.HasPrefix(got, []byte("HTTP/1.1 408 ")) {
			t.Errorf("slow body: %q, %v; want 408 and the end", got, err)
		}
		_ = conn.Close()
	}
	if n := run.tally.refusals("logs/" + RefusedTimeout); n != 3 {
		t.Errorf("counted %v", run.tally.refused)
	}
	// What the slow ones held is free again.
	held := run.live.Load().bodies
	if !held.TryAcquire(bodiesBytes(run.live.Load().Settings)) {
		t.Error("a slow body still holds memory")
	} else {
		held.Release(bodiesBytes(run.live.Load().Settings))
	}

	run = start(t, func(o *Options) { o.Settings.ReadTimeout = time.Minute }) // the size ends it, not the time
	endless := new(zeros)
	req, err := http.NewRequest(http.MethodPost, run.url+"/v1/logs", io.LimitReader(endless, 100<<20))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", protobufType)
	resp, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusRequestEntityTooLarge {
		t.Errorf("endless body: %d, want 413", resp.StatusCode)
	}
	if n := endless.read.Load(); n > 50<<20 {
		t.Errorf("%d bytes were read", n)
	}
}

// A client that sends everything before it reads gets its answer, not a broken connection.
func TestRefusalReachesAClientThatSendsFirst(t *testing.T) {
	run := start(t, func(o *Options) { o.Settings.HTTPMaxRequestSizeBytes = 4 << 20 })
	for contentType, status := range map[string]string{"text/plain": "415", protobufType: "413"} {
		conn, err := net.Dial("tcp", strings.TrimPrefix(run.url, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		body := make([]byte, 12<<20)
		head := fmt.Sprintf("POST /v1/logs HTTP/1.1\r\nHost: x\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n", contentType, len(body))
		if _, err := io.WriteString(conn, head); err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Write(body); err != nil {
			t.Errorf("%s: %v", status, err)
			continue
		}
		got := make([]byte, 12)
		if _, err := io.ReadFull(conn, got); err != nil || string(got) != "HTTP/1.1 "+status {
			t.Errorf("%q, %v; want %s", got, err, status)
		}
	}
	// One that asks first is told at once.
	conn, err := net.Dial("tcp", strings.TrimPrefix(run.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, "POST /v1/logs HTTP/1.1\r\nHost: x\r\n"+asProtobuf+"\r\nExpect: 100-continue\r\nContent-Length: 9000000\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, 12)
	if _, err := io.ReadFull(conn, got); err != nil || string(got) != "HTTP/1.1 413" {
		t.Errorf("asked first: %q, %v", got, err)
	}
}

// zeros is a reader without an end.
type zeros struct{ read atomic.Int64 }

func (z *zeros) Read(p []byte) (int, error) {
	clear(p)
	z.read.Add(int64(len(p)))
	return len(p), nil
}

// A store that takes longer than the read timeout is waited for: the deadline is for the client's body only.
func TestReadTimeoutDoesNotEndTheStore(t *testing.T) {
	run := start(t, func(o *Options) {
		o.Settings.ReadTimeout = 100 * time.Millisecond
		o.Store.(*keep).answer = func(ctx context.Context, _ Request) error {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(400 * time.Millisecond):
				return nil
			}
		}
	})
	for _, headers := range [][]string{{asProtobuf}, {asProtobuf, "Content-Encoding: gzip"}} {
		body := logsRequest(t, 0, 1, 10)
		if len(headers) > 1 {
			body = gzipped(t, body)
		}
		if got := run.send(t, "POST", "/v1/logs", bytes.NewReader(body), headers...); got.status != 200 {
			t.Errorf("%v: %d %q", headers, got.status, got.body)
		}
	}
	if _, err := call(t.Context(), run.client(t), segment.Logs, logsRequest(t, 0, 1, 10)); err != nil {
		t.Error(err)
	}
}
