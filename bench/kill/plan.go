package kill

import (
	"fmt"
	"math/rand/v2"
	"time"

	"ingest-agent/bench/wire"
)

// moment is when in its life the agent is killed.
type moment string

const (
	duringStart moment = "start" // some time after exec, ready or not
	afterDelay  moment = "time"  // some time under load
	onAck       moment = "ack"   // under load, in the instant in which a client reads a success answer
	duringStop  moment = "stop"  // some time after SIGTERM; it may have ended well before
)

// Bounds of the moments. Those under load are from minDelay to Config.MaxDelay.
const (
	minDelay      = 20 * time.Millisecond
	maxStartDelay = 150 * time.Millisecond
	maxStopDelay  = 200 * time.Millisecond
	maxSlowness   = 50 * time.Millisecond
)

// plan is what one round does. It depends on nothing but the seed and the number of the round.
type plan struct {
	moment      moment
	delay       time.Duration // of load before the kill; for duringStart, after exec
	stopDelay   time.Duration // duringStop: from SIGTERM to the kill
	sinkUp      bool          // at the start of the round
	flip        bool          // the sink goes down, or up, at flipAt
	flipAt      time.Duration // of load
	cut         bool          // when the sink goes down, answers in hand are cut
	slowness    time.Duration // of the sink's answers
	records     int           // in a request
	compression string
}

func planRound(seed uint64, round int, maxDelay time.Duration) plan {
	rng := rand.New(rand.NewPCG(seed, uint64(round)))
	between := func(low, high time.Duration) time.Duration {
		return low + time.Duration(rng.Int64N(int64(high-low)+1))
	}
	p := plan{
		delay:       between(minDelay, maxDelay),
		stopDelay:   between(0, maxStopDelay),
		sinkUp:      rng.IntN(5) < 3,
		flip:        rng.IntN(4) == 0,
		cut:         rng.IntN(2) == 0,
		records:     []int{1, 10, 100}[rng.IntN(3)],
		compression: []string{wire.None, wire.Gzip, wire.Zstd}[rng.IntN(3)],
	}
	p.flipAt = between(0, p.delay)
	if rng.IntN(4) == 0 {
		p.slowness = between(time.Millisecond, maxSlowness)
	}
	switch n := rng.IntN(20); {
	case n < 3:
		p.moment, p.delay, p.flip = duringStart, between(0, maxStartDelay), false
	case n < 5:
		p.moment = duringStop
	case n < 12:
		p.moment = onAck
	default:
		p.moment = afterDelay
	}
	return p
}

// sink is how the sink stands in the round, for the table.
func (p plan) sink() string {
	state := map[bool]string{true: "up", false: "down"}
	text := state[p.sinkUp]
	if p.flip {
		text += "," + state[!p.sinkUp]
	}
	if p.slowness > 0 {
		text += fmt.Sprintf(" slow %dms", p.slowness.Milliseconds())
	}
	return text
}
