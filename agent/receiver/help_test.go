package receiver

import (
	"bytes"
	"context"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/plog"
	"go.opentelemetry.io/collector/pdata/plog/plogotlp"
	spb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"ingest-agent/segment"
)

// keep is a store in memory. answer, if set, decides first.
type keep struct {
	answer func(ctx context.Context, r Request) error

	mu  sync.Mutex
	got []Request
}

func (k *keep) Accept(ctx context.Context, r Request) error {
	if k.answer != nil {
		if err := k.answer(ctx, r); err != nil {
			return err
		}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.got = append(k.got, r)
	return nil
}

func (k *keep) requests() []Request {
	k.mu.Lock()
	defer k.mu.Unlock()
	return append([]Request(nil), k.got...)
}

func (k *keep) records() int {
	n := 0
	for _, r := range k.requests() {
		n += r.Info.Records
	}
	return n
}

// tally counts what an Observer hears.
type tally struct {
	mu       sync.Mutex
	accepted map[string]int // signal/tenant: records
	refused  map[string]int // signal/reason
}

func newTally() *tally { return &tally{accepted: make(map[string]int), refused: make(map[string]int)} }

func (c *tally) Accepted(s segment.Signal, tenant string, records, _ int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.accepted[s.String()+"/"+tenant] += records
}

func (c *tally) Refused(s segment.Signal, reason string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.refused[s.String()+"/"+reason]++
}

func (c *tally) refusals(key string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.refused[key]
}

// running is a receiver on free ports.
type running struct {
	*Receiver
	url   string // http://host:port
	grpc  string // host:port
	keep  *keep
	tally *tally
}

const testLimit = 1 << 20

func testSettings() Settings {
	return Settings{GRPCMaxRequestSizeBytes: testLimit, HTTPMaxRequestSizeBytes: testLimit, ReadTimeout: 20 * time.Second}
}

// start runs a receiver until the end of the test, and checks then that it leaves no goroutine.
func start(t testing.TB, change func(o *Options)) *running {
	t.Helper()
	before := serverGoroutines()
	run := &running{keep: new(keep), tally: newTally()}
	opts := Options{GRPCEndpoint: "127.0.0.1:0", HTTPEndpoint: "127.0.0.1:0", Settings: testSettings(), Store: run.keep, Observer: run.tally}
	if change != nil {
		change(&opts)
	}
	r, err := New(opts)
	if err != nil {
		t.Fatal(err)
	}
	addrs, err := r.Start()
	if err != nil {
		t.Fatal(err)
	}
	run.Receiver, run.url, run.grpc = r, "http://"+addrs.HTTP.String(), addrs.GRPC.String()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := r.Shutdown(ctx); err != nil {
			t.Errorf("shutdown: %v", err)
		}
		if !comes(func() bool { return serverGoroutines() <= before }) {
			t.Errorf("goroutines are left:\n%s", stacks())
		}
	})
	return run
}

// comes waits until something is so, and reports whether it ever was.
func comes(so func() bool) bool {
	for deadline := time.After(10 * time.Second); !so(); {
		select {
		case <-deadline:
			return false
		case <-time.After(time.Millisecond):
		}
	}
	return true
}

func waitFor(t *testing.T, so func() bool) {
	t.Helper()
	if !comes(so) {
		t.Fatal("it does not come")
	}
}

func stacks() string {
	buffer := make([]byte, 4<<20)
	return string(buffer[:runtime.Stack(buffer, true)])
}

// serverGoroutines counts goroutines of this package and of the servers that it starts.
func serverGoroutines() int {
	n := 0
	for g := range strings.SplitSeq(stacks(), "\n\n") {
		for _, of := range []string{"receiver.(*Receiver)", "receiver.(*health)", "net/http.(*conn).serve", "transport.(*http2Server)"} {
			if strings.Contains(g, of) {
				n++
				break
			}
		}
	}
	return n
}

func (run *running) client(t testing.TB, opts ...grpc.DialOption) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient(run.grpc, append(opts, grpc.WithTransportCredentials(insecure.NewCredentials()))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// rawBytes is a client codec that sends and receives bytes as they are.
type rawBytes struct{}

func (rawBytes) Name() string { return "proto" }
func (rawBytes) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(*v.(*[]byte))}, nil
}
func (rawBytes) Unmarshal(data mem.BufferSlice, v any) error {
	*v.(*[]byte) = data.Materialize()
	return nil
}

