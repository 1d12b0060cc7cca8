package agent

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"sync"

	"ingest-agent/segment"
	"ingest-agent/segment/vfs"
)

// adoptedLedger is what became of the records that this data directory's processes took over from other owners, by
// destination. Each step adds to both sides at once, so that what was adopted is what was delivered, rejected, set aside or
// lost, at every moment.
//
// Commit point: the replacement of its file, which follows the commit of the register. A crash between the two leaves the
// step out of both sides.
type adoptedLedger struct {
	fs   vfs.FS
	path string

	mu  sync.Mutex
	all map[string]segment.Ledger
}

const (
	// maxAdoptedBytes bounds the file: some hundred bytes for each destination.
	maxAdoptedBytes = 4 << 20
	adoptedPerm     = 0o640
)

// openAdopted reads the ledger. One that is damaged is set aside: its numbers begin anew, and the balance holds.
func openAdopted(fsys vfs.FS, path string) (*adoptedLedger, error) {
	l := &adoptedLedger{fs: fsys, path: path, all: map[string]segment.Ledger{}}
	text, err := vfs.ReadFile(fsys, path, maxAdoptedBytes)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return l, nil
	case err != nil:
		return nil, fmt.Errorf("read ledger of adopted records: %w", err)
	case json.Unmarshal(text, &l.all) != nil || l.all == nil:
		l.all = map[string]segment.Ledger{}
		if err := fsys.Rename(path, path+".damaged"); err != nil {
			return nil, fmt.Errorf("set aside damaged ledger of adopted records: %w", err)
		}
	}
	return l, nil
}

// book adds what became of records that were adopted for a destination.
func (l *adoptedLedger) book(destination string, step *segment.Ledger) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	var have segment.Ledger
	old := l.all[destination]
	have.Add(&old) // a copy: readers may hold the map of the old one
	have.Add(step)
	l.all[destination] = have
	text, err := json.Marshal(l.all)
	if err != nil {
		return fmt.Errorf("encode ledger of adopted records: %w", err)
	}
	if err := vfs.WriteFileAtomic(l.fs, l.path, text, adoptedPerm); err != nil {
		return fmt.Errorf("write ledger of adopted records: %w", err)
	}
	return nil
}

// totals returns the ledger by destination.
func (l *adoptedLedger) totals() map[string]segment.Ledger {
	l.mu.Lock()
	defer l.mu.Unlock()
	return maps.Clone(l.all)
}
