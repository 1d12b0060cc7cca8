package segment

import (
	"context"
	"errors"
	"slices"
	"time"

	"go.uber.org/zap"
)

// Parking moves the frames of one tenant and signal out of the way of the others of their lane. It is called from several
// goroutines.
type Parking interface {
	// Move stores frames of one tenant and signal, with their ids, in another lane. It returns nil when they are durable
	// there; after an error some of them may be.
	Move(ctx context.Context, frames []Frame) error
	// Holds reports whether frames of that tenant and signal wait in another lane, so that later ones belong behind them.
	Holds(tenant string, signal Signal) bool
	// Delivered is told of each request that the destination took. steady says that none failed for Limits.ParkAfter.
	Delivered(tenant string, signal Signal, steady bool)
	// Passed reports whether the destination took something of another tenant or signal since then: it is up, and refuses
	// only this one.
	Passed(tenant string, signal Signal, since time.Time) bool
}

const (
	// maxMoveBytes bounds the bodies of one move.
	maxMoveBytes = 4 << 20
	// parkLook is how often it is looked at whether something else succeeded.
	parkLook = time.Second
	// maxTrialShift bounds the delay between two trials, in doublings of Limits.ParkAfter.
	maxTrialShift = 6
)

// parker is the state of a drain's moves.
type parker struct {
	// since is since when the window is full of groups that fail, so that what lies behind it is not even tried.
	since time.Time
	// trial is how many bytes may still be moved away only to see whether something behind them succeeds. trials counts
	// those since the last success: they become rarer, since most likely the destination is down.
	trial  int
	trials int
}

// move is frames on their way to another lane.
type move struct {
	group *group
	slots []*slot
}

// hold notes that a group's frames wait in another lane.
func (d *Drain) hold(g *group) {
	if d.o.Park != nil && !d.o.Parked && !g.held && d.o.Park.Holds(g.key.tenant, g.key.signal) {
		g.held = true
		d.groups.watch[g] = struct{}{}
	}
}

// park starts the moves that are due, and returns when to look again.
func (d *Drain) park(ctx context.Context) time.Duration {
	again := time.Hour
	if d.o.Park == nil || d.o.Parked {
		return again
	}
	now, lim := time.Now(), d.o.Limits()
	d.lookStuck(now, &lim)
	for g := range d.groups.watch {
		if g.held = g.held && d.o.Park.Holds(g.key.tenant, g.key.signal); !g.held && !g.troubled(now, &lim) {
			delete(d.groups.watch, g)
			continue
		}
		if g.moving || g.flying > 0 {
			continue
		}
		if left := max(d.untilPark(g, now, &lim), g.notMove.Sub(now)); left > 0 {
			again = min(again, left)
			continue
		}
		d.startMove(ctx, g)
	}
	return again
}

// troubled reports whether the group fails, or did lately: one that is let through now and then holds up others too.
func (g *group) troubled(now time.Time, lim *Limits) bool {
	return g.failures > 0 || !g.failedAt.IsZero() && now.Sub(g.failedAt) < lim.ParkAfter
}

// since is since when the group fails, or the time given if it was let through meanwhile.
func (g *group) since(otherwise time.Time) time.Time {
	if g.failing.IsZero() {
		return otherwise
	}
	return g.failing
}

// lookStuck finds out whether the window is full of groups that fail.
func (d *Drain) lookStuck(now time.Time, lim *Limits) {
	stuck := d.window.full(lim.WindowBytes)
	for _, g := range d.groups.turn {
		if _, watched := d.groups.watch[g]; !watched && !g.empty() {
			d.parker.trial = 0 // here is something to try
			stuck = false
		}
		stuck = stuck && !g.held && !g.moving
	}
	switch {
	case !stuck:
		d.parker.since = time.Time{}
	case d.parker.since.IsZero():
		d.parker.since = now
	}
}

