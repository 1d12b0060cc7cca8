package agent_test

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"ingest-agent/agent"
	"ingest-agent/agent/agenttest"
	"ingest-agent/agent/config"
	"ingest-agent/bench/load"
	"ingest-agent/bench/seqset"
	"ingest-agent/segment"
	"ingest-agent/segment/vfs"
)

// TestMain fails the run if a goroutine of the agent outlives the tests.
func TestMain(m *testing.M) {
	code := m.Run()
	if left := ownGoroutines(5 * time.Second); left != "" {
		fmt.Fprintf(os.Stderr, "goroutines are left over:\n%s\n", left)
		code = 1
	}
	os.Exit(code)
}

// ownGoroutines returns the stacks of goroutines that run code of this module outside of tests, or of a server or client that
// it started, once they have had limit to end.
func ownGoroutines(limit time.Duration) string {
	own := []string{"ingest-agent/", "net/http.", "google.golang.org/grpc"}
	return goroutines(limit, func(stack string) bool {
		return slices.ContainsFunc(own, func(part string) bool { return strings.Contains(stack, part) }) &&
			!strings.Contains(stack, "agent_test.") && !strings.Contains(stack, "testing.")
	})
}

// goroutines returns the stacks that match once they have had limit to end.
func goroutines(limit time.Duration, match func(stack string) bool) string {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(limit); ; <-tick.C {
		buf := make([]byte, 4<<20)
		var left []string
		for stack := range strings.SplitSeq(string(buf[:runtime.Stack(buf, true)]), "\n\n") {
			if match(stack) {
				left = append(left, stack)
			}
		}
		if len(left) == 0 || time.Now().After(deadline) {
			return strings.Join(left, "\n\n")
		}
	}
}

// newConfig is a configuration with one lane, on free ports, whose destination is url.
func newConfig(t testing.TB, dir, url string, change ...func(*config.Config)) config.Config {
	t.Helper()
	text := fmt.Sprintf(`
data_dir: %q
receivers: {grpc: {endpoint: "127.0.0.1:0"}, http: {endpoint: "127.0.0.1:0"}}
admin: {endpoint: "127.0.0.1:0"}
wal: {shards: 1, min_free_bytes: 0}
destinations:
  default: {type: otlp_http, endpoint: %q, compression: none, retry: {initial_interval: 10ms, max_interval: 50ms}}
shutdown: {timeout: 20s}
`, dir, url)
	c, err := config.Parse("test.yaml", []byte(text), nil, func(string) (string, bool) { return "", false })
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range change {
		f(&c)
	}
	return c
}

// segmentSize makes the segments small.
func segmentSize(n int) func(*config.Config) {
	return func(c *config.Config) { c.WAL.SegmentSizeBytes = config.Size(n) }
}

// node is an agent that runs in this process.
type node struct {
	*agent.Agent
	t    testing.TB
	logs *observer.ObservedLogs
	end  func() error
}

// start starts an agent, which is stopped at the latest when the test ends.
func start(t testing.TB, c config.Config) *node {
	t.Helper()
	n, err := tryStart(t, c)
	if err != nil {
		t.Fatalf("start: %v", err)
	}
	return n
}

func tryStart(t testing.TB, c config.Config) (*node, error) {
	core, logs := observer.New(zapcore.InfoLevel)
	a, err := agent.Start(agent.Options{Config: c, Log: zap.New(core), Version: "test"})
	if err != nil {
		return nil, err
	}
	n := &node{Agent: a, t: t, logs: logs}
	n.end = sync.OnceValue(func() error {
		skip := make(chan struct{})
		close(skip)
		return a.Stop(skip)
	})
	t.Cleanup(func() { _ = n.end() })
	return n, nil
}

// stop stops the agent without waiting for its drain.
func (n *node) stop() {
	n.t.Helper()
	if err := n.end(); err != nil {
		n.t.Errorf("stop: %v", err)
	}
}

// send sends requests over HTTP and gRPC in turn, each to the end, and returns the numbers that were acknowledged: all.
func (n *node) send(seq *load.Sequence, requests, records int) *seqset.Set {
	n.t.Helper()
	return agenttest.Send(n.t, load.Config{
		GRPC: n.Addrs().GRPC, HTTP: n.Addrs().HTTP, Senders: 4, Requests: uint64(requests), Records: records, Sequence: seq, Seed: 1,
	})
}

// pending is what is not delivered yet.
func (n *node) pending() (t segment.Totals) {
	for _, l := range n.State().Lanes {
		t = t.Add(l.Pending)
	}
	return t
}

// awaitDrained waits until nothing is pending.
func (n *node) awaitDrained(limit time.Duration) {
	n.t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(limit); n.pending() != (segment.Totals{}); <-tick.C {
		if time.Now().After(deadline) {
			n.t.Fatalf("not drained within %v: %+v\n%s", limit, n.State(), n.logText())
		}
	}
}

// saved reports whether the cursor files hold what the lanes know.
func (n *node) saved(dataDir string) bool {
	for name, l := range n.State().Lanes {
		id, err := segment.ParseLaneID(name)
		if err != nil {
			n.t.Fatal(err)
		}
		st, _, err := segment.ReadCursor(vfs.OS(), filepath.Join(dataDir, "lanes", name), id)
		if err != nil || st == nil || st.In != l.In || st.Out != l.Out || l.WaitingFrames > 0 {
			return false
		}
	}
	return true
}

func (n *node) logText() string {
	var b strings.Builder
	for _, e := range n.logs.All() {
		fmt.Fprintln(&b, e.Level, e.Message, e.ContextMap())
	}
	return b.String()
}

// metrics reads the metrics and checks their balance.
func (n *node) metrics() agenttest.Metrics {
	n.t.Helper()
	m := agenttest.Scrape(n.t, n.Addrs().Admin)
	m.Balance(n.t)
	return m
}

// ready returns what /readyz says.
func (n *node) ready() string {
	code, text := agenttest.Get(n.t, n.Addrs().Admin, "/readyz")
	if (code == http.StatusOK) != (text == "ok") {
		n.t.Errorf("/readyz: %d %q", code, text)
	}
	return text
}
