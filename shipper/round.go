package shipper

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"ingest-agent/objstore"
	"ingest-agent/objstore/lease"
	"ingest-agent/recovery/owner"
	"ingest-agent/segment"
)

// round does once what is to be done, and returns when to look again.
func (s *Shipper) round(ctx context.Context) time.Duration {
	now := time.Now()
	s.bad, s.good = nil, false
	again := s.lookInterval()
	pressure := s.o.Pressure()
	stopping := s.stopping() != nil
	lanes := s.looks(now, pressure >= eagerAt || stopping)
	if stopping && !s.urgent {
		s.urge(lanes)
	}
	s.answer()
	objects := s.choose(lanes, now)
	switch {
	case now.Before(s.retryAt):
		return min(again, s.retryAt.Sub(now))
	case !s.ready(ctx, objects):
	case len(objects) > 0:
		s.ship(ctx, objects)
	}
	if s.held() {
		acting, done := s.acting(ctx)
		s.clean(acting)
		s.spill(acting, pressure)
		s.rest(ctx, acting)
		done()
	}
	s.answer()
	s.judge(ctx, lanes)
	if hurry := s.hurry || s.fenced; s.bad == nil && (hurry || len(objects) > 0 && s.anyDue(lanes)) {
		s.hurry = false
		return 0
	}
	return again
}

// urge ends all delays.
func (s *Shipper) urge(lanes []*track) {
	s.urgent, s.retryAt, s.delay = true, time.Time{}, 0
	for _, t := range lanes {
		t.takeAt = time.Time{}
		if t.hand != nil {
			t.hand.retryAt, t.hand.delay = time.Time{}, 0
		}
	}
}

// lookInterval is a little different each time, so that it never meets the timers of the register again and again.
func (s *Shipper) lookInterval() time.Duration {
	d := max(min(s.o.After, s.o.StaleAfter/beatPart)/lookPart, minLook)
	return d - time.Duration(s.o.Jitter()*float64(d)/lookPart)
}

// choose fills the hands: what is there from the last round, and the next objects of the lanes that are due.
func (s *Shipper) choose(lanes []*track, now time.Time) (objects []*object) {
	room, named := s.o.SideBySide, 0
	for _, t := range lanes {
		if t.named {
			named++
		}
		if t.hand != nil {
			room--
			if !now.Before(t.hand.retryAt) {
				objects = append(objects, t.hand)
			}
		}
	}
	for _, t := range lanes {
		if room <= 0 {
			break
		}
		if !s.wants(t) {
			continue
		}
		if now.Before(t.takeAt) {
			continue
		}
		err := errTooManyLanes
		if t.named || named < maxLanes {
			err = s.take(t)
		}
		if err != nil {
			s.o.Log.Warn("lane not shipped; trying again", zap.Stringer("lane", t.lane.ID()), zap.Error(err))
			t.takeAt = now.Add(s.o.RetryMax)
			continue
		}
		if t.hand != nil {
			room--
			if !t.named {
				named++
			}
			objects = append(objects, t.hand)
		}
	}
	return objects
}

func (s *Shipper) anyDue(lanes []*track) bool {
	return slices.ContainsFunc(lanes, s.wants)
}

// wants says whether the next object of a lane is to be taken. The heartbeat looks at the lane too.
func (s *Shipper) wants(t *track) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return t.hand == nil && t.isDue() && !t.gap()
}

// ready brings everything to where objects can be put: earlier ids are handed over, the register is held, and it names their
// lanes. It does as little of that as it can where there are none.
func (s *Shipper) ready(ctx context.Context, objects []*object) bool {
	err := s.prepare(ctx, objects)
	if err != nil {
		s.trouble(err)
	}
	return err == nil
}

func (s *Shipper) prepare(ctx context.Context, objects []*object) error {
	if !s.isSettled() {
		if err := s.Settle(); err != nil {
			return err
		}
	}
	if s.leased() == nil && len(objects) == 0 && !s.fenced && !s.open && !s.mayHandOver() {
		return nil
	}
	if err := s.probe(ctx); err != nil {
		return err
	}
	if handed, err := s.handOver(ctx); err != nil || handed {
		s.hurry = true
		return cmp.Or(err, errNotReady) // what was chosen may be others' by now
	}
	if s.fenced {
		if err := s.signOff(ctx); err != nil {
			return err
		}
		s.hurry = true
		return errNotReady // what was chosen was of the old id
	}
	if l := s.leased(); l != nil && s.act.Err() != nil {
		if err := s.renew(ctx, l); err != nil {
			return err
		}
	}
	if len(objects) == 0 && !s.open {
		return nil
	}
	return s.name(ctx, objects)
}

