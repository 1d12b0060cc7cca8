package export

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"

	"ingest-agent/segment"
	"ingest-agent/segment/vfs"
)

const (
	deadLedgerName = "ledger.json"
	// deadLedgerDamaged is where a ledger that cannot be read is put.
	deadLedgerDamaged = deadLedgerName + ".damaged"
	// maxDeadLedgerBytes is far above what the names of a step and the sums of all destinations take.
	maxDeadLedgerBytes = 16 << 20
)

// DeadTotals are records that were dead letters of a destination and are none any more. What its lanes count as dead letter,
// less these, is what is still kept or was deleted by people.
type DeadTotals struct {
	Evicted   segment.Counts `json:"evicted"`   // deleted to make room
	Delivered segment.Counts `json:"delivered"` // sent again and taken
	Rejected  segment.Counts `json:"rejected"`  // sent again and refused by partial success
}

// deadLedger is <dir>/ledger.json.
//
// Commit point: its write, which comes before the files that it names are removed. A crash between the two is made good by
// the next start, which removes them; so no record counts both as gone and as kept.
type deadLedger struct {
	Destinations map[string]DeadTotals `json:"destinations"`
	Removing     []string              `json:"removing,omitempty"` // paths in the directory
}

// Totals are what the destinations' dead letters came to, over all starts.
func (d *DeadLetters) Totals() map[string]DeadTotals {
	d.mu.Lock()
	defer d.mu.Unlock()
	return maps.Clone(d.ledger.Destinations)
}

// name is the file's path in the directory.
func (d *DeadLetters) name(f *deadFile) string {
	return filepath.Join(f.lane.owner, filepath.Base(f.lane.dir), filepath.Base(f.path()))
}

// book makes it durable that files go and what their records came to.
func (d *DeadLetters) book(destination string, n DeadTotals, removing ...string) error {
	next := deadLedger{Destinations: maps.Clone(d.ledger.Destinations), Removing: removing}
	if next.Destinations == nil {
		next.Destinations = map[string]DeadTotals{}
	}
	have := next.Destinations[destination]
	next.Destinations[destination] = DeadTotals{
		Evicted: have.Evicted.Add(n.Evicted), Delivered: have.Delivered.Add(n.Delivered), Rejected: have.Rejected.Add(n.Rejected),
	}
	return d.writeLedger(next)
}

// bookEviction books a file that goes, or is not kept at all, unless a try that failed later on did that already.
func (d *DeadLetters) bookEviction(f *deadFile, kept bool) error {
	n := DeadTotals{Evicted: f.signal.Of(uint64(f.records))}
	if !kept {
		return d.book(f.lane.destination, n, d.ledger.Removing...)
	}
	if slices.Contains(d.ledger.Removing, d.name(f)) {
		return nil
	}
	return d.book(f.lane.destination, n, d.name(f))
}

// keepAgain makes sure that a file that is about to be written is not one that the next start would remove.
func (d *DeadLetters) keepAgain(f *deadFile) error {
	if !slices.Contains(d.ledger.Removing, d.name(f)) {
		return nil
	}
	return d.writeLedger(deadLedger{Destinations: d.ledger.Destinations})
}

func (d *DeadLetters) writeLedger(next deadLedger) error {
	text, err := json.Marshal(next)
	if err != nil {
		return fmt.Errorf("encode ledger of dead letters: %w", err)
	}
	if err := vfs.MkdirAll(d.opts.FS, d.opts.Directory, dirPerm); err != nil {
		return fmt.Errorf("create directory of dead letters: %w", err)
	}
	if err := vfs.WriteFileAtomic(d.opts.FS, filepath.Join(d.opts.Directory, deadLedgerName), text, filePerm); err != nil {
		return fmt.Errorf("write ledger of dead letters: %w", err)
	}
	d.mu.Lock()
	d.ledger = next
	d.mu.Unlock()
	return nil
}

// loadLedger reads the ledger and removes what a crash left of the files that it names. One that cannot be read is put aside:
// its records then count as dead letters again, which keeps the balance.
func (d *DeadLetters) loadLedger() error {
	path := filepath.Join(d.opts.Directory, deadLedgerName)
	text, err := vfs.ReadFile(d.opts.FS, path, maxDeadLedgerBytes)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var l deadLedger
	if json.Unmarshal(text, &l) != nil {
		return d.opts.FS.Rename(path, filepath.Join(d.opts.Directory, deadLedgerDamaged))
	}
	d.ledger = l
	if len(l.Removing) == 0 {
		return nil
	}
	if err := d.removeNamed(); err != nil {
		return err
	}
	return d.writeLedger(deadLedger{Destinations: l.Destinations})
}

// removeNamed removes the files that the ledger names, durably. Names that are no dead letters' are not ours.
func (d *DeadLetters) removeNamed() error {
	dirs := map[string]bool{}
	for _, name := range d.ledger.Removing {
		if !filepath.IsLocal(name) || filepath.Ext(name) != deadExt {
			continue
		}
		path := filepath.Join(d.opts.Directory, name)
		err := d.opts.FS.Remove(path)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		dirs[filepath.Dir(path)] = true // also of one that is gone: perhaps not durably
	}
	for dir := range dirs {
		if err := d.opts.FS.SyncDir(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}
