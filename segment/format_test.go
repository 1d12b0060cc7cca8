package segment

import (
	"bytes"
	"encoding/binary"
	"errors"
	"flag"
	"hash/crc32"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"ingest-agent/segment/vfs"
)

var update = flag.Bool("update", false, "write the golden files anew")

// goldenFrames use every part of the frame format.
func goldenFrames() []storedFrame {
	birth := imageHeader(77, 0).Birth
	birth.Lane = LaneID{Destination: "other-lane_9", Shard: 1023, Parked: 12}
	at := time.Date(2026, 1, 2, 3, 4, 6, 789, time.UTC).UnixNano()
	return []storedFrame{
		{kind: kindData, signal: Logs, records: 3, received: at, tenant: "default", body: []byte("\x0a\x05logs!")},
		{kind: kindData, signal: Traces, flags: FlagInvalidUTF8, records: 1, received: at + 1, tenant: "acme", body: []byte("\x0a\x03\xff\xfe\xfd")},
		{kind: kindData, signal: Metrics, received: at + 2, tenant: "default"},
		{kind: kindData, signal: Logs, records: 9, received: at + 3, tenant: "acme", body: []byte("moved here"), birth: &FrameID{birth, 4_000_000_000}},
		{kind: kindData, signal: Traces, records: 1<<32 - 1, received: -1, tenant: strings.Repeat("t", MaxTenantBytes), body: bytes.Repeat([]byte("span "), 600)},
		{kind: kindData, signal: Metrics, records: 1, received: at + 5, body: foreign(7, foreignSalt)},
		{kind: kindData, signal: Metrics, records: 2, received: at + 6, tenant: "default", body: []byte("the last one")},
	}
}

