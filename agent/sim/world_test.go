package sim

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"ingest-agent/objstore"
	"ingest-agent/objstore/memory"
	"ingest-agent/objstore/objtest"
	"ingest-agent/segment"
)

const (
	staleAfter = 60 * time.Second
	shipAfter  = 5 * time.Second
	retryMax   = 30 * time.Second
	bootWait   = 10 * time.Second
	stopBudget = 25 * time.Second
	takeEvery  = 40 * time.Second

	scanInterval = 30 * time.Second
	commitEvery  = time.Second
	stallAfter   = time.Minute
	// linger is how late a write may be, and retention is longer, as it has to be.
	linger    = 10 * staleAfter
	retention = 16 * staleAfter // also by the fastest clock

	saveEvery     = 2 * time.Second // at most, after a step of the cursor
	segmentFrames = 5
	frameBytes    = 100
	objectBytes   = 200
	smallDisk     = 1000
	largeDisk     = 20000

	roughSteps = 1500
	// calmSteps is within how many steps without faults all must come to rest.
	calmSteps = 6000
	// checkEvery is how many steps lie between two looks at where every frame is.
	checkEvery = 8
)

// rates are how fast the clocks of the nodes run: just within the factor of two that is assumed.
func rates() []float64 { return []float64{0.75, 1, 1.2, 1.45, 0.9} }

// variant is the code as it is, or one that is broken in a way that is easily written.
type variant struct {
	name   string
	seeds  uint64
	bucket func(registers) objstore.Bucket
	// What a start does.
	noNote, keepID, reuse bool
}

// settings are what a fleet has otherwise.
type settings struct {
	takeEvery, retention    time.Duration
	objectBytes, frameBytes int
}

// world is one simulation.
type world struct {
	seed    uint64
	gate    *objtest.Gate
	bucket  *memory.Bucket
	judge   *Judge
	variant variant
	rng     *rand.Rand // the driver's
	nodes   []*node
	disks   int
	stops   bool // processes stop by themselves
	copies  bool // disks are lost, cloned, restored
	fleet   bool // of like nodes whose requests are counted
	set     settings

	sinkDown bool // the driver's
	step     int
	quiet    atomic.Bool // nobody sends any more
	lost     atomic.Int64

	mu       sync.Mutex
	happens  map[string]int
	requests map[string]int // of a fleet, by what they ask for
}

func (w *world) happened(what string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.happens[what]++
}

func (w *world) wrap(ctx context.Context, p *objtest.Process, b objstore.Bucket) objstore.Bucket {
	if w.variant.bucket == nil {
		return b
	}
	return w.variant.bucket(registers{b, w, p, ctx})
}

// knows says whether a destination is configured on a node.
func (w *world) knows(n *node, destination string) bool {
	return w.fleet || destination == "default" || n.name == "a" || n.name == "c" || n.name == "d"
}

// laneIDs are the lanes of a node. Two of the five have a second destination.
func (w *world) laneIDs(n *node) []segment.LaneID {
	ids := []segment.LaneID{{Destination: "default"}}
	if w.fleet {
		return append(ids, segment.LaneID{Destination: "default", Shard: 1})
	}
	if n.name == "a" || n.name == "d" {
		ids = append(ids, segment.LaneID{Destination: "other", Shard: 1})
	}
	return ids
}

// odds are those of a seed. Of four worlds one has no faults at all, and in one processes die and nothing else fails: what
// trouble hides is seen there.
func (w *world) odds() objtest.Odds {
	short := 50 * time.Millisecond
	healthy := []time.Duration{short, 10 * short, staleAfter / 60, staleAfter / 12} // a call waits for less than it may take
	switch w.seed % 4 {
	case 0:
		return objtest.Odds{Start: 10, Spans: healthy}
	case 1:
		return objtest.Odds{Kill: 5, Start: 10, Spans: healthy}
	}
	return objtest.Odds{
		Fail: 30, Lost: 40, Late: 40, Denied: 5, Skewed: 5, Delayed: 100,
		Time: 80, Kill: 4, Start: 30, Pause: 4, Resume: 30, Cut: 4, Connect: 15, Drop: 20, Linger: linger,
		Spans: []time.Duration{
			short, short, short, short, short, short, 10 * short, 10 * short, staleAfter / 12, staleAfter / 6, staleAfter / 3, staleAfter,
		},
	}
}

func newWorld(seed uint64, v variant) *world {
	w := &world{seed: seed, bucket: memory.New(), variant: v, happens: map[string]int{}, rng: rand.New(rand.NewPCG(seed, 1))}
	w.set = settings{takeEvery, retention, objectBytes, frameBytes}
	w.bucket.SetSkew(time.Duration(seed%7) * 1234567 * time.Microsecond)
	w.judge = NewJudge(Bounds{Window: time.Duration(float64(staleAfter) / 2 / rates()[0]), Exact: seed%4 == 0})
	w.stops, w.copies = seed%3 > 0, seed%4 > 1
	w.gate = objtest.NewGate(w.bucket, seed, w.odds(), w.effect)
	w.gate.KeepTrace(*simTrace)
	for i, rate := range rates() {
		n := &node{w: w, name: string(rune('a' + i)), ack: OnDisk, limit: largeDisk}
		if (seed+uint64(i))%3 == 0 {
			n.ack = InBucket
		}
		if (seed/3+uint64(i))%3 == 0 {
			n.limit = smallDisk
		}
		n.disk = w.newDisk(n)
		n.gate = w.gate.AddNode(n.name, rate, n.run)
		w.nodes = append(w.nodes, n)
	}
	return w
}