func (s *Shipper) leased() *lease.Lease {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lease
}

// acting returns the context to act under: it ends with ctx, and when this process may not act any more.
func (s *Shipper) acting(ctx context.Context) (acting context.Context, done func()) {
	acting, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(s.act, cancel)
	return acting, func() {
		stop()
		cancel()
	}
}

// held says whether this process may act under its register.
func (s *Shipper) held() bool { return s.leased() != nil && s.act.Err() == nil && s.lease.Held() }

// ship puts objects side by side, and names those that the bucket has by one commit.
func (s *Shipper) ship(ctx context.Context, objects []*object) {
	ctx, done := s.acting(ctx)
	defer done()
	objects = s.stillOwed(objects)
	var all sync.WaitGroup
	for _, o := range objects {
		all.Go(func() { o.err = s.put(ctx, o) })
	}
	all.Wait() // also where ctx has ended: nothing is on its way behind the loop's back
	put := 0
	s.mu.Lock()
	for _, o := range objects {
		t := o.t
		if o.err != nil {
			o.delay = s.backoff(o.delay)
			o.retryAt = time.Now().Add(o.delay)
			continue
		}
		put++
		t.shipped, t.records, t.next, t.hand = o.ref.end, o.records, o.ref.end, nil
		t.refs = append(t.refs, o.ref)
		s.stats.ShippedObjects++
		s.stats.ShippedBytes += uint64(len(o.data))
		s.turn++
		t.turn = s.turn
	}
	s.mu.Unlock()
	for _, o := range objects {
		s.result(o.err)
	}
	if put == 0 {
		return
	}
	s.result(s.commit(ctx))
}

// stillOwed drops what was exported meanwhile.
func (s *Shipper) stillOwed(objects []*object) []*object {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.DeleteFunc(objects, func(o *object) bool {
		o.t.glance()
		o.t.dropExported()
		return o.t.hand != o
	})
}

// put puts one object. An object that is there already is settled by what it holds.
func (s *Shipper) put(ctx context.Context, o *object) error {
	ctx, cancel := context.WithTimeout(ctx, putFactor*s.o.StaleAfter)
	defer cancel()
	key := o.ref.key.String()
	_, err := s.bucket.Put(ctx, key, bytes.NewReader(o.data), objstore.IfAbsent())
	if !errors.Is(err, objstore.ErrPrecondition) {
		if err != nil {
			return fmt.Errorf("put object: %w", err)
		}
		return nil
	}
	data, err := objstore.ReadAll(ctx, s.bucket, key, segment.MaxObjectBytes)
	if err != nil {
		return fmt.Errorf("settle object that is there already: %w", err)
	}
	if !bytes.Equal(data, o.data) {
		return fmt.Errorf("object %s is there with other bytes: %w", key, objstore.ErrPrecondition)
	}
	return nil
}

// clean deletes the objects that the register covers.
func (s *Shipper) clean(ctx context.Context) {
	body, err := s.body()
	if err != nil {
		s.trouble(err)
		return
	}
	gone := s.covered(body)
	slices.SortFunc(gone, func(a, b objstore.SegmentKey) int { return cmp.Compare(a.String(), b.String()) })
	deleted := s.remove(ctx, gone)
	if len(deleted) == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, t := range s.lanes {
		t.refs = slices.DeleteFunc(t.refs, func(r ref) bool { return deleted[r.key] })
	}
}

// covered returns the objects that may be deleted by the register, and by the archive: it copies what is not on the disk any
// more from the bucket.
func (s *Shipper) covered(body *owner.Body) (gone []objstore.SegmentKey) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.kept = false
	for id, t := range s.lanes {
		l := body.Lanes[id]
		if l == nil {
			continue
		}
		for _, r := range t.refs {
			switch {
			case l.Exported.Before(r.end):
			case s.o.Archived != nil && r.first.Before(t.state.Spilled) && !s.o.Archived(r.key):
				s.kept = true
			default:
				gone = append(gone, r.key)
			}
		}
	}
	return gone
}

