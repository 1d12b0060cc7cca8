package segment

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"go.uber.org/zap"
)

// Cursor takes the progress of a drain. Advance is called by one goroutine, over a prefix of the source only.
type Cursor interface {
	Advance(p *Progress)
}

// Limits bound a drain. They are asked for before each step, so that they can be changed while it runs.
type Limits struct {
	InFlight        int           // requests at once
	MaxRequestBytes int           // merged bodies; a single larger frame goes alone
	WindowBytes     int           // bodies that are read and not yet passed by the cursor
	Ordered         bool          // one request at a time, so that frames arrive in order
	RetryInitial    time.Duration // first delay after a failure
	RetryMax        time.Duration // longest of our own delays
	MaxAge          time.Duration // drop older frames, counted; 0: never
}

// DrainOptions configure a drain.
type DrainOptions struct {
	Source Source
	Cursor Cursor
	Sink   func() Sink   // asked for at each attempt, so that it can be swapped
	Limits func() Limits // likewise
	Dead   DeadLetter
	Log    *zap.Logger
}

const (
	// maxRetryAfter caps the delay that a destination may ask for; it asks again then.
	maxRetryAfter = 5 * time.Minute
	// readRetry is the delay after the source failed.
	readRetry = time.Second
)

// Drain moves frames from a source to a sink and the cursor behind them: the one loop for local lanes, adopted lanes and
// jobs. It reads ahead within a window, merges frames of one tenant and signal up to the destination's limit, keeps several
// requests in flight, and retries without end. What is refused for good goes to the dead letter, frame by frame.
//
// Commit point: none of its own. The cursor is advanced over a prefix, and only after the sink's success, the dead letter or
// a counted loss (I11).
type Drain struct {
	o      DrainOptions
	events chan event
	window window
	groups groups
	flying int
	log    *limitedLog
}

// event is what the control loop receives: one of the fields is set.
type event struct {
	item    *Item
	request *attempt
	outcome Outcome
	read    bool // the reader has ended
}

// Run drains until ctx ends, then waits for what is in flight. It returns when every goroutine of it has ended.
func (o DrainOptions) Run(ctx context.Context) {
	d := &Drain{o: o, events: make(chan event), log: newLimitedLog(o.Log)}
	d.window.freed = make(chan struct{}, 1)
	d.groups.byKey = map[groupKey]*group{}
	go d.read(ctx)
	d.loop(ctx)
}

func (d *Drain) loop(ctx context.Context) {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	reading, stop := true, ctx.Done()
	for reading || d.flying > 0 {
		if ctx.Err() == nil {
			timer.Reset(d.dispatch(ctx))
		}
		select {
		case ev := <-d.events:
			switch {
			case ev.item != nil:
				d.add(ev.item)
			case ev.request != nil:
				d.flying--
				d.settle(ev.request, ev.outcome)
			case ev.read:
				reading = false
			}
			d.advance()
		case <-timer.C:
		case <-stop:
			stop = nil
		}
	}
}

// read feeds the loop with items, within the window.
func (d *Drain) read(ctx context.Context) {
	defer func() { d.events <- event{read: true} }()
	for {
		if !d.window.waitRoom(ctx, func() int { return d.o.Limits().WindowBytes }) {
			return
		}
		it, err := d.o.Source.Next(ctx)
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			d.log.Error("read", "backlog not read; trying again", zap.Error(err))
			if !sleep(ctx, readRetry) {
				return
			}
			continue
		}
		if it.Frame != nil {
			d.window.take(len(it.Frame.Body))
		}
		d.events <- event{item: &it}
	}
}

// add puts an item into the window, and its frame into its group.
func (d *Drain) add(it *Item) {
	s := &slot{next: it.Next, again: it.Again, out: it.Lost}
	if it.Lost != (Totals{}) {
		s.ledger.lose(it.Cause, it.Lost.Records)
	}
	if s.frame = it.Frame; s.frame == nil {
		s.done = true
	} else {
		s.out = s.out.Add(s.frame.totals())
		d.groups.push(s)
	}
	if d.window.slots = append(d.window.slots, s); len(d.window.slots) == 1 {
		d.o.Cursor.Advance(&Progress{Oldest: s.oldest()})
	}
}

