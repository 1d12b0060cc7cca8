package segment

import (
	"bytes"
	"errors"
	"hash/crc32"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

// goldenSeeds gives a fuzz target the golden files.
func goldenSeeds(f *testing.F, pattern string, add func(b []byte)) {
	f.Helper()
	names, err := filepath.Glob(filepath.Join("testdata", "golden", pattern))
	if err != nil || len(names) == 0 {
		f.Fatalf("no golden files %s: %v", pattern, err)
	}
	for _, name := range names {
		b, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		add(b)
	}
}

// reading counts what a scan asks of a file.
type reading struct {
	*bytes.Reader
	most  int
	total int64
}

func (r *reading) ReadAt(p []byte, off int64) (int, error) {
	r.most, r.total = max(r.most, len(p)), r.total+int64(len(p))
	return r.Reader.ReadAt(p, off)
}

// FuzzScan puts bytes from outside into a segment whose salt they cannot know, in place of some of its own, and scans them
// alone too. Whatever they are, the scan ends, asks for no more than there is, and finds only frames that were written.
func FuzzScan(f *testing.F) {
	const salt = 0x9d3c51f2a7e6480b // not in the seeds; always the same, so that what the fuzzer learns stays true
	images := []*image{
		newImage(f, imageOptions{seq: 9, salt: salt, perBlock: 3}, imageFrames(9, 60)),
		newImage(f, imageOptions{seq: 9, salt: salt, perBlock: 3, codec: CodecZstd}, imageFrames(9, 60)),
	}
	add := func(b []byte) {
		for _, at := range []uint16{0, 242, 900} {
			f.Add(b, at, uint16(0), true, true)
			f.Add(b, at, uint16(100), false, true)
			f.Add(b, at, uint16(1), true, false)
		}
	}
	goldenSeeds(f, "*.seg", add)
	for _, b := range [][]byte{nil, {0x80, 0x80}, make([]byte, 700), foreign(4, foreignSalt), frameMagic[:], blockMagic[:]} {
		add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte, at, cut uint16, packed, known bool) {
		im := images[0]
		if packed {
			im = images[1]
		}
		from := min(int(at), len(im.bytes))
		file := splice(im.bytes, span{from, min(from+int(cut), len(im.bytes))}, b...)
		var hdr *Header
		if known {
			hdr = &im.hdr
		}
		r := &reading{Reader: bytes.NewReader(file)}
		got, err := scanFrom(t, r, len(file), 9, hdr)
		if err != nil && !errors.Is(err, ErrVersion) {
			t.Fatal(err)
		}
		if r.most > len(file) || r.total > 64*int64(len(file)) {
			t.Errorf("read %d bytes at once and %d in all of a file of %d", r.most, r.total, len(file))
		}
		for i := range got.frames {
			fr := &got.frames[i]
			if i > 0 && fr.entry <= got.frames[i-1].entry {
				t.Errorf("frame %d behind frame %d", fr.entry, got.frames[i-1].entry)
			}
			if fr.entry == 0 || int(fr.entry) > len(im.frames) || !sameFrame(fr, &im.frames[fr.entry-1].storedFrame) {
				t.Errorf("frame %d was never written: %.40q", fr.entry, fr.body)
			}
		}

		// Alone they may be a segment, but not this one.
		if got, _ := scan(t, b, 9, &im.hdr); len(got.frames) != 0 {
			t.Errorf("%d frames of a segment that nobody wrote", len(got.frames))
		}
		if ft, err := readFooter(bytes.NewReader(b), int64(len(b))); err == nil && ft != nil && ft.salt == salt {
			t.Error("a footer that nobody wrote")
		}
	})
}

// FuzzCursorSlot reads bytes as a slot, and as the payload of one with a right checksum. What is read can be written and read
// again.
func FuzzCursorSlot(f *testing.F) {
	goldenSeeds(f, "cursor.slot", func(b []byte) {
		f.Add(b)
		f.Add(b[cursorHeadBytes:])
		f.Add(b[:cursorHeadBytes])
	})
	f.Add([]byte(`{"lane":"default.0","generation":1,"exported":"00000000000000000001.0000000001"}`))
	f.Add([]byte(`{"lane":"default.0","open":[{}],"limits":{"1":-1},"ledger":{"lost":{"":null}},"accepted":{}}`))
	f.Add(make([]byte, cursorSlotBytes))
	lane := LaneID{Destination: "default"}
	f.Fuzz(func(t *testing.T, b []byte) {
		if st, err := parseCursorSlot(b, lane); err == nil {
			againCursor(t, st)
		}
		if len(b) > maxCursorPayload {
			return
		}
		head := slotAround(b, 1)
		if st, err := parseCursorSlot(head, lane); err == nil {
			againCursor(t, st)
		} else if !isDamaged(err) {
			t.Errorf("payload refused, but not as damage: %v", err)
		}
	})
}

// slotAround is a slot with a right checksum around any payload.
func slotAround(payload []byte, generation uint64) []byte {
	b := append(slices.Clone(cursorMagic[:]), formatVersion, 0, 0, 0)
	b = order.AppendUint32(b, uint32(len(payload)))
	b = order.AppendUint64(b, generation)
	b = order.AppendUint32(b, 0)
	sum := crc32.Checksum(b, castagnoli)
	return append(order.AppendUint32(b, crc32.Update(sum, castagnoli, payload)), payload...)
}

