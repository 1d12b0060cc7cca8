package segment

import (
	"context"
	"errors"
	"sync"
	"syscall"
	"time"
)

// SpaceOptions bound what the lanes of a data directory may take together.
type SpaceOptions struct {
	MaxBytes     int64              // wal.max_bytes
	MinFreeBytes int64              // wal.min_free_bytes: the volume's free space never goes below it by our writes
	TenantShare  float64            // of MaxBytes, for one tenant while more than one has pending data
	TenantShares map[string]float64 // in place of TenantShare, for some
	FullWait     time.Duration      // how long a request may wait for space
	// MoveReserveBytes of MaxBytes are for moves to parked lanes only. Without them, lanes that are full of what one tenant
	// cannot get rid of would have no room to move it out of the others' way. A few segments: space comes back by those.
	MoveReserveBytes int64
	Free             func() (uint64, error) // free bytes of the volume; nil: not looked at
}

// Space reserves bytes before they are written, so that parallel writers cannot pass a limit together.
//
// Guarantee: the bytes reserved and used never exceed MaxBytes, unless they already did when the process started.
type Space struct {
	mu      sync.Mutex
	o       SpaceOptions
	used    int64            // on disk and reserved
	waiting int64            // of used, reserved and not yet written
	room    int64            // promised to open segments, for what they write without asking
	tenants map[string]int64 // of used, by tenant
	unsure  int              // lanes whose old segments are not all measured yet
	changed chan struct{}    // closed when space comes back
	rate    float64          // bytes per second that came back lately
	rateAt  time.Time
	free    int64 // free bytes of the volume, less what was and is reserved since it was asked
	freeAt  time.Time
	low     bool // the floor was reached at the last look
	refused time.Time
	lanes   []func() // told when space is refused
}

const (
	freeInterval = 100 * time.Millisecond // how often the volume is asked
	rateHalfLife = 5 * time.Second        // how fast the drain rate forgets

	// smallRequestBytes is what must fit for readiness: with less left, real requests are refused already.
	smallRequestBytes = 4 << 10

	minDelay     = time.Second
	maxDelay     = 30 * time.Second
	unknownDelay = 5 * time.Second // nothing has come back lately
)

// NewSpace returns an empty account.
func NewSpace(o SpaceOptions) *Space {
	return &Space{o: o, tenants: map[string]int64{}, changed: make(chan struct{})}
}

// SetOptions changes the bounds. What is used already stays, also above a lower limit.
func (s *Space) SetOptions(o SpaceOptions) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.o = o
	s.wake()
}

// Used returns the bytes used and reserved.
func (s *Space) Used() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.used
}

// Check returns why a small request would be refused now, or nil.
func (s *Space) Check() *RefusedError {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.fits("", min(smallRequestBytes, s.o.MaxBytes-s.o.MoveReserveBytes), false)
}

