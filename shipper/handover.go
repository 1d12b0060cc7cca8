package shipper

import (
	"context"
	"fmt"
	"slices"

	"go.uber.org/zap"

	"ingest-agent/objstore/lease"
	"ingest-agent/recovery/owner"
	"ingest-agent/segment"
)

func (s *Shipper) isSettled() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.settled
}

// mayHandOver says whether an earlier id is to be handed over now. Where nobody can adopt, that is when this disk has
// delivered all that the id held.
func (s *Shipper) mayHandOver() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.weak == nil {
		return len(s.earlier) > 0
	}
	return slices.ContainsFunc(s.earlier, s.delivered)
}

// delivered says whether the disk has exported all that an earlier id held. s.mu is held.
func (s *Shipper) delivered(e earlierID) bool {
	for id, end := range e.Ends {
		t := s.lanes[id]
		if t == nil {
			return false
		}
		if st := t.lane.State(); st.Saved.Before(end) && st.Saved.Before(st.Tail) {
			return false
		}
	}
	return true
}

// probe finds out what the bucket does with preconditions.
func (s *Shipper) probe(ctx context.Context) error {
	if s.probed || s.o.Probe == nil {
		return nil
	}
	r, err := s.o.Probe(ctx)
	if err != nil {
		return err
	}
	s.probed, s.good = true, true
	if err := r.Require("taking over from other nodes"); err != nil {
		s.o.Log.Warn("the bucket does not honour preconditions; what is shipped there is a copy that no other node takes over", zap.String("found", r.Found))
		s.bucket = unconditional{s.o.Bucket}
		s.register = s.registerOf(s.id)
		s.mu.Lock()
		s.weak = err
		s.mu.Unlock()
		s.openDrains()
	}
	return nil
}

// openDrains lets the drains of held lanes go on.
func (s *Shipper) openDrains() {
	select {
	case <-s.handed:
	default:
		close(s.handed)
	}
}

// handOver gives up what earlier processes of this disk have shipped: it is drained from the bucket, by whoever adopts it.
func (s *Shipper) handOver(ctx context.Context) (handed bool, err error) {
	for _, e := range slices.Clone(s.earlier) { // only the loop changes it now
		s.mu.Lock()
		wait := s.weak != nil && !s.delivered(e)
		s.mu.Unlock()
		if wait {
			continue
		}
		taken, err := s.handOverOne(ctx, e)
		if err != nil {
			return handed, fmt.Errorf("hand over earlier owner %s: %w", e.Owner, err)
		}
		if err := s.noteTaken(taken, func(d *noteData) {
			d.Earlier = slices.DeleteFunc(d.Earlier, func(o earlierID) bool { return o.Owner == e.Owner })
		}); err != nil {
			return handed, err
		}
		s.good, handed = true, true
		s.o.Log.Info("what an earlier process of this data directory has shipped is handed over", zap.Stringer("owner", e.Owner))
	}
	s.mu.Lock()
	left := len(s.earlier)
	s.mu.Unlock()
	if left == 0 {
		s.openDrains()
	}
	return handed, nil
}

// handOverOne returns up to where the frames of each lane are others' duty from now on.
func (s *Shipper) handOverOne(ctx context.Context, e earlierID) (map[segment.LaneID]segment.Position, error) {
	ctx, cancel := context.WithTimeout(ctx, s.o.StaleAfter/callPart)
	defer cancel()
	r := s.registerOf(e.Owner)
	seen, err := r.Observe(ctx, lease.Seen{})
	if err != nil {
		return nil, err //nolint:wrapcheck // it says what it did
	}
	body, err := s.giveUp(ctx, r, seen, s.exportedOf(e))
	if err != nil {
		return nil, err
	}
	taken := s.taken(body)
	for id, to := range taken {
		if end := e.Ends[id]; end.Before(to) { // what lies behind it was appended by a later process; zero: it held nothing
			taken[id] = end
		}
	}
	if s.weak != nil {
		s.bad = nil
		keys, err := s.list(ctx, e.Owner)
		if err != nil {
			return nil, err
		}
		s.remove(ctx, keys)
		return nil, s.bad
	}
	return taken, nil
}

