package export

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"ingest-agent/segment"
	"ingest-agent/segment/vfs"
)

const (
	lineExt = ".ndjson"

	// backupTime is the time in the names of rotated files, in UTC; names sort by it.
	backupTime = "2006-01-02T15-04-05.000"

	// maxBatchBytes is when a batch is full. The line that fills it is still in it.
	maxBatchBytes = 16 << 20
)

var errClosed = errors.New("the destination is closed")

// line is what one Deliver waits for.
type line struct {
	bytes   []byte
	outcome chan segment.Outcome // takes one without blocking
}

// lineFile is one file of lines and the goroutine that owns it. The goroutine takes all lines that wait, writes them, syncs
// once and answers them; while it syncs the next ones gather. It cuts the file back to the last confirmed line when a write
// or sync fails, before anything else is written.
//
// The file is opened for each batch, which costs little beside a sync: an operator or logrotate may have moved, deleted or
// emptied it, and what is written to a file without a name is delivered to nobody.
type lineFile struct {
	fsys      vfs.FS
	dir, path string
	rotation  RotationOptions
	queue     chan *line // unbuffered: a line is either in hand of the goroutine or with its sender
	stop      chan struct{}
	done      chan struct{}

	// Only used by the goroutine, once it runs.
	known     bool  // the file is durable in its directory and repaired, and was confirmed bytes long when last seen
	confirmed int64 // its size in bytes up to the last confirmed line
	uncut     bool  // there may be bytes of ours behind confirmed
	pruneErr  error // of the last rotation, to be told once
}

func newLineFile(fsys vfs.FS, dir, name string, rotation RotationOptions) *lineFile {
	return &lineFile{
		fsys: fsys, dir: dir, path: filepath.Join(dir, name+lineExt), rotation: rotation,
		queue: make(chan *line), stop: make(chan struct{}), done: make(chan struct{}),
	}
}

// append hands a line to the goroutine and waits for the outcome.
func (f *lineFile) append(ctx context.Context, text []byte) segment.Outcome {
	l := &line{bytes: text, outcome: make(chan segment.Outcome, 1)}
	select {
	case f.queue <- l:
	case <-ctx.Done():
		return retry(context.Cause(ctx))
	case <-f.stop:
		return retry(errClosed)
	}
	select {
	case out := <-l.outcome:
		return out
	case <-ctx.Done():
		return retry(fmt.Errorf("wait for sync of %s: %w", f.path, context.Cause(ctx)))
	}
}

func (f *lineFile) run() {
	defer close(f.done)
	for {
		select {
		case <-f.stop:
			return
		case first := <-f.queue:
			f.commit(f.gather(first))
		}
	}
}

// gather takes what waits beside first until the batch is full.
func (f *lineFile) gather(first *line) []*line {
	batch, size := []*line{first}, len(first.bytes)
	for size < maxBatchBytes {
		select {
		case l := <-f.queue:
			batch, size = append(batch, l), size+len(l.bytes)
		default:
			return batch
		}
	}
	return batch
}

// close stops the goroutine and waits for it. What it has in hand is written and answered.
func (f *lineFile) close() {
	close(f.stop)
	<-f.done
}

// commit writes a batch, in more than one part if a rotation falls into it, and answers each part.
func (f *lineFile) commit(batch []*line) {
	for len(batch) > 0 {
		n, err := f.commitSome(batch)
		out := segment.Outcome{Verdict: segment.Delivered, Err: f.pruneErr}
		if err != nil {
			out = retry(fmt.Errorf("write to %s: %w", f.path, err))
		}
		f.pruneErr = nil
		for _, l := range batch[:n] {
			l.outcome <- out
		}
		batch = batch[n:]
	}
}

// commitSome writes and syncs those first lines of batch, at least one, that go into one file, and says how many.
func (f *lineFile) commitSome(batch []*line) (n int, err error) {
	file, err := f.openFor(int64(len(batch[0].bytes)))
	if err != nil {
		return 1, err
	}
	n, size := 1, f.confirmed+int64(len(batch[0].bytes))
	for n < len(batch) && size+int64(len(batch[n].bytes)) <= f.rotation.MaxFileBytes {
		size += int64(len(batch[n].bytes))
		n++
	}
	return n, errors.Join(f.write(file, batch[:n]), file.Close())
}

// write appends lines behind the confirmed ones and syncs. After an error nothing of them is left in the file, or uncut is
// set.
func (f *lineFile) write(file vfs.File, lines []*line) error {
	f.uncut = true
	end := f.confirmed
	for _, l := range lines {
		n, err := file.WriteAt(l.bytes, end)
		if err != nil {
			return errors.Join(err, f.cut(file))
		}
		end += int64(n)
	}
	if err := file.Sync(); err != nil {
		return errors.Join(fmt.Errorf("sync: %w", err), f.cut(file))
	}
	f.confirmed, f.uncut = end, false
	return nil
}

