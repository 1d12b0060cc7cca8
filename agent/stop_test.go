package agent_test

import (
	"bufio"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"ingest-agent/agent/agenttest"
	"ingest-agent/agent/config"
	"ingest-agent/bench/load"
	"ingest-agent/bench/seqset"
	"ingest-agent/bench/sink"
	"ingest-agent/segment"
)

// TestStopJoinsEverything is not parallel: all goroutines of the module that are seen are this agent's.
func TestStopJoinsEverything(t *testing.T) {
	s := agenttest.NewSink(t)
	agenttest.Up(t, s)
	before := descriptors(t)
	n := start(t, newConfig(t, t.TempDir(), s.URL(), func(c *config.Config) { c.WAL.Shards = 2 }))
	acked := n.send(nil, 20, 5)
	n.metrics()
	begin := time.Now()
	if err := n.Stop(nil); err != nil {
		t.Errorf("stop: %v", err)
	}
	if took := time.Since(begin); took > 5*time.Second {
		t.Errorf("a stop with nothing to wait for took %v", took)
	}
	agenttest.Same(t, "delivered", s.Received(), acked)
	// Before the sink cuts what is left: the connections to it are closed.
	idle := func(stack string) bool { return strings.Contains(stack, "net/http.(*persistConn)") }
	if left := goroutines(5*time.Second, idle); left != "" {
		t.Errorf("connections are left:\n%s", left)
	}
	if err := s.Down(true); err != nil {
		t.Error(err)
	}
	if left := ownGoroutines(5 * time.Second); left != "" {
		t.Errorf("goroutines are left:\n%s", left)
	}
	agenttest.Await(t, 5*time.Second, "descriptors are closed", func() bool { return descriptors(t) <= before })
}

// descriptors counts the open files of this process that are not pipes or the like.
func descriptors(t *testing.T) (n int) {
	t.Helper()
	const self = "/proc/self/fd"
	entries, err := os.ReadDir(self)
	if err != nil {
		t.Skipf("open files cannot be counted here: %v", err)
	}
	for _, e := range entries {
		if target, err := os.Readlink(filepath.Join(self, e.Name())); err == nil && (strings.HasPrefix(target, "/") || strings.HasPrefix(target, "socket:")) {
			n++
		}
	}
	return n
}

// TestStartOnLockedDirectory: a second agent on a data directory says so and touches nothing.
func TestStartOnLockedDirectory(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := agenttest.NewSink(t)
	n := start(t, newConfig(t, dir, s.URL()))
	n.send(nil, 10, 1)
	agenttest.Await(t, 10*time.Second, "the cursor is saved", func() bool { return n.saved(dir) })
	before := agenttest.Tree(t, dir)
	_, err := tryStart(t, newConfig(t, dir, s.URL()))
	if err == nil || !strings.Contains(err.Error(), "data directory "+dir+" is in use by another process") {
		t.Errorf("the second start: %v", err)
	}
	if after := agenttest.Tree(t, dir); after != before {
		t.Errorf("the data directory changed from\n%s\nto\n%s", before, after)
	}
	n.stop()
}

// TestStartThatFailsClosesEverything: each listener in turn is taken; the next start finds all as it was. It is not parallel,
// for its look at goroutines.
func TestStartThatFailsClosesEverything(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	s := agenttest.NewSink(t)
	dir := t.TempDir()
	n := start(t, newConfig(t, dir, s.URL()))
	acked := n.send(nil, 10, 1)
	n.stop()
	files := descriptors(t)
	for name, endpoint := range map[string]func(c *config.Config) *string{
		"admin": func(c *config.Config) *string { return &c.Admin.Endpoint },
		"gRPC":  func(c *config.Config) *string { return &c.Receivers.GRPC.Endpoint },
		"HTTP":  func(c *config.Config) *string { return &c.Receivers.HTTP.Endpoint },
	} {
		_, err := tryStart(t, newConfig(t, dir, s.URL(), func(c *config.Config) { *endpoint(c) = taken.Addr().String() }))
		if err == nil || !strings.Contains(err.Error(), "listen for "+name) || !strings.Contains(err.Error(), taken.Addr().String()) {
			t.Errorf("start with the %s listener taken: %v", name, err)
		}
		if left := ownGoroutines(5 * time.Second); left != "" {
			t.Errorf("%s: goroutines are left:\n%s", name, left)
		}
		agenttest.Await(t, 5*time.Second, "descriptors are closed", func() bool { return descriptors(t) <= files })
	}
	_, err = tryStart(t, newConfig(t, dir, s.URL(), func(c *config.Config) { c.WAL.Ack = config.AckBucket }))
	if err == nil || !strings.Contains(err.Error(), "wal.ack: bucket") {
		t.Errorf("start with a promise that cannot be kept: %v", err)
	}
	agenttest.Up(t, s)
	n = start(t, newConfig(t, dir, s.URL()))
	n.awaitDrained(10 * time.Second)
	agenttest.Same(t, "delivered", s.Received(), acked)
	n.stop()
}