// untilPark is how long to wait before a group is moved.
func (d *Drain) untilPark(g *group, now time.Time, lim *Limits) time.Duration {
	passed := func(since time.Time) bool { return d.o.Park.Passed(g.key.tenant, g.key.signal, since) }
	switch {
	case g.held, d.parker.trial > 0:
		return 0
	case lim.ParkAfter == 0:
		return time.Hour
	case !d.parker.since.IsZero() && now.Sub(d.parker.since) >= parkLook && passed(g.since(d.parker.since)):
		return 0 // others wait for its place in the window
	case !d.parker.since.IsZero() && !lim.Ordered:
		left := d.parker.since.Add(lim.ParkAfter << min(d.parker.trials, maxTrialShift)).Sub(now)
		if left <= 0 {
			d.parker.trial, d.parker.since = lim.WindowBytes, now
			d.parker.trials++
		}
		return min(left, parkLook)
	case !g.failing.IsZero() && passed(g.failing):
		return g.failing.Add(lim.ParkAfter).Sub(now)
	}
	return parkLook
}

// startMove moves what a group has, from its front. Of a frame in parts the whole is moved, since only that can be stored:
// the parts that were taken already come twice.
func (d *Drain) startMove(ctx context.Context, g *group) {
	m := &move{group: g}
	var frames []Frame
	size := 0
	for _, s := range g.slots() {
		n := len(s.frame.Body)
		if size > 0 && size+n > maxMoveBytes {
			break
		}
		size += n
		m.slots, frames = append(m.slots, s), append(frames, *s.frame)
	}
	if size == 0 && len(frames) == 0 {
		return
	}
	d.parker.trial -= size + slotBytes*len(frames)
	g.moving = true
	d.flying++
	go func() { d.events <- event{moved: m, err: d.o.Park.Move(ctx, frames)} }()
}

// slots are those that the group has pieces of, in their order.
func (g *group) slots() (all []*slot) {
	add := func(pieces []piece) {
		for i := range pieces {
			all = append(all, pieces[i].slot)
		}
	}
	for _, a := range g.retry {
		add(a.pieces)
	}
	add(g.ready)
	slices.SortStableFunc(all, func(a, b *slot) int { return a.next.Compare(b.next) })
	return slices.Compact(all)
}

// settleMove books a move: not a loss, and not delivered.
func (d *Drain) settleMove(m *move, err error) {
	g := m.group
	g.moving = false
	if err != nil { // what is in the other lane already will come twice
		g.notMove = time.Now().Add(readRetry)
		if !errors.Is(err, context.Canceled) {
			d.log.Warn("park", "frames not moved to a parked lane; trying again", zap.String("tenant", g.key.tenant),
				zap.Stringer("signal", g.key.signal), zap.Error(err))
		}
		return
	}
	g.leave(m.slots)
	g.failures, g.failing, g.notBefore = 0, time.Time{}, time.Time{}
	d.log.Warn("parked", "destination does not take this tenant's data; moved out of the way of others", zap.String("tenant", g.key.tenant),
		zap.Stringer("signal", g.key.signal), zap.Int("frames", len(m.slots)))
	d.groups.tidy(g)
}

// leave takes what was moved out of the group. What had become of parts of a frame is counted as sent once more, for all of
// it is counted in the other lane.
func (g *group) leave(moved []*slot) {
	gone := make(map[*slot]bool, len(moved))
	for _, s := range moved {
		gone[s] = true
	}
	goes := func(p piece) bool { return gone[p.slot] }
	for _, a := range g.retry {
		for i := range a.pieces {
			if p := &a.pieces[i]; gone[p.slot] {
				p.slot.ledger.Resent = p.slot.ledger.Resent.Add(p.frame.Signal.Of(uint64(p.frame.Records) * uint64(a.tries)))
			}
		}
		a.pieces = slices.DeleteFunc(a.pieces, goes)
	}
	g.retry = slices.DeleteFunc(g.retry, func(a *attempt) bool { return len(a.pieces) == 0 })
	g.ready = slices.DeleteFunc(slices.Clone(g.ready), goes)
	for _, s := range moved {
		l := &s.ledger
		l.Resent = l.Resent.Add(l.Delivered).Add(l.Rejected).Add(l.DeadLetter)
		s.ledger = Ledger{Resent: l.Resent, Moved: s.frame.Signal.Of(uint64(s.frame.Records))}
		s.left, s.done, s.frame = 0, true, nil
	}
}