func goldenFile(t *testing.T, name string, now []byte) []byte {
	t.Helper()
	path := filepath.Join("testdata", "golden", name)
	if *update {
		if err := os.WriteFile(path, now, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// The format of version 1 is these files: they must decode for ever. Where only the bytes of zstd.seg differ after an update
// of the compression library, the format did not change and the file may be written anew.
func TestGoldenSegments(t *testing.T) {
	for name, o := range map[string]imageOptions{
		"plain.seg": {salt: imageSalt, perBlock: 3, before: Totals{Frames: 5, Records: Counts{1, 2, 3}, Bytes: 99}},
		"zstd.seg":  {salt: imageSalt, perBlock: 3, codec: CodecZstd, before: Totals{Frames: 5, Records: Counts{1, 2, 3}, Bytes: 99}},
	} {
		t.Run(name, func(t *testing.T) {
			im := newImage(t, o, goldenFrames())
			file := goldenFile(t, name, im.bytes)
			got, err := scan(t, file, 1, nil)
			if err != nil {
				t.Fatal(err)
			}
			im.survivors(t, got.frames)
			if len(got.damage) != 0 || !got.whole {
				t.Errorf("damage %v, whole %v", got.damage, got.whole)
			}
			want := &Footer{Header: im.hdr, Frames: 7, Checksum: got.footer.Checksum, Totals: im.totals, Tenants: got.footer.Tenants}
			if !reflect.DeepEqual(got.footer, want) || got.footer.Tenants["acme"] == 0 {
				t.Errorf("footer %+v, want %+v", got.footer, want)
			}
			if ft, err := readFooter(bytes.NewReader(file), int64(len(file))); err != nil || !reflect.DeepEqual(ft, want) {
				t.Errorf("footer from the end: %+v, %v", ft, err)
			}
			if f := got.frames[3].frame(im.hdr.Birth); f.ID.String() != "01ARZ3NDEKTSV4RRFFQ69G5FAV/other-lane_9.1023.p12/00000000000000000077:4000000000" {
				t.Errorf("birth id %s", f.ID)
			}
			if !bytes.Equal(file, im.bytes) {
				t.Errorf("encodes to other bytes: %d, the golden file has %d", len(im.bytes), len(file))
			}
		})
	}
}

func TestGoldenCursor(t *testing.T) {
	lane := LaneID{Destination: "default"}
	hdr := imageHeader(9, imageSalt)
	want := &CursorState{
		Lane: lane, Generation: 41, Saved: hdr.Created, Exported: Position{8, 3},
		Out:      Totals{10, Counts{4, 3, 6}, 1000},
		Ledger:   Ledger{Delivered: Counts{1, 2, 3}, Rejected: Counts{1}, Moved: Counts{0, 1}, Lost: map[Cause]Counts{LostCorrupt: {2}, LostMaxAge: {0, 0, 3}}},
		In:       Totals{12, Counts{5, 5, 6}, 1234},
		Accepted: map[string]Accepted{"acme": {Counts{1}, Counts{2}}, OtherTenants: {Counts{3}, Counts{4}}},
		NextSeq:  11, Open: []OpenSegment{{hdr, hdr.salt}}, Limits: map[Seq]int64{8: 4096},
	}
	b, err := encodeCursorSlot(want)
	if err != nil {
		t.Fatal(err)
	}
	file := goldenFile(t, "cursor.slot", b)
	got, err := parseCursorSlot(file, lane)
	if err != nil {
		t.Fatal(err)
	}
	if h := got.header(9); h == nil || h.salt != imageSalt {
		t.Errorf("second copy of the header: %+v", h)
	}
	got.Open[0].salt, want.Open[0].salt = 0, 0 // not stored under this name
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if !bytes.Equal(file, b) {
		t.Error("encodes to other bytes")
	}
}

// What a lane writes through the log library is what the images of these tests are.
func TestWriterMatchesImage(t *testing.T) {
	for _, codec := range []Codec{CodecNone, CodecZstd} {
		im := newImage(t, imageOptions{salt: imageSalt, perBlock: 4, codec: codec}, imageFrames(10, 200))
		dir := t.TempDir()
		w, err := createSegment(vfs.OS(), dir, im.hdr, nil)
		if err != nil {
			t.Fatal(err)
		}
		enc, err := newBlockEncoder(codec)
		if err != nil {
			t.Fatal(err)
		}
		var in Totals
		tenants := map[string]int64{}
		for some := range slices.Chunk(imageFrames(10, 200), 4) {
			if err := w.append(enc, some, in); err != nil {
				t.Fatal(err)
			}
			for i := range some {
				f := some[i].frame(im.hdr.Birth)
				in = in.Add(f.Totals())
				tenants[f.Tenant] += int64(some[i].size())
			}
		}
		if err := w.seal(in, tenants); err != nil {
			t.Fatal(err)
		}
		w.drop()
		file, err := os.ReadFile(filepath.Join(dir, Seq(1).String(), logFile))
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(file, im.bytes) {
			t.Errorf("codec %d: the log holds %d bytes, the image %d, and they differ", codec, len(file), len(im.bytes))
		}
		if w.written != int64(len(file)) {
			t.Errorf("codec %d: the writer counts %d bytes, the file has %d", codec, w.written, len(file))
		}
	}
}

// headerChange sets one byte of a header and says what the decoder must make of it, its checksums being right.
type headerChange struct {
	name  string
	at    int
	value byte
	want  error
}

func TestFrameHeaderRefused(t *testing.T) {
	f := goldenFrames()[3]
	f.salt, f.entry = imageSalt, 4
	whole, _ := f.appendTo(nil)
	decode := func(b []byte) error {
		h, err := parseFrameHeader(b)
		if err == nil && h.size() == len(b) {
			_, err = h.parse(b)
		}
		return err
	}
	if err := decode(whole); err != nil {
		t.Fatal(err)
	}
	for _, c := range []headerChange{
		{"version 0", 4, 0, ErrVersion},
		{"version 2", 4, 2, ErrVersion},
		{"version 255", 4, 255, ErrVersion},
		{"kind 0", 5, 0, errDamaged},
		{"kind 4", 5, 4, errDamaged},
		{"signal 0", 6, 0, errDamaged},
		{"signal 4", 6, 4, errDamaged},
		{"flag bit 1", 7, byte(flagBirth | 1<<1), errDamaged},
		{"flag bit 6", 7, byte(flagBirth | 1<<6), errDamaged},
		{"birth id without its flag", 7, 0, errDamaged},
		{"birth flag without an id", 38, 0, errDamaged},
		{"birth id without a lane", 38, birthBytes, errDamaged},
		{"birth id too long", 38, birthBytes + maxLaneBytes + 1, errDamaged},
		{"reserved byte", 37, 1, errDamaged},
		{"body over the cap", 35, 5, errDamaged},
	} {
		b := slices.Clone(whole)
		b[c.at] = c.value
		resumFrame(b)
		if err := decode(b); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", c.name, err, c.want)
		}
		b[c.at] ^= 0x20 // and whatever it says, a wrong checksum is damage
		if err := decode(b); !errors.Is(err, errDamaged) {
			t.Errorf("%s, wrong checksum: %v", c.name, err)
		}
	}
}

func TestBlockHeaderRefused(t *testing.T) {
	plain := newImage(t, imageOptions{salt: imageSalt, perBlock: 2}, imageFrames(2, 50)).blocks[0].raw
	packed := newImage(t, imageOptions{salt: imageSalt, perBlock: 2, codec: CodecZstd}, imageFrames(2, 50)).blocks[0].raw
	for _, c := range []struct {
		headerChange
		block []byte
	}{
		{headerChange{"unchanged", 4, 1, nil}, plain},
		{headerChange{"unchanged", 4, 1, nil}, packed},
		{headerChange{"version 0", 4, 0, ErrVersion}, plain},
		{headerChange{"version 2", 4, 2, ErrVersion}, packed},
		{headerChange{"codec 2", 5, 2, ErrVersion}, packed},
		{headerChange{"flag bit 1", 6, 2 | blockHasTotals, errDamaged}, plain},
		{headerChange{"flag bit 7", 6, 1 << 7, errDamaged}, plain},
		{headerChange{"reserved byte 7", 7, 1, errDamaged}, plain},
		{headerChange{"reserved bytes 36 to 39", 39, 1, errDamaged}, plain},
		{headerChange{"no frames", 20, 0, errDamaged}, plain},
		{headerChange{"raw length over the cap", 27, 5, errDamaged}, packed},
		{headerChange{"stored length over the cap", 31, 5, errDamaged}, packed},
		{headerChange{"plain block with two lengths", 28, 1, errDamaged}, plain},
		{headerChange{"plain block with a checksum", 32, 1, errDamaged}, plain},
	} {
		b := slices.Clone(c.block)
		b[c.at] = c.value
		resumBlock(b)
		if _, err := parseBlockHeader(b); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", c.name, err, c.want)
		}
		b[c.at] ^= 0x20
		if _, err := parseBlockHeader(b); !errors.Is(err, errDamaged) {
			t.Errorf("%s, wrong checksum: %v", c.name, err)
		}
	}
}

func TestCursorSlotRefused(t *testing.T) {
	lane := LaneID{Destination: "default"}
	whole, err := encodeCursorSlot(&CursorState{Lane: lane, Generation: 3, Exported: Position{2, 1}, NextSeq: 3})
	if err != nil {
		t.Fatal(err)
	}
	resum := func(b []byte) {
		sum := crc32.Checksum(b[:24], castagnoli)
		order.PutUint32(b[24:], crc32.Update(sum, castagnoli, b[cursorHeadBytes:]))
	}
	for _, c := range []headerChange{
		{"unchanged", 4, 1, nil},
		{"version 2", 4, 2, ErrVersion},
		{"reserved byte 5", 5, 1, ErrVersion},
		{"reserved byte 7", 7, 1, ErrVersion},
		{"length over the cap", 11, 1, errDamaged},
		{"length over what is there", 9, 9, errDamaged},
		{"another generation", 12, 4, errDamaged},
		{"payload", cursorHeadBytes, '[', errDamaged},
	} {
		b := slices.Clone(whole)
		b[c.at] = c.value
		resum(b)
		if _, err := parseCursorSlot(b, lane); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", c.name, err, c.want)
		}
		b[c.at] ^= 0x20
		if _, err := parseCursorSlot(b, lane); !errors.Is(err, errDamaged) {
			t.Errorf("%s, wrong checksum: %v", c.name, err)
		}
	}
	if _, err := parseCursorSlot(whole, LaneID{Destination: "default", Shard: 1}); !errors.Is(err, errDamaged) {
		t.Errorf("cursor of another lane: %v", err)
	}
}

