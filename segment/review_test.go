package segment

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"ingest-agent/segment/vfs"
)

// Frames that were delivered, and whose unsynced bytes a crash then took, are neither lost nor delivered again.
func TestDeliveredFramesThatACrashTook(t *testing.T) {
	dir := t.TempDir()
	l := newLane(t, dir)
	file := l.segmentFile(1)
	appendMany(t, l, 0, 10)
	half, err := os.Stat(file)
	if err != nil {
		t.Fatal(err)
	}
	appendMany(t, l, 10, 10)
	sink := &takeSink{}
	drainAll(t, l, sink)
	if err := l.save(); err != nil {
		t.Fatal(err)
	}
	copied := t.TempDir()
	if err := os.CopyFS(copied, os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(filepath.Join(copied, "lanes", "default.0", Seq(1).String(), logFile), half.Size()); err != nil {
		t.Fatal(err)
	}
	l = newLane(t, copied)
	appendMany(t, l, 20, 5)
	again := &takeSink{}
	drainAll(t, l, again)
	st := l.Stats()
	if len(again.got) != 5 || len(st.Ledger.Lost) != 0 || st.Ledger.Delivered.Sum() != st.In.Records.Sum() {
		t.Errorf("delivered %d, ledger %+v, in %+v", len(again.got), st.Ledger, st.In)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
}

// What is gone at the end of a lane shows in an inspection too.
func TestInspectMissesTheEnd(t *testing.T) {
	dir := t.TempDir()
	l := newLane(t, dir)
	appendMany(t, l, 0, 10)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(filepath.Join(dir, "lanes", "default.0", Seq(1).String())); err != nil {
		t.Fatal(err)
	}
	r, err := InspectLane(vfs.OS(), filepath.Join(dir, "lanes"), LaneID{Destination: "default"}, nil)
	if err != nil || r.Missing.Frames != 10 || r.Whole() {
		t.Errorf("missing %+v, whole %v, %v", r.Missing, r.Whole(), err)
	}
}

// A sealed segment whose end is damaged is no torn tail: nothing of it is cut away.
func TestDamagedEndOfASealedSegmentIsNotCut(t *testing.T) {
	dir := t.TempDir()
	l := newLane(t, dir)
	answered := appendMany(t, l, 0, 40)
	file := l.segmentFile(1)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for i := len(data) - 300; i < len(data); i++ {
		data[i] ^= 0xff
	}
	if err := os.WriteFile(file, data, filePerm); err != nil {
		t.Fatal(err)
	}
	l = newLane(t, dir)
	if info, err := os.Stat(file); err != nil || info.Size() != int64(len(data)) {
		t.Errorf("size %v, was %d, %v", info.Size(), len(data), err)
	}
	sink := &takeSink{}
	drainAll(t, l, sink)
	if lost := len(answered) - len(sink.got); lost < 0 || lost > 3 {
		t.Errorf("%d of %d delivered", len(sink.got), len(answered))
	}
	if st := l.Stats(); st.Ledger.Out() != st.In.Records {
		t.Errorf("ledger %+v, in %+v", st.Ledger, st.In)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
}

// Whatever tenants are called, the cursor can be saved.
func TestCursorShrinksToFit(t *testing.T) {
	dir := t.TempDir()
	c, _, _, err := openCursor(vfs.OS(), dir, LaneID{Destination: "default"})
	if err != nil {
		t.Fatal(err)
	}
	st := &CursorState{Lane: LaneID{Destination: "default"}, Exported: Start, NextSeq: 1}
	for i := range 2 * maxTenants {
		st.accept(fmt.Sprintf("%03d%s", i, strings.Repeat("\x01", MaxTenantBytes-3)), Logs.Of(3), Logs.Of(100))
	}
	for i := range maxOpen {
		st.Open = append(st.Open, OpenSegment{Header: Header{Birth: Birth{Lane: st.Lane, Seq: Seq(i)}}})
	}
	if err := c.save(st); err != nil {
		t.Fatal(err)
	}
	if err := c.close(); err != nil {
		t.Fatal(err)
	}
	got, _, err := ReadCursor(vfs.OS(), dir, st.Lane)
	if err != nil || got.Accepted[OtherTenants].Records != Logs.Of(3*2*maxTenants) || got.header(maxOpen-1) == nil {
		t.Errorf("%+v, %v", got, err)
	}
}
