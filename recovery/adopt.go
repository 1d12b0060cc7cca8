package recovery

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"

	"ingest-agent/objstore/lease"
	"ingest-agent/recovery/owner"
	"ingest-agent/segment"
)

// Why an adoption ends before all is drained.
var (
	errUnknownDestination = errors.New("destination is not configured here")
	errStuck              = errors.New("no progress")
	errNotEmpty           = errors.New("objects stay that were deleted")
)

// adoption is the work on one owner that was claimed. Its goroutine lists, commits and deletes; each lane is drained beside it.
//
// Commit point: the lease's Commit, and at the end its Release. Objects are deleted after it, and progress is counted with it.
type adoption struct {
	r     *Recovery
	owner string
	lease *lease.Lease
	log   *zap.Logger
	kick  chan struct{} // a commit is due, or a drain has returned

	lanes   map[segment.LaneID]*laneDrain // of this round
	pending map[segment.LaneID]pending    // taken from the lanes, and not committed
	stuck   map[segment.LaneID]bool       // not drained again by this adoption
	// unarchived is why an object stays that could be deleted, by the last listing.
	unarchived error
	progress   bool
}

// pending is progress that waits for its commit.
type pending struct {
	at   owner.Progress
	step segment.Progress
}

// run drains what was claimed and gives it back, with whatever was reached. ctx ends it early; life is for what is to be said
// to the bucket after that.
func (a *adoption) run(ctx, life context.Context) Outcome {
	act, stop := a.lease.Keep(ctx, nil)
	err := a.rounds(act)
	if err == nil {
		// The prefix was listed empty while the lease was held: nothing but what comes late can be there.
		err = context.Cause(act)
	}
	stop()
	return a.giveBack(life, err)
}

// rounds lists and drains until nothing is left.
func (a *adoption) rounds(act context.Context) error {
	for {
		again, err := a.round(act)
		if err == nil && act.Err() != nil {
			err = context.Cause(act)
		}
		if err != nil || !again {
			return err
		}
	}
}

// round does once what a listing shows to be due, and says whether it has to be listed again.
func (a *adoption) round(act context.Context) (again bool, err error) {
	left, deleted, err := a.list(act)
	if err != nil {
		return false, err
	}
	raised, err := a.raise(act, left)
	if raised || err != nil {
		return true, err
	}
	body, err := a.body()
	if err != nil {
		return false, err
	}
	var drain []segment.LaneID
	var unknown []string
	stuck := false
	for _, id := range body.IDs() {
		switch l := body.Lanes[id]; {
		case !l.Owes():
		case !a.r.o.Knows(id.Destination):
			unknown = append(unknown, id.Destination)
		case a.stuck[id]:
			stuck = true
		default:
			drain = append(drain, id)
		}
	}
	switch {
	case len(drain) > 0:
		return true, a.drain(act, body, drain)
	case stuck:
		return false, errStuck
	case len(unknown) > 0:
		return false, fmt.Errorf("%w: %s", errUnknownDestination, strings.Join(slices.Compact(unknown), ", "))
	case deleted > 0:
		return true, nil
	case a.unarchived != nil:
		return false, a.unarchived
	case len(left) > 0:
		return false, errNotEmpty
	}
	return false, nil
}

func (a *adoption) body() (*owner.Body, error) {
	last := a.lease.Last()
	b, err := owner.Read(&last.Record)
	if err != nil {
		return nil, fmt.Errorf("read register of owner %s: %w", a.owner, err)
	}
	return b, nil
}

// span is how far the objects of a lane go that may not be deleted yet.
type span struct{ from, end segment.Position }

// list deletes what is covered, and says what else there is.
func (a *adoption) list(act context.Context) (left map[segment.LaneID]*span, deleted int, err error) {
	body, err := a.body()
	if err != nil {
		return nil, 0, err
	}
	left, a.unarchived = map[segment.LaneID]*span{}, nil
	var gone []ref
	foreign, err := eachObject(act, a.r.o.Bucket, a.owner, func(o ref) error {
		if done(body, &o) {
			if gone = append(gone, o); len(gone) < deleteChunk {
				return nil
			}
			n, err := a.delete(act, gone)
			deleted += n
			gone = gone[:0]
			return err
		}
		if s := left[o.lane]; s == nil {
			left[o.lane] = &span{o.begin(), o.end()}
		} else if s.end.Before(o.end()) {
			s.end = o.end()
		}
		return nil
	})
	if err == nil {
		var n int
		n, err = a.delete(act, gone)
		deleted += n
	}
	if foreign > 0 {
		a.log.Warn("foreign objects below the prefix of an owner are left there", zap.Int("objects", foreign))
	}
	return left, deleted, err
}