// A scan stops at a later version where a block or frame of ours must stand, by name; behind damage it proves nothing.
func TestScanStopsAtLaterVersion(t *testing.T) {
	im := newImage(t, imageOptions{salt: imageSalt, perBlock: 2}, imageFrames(6, 60))
	later := func(change func(b []byte)) []byte {
		b := slices.Clone(im.bytes)
		change(b)
		return b
	}
	f, bl := im.frames[3], im.blocks[1]
	for name, b := range map[string][]byte{
		"frame": later(func(b []byte) { b[f.from+4] = 2; resumFrame(b[f.from:f.to]) }),
		"block": later(func(b []byte) { b[bl.at+4] = 2; resumBlock(b[bl.at:]) }),
		"codec": later(func(b []byte) { b[bl.at+5] = 2; resumBlock(b[bl.at:]) }),
	} {
		if _, err := scan(t, b, 1, nil); !errors.Is(err, ErrVersion) || !strings.Contains(err.Error(), " 2: ") {
			t.Errorf("%s: %v, want a later version, by its number", name, err)
		}
	}
	b := later(func(b []byte) {
		b[im.frames[2].from+20] ^= 1 // damage in the frame before it
		b[f.from+4] = 2
		resumFrame(b[f.from:f.to])
	})
	got, err := scan(t, b, 1, nil)
	if err != nil {
		t.Fatal(err)
	}
	im.survivors(t, got.frames, 3, 4)
}