// call sends body as an export request of a signal and returns the status and the answer's bytes.
func call(ctx context.Context, conn *grpc.ClientConn, signal segment.Signal, body []byte, opts ...grpc.CallOption) ([]byte, error) {
	var out []byte
	opts = append(opts, grpc.ForceCodecV2(rawBytes{}), grpc.MaxCallSendMsgSize(1<<30))
	err := conn.Invoke(ctx, "/"+grpcService(signal)+"/Export", &body, &out, opts...)
	return out, err
}

// answer is what an HTTP request got.
type answer struct {
	status int
	header http.Header
	body   []byte
}

// send makes one HTTP request; headers are "name: value".
func (run *running) send(t testing.TB, method, path string, body io.Reader, headers ...string) answer {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, run.url+path, body)
	if err != nil {
		t.Fatal(err)
	}
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		req.Header.Add(name, value)
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer{resp.StatusCode, resp.Header, b}
}

// rpcStatus decodes an error body as its content type says.
func (a answer) rpcStatus(t *testing.T) *spb.Status {
	t.Helper()
	s := new(spb.Status)
	var err error
	switch a.header.Get("Content-Type") {
	case jsonType:
		err = protojson.Unmarshal(a.body, s)
	case protobufType:
		err = proto.Unmarshal(a.body, s)
	default:
		t.Fatalf("content type %q", a.header.Get("Content-Type"))
	}
	if err != nil {
		t.Fatalf("error body %q: %v", a.body, err)
	}
	return s
}

// logsRequest has n records whose bodies are seq-from onwards, each padded to size.
func logsRequest(tb testing.TB, from, n, size int) []byte {
	tb.Helper()
	l := plog.NewLogs()
	rl := l.ResourceLogs().AppendEmpty()
	rl.Resource().Attributes().PutStr("service.name", "test")
	records := rl.ScopeLogs().AppendEmpty().LogRecords()
	for i := range n {
		r := records.AppendEmpty()
		r.SetTraceID(pcommon.TraceID{1, 2, 3, byte(i)})
		r.Body().SetStr(fmt.Sprint(from+i) + strings.Repeat("x", size))
	}
	b, err := plogotlp.NewExportRequestFromLogs(l).MarshalProto()
	if err != nil {
		tb.Fatal(err)
	}
	return b
}

// logsOfSize is a request of exactly that many bytes.
func logsOfSize(tb testing.TB, size int) []byte {
	tb.Helper()
	n := size
	for range 10 {
		b := logsRequest(tb, 1, 1, n)
		if len(b) == size {
			return b
		}
		n += size - len(b)
	}
	tb.Fatalf("no request of %d bytes", size)
	return nil
}

func gzipped(tb testing.TB, parts ...[]byte) []byte {
	tb.Helper()
	var out bytes.Buffer
	for _, p := range parts {
		z := gzip.NewWriter(&out)
		if _, err := z.Write(p); err != nil {
			tb.Fatal(err)
		}
		if err := z.Close(); err != nil {
			tb.Fatal(err)
		}
	}
	return out.Bytes()
}

// zstdStreamed is one frame for each part, without the size of its content.
func zstdStreamed(tb testing.TB, parts ...[]byte) []byte {
	tb.Helper()
	var out bytes.Buffer
	for _, p := range parts {
		z, err := zstd.NewWriter(&out, zstd.WithEncoderConcurrency(1))
		if err != nil {
			tb.Fatal(err)
		}
		for len(p) > 0 { // flushed in between, so that the encoder does not know the size
			n := min(len(p), 1<<20)
			if _, err := z.Write(p[:n]); err != nil {
				tb.Fatal(err)
			}
			if err := z.Flush(); err != nil {
				tb.Fatal(err)
			}
			p = p[n:]
		}
		if err := z.Close(); err != nil {
			tb.Fatal(err)
		}
	}
	return out.Bytes()
}

// zstdSized is a frame that names the size of its content.
func zstdSized(tb testing.TB, b []byte) []byte {
	tb.Helper()
	z, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1))
	if err != nil {
		tb.Fatal(err)
	}
	defer z.Close()
	return z.EncodeAll(b, nil)
}

// hugeWindow is a zstd frame of one byte whose header asks for a window of 2 GiB.
func hugeWindow(tb testing.TB) []byte {
	tb.Helper()
	// magic; descriptor: no size, no checksum; window 2^31; last block, raw, 1 byte; the byte
	b, err := hex.DecodeString("28b52ffd" + "00" + "a8" + "090000" + "00")
	if err != nil {
		tb.Fatal(err)
	}
	return b
}
