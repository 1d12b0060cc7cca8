package lease

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// Lease is a register that this process has acquired. It is safe for many goroutines at once; their changes take turns.
type Lease struct {
	r         *Register
	epoch     Epoch
	releaseID string        // one for all tries, so that whichever lands is known
	turn      chan struct{} // whoever has put the token in may make a change

	mu      sync.Mutex // never held over a call
	seen    Seen
	sent    time.Time               // when the last confirmed beat was sent
	open    bool                    // a write of ours may be in force or may still land, or a Release has begun
	over    error                   // ErrFenced, for good
	lose    context.CancelCauseFunc // ends the context of Keep; nil: not kept
	guard   *time.Timer             // tells the keeper's context that the lease has lapsed
	trouble error                   // the last error of the change that is on its way
}

func newLease(r *Register, c *change) *Lease {
	return &Lease{r: r, epoch: c.base.Epoch, releaseID: r.o.NewID(), turn: make(chan struct{}, 1), seen: c.base, sent: c.done}
}

// Epoch is that of the acquisition.
func (l *Lease) Epoch() Epoch { return l.epoch }

// Last is what the register was when it was last read or written here. After ErrFenced it is what fenced the lease, if that
// could be read.
func (l *Lease) Last() Seen {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.seen
}

// Held says whether the holder may act now: a beat is confirmed that was sent less than half of StaleAfter ago, and no
// outcome is open.
func (l *Lease) Held() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.held(time.Now())
}

// held is Held. l.mu is held.
func (l *Lease) held(now time.Time) bool {
	// A suspended machine may have stopped the monotonic clock: the wall clock can only end the lease earlier.
	since := max(now.Sub(l.sent), now.Round(0).Sub(l.sent.Round(0)))
	return l.over == nil && !l.open && since < l.r.part(actPart)
}

// Renew beats, also when the lease has lapsed: it settles what was left open, and after its success the lease is held again.
// edit may be nil. It tries until that is done or ctx ends; of a lease that is held, until it lapses.
func (l *Lease) Renew(ctx context.Context, edit Edit) error {
	err := l.change(ctx, beat, edit)
	for err == nil && !l.Held() { // the beat that is found in the register may be an old one
		err = l.change(ctx, beat, nil)
	}
	if err != nil {
		return fmt.Errorf("renew register %s: %w", l.r.o.Key, err)
	}
	return nil
}

// Commit changes state and body, and counts as a beat. It tries until that is done, ctx ends or the lease lapses. Of a lease
// that is not held it is refused with ErrLapsed, and nothing is sent: Renew first.
func (l *Lease) Commit(ctx context.Context, edit Edit) error {
	if err := l.change(ctx, commit, edit); err != nil {
		return fmt.Errorf("commit register %s: %w", l.r.o.Key, err)
	}
	return nil
}

// Release clears the holder, with edit if that is not nil, and keeps the epoch. The lease is not held from the call on, so
// the caller has stopped acting. It tries until that is done or ctx ends, and then may be called again with the same edit,
// or Renew instead. After its success the lease is fenced.
func (l *Lease) Release(ctx context.Context, edit Edit) error {
	if err := l.change(ctx, release, edit); err != nil {
		return fmt.Errorf("release register %s: %w", l.r.o.Key, err)
	}
	return nil
}

// change makes one change, when it is its turn.
func (l *Lease) change(ctx context.Context, k kind, edit Edit) error {
	select {
	case l.turn <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	defer func() { <-l.turn }()
	c, limit, err := l.begin(k, edit)
	if err != nil {
		return err
	}
	if !limit.IsZero() {
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadlineCause(ctx, limit, ErrLapsed)
		defer cancel()
	}
	err = l.r.run(ctx, c, l.note)
	if c.lost != nil {
		err = fmt.Errorf("%w: %w", ErrFenced, err)
	}
	l.finish(c)
	return err
}

// begin makes ready a change on top of what was last read, and says when it must end.
func (l *Lease) begin(k kind, edit Edit) (c *change, limit time.Time, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	held := l.held(time.Now())
	switch {
	case l.over != nil:
		return nil, limit, l.over
	case k == commit && !held:
		return nil, limit, ErrLapsed
	case held && k != release:
		limit = l.limit()
	}
	c = l.r.change(k, l.seen, edit)
	if k == release {
		c.newID = func() string { return l.releaseID }
		l.open = true // before its first byte is sent, and also where it fails: others may take the register at once
	}
	l.tell() // also of what the guard does not see: that the machine was suspended
	return c, limit, nil
}

// note is told after each step of a change.
func (l *Lease) note(c *change) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open, l.trouble = l.open || c.doubt != sure, c.trouble
}

// finish takes over what a change has found out, and ends the context of Keep where the lease is not held any more.
func (l *Lease) finish(c *change) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.seen = c.base
	switch {
	case c.lost != nil:
		l.over = fmt.Errorf("%w: %w", ErrFenced, c.lost)
	case c.kind == release && !c.done.IsZero():
		l.over = fmt.Errorf("%w: it is released", ErrFenced)
	case !c.done.IsZero(): // it has settled whatever was open
		l.sent, l.open = c.done, false
	}
	l.tell()
}

// tell ends the context of Keep or sets the time of its end. l.mu is held.
func (l *Lease) tell() {
	switch {
	case l.lose == nil:
	case l.over != nil:
		l.lose(l.over)
	case !l.held(time.Now()):
		l.lose(lapsed(l.trouble))
	default:
		l.guard.Reset(time.Until(l.limit()))
	}
}

// lapsed is ErrLapsed, with what kept the beats from being confirmed, if that is known.
func lapsed(trouble error) error {
	if trouble == nil {
		return ErrLapsed
	}
	return fmt.Errorf("%w: %w", ErrLapsed, trouble)
}

// limit is when the lease lapses. l.mu is held.
func (l *Lease) limit() time.Time { return l.sent.Add(l.r.part(actPart)) }

// Keep beats until stop is called or the lease is over. The context that it returns is the one to act under: it ends at the
// moment when the holder must not act any more, with the cause ErrFenced, for good, or ErrLapsed, after which Renew and then
// Keep may be called again. stop waits until the keeper has ended; it must be called. There is one keeper at a time. A beat
// that stop or the end of parent cuts off is left open: the lease is then not held until a Renew; a Release settles it too.
// edit may be nil; it is applied with each beat.
func (l *Lease) Keep(parent context.Context, edit Edit) (ctx context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(parent)
	l.mu.Lock()
	l.lose = cancel
	l.guard = time.AfterFunc(time.Until(l.limit()), func() { // a timer, so that no call that hangs can hold it up
		l.mu.Lock()
		defer l.mu.Unlock()
		l.tell()
	})
	l.tell()
	l.mu.Unlock()
	done := make(chan struct{})
	go func() {
		defer close(done)
		l.keep(ctx, edit)
	}()
	return ctx, func() {
		cancel(nil)
		<-done
		l.mu.Lock()
		defer l.mu.Unlock()
		l.guard.Stop()
		l.lose = nil
	}
}

func (l *Lease) keep(ctx context.Context, edit Edit) {
	_ = sleep(ctx, time.Nanosecond) // where a beat is due already, what the caller of Keep says at once is one
	for ctx.Err() == nil {
		delay := time.Until(l.due())
		if delay <= 0 {
			if err := l.Renew(ctx, edit); err == nil {
				continue
			}
			delay = l.r.part(retryMostPart) // if that ended the lease, ctx has ended
		}
		_ = sleep(ctx, delay) // ctx tells
	}
}

// due is when the next beat is.
func (l *Lease) due() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.sent.Add(l.r.part(beatPart))
}
