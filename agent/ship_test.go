package agent_test

import (
	"encoding/json"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"ingest-agent/agent/agenttest"
	"ingest-agent/agent/config"
	"ingest-agent/bench/load"
	"ingest-agent/bench/seqset"
	"ingest-agent/bench/sink"
	"ingest-agent/objstore"
	"ingest-agent/objstore/s3/s3test"
	"ingest-agent/recovery/owner"
)

// shipping ships to a bucket at once, and takes over soon.
func shipping(url string, change ...func(*config.Config)) func(*config.Config) {
	return func(c *config.Config) {
		c.Bucket.URL = url
		c.Shipper = config.Shipper{After: 50 * time.Millisecond, RetryMaxInterval: 200 * time.Millisecond}
		c.Recovery.ScanInterval, c.Recovery.Heartbeat, c.Recovery.StaleAfter = 200*time.Millisecond, 500*time.Millisecond, 3*time.Second
		c.Recovery.BootWait = 100 * time.Millisecond
		for _, f := range change {
			f(c)
		}
	}
}

// states returns the states of the registers in a bucket.
func states(t *testing.T, b objstore.Bucket) (all []string) {
	t.Helper()
	for _, info := range list(t, b, objstore.OwnersPrefix) {
		text, err := objstore.ReadAll(t.Context(), b, info.Key, 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		var r struct {
			State string `json:"state"`
		}
		if err := json.Unmarshal(text, &r); err != nil {
			t.Fatal(err)
		}
		all = append(all, r.State)
	}
	return all
}

// atRest says whether nothing is owed from a bucket.
func atRest(t *testing.T, b objstore.Bucket) bool {
	t.Helper()
	for _, s := range states(t, b) {
		if s != owner.Idle && s != owner.Drained {
			return false
		}
	}
	return len(list(t, b, objstore.SegmentsPrefix)) == 0
}

// TestCase82AgentShipsTheLastRecord: one record, a destination that is down, and a shipper that would ship it in an hour: a stop
// ships it at once, and hands it over.
func TestCase82AgentShipsTheLastRecord(t *testing.T) {
	t.Parallel()
	b, url := newBucket(t)
	s := agenttest.NewSink(t)
	n := start(t, newConfig(t, t.TempDir(), s.URL(), shipping(url, func(c *config.Config) {
		c.Shipper.After, c.Shutdown.Timeout = time.Hour, 5*time.Second
	})))
	n.send(nil, 1, 1)
	if left := list(t, b, objstore.SegmentsPrefix); len(left) > 0 {
		t.Fatalf("shipped before it was due: %v", left)
	}
	begun := time.Now()
	n.stop()
	if took := time.Since(begun); took > 3*time.Second {
		t.Errorf("the stop took %v", took)
	}
	if objects, all := list(t, b, objstore.SegmentsPrefix), states(t, b); len(objects) != 1 || len(all) != 1 || all[0] != owner.Retired {
		t.Errorf("objects %v, registers %v", objects, all)
	}
}

func newBucket(t *testing.T) (objstore.Bucket, string) {
	t.Helper()
	url := "file:" + filepath.Join(t.TempDir(), "bucket")
	return openStore(t, url), url
}

// TestCleanStopLeavesNothing: an agent that delivers everything has nothing in the bucket, before and after its stop.
func TestCleanStopLeavesNothing(t *testing.T) {
	t.Parallel()
	b, url := newBucket(t)
	s := agenttest.NewSink(t)
	agenttest.Up(t, s)
	n := start(t, newConfig(t, t.TempDir(), s.URL(), shipping(url, func(c *config.Config) { c.Shipper.After = time.Minute })))
	acked := n.send(nil, 50, 2)
	n.awaitDrained(10 * time.Second)
	n.stop()
	agenttest.Same(t, "delivered", s.Received(), acked)
	if objects, all := list(t, b, objstore.SegmentsPrefix), states(t, b); len(objects)+len(all) > 0 {
		t.Errorf("objects %v, registers %v", objects, all)
	}
}

// TestCase83AgentsThatAreGone: two of three agents stop with their backlogs, and their disks go. The third delivers everything.
func TestCase83AgentsThatAreGone(t *testing.T) {
	t.Parallel()
	b, url := newBucket(t)
	s := agenttest.NewSink(t)
	var seq load.Sequence
	var acked seqset.Set
	var dirs [3]string
	var nodes [3]*node
	for i := range nodes {
		dirs[i] = t.TempDir()
		nodes[i] = start(t, newConfig(t, dirs[i], s.URL(), shipping(url)))
		join(&acked, nodes[i].send(&seq, 30, 3))
	}
	for i := range 2 {
		nodes[i].stop()
		if err := os.RemoveAll(dirs[i]); err != nil {
			t.Fatal(err)
		}
	}
	agenttest.Up(t, s)
	agenttest.Await(t, 20*time.Second, "all is delivered and nothing left", func() bool {
		missing, _ := acked.Minus(s.Received(), 0)
		return missing == 0 && atRest(t, b)
	})
	nodes[2].stop()
	agenttest.Same(t, "delivered", s.Received(), &acked)
	if st := s.Stats(); st.Duplicates > 0 {
		t.Errorf("%d records came twice", st.Duplicates)
	}
}

// join adds the numbers of a set to another.
func join(to, from *seqset.Set) {
	_, ranges := from.Minus(to, 1<<20)
	for _, r := range ranges {
		to.AddRange(r.First, int(r.Last-r.First)+1)
	}
}

// TestCopiedDirectoryBothStart: a data directory and its copy are started at once. Nothing is lost, and what was shipped comes
// once.
func TestCopiedDirectoryBothStart(t *testing.T) {
	t.Parallel()
	b, url := newBucket(t)
	s := agenttest.NewSink(t)
	one, two := t.TempDir(), filepath.Join(t.TempDir(), "copy")
	n := start(t, newConfig(t, one, s.URL(), shipping(url)))
	acked := n.send(nil, 40, 3)
	n.stop()
	agenttest.Copy(t, one, two)
	agenttest.Up(t, s)
	nodes := []*node{start(t, newConfig(t, one, s.URL(), shipping(url))), start(t, newConfig(t, two, s.URL(), shipping(url)))}
	agenttest.Await(t, 20*time.Second, "all is delivered and nothing left", func() bool {
		missing, _ := acked.Minus(s.Received(), 0)
		return missing == 0 && atRest(t, b) && nodes[0].pending().Frames+nodes[1].pending().Frames == 0
	})
	for _, n := range nodes {
		n.metrics() // the books balance
		n.stop()
	}
	agenttest.Same(t, "delivered", s.Received(), acked)
	if st := s.Stats(); st.Duplicates > 0 {
		t.Errorf("%d records came twice", st.Duplicates)
	}
}

// TestStopWhileDestinationAndBucketHang: a stop ends in time whatever hangs, joins everything, and what is left is delivered by
// the next start, although the bucket is still out of reach.
func TestStopWhileDestinationAndBucketHang(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var hanging sync.WaitGroup
	hanging.Go(func() {
		var all []net.Conn
		for {
			c, err := l.Accept()
			if err != nil {
				break
			}
			all = append(all, c) // and never a word
		}
		for _, c := range all {
			_ = c.Close()
		}
	})
	defer hanging.Wait()
	defer func() { _ = l.Close() }()
	t.Setenv("AWS_ACCESS_KEY_ID", "test")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "test")
	url := "s3://bucket/prefix?region=us-east-1&path_style=true&endpoint=http://" + l.Addr().String()
	s := agenttest.NewSink(t)
	agenttest.Up(t, s)
	s.Behave(sink.Behavior{Hang: true})
	dir := t.TempDir()
	change := shipping(url, func(c *config.Config) { c.Shutdown.Timeout = 4 * time.Second })
	n := start(t, newConfig(t, dir, s.URL(), change))
	acked := n.send(nil, 40, 3)
	begun := time.Now()
	_ = n.Stop(nil) // it says that not all was shipped
	if took := time.Since(begun); took > 5*time.Second {
		t.Errorf("the stop took %v of 4 s", took)
	}
	if err := s.Down(true); err != nil {
		t.Fatal(err)
	}
	_ = l.Close()
	hanging.Wait()
	if left := ownGoroutines(5 * time.Second); left != "" {
		t.Errorf("goroutines are left:\n%s", left)
	}
	s.Behave(sink.Behavior{})
	agenttest.Up(t, s)
	n = start(t, newConfig(t, dir, s.URL(), change))
	n.awaitDrained(20 * time.Second)
	agenttest.Same(t, "delivered", s.Received(), acked)
	_ = n.Stop(nil)
}

