package segment

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"go.uber.org/zap"

	"ingest-agent/segment/vfs"
)

// Item is one step of a source: a frame, a loss, or only progress.
type Item struct {
	Frame *Frame   // nil: nothing to deliver in this step
	Next  Position // the position behind this step
	// Lost is what should have stood before Next and cannot be read.
	Lost  Totals
	Cause Cause
	// Again is what was counted as passed but is not, as far as the frames themselves say.
	Again Totals
	// HandedOver is what stood before Next and is another owner's duty.
	HandedOver Totals
}

// Source yields the frames of a lane in order. Next blocks until there is something, and is called by one goroutine.
type Source interface {
	Next(ctx context.Context) (Item, error)
	Close() error
}

// laneSource reads a lane from its cursor, through every segment, also those that were spilled, up to the durable end, and then
// waits there.
type laneSource struct {
	l      *Lane
	pos    Position
	sum    Totals // what lies before pos
	gap    Cause  // of what will show to be missing before pos
	file   vfs.File
	stored *Stored // in place of file: the segment, or a part of it, as it was read back
	seg    *segInfo
	sc     *scanner
	begun  bool   // a frame at or behind pos was seen in this segment
	passed Totals // frames of this segment before pos
	first  *Totals
	held   []item // damage that may lie before pos

	block      recentBlock // the rest of it is next, before what sc reads
	blockStart bool        // none of it was read yet
}

// Source returns the reader of the lane's undelivered frames. There may be one at a time.
func (l *Lane) Source() Source {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := &laneSource{l: l, pos: l.cur.Exported, sum: l.cur.Out, gap: LostCorrupt}
	if l.skip.Seq == s.pos.Seq && s.pos.Entry == 1 {
		s.gap = handedOver // the last process may have come so far without counting it
	}
	return s
}

// Close releases the file that is being read.
func (s *laneSource) Close() error {
	s.l.mu.Lock()
	s.l.recent.stop()
	s.l.mu.Unlock()
	return s.closeFile()
}

func (s *laneSource) closeFile() (err error) {
	if s.file != nil {
		err = s.file.Close()
	}
	s.file, s.stored, s.sc, s.block = nil, nil, nil, recentBlock{}
	s.l.mu.Lock()
	s.l.reading = 0
	s.l.mu.Unlock()
	return err
}

// handedOver stands for the cause of a gap that is none of a loss: another owner has the frames.
const handedOver Cause = "handed_over"

// skip leaves out the segments that are another owner's duty as a whole. The cursor goes over them together with what they
// held, which shows at the next place where the lane's totals are known.
func (s *laneSource) skip() {
	s.l.mu.Lock()
	to := s.l.skip
	s.l.mu.Unlock()
	if s.pos.Seq >= to.Seq {
		return
	}
	_ = s.closeFile() // read only
	s.seg, s.held = nil, nil
	s.pos, s.gap = Position{to.Seq, 1}, handedOver
}

// Next returns the next item. Errors: ctx's, the disk's, or ErrVersion.
func (s *laneSource) Next(ctx context.Context) (Item, error) {
	for {
		s.skip()
		if s.sc == nil {
			if it, ok, err := s.openNext(ctx); ok || err != nil {
				return it, err
			}
			continue
		}
		it, ok := s.recent()
		if ok {
			if out, ok := s.step(it); ok {
				return out, nil
			}
			continue
		}
		it, err := s.sc.next()
		if errors.Is(err, io.EOF) {
			if out, ok, err := s.atEnd(ctx); ok || err != nil {
				return out, err
			}
			continue
		}
		if err != nil {
			return Item{}, fmt.Errorf("read segment %s of lane %s: %w", s.seg.seq, s.l.o.ID, err)
		}
		if out, ok := s.step(it); ok {
			return out, nil
		}
	}
}

