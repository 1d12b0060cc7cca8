package shipper_test

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"ingest-agent/objstore"
	"ingest-agent/segment"
	"ingest-agent/segment/vfs"
	"ingest-agent/shipper"
)

func TestNote(t *testing.T) {
	bubble(t, func(t *testing.T, s *store, n *node) {
		n.start()
		n.add(laneA, "1", "2", "3", "4", "5", "6", "7", "8", "9")
		pass(2 * testAfter)
		if freed, err := n.lanes[laneA].Spill(t.Context(), segment.Position{Seq: 3, Entry: 1}); err != nil || freed == 0 {
			t.Fatal(freed, err)
		}
		n.crash()
		if err := vfs.WriteFileAtomic(n.fs, notePath, []byte("{\"for"), 0o644); err != nil {
			t.Fatal(err)
		}
		n.start()
		pass(time.Second)
		if _, err := vfs.ReadFile(n.fs, notePath+".damaged", 100); err != nil || !isHanded(n) {
			t.Errorf("damaged note: %v", err)
		}
		n.mustDrain(laneA, 0, "9") // the rest was spilled, and is in the duty of the old register
		n.crash()
		if err := vfs.WriteFileAtomic(n.fs, notePath, []byte(`{"format":2}`), 0o644); err != nil {
			t.Fatal(err)
		}
		if _, err := shipper.New(shipper.Options{FS: n.fs, Note: notePath}); err == nil || !strings.Contains(err.Error(), "later version") {
			t.Errorf("note of a later version: %v", err)
		}
		if _, err := n.fs.OpenFile(notePath, os.O_RDONLY, 0); err != nil {
			t.Error(err)
		}
	})
}

func TestSkipIsKept(t *testing.T) {
	bubble(t, func(t *testing.T, s *store, n *node) {
		n.start()
		n.add(laneA, "1", "2")
		pass(2 * testAfter)
		n.crash()
		n.start()
		pass(time.Second)
		n.crash() // the cursor was never saved
		s.Fail(func(context.Context, objstore.Op, string) error { return objstore.ErrUnknown })
		n.start()
		if to := n.ship.SkipOf(laneA); to != (segment.Position{Seq: 1, Entry: 3}) {
			t.Errorf("skip %s", to)
		}
		n.add(laneA, "3")
		n.mustDrain(laneA, 0, "3")
		n.crash()
		n.start()
		if text, err := vfs.ReadFile(n.fs, notePath, 1<<20); err != nil || strings.Contains(string(text), "skip") {
			t.Errorf("note %s (%v)", text, err)
		}
		n.crash()
	})
}
