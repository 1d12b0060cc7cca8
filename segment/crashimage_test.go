package segment

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"ingest-agent/segment/vfs"
)

// The log library writes its file itself, past the file seam. Its writes are told by their offsets instead, and what a power
// cut can leave of them is rebuilt: all that was synced, and of the blocks behind it any.

// sectorBytes is what a disk writes whole or not at all.
const sectorBytes = 512

// crashPoint is the state of a lane's directory right after a call of the log library, or an answer.
type crashPoint struct {
	seq      Seq // the segment that was written to; 0: an answer
	files    map[Seq]crashFile
	cursor   []byte // as synced
	sent     int    // frames handed over so far
	answered int    // of them, in the same order
}

type crashFile struct {
	bytes  []byte // all that was written
	synced int
}

// crashRecorder keeps every state of a lane that a power cut could meet.
type crashRecorder struct {
	t   *testing.T
	dir string

	mu             sync.Mutex
	lane           *Lane // nil while it opens: nothing else runs then
	files          map[Seq]crashFile
	points         []crashPoint
	sent, answered int
}

func (r *crashRecorder) written(seq Seq, written, synced int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	b, err := os.ReadFile(filepath.Join(seedLaneDir(r.dir), seq.String(), logFile))
	if err != nil || int64(len(b)) != written {
		r.t.Errorf("segment %s has %d bytes, %v; %d were told", seq, len(b), err, written)
	}
	r.files[seq] = crashFile{b, int(synced)}
	r.record(seq)
}

// record is called with r.mu held.
func (r *crashRecorder) record(seq Seq) {
	if r.lane != nil {
		r.lane.saveMu.Lock() // the file is as it was synced while nobody saves
		defer r.lane.saveMu.Unlock()
	}
	cursor, err := os.ReadFile(filepath.Join(seedLaneDir(r.dir), cursorFile))
	if err != nil {
		r.t.Error(err)
	}
	files := map[Seq]crashFile{}
	maps.Copy(files, r.files)
	r.points = append(r.points, crashPoint{seq, files, cursor, r.sent, r.answered})
}

// live runs a lane through commits of several sizes and two seals, one commit at a time.
func (r *crashRecorder) live(codec Codec) {
	l := newLane(r.t, r.dir, func(o *LaneOptions) {
		o.FS, o.Settings.Codec, o.Settings.SegmentSizeBytes, o.Observe.Written = noSync{vfs.OS()}, codec, 5<<10, r.written
	})
	r.mu.Lock()
	r.lane = l
	r.mu.Unlock()
	for _, frames := range crashBatches() {
		r.mu.Lock()
		r.sent += len(frames)
		r.mu.Unlock()
		if err := l.AppendAll(r.t.Context(), frames); err != nil {
			r.t.Fatal(err)
		}
		r.mu.Lock()
		r.answered = r.sent
		r.record(0)
		r.mu.Unlock()
	}
	if err := l.Close(); err != nil {
		r.t.Fatal(err)
	}
}

// crashBatches are the frames of each commit. Their bodies name them and do not compress.
func crashBatches() (out [][]Frame) {
	i := 0
	for _, sizes := range [][]int{{40}, {300, 20, 500}, {700}, {0, 0, 0, 0}, {2600, 100}, {90}, {400, 400}, {1500}, {60, 60}, {3000}, {10}} {
		var frames []Frame
		for _, n := range sizes {
			f := imageFrames(i+1, n)[i].frame(Birth{})
			frames = append(frames, Frame{Signal: f.Signal, Tenant: f.Tenant, Received: f.Received, Records: f.Records, Body: f.Body})
			i++
		}
		out = append(out, frames)
	}
	return out
}

// images are the files that a power cut at p can leave of the segment that was being written: up to four blocks every
// subset, beyond that some. What is missing is zeros or, at the end, not there.
func (p *crashPoint) images(rng *rand.Rand) (out [][]byte) {
	f := p.files[p.seq]
	first, n := f.synced/sectorBytes, (len(f.bytes)+sectorBytes-1)/sectorBytes-f.synced/sectorBytes
	var subsets []uint64
	if n <= 4 {
		for set := range uint64(1) << n {
			subsets = append(subsets, set)
		}
	} else {
		full := uint64(1)<<n - 1
		subsets = []uint64{0, full, 1, full &^ 1, full >> 1, full &^ 2, 1 << (n - 1)}
		for range 5 {
			subsets = append(subsets, rng.Uint64()&full)
		}
	}
	for _, set := range subsets {
		b := slices.Clone(f.bytes)
		end := f.synced
		for i := range n {
			from, to := max(f.synced, (first+i)*sectorBytes), min(len(b), (first+i+1)*sectorBytes)
			if set>>i&1 == 0 {
				clear(b[from:to])
			} else {
				end = to
			}
		}
		out = append(out, b)
		if end < len(b) {
			out = append(out, b[:end])
		}
	}
	return out
}

