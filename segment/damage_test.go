package segment

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
)

// damageCase is a change to the file of an image, and the frames that it may cost.
type damageCase struct {
	name  string
	bytes []byte
	lost  []Entry
	known bool // the second copy of the header is there
	clean bool // nothing is damaged that a scan could see
	whole bool // the footer still fits
}

func (c *damageCase) check(t *testing.T, im *image) {
	t.Helper()
	var known *Header
	if c.known {
		known = &im.hdr
	}
	got, err := scan(t, c.bytes, im.hdr.Seq, known)
	if err != nil {
		t.Fatal(err)
	}
	im.survivors(t, got.frames, c.lost...)
	if (len(got.damage) == 0) != c.clean {
		t.Errorf("damage: %v", got.damage)
	}
	if got.whole != c.whole {
		t.Errorf("whole: %v", got.whole)
	}
}

// Frames 1 to 20 in blocks of four.
func TestDamagePlain(t *testing.T) {
	t.Parallel()
	im := newImage(t, imageOptions{salt: imageSalt, perBlock: 4}, imageFrames(20, 150))
	all, b2, f6 := entries(1, 20), im.blocks[2], im.frames[5]
	at := func(from, offset int) []byte { return flip(im.bytes, from+offset, 4) }
	cases := []damageCase{
		{name: "none", bytes: im.bytes, clean: true, whole: true},
		{name: "none, second copy of the header", bytes: im.bytes, known: true, clean: true, whole: true},

		{name: "block magic", bytes: at(b2.at, 1), whole: true},
		{name: "block salt", bytes: at(b2.at, 9), whole: true},
		{name: "block stored length", bytes: at(b2.at, 30), whole: true},
		{name: "block checksum", bytes: at(b2.at, 82), whole: true},
		{name: "length prefix", bytes: at(b2.from, 0), whole: true},
		{name: "length prefix, last byte", bytes: at(b2.from, 1), whole: true},
		{name: "length prefix gone", bytes: splice(im.bytes, span{b2.from, b2.at}), whole: true},
		{name: "block header and prefix gone", bytes: splice(im.bytes, span{b2.from, b2.at + blockHeaderBytes}), clean: true, whole: true},

		{name: "frame magic", bytes: at(f6.from, 0), lost: entries(6, 6)},
		{name: "frame salt", bytes: at(f6.from, 8), lost: entries(6, 6)},
		{name: "frame number", bytes: at(f6.from, 16), lost: entries(6, 6)},
		{name: "frame body length", bytes: at(f6.from, 33), lost: entries(6, 6)},
		{name: "frame header checksum", bytes: at(f6.from, 41), lost: entries(6, 6)},
		{name: "frame checksum", bytes: at(f6.from, 44), lost: entries(6, 6)},
		{name: "tenant", bytes: at(f6.from, frameHeaderBytes), lost: entries(6, 6)},
		{name: "body", bytes: at(f6.from, frameHeaderBytes+50), lost: entries(6, 6)},
		{name: "first frame of a block", bytes: at(im.frames[8].from, 60), lost: entries(9, 9)},
		{name: "last frame of a block", bytes: at(im.frames[11].from, 60), lost: entries(12, 12)},
		{name: "first frame", bytes: at(im.frames[0].from, 60), lost: entries(1, 1)},
		{name: "last frame", bytes: at(im.frames[19].from, 60), lost: entries(20, 20)},
		{name: "block header and a frame of it", bytes: flip(at(b2.at, 5), im.frames[9].from+5, 1), lost: entries(10, 10)},

		{name: "segment header", bytes: at(im.header.from, blockHeaderBytes+60), lost: all},
		{name: "segment header, second copy", bytes: at(im.header.from, blockHeaderBytes+60), known: true},
		{name: "segment header block", bytes: at(im.header.from, 20), lost: all},
		{name: "segment header block, second copy", bytes: at(im.header.from, 20), known: true, whole: true},
		{name: "segment header gone", bytes: im.bytes[im.header.to:], lost: all},
		{name: "segment header gone, second copy", bytes: im.bytes[im.header.to:], known: true, clean: true},
		{name: "footer block", bytes: at(im.footer.from, 20), whole: true},
		{name: "footer frame", bytes: at(im.footer.from, blockHeaderBytes+60)},
		{name: "footer trailer", bytes: flip(im.bytes, len(im.bytes)-1, 0)},
		{name: "footer gone", bytes: im.bytes[:im.footer.from], clean: true},
		{name: "cut in the footer", bytes: im.bytes[:len(im.bytes)-1]},

		{name: "bytes missing in a body", bytes: splice(im.bytes, span{f6.from + 60, f6.from + 70}), lost: entries(6, 6)},
		{name: "one byte missing in a header", bytes: splice(im.bytes, span{f6.from + 20, f6.from + 21}), lost: entries(6, 6)},
		{name: "bytes missing over three blocks", bytes: splice(im.bytes, span{f6.from + 60, im.frames[13].from + 9}), lost: entries(6, 14)},
		{name: "a whole frame missing", bytes: splice(im.bytes, f6.span), lost: entries(6, 6), clean: true},
		{name: "bytes put in", bytes: splice(im.bytes, span{f6.from + 60, f6.from + 60}, 1, 2, 3), lost: entries(6, 6)},
		{name: "bytes put between frames", bytes: splice(im.bytes, span{f6.from, f6.from}, make([]byte, 5000)...), whole: true},
		{name: "a whole block missing", bytes: splice(im.bytes, b2.span), lost: entries(9, 12), clean: true},
		{name: "bytes behind the footer", bytes: append(slices.Clone(im.bytes), make([]byte, 100)...), whole: true},
	}
	for _, c := range append(cases, misplaced(t, im)...) {
		t.Run(c.name, func(t *testing.T) { c.check(t, im) })
	}
}

