package archive

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"ingest-agent/objstore"
	"ingest-agent/objstore/lease"
)

const (
	// sweepEvery is how often a node looks whether it is time to sweep, less up to a part of it, so that nodes do not go in step.
	sweepEvery = time.Hour
	spreadPart = 8
	// sweptLately is how long ago the last sweep must be: a little less than that.
	sweptLately = 3 * sweepEvery / 4
	// deletesAtOnce is how many objects are deleted side by side.
	deletesAtOnce = 8
	// callPart bounds what is said about the register, as a part of StaleAfter.
	callPart = 2

	sweeping, swept = "sweeping", "swept"
)

// sweepLoop deletes old hours for as long as ctx goes on. The first look is at a random moment of the first hour.
func (a *Archiver) sweepLoop(ctx context.Context) {
	register := lease.New(lease.Options{
		Bucket: a.o.Bucket, Key: objstore.FleetKey{Task: "archive"}.String(), Holder: a.o.Holder, Node: a.o.Node,
		StaleAfter: a.o.StaleAfter, NewID: a.o.NewID,
	})
	timer := time.NewTimer(time.Duration(a.o.Jitter() * float64(sweepEvery)))
	defer timer.Stop()
	var seen lease.Seen
	for {
		select {
		case <-timer.C:
		case <-ctx.Done():
			return
		}
		if err := a.sweepOnce(ctx, register, &seen); err != nil && ctx.Err() == nil && !errors.Is(err, lease.ErrLost) {
			a.o.Log.Warn("old hours of the archive not swept; trying again in an hour", zap.Error(err))
		}
		timer.Reset(sweepEvery - time.Duration(a.o.Jitter()*float64(sweepEvery)/spreadPart))
	}
}

// sweepOnce sweeps, if nobody does or has lately.
func (a *Archiver) sweepOnce(ctx context.Context, register *lease.Register, seen *lease.Seen) error {
	weak, err := a.isWeak(ctx)
	if err != nil {
		return err
	}
	if weak { // nobody can hold anything: two that sweep do no harm
		return a.sweep(ctx)
	}
	call, cancel := context.WithTimeout(ctx, a.o.StaleAfter/callPart)
	defer cancel()
	if *seen, err = register.Observe(call, *seen); err != nil {
		return err //nolint:wrapcheck // it says what it did
	}
	switch register.Judge(*seen) {
	case lease.Beating:
		return nil
	case lease.Free:
		if age := max(seen.Date.Sub(seen.Modified), time.Since(seen.Since)); age < sweptLately {
			return nil
		}
	case lease.Absent, lease.Mine, lease.Silent:
	}
	l, err := register.Acquire(call, *seen, inState(sweeping))
	if err != nil {
		return err //nolint:wrapcheck // it says what it did
	}
	act, stop := l.Keep(ctx, nil)
	err = a.sweep(act)
	stop()
	end, cancelEnd := objstore.Cleanup(ctx)
	defer cancelEnd()
	return errors.Join(err, l.Release(end, inState(swept)))
}

func inState(state string) lease.Edit {
	return func(r *lease.Record) error {
		r.State = state
		return nil
	}
}

// sweep deletes the hours that have ended longer than the retention ago, by the bucket's own time. Keys are listed by hours, the
// oldest first, so that one page shows that nothing is left to do.
func (a *Archiver) sweep(ctx context.Context) error {
	for page, err := range objstore.Pages(ctx, a.o.Bucket, objstore.ListOptions{Prefix: objstore.ArchivePrefix}) {
		if err != nil {
			return err //nolint:wrapcheck // it says what it did
		}
		old := page.Date.Add(-a.o.Retention)
		var gone []string
		young := false
		for _, info := range page.Objects {
			key, err := objstore.ParseKey(info.Key)
			k, ours := key.(objstore.ArchiveKey)
			if err != nil || !ours {
				continue
			}
			if young = k.Hour.Add(time.Hour).After(old); young {
				break
			}
			gone = append(gone, info.Key)
		}
		if err := a.remove(ctx, gone); err != nil || young {
			return err
		}
	}
	return nil
}

// remove deletes objects, some side by side.
func (a *Archiver) remove(ctx context.Context, keys []string) error {
	for some := range slices.Chunk(keys, deletesAtOnce) {
		errs := make([]error, len(some))
		var all sync.WaitGroup
		for i, key := range some {
			all.Go(func() { errs[i] = a.o.Bucket.Delete(ctx, key) })
		}
		all.Wait()
		if err := errors.Join(errs...); err != nil {
			return fmt.Errorf("delete archive objects: %w", err)
		}
		a.update(func(s *Stats) { s.SweptObjects += uint64(len(some)) })
	}
	return nil
}
