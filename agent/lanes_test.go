package agent_test

import (
	"encoding/json"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"go.uber.org/zap"

	"ingest-agent/agent"
	"ingest-agent/agent/agenttest"
	"ingest-agent/agent/config"
	"ingest-agent/bench/load"
	"ingest-agent/bench/seqset"
	"ingest-agent/segment"
	"ingest-agent/segment/vfs"
)

// TestOrphanLanes: the backlog of a destination that is not configured stays, is reported, and goes when it is configured
// again. What no route matches goes to the default destination.
func TestOrphanLanes(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	acme, other := agenttest.NewSink(t), agenttest.NewSink(t)
	routed := func(c *config.Config) {
		d := c.Destinations["default"]
		d.Endpoint = acme.URL()
		c.Destinations["acme"] = d
		c.Routes = []config.Route{{Tenant: "default", Destination: "acme"}, {Tenant: "default", Destination: "default"}}
	}
	seq := &load.Sequence{}
	n := start(t, newConfig(t, dir, other.URL(), routed))
	toAcme := n.send(seq, 20, 2)
	n.stop()

	agenttest.Up(t, acme)
	agenttest.Up(t, other)
	lane := filepath.Join(dir, "lanes", "acme.0")
	before := agenttest.Tree(t, lane)
	n = start(t, newConfig(t, dir, other.URL()))
	toOther := n.send(seq, 20, 2)
	n.awaitDrained(10 * time.Second)
	agenttest.Same(t, "delivered to the default", other.Received(), toOther)
	var st agent.State
	if code, text := agenttest.Get(t, n.Addrs().Admin, "/api/v1/state"); code != http.StatusOK || json.Unmarshal([]byte(text), &st) != nil {
		t.Fatalf("/api/v1/state: %d %s", code, text)
	}
	if want := []segment.LaneID{{Destination: "acme"}}; !slices.Equal(st.Orphans, want) || st.Lanes["acme.0"].Segments != 0 {
		t.Errorf("orphans %v, want %v; lanes %v", st.Orphans, want, st.Lanes)
	}
	if got := n.logs.FilterField(zap.Stringer("lane", segment.LaneID{Destination: "acme"})).All(); len(got) != 1 {
		t.Errorf("the orphan is not named in one line:\n%s", n.logText())
	}
	n.stop()
	if after := agenttest.Tree(t, lane); after != before {
		t.Errorf("the orphan changed from\n%s\nto\n%s", before, after)
	}

	n = start(t, newConfig(t, dir, other.URL(), routed))
	n.awaitDrained(10 * time.Second)
	agenttest.Same(t, "delivered to the configured again", acme.Received(), toAcme)
	n.metrics()
	n.stop()
}

// TestFewerShards: lanes of earlier settings are drained and take nothing new.
func TestFewerShards(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := agenttest.NewSink(t)
	shards := func(n int) func(*config.Config) { return func(c *config.Config) { c.WAL.Shards = n } }
	seq := &load.Sequence{}
	n := start(t, newConfig(t, dir, s.URL(), shards(4)))
	acked := n.send(seq, 80, 2)
	for name, l := range n.State().Lanes {
		if l.In.Frames == 0 {
			t.Fatalf("lane %s got nothing: the test needs other data", name)
		}
	}
	n.stop()
	n = start(t, newConfig(t, dir, s.URL(), shards(2)))
	in := n.State().Lanes
	if len(in) != 4 || n.ready() != "ok" {
		t.Errorf("%d lanes, ready: %s", len(in), n.ready())
	}
	for _, r := range rangesOf(n.send(seq, 80, 2)) {
		acked.AddRange(r.First, int(r.Last-r.First+1))
	}
	for name, l := range n.State().Lanes {
		if old := name == "default.2" || name == "default.3"; old != (l.In.Frames == in[name].In.Frames) {
			t.Errorf("lane %s had %d frames and has %d", name, in[name].In.Frames, l.In.Frames)
		}
	}
	agenttest.Up(t, s)
	n.awaitDrained(20 * time.Second)
	agenttest.Same(t, "delivered", s.Received(), acked)
	agenttest.Await(t, 10*time.Second, "lanes that take nothing have no segments", func() bool {
		lanes := n.State().Lanes
		return lanes["default.2"].Segments == 0 && lanes["default.3"].Segments == 0 && len(laneFiles(t, dir, "default.[23]")) == 0
	})
	n.metrics()
	n.stop()
}

// laneFiles are the segment files of lanes.
func laneFiles(t *testing.T, dir, lanes string) []string {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(dir, "lanes", lanes, "*", "*"))
	if err != nil {
		t.Fatal(err)
	}
	return paths
}

// TestCase52ChangedURL: the backlog belongs to the destination's name, so it goes to the new address.
func TestCase52ChangedURL(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	n := start(t, newConfig(t, dir, agenttest.NewSink(t).URL()))
	acked := n.send(nil, 20, 2)
	n.stop()
	s := agenttest.NewSink(t)
	agenttest.Up(t, s)
	n = start(t, newConfig(t, dir, s.URL()))
	n.awaitDrained(10 * time.Second)
	agenttest.Same(t, "delivered", s.Received(), acked)
	n.stop()
}