func againCursor(t *testing.T, st *CursorState) {
	t.Helper()
	first, err := encodeCursorSlot(st)
	if err != nil {
		return // what is escaped may take more room than it took
	}
	again, err := parseCursorSlot(first, st.Lane)
	if err != nil {
		t.Fatalf("%v: %q", err, first)
	}
	if second, err := encodeCursorSlot(again); err != nil || !bytes.Equal(first, second) {
		t.Errorf("%v\n%q\n%q", err, first, second)
	}
}

// FuzzDecodeObject reads bytes as an object, and objects of the fuzzer's own frames, whole and with one change.
func FuzzDecodeObject(f *testing.F) {
	goldenSeeds(f, "*.seg", func(b []byte) { f.Add(b, "default", uint32(1), uint32(3), int64(5), uint32(100)) })
	f.Add([]byte("body"), "", uint32(7), uint32(0), int64(-1), uint32(0))
	f.Add(foreign(1, foreignSalt), strings.Repeat("x", MaxTenantBytes), uint32(maxEntries), uint32(1<<32-1), int64(1<<62), uint32(300))
	birth := imageHeader(1, 0).Birth
	f.Fuzz(func(t *testing.T, b []byte, text string, number, records uint32, received int64, hit uint32) {
		if frames, _, err := DecodeObject(b, birth); err == nil && len(frames) == 0 {
			t.Error("an object without frames is whole")
		}
		number = max(1, number%maxEntries)
		frame := func(number uint32, flags Flags, body []byte) Frame {
			return Frame{
				ID: FrameID{birth, Entry(number)}, Position: Position{birth.Seq, Entry(number)}, Signal: Signals[number%3], Flags: flags,
				Tenant: text[:min(len(text), MaxTenantBytes)], Received: time.Unix(0, received), Records: records, Body: body,
			}
		}
		want := []Frame{frame(number, FlagInvalidUTF8, b), frame(number+1, 0, b[:len(b)/2])}
		note := strings.ToValidUTF8(text, "?")
		object, err := EncodeObject(want, note, time.Unix(1, 2))
		if err != nil {
			t.Fatal(err)
		}
		got, gotNote, err := DecodeObject(object, birth)
		if err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(got, want) && len(b) > 1 || gotNote != note {
			t.Errorf("note %q, frames %+v, want %+v", gotNote, got, want)
		}
		object[int(hit)%len(object)] ^= 1 << (hit >> 29)
		if got, _, err := DecodeObject(object, birth); err == nil {
			t.Errorf("one bit of %d changed, and decoded to %+v", len(object), got)
		}
		if _, _, err := DecodeObject(object[:int(hit)%len(object)], birth); err == nil {
			t.Error("cut, and decoded")
		}
		againRange(t, &Batch{Header: imageHeader(birth.Seq, uint64(received)), Frames: want, Before: Totals{Frames: uint64(hit)}}, hit)
		if o, err := ReadObject(b, birth.Lane, birth.Seq); err == nil && o.Whole && len(o.Damage) > 0 {
			t.Errorf("whole, and damaged: %+v", o.Damage)
		}
	})
}

// againRange holds that a range reads as it was written, and that one changed bit shows and costs no more than it hits.
func againRange(t *testing.T, b *Batch, hit uint32) {
	t.Helper()
	object, err := EncodeRange(b)
	if err != nil {
		t.Fatal(err)
	}
	o, err := ReadObject(object, b.Header.Lane, b.Header.Seq)
	if err != nil || !o.Whole || len(o.Frames) != len(b.Frames) || *o.Before != b.Before || *o.After != b.After {
		t.Fatalf("%+v, want %+v (%v)", o, b, err)
	}
	object[int(hit)%len(object)] ^= 1 << (hit >> 29)
	if o, err := ReadObject(object, b.Header.Lane, b.Header.Seq); err == nil && o.Whole {
		t.Error("one bit changed, and the object is whole")
	}
}

// FuzzParseIDs holds that each identity has one text form: what parses is written back as it was.
func FuzzParseIDs(f *testing.F) {
	for _, text := range []string{
		"default.0", "a_b-c.1023.p7", "default.00", "default.-1", "default.1024", "default.0.p0", "default.0.p01", "..", "A.0", "default.0.p99999999999999999999",
		"01ARZ3NDEKTSV4RRFFQ69G5FAV", "01arz3ndektsv4rrffq69g5fav", "81ARZ3NDEKTSV4RRFFQ69G5FAV", "01ARZ3NDEKTSV4RRFFQ69G5FAI",
		"00000000000000000001", "18446744073709551615", "18446744073709551616", "+0000000000000000001",
		"00000000000000000001.0000000001", "18446744073709551615.4294967295", "00000000000000000001.4294967296", "00000000000000000001_0000000001",
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if l, err := ParseLaneID(text); err == nil {
			if l.String() != text || len(text) > maxLaneBytes || !utf8.ValidString(text) || filepath.Base(text) != text {
				t.Errorf("lane %q is written %q", text, l)
			}
		}
		if o, err := ParseOwnerID(text); err == nil && o.String() != text {
			t.Errorf("owner %q is written %q", text, o)
		}
		if s, err := ParseSeq(text); err == nil && s.String() != text {
			t.Errorf("segment number %q is written %q", text, s)
		}
		var p Position
		if err := p.UnmarshalText([]byte(text)); err == nil && p.String() != text {
			t.Errorf("position %q is written %q", text, p)
		}
		if s, err := ParseSignal(text); err == nil && (s.String() != text || !s.Valid()) {
			t.Errorf("signal %q is written %q", text, s)
		}
	})
}
