package segment

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"time"

	"go.uber.org/zap"
)

// keepLoop is the keeper: everything that may take its time while the committer goes on.
func (l *Lane) keepLoop() {
	defer l.done.Done()
	timer := time.NewTimer(0)
	defer timer.Stop()
	var lastSave, removeAgain time.Time
	stop := l.stopKeeper
	for {
		again := time.Hour
		soon := func(d time.Duration) { again = min(again, max(d, 0)) }
		if !l.sealAll() || !l.prepare() {
			soon(retryInterval)
		}
		soon(l.syncOS())
		soon(l.measureSome())
		if l.wantsSave() {
			switch left := saveInterval - time.Since(lastSave); {
			case left > 0:
				soon(left)
			case l.save() != nil:
				lastSave = time.Now()
				soon(retryInterval)
			default:
				lastSave = time.Now()
			}
		}
		// Whoever saved the cursor: the committer does, too, before it uses a new segment.
		if left := time.Until(removeAgain); left > 0 {
			soon(left)
		} else if !l.removeExported() {
			removeAgain = time.Now().Add(retryInterval)
			soon(retryInterval)
		}
		if l.finished() {
			return
		}
		timer.Reset(again)
		select {
		case <-l.keepWake:
		case <-timer.C:
		case <-stop:
			stop = nil // look once more, then wait for the committer's last word
		}
	}
}

// finished reports whether the lane closes and the committer has handed over all it had.
func (l *Lane) finished() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.closed && len(l.sealing) == 0 && l.committerDone
}

// sealAll writes the footers of ended segments. A segment that cannot be sealed is cut back and stays without one, which a
// reader takes as well.
func (l *Lane) sealAll() (ok bool) {
	for {
		l.mu.Lock()
		if len(l.sealing) == 0 {
			l.mu.Unlock()
			return true
		}
		job := l.sealing[0]
		l.sealing = l.sealing[1:]
		totals, tenants := *job.seg.totals, boundTenants(job.seg.size)
		l.mu.Unlock()
		l.seal(job, totals, tenants)
	}
}

func (l *Lane) seal(job sealJob, totals Totals, tenants map[string]int64) {
	w := job.w
	end := w.written
	err := w.sync() // AckOS may have left frames behind
	if err == nil {
		err = w.seal(totals, tenants)
	}
	if err != nil {
		l.logger().Warn("segment not sealed; it stays without a footer", zap.Stringer("segment", w.hdr.Seq), zap.Error(err))
		l.cutAt(w, end)
		w.drop()
		l.giveBackRoom(w)
		return
	}
	w.drop()
	l.mu.Lock()
	defer l.mu.Unlock()
	job.seg.end = -1
	job.seg.charge("", w.written-end)
	l.o.Space.charge("", w.written-end)
	l.giveBackRoom(w)
	l.forget(w.hdr.Seq)
	l.signalMoved()
}

// boundTenants keeps a footer's table small.
func boundTenants(size map[string]int64) map[string]int64 {
	if len(size) <= maxFooterTenants {
		return maps.Clone(size)
	}
	names := slices.SortedFunc(maps.Keys(size), func(a, b string) int { return int(size[b] - size[a]) })
	out := make(map[string]int64, maxFooterTenants+1)
	for i, name := range names {
		if i < maxFooterTenants {
			out[name] = size[name]
		} else {
			out[""] += size[name]
		}
	}
	return out
}

// prepare creates the next segment, so that a full one stalls nobody. Where it fails it is tried again, which also finds out
// by itself that a disk has space again.
func (l *Lane) prepare() (ok bool) {
	l.createMu.Lock()
	defer l.createMu.Unlock()
	l.mu.Lock()
	troubled := l.trouble != nil && !l.limitUnsaved
	if l.stopping || l.spare != nil && !troubled {
		l.mu.Unlock()
		return true
	}
	if troubled && time.Since(l.preparedAt) < retryInterval {
		l.mu.Unlock()
		return false
	}
	stale := l.spare // made before the trouble: only a new one shows that it is over
	l.spare, l.preparedAt = nil, time.Now()
	l.mu.Unlock()
	if stale != nil {
		l.discard(stale)
	}
	w, err := l.create()
	l.mu.Lock()
	defer l.mu.Unlock()
	if err != nil {
		if l.trouble == nil && !l.noSpare {
			l.logger().Warn("next segment not prepared", zap.Error(err))
		}
		l.noSpare = true
		if l.activeFile == nil {
			l.trouble = err
		}
		return false
	}
	l.spare, l.noSpare = w, false
	if !l.limitUnsaved {
		l.trouble = nil
	}
	return true
}

// syncOS syncs the active segment where answers do not wait for it, and says when to look again.
func (l *Lane) syncOS() (again time.Duration) {
	l.mu.Lock()
	file, at, interval := l.activeFile, l.tail, l.settings.SyncInterval
	due := l.settings.Ack == AckOS && file != nil && at != l.syncedTo
	left := interval - time.Since(l.syncedAt)
	l.mu.Unlock()
	if !due {
		return time.Hour
	}
	if left > 0 {
		return left
	}
	err := file.Sync()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.syncedAt = time.Now()
	if err == nil {
		l.syncedTo = at
	} else if l.activeFile == file {
		// The answers are given; what the disk still has of them stays readable. Nothing more is put behind them.
		l.logger().Error("segment not synced; going on in the next", zap.Stringer("segment", at.Seq), zap.Error(err))
		l.endActive = true
		wake(l.commitWake)
	}
	return interval
}

func (l *Lane) wantsSave() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.changed
}