// laneAt writes the directory that a power cut at p leaves, with one image of its segment.
func (p *crashPoint) laneAt(t *testing.T, fsys vfs.FS, dir string, image []byte, unsyncedToo bool) {
	segments := map[Seq][]byte{}
	for seq, f := range p.files {
		segments[seq] = f.bytes[:f.synced]
		if unsyncedToo {
			segments[seq] = f.bytes
		}
	}
	if p.seq != 0 {
		segments[p.seq] = image
	}
	seed(t, fsys, dir, nil, segments)
	writeDurable(t, fsys, filepath.Join(seedLaneDir(dir), cursorFile), p.cursor)
}

// pending opens a lane and returns the bodies in it, which must be some of the written frames in order, with all answered.
func (p *crashPoint) pending(t *testing.T, l *Lane, written []string) []string {
	t.Helper()
	frames, lost := readPending(t, l)
	got := bodiesOf(frames)
	if lost != (Totals{}) {
		t.Errorf("%+v counted as lost", lost)
	}
	at := 0
	for _, b := range got {
		i := slices.Index(written[at:p.sent], b)
		if i < 0 {
			t.Errorf("never written, or twice, or out of order: %.20q", b)
			continue
		}
		at += i + 1
	}
	if len(got) < p.answered || !slices.Equal(got[:p.answered], written[:p.answered]) {
		t.Errorf("%d frames, and not the %d that were answered", len(got), p.answered)
	}
	return got
}

func TestCrashImagesThroughSeals(t *testing.T) {
	t.Parallel()
	for _, codec := range []Codec{CodecNone, CodecZstd} {
		t.Run(fmt.Sprintf("codec %d", codec), func(t *testing.T) {
			r := &crashRecorder{t: t, dir: t.TempDir(), files: map[Seq]crashFile{}}
			r.live(codec)
			var written []string
			for _, frames := range crashBatches() {
				written = append(written, bodiesOf(frames)...)
			}
			const seed = 3
			rng := rand.New(rand.NewPCG(seed, uint64(codec)))
			images, torn := 0, 0
			for i := range r.points {
				p := &r.points[i]
				for _, image := range p.images(rng) {
					images++
					got := p.reopen(t, image, images, written)
					if len(got) < p.sent {
						torn++
					}
					if t.Failed() {
						t.Fatalf("point %d: segment %s, %d bytes written, %d synced, %d in the image; seed %d",
							i, p.seq, len(p.files[p.seq].bytes), p.files[p.seq].synced, len(image), seed)
					}
				}
			}
			t.Logf("%d images of %d points, %d without all that was sent; seed %d", images, len(r.points), torn, seed)
			if images < 150 || torn < 30 || len(r.files) < 3 {
				t.Errorf("%d images, %d torn, %d segments: not the life that this test is about", images, torn, len(r.files))
			}
		})
	}
}

// reopen starts twice on what a power cut left, and on a part of the images appends between.
func (p *crashPoint) reopen(t *testing.T, image []byte, number int, written []string) []string {
	t.Helper()
	mem := vfs.NewMem()
	p.laneAt(t, mem, seedDir, image, number%2 == 0)
	var got []string
	for life := range 2 {
		l, err := drainOnly(t, mem, seedDir)
		if err != nil {
			t.Fatal(err)
		}
		now := p.pending(t, l, written)
		if life > 0 && !slices.Equal(now, got) {
			t.Errorf("%d frames at the first start, %d at the second", len(got), len(now))
		}
		got = now
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if number%9 != 0 {
		return got
	}
	dir := t.TempDir()
	onDisk := func(o *LaneOptions) { o.FS = noSync{vfs.OS()} }
	p.laneAt(t, noSync{vfs.OS()}, dir, image, number%2 == 0)
	l := newLane(t, dir, onDisk)
	more := appendMany(t, l, 0, 3)
	if len(more) != 3 {
		t.Errorf("%d of 3 answered after a power cut", len(more))
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	l = newLane(t, dir, onDisk)
	frames, lost := readPending(t, l)
	now := bodiesOf(frames)
	if lost != (Totals{}) || len(now) != len(got)+3 || !slices.Equal(now[:len(got)], got) {
		t.Errorf("%d frames and %+v lost after appending 3 to %d", len(now), lost, len(got))
	}
	for _, b := range now[min(len(got), len(now)):] {
		if !more[b] {
			t.Errorf("not what was appended: %.20q", strings.ToValidUTF8(b, "."))
		}
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	return got
}