// misplaced are blocks and frames that are whole but do not stand where they belong, for an image of blocks of four.
func misplaced(t *testing.T, im *image) []damageCase {
	t.Helper()
	part := func(s span) []byte { return im.bytes[s.from:s.to] }
	b1, b2 := im.blocks[1], im.blocks[2]
	other := newImage(t, imageOptions{salt: foreignSalt, perBlock: 4, codec: im.codec}, imageFrames(20, 150))
	before := newImage(t, imageOptions{seq: 2, salt: imageSalt + 1, perBlock: 4, codec: im.codec}, imageFrames(20, 150))
	o2 := other.blocks[2]
	// Blocks that only who knows the salt could write.
	forge := func(salt uint64, first Entry) []byte {
		enc, err := newBlockEncoder(im.codec)
		if err != nil {
			t.Fatal(err)
		}
		frames := imageFrames(2, 150)
		for i := range frames {
			frames[i].salt, frames[i].entry = salt, first+Entry(i)
		}
		block, _ := enc.encode(blockHeader{salt: imageSalt, before: &Totals{}}, frames, 0)
		return appendEntry(nil, block)
	}
	return []damageCase{
		{name: "block twice", bytes: splice(im.bytes, span{b2.to, b2.to}, part(b2.span)...), whole: true},
		{name: "first block again at the end", bytes: splice(im.bytes, span{im.footer.from, im.footer.from}, part(im.blocks[0].span)...), whole: true},
		{name: "blocks swapped", bytes: splice(im.bytes, span{b1.from, b2.to}, slices.Concat(part(b2.span), part(b1.span))...), lost: entries(5, 8)},
		{name: "block behind the footer", bytes: append(slices.Clone(im.bytes), part(b1.span)...), whole: true},
		{name: "footer twice", bytes: append(slices.Clone(im.bytes), part(im.footer)...), whole: true},
		{name: "footer in the middle", bytes: splice(im.bytes, span{b2.from, b2.from}, part(im.footer)...), lost: entries(9, 20)},
		{name: "segment header twice", bytes: splice(im.bytes, span{b2.from, b2.from}, part(im.header)...), whole: true},
		{name: "block of another segment in place of one", bytes: splice(im.bytes, b2.span, other.bytes[o2.from:o2.to]...), lost: entries(9, 12)},
		{name: "block of another segment put in", bytes: splice(im.bytes, span{b2.from, b2.from}, other.bytes[o2.from:o2.to]...), whole: true},
		{name: "frames of another segment in a block of ours", bytes: splice(im.bytes, b2.span, forge(foreignSalt, 9)...), lost: entries(9, 12)},
		{name: "frames behind the footer, next numbers", bytes: append(slices.Clone(im.bytes), forge(imageSalt, 30)...), whole: true},
		{name: "another whole segment put in", bytes: splice(im.bytes, span{b2.from, b2.from}, other.bytes...), whole: true},
		{name: "another whole segment behind", bytes: append(slices.Clone(im.bytes), other.bytes...), whole: true},
		{name: "another file", bytes: before.bytes, lost: entries(1, 20)},
		{name: "another file, second copy", bytes: before.bytes, lost: entries(1, 20), known: true},
		{name: "frames of another segment behind our header", bytes: slices.Concat(part(im.header), other.bytes[other.header.to:]), lost: entries(1, 20)},
	}
}

