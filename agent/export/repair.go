package export

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"ingest-agent/segment/vfs"
)

const (
	// repairBytes is how far behind the last confirmed line a file can reach: one batch.
	repairBytes = maxBatchBytes + maxLineBytes

	repairChunkBytes = 256 << 10

	// tornExt ends the names of files with lines that were cut off.
	tornExt = ".torn"
)

// repair cuts off what a crash left behind the last sync, and returns the size of the file after it.
//
// Behind the last sync any block may be missing and read as zeros, and the last line may be torn. JSON has no zero bytes, so
// the file is cut at the line with the first of them, or else behind the last line end. What a crash left there was never
// confirmed, so it is delivered again; whole lines without a confirmation stay and are delivered twice.
//
// Should the zeros not come from a crash but from a damaged disk, there may be confirmed lines behind them. So if there are
// lines in what is cut, it is first kept aside in a file of its own.
func repair(f *lineFile, file vfs.File, size int64) (int64, error) {
	keep, err := wholeLines(file, max(size-repairBytes-1, 0), size) // 1: the line end before the batch
	if err != nil {
		return 0, err
	}
	if keep == size {
		return size, nil
	}
	if err := f.keepLines(io.NewSectionReader(file, keep, size-keep)); err != nil {
		return 0, fmt.Errorf("keep what is to be cut at %d: %w", keep, err)
	}
	if err := file.Truncate(keep); err != nil {
		return 0, fmt.Errorf("cut torn line at %d: %w", keep, err)
	}
	return keep, nil // not synced: if a crash brings the rest back, it is cut again
}

// wholeLines is where the last line of file ends that has no zero byte at or before it, looking from an offset on.
func wholeLines(file io.ReaderAt, from, size int64) (int64, error) {
	keep := int64(-1)
	if from == 0 {
		keep = 0
	}
	chunk := make([]byte, repairChunkBytes)
	for at := from; at < size; {
		n, err := file.ReadAt(chunk[:min(int64(len(chunk)), size-at)], at)
		if n == 0 {
			return 0, fmt.Errorf("read at %d: %w", at, err)
		}
		good := chunk[:n]
		zero := bytes.IndexByte(good, 0)
		if zero >= 0 {
			good = good[:zero]
		}
		if end := bytes.LastIndexByte(good, '\n'); end >= 0 {
			keep = at + int64(end) + 1
		}
		if zero >= 0 {
			break
		}
		at += int64(n)
	}
	if keep < 0 {
		return 0, fmt.Errorf("no whole line in the last %d bytes: this file was not written here", size-from)
	}
	return keep, nil
}

// keepLines copies what is to be cut to a file beside this one if there is a line end in it.
func (f *lineFile) keepLines(cut *io.SectionReader) error {
	if found, err := hasLineEnd(cut); err != nil || !found {
		return err
	}
	if _, err := cut.Seek(0, io.SeekStart); err != nil {
		return err
	}
	path, err := f.freeName(time.Now(), tornExt)
	if err != nil {
		return err
	}
	aside, err := f.fsys.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, filePerm)
	if err != nil {
		return err
	}
	_, err = io.Copy(io.NewOffsetWriter(aside, 0), cut)
	if err == nil {
		err = aside.Sync()
	}
	if err = errors.Join(err, aside.Close()); err != nil {
		return errors.Join(err, f.fsys.Remove(path)) // half of it helps nobody, and the next try makes another
	}
	return f.fsys.SyncDir(f.dir)
}

func hasLineEnd(r io.Reader) (bool, error) {
	chunk := make([]byte, repairChunkBytes)
	for {
		n, err := r.Read(chunk)
		if bytes.IndexByte(chunk[:n], '\n') >= 0 {
			return true, nil
		}
		if errors.Is(err, io.EOF) {
			return false, nil
		}
		if err != nil {
			return false, err
		}
	}
}
