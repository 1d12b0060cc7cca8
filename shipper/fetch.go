package shipper

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"go.uber.org/zap"

	"ingest-agent/objstore"
	"ingest-agent/objstore/lease"
	"ingest-agent/recovery/owner"
	"ingest-agent/segment"
)

var _ segment.Remote = (*Shipper)(nil)

// Fetch reads back what this process has spilled, from its own objects. It fails while earlier ids of this disk, which may
// have the object, are not handed over, and while this process may not act under its register; where the bucket fails; and
// where an object has gone since another node has taken over. An object of ours that is gone is reported, and passed.
func (s *Shipper) Fetch(ctx context.Context, lane segment.LaneID, pos, before segment.Position) (*segment.Stored, error) {
	for {
		r, l, err := s.find(lane, pos, before)
		if r == nil || err != nil {
			return nil, err
		}
		data, err := objstore.ReadAll(ctx, s.o.Bucket, r.key.String(), segment.MaxObjectBytes)
		if err == nil {
			return &segment.Stored{Seq: segment.Seq(r.key.Seq), Last: segment.Entry(r.key.Last), Data: data}, nil
		}
		if !errors.Is(err, objstore.ErrNotFound) {
			return nil, err //nolint:wrapcheck // it says what it did
		}
		if err := s.stillOurs(ctx, l); err != nil {
			return nil, err
		}
		s.o.Log.Error("object is missing in the bucket; its frames are lost", zap.String("key", r.key.String()), zap.Stringer("lane", lane),
			zap.Stringer("from", r.first), zap.Stringer("to", r.last))
		s.forget(lane, r)
	}
}

// find returns the object that holds pos, or the first behind it that begins before the other position; nil: there is none.
func (s *Shipper) find(lane segment.LaneID, pos, before segment.Position) (*ref, *lease.Lease, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.earlier {
		if end, held := e.Ends[lane]; held && pos.Before(end) || e.Ends == nil {
			return nil, nil, fmt.Errorf("read back spilled frames: %w: earlier owner %s is not handed over", errNotReady, e.Owner)
		}
	}
	t := s.lanes[lane]
	switch {
	case t == nil || !s.settled:
		return nil, nil, fmt.Errorf("read back spilled frames: %w: the lane is not known", errNotReady)
	case s.ended:
		return nil, nil, fmt.Errorf("read back spilled frames: %w: stopped", errNotReady)
	case pos.Before(t.lane.State().Skip):
		return nil, nil, fmt.Errorf("read back spilled frames: %w: they are another's", errNotReady)
	case len(t.refs) == 0:
		return nil, nil, nil
	case s.lease == nil || !s.lease.Held():
		return nil, nil, fmt.Errorf("read back spilled frames: %w: %w", errNotReady, lease.ErrLapsed)
	}
	for i := range t.refs {
		r := t.refs[i]
		if !r.last.Before(pos) && r.first.Before(before) {
			return &r, s.lease, nil
		}
	}
	return nil, nil, nil
}

// stillOurs asks the register whether another has taken over, and then has delivered and deleted what is missing.
func (s *Shipper) stillOurs(ctx context.Context, l *lease.Lease) error {
	s.mu.Lock()
	id := s.stats.Owner
	s.mu.Unlock()
	seen, err := s.registerOf(id).Observe(ctx, lease.Seen{})
	if err != nil {
		return err //nolint:wrapcheck // it says what it did
	}
	if seen.State != owner.Live || seen.Epoch != l.Epoch() {
		return fmt.Errorf("read back spilled frames: %w: register is %s", errNotReady, &seen)
	}
	return nil
}

// forget drops an object that is not there any more.
func (s *Shipper) forget(lane segment.LaneID, gone *ref) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.lanes[lane]
	t.refs = slices.DeleteFunc(t.refs, func(r ref) bool { return r.key == gone.key })
	s.stats.Missing++
}
