package archive

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"
)

// round does once what is to be done, and returns when to look again.
func (a *Archiver) round(ctx context.Context) time.Duration {
	now, part := time.Now(), a.stopping()
	again := lookEvery
	if part {
		again = lookStopping
	}
	tracks := a.tracksNow()
	for _, t := range tracks {
		t.look(now)
	}
	a.makeRoom(tracks, now)
	if now.Before(a.retryAt) && !(part && a.delay > a.retryMost()) {
		return min(again, a.retryAt.Sub(now))
	}
	tracks = slices.DeleteFunc(tracks, func(t *track) bool { return !t.waits(part) })
	slices.SortStableFunc(tracks, func(x, y *track) int { return cmp.Compare(x.turn, y.turn) })
	if tracks = tracks[:min(len(tracks), lanesAtOnce)]; len(tracks) == 0 {
		return again
	}
	errs := make([]error, len(tracks))
	watched, end := a.watched(ctx)
	var all sync.WaitGroup
	for i, t := range tracks {
		a.turn++
		t.turn = a.turn
		all.Go(func() { errs[i] = a.copyNext(watched, t, part) })
	}
	all.Wait()
	end()
	a.judge(ctx, errs)
	return 0
}

// copyNext copies what is next of a lane.
func (a *Archiver) copyNext(ctx context.Context, t *track, part bool) error {
	b, err := t.next(part)
	if b == nil || err != nil {
		return err
	}
	if err := a.copyBatch(ctx, a.o.Owner(), t.lane.ID().String(), b); err != nil {
		return err
	}
	t.pass(b.Next)
	return nil
}

// watched ends a copy that hangs when it keeps from others the space that they need.
func (a *Archiver) watched(parent context.Context) (ctx context.Context, end func()) {
	ctx, cancel := context.WithTimeout(parent, putTimeout)
	var watcher sync.WaitGroup
	watcher.Go(func() {
		tick := time.NewTicker(watchEvery)
		defer tick.Stop()
		for begun := time.Now(); ; {
			select {
			case <-tick.C:
			case <-ctx.Done():
				return
			}
			if time.Since(begun) >= patience && a.o.Taken() >= giveUpAt {
				cancel()
			}
		}
	})
	return ctx, func() {
		cancel()
		watcher.Wait()
	}
}

// judge ends a round: it says when to try again. Where something succeeds, what fails is tried again in its turn.
func (a *Archiver) judge(ctx context.Context, errs []error) {
	err := errors.Join(errs...)
	switch {
	case ctx.Err() != nil:
		return
	case slices.Contains(errs, nil):
		if a.delay > 0 {
			a.o.Log.Info("archiving again")
		}
		a.delay, a.retryAt = 0, time.Time{}
		a.note(err)
		return
	case a.delay == 0:
		a.o.Log.Warn("not archived; trying again while there is space", zap.Error(err))
	}
	a.note(err)
	a.delay = min(a.retryMost(), max(retryFirst, 2*a.delay))
	a.retryAt = time.Now().Add(a.delay - time.Duration(a.o.Jitter()*float64(a.delay)/4))
}

func (a *Archiver) note(err error) {
	a.update(func(s *Stats) {
		if s.LastError = ""; err != nil {
			s.LastError = err.Error()
		}
	})
}

func (a *Archiver) retryMost() time.Duration {
	if a.stopping() {
		return a.o.RetryMax / urgentPart
	}
	return a.o.RetryMax
}

// makeRoom lets go of segments that are late, the longest waiting first, until there is room.
func (a *Archiver) makeRoom(tracks []*track, now time.Time) {
	var missed uint64
	for a.o.Taken() >= giveUpAt {
		var t *track
		for _, o := range tracks {
			if o.late(now, a.delay > 0) && (t == nil || o.mark.at.Before(t.mark.at)) {
				t = o
			}
		}
		if t == nil {
			break
		}
		b, err := t.next(false)
		switch {
		case err != nil:
			a.o.Log.Error("segment removed that could not be read for the archive; what it missed is not counted", zap.Stringer("segment", t.at.Seq), zap.Error(err))
			t.pass(t.at.NextSegment())
		case b != nil:
			missed += b.After.Sub(b.Before).Records.Sum()
			t.pass(b.Next)
		default:
			t.mark = mark{}
		}
	}
	a.missed(missed)
}

// missed counts records that are not archived.
func (a *Archiver) missed(records uint64) {
	a.mu.Lock()
	a.stats.MissedRecords += records
	a.untold += records
	untold := a.untold
	tell := untold > 0 && time.Since(a.toldAt) >= tellMissedEvery
	if tell {
		a.untold, a.toldAt = 0, time.Now()
	}
	a.mu.Unlock()
	if tell {
		a.o.Log.Error("delivered records are missing in the archive", zap.Uint64("records", untold))
	}
}

// left says whether a stop has something left to do.
func (a *Archiver) left() bool { return slices.ContainsFunc(a.tracksNow(), (*track).left) }
