package agent_test

import (
	"bytes"
	"context"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"ingest-agent/agent/agenttest"
	"ingest-agent/agent/config"
	"ingest-agent/bench/load"
	"ingest-agent/bench/otlpgen"
	"ingest-agent/bench/seqset"
	"ingest-agent/bench/wire"
	"ingest-agent/segment"
)

// fill sends until requests have been refused for a while, and returns what was acknowledged.
func (n *node) fill(records int) *load.Load {
	n.t.Helper()
	l, err := load.New(load.Config{GRPC: n.Addrs().GRPC, HTTP: n.Addrs().HTTP, Senders: 4, Records: records, Seed: 2, Timeout: agenttest.SendTimeout})
	if err != nil {
		n.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(n.t.Context(), time.Minute)
	defer cancel()
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer cancel()
		tick := time.NewTicker(5 * time.Millisecond)
		defer tick.Stop()
		for res := l.Snapshot(); res.Failures["http 429"] < 20 || res.Failures["grpc ResourceExhausted"] < 20; res = l.Snapshot() {
			select {
			case <-tick.C:
			case <-ctx.Done():
				return
			}
		}
	}()
	res, err := l.Run(ctx)
	<-done
	if err != nil || res.Failures["http 429"] < 20 || res.Failures["grpc ResourceExhausted"] < 20 || len(res.Failures) != 2 {
		n.t.Fatalf("load: %v, failures %v, want refusals for want of space only", err, res.Failures)
	}
	return l
}

// body is one request of a record.
func body(t testing.TB, seq uint64) []byte {
	t.Helper()
	g, err := otlpgen.New(3, 1)
	if err != nil {
		t.Fatal(err)
	}
	return g.Append(nil, segment.Logs, 0, seq)
}