// raise takes what the owner wrote and did not live to name.
func (a *adoption) raise(act context.Context, left map[segment.LaneID]*span) (raised bool, err error) {
	body, err := a.body()
	if err != nil || body.SignedOff {
		return false, err
	}
	var edits []lease.Edit
	for id, s := range left {
		if l := body.Lanes[id]; l == nil || l.End().Before(s.end) {
			edits = append(edits, owner.Raise(id, s.from, s.end))
		}
	}
	if len(edits) == 0 {
		return false, nil
	}
	err = a.lease.Commit(act, func(r *lease.Record) error {
		for _, e := range edits {
			if err := e(r); err != nil {
				return err
			}
		}
		return nil
	})
	if errors.Is(err, owner.ErrState) { // it has signed off since: what is not named is its own
		err = a.lease.Renew(act, nil)
	}
	if err != nil {
		return false, fmt.Errorf("take what is not named: %w", err)
	}
	return true, nil
}

// drain drains lanes side by side, until each is exported, or stuck.
func (a *adoption) drain(act context.Context, body *owner.Body, ids []segment.LaneID) error {
	a.lanes = map[segment.LaneID]*laneDrain{}
	for _, id := range ids {
		a.start(act, id, body.Lanes[id])
	}
	timer := time.NewTimer(a.r.o.CommitEvery)
	defer timer.Stop()
	var err error
	for running := true; running; {
		select { // whichever it is, everything is looked at
		case <-a.kick:
		case <-timer.C:
		}
		timer.Reset(a.r.o.CommitEvery)
		running = false
		for _, l := range a.lanes {
			if l.running() {
				running = true
				if act.Err() != nil || err != nil || l.stuck(a.r.o.StallAfter) {
					l.stop()
				}
			} else if !l.over() {
				a.stuck[l.id] = true
			}
		}
		if act.Err() == nil && err == nil {
			err = a.commit(act)
		}
	}
	return err
}

// start starts the drain of a lane.
func (a *adoption) start(act context.Context, id segment.LaneID, body *owner.Lane) {
	ctx, cancel := context.WithCancel(act)
	l := newLaneDrain(id, body)
	l.stop, l.commit = cancel, a.wake
	s := newSource(body)
	s.bucket, s.log, s.owner, s.lane = a.r.o.Bucket, a.log.With(zap.Stringer("lane", id)), a.owner, id
	s.read, s.gone = l.read, l.gone
	s.hold = func(ctx context.Context) error { return a.lease.Renew(ctx, nil) }
	if keep := a.r.o.Quarantine; keep != nil {
		s.keep = func(key string, data []byte, damage []segment.Damage) error { return keep(id, key, data, damage) }
	}
	a.lanes[id] = l
	release := context.AfterFunc(act, a.wake)
	go func() { // joined by drain
		defer a.wake()
		defer close(l.ended)
		defer release()
		defer cancel()
		a.r.o.Drain(ctx, Adopted{Owner: a.owner, Lane: id, Source: s, Cursor: l})
		_ = s.Close() // it holds memory only
	}()
}

func (a *adoption) wake() {
	select {
	case a.kick <- struct{}{}:
	default:
	}
}

// collect takes the progress of all lanes, and returns all that is not committed.
func (a *adoption) collect() map[segment.LaneID]owner.Progress {
	for id, l := range a.lanes {
		if at, step, ok := l.take(); ok {
			p := a.pending[id]
			merge(&p.step, &step)
			p.at = at
			a.pending[id] = p
		}
	}
	reached := map[segment.LaneID]owner.Progress{}
	for id, p := range a.pending {
		reached[id] = p.at
	}
	return reached
}

