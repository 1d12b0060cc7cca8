package segment

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"

	"ingest-agent/segment/vfs"
)

// seedDir is the data directory of lanes that tests put on a file system.
const seedDir = "/data"

func seedLaneDir(dir string) string { return filepath.Join(dir, "lanes", "default.0") }

// laneImages are the sealed segments of a lane, from 1, that hold all frames of a test in order.
func laneImages(t testing.TB, codec Codec, segments, framesEach, bodyBytes int) (all []*image) {
	t.Helper()
	var before Totals
	for some := range slices.Chunk(imageFrames(segments*framesEach, bodyBytes), framesEach) {
		seq := Seq(len(all) + 1)
		im := newImage(t, imageOptions{codec: codec, seq: seq, salt: imageSalt + uint64(seq), perBlock: 5, before: before}, some)
		before = im.totals
		all = append(all, im)
	}
	return all
}

// writeDurable writes a file, its directories and their entries, and syncs them all.
func writeDurable(t testing.TB, fsys vfs.FS, name string, data []byte) {
	t.Helper()
	if err := vfs.MkdirAll(fsys, filepath.Dir(name), dirPerm); err != nil {
		t.Fatal(err)
	}
	if err := vfs.WriteFileAtomic(fsys, name, data, filePerm); err != nil {
		t.Fatal(err)
	}
}

// seed writes a lane to fsys: the bytes of each segment by number, and a cursor if cur is not nil.
func seed(t testing.TB, fsys vfs.FS, dir string, cur *CursorState, segments map[Seq][]byte) {
	t.Helper()
	for seq, b := range segments {
		writeDurable(t, fsys, filepath.Join(seedLaneDir(dir), seq.String(), logFile), b)
	}
	if cur != nil {
		writeDurable(t, fsys, filepath.Join(seedLaneDir(dir), cursorFile), cursorBytes(t, cur))
	}
}

// cursorBytes is a cursor file that holds one state.
func cursorBytes(t testing.TB, cur *CursorState) []byte {
	t.Helper()
	b, err := encodeCursorSlot(cur)
	if err != nil {
		t.Fatal(err)
	}
	return append(b, make([]byte, 2*cursorSlotBytes-len(b))...)
}

// drainOnly opens a lane of a data directory on any file system. It takes no new frames: segments that are appended to are
// written by the log library, on the real disk only.
func drainOnly(t testing.TB, fsys vfs.FS, dir string) (*Lane, error) {
	return tryLane(t, dir, func(o *LaneOptions) {
		o.FS, o.DrainOnly, o.Log = fsys, true, zap.NewNop()
		o.Quarantine = NewQuarantine(fsys, filepath.Join(dir, "quarantine"), DefaultQuarantineBytes)
	})
}

// readPending reads everything that is pending in a lane, in order, without moving its cursor.
func readPending(t testing.TB, l *Lane) (frames []Frame, lost Totals) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	src := l.Source()
	st := l.Stats()
	for want := st.Pending().Frames; uint64(len(frames))+lost.Frames < want; {
		it, err := src.Next(ctx)
		if err != nil {
			t.Fatalf("%d of %d frames read: %v", len(frames), want, err)
		}
		if it.Frame != nil {
			frames = append(frames, *it.Frame)
		}
		lost = lost.Add(it.Lost)
	}
	if err := src.Close(); err != nil {
		t.Error(err)
	}
	return frames, lost
}

func bodiesOf(frames []Frame) (out []string) {
	for i := range frames {
		out = append(out, string(frames[i].Body))
	}
	return out
}

// frameBodies are the bodies of the frames of some segments, in order.
func frameBodies(images ...*image) (out []string) {
	for _, im := range images {
		for i := range im.frames {
			out = append(out, string(im.frames[i].body))
		}
	}
	return out
}

// settled drains a lane that somebody left and closes it, then opens it again and requires that nothing comes twice and the
// ledger balances. It returns what was delivered and the ledger.
func settled(t *testing.T, fsys vfs.FS, dir string) (got []string, ledger Ledger) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		for life := range 2 {
			l, err := drainOnly(t, fsys, dir)
			if err != nil {
				t.Fatalf("start %d: %v", life, err)
			}
			some := drainFor(l, time.Minute)
			if life > 0 && len(some) != 0 {
				t.Errorf("%d frames were delivered again after a clean end", len(some))
			}
			got = append(got, some...)
			if err := l.Close(); err != nil {
				t.Error(err)
			}
			st := l.Stats()
			ledger = st.Ledger
			if ledger.Out() != st.In.Records || st.Pending() != (Totals{}) {
				t.Errorf("start %d: ledger %+v does not balance with %+v", life, st.Ledger, st.In)
			}
		}
	})
	return got, ledger
}

// drainFor drains a lane for a while of fake time, in requests of about three frames, and returns what was delivered.
func drainFor(l *Lane, during time.Duration) []string {
	ctx, cancel := context.WithTimeout(context.Background(), during)
	defer cancel()
	sink, src := &takeSink{}, l.Source()
	DrainOptions{Source: src, Cursor: l, Sink: func() Sink { return sink }, Dead: noDead{}, Log: zap.NewNop(), Limits: func() Limits {
		return Limits{InFlight: 2, MaxRequestBytes: 350, WindowBytes: 8 << 10, RetryInitial: time.Millisecond, RetryMax: time.Second}
	}}.Run(ctx)
	_ = src.Close() // may fail on purpose
	return sink.got
}

// sameSet requires that got holds all of want, and nothing else; more than once only if it may.
func sameSet(t testing.TB, got, want []string, twice bool) {
	t.Helper()
	seen := map[string]int{}
	for _, b := range got {
		seen[b]++
	}
	for _, b := range want {
		if n := seen[b]; n == 0 || n > 1 && !twice {
			t.Errorf("delivered %d times: %.20q", n, b)
		}
		delete(seen, b)
	}
	for b, n := range seen {
		t.Errorf("delivered %d times, and not to be: %.20q", n, b)
	}
}

// noSync is a file system on which syncing costs nothing, for tests that do not cut its power.
type noSync struct{ vfs.FS }

type noSyncFile struct{ vfs.File }

func (noSyncFile) Sync() error { return nil }

func (noSync) SyncDir(string) error { return nil }

func (n noSync) OpenFile(name string, flag int, perm fs.FileMode) (vfs.File, error) {
	f, err := n.FS.OpenFile(name, flag, perm)
	if err != nil {
		return nil, err
	}
	return noSyncFile{f}, nil
}

// copyDir copies what a process has written so far: the state that kill -9 leaves.
func copyDir(t testing.TB, from string) (to string) {
	t.Helper()
	to = t.TempDir()
	if err := os.CopyFS(to, os.DirFS(from)); err != nil {
		t.Fatal(err)
	}
	return to
}

// laneFiles are the contents of all files below a data directory's lanes, or quarantine.
func laneFiles(t testing.TB, fsys vfs.FS, dir string) (out [][]byte) {
	t.Helper()
	infos, err := fsys.List(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range infos {
		name := filepath.Join(dir, i.Name)
		if i.Dir {
			out = append(out, laneFiles(t, fsys, name)...)
			continue
		}
		b, err := vfs.ReadFile(fsys, name, 1<<30)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, b)
	}
	return out
}