// TestAcknowledgedByTheBucket: with ack: bucket a success answer means that the bucket has it; while the bucket is down requests
// are refused with a delay, and readiness says why; both end by themselves when it is back.
func TestAcknowledgedByTheBucket(t *testing.T) {
	server := s3test.Start(t)
	for _, setting := range server.Env() {
		if name, value, _ := strings.Cut(setting, "="); strings.HasPrefix(name, "AWS_") {
			t.Setenv(name, value)
		}
	}
	s := agenttest.NewSink(t)
	n := start(t, newConfig(t, t.TempDir(), s.URL(), shipping(server.URL("fleet"), func(c *config.Config) {
		c.WAL.Ack, c.Shipper.After = config.AckBucket, time.Hour
	})))
	var seq load.Sequence
	acked := n.send(&seq, 20, 3)
	if st := n.State().Bucket.Shipper; st.Objects == 0 || st.State != owner.Live {
		t.Fatalf("acknowledged, and the bucket has nothing: %+v", st)
	}
	server.Kill9()
	l, err := load.New(load.Config{HTTP: n.Addrs().HTTP, Senders: 1, Requests: 1, Records: 3, Sequence: &seq, Timeout: 30 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	r, err := l.Run(t.Context())
	if err != nil || r.AckedRecords > 0 || r.Failures["http 503"] != 1 {
		t.Errorf("with the bucket down: %v (%v)", r, err)
	}
	agenttest.Await(t, 20*time.Second, "readiness says why", func() bool { return n.ready() == "bucket" })
	server.Restart()
	agenttest.Await(t, 20*time.Second, "it is ready again", func() bool { return n.ready() == "ok" })
	join(acked, n.send(&seq, 20, 3))
	agenttest.Up(t, s)
	n.awaitDrained(20 * time.Second)
	if missing, _ := acked.Minus(s.Received(), 0); missing > 0 {
		t.Errorf("%d acknowledged records are missing", missing)
	}
	n.stop()
}
