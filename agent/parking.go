package agent

import (
	"context"
	"hash/crc32"
	"sync"
	"time"

	"ingest-agent/segment"
)

// maxParkedLanes bounds the parked lanes of a lane. With more tenants and signals refused than that, some share one.
const maxParkedLanes = 8

// traffic is what a destination may take or refuse as one: a tenant's data of one signal.
type traffic struct {
	tenant string
	signal segment.Signal
}

// health knows what a destination took last. All lanes of the destination tell it.
type health struct {
	mu   sync.Mutex
	last [2]struct { // of two different, the latest first
		of traffic
		at time.Time
	}
}

func (h *health) took(t traffic, now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.last[0].of != t {
		h.last[1] = h.last[0]
		h.last[0].of = t
	}
	h.last[0].at = now
}

// passed reports whether anything but t was taken since then.
func (h *health) passed(t traffic, since time.Time) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, l := range h.last {
		if l.of != t && !l.at.IsZero() && !l.at.Before(since) {
			return true
		}
	}
	return false
}

// parking moves what a destination refuses out of one lane into parked lanes of it, which are opened when they are first
// needed. Which traffic is moved is known in memory only: after a start it has to fail again. A destination whose order
// counts is different: what is parked stays so until it is delivered, also over a start.
//
// Commit point: the parked lane's, always synced; the cursor of the lane that is moved from passes the frames after it. A
// crash between the two leaves them in both lanes, and they are sent twice, with the same ids.
type parking struct {
	open    func(n int) (*segment.Lane, error)
	health  *health
	ordered func() bool

	opening sync.Mutex // one at a time; taken before mu
	mu      sync.Mutex
	lanes   map[int]*segment.Lane
	parked  map[traffic]parked
	unnamed map[int]bool // found lanes whose totals do not name all that is in them
}

// parked is where traffic goes, and since when.
type parked struct {
	lane  int
	since time.Time
	moves int // that are on their way
}

func newParking(h *health, ordered func() bool, open func(n int) (*segment.Lane, error)) *parking {
	return &parking{open: open, health: h, ordered: ordered, lanes: map[int]*segment.Lane{}, parked: map[traffic]parked{}, unnamed: map[int]bool{}}
}

// found adds a parked lane of an earlier start. Of what is in it only the totals are known, so that where order counts all
// that was ever parked in it belongs behind it, until it is empty.
func (p *parking) found(n int, l *segment.Lane) {
	p.lanes[n] = l
	st := l.Stats()
	if !p.ordered() || st.Pending().Frames == 0 {
		return
	}
	p.unnamed[n] = st.Accepted[segment.OtherTenants].Records.Sum() > 0
	for tenant, a := range st.Accepted {
		for i, signal := range segment.Signals {
			if t := (traffic{tenant, signal}); a.Records[i] > 0 && place(t) == n {
				p.parked[t] = parked{lane: n, since: time.Now()}
			}
		}
	}
}

// place is the parked lane that belongs to t where order counts: one for ever.
func place(t traffic) int {
	sum := crc32.Update(crc32.Checksum([]byte(t.tenant), castagnoli), castagnoli, []byte(t.signal.String()))
	return int(sum%maxParkedLanes) + 1
}

// Move implements segment.Parking.
func (p *parking) Move(ctx context.Context, frames []segment.Frame) error {
	t := traffic{frames[0].Tenant, frames[0].Signal}
	l, err := p.lane(p.assign(t))
	if err == nil {
		err = l.AppendAll(ctx, frames)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if have, ok := p.parked[t]; ok {
		have.moves--
		p.parked[t] = have
	}
	return err
}

// assign returns the parked lane for t, to which a move is now on its way.
func (p *parking) assign(t traffic) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	have, ok := p.parked[t]
	if !ok {
		have = parked{lane: p.pick(t), since: time.Now()}
	}
	have.moves++
	p.parked[t] = have
	return have.lane
}

// pick prefers a parked lane that nothing else uses. p.mu is held.
func (p *parking) pick(t traffic) int {
	if p.ordered() {
		return place(t)
	}
	used := map[int]bool{}
	for _, other := range p.parked {
		used[other.lane] = true
	}
	for n, l := range p.lanes {
		used[n] = used[n] || l.Pending().Frames > 0
	}
	for free := 1; free <= maxParkedLanes; free++ {
		if !used[free] {
			return free
		}
	}
	return place(t)
}

// lane returns a parked lane, opened if need be.
func (p *parking) lane(n int) (*segment.Lane, error) {
	p.opening.Lock()
	defer p.opening.Unlock()
	p.mu.Lock()
	l := p.lanes[n]
	p.mu.Unlock()
	if l != nil {
		return l, nil
	}
	l, err := p.open(n)
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lanes[n] = l
	return l, nil
}

// Holds implements segment.Parking. As long as nothing else is taken, most likely the destination is down: what is moved
// then is an attempt to see more, and the rest stays where it is.
func (p *parking) Holds(tenant string, signal segment.Signal) bool {
	t := traffic{tenant, signal}
	ordered := p.ordered()
	p.mu.Lock()
	defer p.mu.Unlock()
	have, ok := p.parked[t]
	if n := place(t); !ok && ordered && p.unnamed[n] {
		have, ok = parked{lane: n}, true
	}
	switch l := p.lanes[have.lane]; {
	case !ok:
		return false
	case have.moves == 0 && (l == nil || l.Pending().Frames == 0):
		delete(p.parked, t)
		delete(p.unnamed, have.lane)
		return false
	}
	return ordered || p.health.passed(t, have.since)
}

// Delivered implements segment.Parking.
func (p *parking) Delivered(tenant string, signal segment.Signal, steady bool) {
	t := traffic{tenant, signal}
	p.health.took(t, time.Now())
	if !steady || p.ordered() {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.parked[t].moves == 0 {
		delete(p.parked, t) // what comes from now on need not wait behind the backlog
	}
}

// Passed implements segment.Parking.
func (p *parking) Passed(tenant string, signal segment.Signal, since time.Time) bool {
	return p.health.passed(traffic{tenant, signal}, since)
}
