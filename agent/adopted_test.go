package agent

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"ingest-agent/segment"
	"ingest-agent/segment/vfs"
)

// TestAdoptedLedger: both sides of it grow together, also over a restart, and a damaged one begins anew without stopping a
// start.
func TestAdoptedLedger(t *testing.T) {
	path := filepath.Join(t.TempDir(), "adopted.json")
	open := func() *adoptedLedger {
		l, err := openAdopted(vfs.OS(), path)
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	l := open()
	step := segment.Ledger{Delivered: segment.Counts{5, 0, 1}, Lost: map[segment.Cause]segment.Counts{segment.LostMissing: {0, 2, 0}}}
	for range 2 {
		if err := l.book("default", &step); err != nil {
			t.Fatal(err)
		}
	}
	seen := l.totals()["default"]
	if err := open().book("default", &step); err != nil {
		t.Fatal(err)
	}
	if want := (segment.Counts{10, 4, 2}); seen.Out() != want {
		t.Errorf("after two steps %v, want %v", seen.Out(), want)
	}
	again := open().totals()["default"]
	if want := (segment.Counts{15, 6, 3}); again.Out() != want || again.Lost[segment.LostMissing] != (segment.Counts{0, 6, 0}) {
		t.Errorf("after a restart and a third %+v, want %v", again, want)
	}
	if err := os.WriteFile(path, []byte("{\"default\":"), 0o600); err != nil {
		t.Fatal(err)
	}
	if n := len(open().totals()); n > 0 {
		t.Errorf("%d destinations in a damaged ledger", n)
	}
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the damaged ledger is still there: %v", err)
	}
}
