package segment

import (
	"slices"
	"strconv"
	"time"
)

const (
	// maxRequestFrames bounds the frames of a request, so that booking one never takes long.
	maxRequestFrames = 512
	// MaxFrameIDsBytes bounds FrameIDs of a request. Common servers and proxies refuse a header line of 8 KiB; half of it
	// leaves room for others.
	MaxFrameIDsBytes = 4 << 10
)

// groupKey says which frames may share a request, and wait for each other's retries.
type groupKey struct {
	tenant string
	signal Signal
}

// piece is a frame of the window or, once a refusal has to be narrowed down, some of its records.
type piece struct {
	slot  *slot
	frame Frame
}

// whole reports whether the piece is the frame as it was stored.
func (p *piece) whole() bool { return p.frame.First == 0 }

// records is the piece's count in the ledger.
func (p *piece) records() Counts { return p.frame.Signal.Of(uint64(p.frame.Records)) }

// compare orders pieces as they lie in the lane.
func (p *piece) compare(o *piece) int {
	if c := p.slot.next.Compare(o.slot.next); c != 0 {
		return c
	}
	return int(p.frame.First) - int(o.frame.First)
}

func (p *piece) finish(tries int) { p.slot.finish(p.frame.Records, tries) }

// group is the undelivered part of the window for one tenant and signal.
type group struct {
	key       groupKey
	ready     []piece
	retry     []*attempt // to be sent before ready, as they are
	flying    int
	failures  int
	failing   time.Time // since when nothing was taken; zero: the last attempt succeeded
	failedAt  time.Time // when the last attempt failed
	notBefore time.Time
	asked     time.Time // the part of notBefore that the destination asked for
	deficit   int       // bytes that it may still send in its turn

	held    bool // frames wait in another lane, where these go, too
	moving  bool
	notMove time.Time // not to be moved before
}

func (g *group) empty() bool {
	return len(g.ready) == 0 && len(g.retry) == 0 && g.flying == 0 && !g.moving
}

// attempt is a request that is or was in flight. Its pieces stay together, so that a retry is the same request.
type attempt struct {
	group  *group
	pieces []piece
	tries  int
	probe  bool // of a group that fails
}

func (a *attempt) request() Request {
	r := Request{Tenant: a.group.key.tenant, Signal: a.group.key.signal, Frames: make([]Frame, len(a.pieces))}
	for i := range a.pieces {
		r.Frames[i] = a.pieces[i].frame
	}
	return r
}

func (a *attempt) size() (n int) {
	for i := range a.pieces {
		n += len(a.pieces[i].frame.Body)
	}
	return n
}

func (a *attempt) part(from, to int) *attempt {
	return &attempt{group: a.group, pieces: a.pieces[from:to:to], tries: a.tries}
}

// delivered books success; rejected records are taken from the first frames, since the answer does not say which.
func (a *attempt) delivered(rejected uint64) {
	for i := range a.pieces {
		p := &a.pieces[i]
		n := uint64(p.frame.Records)
		r := min(rejected, n)
		rejected -= r
		l := &p.slot.ledger
		l.Rejected = l.Rejected.Add(p.frame.Signal.Of(r))
		l.Delivered = l.Delivered.Add(p.frame.Signal.Of(n - r))
		p.finish(a.tries)
	}
}

// dead books that every piece is in the dead letter.
func (a *attempt) dead() {
	for i := range a.pieces {
		p := &a.pieces[i]
		p.slot.ledger.DeadLetter = p.slot.ledger.DeadLetter.Add(p.records())
		p.finish(a.tries)
	}
}

// groups hands out requests, turn by turn: deficit round robin, so that a tenant of small requests gets as many bytes sent
// as one of large ones.
type groups struct {
	byKey map[groupKey]*group
	turn  []*group
	watch map[*group]struct{} // those that fail, or whose frames wait elsewhere

	probes int // attempts in flight of groups that fail
}

func newGroups() groups {
	return groups{byKey: map[groupKey]*group{}, watch: map[*group]struct{}{}}
}

func (gs *groups) push(s *slot) *group {
	s.bytes, s.left = len(s.frame.Body)+slotBytes, 1
	key := groupKey{s.frame.Tenant, s.frame.Signal}
	g := gs.byKey[key]
	if g == nil {
		g = &group{key: key}
		gs.byKey[key] = g
		gs.turn = append(gs.turn, g)
	}
	g.ready = append(g.ready, piece{s, *s.frame})
	return g
}

// tidy forgets a group that has nothing left.
func (gs *groups) tidy(g *group) {
	if !g.empty() {
		return
	}
	delete(gs.byKey, g.key)
	delete(gs.watch, g)
	if i := slices.Index(gs.turn, g); i >= 0 {
		gs.turn = slices.Delete(gs.turn, i, i+1)
	}
}

