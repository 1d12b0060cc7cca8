package segment

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/klauspost/compress/zstd"
)

// itemKind says what a scan found.
type itemKind uint8

const (
	itemFrame itemKind = iota + 1
	itemFooter
	itemDamage
)

// item is what one step of a scan found, with the bytes of the file that it stands in.
type item struct {
	kind   itemKind
	offset int64
	end    int64
	frame  storedFrame
	// before is what had entered the lane before this frame; set on the first frame of a block and on a footer, where the
	// block's header is whole.
	before *Totals
	footer *Footer
	// damage
	reason error
	tail   bool // nothing whole follows: a torn tail, if the segment was being written
}

// scanner reads a segment from its start as a stream: it holds one chunk of the file in memory, trusts no length before its
// checksum, and after damage goes on with the next whole frame. Frames alias chunks that are never reused.
type scanner struct {
	r      io.ReaderAt
	size   int64 // bytes of the file that may be read
	want   Birth // lane and seq by the file's path; the header must agree
	hdr    *Header
	second *Header // stands in for hdr where that is damaged
	footer *Footer

	off      int64 // next byte to be looked at
	blockEnd int64 // end of the current plain block; 0 outside one
	before   *Totals
	last     Entry
	sum      chained // over data frames and the header
	frames   uint32

	buf  []byte // chunk of the file from base
	base int64

	packed   bool   // a zstd block was seen: frames stand in such only
	inflated []byte // rest of the current zstd block
	zOff     int64  // where that block stands in the file
	dec      *zstd.Decoder
}

const (
	chunkBytes = 1 << 20
	// searchBytes is how much of the file is looked at in one step when looking for the next whole frame.
	searchBytes = 256 << 10
)

// newScanner reads the first size bytes of r, the segment seq of a lane. known is the header as it is known from elsewhere,
// or nil: without a header nothing in the segment can be told from forged bytes. The segment's own copy comes first, since the
// other may be from a directory that has only its names in common with this one.
func newScanner(r io.ReaderAt, size int64, lane LaneID, seq Seq, known *Header) *scanner {
	return &scanner{r: r, size: size, want: Birth{Lane: lane, Seq: seq}, second: known}
}

// extend lets the scan go on to a larger size. It must only be called after io.EOF or between items.
func (s *scanner) extend(size int64) {
	if size > s.size {
		s.size = size
	}
}

// between reports whether the next byte is the first of a log entry.
func (s *scanner) between() bool {
	return len(s.inflated) == 0 && (s.blockEnd == 0 || s.off >= s.blockEnd)
}

// pass goes on behind a block that was read elsewhere; between must hold, and the block begin at s.off. The scan then no longer
// knows the checksum of all.
func (s *scanner) pass(b *recentBlock) {
	s.extend(b.end)
	s.off, s.blockEnd = b.end, 0
	s.last, s.before = b.frames[len(b.frames)-1].entry, nil
	s.packed = s.packed || b.codec == CodecZstd
}

// window returns n bytes of the file at off, which must lie inside size. It aliases the chunk.
func (s *scanner) window(off int64, n int) ([]byte, error) {
	if off < s.base || off+int64(n) > s.base+int64(len(s.buf)) {
		chunk := int(min(int64(max(n, chunkBytes)), s.size-off))
		buf := make([]byte, chunk)
		kept := 0
		if off >= s.base && off < s.base+int64(len(s.buf)) {
			kept = copy(buf, s.buf[off-s.base:])
		}
		if _, err := s.r.ReadAt(buf[kept:], off+int64(kept)); err != nil {
			return nil, fmt.Errorf("read segment at %d: %w", off, err)
		}
		s.buf, s.base = buf, off
	}
	at := off - s.base
	return s.buf[at : at+int64(n) : at+int64(n)], nil
}

// next returns the next item, io.EOF at the end of what may be read, or an error of the disk or ErrVersion.
func (s *scanner) next() (item, error) {
	for {
		if len(s.inflated) > 0 {
			return s.nextInflated()
		}
		if s.blockEnd > 0 && s.off >= s.blockEnd {
			s.blockEnd = 0
		}
		if s.off >= s.size {
			return item{}, io.EOF
		}
		if s.blockEnd == 0 {
			bad, err := s.openEntry()
			if err != nil {
				return item{}, err
			}
			if bad != nil {
				return s.resync(s.off, bad)
			}
			continue
		}
		it, bad, err := s.plainFrame(s.off, s.blockEnd)
		if err != nil {
			return item{}, err
		}
		if bad != nil {
			if cut, err := s.blockCutHere(); cut || err != nil {
				if err != nil {
					return item{}, err
				}
				continue
			}
			return s.resync(s.off, bad)
		}
		s.off = it.end
		if it.kind != 0 {
			return it, nil
		}
	}
}

