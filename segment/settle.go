package segment

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"go.uber.org/zap"
)

// settle books the outcome of an attempt.
func (d *Drain) settle(ctx context.Context, a *attempt, out Outcome) {
	g := a.group
	d.groups.landed(a)
	switch out.Verdict {
	case Delivered:
		d.settleDelivered(a, &out)
	case TooLarge:
		d.size.refused(a.size(), time.Now())
		d.narrow(ctx, a, out.Err)
	case Refused:
		d.narrow(ctx, a, out.Err)
	default:
		a.tries++
		g.again(a)
		delay := d.backoff(g, out.RetryAfter)
		if out.Err != nil && !errors.Is(out.Err, context.Canceled) {
			d.log.Warn("retry", "delivery failed; trying again", zap.String("tenant", g.key.tenant),
				zap.Stringer("signal", g.key.signal), zap.Duration("after", delay), zap.Error(out.Err))
		}
	}
	d.groups.tidy(g)
}

func (d *Drain) settleDelivered(a *attempt, out *Outcome) {
	g := a.group
	a.delivered(out.Rejected)
	if out.Rejected > 0 {
		d.log.Warn("partial", "destination took a request in part", zap.Uint64("rejected", out.Rejected), zap.Error(out.Err))
	} else if out.Err != nil {
		d.log.Warn("warning", "destination took a request with a warning", zap.Error(out.Err))
	}
	g.failures, g.failing, g.notBefore = 0, time.Time{}, time.Time{}
	d.parker.trials = 0
	d.wake(time.Now())
	if d.o.Park != nil {
		lim := d.o.Limits()
		d.o.Park.Delivered(g.key.tenant, g.key.signal, !g.troubled(time.Now(), &lim))
	}
}

// wake lets groups try at once whose delays come from a time when the destination took nothing at all.
func (d *Drain) wake(now time.Time) {
	for g := range d.groups.watch {
		if d.tookAt.Before(g.failing) && g.asked.Before(g.notBefore) {
			g.notBefore = g.asked
		}
	}
	d.tookAt = now
}

// narrow narrows a refusal down: one frame must not take others with it, nor one record the rest of its frame. What stands
// alone is set aside.
func (d *Drain) narrow(ctx context.Context, a *attempt, cause error) {
	if n := len(a.pieces); n > 1 {
		d.bisect.spend(time.Now())
		a.group.again(a.part(0, n/2))
		a.group.again(a.part(n/2, n))
		return
	}
	if p := a.pieces[0]; p.frame.Records > 1 && d.bisect.spend(time.Now()) {
		if head, tail, ok := d.split(p); ok {
			a.group.again(&attempt{group: a.group, pieces: []piece{head}, tries: a.tries})
			a.group.again(&attempt{group: a.group, pieces: []piece{tail}, tries: a.tries})
			return
		}
	}
	d.setAside(ctx, a, cause)
}

// setAside writes a dead letter, in a goroutine of its own: the loop never waits for a disk.
func (d *Drain) setAside(ctx context.Context, a *attempt, cause error) {
	why := "refused"
	if cause != nil {
		why = cause.Error()
	}
	a.group.flying++ // nothing may be sent as if the group were empty
	d.flying++
	go func() {
		f := a.pieces[0].frame
		d.events <- event{aside: a, err: d.o.Dead.SetAside(ctx, &f, why)}
	}()
	d.log.Warn("refused", "destination refuses for good; setting aside", zap.Stringer("frame", a.pieces[0].frame.ID),
		zap.Uint32("records", a.pieces[0].frame.Records), zap.String("cause", why))
}

func (d *Drain) settleAside(a *attempt, err error) {
	a.group.flying--
	if err == nil {
		a.dead()
	} else { // it is sent once more, since nothing else is known about it by then
		a.group.again(a)
		d.backoff(a.group, 0)
		if !errors.Is(err, context.Canceled) {
			d.log.Error("dead", "frame not set aside; trying again", zap.Error(err))
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
	if at := now.Add(min(asked, maxRetryAfter)); asked > 0 && at.After(g.asked) {
		g.asked = at
	}
	if g.failing.IsZero() {
		g.failing = now
	}
	g.failedAt = now
	d.groups.watch[g] = struct{}{}
	return delay
}

// splitter cuts a piece in two halves by records, unless it is one record or no OTLP.
type splitter func(p piece) (head, tail piece, ok bool)

func (d *Drain) split(p piece) (head, tail piece, ok bool) {
	if d.o.Split == nil || p.frame.Records < 2 {
		return head, tail, false
	}
	half := p.frame.Records / 2
	h, t, err := d.o.Split(&p.frame, int(half))
	if err != nil {
		d.log.Warn("split", "frame cannot be split", zap.Stringer("frame", p.frame.ID), zap.Error(err))
		return head, tail, false
	}
	first := max(p.frame.First, 1)
	head, tail = p, p
	head.frame.Body, head.frame.Records, head.frame.First = h, half, first
	tail.frame.Body, tail.frame.Records, tail.frame.First = t, p.frame.Records-half, first+half
	p.slot.left++
	return head, tail, true
}

// budget bounds the requests that narrow down refusals, so that a destination that refuses everything does not get a request
// for each record.
type budget struct {
	spent float64
	at    time.Time
}

// bisectPerMinute is how many requests a lane may spend in a minute on narrowing down refusals.
const bisectPerMinute = 1000

// spend takes the two requests of a split, and says whether they are within the budget.
func (b *budget) spend(now time.Time) bool {
	if !b.at.IsZero() {
		b.spent = max(b.spent-now.Sub(b.at).Minutes()*bisectPerMinute, 0)
	}
	b.at = now
	if b.spent+2 > bisectPerMinute {
		return false
	}
	b.spent += 2
	return true
}

// learnedSize is what is known of a destination that takes smaller requests than it is configured for.
type learnedSize struct {
	bytes int // 0: nothing
	until time.Time
}

const (
	// learnedFor is how long a learned size holds: what was configured is tried again then.
	learnedFor = time.Hour
	// minLearnedBytes keeps a destination that refuses any size from getting ever smaller requests.
	minLearnedBytes = 4 << 10
)

func (l *learnedSize) refused(size int, now time.Time) {
	if n := max(size/2, minLearnedBytes); l.bytes == 0 || n < l.bytes {
		l.bytes = n
	}
	l.until = now.Add(learnedFor)
}

func (l *learnedSize) limit(configured int, now time.Time) int {
	if l.bytes > 0 && now.After(l.until) {
		l.bytes = 0
	}
	if l.bytes > 0 {
		return min(l.bytes, configured)
	}
	return configured
}