// TestCase40LastRecords: the last records need no others behind them, to be delivered or to be given up on disk.
func TestCase40LastRecords(t *testing.T) {
	t.Parallel()
	for _, records := range []int{1, 7} {
		dir := t.TempDir()
		s := agenttest.NewSink(t)
		agenttest.Up(t, s)
		n := start(t, newConfig(t, dir, s.URL(), func(c *config.Config) { c.WAL.SegmentAge = 500 * time.Millisecond }))
		acked := n.send(nil, records, 1)
		n.awaitDrained(10 * time.Second)
		agenttest.Same(t, "delivered", s.Received(), acked)
		agenttest.Await(t, 10*time.Second, "the segment is gone", func() bool {
			size, err := agenttest.SegmentBytes(dir)
			if err != nil {
				t.Fatal(err)
			}
			return size < 1000 && n.State().Space.UsedBytes < 1000 // a prepared segment has only its header
		})
		n.stop()
	}
}

// TestCase19CorruptSegment: one corrupt segment of 50 costs nothing but itself, at each of 20 starts; the others are delivered
// once.
func TestCase19CorruptSegment(t *testing.T) {
	t.Parallel()
	from, want := fiftySegments(t)
	s := agenttest.NewSink(t)
	agenttest.Up(t, s)
	for round := range 20 {
		n := start(t, newConfig(t, from, s.URL(), segmentSize(8<<10)))
		n.awaitDrained(20 * time.Second)
		if m := n.metrics(); m.Sum("records_lost_total") != m.Sum("records_accepted_total")-want.Count() {
			t.Errorf("round %d: %d counted as lost", round, m.Sum("records_lost_total"))
		}
		n.stop()
	}
	agenttest.Same(t, "delivered", s.Received(), want)
	if st := s.Stats(); st.Duplicates > 0 || st.Bad > 0 {
		t.Errorf("the sink: %+v", st)
	}
	entries, err := os.ReadDir(filepath.Join(from, "quarantine"))
	if err != nil || len(entries) != 1 {
		t.Errorf("quarantine: %v %v, want one file", entries, err)
	}
}

// fiftySegments makes a data directory of 50 sealed segments of which the 20th is random bytes, and returns the records of
// the others.
func fiftySegments(t *testing.T) (dir string, want *seqset.Set) {
	dir = agenttest.FastDir(t)
	n := start(t, newConfig(t, dir, agenttest.NewSink(t).URL(), segmentSize(8<<10)))
	seq := &load.Sequence{}
	for n.State().Lanes["default.0"].Tail.Seq <= 50 {
		n.send(seq, 4, 1)
	}
	n.stop()
	frames := agenttest.Frames(t, dir)
	path := agenttest.Segments(t, dir, "default.0")[19]
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	agenttest.Damage(t, rand.New(rand.NewPCG(19, 19)), frames, path, 0, int(info.Size()))
	return dir, agenttest.Numbers(frames, func(f *agenttest.FrameAt) bool { return f.Path != path })
}

// TestCase37ManySegments: the time of a start does not depend on the number of segments.
func TestCase37ManySegments(t *testing.T) {
	t.Parallel()
	segments := 1000
	if os.Getenv(agenttest.LongEnv) != "" {
		segments = 10_000
	}
	dir := agenttest.FastDir(t)
	s := agenttest.NewSink(t)
	acked := agenttest.ManySegments(t, dir, segments)
	begin := time.Now()
	n := start(t, newConfig(t, dir, s.URL()))
	if took := time.Since(begin); took > 2*time.Second || n.ready() != "ok" {
		t.Errorf("the start took %v, ready: %s", took, n.ready())
	}
	agenttest.Up(t, s)
	n.awaitDrained(time.Minute)
	agenttest.Same(t, "delivered", s.Received(), acked)
	agenttest.Await(t, time.Minute, "all is given up", func() bool {
		return len(laneFiles(t, dir, "*")) <= 2
	})
	n.metrics()
	n.stop()
}

// TestQuarantineIsBounded is the part of case 19 about the bound: the oldest copies go, counted.
func TestQuarantineIsBounded(t *testing.T) {
	t.Parallel()
	const bound = 1 << 20
	dir := agenttest.FastDir(t)
	s := agenttest.NewSink(t)
	n := start(t, newConfig(t, dir, s.URL(), segmentSize(300<<10)))
	n.send(nil, 40, 200) // some 1.5 MB
	n.stop()
	frames := agenttest.Frames(t, dir)
	paths := agenttest.Segments(t, dir, "default.0")
	for i, path := range paths {
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		agenttest.Damage(t, rand.New(rand.NewPCG(19, uint64(i))), frames, path, 0, int(info.Size()))
	}
	q := segment.NewQuarantine(vfs.OS(), filepath.Join(dir, "quarantine"), bound)
	l, err := segment.OpenLane(segment.LaneOptions{
		FS: vfs.OS(), Dir: filepath.Join(dir, "lanes"), ID: segment.LaneID{Destination: "default"}, DrainOnly: true,
		Space: segment.NewSpace(segment.SpaceOptions{MaxBytes: 1 << 30}), Quarantine: q, Log: zap.NewNop(),
		Settings: segment.Settings{Ack: segment.AckDisk, SegmentSizeBytes: 1 << 20, SegmentAge: time.Hour},
	})
	if err != nil {
		t.Fatal(err)
	}
	src := l.Source()
	for range len(paths) { // each step passes a segment
		if _, err := src.Next(t.Context()); err != nil {
			t.Fatal(err)
		}
		if _, size, err := q.Usage(); err != nil || size > bound {
			t.Errorf("%d bytes are kept (%v), bound %d", size, err, bound)
		}
	}
	if deleted, failed := q.Stats(); deleted == 0 || failed > 0 {
		t.Errorf("%d copies are counted as deleted, %d as failed", deleted, failed)
	}
	if err := src.Close(); err != nil {
		t.Error(err)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
}