// post sends one request over HTTP and returns status and Retry-After.
func (n *node) post(body []byte) (code int, retryAfter string) {
	n.t.Helper()
	client := http.Client{Timeout: 20 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Post("http://"+n.Addrs().HTTP+"/v1/logs", "application/x-protobuf", bytes.NewReader(body))
	if err != nil {
		n.t.Fatal(err)
	}
	defer resp.Body.Close()
	return resp.StatusCode, resp.Header.Get("Retry-After")
}

// taken sends one request and reports whether it was acknowledged.
func (n *node) taken(seq uint64) bool {
	n.t.Helper()
	code, _ := n.post(body(n.t, seq))
	return code == http.StatusOK
}

// fillUp sends small requests until none has been taken for a while: reservations are larger than what they come to, and free
// space is looked at now and then. It adds what was acknowledged, and returns a number that was not sent.
func (n *node) fillUp(acked *seqset.Set) (next uint64) {
	n.t.Helper()
	const quiet = 300 * time.Millisecond
	next = 1 << 20 // above what was sent
	for last := time.Now(); time.Since(last) < quiet; next++ {
		if n.taken(next) {
			acked.Add(next)
			last = time.Now()
		}
	}
	return next
}

// call sends one request over gRPC and returns its status.
func (n *node) call(body []byte) *status.Status {
	n.t.Helper()
	conn, err := grpc.NewClient(n.Addrs().GRPC, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		n.t.Fatal(err)
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(n.t.Context(), 20*time.Second)
	defer cancel()
	var answer []byte
	return status.Convert(conn.Invoke(ctx, wire.GRPCMethod(segment.Logs), &body, &answer, grpc.ForceCodecV2(wire.RawCodec{})))
}

// checkRefused sends a request on both transports, which must be told to come again later.
func (n *node) checkRefused(seq uint64) {
	n.t.Helper()
	code, after := n.post(body(n.t, seq))
	if s, err := strconv.Atoi(after); code != http.StatusTooManyRequests || err != nil || s < 1 {
		n.t.Errorf("HTTP answered %d, Retry-After %q", code, after)
	}
	s := n.call(body(n.t, seq+1))
	var delay time.Duration
	for _, d := range s.Details() {
		if r, ok := d.(*errdetails.RetryInfo); ok {
			delay = r.GetRetryDelay().AsDuration()
		}
	}
	if s.Code() != codes.ResourceExhausted || delay < time.Second {
		n.t.Errorf("gRPC answered %v with delay %v", s, delay)
	}
}

// TestCase23ByteLimit: wal.max_bytes holds in bytes on disk, refusals carry a delay, and what was acknowledged arrives.
func TestCase23ByteLimit(t *testing.T) {
	t.Parallel()
	const limit = 8 << 20
	dir := t.TempDir()
	s := agenttest.NewSink(t)
	n := start(t, newConfig(t, dir, s.URL(), func(c *config.Config) { c.WAL.MaxBytes, c.WAL.FullWait, c.WAL.Shards = limit, 0, 2 }))
	watch := agenttest.WatchDisk(dir)
	acked := n.fill(100).Acked()
	n.checkRefused(n.fillUp(acked))
	if got := n.ready(); got != "full" {
		t.Errorf("ready: %s", got)
	}
	watch.End()
	if watch.Max > limit || watch.Max < limit*3/4 || watch.Err != nil {
		t.Errorf("the segments took up to %d bytes, limit %d (%v)", watch.Max, limit, watch.Err)
	}
	agenttest.Up(t, s)
	n.awaitDrained(20 * time.Second)
	agenttest.Same(t, "delivered", s.Received(), acked)
	agenttest.Await(t, 2*time.Second, "ready again", func() bool { return n.ready() == "ok" })
	n.metrics()
	n.stop()
}

// TestCase26ParallelWriters: requests that come together cannot pass the limit together.
func TestCase26ParallelWriters(t *testing.T) {
	t.Parallel()
	const limit, writers = 4 << 20, 16
	dir := t.TempDir()
	s := agenttest.NewSink(t)
	n := start(t, newConfig(t, dir, s.URL(), func(c *config.Config) { c.WAL.MaxBytes, c.WAL.FullWait = limit, 0 }))
	l, err := load.New(load.Config{HTTP: n.Addrs().HTTP, Senders: writers, Records: 380, Requests: 80, Seed: 3, Timeout: agenttest.SendTimeout})
	if err != nil {
		t.Fatal(err)
	}
	watch := agenttest.WatchDisk(dir)
	res, err := l.Run(t.Context())
	watch.End()
	if err != nil || len(res.Failures) != 1 || res.Failures["http 429"] == 0 {
		t.Errorf("load: %v, failures %v", err, res.Failures)
	}
	acked := res.AckedRecords / 380
	if size := res.AckedBytes / max(acked, 1); size < 150<<10 || size > 300<<10 {
		t.Errorf("a request has %d bytes, meant are 200 KiB", size)
	}
	if watch.Max > limit || watch.Max < limit/2 || watch.Err != nil {
		t.Errorf("the segments took up to %d bytes, limit %d (%v)", watch.Max, limit, watch.Err)
	}
	agenttest.Up(t, s)
	n.awaitDrained(20 * time.Second)
	agenttest.Same(t, "delivered", s.Received(), l.Acked())
	n.metrics()
	n.stop()
}

// TestCase35LimitBelowBacklog: a lower limit concerns new data only. A request that may wait for space gets it from the
// drain.
func TestCase35LimitBelowBacklog(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := agenttest.NewSink(t)
	n := start(t, newConfig(t, dir, s.URL()))
	seq := &load.Sequence{}
	acked := n.send(seq, 80, 280)
	n.stop()
	if size, err := agenttest.SegmentBytes(dir); err != nil || size < 10<<20 {
		t.Fatalf("the backlog has %d bytes (%v), meant are 10 MiB", size, err)
	}
	begin := time.Now()
	lower := func(c *config.Config) { c.WAL.MaxBytes, c.WAL.FullWait = 1<<20, time.Minute }
	n = start(t, newConfig(t, dir, s.URL(), lower))
	if took := time.Since(begin); took > 2*time.Second {
		t.Errorf("the start took %v", took)
	}
	if got := n.ready(); got != "full" {
		t.Errorf("ready: %s", got)
	}
	waiting := make(chan int)
	first := seq.Take(1)
	go func() { code, _ := n.post(body(t, first)); waiting <- code }()
	agenttest.Up(t, s)
	if code := <-waiting; code != http.StatusOK {
		t.Errorf("the request that waited was answered %d", code)
	}
	acked.Add(first)
	n.awaitDrained(20 * time.Second)
	agenttest.Await(t, 2*time.Second, "ready again", func() bool { return n.ready() == "ok" })
	agenttest.Same(t, "delivered", s.Received(), acked)
	n.metrics()
	n.stop()
}

// TestReadyNamesTheCause: /readyz says why a request would be refused, the refusal agrees, and it ends by itself.
func TestReadyNamesTheCause(t *testing.T) {
	t.Parallel()
	t.Run("disk", func(t *testing.T) {
		t.Parallel()
		c := newConfig(t, t.TempDir(), agenttest.NewSink(t).URL(), func(c *config.Config) { c.WAL.MinFreeBytes, c.WAL.FullWait = 1<<60, 0 })
		n := start(t, c)
		if got := n.ready(); got != "disk" {
			t.Errorf("ready: %s", got)
		}
		n.checkRefused(1)
		if got := n.metrics().Sum("requests_refused_total", `reason="disk"`, `signal="logs"`); got != 2 {
			t.Errorf("%d refusals are counted, want 2", got)
		}
		n.stop()
	})
	t.Run("sync", func(t *testing.T) {
		t.Parallel()
		dir := t.TempDir()
		s := agenttest.NewSink(t)
		agenttest.Up(t, s)
		n := start(t, newConfig(t, dir, s.URL(), segmentSize(4<<10)))
		testReadyAfterTrouble(t, n, dir)
		n.awaitDrained(10 * time.Second)
		n.stop()
	})
}

// testReadyAfterTrouble takes away the lane's directory, so that no segment can be created, and gives it back.
func testReadyAfterTrouble(t *testing.T, n *node, dir string) {
	lane := filepath.Join(dir, "lanes", "default.0")
	if err := os.Rename(lane, lane+"-away"); err != nil {
		t.Fatal(err)
	}
	seq := uint64(0)
	agenttest.Await(t, 10*time.Second, "not ready", func() bool { // each request ends a segment
		seq++
		big := bytes.Clone(body(t, seq))
		code, after := n.post(append(big, unknownField(8<<10)...))
		if code != http.StatusOK && (code != http.StatusServiceUnavailable || after == "") {
			t.Errorf("HTTP answered %d, Retry-After %q", code, after)
		}
		return n.ready() == "sync"
	})
	if s := n.call(body(t, seq)); s.Code() != codes.Unavailable {
		t.Errorf("gRPC answered %v", s)
	} else if strings.Contains(s.Message(), dir) {
		t.Errorf("the answer shows a path: %v", s)
	}
	for _, l := range n.State().Lanes {
		if l.Trouble == "" {
			t.Error("the state does not say what the trouble is")
		}
	}
	if code, _ := agenttest.Get(t, n.Addrs().Admin, "/livez"); code != http.StatusOK {
		t.Errorf("/livez: %d", code)
	}
	if err := os.Rename(lane+"-away", lane); err != nil {
		t.Fatal(err)
	}
	agenttest.Await(t, 5*time.Second, "ready again", func() bool { return n.ready() == "ok" })
}

// unknownField is a protobuf field that no OTLP request knows, of about n bytes.
func unknownField(n int) []byte {
	const field1000Bytes = 1000<<3 | 2
	b := []byte{field1000Bytes&0x7f | 0x80, field1000Bytes >> 7, byte(n&0x7f | 0x80), byte(n >> 7 & 0x7f)}
	return append(b, make([]byte, n)...)
}