func TestDamageZstd(t *testing.T) {
	t.Parallel()
	im := newImage(t, imageOptions{salt: imageSalt, perBlock: 4, codec: CodecZstd}, imageFrames(20, 150))
	all, b2 := entries(1, 20), im.blocks[2]
	at := func(from, offset int) []byte { return flip(im.bytes, from+offset, 4) }
	cases := []damageCase{
		{name: "none", bytes: im.bytes, clean: true, whole: true},
		{name: "block header", bytes: at(b2.at, 30), lost: entries(9, 12)},
		{name: "block body", bytes: at(b2.at, blockHeaderBytes+40), lost: entries(9, 12)},
		{name: "length prefix", bytes: at(b2.from, 0), whole: true},
		{name: "bytes missing in a block", bytes: splice(im.bytes, span{b2.at + 100, b2.at + 110}), lost: entries(9, 12)},
		{name: "segment header", bytes: at(im.header.from, blockHeaderBytes+60), lost: all},
		{name: "segment header, second copy", bytes: at(im.header.from, blockHeaderBytes+60), known: true},
		{name: "footer", bytes: at(im.footer.from, blockHeaderBytes+60)},
	}
	for _, c := range append(cases, misplaced(t, im)...) {
		t.Run(c.name, func(t *testing.T) { c.check(t, im) })
	}
}

// A page of 4 KiB gone bad costs the frames that have a byte in it, at most.
func TestDamagePage(t *testing.T) {
	t.Parallel()
	const page = 4096
	rng := rand.New(rand.NewPCG(4, 1))
	noise := make([]byte, page)
	for i := range noise {
		noise[i] = byte(rng.Uint32())
	}
	for _, codec := range []Codec{CodecNone, CodecZstd} {
		im := newImage(t, imageOptions{salt: imageSalt, perBlock: 3, codec: codec}, imageFrames(60, 900))
		end := len(im.bytes) / page * page
		for name, from := range map[string]int{"start": 0, "second": page, "middle": len(im.bytes) / 2 / page * page, "last whole": end - page, "end": end} {
			for what, fill := range map[string][]byte{"zeros": make([]byte, page), "noise": noise} {
				t.Run(fmt.Sprintf("codec %d/%s/%s", codec, name, what), func(t *testing.T) {
					bad := span{from, min(from+page, len(im.bytes))}
					lost := im.hit(bad)
					c := damageCase{bytes: splice(im.bytes, bad, fill[:bad.to-bad.from]...), lost: lost, known: from == 0}
					c.check(t, im)
					if len(lost) > 8 && codec == CodecNone {
						t.Errorf("a page cost %d frames of 900 bytes", len(lost))
					}
					if from == 0 { // without a second copy nothing can be told from forged bytes
						c.known, c.lost = false, entries(1, 60)
						c.check(t, im)
					}
				})
			}
		}
	}
}

// A body is bytes from outside. Whatever it holds, and whatever is damaged around it, it never comes to life.
func TestDamageAroundForgedBodies(t *testing.T) {
	t.Parallel()
	inner := newImage(t, imageOptions{salt: foreignSalt, perBlock: 2}, imageFrames(4, 40))
	packed := newImage(t, imageOptions{salt: foreignSalt, perBlock: 2, codec: CodecZstd}, imageFrames(4, 40))
	passed := blockHeader{salt: imageSalt, first: 2, frames: 1, rawLen: 100, storedLen: 100, before: &Totals{}}
	for _, c := range []struct {
		name string
		body []byte
	}{
		{"frame of another salt", foreign(6, foreignSalt)},
		{"frame of another salt, next number", foreign(7, foreignSalt)},
		{"whole segment", inner.bytes},
		{"whole segment, zstd", packed.bytes},
		{"block of another salt", inner.blocks[0].raw},
		{"frame of our salt, number of a frame before", foreign(4, imageSalt)},
		{"frame of our salt, first number", foreign(1, imageSalt)},
		{"frame of our salt, number 0", foreign(0, imageSalt)},
		{"block of our salt, number passed", passed.appendTo(nil)},
		{"magics", bytes.Repeat(slices.Concat(frameMagic[:], blockMagic[:], trailerMagic[:]), 40)},
		{"half a magic", bytes.Repeat(frameMagic[:3], 40)},
	} {
		t.Run(c.name, func(t *testing.T) {
			frames := imageFrames(20, 150)
			frames[5].body = slices.Concat([]byte("<<<"), c.body, []byte(">>>"))
			im := newImage(t, imageOptions{salt: imageSalt, perBlock: 4}, frames)
			f6, b1 := im.frames[5], im.blocks[1]
			forged := f6.to - 3 - len(c.body)
			for _, d := range []damageCase{
				{name: "none", bytes: im.bytes, clean: true, whole: true},
				{name: "frame header", bytes: flip(im.bytes, f6.from+33, 2), lost: entries(6, 6)},
				{name: "body before it", bytes: flip(im.bytes, forged-1, 2), lost: entries(6, 6)},
				{name: "body behind it", bytes: flip(im.bytes, f6.to-1, 2), lost: entries(6, 6)},
				{name: "all before it", bytes: splice(im.bytes, span{f6.from, forged}), lost: entries(6, 6)},
				{name: "all around it", bytes: splice(splice(im.bytes, span{f6.to - 3, f6.to}), span{f6.from, forged}), lost: entries(6, 6)},
				{name: "block and frame header", bytes: flip(flip(im.bytes, b1.at, 0), f6.from, 0), lost: entries(6, 6)},
				{name: "from the length prefix on", bytes: splice(im.bytes, span{b1.from, forged}), lost: entries(5, 6)},
				{name: "segment header and frame header", bytes: flip(flip(im.bytes, 30, 0), f6.from, 0), lost: entries(6, 6), known: true},
				{name: "segment header, no second copy", bytes: flip(flip(im.bytes, im.header.to-9, 0), f6.from, 0), lost: entries(1, 20)},
			} {
				t.Run(d.name, func(t *testing.T) { d.check(t, im) })
			}
		})
	}
}