// taken is up to where the frames of each lane are others' duty, by the body of a register that was given up. What was spilled
// was named by a register, and is drained from the bucket by whoever adopts that, or was before it was buried.
func (s *Shipper) taken(body *owner.Body) map[segment.LaneID]segment.Position {
	taken := map[segment.LaneID]segment.Position{}
	for id, l := range body.Lanes {
		taken[id] = l.End()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, t := range s.lanes {
		taken[id] = latest(taken[id], t.lane.State().Spilled)
	}
	return taken
}

// giveUp makes a register one that its owner has signed off, and returns what it says then. One that is not there, or not any
// more, says nothing.
func (s *Shipper) giveUp(ctx context.Context, r *lease.Register, seen lease.Seen, exported map[segment.LaneID]owner.Progress) (*owner.Body, error) {
	if seen.Version == "" || seen.State == owner.Buried {
		return &owner.Body{}, nil
	}
	body, err := owner.Read(&seen.Record)
	if err != nil {
		return nil, err //nolint:wrapcheck // it says what it did
	}
	switch gone := seen.State == owner.Adopted || seen.State == owner.Drained; {
	case gone && body.SignedOff:
		return body, nil
	case gone:
		seen, err = r.Change(ctx, seen, lease.Amend, owner.SignOff())
	default:
		seen, err = r.Change(ctx, seen, lease.Fence, owner.HandOver(exported))
	}
	if err != nil {
		return nil, err //nolint:wrapcheck // it says what it did
	}
	return owner.Read(&seen.Record) //nolint:wrapcheck // it says what it did
}

// exportedOf is how far this disk has exported the frames of an earlier id, for the lanes of which that can be told: the
// cursor must not lie behind the last frame that the disk held, or what others appended and shipped under the id since this
// disk was copied would count as exported. It does not where another frame of the id follows.
func (s *Shipper) exportedOf(e earlierID) map[segment.LaneID]owner.Progress {
	exported := map[segment.LaneID]owner.Progress{}
	for id, end := range e.Ends {
		s.mu.Lock()
		t := s.lanes[id]
		s.mu.Unlock()
		if t == nil {
			continue
		}
		st := t.lane.State()
		if s.weak != nil { // nobody else has appended to it, and all is delivered
			exported[id] = owner.Progress{Exported: end, Passed: st.Out.Records}
			continue
		}
		b, err := t.lane.Read(st.Exported, 1)
		if err == nil && b.Frames[0].Position.Before(end) {
			exported[id] = owner.Progress{Exported: st.Exported, Passed: st.Out.Records}
		}
	}
	return exported
}

// noteTaken says durably up to where frames are others' duty, and then makes the drains skip them.
func (s *Shipper) noteTaken(taken map[segment.LaneID]segment.Position, change func(*noteData)) error {
	return s.changeNote(func(d *noteData) {
		change(d)
		for id, to := range taken {
			d.Skip[id] = latest(d.Skip[id], to)
		}
	}, func(d *noteData) {
		s.earlier, s.skip = d.Earlier, d.Skip
		for id, to := range taken {
			if t := s.lanes[id]; t != nil {
				t.lane.Skip(to)
				t.glance()
				t.hand = nil // it was chosen before, and nothing of it was put under the present id
			}
		}
	})
}

// changeNote changes the note durably, and then takes what it says over. done is called with s.mu held.
func (s *Shipper) changeNote(change, done func(*noteData)) error {
	s.noteMu.Lock()
	defer s.noteMu.Unlock()
	d := s.note.data.clone()
	change(&d)
	s.mu.Lock()
	s.prune(&d)
	s.mu.Unlock()
	if err := s.note.replace(d); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	done(&d)
	return nil
}

// signOff is for a process whose id is another's by now, or is gone: what was taken is the adopters', the rest is shipped
// under a new id.
func (s *Shipper) signOff(ctx context.Context) error {
	s.unkeep()
	ctx, cancel := context.WithTimeout(ctx, s.o.StaleAfter/callPart)
	defer cancel()
	seen, err := s.register.Observe(ctx, lease.Seen{})
	if err != nil {
		return err //nolint:wrapcheck // it says what it did
	}
	if seen.Version != "" && (seen.State == owner.Live || seen.State == owner.Idle) {
		// Nobody has it: a release was done without our hearing of it. It may be taken up again.
		s.seen, s.look, s.fenced = seen, false, false
		s.free(seen.State)
		return nil
	}
	body, err := s.giveUp(ctx, s.register, seen, nil)
	if err != nil {
		return err
	}
	id, err := segment.ParseOwnerID(s.o.NewID())
	if err != nil {
		return fmt.Errorf("make new shipping id: %w", err)
	}
	if err := s.noteTaken(s.taken(body), func(d *noteData) { d.Owner, d.Lanes = id, nil }); err != nil {
		return err
	}
	s.o.Log.Warn("another node has taken over what was shipped; going on under a new id",
		zap.Stringer("old", s.id), zap.Stringer("new", id), zap.String("state", seen.State))
	s.fenced = false
	s.free("")
	s.mu.Lock()
	for _, t := range s.lanes {
		t.named, t.hand, t.refs, t.next = false, nil, nil, segment.Position{}
	}
	s.stats.Fenced++
	s.mu.Unlock()
	s.use(id)
	return nil
}
