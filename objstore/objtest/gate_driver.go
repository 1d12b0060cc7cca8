package objtest

import (
	"fmt"
	"testing/synctest"
	"time"

	"ingest-agent/objstore"
)

// Odds are how often what happens, in thousandths. The zero value, with Spans, is a world without faults.
type Odds struct {
	// Of the calls that are chosen. The others are done and answered.
	Fail    int // not done, outcome unknown: 409, 5xx
	Lost    int // done, and the answer is lost
	Late    int // outcome unknown, and done later, if it is a write
	Denied  int // not done, ErrDenied
	Skewed  int // not done, ErrClockSkew
	Delayed int // done, and the answer comes later

	// Of the steps.
	Time                                     int             // time passes although calls are parked
	Kill, Start, Pause, Resume, Cut, Connect int             // happens to some node
	Drop                                     int             // something that is adrift never arrives
	Spans                                    []time.Duration // how much time passes, one of these
	Linger                                   time.Duration   // what is adrift may stay so for this long before it arrives
}

// Rough are odds under which everything happens often. short is about the time of a call, long about that of a lease.
func Rough(short, long time.Duration) Odds {
	return Odds{
		Fail: 40, Lost: 60, Late: 60, Denied: 5, Skewed: 10, Delayed: 150,
		Time: 200, Kill: 4, Start: 30, Pause: 8, Resume: 30, Cut: 4, Connect: 20, Drop: 5,
		Spans: []time.Duration{short, short, 5 * short, long / 6, long / 3, long},
	}
}

// Calm are odds without faults.
func Calm(spans ...time.Duration) Odds { return Odds{Time: 200, Spans: spans} }

// SetOdds changes the odds.
func (g *Gate) SetOdds(o Odds) { g.odds = o }

// Mend ends all pauses and cuts and starts all nodes that do not run.
func (g *Gate) Mend() {
	synctest.Wait()
	for _, n := range g.nodes {
		n.Resume()
		n.Connect()
		n.Start()
	}
	g.record("mend")
}

// Run takes steps until check, which is called after each when all goroutines are parked, returns an error.
func (g *Gate) Run(steps int, check func() error) error {
	for range steps {
		g.Step()
		if err := check(); err != nil {
			g.fold() // what led to it
			return err
		}
	}
	return nil
}

// Step lets one thing happen, and returns when all goroutines of the bubble are parked again.
func (g *Gate) Step() {
	synctest.Wait()
	g.fold()
	ready := g.ready()
	at := g.rand.IntN(1000)
	chosen := func(odds int) bool {
		at -= odds
		return at < 0
	}
	switch o := &g.odds; {
	case chosen(o.Kill):
		g.happen("kill", (*Node).Running, (*Node).Kill)
	case chosen(o.Start):
		g.happen("start", func(n *Node) bool { return !n.Running() }, (*Node).Start)
	case chosen(o.Pause):
		g.happen("pause", func(n *Node) bool { return !n.paused }, (*Node).Pause)
	case chosen(o.Resume):
		g.happen("resume", func(n *Node) bool { return n.paused }, (*Node).Resume)
	case chosen(o.Cut):
		g.happen("cut", func(n *Node) bool { return !n.cut }, (*Node).Cut)
	case chosen(o.Connect):
		g.happen("connect", func(n *Node) bool { return n.cut }, (*Node).Connect)
	case chosen(o.Time) || len(ready) == 0:
		g.passTime()
	default:
		g.decide(ready[g.rand.IntN(len(ready))])
	}
	synctest.Wait()
	g.fold()
}

// happen does something to one of the nodes that it can be done to.
func (g *Gate) happen(what string, can func(*Node) bool, do func(*Node)) {
	var nodes []*Node
	for _, n := range g.nodes {
		if can(n) {
			nodes = append(nodes, n)
		}
	}
	if len(nodes) > 0 {
		n := nodes[g.rand.IntN(len(nodes))]
		g.record(what + " " + n.name)
		do(n)
	}
}

func (g *Gate) passTime() {
	span := g.odds.Spans[g.rand.IntN(len(g.odds.Spans))]
	g.record("time " + span.String())
	<-time.After(span)
}

// decide seals the fate of a call.
func (g *Gate) decide(c *call) {
	label := c.label()
	switch {
	case c.stage == answered:
		g.record(label + " delivered")
		g.deliver(c, c.result)
	case c.stage == adrift && g.rand.IntN(1000) < g.odds.Drop:
		g.record(label + " dropped")
		g.remove(c)
	case c.stage == adrift:
		_, err := c.do()
		g.record(label + " done late: " + objstore.Outcome(err))
		g.remove(c)
	case c.process.node.cut:
		g.record(label + " cut off")
		g.deliver(c, failure(c, objstore.ErrUnknown))
	default:
		g.record(label + " " + g.fate(c))
	}
}

// fate picks one and carries it out.
func (g *Gate) fate(c *call) string {
	at := g.rand.IntN(1000)
	chosen := func(odds int) bool {
		at -= odds
		return at < 0
	}
	o := &g.odds
	switch {
	case chosen(o.Fail):
		g.deliver(c, failure(c, objstore.ErrUnknown))
		return "failed"
	case chosen(o.Denied):
		g.deliver(c, failure(c, objstore.ErrDenied))
		return "denied"
	case chosen(o.Skewed):
		g.deliver(c, failure(c, fmt.Errorf("%w: %w", objstore.ErrClockSkew, objstore.ErrUnknown)))
		return "skewed"
	case chosen(o.Late):
		g.deliver(c, failure(c, objstore.ErrUnknown))
		if c.writes {
			g.drift(c)
		}
		return "unknown"
	}
	value, err := c.do()
	outcome := objstore.Outcome(err)
	switch {
	case chosen(o.Lost):
		g.deliver(c, failure(c, objstore.ErrUnknown))
		return outcome + ", answer lost"
	case chosen(o.Delayed):
		g.hold(c, answer{value, err})
		return outcome + ", answer delayed"
	}
	g.deliver(c, answer{value, err})
	return outcome
}

func (g *Gate) deliver(c *call, a answer) {
	g.remove(c)
	c.answer <- a
}

func failure(c *call, err error) answer {
	return answer{err: fmt.Errorf("%s %s: %w", c.op, c.key, err)}
}

// Close kills all nodes, and returns when all that they started has ended.
func (g *Gate) Close() {
	for _, n := range g.nodes {
		n.Kill()
	}
	for _, n := range g.nodes {
		if n.process != nil {
			<-n.process.done
		}
	}
}
