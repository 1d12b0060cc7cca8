package segment

import (
	"bytes"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"runtime/metrics"
	"slices"
	"testing"
	"time"
)

// span is a range of bytes in a file.
type span struct{ from, to int }

func (s span) hits(o span) bool { return s.from < o.to && o.from < s.to }

// image is a segment in memory with the place of everything in it, as another process would have left it on disk.
type image struct {
	codec  Codec
	hdr    Header
	bytes  []byte
	blocks []imageBlock // of data
	frames []imageFrame
	header span // the block of the segment header, with its length prefix
	footer span // likewise; empty where there is none
	totals Totals
}

type imageBlock struct {
	span        // with its length prefix
	at   int    // of the block header
	last Entry  // of its frames
	raw  []byte // what follows the length prefix
}

// imageFrame is a data frame; with CodecZstd its span is that of the block.
type imageFrame struct {
	span
	storedFrame
}

type imageOptions struct {
	codec    Codec
	seq      Seq // 0: 1
	salt     uint64
	perBlock int
	unsealed bool
	before   Totals
}

const (
	imageSalt   = 0x0123456789abcdef
	foreignSalt = 0x0fedcba987654321
)

func imageHeader(seq Seq, salt uint64) Header {
	owner, err := ParseOwnerID("01ARZ3NDEKTSV4RRFFQ69G5FAV")
	if err != nil {
		panic(err) // a constant
	}
	return Header{Birth: Birth{owner, LaneID{Destination: "default"}, seq}, Created: time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC), salt: salt}
}

// newImage builds a segment of frames, which it numbers from 1.
func newImage(t testing.TB, o imageOptions, frames []storedFrame) *image {
	t.Helper()
	im := &image{codec: o.codec, hdr: imageHeader(max(o.seq, 1), o.salt), totals: o.before}
	must := func(err error) {
		if err != nil {
			t.Fatal(err)
		}
	}
	add := func(block []byte) span {
		from := len(im.bytes)
		im.bytes = appendEntry(im.bytes, block)
		return span{from, len(im.bytes)}
	}
	head, err := im.hdr.frame()
	must(err)
	plain := blockEncoder{}
	block, sum := plain.encode(blockHeader{salt: o.salt}, []storedFrame{head}, 0)
	im.header = add(block)
	enc, err := newBlockEncoder(o.codec)
	must(err)
	tenants := map[string]int64{}
	var last Entry
	for some := range slices.Chunk(slices.Clone(frames), o.perBlock) {
		for i := range some {
			last++
			some[i].salt, some[i].entry = o.salt, last
		}
		before := im.totals
		block, sum = enc.encode(blockHeader{salt: o.salt, before: &before}, some, sum)
		b := imageBlock{span: add(block), last: last}
		b.at, b.raw = b.to-len(block), im.bytes[b.to-len(block):b.to:b.to]
		im.blocks = append(im.blocks, b)
		at := b.at + blockHeaderBytes
		for i := range some {
			f := imageFrame{b.span, some[i]}
			if o.codec == CodecNone {
				f.span = span{at, at + some[i].size()}
				at = f.to
			}
			im.frames = append(im.frames, f)
			fr := some[i].frame(im.hdr.Birth)
			im.totals = im.totals.Add(fr.Totals())
			tenants[fr.Tenant] += int64(some[i].size())
		}
	}
	if o.unsealed {
		im.footer = span{len(im.bytes), len(im.bytes)}
		return im
	}
	block, err = encodeFooter(&Footer{Header: im.hdr, Frames: uint32(last), Checksum: sum, Totals: im.totals, Tenants: tenants}, last)
	must(err)
	im.footer = add(block)
	return im
}

// imageFrames are n frames whose bodies are about bodyBytes long, do not compress to nothing, and name them.
func imageFrames(n, bodyBytes int) []storedFrame {
	out := make([]storedFrame, n)
	for i := range out {
		body := fmt.Appendf(nil, "frame %06d ", i+1)
		for x := uint32(i + 1); len(body) < bodyBytes; {
			x ^= x << 13
			x ^= x >> 17
			x ^= x << 5
			body = append(body, byte(x))
		}
		out[i] = storedFrame{
			kind: kindData, signal: Signals[i%3], records: uint32(i%5 + 1), received: 1_700_000_000_000_000_000 + int64(i),
			tenant: []string{"default", "acme"}[i%2], body: body,
		}
	}
	return out
}

// foreign is the frame entry of a segment with another salt, whole and valid.
func foreign(entry Entry, salt uint64) []byte {
	f := storedFrame{kind: kindData, signal: Logs, salt: salt, entry: entry, records: 1, tenant: "phantom", body: []byte("phantom")}
	b, _ := f.appendTo(nil)
	return b
}