// TestCase32DestinationHangs: a stop ends in time whatever the destination does, and is no final answer for any record.
func TestCase32DestinationHangs(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name     string
		behavior sink.Behavior
	}{
		{"hangs", sink.Behavior{Hang: true}},
		{"refuses", sink.Behavior{Status: http.StatusServiceUnavailable}},
		{"asks for an hour", sink.Behavior{Status: http.StatusTooManyRequests, RetryAfter: time.Hour}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			s := agenttest.NewSink(t)
			agenttest.Up(t, s)
			s.Behave(test.behavior)
			const grace = 3 * time.Second
			n := start(t, newConfig(t, dir, s.URL(), func(c *config.Config) {
				c.Shutdown.Timeout = grace
				d := c.Destinations["default"]
				d.Timeout = time.Hour
				c.Destinations["default"] = d
			}))
			acked := n.send(nil, 100, 10)
			begin := time.Now()
			if err := n.Stop(nil); err != nil {
				t.Errorf("stop: %v", err)
			}
			if took := time.Since(begin); took > grace {
				t.Errorf("the stop took %v of %v", took, grace)
			}
			if got := n.logs.FilterMessage("stopped").FilterFieldKey("left_records").All(); len(got) != 1 || got[0].ContextMap()["left_records"] != uint64(1000) {
				t.Errorf("what is left is not named in one line:\n%s", n.logText())
			}
			s.Behave(sink.Behavior{})
			n = start(t, newConfig(t, dir, s.URL()))
			n.awaitDrained(20 * time.Second)
			agenttest.Same(t, "delivered", s.Received(), acked)
			n.metrics()
			n.stop()
		})
	}
}

// TestStopSkipsTheDrain: the drain of a stop is waited for, unless told not to; meanwhile the agent is not ready, says so,
// and takes nothing.
func TestStopSkipsTheDrain(t *testing.T) {
	t.Parallel()
	s := agenttest.NewSink(t)
	n := start(t, newConfig(t, t.TempDir(), s.URL(), func(c *config.Config) { c.Shutdown.Timeout = time.Hour }))
	n.send(nil, 5, 1)
	skip := make(chan struct{})
	stopped := make(chan error, 1)
	go func() { stopped <- n.Stop(skip) }()
	agenttest.Await(t, 10*time.Second, "it says that it stops", func() bool { return n.ready() == "stopping" })
	agenttest.Await(t, 10*time.Second, "the listeners are closed", func() bool {
		conn, err := net.Dial("tcp", n.Addrs().HTTP)
		if err == nil {
			_ = conn.Close()
		}
		return err != nil
	})
	select {
	case err := <-stopped:
		t.Fatalf("the stop did not wait for the drain (%v)", err)
	default:
	}
	if code, _ := agenttest.Get(t, n.Addrs().Admin, "/livez"); code != http.StatusOK {
		t.Errorf("/livez: %d", code)
	}
	close(skip)
	select {
	case err := <-stopped:
		if err != nil {
			t.Errorf("stop: %v", err)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("the stop went on waiting")
	}
}

// TestStopAnswersRequestsInHand: a request that began before the stop is finished, answered and stored; those that come later
// find the door closed and the agent not ready.
func TestStopAnswersRequestsInHand(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := agenttest.NewSink(t)
	n := start(t, newConfig(t, dir, s.URL()))
	conn, err := net.Dial("tcp", n.Addrs().HTTP)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	text := body(t, 1)
	// The server asks for the body once the request is in hand.
	fmt.Fprintf(conn, "POST /v1/logs HTTP/1.1\r\nHost: a\r\nContent-Type: application/x-protobuf\r\nContent-Length: %d\r\nExpect: 100-continue\r\n\r\n", len(text))
	answers := bufio.NewReader(conn)
	line, err := answers.ReadString('\n')
	if err != nil || !strings.Contains(line, " 100 ") {
		t.Fatalf("answer %q, %v", line, err)
	}
	if _, err := answers.ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	skip, stopped := make(chan struct{}), make(chan error, 1)
	close(skip)
	go func() { stopped <- n.Stop(skip) }()
	agenttest.Await(t, 10*time.Second, "it says that it stops", func() bool { return n.ready() == "stopping" })
	if _, err := conn.Write(text); err != nil {
		t.Fatal(err)
	}
	resp, err := http.ReadResponse(answers, nil)
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		t.Errorf("the request in hand was answered %d", resp.StatusCode)
	}
	if err := <-stopped; err != nil {
		t.Errorf("stop: %v", err)
	}
	if frames := agenttest.Frames(t, dir); len(frames) != 1 || !frames[0].Pending {
		t.Errorf("frames on disk: %+v", frames)
	}
}

