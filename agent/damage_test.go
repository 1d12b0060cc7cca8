package agent_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"ingest-agent/agent/agenttest"
	"ingest-agent/agent/config"
	"ingest-agent/bench/load"
	"ingest-agent/bench/seqset"
)

// backlog makes a data directory with 1,000 records of one request each in 5 sealed segments.
func backlog(t testing.TB) (dir string, acked *seqset.Set) {
	t.Helper()
	dir = t.TempDir()
	down := agenttest.NewSink(t)
	n := start(t, newConfig(t, dir, down.URL(), segmentSize(segmentOf1000)))
	acked = n.send(nil, 1000, 1)
	n.stop()
	if got := len(agenttest.Segments(t, dir, "default.0")); got != 5 {
		t.Fatalf("%d segments, want 5: change segmentOf1000", got)
	}
	return dir, acked
}

// segmentOf1000 makes 5 segments of the 1,000 records.
const segmentOf1000 = 190 << 10

// TestCase01BadPage: one bad page costs the records in it and nothing else.
func TestCase01BadPage(t *testing.T) {
	t.Parallel()
	from, acked := backlog(t)
	for _, number := range []int{1, 3, 5} {
		for _, where := range []string{"first", "middle", "last"} {
			t.Run(fmt.Sprintf("segment%d/%s", number, where), func(t *testing.T) {
				t.Parallel()
				testBadPage(t, from, acked, number, where)
			})
		}
	}
}

func testBadPage(t *testing.T, from string, acked *seqset.Set, number int, where string) {
	const page = 4096
	dir := filepath.Join(t.TempDir(), "data")
	agenttest.Copy(t, from, dir)
	path := agenttest.Segments(t, dir, "default.0")[number-1]
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	pages := info.Size() / page
	at := map[string]int64{"first": 0, "middle": pages / 2, "last": pages}[where] * page
	frames := agenttest.Frames(t, dir)
	hit := agenttest.Damage(t, rand.New(rand.NewPCG(1, uint64(number))), frames, path, at, int(min(page, info.Size()-at)))
	bad, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	lost := agenttest.Numbers(hit, func(*agenttest.FrameAt) bool { return true })
	want := &seqset.Set{}
	for seq := uint64(1); seq <= 1000; seq++ {
		if acked.Has(seq) && !lost.Has(seq) {
			want.Add(seq)
		}
	}
	up := agenttest.NewSink(t)
	agenttest.Up(t, up)
	for round := range 2 {
		begin := time.Now()
		n := start(t, newConfig(t, dir, up.URL(), segmentSize(segmentOf1000)))
		if took := time.Since(begin); took > 2*time.Second {
			t.Errorf("the start took %v", took)
		}
		n.awaitDrained(20 * time.Second)
		agenttest.Same(t, "delivered", up.Received(), want)
		if s := up.Stats(); s.Bad > 0 || s.Duplicates > 0 {
			t.Errorf("the sink: %+v", s)
		}
		m := n.metrics()
		if got := m.Sum("records_lost_total", `cause="corrupt"`); got != lost.Count() {
			t.Errorf("round %d: %d counted as lost, want %d", round, got, lost.Count())
		}
		lines := len(n.logs.FilterMessage("records lost").All())
		if once := round == 0 && lost.Count() > 0; (lines == 1) != once || lines > 1 {
			t.Errorf("round %d: the loss was logged %d times:\n%s", round, lines, n.logText())
		}
		ranges := len(n.logs.FilterMessage("damage in segment").All()) + len(n.logs.FilterMessage("torn tail cut").All())
		if ranges != 1-round {
			t.Errorf("round %d: %d ranges of damage were logged:\n%s", round, ranges, n.logText())
		}
		n.stop()
	}
	checkQuarantine(t, dir, bad[at:min(int(at)+page, len(bad))])
}

