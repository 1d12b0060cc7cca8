package segment

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"ingest-agent/segment/vfs"
)

// Case 4 of the field's bug reports: the last bytes of a segment are missing. The lane opens, what is whole before the cut is
// there, and what is appended then is there after one more start.
func TestCase04LastBytesMissing(t *testing.T) {
	t.Parallel()
	for _, codec := range []Codec{CodecNone, CodecZstd} {
		im := newImage(t, imageOptions{codec: codec, salt: imageSalt, perBlock: 1, unsealed: true}, imageFrames(10, 100))
		n := len(im.bytes)
		cur := &CursorState{Lane: im.hdr.Lane, Generation: 1, Exported: Start, NextSeq: 3, Open: []OpenSegment{{im.hdr, im.hdr.salt}}}
		for k := 1; k <= n-im.blocks[8].from; k++ {
			edge := k == n-im.blocks[9].from || k == n-im.blocks[9].from+1
			if k > 16 && k%7 != 0 && !edge { // TestCase04CutAnywhere leaves out none
				continue
			}
			want := frameBodies(im)[:10-len(im.hit(span{n - k, n}))]
			cut := map[Seq][]byte{1: im.bytes[:n-k]}
			mem := vfs.NewMem()
			seed(t, mem, seedDir, cur, cut)
			l, err := drainOnly(t, mem, seedDir)
			if err != nil {
				t.Fatal(err)
			}
			if got, lost := readPending(t, l); lost != (Totals{}) || !slices.Equal(bodiesOf(got), want) {
				t.Errorf("%d frames, lost %+v: what was torn was never answered", len(got), lost)
			}
			if err := l.Close(); err != nil {
				t.Fatal(err)
			}
			if k%77 == 0 || k == 3 || edge {
				appendAfterCut(t, cur, cut, want)
			}
			if t.Failed() {
				t.Fatalf("codec %d: cut by %d bytes", codec, k)
			}
		}
	}
}

