package segment

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"

	"github.com/tidwall/wal"

	"ingest-agent/segment/vfs"
)

const (
	dirPerm  = 0o750
	filePerm = 0o640

	// logFile is the name that the log library gives to the one file of a log that never cycles.
	logFile = "00000000000000000001"
)

// writer appends to one segment that this process created. Append and sync belong to one goroutine at a time.
//
// Commit point: sync returns nil. What was appended before it is then on disk, and so are the directory entries that lead
// to it, since create returns only after they are synced.
type writer struct {
	hdr  Header
	dir  string
	log  *wal.Log
	file vfs.File // second descriptor, opened before the first write: syncs without the library's lock and sees each write error

	entries uint64 // log entries written
	written int64  // offset behind the last write
	room    int64  // promised by the space, for the footer
	synced  int64  // offset behind the last write that is known to be on disk
	last    Entry
	before  Totals // as the last block says
	frames  uint32
	sum     uint32
	entry   entryWriter
	observe func(written, synced int64) // nil, or told after each library call (crash images)
}

// createSegment makes the directory of a new segment, its log and its header, all of it durable.
func createSegment(fs vfs.FS, laneDir string, hdr Header, observe func(written, synced int64)) (*writer, error) {
	w := &writer{hdr: hdr, dir: filepath.Join(laneDir, hdr.Seq.String()), observe: observe}
	if err := fs.Mkdir(w.dir, dirPerm); err != nil {
		return nil, fmt.Errorf("create segment directory: %w", err)
	}
	err := w.open(fs)
	if err == nil {
		err = w.begin()
	}
	for _, dir := range []string{w.dir, laneDir} {
		if err == nil {
			err = fs.SyncDir(dir)
		}
	}
	if err != nil { // leave nothing behind: on a full disk each retry would leave one more
		w.drop()
		_ = fs.Remove(filepath.Join(w.dir, logFile))
		_ = fs.Remove(w.dir)
		return nil, fmt.Errorf("create segment: %w", err)
	}
	return w, nil
}

// open opens the log and then the second descriptor.
func (w *writer) open(fs vfs.FS) (err error) {
	w.log, err = wal.Open(w.dir, &wal.Options{
		NoSync:      true,
		SegmentSize: math.MaxInt, // no cycling: one file
		NoCopy:      true,
		DirPerms:    dirPerm,
		FilePerms:   filePerm,
	})
	if err != nil {
		return fmt.Errorf("open segment log: %w", err)
	}
	if w.file, err = fs.OpenFile(filepath.Join(w.dir, logFile), os.O_RDWR, filePerm); err != nil {
		return fmt.Errorf("open segment file: %w", err)
	}
	return nil
}

// begin writes the header.
func (w *writer) begin() error {
	head, err := w.hdr.frame()
	if err != nil {
		return err
	}
	plain := blockEncoder{}
	block, sum := plain.encode(blockHeader{salt: w.hdr.salt}, []storedFrame{head}, 0)
	w.sum = sum
	if err := w.write(block); err != nil {
		return err
	}
	return w.sync()
}

// append writes one block of data frames, which it numbers. before is what has entered the lane before them. enc is lent
// for the call.
func (w *writer) append(enc *blockEncoder, frames []storedFrame, before Totals) error {
	for i := range frames {
		frames[i].salt = w.hdr.salt
		frames[i].entry = w.last + Entry(i) + 1
	}
	entry, sum := enc.encodeEntry(blockHeader{salt: w.hdr.salt, before: &before}, frames, w.sum)
	if err := w.wrote(len(entry)-entryRoom, w.entry.write(w.log, w.entries+1, entry)); err != nil {
		return err
	}
	w.sum, w.before = sum, before
	w.last += Entry(len(frames))
	w.frames += uint32(len(frames))
	return nil
}

func (w *writer) write(block []byte) error {
	return w.wrote(len(block), w.log.Write(w.entries+1, block))
}

// wrote takes the outcome of the library's write of a block.
func (w *writer) wrote(blockBytes int, err error) error {
	if err != nil {
		return fmt.Errorf("write segment: %w", err)
	}
	w.entries++
	w.written += entryBytes(blockBytes)
	if w.observe != nil {
		w.observe(w.written, w.synced)
	}
	return nil
}

// sync makes everything written durable.
func (w *writer) sync() error {
	at := w.written
	if err := w.file.Sync(); err != nil {
		return fmt.Errorf("sync segment: %w", err)
	}
	w.synced = at
	if w.observe != nil {
		w.observe(w.written, w.synced)
	}
	return nil
}

// seal writes the footer and closes the segment. On failure the segment must be ended with cut.
func (w *writer) seal(totals Totals, tenants map[string]int64) error {
	block, err := encodeFooter(&Footer{Header: w.hdr, Frames: w.frames, Checksum: w.sum, Totals: totals, Tenants: tenants}, w.last)
	if err != nil {
		return err
	}
	if err := w.write(block); err != nil {
		return err
	}
	return w.sync()
}

// cut ends the segment at offset: nothing behind it stays. The library's log is of no use after a failed write or sync,
// since its memory and the file disagree.
func (w *writer) cut(offset int64) error {
	w.closeLog()
	if err := w.file.Truncate(offset); err != nil {
		return fmt.Errorf("cut segment: %w", err)
	}
	if err := w.file.Sync(); err != nil {
		return fmt.Errorf("sync cut segment: %w", err)
	}
	w.written, w.synced = offset, offset
	return nil
}

// closeLog drops the library's log. Its Close returns before it closes when its own sync fails; the second call then finds
// no error left to report and closes.
func (w *writer) closeLog() {
	if w.log == nil {
		return
	}
	if err := w.log.Close(); err != nil && !errors.Is(err, wal.ErrClosed) {
		_ = w.log.Close()
	}
	w.log = nil
}

// drop releases both descriptors. What is not synced may be lost.
func (w *writer) drop() {
	w.closeLog()
	if w.file != nil {
		_ = w.file.Close()
		w.file = nil
	}
}