// save writes the cursor.
func (l *Lane) save() error {
	l.saveMu.Lock()
	defer l.saveMu.Unlock()
	l.mu.Lock()
	st := l.cur
	st.Ledger = l.cur.Ledger.clone()
	st.Limits = maps.Clone(l.cur.Limits)
	st.Accepted = maps.Clone(l.cur.Accepted)
	st.Open = slices.Clone(l.cur.Open)
	st.In = l.in
	st.Saved = time.Now().UTC()
	l.changed = false
	l.mu.Unlock()
	err := l.store.save(&st)
	l.mu.Lock()
	defer l.mu.Unlock()
	if err != nil {
		if l.trouble == nil {
			l.logger().Error("cursor not saved", zap.Error(err))
		}
		l.changed = true
		if l.limitUnsaved {
			l.trouble = err
		}
		return fmt.Errorf("save cursor: %w", err)
	}
	l.saved = st.Exported
	if l.limitUnsaved && len(st.Limits) == len(l.cur.Limits) {
		l.limitUnsaved, l.trouble = false, nil
	}
	return nil
}

// removeExported removes the segments that the saved cursor is past, and the archive if there is one. It is false if it could not remove them all.
func (l *Lane) removeExported() (ok bool) {
	l.removeMu.Lock()
	defer l.removeMu.Unlock()
	l.mu.Lock()
	var gone []*segInfo
	for _, g := range l.segs {
		if g.seq >= l.saved.Seq || l.o.KeepExported && g.seq >= l.archived.Seq {
			break
		}
		if !g.open && !g.cutting && !l.isSealing(g) {
			gone = append(gone, g)
		}
	}
	l.mu.Unlock()
	ok = true
	for _, g := range gone {
		ok = l.removeOne(g) && ok
	}
	if len(gone) > 0 {
		if err := l.o.FS.SyncDir(l.dir); err != nil {
			l.logger().Warn("lane directory not synced", zap.Error(err)) // the segments come back after a crash, and go again
		}
	}
	return ok
}

// removeOne removes a segment that is exported or spilled, and gives back its space.
func (l *Lane) removeOne(g *segInfo) (ok bool) {
	if !l.covered(g.seq) && l.save() != nil {
		return false // its number is not yet safe from reuse in both slots
	}
	if err := l.measure(g); err != nil {
		l.logger().Warn("segment not measured", zap.Stringer("segment", g.seq), zap.Error(err))
	}
	if err := l.removeSegment(g.seq); err != nil {
		l.logger().Warn("segment not removed", zap.Stringer("segment", g.seq), zap.Error(err))
		return false
	}
	l.mu.Lock()
	l.segs = slices.DeleteFunc(l.segs, func(s *segInfo) bool { return s == g })
	l.forget(g.seq)
	size := g.size
	l.mu.Unlock()
	l.o.Space.release(size)
	return true
}

func (l *Lane) covered(seq Seq) bool {
	l.saveMu.Lock()
	defer l.saveMu.Unlock()
	return l.store.covers(seq)
}

func (l *Lane) isSealing(g *segInfo) bool {
	return slices.ContainsFunc(l.sealing, func(j sealJob) bool { return j.seg == g })
}

// removeSegment removes a segment's file and directory.
func (l *Lane) removeSegment(seq Seq) error {
	dir := l.segmentDir(seq)
	infos, err := l.o.FS.List(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("list segment: %w", err)
	}
	for _, i := range infos {
		if err := l.o.FS.Remove(dir + "/" + i.Name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove segment file: %w", err)
		}
	}
	if err := l.o.FS.Remove(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove segment directory: %w", err)
	}
	return nil
}

// measureStep is how many old segments are measured before the keeper looks after its other work.
const measureStep = 64

// measureSome learns the sizes of segments that the start found, a few at a time: a start must not wait for them.
func (l *Lane) measureSome() (again time.Duration) {
	l.mu.Lock()
	if l.measured == nil {
		l.mu.Unlock()
		return time.Hour
	}
	var todo []*segInfo
	for _, g := range l.segs {
		if !g.counted && len(todo) < measureStep {
			todo = append(todo, g)
		}
	}
	l.mu.Unlock()
	for _, g := range todo {
		l.removeMu.Lock()
		err := l.measure(g)
		l.removeMu.Unlock()
		if err != nil {
			l.logger().Warn("segment not measured", zap.Stringer("segment", g.seq), zap.Error(err))
			return retryInterval
		}
	}
	if len(todo) == measureStep {
		return 0
	}
	l.o.Space.charge("", -l.estimate)
	l.measured()
	l.measured = nil
	return time.Hour
}

// measure charges the space for a segment by its real size, shared out as its footer says. l.removeMu is held.
func (l *Lane) measure(g *segInfo) error {
	if g.counted {
		return nil
	}
	size := map[string]int64{}
	f, err := l.o.FS.OpenFile(l.segmentFile(g.seq), os.O_RDONLY, 0)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return fmt.Errorf("open segment: %w", err)
	default:
		defer func() { _ = f.Close() }()
		n, err := f.Size()
		if err != nil {
			return fmt.Errorf("size segment: %w", err)
		}
		footer, err := readFooter(f, n)
		if err != nil {
			return err
		}
		if footer != nil {
			for t, b := range footer.Tenants {
				if b > 0 && b <= n {
					size[t] = b
					n -= b
				}
			}
		}
		size[""] += n
	}
	for t, b := range size {
		l.o.Space.charge(t, b)
	}
	l.mu.Lock()
	g.size, g.counted = size, true
	l.mu.Unlock()
	return nil
}