// cut takes off what is behind the confirmed lines. It is not synced: if a crash brings these bytes back, they are lines
// that may be delivered once more, or a torn tail.
func (f *lineFile) cut(file vfs.File) error {
	if err := file.Truncate(f.confirmed); err != nil {
		return fmt.Errorf("cut to %d bytes: %w", f.confirmed, err)
	}
	f.uncut = false
	return nil
}

// openFor opens the file, or a new one if a line of size bytes would take it over the limit.
func (f *lineFile) openFor(size int64) (vfs.File, error) {
	file, err := f.open()
	if err != nil || f.confirmed == 0 || f.confirmed+size <= f.rotation.MaxFileBytes {
		return file, err
	}
	if err := errors.Join(file.Close(), f.rotate()); err != nil {
		return nil, fmt.Errorf("rotate: %w", err)
	}
	return f.open()
}

// open opens the file, clean behind the confirmed lines. It is created, and its directory too, if absent.
func (f *lineFile) open() (vfs.File, error) {
	file, err := f.fsys.OpenFile(f.path, os.O_RDWR, 0)
	if errors.Is(err, fs.ErrNotExist) {
		f.known = false
		if err := vfs.MkdirAll(f.fsys, f.dir, dirPerm); err != nil {
			return nil, err
		}
		file, err = f.fsys.OpenFile(f.path, os.O_RDWR|os.O_CREATE, filePerm)
	}
	if err != nil {
		return nil, err
	}
	if err := f.take(file); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return file, nil
}

// take makes the file ours: one that is not as it was left is repaired, and made durable in its directory.
func (f *lineFile) take(file vfs.File) error {
	size, err := file.Size()
	if err != nil {
		return err
	}
	if f.known && f.uncut && size > f.confirmed {
		if err := f.cut(file); err != nil {
			return err
		}
		size = f.confirmed
	}
	if f.known && size == f.confirmed {
		return nil
	}
	f.known = false
	if size, err = repair(f, file, size); err != nil {
		return err
	}
	if err := f.fsys.SyncDir(f.dir); err != nil {
		return fmt.Errorf("sync directory: %w", err)
	}
	f.known, f.confirmed, f.uncut = true, size, false
	return nil
}

// repairExisting repairs the file if there is one. One that is absent is created with its first line, so that a start needs
// no space. Trouble is no reason not to start: the first delivery meets it again, or finds it gone.
func (f *lineFile) repairExisting() {
	if file, err := f.fsys.OpenFile(f.path, os.O_RDWR, 0); err == nil {
		_ = errors.Join(f.take(file), file.Close())
	}
}

// rotate renames the file. Until the next open there is none, which is what a first start finds too.
func (f *lineFile) rotate() error {
	name, err := f.freeName(time.Now(), lineExt)
	if err != nil {
		return err
	}
	if err := f.fsys.Rename(f.path, name); err != nil {
		return err
	}
	f.known = false
	if f.rotation.MaxBackups > 0 {
		f.pruneErr = f.prune()
	}
	return nil // the directory is synced with the new file
}

// freeName is the path of a file beside this one for now, or for the next millisecond after it that is not taken.
func (f *lineFile) freeName(now time.Time, ext string) (string, error) {
	for {
		name := f.backupPrefix() + now.UTC().Format(backupTime) + ext
		file, err := f.fsys.OpenFile(name, os.O_RDONLY, 0)
		if errors.Is(err, fs.ErrNotExist) {
			return name, nil
		}
		if err != nil {
			return "", err
		}
		if err := file.Close(); err != nil {
			return "", err
		}
		now = now.Add(time.Millisecond)
	}
}

func (f *lineFile) backupPrefix() string { return strings.TrimSuffix(f.path, lineExt) + "-" }

// prune deletes the oldest rotated files over MaxBackups. Files with other names are not touched.
func (f *lineFile) prune() error {
	entries, err := f.fsys.List(f.dir)
	if err != nil {
		return fmt.Errorf("list rotated files: %w", err)
	}
	var backups []string
	for _, e := range entries {
		path := filepath.Join(f.dir, e.Name)
		stamp, ok := strings.CutPrefix(path, f.backupPrefix())
		if _, err := time.Parse(backupTime+lineExt, stamp); ok && err == nil {
			backups = append(backups, path)
		}
	}
	slices.Sort(backups)
	for len(backups) > f.rotation.MaxBackups {
		if err := f.fsys.Remove(backups[0]); err != nil {
			return fmt.Errorf("delete rotated file: %w", err)
		}
		backups = backups[1:]
	}
	return nil
}
