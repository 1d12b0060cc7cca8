package segment

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"ingest-agent/segment/vfs"
)

// Reader reads a lane beside the drain, for those that copy it: the shipper, and the archive. It passes damage without a word:
// the drain reports it, or whoever finds the gap in what was copied. One goroutine at a time.
type Reader struct {
	l    *Lane
	seg  *segInfo
	file vfs.File
	sc   *scanner
	at   Position // where the last batch ended
	sum  Totals   // of the lane before the next frame of the scan
	held *item    // was read and did not fit
}

// NewReader returns a reader of the lane. It must be closed before the lane is.
func (l *Lane) NewReader() *Reader { return &Reader{l: l} }

// Read is the shipper's: that of a reader which the lane keeps for it.
func (l *Lane) Read(from Position, maxBytes int) (*Batch, error) {
	l.reader.l = l
	return l.reader.Read(from, maxBytes)
}

// Read returns durable frames of one segment from a position on, or from the first frame behind it, with bodies of about
// maxBytes or one frame. io.EOF: there is none yet. It reads on where the last call ended if that is the position. It needs
// nothing of the drain.
func (r *Reader) Read(from Position, maxBytes int) (*Batch, error) {
	for {
		if r.sc == nil || r.at != from {
			if err := r.open(from); err != nil {
				return nil, err
			}
		}
		b, ended, err := r.fill(from, maxBytes)
		if err != nil {
			r.Close()
			return nil, fmt.Errorf("read segment %s of lane %s: %w", r.seg.seq, r.l.o.ID, err)
		}
		if ended {
			from = Position{r.seg.seq + 1, 1}
			r.Close()
		}
		switch {
		case b != nil:
			r.at = b.Next
			return b, nil
		case !ended:
			return nil, io.EOF
		}
	}
}

// open opens the segment of from, or the next one there is.
func (r *Reader) open(from Position) error {
	r.Close()
	for {
		r.l.mu.Lock()
		r.seg = nil
		for _, g := range r.l.segs {
			if g.seq >= from.Seq {
				r.seg = g
				break
			}
		}
		r.l.mu.Unlock()
		if r.seg == nil {
			return io.EOF
		}
		f, err := r.l.o.FS.OpenFile(r.l.segmentFile(r.seg.seq), os.O_RDONLY, 0)
		if errors.Is(err, fs.ErrNotExist) { // exported meanwhile, or its file never became durable
			from = Position{r.seg.seq + 1, 1}
			continue
		}
		if err != nil {
			return fmt.Errorf("open segment %s of lane %s: %w", r.seg.seq, r.l.o.ID, err)
		}
		r.file = f
		break
	}
	end, err := r.l.readable(r.seg, r.file)
	if err != nil {
		r.Close()
		return err
	}
	known, err := r.l.headerFor(r.file, end, r.seg.seq)
	if err != nil {
		r.Close()
		return err
	}
	r.sc, r.at, r.sum = newScanner(r.file, end, r.l.o.ID, r.seg.seq, known), from, Totals{}
	return nil
}

// Close gives back the file that is being read. Read opens it again.
func (r *Reader) Close() {
	if r.file != nil {
		_ = r.file.Close() // read only
	}
	r.file, r.sc, r.held = nil, nil, nil
}

// fill reads the next batch, and says whether the segment ends behind it.
func (r *Reader) fill(from Position, maxBytes int) (b *Batch, ended bool, err error) {
	size := 0
	for {
		it, more, err := r.next()
		if err != nil {
			return nil, false, err
		}
		if !more {
			ended, err := r.ended()
			if ended && b != nil {
				b.Next = b.Next.NextSegment()
			}
			return b, ended, err
		}
		if it.before != nil {
			r.sum = *it.before
		}
		if it.kind != itemFrame {
			continue
		}
		f := it.frame.frame(r.sc.hdr.Birth)
		f.Position.Seq = r.seg.seq
		switch {
		case f.Position.Before(from):
			r.sum = r.sum.Add(f.Totals())
			continue
		case b == nil:
			b = &Batch{Header: *r.sc.hdr, Before: r.sum}
		case size+len(f.Body) > maxBytes:
			r.held = &it
			return b, false, nil
		}
		size += len(f.Body)
		r.sum = r.sum.Add(f.Totals())
		b.Frames = append(b.Frames, f)
		b.Next, b.After = f.Position.After(), r.sum
	}
}

// next returns the next item of the scan; more is false where it has read all that may be read.
func (r *Reader) next() (it item, more bool, err error) {
	if r.held != nil {
		it, r.held = *r.held, nil
		return it, true, nil
	}
	it, err = r.sc.next()
	if !errors.Is(err, io.EOF) {
		return it, err == nil, err
	}
	end, err := r.l.readable(r.seg, r.file)
	if err != nil || end <= r.sc.size || r.sc.footer != nil {
		return it, false, err
	}
	r.sc.extend(end)
	return r.next()
}

// ended reports whether nothing will come behind what was read of the segment.
func (r *Reader) ended() (bool, error) {
	r.l.mu.Lock()
	open := r.seg.open
	r.l.mu.Unlock()
	if open {
		return false, nil
	}
	end, err := r.l.readable(r.seg, r.file) // frames may have come before it ended
	return end <= r.sc.size || r.sc.footer != nil, err
}

// readable is the offset up to which a segment may be read.
func (l *Lane) readable(g *segInfo, f vfs.File) (int64, error) {
	l.mu.Lock()
	end := g.end
	limit, limited := l.cur.Limits[g.seq]
	l.mu.Unlock()
	if end < 0 {
		size, err := f.Size()
		if err != nil {
			return 0, fmt.Errorf("size segment %s of lane %s: %w", g.seq, l.o.ID, err)
		}
		end = size
	}
	if limited {
		end = min(end, limit)
	}
	return end, nil
}
