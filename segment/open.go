package segment

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"go.uber.org/zap"

	"ingest-agent/segment/vfs"
)

// OpenLane opens a lane, creating it where it does not exist, and starts its goroutines; Close ends them. It reads the
// cursor and the segments at the end that have no footer, so that its time does not depend on the backlog. What an earlier
// process left is cut where it is torn and never appended to.
//
// A lane that cannot make a first segment (a full disk) opens all the same: it drains, refuses, and tries again by itself.
func OpenLane(o LaneOptions) (*Lane, error) {
	l := &Lane{
		o: o, dir: filepath.Join(o.Dir, o.ID.String()), settings: o.Settings,
		moved:      make(chan struct{}),
		commitWake: make(chan struct{}, 1), keepWake: make(chan struct{}, 1), stopKeeper: make(chan struct{}),
	}
	l.errs = newLimitedLog(l.logger())
	if err := vfs.MkdirAll(o.FS, l.dir, dirPerm); err != nil {
		return nil, fmt.Errorf("create lane directory: %w", err)
	}
	store, st, bad, err := openCursor(o.FS, l.dir, o.ID)
	if err != nil {
		return nil, fmt.Errorf("open lane %s: %w", o.ID, err)
	}
	l.store = store
	if err := l.restore(st, bad); err != nil {
		_ = store.close()
		return nil, fmt.Errorf("open lane %s: %w", o.ID, err)
	}
	if o.DrainOnly {
		l.stopping = true
	} else if err := l.writable(); err != nil {
		l.logger().Warn("no segment to append to; draining only until there is", zap.Error(err))
		l.trouble = err
	}
	o.Space.WhenRefused(func() { wake(l.commitWake) })
	l.done.Add(2)
	go l.commitLoop()
	go l.keepLoop()
	return l, nil
}

// restore rebuilds the lane's state from the cursor and the segments on disk.
func (l *Lane) restore(st *CursorState, bad []error) error {
	seqs, err := listSegments(l.o.FS, l.dir)
	if err != nil {
		return err
	}
	for _, err := range bad {
		l.logger().Warn("cursor slot is damaged; going on with the other, or from the oldest frame", zap.Error(err))
	}
	known := st != nil
	if !known {
		if len(seqs) > 0 && len(bad) == 0 {
			l.logger().Warn("no cursor; going on from the oldest frame")
		}
		st = &CursorState{Lane: l.o.ID, Exported: Start, NextSeq: 1}
	}
	l.cur = *st
	var highest Seq
	if n := len(seqs); n > 0 {
		highest = seqs[n-1]
	}
	if known && st.Exported.Seq > max(st.NextSeq, highest+1) {
		known = false
		l.logger().Warn("cursor is past every segment; going on from the oldest frame", zap.Stringer("cursor", st.Exported))
	}
	l.cur.NextSeq = max(st.NextSeq, highest+1)
	if st.Exported.Entry > 1 { // never behind a position in a segment that may be gone
		l.cur.NextSeq = max(l.cur.NextSeq, st.Exported.Seq+1)
	}
	for _, seq := range seqs {
		l.segs = append(l.segs, &segInfo{seq: seq, end: -1, size: map[string]int64{}})
	}
	if err := l.recoverTail(known); err != nil {
		return err
	}
	if known && !l.hasFrom(st.Exported.Seq) && !st.Exported.Before(st.Spilled) && l.in.Sub(st.Out) != (Totals{}) {
		known = false // it would skip frames that are here and were not passed
		l.logger().Warn("cursor does not fit the segments; going on from the oldest frame", zap.Stringer("cursor", st.Exported))
	}
	l.in = l.in.Max(st.In).Max(st.Out)
	if !known {
		if err := l.rebase(); err != nil {
			return err
		}
	}
	if l.tail = (Position{highest + 1, 1}); l.tail.Before(l.cur.Exported) {
		l.tail = l.cur.Exported
	}
	l.firstSeq, l.skip, l.skipFrom = l.cur.NextSeq, l.o.Skip, l.cur.Exported
	l.cur.acceptRest(l.in)
	l.saved = Start // nothing is removed before the first save
	l.changed = true
	l.estimate = int64(l.in.Sub(l.cur.Out).Bytes) + int64(l.in.Sub(l.cur.Out).Frames)*(frameHeaderBytes+32)
	l.o.Space.charge("", l.estimate)
	l.measured = l.o.Space.measuring()
	return nil
}

func (l *Lane) hasFrom(seq Seq) bool {
	n := len(l.segs)
	return n > 0 && l.segs[n-1].seq >= seq
}

// maxTornHeaderBytes is more than the block of a segment's header, all that a torn creation can leave.
const maxTornHeaderBytes = 4 << 10

