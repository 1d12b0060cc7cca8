package segment

import (
	"context"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// slot is one item in a drain's window.
type slot struct {
	frame  *Frame
	bytes  int // charged to the window
	next   Position
	out    Totals
	again  Totals
	ledger Ledger
	done   bool
}

func (s *slot) oldest() (t time.Time) {
	if s.frame != nil {
		t = s.frame.Received
	}
	return t
}

// window holds the slots between the cursor and the reader, and bounds their bytes.
type window struct {
	slots []*slot

	mu    sync.Mutex
	used  int
	freed chan struct{}
}

// waitRoom waits until the window is not full. A single item may go over it.
func (w *window) waitRoom(ctx context.Context, limit func() int) bool {
	for ctx.Err() == nil {
		w.mu.Lock()
		room := w.used < limit()
		w.mu.Unlock()
		if room {
			return true
		}
		select {
		case <-w.freed:
		case <-ctx.Done():
		}
	}
	return false
}

func (w *window) take(n int) {
	w.mu.Lock()
	w.used += n + slotBytes
	w.mu.Unlock()
}

// slotBytes is what a frame costs in memory beyond its body, so that a flood of tiny frames is bounded too.
const slotBytes = 512

func (w *window) free(n int) {
	if n == 0 {
		return
	}
	w.mu.Lock()
	w.used -= n
	w.mu.Unlock()
	wake(w.freed)
}

// maxRequestFrames bounds the frames of a request, so that their ids fit into a header line.
const maxRequestFrames = 512

// groupKey says which frames may share a request, and wait for each other's retries.
type groupKey struct {
	tenant string
	signal Signal
}

// group is the undelivered part of the window for one tenant and signal.
type group struct {
	key       groupKey
	ready     []*slot
	retry     []*attempt // to be sent before ready, as they are
	flying    int
	failures  int
	notBefore time.Time
}

// attempt is a request that is or was in flight. Its frames stay together, so that a retry is the same request.
type attempt struct {
	group *group
	slots []*slot
	tries int
}

func (a *attempt) request() Request {
	r := Request{Tenant: a.group.key.tenant, Signal: a.group.key.signal, Frames: make([]Frame, len(a.slots))}
	for i, s := range a.slots {
		r.Frames[i] = *s.frame
	}
	return r
}

func (a *attempt) part(from, to int) *attempt {
	return &attempt{group: a.group, slots: a.slots[from:to], tries: a.tries}
}

// delivered books success; rejected records are taken from the first frames, since the answer does not say which.
func (a *attempt) delivered(rejected uint64) {
	for _, s := range a.slots {
		n := uint64(s.frame.Records)
		r := min(rejected, n)
		rejected -= r
		s.ledger.Rejected = s.frame.Signal.Of(r)
		s.ledger.Delivered = s.frame.Signal.Of(n - r)
		s.finish(a.tries)
	}
}

func (a *attempt) dead() {
	for _, s := range a.slots {
		s.ledger.DeadLetter = s.frame.Signal.Of(uint64(s.frame.Records))
		s.finish(a.tries)
	}
}

func (s *slot) finish(tries int) {
	s.ledger.Resent = s.frame.Signal.Of(uint64(s.frame.Records) * uint64(tries))
	s.done = true
	s.frame = nil // the body may be long gone before the cursor gets here
}

// groups hands out requests, turn by turn.
type groups struct {
	byKey map[groupKey]*group
	turn  []*group
}

func (gs *groups) push(s *slot) {
	s.bytes = len(s.frame.Body) + slotBytes
	key := groupKey{s.frame.Tenant, s.frame.Signal}
	g := gs.byKey[key]
	if g == nil {
		g = &group{key: key}
		gs.byKey[key] = g
		gs.turn = append(gs.turn, g)
	}
	g.ready = append(g.ready, s)
}

// tidy forgets a group that has nothing left.
func (gs *groups) tidy(g *group) {
	if len(g.ready) > 0 || len(g.retry) > 0 || g.flying > 0 {
		return
	}
	delete(gs.byKey, g.key)
	for i, o := range gs.turn {
		if o == g {
			gs.turn = append(gs.turn[:i], gs.turn[i+1:]...)
			return
		}
	}
}

// next returns the next request to send, or how long nothing is due.
func (gs *groups) next(now time.Time, lim *Limits) (*attempt, time.Duration) {
	wait := time.Hour
	for range len(gs.turn) {
		g := gs.turn[0]
		gs.turn = append(gs.turn[1:], g)
		if left := g.notBefore.Sub(now); left > 0 {
			wait = min(wait, left)
			continue
		}
		if a := g.take(now, lim); a != nil {
			g.flying++
			return a, 0
		}
	}
	for key, g := range gs.byKey { // frames that went for their age may have left a group empty
		if len(g.ready) == 0 {
			gs.tidy(gs.byKey[key])
		}
	}
	return nil, wait
}

// again queues a request that is to be sent once more, the oldest frames first.
func (g *group) again(a *attempt) {
	at, _ := slices.BinarySearchFunc(g.retry, a, func(x, y *attempt) int { return x.slots[0].next.Compare(y.slots[0].next) })
	g.retry = slices.Insert(g.retry, at, a)
}

// take forms the group's next request.
func (g *group) take(now time.Time, lim *Limits) *attempt {
	for len(g.retry) > 0 {
		a := g.retry[0]
		g.retry = g.retry[1:]
		if a.slots = expire(a.slots, now, lim.MaxAge); len(a.slots) > 0 {
			return a
		}
	}
	if g.failures > 0 && g.flying > 0 {
		return nil // one at a time until the destination takes something again
	}
	g.ready = expire(g.ready, now, lim.MaxAge)
	n, size := 0, 0
	for _, s := range g.ready {
		alone := s.frame.Flags&FlagInvalidUTF8 != 0
		if n > 0 && (alone || n >= maxRequestFrames || size+len(s.frame.Body) > lim.MaxRequestBytes) {
			break
		}
		n++
		size += len(s.frame.Body)
		if alone {
			break
		}
	}
	if n == 0 {
		return nil
	}
	a := &attempt{group: g, slots: g.ready[:n:n]}
	g.ready = g.ready[n:]
	return a
}

// expire drops what is too old from the front, where the oldest are, and returns the rest.
func expire(slots []*slot, now time.Time, maxAge time.Duration) []*slot {
	for maxAge > 0 && len(slots) > 0 && now.Sub(slots[0].frame.Received) > maxAge {
		s := slots[0]
		s.ledger.lose(LostMaxAge, s.frame.Signal.Of(uint64(s.frame.Records)))
		s.finish(0)
		slots = slots[1:]
	}
	return slots
}

// limitedLog writes one line per kind and minute, with how many were left out.
type limitedLog struct {
	log  *zap.Logger
	mu   sync.Mutex
	last map[string]time.Time
	left map[string]int
}

const logInterval = time.Minute

func newLimitedLog(log *zap.Logger) *limitedLog {
	return &limitedLog{log: log, last: map[string]time.Time{}, left: map[string]int{}}
}

func (l *limitedLog) Warn(kind, msg string, f ...zap.Field)  { l.write(zap.WarnLevel, kind, msg, f) }
func (l *limitedLog) Error(kind, msg string, f ...zap.Field) { l.write(zap.ErrorLevel, kind, msg, f) }

func (l *limitedLog) write(level zapcore.Level, kind, msg string, f []zap.Field) {
	l.mu.Lock()
	now := time.Now()
	if last, ok := l.last[kind]; ok && now.Sub(last) < logInterval {
		l.left[kind]++
		l.mu.Unlock()
		return
	}
	left := l.left[kind]
	l.last[kind], l.left[kind] = now, 0
	l.mu.Unlock()
	if left > 0 {
		f = append(f, zap.Int("not_shown", left))
	}
	l.log.Log(level, msg, f...)
}