// Nothing is allocated by a length that is not checked, nor one over its cap by a header that is.
func TestLengthsAreCapped(t *testing.T) {
	plain := newImage(t, imageOptions{salt: imageSalt, perBlock: 2}, imageFrames(8, 60))
	packed := newImage(t, imageOptions{salt: imageSalt, perBlock: 2, codec: CodecZstd}, imageFrames(8, 60))
	put := func(im *image, at int, n uint32, resum func([]byte), part span) []byte {
		b := slices.Clone(im.bytes)
		order.PutUint32(b[at:], n)
		if resum != nil {
			resum(b[part.from:part.to])
		}
		return b
	}
	f, pb, zb := plain.frames[2], plain.blocks[1], packed.blocks[1]
	pbAt, zbAt := span{pb.at, pb.to}, span{zb.at, zb.to}
	enc, err := newBlockEncoder(CodecZstd)
	if err != nil {
		t.Fatal(err)
	}
	bomb := slices.Clone(zb.raw[:blockHeaderBytes])
	zeros := enc.zstd.EncodeAll(make([]byte, maxBlockBytes/8), nil)
	bomb = append(bomb, bytes.Repeat(zeros, 40)...) // five times the cap
	order.PutUint32(bomb[28:], uint32(len(bomb)-blockHeaderBytes))
	order.PutUint32(bomb[32:], crc32.Checksum(bomb[blockHeaderBytes:], castagnoli))
	resumBlock(bomb)
	const some = 4 << 20
	for _, c := range []struct {
		name  string
		im    *image
		bytes []byte
		lost  []Entry
		max   uint64 // bytes allocated
	}{
		{"body over the cap", plain, put(plain, f.from+32, MaxBodyBytes+1, resumFrame, f.span), entries(3, 3), some},
		{"body of 4 GiB", plain, put(plain, f.from+32, 1<<32-1, resumFrame, f.span), entries(3, 3), some},
		{"body of 4 GiB, wrong checksum", plain, put(plain, f.from+32, 1<<32-1, nil, f.span), entries(3, 3), some},
		{"body at the cap, not there", plain, put(plain, f.from+32, MaxBodyBytes, resumFrame, f.span), entries(3, 3), some},
		{"plain block over the cap", plain, put(plain, pb.at+24, maxBlockBytes+1, resumBlock, pbAt), nil, some},
		{"block over the cap", packed, put(packed, zb.at+28, maxBlockBytes+1, resumBlock, zbAt), entries(3, 4), some},
		{"block of 4 GiB", packed, put(packed, zb.at+28, 1<<32-1, resumBlock, zbAt), entries(3, 4), some},
		{"block of 4 GiB, wrong checksum", packed, put(packed, zb.at+28, 1<<32-1, nil, zbAt), entries(3, 4), some},
		{"block at the cap, not there", packed, put(packed, zb.at+28, maxBlockBytes, resumBlock, zbAt), entries(3, 4), some},
		{"block with another checksum", packed, put(packed, zb.at+32, 1, resumBlock, zbAt), entries(3, 4), some},
		{"block that inflates to less than it says", packed, put(packed, zb.at+24, 1000, resumBlock, zbAt), entries(3, 4), some},
		{"block that inflates to more than it says", packed, splice(packed.bytes, zb.span, appendEntry(nil, bomb)...), entries(3, 4), some},
		{"log entry of 8 EiB", plain, splice(plain.bytes, span{pb.from, pb.at}, binary.AppendUvarint(nil, 1<<63)...), nil, some},
		{"log entry without an end", plain, splice(plain.bytes, span{pb.from, pb.at}, bytes.Repeat([]byte{0xff}, 20)...), nil, some},
	} {
		t.Run(c.name, func(t *testing.T) {
			var got scanned
			var err error
			n := allocated(func() { got, err = scan(t, c.bytes, 1, nil) })
			if err != nil {
				t.Fatal(err)
			}
			c.im.survivors(t, got.frames, c.lost...)
			if n > c.max {
				t.Errorf("allocated %d bytes for a file of %d", n, len(c.bytes))
			}
			if len(got.damage) == 0 {
				t.Error("no damage was reported")
			}
		})
	}
}

