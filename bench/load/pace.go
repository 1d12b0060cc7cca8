package load

import (
	"context"
	"time"
)

// pace says when each request of an open loop is due: at a fixed rate, however long answers take.
type pace struct {
	interval time.Duration // 0: closed loop, a request is due when its sender is free
	start    time.Time
}

func newPace(rate float64) *pace {
	if rate <= 0 {
		return &pace{}
	}
	return &pace{interval: time.Duration(float64(time.Second) / rate)}
}

func (p *pace) begin() { p.start = time.Now() }

// wait returns when request n, from 0, is due, and the moment it was due. That may be long ago if all senders were held up:
// latency is counted from there, or a stall would only show in the requests that it held and not in those behind them.
// It is false if ctx ended.
func (p *pace) wait(ctx context.Context, n uint64) (due time.Time, ok bool) {
	if p.interval == 0 {
		return time.Now(), ctx.Err() == nil
	}
	due = p.start.Add(time.Duration(n) * p.interval)
	if early := time.Until(due); early > 0 {
		return due, pause(ctx, early)
	}
	return due, ctx.Err() == nil
}
