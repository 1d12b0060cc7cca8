package segment

import (
	"context"
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
	// Delivered is told of each request that the destination took.
	Delivered(tenant string, signal Signal)
	// Passed reports whether the destination took something of another tenant or signal since then: it is up, and refuses
	// only this one.
	Passed(tenant string, signal Signal, since time.Time) bool
}

const (
	// maxMoveBytes bounds the bodies of one move.
	maxMoveBytes = 4 << 20
	// parkLook is how often it is looked at whether another lane's group succeeded.
	parkLook = time.Second
)

// move is frames on their way to another lane.
type move struct {
	group  *group
	pieces []piece
	tries  []int // of each piece
}

// hold notes that a group's frames wait in another lane.
func (d *Drain) hold(g *group) {
	if d.o.Park != nil && !g.held && d.o.Park.Holds(g.key.tenant, g.key.signal) {
		g.held = true
		d.groups.watch[g] = struct{}{}
	}
}

// park starts the moves that are due, and returns when to look again.
func (d *Drain) park(ctx context.Context) time.Duration {
	again := time.Hour
	if d.o.Park == nil {
		return again
	}
	for g := range d.groups.watch {
		if g.held = g.held && d.o.Park.Holds(g.key.tenant, g.key.signal); !g.held && g.failures == 0 {
			delete(d.groups.watch, g)
			continue
		}
		if g.moving || g.flying > 0 {
			continue
		}
		now := time.Now()
		left := max(d.untilPark(g, now), g.notMove.Sub(now))
		if left > 0 {
			again = min(again, left)
			continue
		}
		d.startMove(ctx, g)
	}
	return again
}

// untilPark is how long a group must still fail before it is moved.
func (d *Drain) untilPark(g *group, now time.Time) time.Duration {
	lim := d.o.Limits()
	switch {
	case g.held:
		return 0
	case !d.o.Park.Passed(g.key.tenant, g.key.signal, g.failing):
		return parkLook
	case d.window.full(lim.WindowBytes) && d.othersEmpty():
		return 0 // the others wait for its place in the window
	}
	return g.failing.Add(lim.ParkAfter).Sub(now)
}

// othersEmpty reports whether nothing but groups that fail is left in the window.
func (d *Drain) othersEmpty() bool {
	for _, g := range d.groups.turn {
		if _, watched := d.groups.watch[g]; !watched && !g.empty() {
			return false
		}
	}
	return true
}

// startMove moves what a group has, from its front. Parts of frames stay: only whole frames can be stored.
func (d *Drain) startMove(ctx context.Context, g *group) {
	m := &move{group: g}
	size := 0
	add := func(p piece, tries int) bool {
		if size > 0 && size+len(p.frame.Body) > maxMoveBytes {
			return false
		}
		size += len(p.frame.Body)
		m.pieces, m.tries = append(m.pieces, p), append(m.tries, tries)
		return true
	}
	if d.o.Limits().Ordered && g.parted() {
		return // the rest of a frame may not be overtaken
	}
	more := true
	for i := 0; i < len(g.retry) && more; i++ {
		a := g.retry[i]
		if !whole(a.pieces) {
			continue
		}
		n := 0
		for n < len(a.pieces) && more {
			if more = add(a.pieces[n], a.tries); more {
				n++
			}
		}
		if a.pieces = a.pieces[n:]; len(a.pieces) == 0 {
			g.retry = slices.Delete(g.retry, i, i+1)
			i--
		}
	}
	rest := g.ready[:0:0]
	for i, p := range g.ready {
		if more = more && (!p.whole() || add(p, 0)); !more {
			rest = append(rest, g.ready[i:]...)
			break
		}
		if !p.whole() {
			rest = append(rest, p)
		}
	}
	g.ready = rest
	if len(m.pieces) == 0 {
		return
	}
	g.moving = true
	d.flying++
	go func() {
		frames := make([]Frame, len(m.pieces))
		for i := range m.pieces {
			frames[i] = m.pieces[i].frame
		}
		d.events <- event{moved: m, err: d.o.Park.Move(ctx, frames)}
	}()
}

// parted reports whether some frame of the group is in parts.
func (g *group) parted() bool {
	return !whole(g.ready) || slices.ContainsFunc(g.retry, func(a *attempt) bool { return !whole(a.pieces) })
}

func whole(pieces []piece) bool {
	return !slices.ContainsFunc(pieces, func(p piece) bool { return !p.whole() })
}

// settleMove books a move: not a loss, and not delivered.
func (d *Drain) settleMove(m *move, err error) {
	g := m.group
	g.moving = false
	if err != nil { // what is in the other lane already will come twice
		sent := 0
		for sent < len(m.pieces) && m.tries[sent] > 0 {
			g.again(&attempt{group: g, pieces: m.pieces[sent : sent+1 : sent+1], tries: m.tries[sent]})
			sent++
		}
		g.ready = append(m.pieces[sent:len(m.pieces):len(m.pieces)], g.ready...)
		g.notMove = time.Now().Add(readRetry)
		d.log.Warn("park", "frames not moved to a parked lane; trying again", zap.String("tenant", g.key.tenant),
			zap.Stringer("signal", g.key.signal), zap.Error(err))
		return
	}
	for i := range m.pieces {
		p := &m.pieces[i]
		p.slot.ledger.Moved = p.slot.ledger.Moved.Add(p.records())
		p.finish(m.tries[i])
	}
	g.failures, g.failing, g.notBefore = 0, time.Time{}, time.Time{}
	d.log.Warn("parked", "destination does not take this tenant's data; moved out of the way of others", zap.String("tenant", g.key.tenant),
		zap.Stringer("signal", g.key.signal), zap.Int("frames", len(m.pieces)))
	d.groups.tidy(g)
}
