package segment

import (
	"context"
	"crypto/sha256"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"ingest-agent/segment/vfs"
)

// I1 with wal.ack: disk: each answer comes after a sync that began after its write.
func TestI1AnswerAfterSync(t *testing.T) {
	var written, synced atomic.Int64
	l := newLane(t, t.TempDir(), func(o *LaneOptions) {
		o.Observe.Written = func(seq Seq, w, s int64) {
			if seq == 1 {
				written.Store(w)
				synced.Store(s)
			}
		}
	})
	for i := range 50 {
		if err := l.Append(context.Background(), testFrame(i)); err != nil {
			t.Fatal(err)
		}
		if w, s := written.Load(), synced.Load(); s != w || w == 0 {
			t.Fatalf("answered with %d bytes written and %d synced", w, s)
		}
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
}

// wal.ack: os answers without a sync, and syncs within the interval.
func TestAckOSSyncsWithinInterval(t *testing.T) {
	var syncs atomic.Int64
	f := vfs.NewFault(vfs.OS(), func(op vfs.Op) error {
		if segmentOp(op, vfs.OpSync) {
			syncs.Add(1)
		}
		return nil
	})
	l := newLane(t, t.TempDir(), func(o *LaneOptions) {
		o.FS, o.Settings.Ack, o.Settings.SyncInterval = f, AckOS, time.Hour
	})
	eventually(t, "the next segment", func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		return l.spare != nil
	})
	before := syncs.Load()
	appendMany(t, l, 0, 20)
	if n := syncs.Load(); n > before+1 { // the first is due at once, since there was none before
		t.Errorf("%d syncs for 20 answers that promise none", n-before)
	}
	set := l.settings
	set.SyncInterval = time.Millisecond
	l.Set(set)
	before = syncs.Load()
	appendMany(t, l, 20, 1)
	eventually(t, "a sync", func() bool { return syncs.Load() > before })
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	l = newLane(t, filepath.Dir(filepath.Dir(l.dir)))
	if n := l.Stats().In.Frames; n != 21 {
		t.Errorf("%d frames after reopen", n)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
}

// I2, I3: a start begins a segment of its own, and nothing that a process does changes a segment of an earlier one.
func TestI2I3EarlierSegmentsDoNotChange(t *testing.T) {
	dir := t.TempDir()
	small := func(o *LaneOptions) { o.Settings.SegmentSizeBytes = 4 << 10 }
	known := map[string][32]byte{}
	owners := map[OwnerID]bool{}
	for life := range 4 {
		l := newLane(t, dir, small)
		appendMany(t, l, life*100, 60)
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		files, err := filepath.Glob(filepath.Join(dir, "lanes", "default.0", "*", logFile))
		if err != nil {
			t.Fatal(err)
		}
		now := map[string][32]byte{}
		for _, name := range files {
			data, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			now[name] = sha256.Sum256(data)
		}
		for name, sum := range known {
			if now[name] != sum {
				t.Errorf("life %d changed %s", life, name)
			}
		}
		if len(now) <= len(known) {
			t.Errorf("life %d wrote no segment of its own", life)
		}
		known = now
	}
	r, err := InspectLane(vfs.OS(), filepath.Join(dir, "lanes"), LaneID{Destination: "default"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range r.Segments {
		owners[s.Owner] = true
	}
	if len(owners) != 4 || !r.Whole() || r.Pending.Frames != 240 {
		t.Errorf("%d owners, whole %v, pending %d", len(owners), r.Whole(), r.Pending.Frames)
	}
}

// I8: a segment goes only after a saved cursor is past it, and its number is not used again.
func TestI8SegmentGoesAfterSavedCursor(t *testing.T) {
	dir := t.TempDir()
	var saved, removed atomic.Int64
	f := vfs.NewFault(vfs.OS(), func(op vfs.Op) error {
		name := filepath.Base(op.Name)
		switch {
		case op.Kind == vfs.OpSync && name == cursorFile:
			saved.Add(1)
		case op.Kind == vfs.OpRemove && name == logFile && filepath.Base(filepath.Dir(op.Name)) != "default.0":
			lanes, id := filepath.Join(dir, "lanes"), LaneID{Destination: "default"}
			r, err := InspectLane(vfs.OS(), lanes, id, nil)
			seq, perr := ParseSeq(filepath.Base(filepath.Dir(op.Name)))
			if err != nil || perr != nil || r.Cursor == nil {
				t.Errorf("state at removal of %s: %v, %v", op.Name, err, perr)
				return nil
			}
			for _, g := range r.Segments {
				if g.Seq == seq && g.Totals.Frames > 0 {
					removed.Add(1)
					if r.Cursor.Exported.Seq <= seq || r.Cursor.NextSeq <= seq {
						t.Errorf("segment %s removed with the saved cursor at %s, next %s", seq, r.Cursor.Exported, r.Cursor.NextSeq)
					}
				}
			}
		}
		return nil
	})
	l := newLane(t, dir, func(o *LaneOptions) { o.FS, o.Settings.SegmentSizeBytes = f, 4<<10 })
	appendMany(t, l, 0, 100)
	drainAll(t, l, &takeSink{})
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if saved.Load() == 0 || removed.Load() < 3 {
		t.Errorf("cursor saved %d times, %d segments removed", saved.Load(), removed.Load())
	}
	next := l.cur.NextSeq
	l = newLane(t, dir)
	if got := l.active.hdr.Seq; got < next {
		t.Errorf("segment number %s used after %s", got, next)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
}