// openNext opens the segment that holds pos or the next one there is, or waits for one.
func (s *laneSource) openNext(ctx context.Context) (Item, bool, error) {
	l := s.l
	l.mu.Lock()
	var seg *segInfo
	for _, g := range l.segs {
		if g.seq >= s.pos.Seq && !g.spilled {
			seg = g
			break
		}
	}
	if seg != nil && seg.seq == s.pos.Seq {
		l.reading = seg.seq // so that it stays
	}
	moved, in, spilled := l.moved, l.in, l.cur.Spilled
	l.mu.Unlock()
	if (seg == nil || seg.seq > s.pos.Seq) && s.pos.Before(spilled) {
		if seg != nil && spilled.Seq > seg.seq {
			spilled = Position{seg.seq, 1}
		}
		return s.openStored(ctx, spilled)
	}
	if seg == nil {
		if it, ok := s.missing(in); ok {
			return it, true, nil
		}
		return Item{}, false, s.wait(ctx, moved)
	}
	if seg.seq > s.pos.Seq { // numbers between were never used
		s.pos = Position{seg.seq, 1}
		return Item{Next: s.pos}, s.gap != handedOver, nil
	}
	s.seg, s.begun, s.passed, s.first, s.held = seg, false, Totals{}, nil, nil
	f, err := l.o.FS.OpenFile(l.segmentFile(seg.seq), os.O_RDONLY, 0)
	if errors.Is(err, fs.ErrNotExist) {
		if s.pos.Before(spilled) { // a crash took the file, and not yet its directory
			l.mu.Lock()
			seg.spilled = true
			l.mu.Unlock()
			return Item{}, false, nil
		}
		return s.leave(), true, nil
	}
	if err != nil {
		return Item{}, false, fmt.Errorf("open segment %s of lane %s: %w", seg.seq, l.o.ID, err)
	}
	if s.file != nil {
		_ = s.file.Close() // the last try failed behind its opening
	}
	s.file = f
	end, err := s.readable()
	if err != nil {
		return Item{}, false, err
	}
	known, err := l.headerFor(f, end, seg.seq)
	if err != nil {
		return Item{}, false, err
	}
	s.sc = newScanner(f, end, l.o.ID, seg.seq, known)
	return Item{}, false, nil
}

// openStored goes on with what is next in the bucket, before a position.
func (s *laneSource) openStored(ctx context.Context, before Position) (Item, bool, error) {
	l := s.l
	if l.o.Remote == nil {
		return Item{}, false, fmt.Errorf("read spilled segment %s of lane %s: no bucket is configured to read it from", s.pos.Seq, l.o.ID)
	}
	st, err := l.o.Remote.Fetch(ctx, l.o.ID, s.pos, before)
	if err != nil {
		return Item{}, false, fmt.Errorf("read spilled segment %s of lane %s: %w", s.pos.Seq, l.o.ID, err)
	}
	if s.gap == LostCorrupt {
		s.gap = LostMissing
	}
	if st == nil {
		s.pos = before
		return Item{Next: s.pos}, true, nil
	}
	if s.pos.Seq < st.Seq {
		s.pos = Position{st.Seq, 1}
	}
	end := int64(len(st.Data))
	s.seg, s.begun, s.passed, s.first, s.held = &segInfo{seq: st.Seq, end: end}, false, Totals{}, nil, nil
	known, err := l.headerFor(bytes.NewReader(st.Data), end, st.Seq)
	if err != nil {
		return Item{}, false, err
	}
	s.stored = st
	s.sc = newScanner(bytes.NewReader(st.Data), end, l.o.ID, st.Seq, known)
	return Item{}, false, nil
}

// readable is the offset up to which the current segment may be read.
func (s *laneSource) readable() (int64, error) {
	if s.stored != nil {
		return int64(len(s.stored.Data)), nil
	}
	end, err := s.l.readable(s.seg, s.file)
	if err != nil {
		return 0, err
	}
	off := int64(0)
	if s.sc != nil {
		off = s.sc.off
	}
	s.l.mu.Lock()
	defer s.l.mu.Unlock()
	if b := s.l.recent.first(s.seg.seq, off); b != nil && b.seq == s.seg.seq {
		end = min(end, b.off) // from there on it is in memory
	}
	return end, nil
}

// atEnd is called when the scan has read what may be read: it waits for more, or leaves the segment.
func (s *laneSource) atEnd(ctx context.Context) (Item, bool, error) {
	l := s.l
	l.mu.Lock()
	open, moved, in := s.seg.open, l.moved, l.in
	l.mu.Unlock()
	end, err := s.readable()
	if err != nil {
		return Item{}, false, err
	}
	switch {
	case end > s.sc.size && s.sc.footer == nil:
		s.sc.extend(end)
		return Item{}, false, nil
	case s.takeRecent():
		return Item{}, false, nil
	case !open:
		if it, ok := s.rewind(); ok {
			return it, true, nil
		}
		return s.leave(), true, nil
	}
	if it, ok := s.missing(in); ok {
		return it, true, nil
	}
	return Item{}, false, s.wait(ctx, moved)
}

// wait waits for more at the end of the lane, from where on frames may be read from memory.
func (s *laneSource) wait(ctx context.Context, moved <-chan struct{}) error {
	s.l.mu.Lock()
	s.l.recent.start()
	s.l.mu.Unlock()
	return wait(ctx, moved)
}

// missing is the loss that shows at the end of the lane: more was answered than is there.
func (s *laneSource) missing(in Totals) (Item, bool) {
	s.l.mu.Lock()
	current := s.l.in == in && (s.pos == s.l.tail || s.l.tail.Entry == 1)
	s.l.mu.Unlock()
	lost := in.Sub(s.sum)
	if !current || lost == (Totals{}) {
		return Item{}, false
	}
	it := Item{Next: s.pos}
	all := s.sum.Add(lost)
	s.compare(&all, &it)
	return it, true
}