// appendAfterCut opens a cut lane on the real disk, appends, and opens it again.
func appendAfterCut(t *testing.T, cur *CursorState, cut map[Seq][]byte, want []string) {
	t.Helper()
	dir := t.TempDir()
	onDisk := func(o *LaneOptions) { o.FS = noSync{vfs.OS()} }
	seed(t, noSync{vfs.OS()}, dir, cur, cut)
	l := newLane(t, dir, onDisk)
	if more := appendMany(t, l, 0, 2); len(more) != 2 {
		t.Errorf("%d of 2 answered behind a cut tail", len(more))
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	l = newLane(t, dir, onDisk)
	frames, _ := readPending(t, l)
	got := bodiesOf(frames)
	if len(got) < 2 || !slices.Equal(got[:len(got)-2], want) {
		t.Errorf("after the second start %d frames, want %d and 2", len(got), len(want))
	}
	if at := frames[len(frames)-1].Position; at.Seq != 3 || at.Entry != 2 {
		t.Errorf("appended at %s: a segment of its own was promised", at)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
}

// Case 5: what is appended behind a torn tail must be readable at the next start, and the torn bytes gone from the lane.
func TestCase05AppendsAfterTornTail(t *testing.T) {
	t.Parallel()
	for name, torn := range map[string]func(block []byte) []byte{
		"half a block":        func(b []byte) []byte { return b[:len(b)/2] },
		"all but one byte":    func(b []byte) []byte { return b[:len(b)-1] },
		"only a length":       func(b []byte) []byte { return b[:2] },
		"zeros":               func(b []byte) []byte { return make([]byte, len(b)) },
		"zeros in a block":    func(b []byte) []byte { return slices.Concat(b[:100], make([]byte, len(b)-100)) },
		"zeros before an end": func(b []byte) []byte { return slices.Concat(make([]byte, 100), b[100:]) },
	} {
		for _, codec := range []Codec{CodecNone, CodecZstd} {
			t.Run(fmt.Sprintf("%s, codec %d", name, codec), func(t *testing.T) { tornTail(t, codec, torn) })
		}
	}
}

func tornTail(t *testing.T, codec Codec, torn func([]byte) []byte) {
	set := func(o *LaneOptions) { o.FS, o.Settings.Codec = noSync{vfs.OS()}, codec }
	frame := func(name byte) *Frame {
		return &Frame{Signal: Logs, Tenant: "default", Received: time.Unix(1, 0), Records: 1, Body: bytes.Repeat([]byte{name}, 300)}
	}
	add := func(l *Lane, names string) {
		for _, name := range []byte(names) {
			if err := l.Append(t.Context(), frame(name)); err != nil {
				t.Fatal(err)
			}
		}
	}
	first := t.TempDir()
	l := newLane(t, first, set)
	add(l, "A")
	whole := int(l.active.written)
	path := l.segmentFile(l.active.hdr.Seq)
	dir := copyDir(t, first)
	add(l, "B")
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	left := torn(b[whole:])
	if err := os.WriteFile(filepath.Join(dir, path[len(first):]), slices.Concat(b[:whole], left), filePerm); err != nil {
		t.Fatal(err)
	}

	l = newLane(t, dir, set)
	add(l, "CD")
	killed := copyDir(t, dir)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	l = newLane(t, killed, set)
	frames, lost := readPending(t, l)
	var names []byte
	for _, f := range frames {
		names = append(names, f.Body[0])
	}
	if string(names) != "ACD" || lost != (Totals{}) {
		t.Errorf("pending %q, lost %+v, want A, C and D in order", names, lost)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if r, err := InspectLane(vfs.OS(), filepath.Join(killed, "lanes"), l.ID(), nil); err != nil || !r.Whole() {
		t.Errorf("not whole after the start: %+v, %v", r, err)
	}
	if allZero(left) {
		return
	}
	kept := laneFiles(t, vfs.OS(), filepath.Join(killed, "quarantine"))
	if len(kept) != 1 || !bytes.HasSuffix(left, kept[0]) {
		t.Fatalf("%d files in the quarantine, want the torn bytes in one", len(kept))
	}
	// The header of a torn block may stay. It says what entered the lane before it, which is right.
	if n := len(left) - len(kept[0]); n > maxEntryOverheadBytes {
		t.Errorf("%d of %d torn bytes stayed", n, len(left))
	}
	rest := bytes.TrimRight(kept[0], "\x00")
	for _, file := range laneFiles(t, vfs.OS(), filepath.Join(killed, "lanes")) {
		if len(rest) > frameHeaderBytes && bytes.Contains(file, rest) { // fewer bytes say nothing of the frame
			t.Error("the torn bytes are still in the lane")
		}
	}
}

// Case 10: what helps to find things is a cache. Here it is the footer, found from the end of the file, and the second copies
// of headers in the cursor file: without them, with older ones or with those of others all frames are read.
func TestCase10StaleIndex(t *testing.T) {
	t.Parallel()
	for _, codec := range []Codec{CodecNone, CodecZstd} {
		for _, seq := range []Seq{2, 3} { // one that a start only counts, and the last, whose end it reads
			ims := laneImages(t, codec, 3, 10, 100)
			im, neighbour := ims[seq-1], ims[4-seq]
			before := ims[seq-2].totals
			body := im.bytes[:im.footer.from]
			namesake := newImage(t, imageOptions{codec: codec, seq: seq, salt: foreignSalt, perBlock: 5}, imageFrames(10, 100))
			older := newImage(t, imageOptions{codec: codec, seq: seq, salt: im.hdr.salt, perBlock: 5, before: before}, imageFrames(5, 100))
			footer := func(of *image) []byte { return slices.Concat(body, of.bytes[of.footer.from:of.footer.to]) }
			second := func(of *image) []OpenSegment { return []OpenSegment{{of.hdr, of.hdr.salt}} }
			for _, c := range []struct {
				name  string
				bytes []byte // of the segment
				open  []OpenSegment
				index bool // there is a file beside the log
			}{
				{name: "none", bytes: body},
				{name: "older footer", bytes: footer(older)},
				{name: "footer of a neighbour", bytes: footer(neighbour)},
				{name: "footer of a namesake", bytes: footer(namesake)},
				{name: "empty footer", bytes: append(slices.Clone(body), make([]byte, 400)...)},
				{name: "file beside the log", bytes: im.bytes, index: true},
				{name: "second copy of a neighbour's header", bytes: im.bytes, open: second(neighbour)},
				{name: "second copy of a namesake's header", bytes: im.bytes, open: second(namesake)},
				{name: "second copy of a namesake's header, no footer", bytes: body, open: second(namesake)},
				{name: "own header damaged, footer", bytes: flip(im.bytes, im.header.to-9, 1)},
				{name: "own header damaged, second copy, no footer", bytes: flip(body, im.header.to-9, 1), open: second(im)},
				{name: "own header gone, second copy, no footer", bytes: body[im.header.to:], open: second(im)},
			} {
				t.Run(fmt.Sprintf("codec %d, segment %d, %s", codec, seq, c.name), func(t *testing.T) {
					m := vfs.NewMem()
					cur := &CursorState{Lane: im.hdr.Lane, Generation: 1, Exported: Start, NextSeq: 4, Open: c.open}
					segments := map[Seq][]byte{1: ims[0].bytes, 2: ims[1].bytes, 3: ims[2].bytes}
					segments[seq] = c.bytes
					seed(t, m, seedDir, cur, segments)
					if c.index {
						writeDurable(t, m, filepath.Join(seedLaneDir(seedDir), seq.String(), "index"), nil)
					}
					got, ledger := settled(t, m, seedDir)
					sameSet(t, got, frameBodies(ims...), false)
					if ledger.Lost != nil {
						t.Errorf("lost %v", ledger.Lost)
					}
				})
			}
		}
	}
}

// Case 13: whatever the cursor says, the lane starts, and no frame that is there and was not exported is skipped.
func TestCase13CursorDoesNotFit(t *testing.T) {
	t.Parallel()
	ims := laneImages(t, CodecNone, 3, 10, 100)
	all := frameBodies(ims...)
	lane := ims[0].hdr.Lane
	behind := func(n int) (at Position, out Totals) { // n frames
		for i := range n {
			f := ims[i/10].frames[i%10].frame(Birth{})
			out = out.Add(f.Totals())
		}
		return Position{Seq(n/10 + 1), Entry(n%10 + 1)}, out
	}
	state := func(n int, change func(*CursorState)) []byte {
		at, out := behind(n)
		st := &CursorState{Lane: lane, Generation: 7, Exported: at, Out: out, Ledger: Ledger{Delivered: out.Records}, In: ims[2].totals, NextSeq: 4}
		if change != nil {
			change(st)
		}
		return cursorBytes(t, st)
	}
	slots := func(first, second []byte) []byte {
		return slices.Concat(first[:cursorSlotBytes], second[:cursorSlotBytes])
	}
	noise := bytes.Repeat([]byte{0xa5}, cursorSlotBytes)
	for _, c := range []struct {
		name   string
		cursor []byte // nil: no file
		gone   Seq    // segments up to it are not there
		from   int    // frames before it were delivered earlier and may not come again
		again  bool   // some of them may
		lost   uint64 // frames
	}{
		{name: "no cursor"},
		{name: "empty", cursor: []byte{}},
		{name: "zeros", cursor: make([]byte, 2*cursorSlotBytes)},
		{name: "noise", cursor: slots(noise, noise)},
		{name: "half a slot", cursor: state(12, nil)[:100]},
		{name: "fits", cursor: state(12, nil), from: 12},
		{name: "fits, all exported", cursor: state(30, nil), from: 30},
		{name: "first slot damaged", cursor: slots(noise, state(12, nil)), from: 12},
		{name: "second slot damaged", cursor: slots(state(12, nil), noise), from: 12},
		{name: "older in the second slot", cursor: slots(state(12, nil), state(5, func(s *CursorState) { s.Generation = 6 })), from: 12},
		{name: "of another lane", cursor: state(12, func(s *CursorState) { s.Lane.Shard = 1 })},
		{name: "past the end", cursor: state(12, func(s *CursorState) { s.Exported = Position{99, 1} })},
		{name: "past the end, its number used", cursor: state(12, func(s *CursorState) { s.Exported, s.NextSeq = Position{99, 1}, 200 })},
		{name: "past the end of its segment", cursor: state(12, func(s *CursorState) { s.Exported.Entry = 500 }), from: 10},
		{name: "past the end of the last segment", cursor: state(25, func(s *CursorState) { s.Exported.Entry = 500 }), from: 20},
		{name: "past the end of the last segment, all counted", cursor: state(30, func(s *CursorState) { s.Exported = Position{3, 500} }), from: 20, again: true},
		{name: "behind more than it counts", cursor: state(12, func(s *CursorState) { s.Exported.Entry = 8 }), from: 10},
		{name: "behind less than it counts", cursor: state(18, func(s *CursorState) { s.Exported.Entry = 2 }), from: 10},
		{name: "at entry 0", cursor: state(12, func(s *CursorState) { s.Exported.Entry = 0 }), from: 10},
		{name: "at segment 0", cursor: state(0, func(s *CursorState) { s.Exported = Position{} })},
		{name: "before the first segment", cursor: state(5, nil), gone: 1, from: 10, lost: 5},
		{name: "before the first segment, nothing missing", cursor: state(10, func(s *CursorState) { s.Exported = Start }), gone: 1, from: 10},
		{name: "no cursor, first segment gone", gone: 1, from: 10},
		{name: "number of the next segment too low", cursor: state(12, func(s *CursorState) { s.NextSeq = 1 }), from: 12},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := vfs.NewMem()
			segments := map[Seq][]byte{}
			for _, im := range ims {
				if im.hdr.Seq > c.gone {
					segments[im.hdr.Seq] = im.bytes
				}
			}
			seed(t, m, seedDir, nil, segments)
			if c.cursor != nil {
				writeDurable(t, m, filepath.Join(seedLaneDir(seedDir), cursorFile), c.cursor)
			}
			got, ledger := settled(t, m, seedDir)
			if c.again {
				sameSet(t, append(got, all[c.from:]...), all[c.from:], true)
			} else {
				sameSet(t, got, all[c.from:], false)
			}
			if n := ledger.Lost[LostCorrupt].Sum(); (n > 0) != (c.lost > 0) {
				t.Errorf("lost %v, want of %d frames", ledger.Lost, c.lost)
			}
			if st, _, err := ReadCursor(m, seedLaneDir(seedDir), lane); err != nil || st.NextSeq < 4 {
				t.Errorf("next segment would be %v, %v", st, err)
			}
		})
	}
}