// openEntry reads a log entry's length prefix and the block header behind it. Behind damage that hit a block's header, a
// frame may stand there instead; the two cannot be confused, since a length prefix is followed by a block's magic.
func (s *scanner) openEntry() (bad, err error) {
	b, err := s.window(s.off, int(min(binary.MaxVarintLen64, s.size-s.off)))
	if err != nil {
		return nil, err
	}
	if bytes.HasPrefix(b, frameMagic[:]) {
		if ok, err := s.resume(s.off); ok || err != nil {
			return nil, err
		}
		return damaged("frame"), nil
	}
	length, n := binary.Uvarint(b)
	if n <= 0 || length < blockHeaderBytes || length > blockHeaderBytes+maxBlockBytes {
		return damaged("log entry length"), nil
	}
	if s.size-s.off-int64(n) < blockHeaderBytes {
		return damaged("log entry of %d bytes, %d are there", length, s.size-s.off-int64(n)), nil
	}
	return s.enterBlock(s.off+int64(n), int(length))
}

// blockCutHere goes on with the log entry at s.off, if one begins there: a block that a crash tore was cut back to its last
// whole frame, and what follows is the footer that the start put behind it. That is no damage.
func (s *scanner) blockCutHere() (bool, error) {
	end := s.blockEnd
	s.blockEnd = 0
	bad, err := s.openEntry()
	if bad != nil || err != nil {
		s.blockEnd = end
		return false, ignoreVersion(err)
	}
	return true, nil
}

// enterBlock makes the block at off, of length bytes if that is known (else 0), the current one.
func (s *scanner) enterBlock(off int64, length int) (bad, err error) {
	b, err := s.window(off, blockHeaderBytes)
	if err != nil {
		return nil, err
	}
	h, err := parseBlockHeader(b)
	if err != nil {
		return splitVersion(err)
	}
	body := off + blockHeaderBytes
	if s.hdr != nil && h.salt != s.hdr.salt {
		return damaged("block of another segment"), nil
	}
	s.packed = s.packed || h.codec == CodecZstd
	switch {
	case length != 0 && length != blockHeaderBytes+h.storedLen:
		return damaged("block of %d bytes in a log entry of %d", blockHeaderBytes+h.storedLen, length), nil
	case int64(h.storedLen) > s.size-body && h.codec != CodecNone:
		return damaged("block of %d bytes, %d are there", h.storedLen, s.size-body), nil
	case h.first <= s.last && s.last > 0:
		return damaged("block out of order"), nil
	}
	if h.codec == CodecZstd {
		stored, err := s.window(body, h.storedLen)
		if err != nil {
			return nil, err
		}
		if s.dec == nil {
			if s.dec, err = newBlockDecoder(); err != nil {
				return nil, fmt.Errorf("create block decoder: %w", err)
			}
		}
		raw, err := h.decompress(s.dec, stored)
		if err != nil {
			return err, nil
		}
		s.inflated, s.zOff, s.off = raw, off, body+int64(h.storedLen)
		s.before = h.before
		return nil, nil
	}
	// A block that was torn still holds its first frames.
	s.before, s.off, s.blockEnd = h.before, body, min(body+int64(h.storedLen), s.size)
	return nil, nil
}

// plainFrame decodes the frame at off that must end by end.
func (s *scanner) plainFrame(off, end int64) (it item, bad, err error) {
	if end-off < frameHeaderBytes {
		return it, damaged("%d bytes left in a block", end-off), nil
	}
	b, err := s.window(off, frameHeaderBytes)
	if err != nil {
		return it, nil, err
	}
	h, err := parseFrameHeader(b)
	if err != nil {
		bad, err = splitVersion(err)
		return it, bad, err
	}
	if s.hdr != nil && h.salt != s.hdr.salt {
		return it, damaged("frame of another segment"), nil
	}
	if int64(h.size()) > end-off {
		return it, damaged("frame of %d bytes, %d are there", h.size(), end-off), nil
	}
	if b, err = s.window(off, h.size()); err != nil {
		return it, nil, err
	}
	f, err := h.parse(b)
	if err != nil {
		return it, err, nil
	}
	it, bad = s.take(f, h.sum)
	it.offset, it.end = off, off+int64(h.size())
	return it, bad, nil
}

// nextInflated decodes the next frame of a zstd block. Its checksum held, so what does not fit here was never written.
func (s *scanner) nextInflated() (item, error) {
	b := s.inflated
	var bad error
	var it item
	if len(b) < frameHeaderBytes {
		bad = damaged("%d bytes left in a block", len(b))
	} else if h, err := parseFrameHeader(b); err != nil {
		if bad, err = splitVersion(err); err != nil {
			return item{}, err
		}
	} else if h.size() > len(b) || s.hdr != nil && h.salt != s.hdr.salt {
		bad = damaged("frame of another block")
	} else if f, err := h.parse(b[:h.size():h.size()]); err != nil {
		bad = err
	} else if it, bad = s.take(f, h.sum); bad == nil {
		s.inflated = b[h.size():]
		it.offset, it.end = s.zOff, s.off
		return it, nil
	}
	s.inflated = nil
	return item{kind: itemDamage, offset: s.zOff, end: s.off, reason: bad}, nil
}