// next returns the next request to send, or how long nothing is due. Groups that fail, which may mean that each attempt hangs
// until its time-out, get at most half of the requests in flight.
func (gs *groups) next(now time.Time, lim *Limits, split splitter) (*attempt, time.Duration) {
	wait := time.Hour
	mostProbes := max(lim.InFlight/2, 1)
	for range 2 * len(gs.turn) { // a group's first turn may only end the one before
		g := gs.turn[0]
		left := g.notBefore.Sub(now)
		var a *attempt
		switch {
		case g.held || g.moving:
		case left > 0:
			wait = min(wait, left)
		case g.failures > 0 && gs.probes >= mostProbes:
		case g.deficit > 0:
			a = g.take(now, lim, split)
		}
		if a != nil {
			g.deficit -= a.size()
			g.flying++
			if a.probe = g.failures > 0; a.probe {
				gs.probes++
			}
			return a, 0
		}
		g.deficit = max(lim.MaxRequestBytes, 1)
		gs.turn = append(gs.turn[1:], g)
	}
	if lim.MaxAge > 0 {
		for _, g := range slices.Clone(gs.turn) { // frames that went for their age may have left a group empty
			gs.tidy(g)
		}
	}
	return nil, wait
}

// landed is called when an attempt has its outcome.
func (gs *groups) landed(a *attempt) {
	a.group.flying--
	if a.probe {
		a.probe = false
		gs.probes--
	}
}

// again queues a request that is to be sent once more, the oldest frames first.
func (g *group) again(a *attempt) {
	at, _ := slices.BinarySearchFunc(g.retry, a, func(x, y *attempt) int { return x.pieces[0].compare(&y.pieces[0]) })
	g.retry = slices.Insert(g.retry, at, a)
}

// take forms the group's next request.
func (g *group) take(now time.Time, lim *Limits, split splitter) *attempt {
	for len(g.retry) > 0 {
		a := g.retry[0]
		g.retry = g.retry[1:]
		if a.pieces = expire(a.pieces, now, lim.MaxAge); len(a.pieces) > 0 {
			return a
		}
	}
	if g.failures > 0 && g.flying > 0 {
		return nil // one at a time until the destination takes something again
	}
	g.ready = expire(g.ready, now, lim.MaxAge)
	g.fit(lim.MaxRequestBytes, split)
	n, size, ids := 0, 0, 0
	for n < len(g.ready) {
		f := &g.ready[n].frame
		ids += frameIDBytes(g.ready, n)
		alone := f.Flags&FlagInvalidUTF8 != 0
		if n > 0 && (alone || n >= maxRequestFrames || size+len(f.Body) > lim.MaxRequestBytes || ids > MaxFrameIDsBytes) {
			break
		}
		n++
		size += len(f.Body)
		if alone {
			break
		}
	}
	if n == 0 {
		return nil
	}
	a := &attempt{group: g, pieces: g.ready[:n:n]}
	g.ready = g.ready[n:]
	return a
}

// fit cuts the first piece until it is no larger than a request may be, or stands for one record.
func (g *group) fit(limit int, split splitter) {
	for len(g.ready) > 0 && len(g.ready[0].frame.Body) > limit {
		head, tail, ok := split(g.ready[0])
		if !ok {
			return
		}
		g.ready = slices.Replace(slices.Clip(g.ready), 0, 1, head, tail)
	}
}

// frameIDBytes is what the id of piece i adds to FrameIDs behind those before it, or a little more.
func frameIDBytes(pieces []piece, i int) int {
	f := &pieces[i].frame
	digits := len(strconv.FormatUint(uint64(f.ID.Number), 10))
	if follows(pieces, i) {
		if i > 1 && follows(pieces, i-1) {
			return 0 // it only changes the end of a range
		}
		return len("-") + digits
	}
	n := len("+") + digits
	if f.First > 0 {
		n += len("#-") + 2*len(strconv.FormatUint(uint64(f.First)+uint64(f.Records), 10))
	}
	if i == 0 || pieces[i-1].frame.ID.Birth != f.ID.Birth {
		n += len(f.ID.prefix()) + len(":")
	}
	return n
}

// follows reports whether piece i is in one range with the one before it.
func follows(pieces []piece, i int) bool {
	if i == 0 || !pieces[i].whole() || !pieces[i-1].whole() {
		return false
	}
	a, b := &pieces[i-1].frame.ID, &pieces[i].frame.ID
	return a.Birth == b.Birth && a.Number+1 == b.Number
}

// expire drops what is too old from the front, where the oldest are, and returns the rest.
func expire(pieces []piece, now time.Time, maxAge time.Duration) []piece {
	for maxAge > 0 && len(pieces) > 0 && now.Sub(pieces[0].frame.Received) > maxAge {
		p := &pieces[0]
		p.slot.ledger.lose(LostMaxAge, p.records())
		p.finish(0)
		pieces = pieces[1:]
	}
	return pieces
}
