package fleet

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"time"
)

// Bounds of what is drawn.
const (
	minLife  = 100 * time.Millisecond // under load, before the end
	maxLife  = 4 * time.Second
	maxUp    = 700 * time.Millisecond // of the sink, while all live
	maxDrain = 2 * time.Second        // of the one that is back, before it is killed in the middle of it
)

// fate is what happens to one agent.
type fate struct {
	life time.Duration // under load
	term bool          // stopped; else killed
	kept bool          // its disk is
}

// plan is what one round does. It depends on nothing but the seed and the number of the round.
type plan struct {
	ack      string
	fates    [nodes]fate
	sinkUp   time.Duration // at the start; 0: it is down all the time
	back     int           // whose place the one takes that comes back: on that disk, if it was kept
	killBack time.Duration // under the drain, after which it comes back again; 0: it is left alone
	loseBack bool          // that kill loses the disk
	records  int
}

func planRound(seed uint64, round int) plan {
	rng := rand.New(rand.NewPCG(seed, uint64(round)))
	between := func(low, high time.Duration) time.Duration { return low + time.Duration(rng.Int64N(int64(high-low)+1)) }
	p := plan{ack: []string{"disk", "bucket"}[rng.IntN(2)], records: []int{1, 10, 50}[rng.IntN(3)], back: rng.IntN(nodes)}
	for i := range p.fates {
		p.fates[i] = fate{life: between(minLife, maxLife), term: rng.IntN(3) == 0, kept: rng.IntN(2) == 0}
	}
	if rng.IntN(3) == 0 {
		p.sinkUp = between(minLife, maxUp)
	}
	if rng.IntN(3) == 0 {
		p.killBack = between(minLife, maxDrain)
		p.loseBack = rng.IntN(2) == 0
	}
	return p
}

// String is the plan for people, such as "kill lost, stop kept, kill kept; 2 back, killed again".
func (p plan) String() string {
	words := make([]string, 0, nodes)
	for _, f := range p.fates {
		words = append(words, map[bool]string{true: "stop", false: "kill"}[f.term]+" "+map[bool]string{true: "kept", false: "lost"}[f.kept])
	}
	text := fmt.Sprintf("ack %s: %s; %d back", p.ack, strings.Join(words, ", "), p.back+1)
	if p.killBack > 0 {
		text += ", killed again " + map[bool]string{true: "lost", false: "kept"}[p.loseBack]
	}
	return text
}
