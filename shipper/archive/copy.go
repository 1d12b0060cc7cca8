package archive

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"ingest-agent/objstore"
	"ingest-agent/segment"
)

// copyBatch puts frames into the archive, in as many objects as their times need. It may be repeated: the same frames make the
// same objects.
func (a *Archiver) copyBatch(ctx context.Context, owner, lane string, b *segment.Batch) error {
	for from := 0; from < len(b.Frames); {
		hour := b.Frames[from].Received.UTC().Truncate(time.Hour)
		to := from + a.span(b.Frames[from:])
		part := b.Part(from, to)
		data, err := segment.EncodeRange(part)
		if err != nil {
			return fmt.Errorf("encode archive object of lane %s: %w", lane, err)
		}
		key := objstore.ArchiveKey{Hour: hour, SegmentKey: objstore.SegmentKey{
			Owner: owner, Lane: lane, Seq: uint64(b.Header.Seq), First: uint32(part.First()), Last: uint32(part.Last()),
		}}
		if err := a.put(ctx, key.String(), data); err != nil {
			return err
		}
		from = to
	}
	return nil
}

// span is how many frames go into one object: who looks for a time finds them by the hours that begin at most SegmentAge
// before it. Frames are in the order in which they were appended, which is nearly that of their times.
func (a *Archiver) span(frames []segment.Frame) int {
	first := frames[0].Received
	hour, end := first.Truncate(time.Hour), first.Add(a.o.SegmentAge)
	for i := range frames {
		if at := frames[i].Received; at.Before(hour) || at.After(end) {
			return i
		}
	}
	return len(frames)
}

// errFull is why nothing is put.
var errFull = errors.New("put archive object: the volume has no room beside wal.max_bytes and wal.min_free_bytes")

// put puts an object. One that is there has the same frames: it is of an earlier try.
func (a *Archiver) put(ctx context.Context, key string, data []byte) error {
	if !a.o.Spare() {
		return errFull
	}
	weak, err := a.isWeak(ctx)
	if err != nil {
		return err
	}
	condition := objstore.IfAbsent()
	if weak {
		condition = objstore.Condition{}
	}
	_, err = a.o.Bucket.Put(ctx, key, bytes.NewReader(data), condition)
	if errors.Is(err, objstore.ErrPrecondition) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("put archive object: %w", err)
	}
	a.update(func(s *Stats) {
		s.ArchivedObjects++
		s.ArchivedBytes += uint64(len(data))
	})
	return nil
}

// isWeak says whether the bucket does not honour preconditions.
func (a *Archiver) isWeak(ctx context.Context) (bool, error) {
	a.mu.Lock()
	probed, weak := a.probed || a.o.Probe == nil, a.weak
	a.mu.Unlock()
	if probed {
		return weak, nil
	}
	r, err := a.o.Probe(ctx)
	if err != nil {
		return false, fmt.Errorf("probe bucket: %w", err)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.probed, a.weak = true, !r.OK
	return a.weak, nil
}
