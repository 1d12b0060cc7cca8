package sim

import (
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"ingest-agent/objstore"
	"ingest-agent/objstore/memory"
	"ingest-agent/objstore/objtest"
)

var (
	fleetNodes = flag.Int("fleet.nodes", 10, "nodes of the fleet whose requests are counted")
	fleetSpan  = flag.Duration("fleet.span", 2*time.Minute, "how long each of its states lasts")
)

// asked counts a request.
func (w *world) asked(op objstore.Op, key string) {
	if !w.fleet {
		return
	}
	what := key
	switch parsed, err := objstore.ParseKey(key); parsed.(type) {
	case objstore.OwnerKey:
		what = "owners/<owner>"
	case objstore.SegmentKey:
		what = "segments/<owner>/<lane>/<object>"
	default:
		if rest, below := strings.CutPrefix(key, objstore.SegmentsPrefix); err != nil && below && rest != "/" {
			what = "segments/<owner>/…"
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.requests[string(op)+" "+what]++
}

// counted returns the requests since it was last called.
func (w *world) counted() map[string]int {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := w.requests
	w.requests = map[string]int{}
	return n
}

// newFleet is a world of nodes with two lanes each and the durations of the defaults, in which nothing fails.
func newFleet(nodes int, every time.Duration) *world {
	w := &world{
		bucket: memory.New(), judge: NewJudge(Bounds{Exact: true}), happens: map[string]int{}, requests: map[string]int{}, fleet: true,
		rng: rand.New(rand.NewPCG(1, 1)), set: settings{takeEvery: every, retention: 7 * 24 * time.Hour, objectBytes: 8 << 20, frameBytes: 100},
	}
	w.gate = objtest.NewGate(w.bucket, 1, objtest.Odds{Spans: []time.Duration{100 * time.Millisecond}}, w.effect)
	for i := range nodes {
		n := &node{w: w, name: fmt.Sprintf("n%05d", i), ack: OnDisk, limit: 1 << 40}
		n.disk = w.newDisk(n)
		n.gate = w.gate.AddNode(n.name, 1, n.run)
		w.nodes = append(w.nodes, n)
	}
	return w
}

// pass lets time pass.
func (w *world) pass(t *testing.T, d time.Duration) {
	for end := time.Now().Add(d); time.Now().Before(end); {
		w.gate.Step()
		if err := w.judge.Err(); err != nil {
			t.Fatal(err)
		}
	}
}

// A node that delivers everything costs one conditional read of the scan's record in each interval, and nothing else; one of
// the fleet scans.
func TestHealthyHour(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const nodes = 5
		w := newFleet(nodes, 20*time.Second)
		defer w.gate.Close()
		for _, n := range w.nodes {
			n.gate.Start()
		}
		w.pass(t, 2*time.Minute)
		w.counted()
		before := w.judge.Counts().Delivered
		w.pass(t, time.Hour)
		requests := w.counted()
		t.Logf("%d frames delivered, %v", w.judge.Counts().Delivered-before, requests)
		intervals := int(time.Hour / scanInterval)
		const read, beat, owners, segments = "get fleet/scan.json", "put fleet/scan.json", "list owners/", "list segments//"
		for what, n := range requests {
			most := map[string]int{read: nodes * intervals * 5 / 4, beat: 6 * 70, owners: intervals * 5 / 4, segments: intervals * 5 / 4}[what]
			if n > most {
				t.Errorf("%s: %d times, want at most %d", what, n, most)
			}
		}
		if requests[read] < (nodes-1)*intervals*3/4 || requests[owners] < intervals*3/4 {
			t.Error("the fleet does not look out")
		}
		if c := w.judge.Counts(); c.Objects > 0 || c.Twice > 0 || c.Delivered == before {
			t.Errorf("%+v", c)
		}
	})
}

// What a fleet asks of its bucket in its states: the numbers of docs/scale.md. Run it for larger ones: make scale NODES=1000.
func TestFleetRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newFleet(*fleetNodes, 5*time.Second)
		defer w.gate.Close()
		for _, n := range w.nodes {
			n.gate.Start()
		}
		state := func(name string, d time.Duration) map[string]int {
			w.counted()
			began, objects := time.Now(), w.judge.Counts().Objects
			w.pass(t, d)
			return w.told(t, name, time.Since(began), w.counted(), w.judge.Counts().Objects-objects)
		}
		w.pass(t, 2*time.Minute)
		if healthy := state("healthy", *fleetSpan); healthy["put segments/<owner>/<lane>/<object>"] > 0 {
			t.Error("a healthy fleet ships")
		}
		w.sinkDown = true
		w.pass(t, time.Minute)
		state("lagging", *fleetSpan)
		dead := max(1, len(w.nodes)/10)
		for _, n := range w.nodes[len(w.nodes)-dead:] {
			n.gate.Kill()
			n.disk = w.newDisk(n)
		}
		w.judge.Lost(w.held())
		w.nodes = w.nodes[:len(w.nodes)-dead]
		state(fmt.Sprintf("dying (%d nodes, while the destination is down)", dead), *fleetSpan)
		w.sinkDown = false
		w.quiet.Store(true)
		w.counted()
		began := time.Now()
		for {
			w.pass(t, 10*time.Second)
			if _, rest := w.judge.AtRest(); rest && w.nothingPending() {
				break
			}
			if time.Since(began) > time.Hour {
				why, _ := w.judge.AtRest()
				t.Fatalf("no rest after an hour: %.1000s", why)
			}
		}
		w.told(t, "recovering, in all", time.Since(began), w.counted(), 0)
	})
}

// told writes what was asked in a state, in all and for a node and hour.
func (w *world) told(t *testing.T, state string, took time.Duration, requests map[string]int, objects int) map[string]int {
	var puts, gets, deletes int
	lines := ""
	for _, what := range slices.Sorted(maps.Keys(requests)) {
		n := requests[what]
		lines += fmt.Sprintf("\n  %8d %8.1f  %s", n, float64(n)/float64(len(w.nodes))*float64(time.Hour)/float64(took), what)
		switch op, _, _ := strings.Cut(what, " "); objstore.Op(op) {
		case objstore.OpPut, objstore.OpList:
			puts += n
		case objstore.OpDelete:
			deletes += n
		default:
			gets += n
		}
	}
	t.Logf("%s: %d nodes, %s: %d put or list, %d get, %d delete; %d objects%s", state, len(w.nodes), took, puts, gets, deletes, objects, lines)
	return requests
}