// commit says how far the lanes are exported, counts it, and deletes what that covers.
func (a *adoption) commit(act context.Context) error {
	reached := a.collect()
	if len(reached) == 0 {
		return nil
	}
	if err := a.lease.Commit(act, owner.Export(reached)); err != nil {
		return fmt.Errorf("commit what is exported: %w", err)
	}
	a.committed()
	var gone []ref
	for _, id := range slices.SortedFunc(maps.Keys(reached), segment.LaneID.Compare) {
		if l := a.lanes[id]; l != nil {
			gone = append(gone, l.covered(reached[id].Exported)...)
		}
	}
	if _, err := a.delete(act, gone); err != nil {
		a.log.Warn("exported objects not deleted; trying again at the end", zap.Error(err))
	}
	return nil
}

// committed counts what the register now says.
func (a *adoption) committed() {
	for _, id := range slices.SortedFunc(maps.Keys(a.pending), segment.LaneID.Compare) {
		p := a.pending[id]
		a.progress = true
		a.r.count(a.owner, id, &p.step)
	}
	clear(a.pending)
}

// delete deletes objects, when the archive has what is exported of them, and says how many. What the archive does not take
// stays until the next try: it holds up nothing else.
func (a *adoption) delete(ctx context.Context, gone []ref) (int, error) {
	body, err := a.body()
	if err != nil {
		return 0, err
	}
	gone, err = a.archive(ctx, body, gone)
	if err != nil {
		a.unarchived = err
		a.log.Warn("exported object not archived, and so not deleted; trying again", zap.Error(err))
	}
	return len(gone), a.r.delete(ctx, gone)
}

// archive archives objects, some side by side, and returns those of which that is done. After an error it does not try more.
func (a *adoption) archive(ctx context.Context, body *owner.Body, gone []ref) (done []ref, err error) {
	if a.r.o.Archive == nil {
		return gone, nil
	}
	for some := range slices.Chunk(gone, archivedAtOnce) {
		errs := make([]error, len(some))
		var all sync.WaitGroup
		for i := range some {
			if l := body.Lanes[some[i].lane]; l != nil {
				all.Go(func() { errs[i] = a.r.o.Archive(ctx, some[i].key, l.Exported) })
			}
		}
		all.Wait()
		for i := range some {
			if errs[i] == nil {
				done = append(done, some[i])
			}
		}
		if err := errors.Join(errs...); err != nil {
			return done, fmt.Errorf("archive exported objects: %w", err)
		}
	}
	return done, nil
}

// delete deletes objects, some side by side.
func (r *Recovery) delete(ctx context.Context, gone []ref) error {
	for some := range slices.Chunk(gone, deletesAtOnce) {
		errs := make([]error, len(some))
		var all sync.WaitGroup
		for i := range some {
			all.Go(func() { errs[i] = r.o.Bucket.Delete(ctx, some[i].key.String()) })
		}
		all.Wait()
		if err := errors.Join(errs...); err != nil {
			return fmt.Errorf("delete exported objects: %w", err)
		}
	}
	return nil
}

// giveBack ends the adoption: drained, or released with what was reached, so that anybody may go on at once.
func (a *adoption) giveBack(life context.Context, why error) Outcome {
	if errors.Is(why, lease.ErrFenced) {
		a.log.Warn("adoption was taken over", zap.Error(why))
		return Fenced
	}
	if life.Err() != nil {
		return Unsettled // as a killed process: others notice its silence
	}
	reached := a.collect()
	edit, outcome := owner.Finish(), Drained
	if why != nil || len(reached) > 0 {
		edit, outcome = owner.Export(reached), Released
	}
	ctx, cancel := context.WithTimeout(life, a.r.o.StaleAfter/releasePart)
	defer cancel()
	switch err := a.lease.Release(ctx, edit); {
	case errors.Is(err, lease.ErrFenced):
		a.log.Warn("adoption was taken over", zap.Error(err))
		return Fenced
	case err != nil:
		a.log.Warn("adoption not given back; it is free when it has been silent for long enough", zap.Error(err))
		return Unsettled
	}
	a.committed()
	switch {
	case outcome == Drained:
		a.log.Info("owner is drained")
	case errors.Is(why, errUnknownDestination):
		a.log.Warn("owner is given back: the rest is for destinations that are not configured here", zap.Error(why))
	default:
		a.log.Info("owner is given back", zap.Error(why))
	}
	return outcome
}