// resumBlock makes the checksum of the block header at the start of b right again.
func resumBlock(b []byte) { order.PutUint32(b[80:], crc32.Checksum(b[:80], castagnoli)) }

// resumFrame makes the checksums of the whole frame b right again.
func resumFrame(b []byte) {
	order.PutUint32(b[40:], crc32.Checksum(b[:40], castagnoli))
	sum := crc32.Checksum(b[:44], castagnoli)
	order.PutUint32(b[44:], crc32.Update(sum, castagnoli, b[frameHeaderBytes:]))
}

// splice replaces the bytes of a range.
func splice(b []byte, s span, with ...byte) []byte {
	return slices.Concat(b[:s.from], with, b[s.to:])
}

// flip changes one bit.
func flip(b []byte, at int, bit uint) []byte {
	b = slices.Clone(b)
	b[at] ^= 1 << bit
	return b
}

// scanned is what a scan of a whole file found.
type scanned struct {
	frames []storedFrame
	damage []item
	footer *Footer
	whole  bool
}

// scan reads b as a segment. It fails the test if the scan does not end.
func scan(t testing.TB, b []byte, seq Seq, known *Header) (got scanned, err error) {
	t.Helper()
	return scanFrom(t, bytes.NewReader(b), len(b), seq, known)
}

func scanFrom(t testing.TB, r io.ReaderAt, size int, seq Seq, known *Header) (got scanned, err error) {
	t.Helper()
	sc := newScanner(r, int64(size), LaneID{Destination: "default"}, seq, known)
	last := int64(0)
	for range 2*size + 2 {
		it, err := sc.next()
		if errors.Is(err, io.EOF) {
			got.footer, got.whole = sc.footer, sc.whole()
			return got, nil
		}
		if err != nil {
			return got, err
		}
		if it.offset < 0 || it.end > int64(size) || it.offset > it.end || it.end < last {
			t.Fatalf("item %d at bytes %d to %d of %d, after %d", it.kind, it.offset, it.end, size, last)
		}
		last = it.offset
		switch it.kind {
		case itemFrame:
			got.frames = append(got.frames, it.frame)
		case itemDamage:
			got.damage = append(got.damage, it)
		case itemFooter:
		}
	}
	t.Fatalf("the scan of %d bytes does not end", size)
	return got, nil
}

// sameFrame reports whether two stored frames are alike in everything that is stored.
func sameFrame(a, b *storedFrame) bool {
	birth := a.birth == b.birth || a.birth != nil && b.birth != nil && *a.birth == *b.birth
	return birth && a.kind == b.kind && a.signal == b.signal && a.flags == b.flags && a.salt == b.salt && a.entry == b.entry &&
		a.records == b.records && a.received == b.received && a.tenant == b.tenant && bytes.Equal(a.body, b.body)
}

// survivors requires that got holds all frames of im but the lost ones, in order and unchanged, and nothing else. With
// CodecZstd a lost frame may be there: one that did not get smaller lies in the file as it is, and can be found.
func (im *image) survivors(t testing.TB, got []storedFrame, lost ...Entry) {
	t.Helper()
	var numbers, want []Entry
	for i := range got {
		e := got[i].entry
		if e == 0 || int(e) > len(im.frames) || !sameFrame(&got[i], &im.frames[e-1].storedFrame) {
			t.Errorf("frame %d was never written: %.60q", e, got[i].body)
		}
		numbers = append(numbers, e)
	}
	for i := range im.frames {
		e := im.frames[i].entry
		if !slices.Contains(lost, e) || im.codec == CodecZstd && slices.Contains(numbers, e) {
			want = append(want, e)
		}
	}
	if !slices.Equal(numbers, want) {
		t.Errorf("survived %v, want all of %d but %v", numbers, len(im.frames), lost)
	}
}

// hit are the frames of which a range of the file holds a byte.
func (im *image) hit(s span) (entries []Entry) {
	for i := range im.frames {
		if im.frames[i].hits(s) {
			entries = append(entries, im.frames[i].entry)
		}
	}
	return entries
}

// entries are the numbers from first to last.
func entries(first, last Entry) (out []Entry) {
	for e := first; e <= last; e++ {
		out = append(out, e)
	}
	return out
}

// allocated is about how many bytes f allocates, also those that it frees again: small ones count late, large ones at once.
// Nothing else may run meanwhile.
func allocated(f func()) uint64 {
	sample := []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}}
	metrics.Read(sample)
	before := sample[0].Value.Uint64()
	f()
	metrics.Read(sample)
	return sample[0].Value.Uint64() - before
}