// maxSeq is above every number that is ever reached; what stands there is not ours, and numbers must not run over.
const maxSeq Seq = 1 << 62

// listSegments returns the numbers of the segments of a lane, rising. Names that are no numbers are not ours.
func listSegments(fsys vfs.FS, laneDir string) ([]Seq, error) {
	infos, err := fsys.List(laneDir)
	if err != nil {
		return nil, fmt.Errorf("list lane: %w", err)
	}
	var seqs []Seq
	for _, i := range infos {
		if seq, err := ParseSeq(i.Name); err == nil && i.Dir && seq > 0 && seq < maxSeq {
			seqs = append(seqs, seq)
		}
	}
	return seqs, nil
}

// recoverTail goes back from the last segment to one with a footer, then forward again: each without a footer is scanned,
// cut where it is torn, and closed with a footer.
func (l *Lane) recoverTail(known bool) error {
	first := len(l.segs)
	l.in = l.cur.Out
	for first > 0 {
		footer, err := l.footerOf(l.segs[first-1].seq)
		if err != nil {
			return err
		}
		if footer != nil {
			l.in = footer.Totals
			break
		}
		first--
		if l.segs[first].seq < l.cur.Exported.Seq && known {
			break // nothing before it is needed
		}
	}
	for _, g := range l.segs[first:] {
		if err := l.recoverSegment(g, known); err != nil {
			return fmt.Errorf("recover segment %s: %w", g.seq, err)
		}
	}
	return nil
}

func (l *Lane) footerOf(seq Seq) (*Footer, error) {
	f, err := l.o.FS.OpenFile(l.segmentFile(seq), os.O_RDONLY, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("open segment %s: %w", seq, err)
	}
	defer func() { _ = f.Close() }()
	size, err := f.Size()
	if err != nil {
		return nil, fmt.Errorf("size segment %s: %w", seq, err)
	}
	footer, err := readFooter(f, size)
	if footer != nil && (footer.Lane != l.o.ID || footer.Seq != seq) {
		footer = nil // the scan will say what it is
	}
	return footer, err
}

// recoverSegment scans a segment that has no footer and makes it end cleanly. Its frames were answered or not: all that is
// whole is kept, since an answer may have been on its way.
//
//nolint:cyclop // one pass over what a crash can leave, case by case
func (l *Lane) recoverSegment(g *segInfo, known bool) error {
	f, err := l.o.FS.OpenFile(l.segmentFile(g.seq), os.O_RDWR, filePerm)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // its directory became durable, its file did not: nothing was answered from it
	}
	if err != nil {
		return fmt.Errorf("open segment: %w", err)
	}
	defer func() { _ = f.Close() }()
	size, err := f.Size()
	if err != nil {
		return fmt.Errorf("size segment: %w", err)
	}
	limit, limited := l.cur.Limits[g.seq]
	if limited {
		size = min(size, limit)
	}
	second := l.cur.header(g.seq)
	sc := newScanner(f, size, l.o.ID, g.seq, second)
	end := size
	tenants := map[string]int64{}
	counted := false // a block said what had entered the lane before it
	for {
		it, err := sc.next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		if it.before != nil {
			l.in, counted = *it.before, true
		}
		switch {
		case it.kind == itemFrame:
			fr := it.frame.frame(sc.hdr.Birth)
			if counted || !fr.Position.Before(l.cur.Exported) { // else it is in Out, where the count began
				l.in = l.in.Add(fr.Totals())
			}
			tenants[it.frame.tenant] += int64(it.frame.size())
			g.last = it.frame.entry
		case it.kind == itemDamage && it.tail:
			end = it.offset
		}
	}
	switch {
	case sc.hdr == nil && known && second == nil && size <= maxTornHeaderBytes:
		end = 0 // it was never answered from, or the cursor file would have the second copy of its header
	case sc.hdr == nil:
		return nil // the drain reports it as damage
	case known && second == nil && sc.footer == nil:
		return nil // it was sealed, and its footer is damaged or gone: no torn tail, the drain reports what is missing
	}
	if err := l.cutTail(f, g, end, size); err != nil {
		l.logger().Error("torn tail not cut", zap.Stringer("segment", g.seq), zap.Int64("offset", end), zap.Error(err))
		g.end = end
		return nil
	}
	if sc.frames > 0 && sc.footer == nil { // one without frames says nothing: what the cursor knows of may be missing before it
		l.closeRecovered(f, g, sc, end, tenants)
	}
	return nil
}