// A footer counts only if it is one, whole, and says where it stands.
func TestFooterFromTheEnd(t *testing.T) {
	im := newImage(t, imageOptions{salt: imageSalt, perBlock: 3}, imageFrames(6, 60))
	n := len(im.bytes)
	tail := func(length uint32) []byte {
		b := slices.Clone(im.bytes)
		order.PutUint32(b[n-trailerBytes:], length)
		return b
	}
	for name, b := range map[string][]byte{
		"empty file":            nil,
		"shorter than a footer": im.bytes[n-100:],
		"cut by one":            im.bytes[:n-1],
		"one byte more":         append(slices.Clone(im.bytes), 0),
		"length 0":              tail(0),
		"length over the file":  tail(uint32(n + 1)),
		"length of 4 GiB":       tail(1<<32 - 1),
		"length that is off":    tail(order.Uint32(im.bytes[n-trailerBytes:]) + 1),
		"trailer without magic": flip(im.bytes, n-1, 0),
		"damaged body":          flip(im.bytes, n-trailerBytes-5, 3),
		"damaged block header":  flip(im.bytes, im.footer.from+10, 3),
	} {
		var ft *Footer
		var err error
		if alloc := allocated(func() { ft, err = readFooter(bytes.NewReader(b), int64(len(b))) }); alloc > 1<<20 {
			t.Errorf("%s: allocated %d bytes", name, alloc)
		}
		if ft != nil || err != nil {
			t.Errorf("%s: %+v, %v, want no footer", name, ft, err)
		}
	}
}