// leave goes on to the next segment.
func (s *laneSource) leave() Item {
	s.report(s.held)
	it := Item{Next: Position{s.seg.seq + 1, 1}}
	if s.stored != nil { // there may be more of the segment
		if it.Next = (Position{s.seg.seq, s.stored.Last + 1}); it.Next.Before(s.pos) {
			it.Next = s.pos
		}
	}
	if s.sc != nil && s.sc.footer == nil && s.seg.totals != nil { // this process knows what was in it
		s.compare(s.seg.totals, &it)
	}
	s.pos = it.Next
	_ = s.closeFile() // read only
	s.seg, s.held = nil, nil
	return it
}

// step turns what the scan found into an item, if it lies at or behind the cursor.
func (s *laneSource) step(it item) (Item, bool) {
	if it.kind == itemDamage {
		s.held = append(s.held, it) // reported once it is known to lie behind the cursor
		return Item{}, false
	}
	if s.first == nil && it.before != nil && !s.begun {
		before := it.before.Sub(s.passed)
		// Frames are numbered without gaps, so this one is exact also where some of those before are damaged.
		before.Frames = it.before.Frames - min(it.before.Frames, uint64(it.frame.entry)-1)
		s.first = &before
	}
	at := Position{s.seg.seq, it.frame.entry}
	if it.kind == itemFrame && at.Before(s.pos) {
		f := it.frame.frame(s.sc.hdr.Birth)
		s.passed = s.passed.Add(f.Totals())
		s.held = nil
		return Item{}, false
	}
	if again, ok := s.rewind(); ok {
		return again, true
	}
	if it.kind == itemFooter && !s.begun && at.Before(s.pos) {
		return Item{}, false // frames behind it were exported and then lost: the cursor knows more than the segment
	}
	if s.begun || s.pos.Entry == 1 || s.pos.Before(at) { // else it was reported when the cursor passed it
		s.report(s.held)
	}
	s.begun, s.held = true, nil
	out := Item{Next: at}
	if it.before != nil {
		s.compare(it.before, &out)
	}
	if it.kind == itemFooter {
		return out, out.Lost != (Totals{}) || out.Again != (Totals{})
	}
	f := it.frame.frame(s.sc.hdr.Birth)
	s.sum = s.sum.Add(f.Totals())
	s.pos = at.After()
	out.Next = s.pos
	if s.skips(at) {
		out.HandedOver = out.HandedOver.Add(f.Totals())
	} else {
		out.Frame = &f
	}
	return out, true
}

// skips reports whether the frame at a position is another owner's duty.
func (s *laneSource) skips(at Position) bool {
	s.l.mu.Lock()
	defer s.l.mu.Unlock()
	return at.Before(s.l.skip)
}

// rewind starts the segment again where the cursor stands behind frames that it never passed: better twice than never.
func (s *laneSource) rewind() (it Item, ok bool) {
	if s.begun || s.pos.Entry == 1 || s.first == nil || s.first.Frames+uint64(s.pos.Entry)-1 == s.sum.Frames {
		return it, false
	}
	s.l.logger().Warn("cursor does not fit its segment; going on from the segment's first frame", zap.Stringer("cursor", s.pos))
	s.pos = Position{s.seg.seq, 1}
	it.Next = s.pos
	s.compare(s.first, &it)
	s.held, s.passed, s.block = nil, Totals{}, recentBlock{}
	s.sc = newScanner(s.sc.r, s.sc.size, s.l.o.ID, s.seg.seq, s.sc.hdr)
	return it, true
}

// compare says what is missing before a place where the lane's totals are known, or was counted twice.
func (s *laneSource) compare(before *Totals, out *Item) {
	gap := before.Sub(s.sum)
	out.Again = s.sum.Sub(*before)
	switch {
	case gap == (Totals{}):
	case s.gap == handedOver:
		out.HandedOver = gap
	default:
		out.Lost, out.Cause = gap, s.gap
		s.l.logger().Error("records lost", zap.String("cause", string(s.gap)), zap.Stringer("before", out.Next),
			zap.Uint64("frames", gap.Frames), zap.Any("records", gap.Records))
	}
	s.sum, s.gap = *before, LostCorrupt
}

// report says where bytes are damaged and keeps them aside.
func (s *laneSource) report(damages []item) {
	for _, d := range damages {
		path := s.l.segmentFile(s.seg.seq)
		var from io.ReaderAt = s.file
		if s.stored != nil {
			from = bytes.NewReader(s.stored.Data)
		}
		s.l.logger().Error("damage in segment", zap.String("path", path), zap.Int64("from", d.offset), zap.Int64("to", d.end), zap.Error(d.reason))
		if err := s.l.o.Quarantine.keep(s.l.o.ID, s.seg.seq, from, d.offset, d.end); err != nil {
			s.l.logger().Warn("damaged bytes not kept", zap.String("path", path), zap.Error(err))
		}
	}
}

func wait(ctx context.Context, c <-chan struct{}) error {
	select {
	case <-c:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