// cutTail cuts a torn tail and syncs. The bytes are kept aside if there is anything in them.
func (l *Lane) cutTail(f vfs.File, g *segInfo, end, size int64) error {
	now, err := f.Size()
	if err != nil || now == end {
		return err
	}
	l.logger().Info("torn tail cut", zap.Stringer("segment", g.seq), zap.Int64("offset", end), zap.Int64("bytes", now-end))
	if !zeros(f, end, size) {
		if err := l.o.Quarantine.keep(l.o.ID, g.seq, f, end, size); err != nil {
			return err // bytes that nobody has a copy of stay; they are not read
		}
	}
	if err := f.Truncate(end); err != nil {
		return fmt.Errorf("cut: %w", err)
	}
	if err := f.Sync(); err != nil {
		return fmt.Errorf("sync: %w", err)
	}
	delete(l.cur.Limits, g.seq)
	return nil
}

// closeRecovered writes the footer that the crash left out. Without space for it the segment stays as it is.
func (l *Lane) closeRecovered(f vfs.File, g *segInfo, sc *scanner, end int64, tenants map[string]int64) {
	block, err := encodeFooter(&Footer{
		Header: *sc.hdr, Frames: sc.frames, Checksum: sc.sum.sum, Totals: l.in, Tenants: boundTenants(tenants),
	}, sc.last)
	if err == nil {
		_, err = f.WriteAt(appendEntry(nil, block), end)
	}
	if err == nil {
		err = f.Sync()
	}
	if err != nil {
		l.logger().Warn("footer not written", zap.Stringer("segment", g.seq), zap.Error(err))
		if err := errors.Join(f.Truncate(end), f.Sync()); err != nil {
			g.end = end
		}
		return
	}
	l.forget(g.seq)
}

// rebase puts the cursor before the oldest frame, with the totals that had gone before it.
func (l *Lane) rebase() error {
	l.cur.Exported, l.cur.Out, l.cur.Ledger = Start, Totals{}, Ledger{}
	if len(l.segs) == 0 {
		l.cur.Exported, l.in = Position{l.cur.NextSeq, 1}, Totals{}
		return nil
	}
	l.cur.Exported = Position{l.segs[0].seq, 1}
	for _, g := range l.segs {
		before, err := l.firstTotals(g.seq)
		if err != nil {
			return err
		}
		if before != nil {
			l.cur.Out = *before
			break
		}
	}
	// What became of them is not known any more; that they had left the lane is.
	l.cur.Ledger.Delivered = l.cur.Out.Records
	return nil
}

// firstTotals returns what had entered the lane before the first frame of a segment.
func (l *Lane) firstTotals(seq Seq) (*Totals, error) {
	f, err := l.o.FS.OpenFile(l.segmentFile(seq), os.O_RDONLY, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("open segment %s: %w", seq, err)
	}
	defer func() { _ = f.Close() }()
	size, err := f.Size()
	if err != nil {
		return nil, fmt.Errorf("size segment %s: %w", seq, err)
	}
	known, err := l.headerFor(f, size, seq)
	if err != nil {
		return nil, err
	}
	sc := newScanner(f, size, l.o.ID, seq, known)
	var seen Totals
	for {
		it, err := sc.next()
		if errors.Is(err, io.EOF) {
			return nil, nil
		}
		if err != nil {
			return nil, fmt.Errorf("scan segment %s: %w", seq, err)
		}
		if it.before != nil {
			before := it.before.Sub(seen)
			return &before, nil
		}
		if it.kind == itemFrame {
			fr := it.frame.frame(sc.hdr.Birth)
			seen = seen.Add(fr.Totals())
		}
	}
}

// headerFor finds a header's second copy: in the cursor file, or in the segment's footer.
func (l *Lane) headerFor(r io.ReaderAt, size int64, seq Seq) (*Header, error) {
	l.mu.Lock()
	h := l.cur.header(seq)
	l.mu.Unlock()
	if h != nil {
		return h, nil
	}
	footer, err := readFooter(r, size)
	if err != nil || footer == nil || footer.Lane != l.o.ID || footer.Seq != seq {
		return nil, err
	}
	return &footer.Header, nil
}

func zeros(r io.ReaderAt, from, to int64) bool {
	buf := make([]byte, 64<<10)
	for from < to {
		n := min(int64(len(buf)), to-from)
		if _, err := r.ReadAt(buf[:n], from); err != nil || !allZero(buf[:n]) {
			return false
		}
		from += n
	}
	return true
}

// ListLanes returns the lanes found under dir, the lanes folder of a data directory, and the names that are no lanes.
func ListLanes(fsys vfs.FS, dir string) (lanes []LaneID, other []string, err error) {
	infos, err := fsys.List(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, fmt.Errorf("list lanes: %w", err)
	}
	for _, i := range infos {
		if id, err := ParseLaneID(i.Name); err == nil && i.Dir {
			lanes = append(lanes, id)
		} else {
			other = append(other, i.Name)
		}
	}
	return lanes, other, nil
}