// advance moves the cursor over the done prefix of the window.
func (d *Drain) advance() {
	var p Progress
	var n, freed int
	for _, s := range d.window.slots {
		if !s.done {
			break
		}
		n++
		p.To, p.Again = s.next, p.Again.Add(s.again)
		p.Out = p.Out.Add(s.out)
		p.Ledger.Add(&s.ledger)
		freed += s.bytes
	}
	rest := d.window.slots[n:]
	if len(rest) > 0 {
		p.Oldest = rest[0].oldest()
	}
	if n == 0 {
		return
	}
	clear(d.window.slots[:n])
	d.window.slots = rest
	d.window.free(freed)
	d.o.Cursor.Advance(&p)
}

// dispatch starts requests while there is room for them, and returns when to look again.
func (d *Drain) dispatch(ctx context.Context) time.Duration {
	lim := d.o.Limits()
	most := max(lim.InFlight, 1)
	if lim.Ordered {
		most = 1
	}
	now := time.Now()
	for d.flying < most {
		a, wait := d.groups.next(now, &lim)
		if a == nil {
			d.advance() // frames may have gone for their age
			return wait
		}
		d.flying++
		sink := d.o.Sink()
		go func() { d.events <- event{request: a, outcome: d.attempt(ctx, sink, a)} }()
	}
	return time.Hour // an outcome wakes the loop
}

// attempt delivers once. What a destination refuses for good is set aside here, so that the loop never waits for a disk.
func (d *Drain) attempt(ctx context.Context, sink Sink, a *attempt) Outcome {
	r := a.request()
	out := sink.Deliver(ctx, &r)
	if (out.Verdict == Refused || out.Verdict == TooLarge) && len(a.slots) == 1 {
		cause := "refused"
		if out.Err != nil {
			cause = out.Err.Error()
		}
		if err := d.o.Dead.SetAside(ctx, a.slots[0].frame, cause); err != nil {
			d.log.Error("dead", "frame not set aside; trying again", zap.Error(err))
			return Outcome{Verdict: Retry, Err: err}
		}
		d.log.Warn("refused", "destination refuses for good; set aside", zap.Stringer("frame", a.slots[0].frame.ID), zap.Error(out.Err))
	}
	return out
}

// settle books the outcome of an attempt.
func (d *Drain) settle(a *attempt, out Outcome) {
	a.group.flying--
	switch out.Verdict {
	case Delivered:
		a.delivered(out.Rejected)
		if out.Rejected > 0 {
			d.log.Warn("partial", "destination took a request in part", zap.Uint64("rejected", out.Rejected), zap.Error(out.Err))
		} else if out.Err != nil {
			d.log.Warn("warning", "destination took a request with a warning", zap.Error(out.Err))
		}
		a.group.failures, a.group.notBefore = 0, time.Time{}
	case Refused, TooLarge:
		if len(a.slots) == 1 {
			a.dead()
			break
		}
		// One frame must not take others with it: halve until it stands alone.
		half := len(a.slots) / 2
		a.group.again(a.part(0, half))
		a.group.again(a.part(half, len(a.slots)))
	default:
		a.tries++
		a.group.again(a)
		delay := d.backoff(a.group, out.RetryAfter)
		if out.Err != nil && !errors.Is(out.Err, context.Canceled) {
			d.log.Warn("retry", "delivery failed; trying again", zap.String("tenant", a.group.key.tenant),
				zap.Stringer("signal", a.group.key.signal), zap.Duration("after", delay), zap.Error(out.Err))
		}
	}
	d.groups.tidy(a.group)
}

// backoff sets when a group may be tried again: doubling with jitter, not before the destination's own wish.
func (d *Drain) backoff(g *group, asked time.Duration) time.Duration {
	lim := d.o.Limits()
	delay := lim.RetryInitial << min(g.failures, 20)
	if delay > lim.RetryMax || delay <= 0 {
		delay = lim.RetryMax
	}
	delay = delay/2 + rand.N(delay/2+1) // half to all of it
	delay = max(delay, min(asked, maxRetryAfter))
	now := time.Now()
	if !now.Before(g.notBefore) { // several requests that fail together are one failure
		g.failures++
	}
	if at := now.Add(delay); at.After(g.notBefore) {
		g.notBefore = at
	}
	return delay
}

func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
