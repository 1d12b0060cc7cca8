package segment

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"go.uber.org/zap"
)

// Remote reads back what was spilled.
type Remote interface {
	// Fetch returns the stored object that holds the frame at pos, or else the first behind it that begins before the
	// other position; nil: there is none, and what stood there is lost or was never used. An error is tried again by the
	// drain, so Fetch does not wait for anything to change.
	Fetch(ctx context.Context, lane LaneID, pos, before Position) (*Stored, error)
}

// Stored is an object that holds frames of one segment, up to the frame Last.
type Stored struct {
	Seq  Seq
	Last Entry
	Data []byte
}

// State returns where the lane stands. It costs no disk access.
func (l *Lane) State() State {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := State{
		Exported: l.cur.Exported, Saved: l.saved, Out: l.cur.Out, Tail: l.tail, In: l.in, Spilled: l.cur.Spilled,
		Skip: l.skip, SkipFrom: l.skipFrom,
	}
	if l.in != l.cur.Out {
		s.Oldest = l.oldest
	}
	return s
}

// FirstSeq is the first segment number of this process: all frames of earlier ones lie before it. It does not change.
func (l *Lane) FirstSeq() Seq { return l.firstSeq }

// Skip makes the drain pass the frames before a position as handed over: another owner delivers them. It never goes back.
// Whoever calls it keeps the position, and gives it to the next OpenLane until a saved cursor has reached it.
func (l *Lane) Skip(to Position) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.skip.Before(to) {
		if !l.cur.Exported.Before(l.skip) { // else it goes on from what was skipped before
			l.skipFrom = l.cur.Exported
		}
		l.skip = to
		l.signalMoved() // the drain may wait
	}
}

// Spill removes the segments before a position that are sealed and not exported, and returns the bytes that came back. The
// caller has stored all their frames where Remote finds them. What the drain is reading stays.
//
// Commit point: both slots of the cursor file say that what is missing before the position is spilled; only then is it removed.
func (l *Lane) Spill(ctx context.Context, to Position) (freed int64, err error) {
	l.mu.Lock()
	var gone []*segInfo
	for _, g := range l.segs {
		if g.seq >= to.Seq {
			break
		}
		if !g.open && !g.cutting && !l.isSealing(g) && g.seq > l.cur.Exported.Seq && g.seq != l.reading {
			gone = append(gone, g)
		}
	}
	if len(gone) == 0 {
		l.mu.Unlock()
		return 0, nil
	}
	if l.cur.Spilled.Before(to) {
		l.cur.Spilled, l.changed = to, true
	}
	l.mu.Unlock()
	if err := l.saveSpilled(gone[len(gone)-1].seq); err != nil {
		return 0, err
	}
	defer func() {
		if serr := l.o.FS.SyncDir(l.dir); serr != nil {
			l.logger().Warn("lane directory not synced", zap.Error(serr)) // after a crash segments may be there again: no harm
		}
	}()
	for _, g := range gone {
		if err := ctx.Err(); err != nil {
			return freed, fmt.Errorf("spill segments: %w", err)
		}
		n, ok := l.spillOne(g)
		if freed += n; !ok {
			return freed, errors.New("spill segments: not all removed; the log says why")
		}
	}
	return freed, nil
}

// saveSpilled makes it durable in both slots of the cursor file that segments up to seq may be spilled, so that neither is lost
// where one is.
func (l *Lane) saveSpilled(seq Seq) error {
	for range 2 {
		if err := l.save(); err != nil {
			return err
		}
		l.saveMu.Lock()
		covered := l.store.coversSpill(seq)
		l.saveMu.Unlock()
		if covered {
			break
		}
	}
	return nil
}

// spillOne removes one segment. The keeper may have done it meanwhile.
func (l *Lane) spillOne(g *segInfo) (freed int64, ok bool) {
	l.removeMu.Lock()
	defer l.removeMu.Unlock()
	l.mu.Lock()
	there := slices.Contains(l.segs, g) && g.seq != l.reading
	g.spilled = there // from here on the drain fetches it
	l.mu.Unlock()
	if !there {
		return 0, true
	}
	ok = l.removeOne(g)
	l.mu.Lock()
	defer l.mu.Unlock()
	if g.spilled = ok; !ok {
		return 0, false
	}
	for _, n := range g.size {
		freed += n
	}
	return freed, ok
}
