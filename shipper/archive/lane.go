package archive

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"ingest-agent/segment"
)

// track is what the archiver knows of a lane. Only the loop, and the one goroutine to which it gives the lane in a round, use it.
type track struct {
	lane   *segment.Lane
	reader *segment.Reader
	at     segment.Position // the frames before it are archived, or missed, or others'
	mark   mark
	turn   uint64 // of the last copy
}

// mark says that what lies before to could be archived at a time.
type mark struct {
	to segment.Position
	at time.Time
}

// limit is up to where a lane is to be archived now. A segment is archived when the cursor has left it; part: up to the cursor.
// It jumps over what others archive, since they move the cursor of their register over it: the frames that were handed over.
func (t *track) limit(part bool) segment.Position {
	st := t.lane.State()
	to := st.Saved // not Exported: after a crash the drain begins here
	if !part {
		to.Entry = 1
	}
	if !st.SkipFrom.Before(st.Skip) || !t.at.Before(st.Skip) {
		return to
	}
	if t.at.Before(st.SkipFrom) {
		if to.Before(st.SkipFrom) {
			return to
		}
		return st.SkipFrom
	}
	t.pass(st.Skip)
	return to
}

// waits says whether there is something to archive.
func (t *track) waits(part bool) bool { return t.at.Before(t.limit(part)) }

// pass says that what lies before a position is done with.
func (t *track) pass(to segment.Position) {
	if t.at.Before(to) {
		t.at = to
	}
	t.lane.Archived(t.at)
}

// next reads what is to be archived next; nil: there is nothing now.
func (t *track) next(part bool) (*segment.Batch, error) {
	for {
		limit := t.limit(part)
		if !t.at.Before(limit) {
			return nil, nil //nolint:nilnil // there is none
		}
		b, err := t.reader.Read(t.at, objectBytes)
		if err != nil && !errors.Is(err, io.EOF) {
			return nil, fmt.Errorf("read lane %s: %w", t.lane.ID(), err)
		}
		if err == nil {
			if b := before(b, limit); b != nil {
				return b, nil
			}
		}
		t.pass(limit) // what stood there is damaged, or was spilled: it is archived from the bucket
	}
}

// before is the part of a batch before a position; nil: there is none.
func before(b *segment.Batch, to segment.Position) *segment.Batch {
	n, _ := slices.BinarySearchFunc(b.Frames, to, func(f segment.Frame, p segment.Position) int { return f.Position.Compare(p) })
	if n == 0 {
		return nil
	}
	return b.Part(0, n)
}

// look marks what waits. It is late when it has waited for patience.
func (t *track) look(now time.Time) {
	if to := t.limit(false); t.at.Before(to) && !t.at.Before(t.mark.to) {
		t.mark = mark{to, now}
	}
}

func (t *track) late(now time.Time, failing bool) bool {
	return t.at.Before(t.mark.to) && (failing || now.Sub(t.mark.at) >= patience)
}

// left says whether a stop has something left to archive of the lane.
func (t *track) left() bool {
	st := t.lane.State()
	return st.Saved.Before(st.Exported) || t.waits(true)
}
