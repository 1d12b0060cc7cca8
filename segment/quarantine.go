package segment

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"ingest-agent/segment/vfs"
)

// DefaultQuarantineBytes bounds the damaged bytes that are kept for a look.
const DefaultQuarantineBytes = 64 << 20

// Quarantine keeps copies of damaged bytes aside, for people: nothing reads them back. It is bounded: the oldest go.
//
// Commit point: none. A copy that cannot be written is counted, and the damage is passed all the same.
type Quarantine struct {
	fs  vfs.FS
	dir string
	max int64

	mu      sync.Mutex
	deleted uint64 // files that went for the bound
	failed  uint64 // copies that could not be written
}

// NewQuarantine keeps at most maxBytes in dir, which it creates when it is first needed.
func NewQuarantine(fs vfs.FS, dir string, maxBytes int64) *Quarantine {
	return &Quarantine{fs: fs, dir: dir, max: maxBytes}
}

// Stats returns how many copies went for the bound and how many could not be written.
func (q *Quarantine) Stats() (deleted, failed uint64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.deleted, q.failed
}

// Usage returns the files and bytes kept now.
func (q *Quarantine) Usage() (files int, sizeBytes int64, err error) {
	infos, err := q.fs.List(q.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, 0, nil
	}
	for _, i := range infos {
		files++
		sizeBytes += i.SizeBytes
	}
	return files, sizeBytes, err
}

// keep copies the bytes [offset, end) of a segment file. The name is made of where they stood, so that meeting the same
// damage again, after a restart, keeps one copy; it begins with the segment's number, so that names sort about as age does.
func (q *Quarantine) keep(lane LaneID, seq Seq, r io.ReaderAt, offset, end int64) error {
	return q.keepAs(fmt.Sprintf("%s-%s", seq, lane), r, offset, end)
}

func (q *Quarantine) keepAs(name string, r io.ReaderAt, offset, end int64) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	err := q.copy(fmt.Sprintf("%s-%020d-%020d.bin", name, offset, end), r, offset, end)
	if err != nil {
		q.failed++
		return fmt.Errorf("keep damaged bytes: %w", err)
	}
	return nil
}

// KeepObject keeps what is damaged in an object of a bucket, or all of it where it is not said what. The name is made of the
// key.
func (q *Quarantine) KeepObject(key string, data []byte, damage []Damage) error {
	if len(damage) == 0 {
		damage = []Damage{{From: 0, To: int64(len(data))}}
	}
	name := strings.ReplaceAll(key, "/", "_")
	var errs error
	for _, d := range damage {
		errs = errors.Join(errs, q.keepAs(name, bytes.NewReader(data), d.From, d.To))
	}
	return errs
}

func (q *Quarantine) copy(name string, r io.ReaderAt, offset, end int64) error {
	n := min(end-offset, q.max) // of a range that is larger than the bound, its beginning
	if err := vfs.MkdirAll(q.fs, q.dir, dirPerm); err != nil {
		return err
	}
	infos, err := q.fs.List(q.dir)
	if err != nil {
		return err
	}
	var used int64
	for _, i := range infos {
		if i.Name == name {
			return nil
		}
		used += i.SizeBytes
	}
	for len(infos) > 0 && used+n > q.max {
		if err := q.fs.Remove(filepath.Join(q.dir, infos[0].Name)); err != nil {
			return err
		}
		if strings.HasSuffix(infos[0].Name, ".bin") {
			q.deleted++
		}
		used -= infos[0].SizeBytes
		infos = infos[1:]
	}
	return q.write(filepath.Join(q.dir, name), io.NewSectionReader(r, offset, n))
}

func (q *Quarantine) write(name string, from io.Reader) (err error) {
	f, err := q.fs.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_TRUNC, filePerm)
	if err != nil {
		return err
	}
	defer func() {
		if cerr := f.Close(); err == nil {
			err = cerr
		}
		if err != nil {
			_ = q.fs.Remove(name)
		}
	}()
	buf := make([]byte, 256<<10)
	for at := int64(0); ; {
		n, err := from.Read(buf)
		if n > 0 {
			if _, werr := f.WriteAt(buf[:n], at); werr != nil {
				return werr
			}
			at += int64(n)
		}
		if errors.Is(err, io.EOF) {
			return f.Sync()
		}
		if err != nil {
			return err
		}
	}
}
