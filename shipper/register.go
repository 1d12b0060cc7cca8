package shipper

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"go.uber.org/zap"

	"ingest-agent/objstore"
	"ingest-agent/objstore/lease"
	"ingest-agent/recovery/owner"
	"ingest-agent/segment"
)

// maxLanes bounds the lanes that a register names, so that it stays under lease.MaxBodyBytes. What lies beyond is not shipped.
const maxLanes = 512

// errTooManyLanes is why a lane is not shipped.
var errTooManyLanes = errors.New("register names as many lanes as it can")

// progress is what the register is to say of the lanes that it names. It looks at the lanes itself: a round may take long.
func (s *Shipper) progress() map[segment.LaneID]owner.Progress {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := map[segment.LaneID]owner.Progress{}
	for id, t := range s.lanes {
		if t.named {
			t.glance()
			p[id] = t.progress()
		}
	}
	return p
}

// edit applies an edit of the owner's to where the lanes stand when it is applied.
func (s *Shipper) edit(of func(map[segment.LaneID]owner.Progress) lease.Edit) lease.Edit {
	return func(r *lease.Record) error { return of(s.progress())(r) }
}

// commit names what the bucket has confirmed, and says what is exported.
func (s *Shipper) commit(ctx context.Context) error {
	return s.lease.Commit(ctx, s.edit(owner.Ship)) //nolint:wrapcheck // it says what it did
}

// name makes sure that the register names the lanes of objects, and is held: first the note, then the register.
func (s *Shipper) name(ctx context.Context, objects []*object) error {
	var add []segment.LaneID
	s.mu.Lock()
	for _, o := range objects {
		if !o.t.named {
			add = append(add, o.t.lane.ID())
		}
	}
	s.mu.Unlock()
	if len(add) > 0 {
		if err := s.noteLanes(add); err != nil {
			return err
		}
	}
	switch {
	case s.leased() == nil:
		return s.acquire(ctx)
	case len(add) > 0 || s.holed(objects):
		acting, done := s.acting(ctx)
		defer done()
		return s.commit(acting)
	}
	return nil
}

// holed says whether the register has to be told first that the frames before an object are exported. Otherwise who finds the
// object, and us dead, would take them for lost.
func (s *Shipper) holed(objects []*object) bool {
	body, err := s.body()
	return err != nil || slices.ContainsFunc(objects, func(o *object) bool {
		l := body.Lanes[o.t.lane.ID()]
		return o.hole && l != nil && l.Exported.Before(o.from)
	})
}

// noteLanes says durably that lanes may have been shipped under the present id, and counts them as named.
func (s *Shipper) noteLanes(add []segment.LaneID) error {
	return s.changeNote(func(d *noteData) {
		d.Owner = s.id
		for _, id := range add {
			if !slices.Contains(d.Lanes, id) {
				d.Lanes = append(d.Lanes, id)
			}
		}
		slices.SortFunc(d.Lanes, segment.LaneID.Compare)
	}, func(*noteData) {
		for _, id := range add {
			s.lanes[id].named = true
		}
	})
}

// acquire begins the register, or takes it up again from idle. A register of ours that another has taken over is for signOff.
func (s *Shipper) acquire(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, s.o.StaleAfter/callPart)
	defer cancel()
	if s.look {
		seen, err := s.register.Observe(ctx, s.seen)
		if err != nil {
			return err //nolint:wrapcheck // it says what it did
		}
		s.seen, s.look, s.good = seen, false, true
	}
	edit := s.edit(owner.Ship)
	switch {
	case s.seen.Version != "" && s.seen.State != owner.Buried:
		s.begun = true
		if s.seen.State == owner.Adopted || s.seen.State == owner.Drained {
			s.fenced = true
			return errNotReady
		}
	case s.begun: // it was there, and has gone: it is never created again
		s.fenced = true
		return errNotReady
	default:
		edit = s.edit(owner.Begin)
	}
	l, err := s.register.Acquire(ctx, s.seen, edit)
	if err != nil {
		s.look = true
		s.open = !errors.Is(err, lease.ErrLost) && (s.open || errors.Is(err, objstore.ErrUnknown)) // lost: whatever it was, it is over
		return err                                                                                 //nolint:wrapcheck // it says what it did
	}
	s.begun, s.open, s.good, s.restAt = true, false, true, time.Time{}
	s.mu.Lock()
	s.lease, s.stats.State = l, owner.Live
	s.mu.Unlock()
	s.keep(l)
	return nil
}

// keep starts the heartbeat. Each beat says what is exported.
func (s *Shipper) keep(l *lease.Lease) {
	s.act, s.endKeep = l.Keep(context.Background(), s.edit(owner.Ship)) // ended by unkeep, whatever becomes of the loop's
}

// unkeep ends the heartbeat, and waits for it.
func (s *Shipper) unkeep() {
	if s.endKeep != nil {
		s.endKeep()
		s.endKeep = nil
	}
}

// renew gets the lease back after it has lapsed.
func (s *Shipper) renew(ctx context.Context, l *lease.Lease) error {
	s.unkeep()
	ctx, cancel := context.WithTimeout(ctx, s.o.StaleAfter/callPart)
	defer cancel()
	if err := l.Renew(ctx, s.edit(owner.Ship)); err != nil {
		return err //nolint:wrapcheck // it says what it did
	}
	s.good = true
	s.keep(l)
	return nil
}

// free takes note that the register is not held any more.
func (s *Shipper) free(state string) {
	s.unkeep()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lease, s.stats.State = nil, state
	for _, t := range s.lanes {
		t.shipped, t.records = segment.Position{}, segment.Counts{}
	}
}