// checkQuarantine looks for the damaged bytes in the files that keep them.
func checkQuarantine(t *testing.T, dir string, bad []byte) {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join(dir, "quarantine"))
	if err != nil {
		t.Fatalf("nothing was kept: %v", err)
	}
	for _, e := range entries {
		kept, err := os.ReadFile(filepath.Join(dir, "quarantine", e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		if bytes.Contains(kept, bad) {
			return
		}
	}
	t.Errorf("the damaged bytes are in none of %d files", len(entries))
}

// history makes a data directory with two lanes, part of which was delivered, and a copy of it as a kill would leave it: with
// segments that are not sealed.
func history(t testing.TB) (stopped, crashed string) {
	t.Helper()
	stopped, crashed = filepath.Join(agenttest.FastDir(t), "data"), filepath.Join(agenttest.FastDir(t), "data")
	s := agenttest.NewSink(t)
	agenttest.Up(t, s)
	n := start(t, newConfig(t, stopped, s.URL(), segmentSize(24<<10), func(c *config.Config) { c.WAL.Shards = 2 }))
	seq := &load.Sequence{}
	n.send(seq, 50, 1)
	n.awaitDrained(20 * time.Second)
	if err := s.Down(true); err != nil {
		t.Fatal(err)
	}
	n.send(seq, 200, 1)
	agenttest.Await(t, 20*time.Second, "all is saved", func() bool { return n.saved(stopped) })
	agenttest.Copy(t, stopped, crashed)
	n.stop()
	return stopped, crashed
}

// files are all files of a data directory but those that are not the agent's own.
func files(t testing.TB, dir string) (paths []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			paths = append(paths, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return paths
}

// TestCase02AnyDamage changes 1 to 8,192 bytes at a random place of any file and starts: never a panic or a hang, and exactly
// the records whose bytes were hit are missing, and counted.
func TestCase02AnyDamage(t *testing.T) {
	t.Parallel()
	seeds := 100
	if os.Getenv(agenttest.LongEnv) != "" {
		seeds = 500
	}
	stopped, crashed := history(t)
	next := make(chan int)
	var workers sync.WaitGroup
	for range 4 {
		workers.Go(func() {
			for seed := range next {
				t.Run(fmt.Sprintf("seed%d", seed), func(t *testing.T) {
					from := stopped
					if seed%2 == 1 {
						from = crashed
					}
					testAnyDamage(t, from, uint64(seed))
				})
			}
		})
	}
	for seed := range seeds {
		next <- seed
	}
	close(next)
	workers.Wait()
}

func testAnyDamage(t *testing.T, from string, seed uint64) {
	rng := rand.New(rand.NewPCG(2, seed))
	dir := filepath.Join(agenttest.FastDir(t), "data")
	agenttest.Copy(t, from, dir)
	frames := agenttest.Frames(t, dir)
	all := files(t, dir)
	path := all[rng.IntN(len(all))]
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	n := 1 + rng.IntN(8192)
	if rng.IntN(2) == 0 {
		n = 1 + rng.IntN(8) // else nearly every seed would hit whole frames
	}
	at := rng.Int64N(max(info.Size(), 1))
	if filepath.Base(path) == "cursor" { // most of the file is room
		const slotBytes, usedBytes = 32 << 10, 1500
		at = rng.Int64N(2)*slotBytes + rng.Int64N(usedBytes)
	}
	if filepath.Base(path) != "lock" {
		n = min(n, int(info.Size()-at))
	}
	hit := agenttest.Damage(t, rng, frames, path, at, n)
	isHit := map[*agenttest.FrameAt]bool{}
	for i := range frames {
		for _, h := range hit {
			if h.Path == frames[i].Path && h.From == frames[i].From {
				isHit[&frames[i]] = true
			}
		}
	}
	lost := agenttest.Numbers(frames, func(f *agenttest.FrameAt) bool { return f.Pending && isHit[f] })
	want := agenttest.Numbers(frames, func(f *agenttest.FrameAt) bool { return f.Pending && !isHit[f] })
	may := want
	if filepath.Base(path) == "cursor" { // what was delivered may come again
		may = agenttest.Numbers(frames, func(*agenttest.FrameAt) bool { return true })
	}
	what := fmt.Sprintf("%d bytes from %d of %s (%d bytes)", n, at, path, info.Size())
	t.Log(what)

	up := agenttest.NewSink(t)
	agenttest.Up(t, up)
	a := start(t, newConfig(t, dir, up.URL(), segmentSize(24<<10), func(c *config.Config) { c.WAL.Shards = 2 }))
	a.awaitDrained(5 * time.Second)
	got := up.Received()
	if n, ranges := want.Minus(got, 10); n > 0 {
		t.Errorf("%d are missing: %v", n, ranges)
	}
	if n, ranges := got.Minus(may, 10); n > 0 {
		t.Errorf("%d came though they were delivered before or damaged: %v", n, ranges)
	}
	if s := up.Stats(); s.Bad > 0 || s.Duplicates > 0 {
		t.Errorf("the sink: %+v", s)
	}
	if got := a.metrics().Sum("records_lost_total", `cause="corrupt"`); got != lost.Count() {
		t.Errorf("%d counted as lost, want %d", got, lost.Count())
	}
	a.stop()
	if t.Failed() {
		t.Log(a.logText())
	}
}
