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
}

// parked is where traffic goes, and since when.
type parked struct {
	lane  int
	since time.Time
}

func newParking(h *health, ordered func() bool, open func(n int) (*segment.Lane, error)) *parking {
	return &parking{open: open, health: h, ordered: ordered, lanes: map[int]*segment.Lane{}, parked: map[traffic]parked{}}
}

// found adds a parked lane of an earlier start. Of what is in it only the totals are known, so that where order counts all
// that was ever parked in it belongs behind it, until it is empty.
func (p *parking) found(n int, l *segment.Lane) {
	p.lanes[n] = l
	st := l.Stats()
	if !p.ordered() || st.Pending().Frames == 0 {
		return
	}
	for tenant, a := range st.Accepted {
		for i, signal := range segment.Signals {
			if t := (traffic{tenant, signal}); a.Records[i] > 0 && place(t) == n {
				p.parked[t] = parked{n, time.Now()}
			}
		}
	}
}

// place is the parked lane that belongs to t where order counts: one for ever.
func place(t traffic) int {
	sum := crc32.Update(crc32.Checksum([]byte(t.tenant), castagnoli), castagnoli, []byte(t.signal.String()))
	return int(sum%maxParkedLanes) + 1
}

// from is the parking for the drain of one lane: 0 is the lane itself, others are its parked ones.
func (p *parking) from(n int) segment.Parking { return parkingFrom{p, n} }

type parkingFrom struct {
	*parking
	n int
}

// Move implements segment.Parking.
func (p parkingFrom) Move(ctx context.Context, frames []segment.Frame) error {
	l, err := p.lane(p.assign(traffic{frames[0].Tenant, frames[0].Signal}, p.n))
	if err != nil {
		return err
	}
	return l.AppendAll(ctx, frames)
}

// assign returns the parked lane for t, another one than that it comes from.
func (p *parking) assign(t traffic, from int) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	have, ok := p.parked[t]
	if !ok || have.lane == from {
		have = parked{p.pick(t, from), time.Now()}
		p.parked[t] = have
	}
	return have.lane
}

// pick prefers a parked lane that nothing else uses. p.mu is held.
func (p *parking) pick(t traffic, from int) int {
	n := place(t)
	if p.ordered() {
		return n
	}
	used := map[int]bool{from: true}
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
	if n == from {
		n = n%maxParkedLanes + 1
	}
	return n
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
func (p parkingFrom) Holds(tenant string, signal segment.Signal) bool {
	t := traffic{tenant, signal}
	p.mu.Lock()
	defer p.mu.Unlock()
	have, ok := p.parked[t]
	if !ok || have.lane == p.n {
		return false
	}
	if l := p.lanes[have.lane]; l == nil || l.Pending().Frames == 0 {
		delete(p.parked, t)
		return false
	}
	return p.ordered() || p.health.passed(t, have.since)
}

// Delivered implements segment.Parking.
func (p parkingFrom) Delivered(tenant string, signal segment.Signal, steady bool) {
	t := traffic{tenant, signal}
	p.health.took(t, time.Now())
	if !steady || p.ordered() {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.parked, t) // what comes from now on need not wait behind the backlog
}

// Passed implements segment.Parking.
func (p parkingFrom) Passed(tenant string, signal segment.Signal, since time.Time) bool {
	return p.health.passed(traffic{tenant, signal}, since)
}
