package segment

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"go.uber.org/zap"

	"ingest-agent/segment/vfs"
)

// asOrphan opens a lane that takes no new frames.
func asOrphan(o *LaneOptions) { o.DrainOnly = true }

// mustFill appends frames to a lane of small segments and closes it.
func mustFill(t *testing.T, dir string, frames ...*Frame) {
	t.Helper()
	l := newLane(t, dir, func(o *LaneOptions) { o.Settings.SegmentSizeBytes = 4 << 10 })
	for _, f := range frames {
		if err := l.Append(context.Background(), f); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
}

func segmentCount(t *testing.T, dir string) int {
	t.Helper()
	seqs, err := listSegments(vfs.OS(), filepath.Join(dir, "lanes", "default.0"))
	if err != nil {
		t.Fatal(err)
	}
	return len(seqs)
}

// TestDropIsAPrefix: what is dropped ends at the first younger frame, also where older ones follow it, is counted, survives
// a restart, and the rest is delivered.
func TestDropIsAPrefix(t *testing.T) {
	dir := t.TempDir()
	var frames []*Frame
	for i := range 100 {
		frames = append(frames, testFrame(i)) // received in second i
	}
	frames[70].Received = time.Unix(2000, 0)
	mustFill(t, dir, frames...)
	segments := segmentCount(t, dir)

	l := newLane(t, dir, asOrphan)
	all := l.Pending()
	d, err := FindDrop(context.Background(), l, time.Unix(80, 0))
	if err != nil {
		t.Fatal(err)
	}
	if got := l.Pending(); got != all {
		t.Errorf("finding changed pending from %v to %v", all, got)
	}
	var want Totals
	for _, f := range frames[:70] {
		want = want.Add(f.Totals())
	}
	if d.Frames != 70 || d.Records != want.Records || d.Bytes.Sum() != want.Bytes {
		t.Errorf("found %d frames, %v records, %v bytes; want %v", d.Frames, d.Records, d.Bytes, want)
	}
	d.Do()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if now := segmentCount(t, dir); now >= segments || now == 0 {
		t.Errorf("%d segments of %d are left", now, segments)
	}

	l = newLane(t, dir, asOrphan)
	st := l.Stats()
	if lost := st.Ledger.Lost[LostDropped]; lost != want.Records || st.Ledger.Out() != want.Records || st.Pending() != all.Sub(want) {
		t.Errorf("after a restart: lost %v, pending %v; want %v, %v", lost, st.Pending(), want.Records, all.Sub(want))
	}
	sink := &takeSink{}
	drainAll(t, l, sink)
	if len(sink.got) != 30 || !slices.Contains(sink.got, string(frames[70].Body)) || slices.Contains(sink.got, string(frames[69].Body)) {
		t.Errorf("%d frames are delivered, want 30 from the younger one on", len(sink.got))
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestDropAll: a backlog that is old as a whole goes with all of its segments; there is nothing to find in it then.
func TestDropAll(t *testing.T) {
	dir := t.TempDir()
	mustFill(t, dir, testFrame(0), testFrame(1), testFrame(2))
	for _, frames := range []uint64{3, 0} {
		l := newLane(t, dir, asOrphan)
		d, err := FindDrop(context.Background(), l, time.Unix(2, 0))
		if err != nil || d.Frames != frames {
			t.Fatalf("%+v, %v; want %d frames", d, err, frames)
		}
		d.Do()
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		if n := segmentCount(t, dir); n != 0 {
			t.Errorf("%d segments are left", n)
		}
	}
}

// TestDropCountsDamage: what cannot be read among the dropped is lost to damage, and the sum is what came in.
func TestDropCountsDamage(t *testing.T) {
	dir := t.TempDir()
	var frames []*Frame
	for i := range 60 {
		frames = append(frames, testFrame(i))
	}
	mustFill(t, dir, frames...)
	seqs, err := listSegments(vfs.OS(), filepath.Join(dir, "lanes", "default.0"))
	if err != nil || len(seqs) < 2 {
		t.Fatal(seqs, err)
	}
	path := filepath.Join(dir, "lanes", "default.0", seqs[0].String(), logFile)
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	clear(b[len(b)/2 : len(b)/2+200])
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	l := newLane(t, dir, asOrphan, func(o *LaneOptions) { o.Log = zap.NewNop() })
	in := l.Pending()
	d, err := FindDrop(context.Background(), l, time.Unix(60, 0))
	if err != nil {
		t.Fatal(err)
	}
	d.Do()
	st := l.Stats()
	if st.Pending() != (Totals{}) || st.Ledger.Out() != in.Records || st.Ledger.Lost[LostCorrupt] == (Counts{}) || d.Frames >= 60 {
		t.Errorf("pending %v, ledger %+v; came in %v", st.Pending(), st.Ledger, in.Records)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
}
