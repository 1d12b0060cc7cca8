package objtest

import (
	"context"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"ingest-agent/objstore"
)

// Gate puts simulated nodes and one bucket under the hand of a seeded driver, inside a testing/synctest bubble. Every call
// of a node, to the bucket or to what else the simulation sends through Process.Do, parks at the gate. When all goroutines
// of the bubble are parked, Step chooses: a call and its fate, or that time passes, or that a node is killed, started,
// paused, resumed, cut off or connected again. One thing at a time, so the same seed gives the same run, whatever the number
// of processors; Hash is over all that was decided and noted, to prove it.
//
// It assumes of the nodes' programs: no select in which two channels can be ready at the same moment and the order matters,
// no mutex held over a call, randomness from Process.Rand only, durations from Process.Span, so that no two nodes' timers end
// at the same nanosecond, and random ones where two goroutines of one node could meet. What a paused node's own timers do goes on: it is its calls and their answers that stand still.
type Gate struct {
	bucket objstore.Bucket
	seed   uint64
	rand   *rand.Rand // the driver's
	odds   Odds
	effect func(Effect)
	begin  time.Time
	nodes  []*Node

	mu    sync.Mutex
	calls []*call
	notes []string // since the last step, in any order

	hash  uint64
	keep  int      // lines of the trace
	lines []string // the last of the trace
}

// traceLines is how much of the trace is kept for people, unless KeepTrace says otherwise.
const traceLines = 200

// Effect is a write that was done to the bucket, or refused by it, told at the moment when that happens.
type Effect struct {
	Process   string // see Process.Name
	Op        objstore.Op
	Key       string
	Body      []byte
	Condition objstore.Condition
	Result    objstore.PutResult
	Err       error
}

// NewGate returns a gate in front of a bucket. It must be called inside the bubble. effect is told of each write in the
// order in which they happen, on the goroutine that calls Step; nil: nobody is.
func NewGate(bucket objstore.Bucket, seed uint64, odds Odds, effect func(Effect)) *Gate {
	if effect == nil {
		effect = func(Effect) {}
	}
	return &Gate{bucket: bucket, seed: seed, rand: rand.New(rand.NewPCG(seed, 0)), odds: odds, effect: effect, begin: time.Now(), keep: traceLines}
}

// KeepTrace says how many of the last lines of the trace are kept for people.
func (g *Gate) KeepTrace(lines int) { g.keep = lines }

// Node is a machine: it has a name, a clock, and at most one process at a time.
type Node struct {
	gate    *Gate
	name    string
	rate    float64
	offset  time.Duration
	program Program

	lives   int
	process *Process // the last one
	paused  bool
	cut     bool
}

// Program is what a node runs. Each start is a new process. It returns soon after ctx ends, with all that it started.
type Program func(ctx context.Context, p *Process)

// AddNode adds a node whose clock runs at rate: 2 is twice as fast as true time. It does not run yet.
func (g *Gate) AddNode(name string, rate float64, program Program) *Node {
	n := &Node{gate: g, name: name, rate: rate, offset: time.Duration(len(g.nodes)*2 + 1), program: program}
	g.nodes = append(g.nodes, n)
	return n
}

// Process is one life of a node.
type Process struct {
	node    *Node
	name    string
	rand    *rand.Rand
	ctx     context.Context //nolint:containedctx // it is the process's life
	kill    context.CancelFunc
	numbers map[string]int // calls of each label so far; under the gate's mu
	done    chan struct{}
}

// Start starts a process on the node, unless one is running.
func (n *Node) Start() {
	if n.Running() {
		return
	}
	n.lives++
	p := &Process{node: n, name: fmt.Sprintf("%s.%d", n.name, n.lives), numbers: map[string]int{}, done: make(chan struct{})}
	h := fnv.New64a()
	fmt.Fprint(h, p.name)
	p.rand = rand.New(rand.NewPCG(n.gate.seed, h.Sum64()))
	p.ctx, p.kill = context.WithCancel(context.Background())
	n.process = p
	go func() { // joined by Close
		defer close(p.done)
		n.program(p.ctx, p)
	}()
}

// Running says whether a process of the node runs.
func (n *Node) Running() bool {
	if n.process == nil || n.process.ctx.Err() != nil {
		return false
	}
	select {
	case <-n.process.done:
		return false
	default:
		return true
	}
}

// Kill ends the node's process: none of its calls has an effect any more but those that were already on their way.
func (n *Node) Kill() {
	if n.process != nil {
		n.process.kill()
	}
}

// Pause keeps all calls of the node, and all answers to it, until Resume.
func (n *Node) Pause() { n.paused = true }

// Resume ends a Pause.
func (n *Node) Resume() { n.paused = false }

// Cut makes all calls of the node fail before they reach anything, until Connect.
func (n *Node) Cut() { n.cut = true }

// Connect ends a Cut.
func (n *Node) Connect() { n.cut = false }

// Name is that of the node and the number of its life: a.1 is the first process of node a.
func (p *Process) Name() string { return p.name }

// Alive says whether the process was not killed.
func (p *Process) Alive() bool { return p.ctx.Err() == nil }

// Rand is the process's own source. Like any, it is for one goroutine at a time.
func (p *Process) Rand() *rand.Rand { return p.rand }

// Span is how long d takes in true time by the node's clock, and some nanoseconds that are the node's own.
func (p *Process) Span(d time.Duration) time.Duration {
	return time.Duration(float64(d)/p.node.rate) + p.node.offset
}

// Sleep waits for d by the node's clock. It returns ctx's error if that ends first.
func (p *Process) Sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(p.Span(d))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
	return ctx.Err() //nolint:wrapcheck // it is what was asked for
}

// Note puts a line into the trace: ghost state. What a killed process says does not count.
func (p *Process) Note(format string, args ...any) {
	if p.Alive() {
		p.node.gate.note(p.name + " " + fmt.Sprintf(format, args...))
	}
}

// Note puts a line into the trace.
func (g *Gate) Note(format string, args ...any) { g.note(fmt.Sprintf(format, args...)) }

func (g *Gate) note(line string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.notes = append(g.notes, line)
}

// fold takes the notes of the last step into the trace. Goroutines that ran at the same moment noted in any order.
func (g *Gate) fold() {
	g.mu.Lock()
	notes := g.notes
	g.notes = nil
	g.mu.Unlock()
	slices.Sort(notes)
	for _, line := range notes {
		g.record(line)
	}
}

func (g *Gate) record(line string) {
	line = time.Since(g.begin).String() + " " + line
	h := fnv.New64a()
	fmt.Fprintf(h, "%016x %s", g.hash, line)
	g.hash = h.Sum64()
	if len(g.lines) >= 2*g.keep {
		g.lines = slices.Delete(g.lines, 0, g.keep)
	}
	g.lines = append(g.lines, line)
}

// Hash is the hash of the trace so far.
func (g *Gate) Hash() uint64 { return g.hash }

// Trace is the last lines of the trace.
func (g *Gate) Trace() string {
	return strings.Join(g.lines[max(0, len(g.lines)-g.keep):], "\n")
}