// owesNothing says whether the register says that nothing is owed, and nothing is about to be shipped.
func (s *Shipper) owesNothing() bool {
	body, err := s.body()
	if err != nil || body.Owes() {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, t := range s.lanes {
		if t.hand != nil || t.isDue() || len(t.refs) > 0 || t.done.to.Before(t.shipped) {
			return false
		}
	}
	return len(s.waiters) == 0
}

// rest lets the register go idle when nothing has been owed for the time between two beats.
func (s *Shipper) rest(ctx, acting context.Context) {
	if !s.owesNothing() {
		s.restAt = time.Time{}
		return
	}
	now := time.Now()
	if s.restAt.IsZero() {
		s.restAt = now
	}
	if now.Sub(s.restAt) < s.o.StaleAfter/beatPart || s.stopping() != nil {
		return
	}
	empty, err := s.sweep(acting)
	if s.result(err); err != nil || !empty {
		return
	}
	s.unkeep()
	ctx, cancel := context.WithTimeout(ctx, s.o.StaleAfter/callPart)
	defer cancel()
	s.result(s.release(ctx, owner.Rest, owner.Idle))
}

// release gives the register up in a state. After an error the lease has lapsed, and is renewed by the next round.
func (s *Shipper) release(ctx context.Context, to func(map[segment.LaneID]owner.Progress) lease.Edit, state string) error {
	l := s.lease
	if err := l.Release(ctx, s.edit(to)); err != nil {
		return err //nolint:wrapcheck // it says what it did
	}
	s.seen, s.look = l.Last(), false
	s.free(state)
	return nil
}

// sweep lists what is under the present id, and deletes what is exported: an object whose outcome was never known, say. It
// says whether nothing was there.
func (s *Shipper) sweep(ctx context.Context) (empty bool, err error) {
	body, err := s.body()
	if err != nil {
		return false, err
	}
	keys, err := s.list(ctx, s.id)
	if err != nil {
		return false, err
	}
	late := slices.DeleteFunc(slices.Clone(keys), func(k objstore.SegmentKey) bool {
		lane, err := segment.ParseLaneID(k.Lane)
		end := segment.Position{Seq: segment.Seq(k.Seq), Entry: segment.Entry(k.Last) + 1}
		return err != nil || body.Lanes[lane] == nil || body.Lanes[lane].Exported.Before(end)
	})
	s.remove(ctx, late)
	return len(keys) == 0, nil
}

// list returns the objects of an id.
func (s *Shipper) list(ctx context.Context, id segment.OwnerID) (keys []objstore.SegmentKey, err error) {
	for page, err := range objstore.Pages(ctx, s.bucket, objstore.ListOptions{Prefix: objstore.OwnerPrefix(id.String())}) {
		if err != nil {
			return nil, err //nolint:wrapcheck // it says what it did
		}
		for _, info := range page.Objects {
			key, err := objstore.ParseKey(info.Key)
			k, ours := key.(objstore.SegmentKey)
			if err != nil || !ours {
				s.o.Log.Warn("foreign object among the segments; it is left", zap.String("key", info.Key))
				continue
			}
			keys = append(keys, k)
		}
	}
	return keys, nil
}

// shippedAll says whether a stop has nothing left to ship.
func (s *Shipper) shippedAll() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, t := range s.lanes {
		t.glance()
		t.dropExported()
		if t.hand != nil || t.owes() {
			return false
		}
	}
	return !s.fenced && !s.open
}

// finish ends the register's life with this process: retired if something is owed, idle if not.
func (s *Shipper) finish(ctx context.Context) {
	left := !s.shippedAll()
	if l := s.leased(); l != nil {
		if err := s.retire(ctx, l); err != nil {
			s.stopped = fmt.Errorf("stop shipping: %w", err)
			s.o.Log.Warn("register not retired; others find it when it has been silent", zap.Error(err))
		}
	}
	if left {
		s.stopped = errors.Join(s.stopped, errors.New("stop shipping: not all was shipped in time; the next start on this disk finds the rest"))
	}
}

func (s *Shipper) retire(ctx context.Context, l *lease.Lease) error {
	if s.held() && s.rested(ctx, l) {
		return nil
	}
	s.unkeep()
	err := s.release(ctx, owner.Retire, owner.Retired)
	if errors.Is(err, lease.ErrFenced) { // adopted meanwhile: the next start signs off
		s.free("")
		return nil
	}
	return err
}

// rested lets the register rest, if all is exported and nothing is left in the bucket.
func (s *Shipper) rested(ctx context.Context, l *lease.Lease) bool {
	last := l.Last()
	if owner.Rest(s.progress())(&last.Record) != nil {
		return false
	}
	acting, done := s.acting(ctx)
	defer done()
	if s.commit(acting) != nil {
		return false
	}
	s.bad = nil
	if s.cleanAll(acting); s.bad != nil || s.kept {
		return false
	}
	empty, err := s.sweep(acting)
	if err == nil && !empty { // it was late, and is deleted now
		empty, err = s.sweep(acting)
	}
	if err != nil || !empty {
		return false
	}
	s.unkeep()
	return s.release(ctx, owner.Rest, owner.Idle) == nil
}

// cleanAll deletes what the register covers, and waits for the archive if that has to copy it first, but not for long.
func (s *Shipper) cleanAll(acting context.Context) {
	timer := time.NewTimer(archiveWait)
	defer timer.Stop()
	for s.clean(acting); s.kept && s.bad == nil; s.clean(acting) {
		select {
		case <-s.wake:
		case <-timer.C:
			return
		case <-acting.Done():
			return
		}
	}
}
