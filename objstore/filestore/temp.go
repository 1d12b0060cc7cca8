package filestore

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/oklog/ulid/v2"
	"golang.org/x/sys/unix"

	"ingest-agent/objstore"
)

const (
	locksDir = "locks"
	tempDir  = "tmp"
	// copyBytes is the most that is held of a body that is written.
	copyBytes = 256 << 10
)

// prepare makes, before the first write of this process, what writes need, and removes what killed processes have left. A
// failed one is tried again by the next write.
func (s *Store) prepare(ctx context.Context) error {
	select {
	case _, first := <-s.prepared:
		if !first {
			return nil
		}
	case <-ctx.Done():
		return ended(ctx)
	}
	if err := s.makeDirs(); err != nil {
		s.prepared <- struct{}{}
		return kindOfWrite(err)
	}
	close(s.prepared)
	return nil
}

func (s *Store) makeDirs() error {
	// What of the store's directory and of those above it is not there is made here, and named durably in what is.
	top := s.dir
	for {
		top = filepath.Dir(top)
		if _, err := os.Stat(top); !errors.Is(err, fs.ErrNotExist) {
			break
		}
	}
	own := filepath.Join(s.dir, reservedDir)
	for _, name := range []string{locksDir, tempDir} {
		if err := s.before("mkdir", filepath.Join(own, name)); err != nil {
			return err
		}
		if err := os.MkdirAll(filepath.Join(own, name), dirPerm); err != nil {
			return err
		}
	}
	for dir := own; dir != top; {
		dir = filepath.Dir(dir)
		err := s.syncDir(dir)
		if errors.Is(err, fs.ErrPermission) && len(dir) < len(s.dir) {
			break // one that we may not even read is none in which we have made anything
		}
		if err != nil {
			return err
		}
	}
	return s.clean()
}

// temp is a file that is being written, and will be an object. It is locked while its writer lives.
type temp struct {
	*os.File
	path    string
	version objstore.Version
	placed  bool
}

// writeTemp writes an object to a file of its own and syncs it.
func (s *Store) writeTemp(ctx context.Context, body io.ReadSeeker) (*temp, error) {
	sizeBytes, err := body.Seek(0, io.SeekEnd)
	if err == nil {
		_, err = body.Seek(0, io.SeekStart)
	}
	if err != nil {
		return nil, fmt.Errorf("seek body: %w: %w", objstore.ErrInvalid, err)
	}
	t, err := s.createTemp()
	if errors.Is(err, fs.ErrNotExist) { // somebody has removed the store's directory under us
		if err = s.makeDirs(); err == nil {
			t, err = s.createTemp()
		}
	}
	if err != nil {
		return nil, kindOfWrite(err)
	}
	err = s.before("write", t.path)
	if err == nil {
		err = t.write(ctx, body, sizeBytes)
	}
	if err == nil {
		err = s.before("sync", t.path)
	}
	if err == nil {
		err = t.Sync()
	}
	if err != nil {
		return nil, errors.Join(kindOfWrite(err), t.close())
	}
	return t, nil
}

// createTemp makes a locked file. One that a clean has taken for a leftover, before it was locked, is left to it.
func (s *Store) createTemp() (*temp, error) {
	for {
		id, err := ulid.New(ulid.Timestamp(time.Now()), rand.Reader)
		if err != nil {
			return nil, err
		}
		path := filepath.Join(s.dir, reservedDir, tempDir, id.String())
		if err := s.before("create", path); err != nil {
			return nil, err
		}
		f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, filePerm)
		if err != nil {
			return nil, err
		}
		if err := s.before("own", path); err != nil {
			return nil, errors.Join(err, f.Close(), os.Remove(path))
		}
		locked, err := tryLock(f)
		if err != nil {
			return nil, errors.Join(err, f.Close(), os.Remove(path))
		}
		var stat unix.Stat_t
		if locked {
			err = unix.Fstat(int(f.Fd()), &stat)
		}
		if err == nil && locked && stat.Nlink > 0 {
			return &temp{File: f, path: path, version: objstore.Version(id.String())}, nil
		}
		if err := errors.Join(err, f.Close()); err != nil {
			return nil, err
		}
	}
}

func (t *temp) write(ctx context.Context, body io.Reader, sizeBytes int64) error {
	id, err := ulid.ParseStrict(string(t.version))
	if err != nil {
		return err
	}
	if _, err := t.WriteString(header(id)); err != nil {
		return err
	}
	// os.File would copy by a way of its own, without our buffer and without a look at ctx.
	n, err := io.CopyBuffer(struct{ io.Writer }{t}, &bodyReader{ctx, body}, make([]byte, max(1, min(sizeBytes, copyBytes))))
	if err == nil && n != sizeBytes {
		err = fmt.Errorf("body of %d bytes ended after %d: %w", sizeBytes, n, objstore.ErrInvalid)
	}
	return err
}

// close gives the file back: the object stays if it is one now, else the file goes.
func (t *temp) close() error {
	var err error
	if !t.placed {
		err = os.Remove(t.path)
	}
	if err = errors.Join(err, t.Close()); err != nil {
		return fmt.Errorf("close temporary file: %w", err)
	}
	return nil
}

// bodyReader reads a caller's body until ctx ends.
type bodyReader struct {
	ctx  context.Context //nolint:containedctx // io.Reader has none
	body io.Reader
}

func (r *bodyReader) Read(p []byte) (int, error) {
	if err := ended(r.ctx); err != nil {
		return 0, err
	}
	n, err := r.body.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		err = fmt.Errorf("read body: %w: %w", objstore.ErrUnknown, err)
	}
	return n, err
}

// clean removes the files that no writer holds a lock on. The lock is taken before the removal: whoever made the file and
// has not locked it yet then sees that it is gone.
func (s *Store) clean() error {
	dir := filepath.Join(s.dir, reservedDir, tempDir)
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if err := s.removeLeftover(filepath.Join(dir, e.Name())); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

func (s *Store) removeLeftover(path string) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	if locked, err := tryLock(f); err != nil || !locked {
		return err
	}
	if err := s.before("clean", path); err != nil {
		return err
	}
	return os.Remove(path)
}