// Case 7 of the field's bug reports: one changed bit costs at most the frame (zstd: the block) that it hits, and never makes
// a frame or a large allocation.
func TestCase07FlipEachBit(t *testing.T) {
	for codec, sample := range map[Codec]int{CodecNone: 10_000, CodecZstd: 2_000} {
		im := newImage(t, imageOptions{salt: imageSalt, perBlock: 10, codec: codec}, imageFrames(100, 40))
		rng := rand.New(rand.NewPCG(7, uint64(codec)))
		bits := len(im.bytes) * 8
		t.Logf("codec %d: %d of %d bits, seed 7", codec, min(sample, bits), bits)
		b := slices.Clone(im.bytes)
		for _, at := range rng.Perm(bits)[:min(sample, bits)] {
			b[at/8] ^= 1 << (at % 8)
			lost := im.hit(span{at / 8, at/8 + 1})
			known := &im.hdr
			switch {
			case at%2 == 0 && at/8 < im.header.to:
				known, lost = nil, entries(1, 100) // the header is all there is to know the segment by
			case at%2 == 0:
				known = nil
			}
			if codec == CodecZstd && inPrefix(im, at/8) {
				lost = nil
			}
			var got scanned
			var err error
			n := allocated(func() { got, err = scan(t, b, 1, known) })
			if err != nil {
				t.Fatalf("bit %d: %v", at, err)
			}
			im.survivors(t, got.frames, lost...)
			if n > 4<<20 {
				t.Errorf("bit %d: allocated %d bytes for a file of %d", at, n, len(b))
			}
			if t.Failed() {
				t.Fatalf("bit %d of byte %d", at%8, at/8)
			}
			b[at/8] ^= 1 << (at % 8)
		}
	}
}

// inPrefix reports whether a byte is of a block's length prefix, the one part of a block that is not needed.
func inPrefix(im *image, at int) bool {
	return slices.ContainsFunc(im.blocks, func(b imageBlock) bool { return at >= b.from && at < b.at })
}

// Case 4, the scan: a file that was cut anywhere keeps every frame that is whole before the cut; the rest is a tail.
func TestCase04CutAnywhere(t *testing.T) {
	t.Parallel()
	for _, codec := range []Codec{CodecNone, CodecZstd} {
		im := newImage(t, imageOptions{salt: imageSalt, perBlock: 2, codec: codec, unsealed: true}, imageFrames(10, 100))
		for n := range im.bytes {
			got, err := scan(t, im.bytes[:n], 1, nil)
			if err != nil {
				t.Fatal(err)
			}
			im.survivors(t, got.frames, im.hit(span{n, len(im.bytes)})...)
			for i, d := range got.damage { // of a torn zstd block a frame that lies in it as it is may be found
				if last := i == len(got.damage)-1; d.tail != (d.end == int64(n)) || !last && codec == CodecNone {
					t.Errorf("cut at %d: damage %+v, want a tail", n, d)
				}
			}
			if t.Failed() {
				t.Fatalf("codec %d: cut at %d of %d", codec, n, len(im.bytes))
			}
		}
	}
}
