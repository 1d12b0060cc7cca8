package recovery

import (
	"context"
	"errors"
	"fmt"

	"ingest-agent/objstore"
	"ingest-agent/recovery/owner"
	"ingest-agent/segment"
)

// ref names a segment object.
type ref struct {
	key  objstore.SegmentKey
	lane segment.LaneID
}

// begin is the position of its first frame.
func (o *ref) begin() segment.Position {
	return segment.Position{Seq: segment.Seq(o.key.Seq), Entry: segment.Entry(o.key.First)}
}

// end is the position behind its last frame. That the segment is sealed does not show in a key, so it may be spelled lower
// than the position at which its owner sees the same end, never higher.
func (o *ref) end() segment.Position {
	return segment.Position{Seq: segment.Seq(o.key.Seq), Entry: segment.Entry(o.key.Last)}.After()
}

// readRef reads a key of a listing of segments.
func readRef(text string) (ref, error) {
	k, err := objstore.ParseKey(text)
	if err != nil {
		return ref{}, fmt.Errorf("read segment key: %w", err)
	}
	key, ok := k.(objstore.SegmentKey)
	if !ok {
		return ref{}, fmt.Errorf("read segment key %s: %w", text, objstore.ErrForeign)
	}
	lane, err := segment.ParseLaneID(key.Lane)
	if err != nil {
		return ref{}, fmt.Errorf("read segment key %s: %w: %w", text, objstore.ErrForeign, err)
	}
	return ref{key, lane}, nil
}

// eachObject lists the objects of an owner in the order of their keys. Foreign ones are counted, and left where they are.
func eachObject(ctx context.Context, b objstore.Bucket, id string, visit func(ref) error) (foreign int, err error) {
	for p, err := range objstore.Pages(ctx, b, objstore.ListOptions{Prefix: objstore.OwnerPrefix(id)}) {
		if err != nil {
			return foreign, err //nolint:wrapcheck // it says what it did
		}
		for _, info := range p.Objects {
			o, err := readRef(info.Key)
			if errors.Is(err, objstore.ErrForeign) {
				foreign++
				continue
			}
			if err := visit(o); err != nil {
				return foreign, err
			}
		}
	}
	return foreign, nil
}

// done says whether an object may go, as far as its owner's register says: it is exported as a whole, or the owner has signed
// off, so that it has on its disk what is not.
func done(b *owner.Body, o *ref) bool {
	l := b.Lanes[o.lane]
	switch {
	case l == nil:
		return b.SignedOff
	case !l.Exported.Before(o.end()):
		return true
	}
	return b.SignedOff && !l.Owes()
}