// reserve takes n bytes for a tenant, waiting for them up to FullWait. A move does not wait: it is tried again.
func (s *Space) reserve(ctx context.Context, tenant string, n int64, move bool) error {
	refused, changed, wait := s.tryReserve(tenant, n, move)
	if refused == nil {
		return nil
	}
	if move || wait <= 0 || refused.After == 0 {
		return refused
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	for {
		select {
		case <-changed:
		case <-timer.C:
			return refused
		case <-ctx.Done():
			return ctx.Err()
		}
		if refused, changed, _ = s.tryReserve(tenant, n, move); refused == nil {
			return nil
		}
	}
}

// tryReserve takes n bytes or says why not, and what to wait for.
func (s *Space) tryReserve(tenant string, n int64, move bool) (refused *RefusedError, changed <-chan struct{}, wait time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if refused = s.fits(tenant, n, move); refused == nil {
		s.add(tenant, n)
		s.waiting += n
		s.free -= n
	} else {
		s.press(refused)
	}
	return refused, s.changed, s.o.FullWait
}

// press tells the lanes that something was refused.
func (s *Space) press(refused *RefusedError) {
	if refused.After == 0 {
		return
	}
	s.refused = time.Now()
	for _, wake := range s.lanes {
		wake()
	}
}

// hold promises n bytes to a segment, or says why they do not fit.
func (s *Space) hold(n int64, move bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if refused := s.fits("", n, move); refused != nil {
		s.press(refused)
		return refused
	}
	s.room += n
	return nil
}

// addRoom changes what is promised by n bytes, which may be negative, without asking.
func (s *Space) addRoom(n int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.room += n; n < 0 {
		s.wake()
	}
}

// fits says why n bytes do not fit. Those of a move are the tenant's already, and may use what is kept for moves.
func (s *Space) fits(tenant string, n int64, move bool) *RefusedError {
	limit := s.o.MaxBytes
	if !move {
		limit -= s.o.MoveReserveBytes
	}
	if n > limit {
		return &RefusedError{Reason: RefusedTooLarge}
	}
	used := s.used + s.room
	if s.unsure > 0 { // the estimate may be low; err on the side of the limit
		used += used / 2
	}
	if used+n > limit {
		return &RefusedError{Reason: RefusedFull, After: s.delay(used + n - limit)}
	}
	part, ok := s.o.TenantShares[tenant]
	if !ok {
		part = s.o.TenantShare
	}
	share := int64(float64(s.o.MaxBytes) * part)
	if has := s.tenants[tenant]; !move && tenant != "" && part > 0 && has+n > share && s.others(has) {
		return &RefusedError{Reason: RefusedTenantShare, After: s.delay(has + n - share)}
	}
	if s.o.Free != nil {
		s.look()
		if s.low = s.free-s.room-n < s.o.MinFreeBytes; s.low {
			return &RefusedError{Reason: RefusedDisk, After: s.delay(n)}
		}
	}
	return nil
}

// others reports whether any other tenant has data.
func (s *Space) others(has int64) bool {
	n := len(s.tenants)
	if has > 0 {
		n--
	}
	if s.tenants[""] > 0 { // what no tenant is charged for
		n--
	}
	return n > 0
}

// look asks the volume for its free space, at most every freeInterval.
func (s *Space) look() {
	if now := time.Now(); now.Sub(s.freeAt) >= freeInterval {
		if free, err := s.o.Free(); err == nil {
			s.free = int64(min(free, 1<<62)) - s.waiting
		}
		s.freeAt = now
	}
}

// delay is the time in which n bytes come back at the present drain rate.
func (s *Space) delay(n int64) time.Duration {
	rate := s.decayed(time.Now())
	if rate < 1 {
		return unknownDelay
	}
	d := time.Duration(float64(n) / rate * float64(time.Second))
	return min(max(d, minDelay), maxDelay)
}

// decayed is the drain rate, halved for each half life without anything coming back.
func (s *Space) decayed(now time.Time) float64 {
	return s.rate / float64(uint64(1)<<min(uint64(now.Sub(s.rateAt)/rateHalfLife), 62))
}

// add charges n bytes, which may be negative, without asking.
func (s *Space) add(tenant string, n int64) {
	s.used += n
	if s.tenants[tenant] += n; s.tenants[tenant] <= 0 {
		delete(s.tenants, tenant)
	}
}

// charge books bytes that are on disk in any case: what a start finds, headers, footers, corrections.
func (s *Space) charge(tenant string, n int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.add(tenant, n)
	if n < 0 {
		s.wake()
	}
}

// settle ends a reservation, of which so much was written.
func (s *Space) settle(tenant string, reserved, written int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waiting -= reserved
	s.add(tenant, written-reserved)
	if written < reserved {
		s.wake()
	}
}

// release gives back the bytes of a segment that was removed.
func (s *Space) release(tenants map[string]int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var n int64
	for t, b := range tenants {
		s.add(t, -b)
		n += b
	}
	now := time.Now()
	rate := s.decayed(now)
	if dt := now.Sub(s.rateAt).Seconds(); dt > 0 {
		w := min(dt/rateHalfLife.Seconds(), 1)
		rate = rate*(1-w) + float64(n)/max(dt, 0.1)*w
	}
	s.rate, s.rateAt = rate, now
	s.freeAt = time.Time{} // the volume has more now
	s.wake()
}

// measuring says that a lane's old segments are being measured; done ends it.
func (s *Space) measuring() (done func()) {
	s.mu.Lock()
	s.unsure++
	s.mu.Unlock()
	return sync.OnceFunc(func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.unsure--
		s.wake()
	})
}

func (s *Space) wake() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// WhenRefused has somebody told when space is refused, so that they give back what they can. wake must not block.
func (s *Space) WhenRefused(wake func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lanes = append(s.lanes, wake)
}

// pressedFor is how long a refusal counts as pressure.
const pressedFor = 5 * time.Second

// pressed reports whether requests are being refused or would soon be.
func (s *Space) pressed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.used > s.o.MaxBytes-s.o.MaxBytes/4 || s.low || !s.refused.IsZero() && time.Since(s.refused) < pressedFor
}

// Pressure is the part of MaxBytes that is taken, and at least 1 while something was refused within the last seconds.
func (s *Space) Pressure() float64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := float64(s.used+s.room) / float64(max(s.o.MaxBytes-s.o.MoveReserveBytes, 1))
	if s.low || !s.refused.IsZero() && time.Since(s.refused) < pressedFor {
		p = max(p, 1)
	}
	return p
}

// refusal is what a failed write means to a client.
func refusal(err error) *RefusedError {
	var r *RefusedError
	switch {
	case errors.As(err, &r):
		return r
	case noSpace(err):
		return &RefusedError{Reason: RefusedDisk, After: unknownDelay, Err: err}
	}
	return &RefusedError{Reason: RefusedSync, After: unknownDelay, Err: err}
}

// noSpace reports whether an error says that the volume or a quota is full.
func noSpace(err error) bool { return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) }
