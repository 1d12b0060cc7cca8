package segment

import (
	"bytes"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"
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
	salt := newSalt()
	images := []*image{
		newImage(f, imageOptions{salt: salt, perBlock: 3}, imageFrames(9, 60)),
		newImage(f, imageOptions{salt: salt, perBlock: 3, codec: CodecZstd}, imageFrames(9, 60)),
	}
	add := func(b []byte) {
		for _, at := range []uint16{0, 242, 900} {
			f.Add(b, at, uint16(0), true, true)
			f.Add(b, at, uint16(100), false, true)
			f.Add(b, at, uint16(1), true, false)
		}
	}
	goldenSeeds(f, "*.seg", add)
	for _, b := range [][]byte{nil, {0x80, 0x80}, make([]byte, 700), foreign(4, foreignSum), frameMagic[:], blockMagic[:]} {
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
		if known || from < im.header.to { // else the bytes may bring a header of their own
			hdr = &im.hdr
		}
		r := &reading{Reader: bytes.NewReader(file)}
		got, err := scanFrom(t, r, len(file), 1, hdr)
		if err != nil && !strings.Contains(err.Error(), ErrVersion.Error()) {
			t.Fatal(err)
		}
		if r.most > len(file) || r.total > 64*int64(len(file)) {
			t.Errorf("read %d bytes at once and %d in all of a file of %d", r.most, r.total, len(file))
		}
		own := bytes.Contains(b, im.header2()) || from < im.header.to
		for i := range got.frames {
			fr := &got.frames[i]
			if i > 0 && fr.entry <= got.frames[i-1].entry {
				t.Errorf("frame %d behind frame %d", fr.entry, got.frames[i-1].entry)
			}
			written := fr.salt == salt && fr.entry >= 1 && int(fr.entry) <= len(im.frames) && sameFrame(fr, &im.frames[fr.entry-1].storedFrame)
			if !written && !(own && fr.salt != salt) {
				t.Errorf("frame %d was never written: %.40q", fr.entry, fr.body)
			}
		}

		// Alone they may be a segment, but not this one.
		if got, _ := scan(t, b, 2, &im.hdr); len(got.frames) != 0 {
			t.Errorf("%d frames of a segment that nobody wrote", len(got.frames))
		}
		if ft, err := readFooter(bytes.NewReader(b), int64(len(b))); err == nil && ft != nil && ft.salt == salt {
			t.Error("a footer that nobody wrote")
		}
	})
}