// take checks that a frame stands where it may and makes an item of it. A header gives an item of kind 0.
func (s *scanner) take(f storedFrame, sum uint32) (it item, bad error) {
	before := s.before
	if s.hdr == nil && f.kind != kindHeader {
		if s.hdr = s.second; s.hdr != nil && f.salt != s.hdr.salt {
			return it, damaged("frame of another segment")
		}
	}
	switch f.kind {
	case kindHeader:
		if s.hdr == nil {
			h, err := f.header()
			if err != nil {
				return it, err
			}
			if h.Lane != s.want.Lane || h.Seq != s.want.Seq {
				return it, damaged("header of segment %s of lane %s", h.Seq, h.Lane)
			}
			s.hdr = h
		}
		if s.frames > 0 || s.last > 0 {
			return it, damaged("second segment header")
		}
		s.sum.sum = 0
		s.sum.add(sum)
		return item{}, nil
	case kindFooter:
		ft, err := f.footer()
		if err != nil {
			return it, err
		}
		if s.footer != nil || f.entry <= s.last {
			return it, damaged("footer out of order")
		}
		s.footer, s.last, s.before = ft, f.entry, nil
		return item{kind: itemFooter, frame: f, footer: ft, before: before}, nil
	case kindData:
	}
	if s.hdr == nil {
		return it, damaged("frame before the segment header")
	}
	if f.entry <= s.last || s.footer != nil {
		return it, damaged("frame %d behind frame %d", f.entry, s.last)
	}
	s.last, s.before = f.entry, nil
	s.frames++
	s.sum.add(sum)
	return item{kind: itemFrame, frame: f, before: before}, nil
}

// whole reports whether the scan has seen the segment from header to footer with nothing missing.
func (s *scanner) whole() bool {
	return s.hdr != nil && s.footer != nil && s.footer.Frames == s.frames && s.footer.Checksum == s.sum.sum
}

// resync looks for the next whole block or frame behind damage that starts at from, and returns the damage as an item. A
// magic alone proves nothing: header checksum, salt and order must hold as well, and for a frame its whole checksum.
func (s *scanner) resync(from int64, reason error) (item, error) {
	s.blockEnd, s.before = 0, nil
	it := item{kind: itemDamage, offset: from, end: s.size, reason: reason, tail: true}
	if s.hdr == nil {
		s.hdr = s.second
	}
	if s.hdr == nil {
		// Without the salt a forged frame could not be told from a real one.
		s.off = s.size
		return it, nil
	}
	for at := from + 1; at < s.size; {
		n := int(min(searchBytes, s.size-at))
		b, err := s.window(at, n)
		if err != nil {
			return item{}, err
		}
		i := nextMagic(b)
		if i < 0 {
			if at += int64(n) - 3; n < searchBytes {
				break
			}
			continue
		}
		at += int64(i)
		ok, err := s.resume(at)
		if err != nil {
			return item{}, err
		}
		if ok {
			it.end, it.tail = at, false
			return it, nil
		}
		at++
	}
	s.off = s.size
	return it, nil
}

// nextMagic finds the magic of a block or a frame, or -1.
func nextMagic(b []byte) int {
	for at := 0; ; {
		i := bytes.Index(b[at:], blockMagic[:3]) // both magics differ in their last byte only
		if i < 0 || at+i+4 > len(b) {
			return -1
		}
		at += i
		if c := b[at+3]; c == blockMagic[3] || c == frameMagic[3] {
			return at
		}
		at++
	}
}

// resume makes the scan go on at a magic, if what stands there is whole.
func (s *scanner) resume(at int64) (bool, error) {
	b, err := s.window(at, int(min(4, s.size-at)))
	if err != nil {
		return false, err
	}
	if b[3] == blockMagic[3] {
		if s.size-at < blockHeaderBytes {
			return false, nil
		}
		bad, err := s.enterBlock(at, 0)
		return bad == nil && err == nil, ignoreVersion(err)
	}
	if s.packed {
		return false, nil // one that did not get smaller, inside a damaged block: damage costs the block
	}
	// A frame whose block's header is damaged: how far the block goes is not known, so look at one frame at a time.
	probe := *s
	it, bad, err := probe.plainFrame(at, s.size)
	if bad != nil || err != nil {
		return false, ignoreVersion(err)
	}
	s.off, s.blockEnd = at, it.end
	return true, nil
}

// splitVersion separates damage from a format that must be left alone.
func splitVersion(err error) (bad, fatal error) {
	if errors.Is(err, ErrVersion) {
		return nil, err
	}
	return err, nil
}

// ignoreVersion: behind damage, a version field proves nothing.
func ignoreVersion(err error) error {
	if errors.Is(err, ErrVersion) {
		return nil
	}
	return err
}