// TestStopDrains: what the destination takes in time is delivered by the stop itself.
func TestStopDrains(t *testing.T) {
	t.Parallel()
	s := agenttest.NewSink(t)
	agenttest.Up(t, s)
	s.Behave(sink.Behavior{Delay: 100 * time.Millisecond})
	dir := t.TempDir()
	n := start(t, newConfig(t, dir, s.URL()))
	acked := n.send(nil, 100, 10)
	if err := n.Stop(nil); err != nil {
		t.Errorf("stop: %v", err)
	}
	agenttest.Same(t, "delivered", s.Received(), acked)
	for _, f := range agenttest.Frames(t, dir) {
		if f.Pending {
			t.Errorf("a frame in %s is pending", f.Path)
		}
	}
}

// TestLedgerOverRestarts: at every moment and after every restart the records that were accepted are accounted for, by
// signal, and nothing is delivered twice by a clean stop.
func TestLedgerOverRestarts(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := agenttest.NewSink(t)
	agenttest.Up(t, s)
	seq := &load.Sequence{}
	acked := &seqset.Set{}
	for round := range 6 {
		behavior := sink.Behavior{}
		switch round {
		case 1:
			behavior = sink.Behavior{Status: http.StatusServiceUnavailable}
		case 3:
			// More than it takes to narrow 200 records down to half of them, which become dead letters.
			behavior = sink.Behavior{Status: http.StatusBadRequest, Requests: 300}
		}
		s.Behave(behavior)
		n := start(t, newConfig(t, dir, s.URL(), segmentSize(64<<10), func(c *config.Config) { c.WAL.Shards = 2 }))
		n.metrics()
		for _, r := range rangesOf(n.send(seq, 40, 5)) {
			acked.AddRange(r.First, int(r.Last-r.First+1))
		}
		n.metrics()
		if round != 1 {
			n.awaitDrained(20 * time.Second)
		}
		m := n.metrics()
		for _, signal := range segment.Signals {
			n.checkLedger(m, signal)
		}
		if got := m.Sum("records_accepted_total"); got != acked.Count() {
			t.Errorf("round %d: %d are counted as accepted, want %d", round, got, acked.Count())
		}
		n.stop()
		// A request that the stop cut off must meet the behavior of its time.
		if err := s.Quiesce(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	stats := s.Stats()
	n := start(t, newConfig(t, dir, s.URL(), func(c *config.Config) { c.WAL.Shards = 2 }))
	m := n.metrics()
	dead := m.Sum("records_dead_letter_total")
	if got := m.Sum("records_delivered_total"); got != stats.Distinct || stats.Duplicates > 0 || dead == 0 || got+dead != acked.Count() {
		t.Errorf("%d are counted as delivered and %d as dead letters, of %d; the sink: %+v", got, dead, acked.Count(), stats)
	}
	n.stop()
}

func rangesOf(s *seqset.Set) []seqset.Range {
	_, ranges := s.Minus(&seqset.Set{}, 1<<20)
	return ranges
}

// checkLedger compares one signal of /metrics and /api/v1/state.
func (n *node) checkLedger(m agenttest.Metrics, signal segment.Signal) {
	n.t.Helper()
	label := `signal="` + signal.String() + `"`
	in := m.Sum("records_accepted_total", label)
	out := m.Sum("records_delivered_total", label) + m.Sum("records_rejected_total", label) +
		m.Sum("records_dead_letter_total", label) + m.Sum("records_lost_total", label)
	pending := n.pending().Records[signal.Index()]
	if in != out+pending || in == 0 {
		n.t.Errorf("%s: %d accepted, %d out, %d pending", signal, in, out, pending)
	}
}