// remove deletes objects, some side by side.
func (s *Shipper) remove(ctx context.Context, keys []objstore.SegmentKey) map[objstore.SegmentKey]bool {
	deleted := map[objstore.SegmentKey]bool{}
	for some := range slices.Chunk(keys, s.o.SideBySide) {
		errs := make([]error, len(some))
		var all sync.WaitGroup
		for i, key := range some {
			all.Go(func() { errs[i] = s.bucket.Delete(ctx, key.String()) })
		}
		all.Wait()
		for i, err := range errs {
			if deleted[some[i]] = err == nil; err != nil {
				s.trouble(fmt.Errorf("delete object: %w", err))
			}
		}
		if s.bad != nil {
			break
		}
	}
	return deleted
}

// spill removes from the local disk what the register names, until there is room.
func (s *Shipper) spill(ctx context.Context, pressure float64) {
	if pressure < spillAt || s.weak != nil {
		return
	}
	body, err := s.body()
	if err != nil {
		s.trouble(err)
		return
	}
	for _, id := range body.IDs() {
		l := body.Lanes[id]
		s.mu.Lock()
		t := s.lanes[id]
		owed := t != nil && l.Owes() && t.state.Exported.Before(l.Shipped)
		s.mu.Unlock()
		if !owed {
			continue
		}
		freed, err := t.lane.Spill(ctx, l.Shipped)
		s.mu.Lock()
		s.stats.SpilledBytes += uint64(max(freed, 0))
		s.mu.Unlock()
		if err != nil {
			s.trouble(fmt.Errorf("spill lane %s: %w", id, err))
		}
		if s.o.Pressure() < spillAt {
			return
		}
	}
}

// trouble notes that something failed in this round. It is tried again.
func (s *Shipper) trouble(err error) {
	switch {
	case errors.Is(err, errNotReady), err == nil:
	case errors.Is(err, lease.ErrFenced):
		s.fenced = true
		s.conflict()
	case errors.Is(err, lease.ErrLost), errors.Is(err, owner.ErrState):
		s.look = true
		s.conflict()
		s.bad = errors.Join(s.bad, err)
	default:
		s.bad = errors.Join(s.bad, err)
	}
}

// result notes how a call ended.
func (s *Shipper) result(err error) {
	if err == nil {
		s.good = true
	}
	s.trouble(err)
}

func (s *Shipper) conflict() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stats.Conflicts++
}

// judge ends a round: it says whether the bucket is out of reach, and when to try again.
func (s *Shipper) judge(ctx context.Context, lanes []*track) {
	failed := s.bad != nil && ctx.Err() == nil
	switch {
	case !failed && !s.good && slices.ContainsFunc(lanes, func(t *track) bool { return t.hand != nil }):
		return // nothing was tried
	case !failed:
		s.failed, s.delay, s.retryAt = 0, 0, time.Time{}
	case s.good: // what failed has a time of its own
		s.failed, s.delay = 0, 0
	default:
		s.failed++
		s.delay = s.backoff(s.delay)
		s.retryAt = time.Now().Add(s.delay)
	}
	s.mu.Lock()
	was := s.stats.LastError
	s.stats.LastError = ""
	if failed {
		s.stats.LastError = s.bad.Error()
	}
	before := s.down
	s.down = s.failed >= downAfter
	down := s.down
	s.mu.Unlock()
	switch {
	case down && !before:
		s.o.Log.Error("nothing can be shipped; trying again until it can", zap.Error(s.bad))
	case before && !down:
		s.o.Log.Info("shipping again")
	case failed && was == "":
		s.o.Log.Warn("not shipped; trying again", zap.Error(s.bad))
	}
	if down {
		s.settleWaiters(fmt.Errorf("%w: %w", ErrUnavailable, s.bad))
	}
}

// backoff doubles a delay up to RetryMax, and spreads it.
func (s *Shipper) backoff(last time.Duration) time.Duration {
	most := s.o.RetryMax
	if s.urgent {
		most /= urgentPart
	}
	d := min(most, max(s.o.RetryMax/retryFirstPart, 2*last))
	return d - time.Duration(s.o.Jitter()*float64(d)/4)
}