func (w *world) newDisk(n *node) *disk {
	w.disks++
	return newDisk(w.disks, w.laneIDs(n))
}

// effect is told of each write of the bucket when it happens.
func (w *world) effect(e objtest.Effect) {
	switch {
	case e.Err != nil:
	case e.Op == objstore.OpDelete:
		w.judge.Deleted(e.Process, e.Key)
	default:
		w.judge.Put(e.Process, e.Key, e.Body)
		if *simTrace > 1000 && strings.HasPrefix(e.Key, objstore.OwnersPrefix) {
			w.gate.Note("wrote %s", strings.ReplaceAll(string(e.Body), "0000000000", ""))
		}
	}
}

// held says which frames lie on the disks that there are.
func (w *world) held() func(segment.FrameID) bool {
	held := map[segment.FrameID]bool{}
	for _, n := range w.nodes {
		n.disk.collect(held)
	}
	return func(id segment.FrameID) bool { return held[id] }
}

// check is called after each step, when all goroutines are parked.
func (w *world) check() error {
	w.step++
	for _, n := range w.nodes {
		if n.life != nil && !n.gate.Running() && !n.ruined {
			n.ruined = true
			w.ruin(n)
		}
		if n.gate.Running() {
			n.ruined = false
		}
	}
	if w.rng.IntN(150) == 0 && !w.quiet.Load() {
		w.sinkDown = !w.sinkDown
		w.gate.Note("sink is down: %v", w.sinkDown)
	}
	if n := w.nodes[w.rng.IntN(len(w.nodes))]; w.copies && w.rng.IntN(200) == 0 && !w.quiet.Load() {
		w.disks++
		n.saved = n.disk.clone(w.disks)
		w.gate.Note("snapshot of %s", n.name)
	}
	if w.step%checkEvery == 0 {
		if err := w.judge.Check(w.held()); err != nil {
			return err
		}
	}
	return w.judge.Err()
}

// ruin decides what becomes of the disk of a process that has ended.
func (w *world) ruin(n *node) {
	if !w.copies || w.quiet.Load() {
		return
	}
	what := "kept"
	switch at := w.rng.IntN(10); {
	case at == 0:
		what, n.disk = "lost", w.newDisk(n)
	case at == 1 && n.saved != nil:
		what, n.disk, n.saved = "restored", n.saved, nil
	case at == 2:
		other := w.nodes[w.rng.IntN(len(w.nodes))]
		if other != n && len(w.laneIDs(other)) == len(w.laneIDs(n)) {
			w.disks++
			what, n.disk = "cloned from "+other.name, other.disk.clone(w.disks)
		}
	}
	w.gate.Note("disk of %s: %s", n.name, what)
	if what != "kept" {
		w.happened("disk " + what[:4])
		w.judge.Lost(w.held())
	}
}

// simulate is one run.
func simulate(t *testing.T, seed uint64, v variant) (r result) {
	synctest.Test(t, func(*testing.T) {
		w := newWorld(seed, v)
		for _, n := range w.nodes {
			n.gate.Start()
		}
		r.err = w.gate.Run(roughSteps, w.check)
		if r.err == nil {
			r.err = w.comeToRest()
		}
		if r.err != nil {
			r.err = fmt.Errorf("seed %d: %w; the trace ends with\n%s", seed, r.err, w.gate.Trace())
		}
		w.gate.Close()
		r.hash = w.gate.Hash()
		c := w.judge.Counts()
		for what, n := range map[string]int{
			"frames promised": c.Promised, "frames delivered": c.Delivered, "delivered twice": c.Twice, "promise voided": c.Voided,
			"objects": c.Objects, "objects late": c.Late, "lost": int(w.lost.Load()), "steps": w.step,
		} {
			w.happens[what] += n
		}
		r.happens = w.happens
	})
	return r
}

// comeToRest ends the faults: everything that was promised must arrive, and nothing be left.
func (w *world) comeToRest() error {
	w.quiet.Store(true)
	w.sinkDown = false
	w.gate.SetOdds(objtest.Odds{Linger: linger, Spans: []time.Duration{staleAfter / 600, staleAfter / 20, staleAfter / 12}})
	w.gate.Mend()
	for i := range calmSteps {
		w.gate.Step()
		if err := w.check(); err != nil {
			return err
		}
		w.startAll()
		if i%50 != 0 {
			continue
		}
		if _, rest := w.judge.AtRest(); rest && w.nothingPending() && w.gate.Adrift() == 0 {
			if err := w.judge.Rest(); err != nil || w.seed%5 > 0 {
				return err
			}
			return w.fade()
		}
	}
	why, _ := w.judge.AtRest()
	if err := w.judge.Rest(); err != nil {
		return fmt.Errorf("no rest after %d steps: %s: %w", calmSteps, why, err)
	}
	return fmt.Errorf("no rest after %d steps: frames are left on disks", calmSteps)
}

// startAll starts the nodes on which nothing runs.
func (w *world) startAll() {
	for _, n := range w.nodes {
		if !n.gate.Running() {
			n.gate.Start()
		}
	}
}

// fade waits for the retention to be over: then every register goes.
func (w *world) fade() error {
	for range calmSteps {
		w.gate.Step()
		if err := w.check(); err != nil {
			return err
		}
		w.startAll()
		if w.judge.Registers() == 0 {
			w.happened("all registers gone")
			return nil
		}
	}
	return fmt.Errorf("%d registers are left after the retention", w.judge.Registers())
}

func (w *world) nothingPending() bool {
	held := map[segment.FrameID]bool{}
	for _, n := range w.nodes {
		n.disk.collect(held)
	}
	return len(held) == 0
}
