// Package filestore is the bucket in a directory: what is used where no other is configured, safe for several processes of
// one machine.
//
// An object is a file below the directory, its key is its path. The file begins with one line of text that holds the
// object's version, the rest is the body. A file without that line, which somebody else has put there, is an object too;
// its version is then made from its size and time. Commit point: the rename of a written and synced file to its key,
// followed by a sync of the directories above it, up to the store's.
//
// It guarantees, whichever process is killed at whatever moment, and after a power cut: an object is seen whole or not at
// all, what a Put has answered for is there, and of several conditional writes of one version one is done. Versions are
// ULIDs, new with every Put: that an object has the content it had before is no reason for its old version to count again.
// Writers of a key take turns by a lock file; how many lock files there are is fixed, and several keys share one. A lock
// ends with its process. Readers take no lock and write nothing, not even the store's own directory. What a killed process
// had not finished is removed by the first write of a later one, which knows it from what others are writing by a lock on it.
// The bucket's time is the machine's.
//
// One power cut is not covered: behind a sync of a directory that failed, after which the Put was answered with ErrUnknown and
// a read has shown the object. Such a directory is on a disk that is to be replaced.
//
// It assumes a file system on which flock excludes the processes of all that use it, rename replaces a file in one step,
// and a sync of files and directories reaches the disk: ext4, XFS, Btrfs, ZFS, APFS. It is not for network file systems: NFS
// (flock is emulated or local, attributes and names are cached for seconds, a rename that is sent again can fail although it
// was done), SMB/CIFS, sshfs and other FUSE clients of remote storage, the shared folders of virtual machines and of
// container desktops, nor for one directory mounted by several machines. Keys that differ by case or by Unicode
// normalisation alone need a file system that tells them apart. Symbolic links below the directory are not followed.
package filestore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"ingest-agent/objstore"
)

const (
	// reservedDir holds the store's own files. No key begins with it.
	reservedDir = ".filestore"
	dirPerm     = 0o750
	filePerm    = 0o640
	// renameTries bounds how often a Put makes a directory that a Delete beside it has just found empty. Each try that
	// fails is a Delete that went on.
	renameTries = 100
)

// Store is an objstore.Bucket in a directory.
type Store struct {
	dir   string
	locks [lockFiles]chan struct{} // holds a token while a goroutine of this process has or awaits the lock file

	prepared chan struct{} // holds a token until the first write has made ready what writes need

	// before is told of each step that changes something or that can fail, and can make it fail. Tests only.
	before func(step, path string) error
}

var _ objstore.Bucket = (*Store)(nil)

// Open returns the bucket in dir. It touches nothing: a directory that is not there is an empty bucket, and is made by the
// first Put. Its error is ErrInvalid where something else than a directory is there.
func Open(dir string) (*Store, error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("open bucket %s: %w: %w", dir, objstore.ErrInvalid, err)
	}
	stat, err := os.Stat(abs)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("open bucket: %w", kind(err))
	}
	if err == nil && !stat.IsDir() {
		return nil, fmt.Errorf("open bucket %s: %w: not a directory", dir, objstore.ErrInvalid)
	}
	s := &Store{dir: abs, prepared: make(chan struct{}, 1), before: func(string, string) error { return nil }}
	s.prepared <- struct{}{}
	for i := range s.locks {
		s.locks[i] = make(chan struct{}, 1)
	}
	return s, nil
}

// Close has nothing to give back.
func (s *Store) Close() error { return nil }

// path is the file of a key.
func (s *Store) path(key string) (string, error) {
	if err := objstore.CheckKey(key); err != nil {
		return "", err
	}
	if key == reservedDir || strings.HasPrefix(key, reservedDir+"/") {
		return "", fmt.Errorf("key %q is the store's own: %w", key, objstore.ErrInvalid)
	}
	return filepath.Join(s.dir, filepath.FromSlash(key)), nil
}

// Get reads an object or a part of it. The body reads the object as it was at the time of the call, whatever becomes of it.
func (s *Store) Get(ctx context.Context, key string, o objstore.GetOptions) (*objstore.Object, error) {
	path, err := s.path(key)
	if err != nil {
		return nil, fmt.Errorf("get object: %w", err)
	}
	if err := ended(ctx); err != nil {
		return nil, fmt.Errorf("get object %s: %w", key, err)
	}
	f, err := openFile(path)
	if err != nil {
		return nil, fmt.Errorf("get object %s: %w", key, kind(err))
	}
	obj, err := f.object(key, o)
	if err != nil {
		return nil, fmt.Errorf("get object %s: %w", key, errors.Join(err, f.Close()))
	}
	return obj, nil
}

// object is the part of f that o asks for, as a body that closes f.
func (f *file) object(key string, o objstore.GetOptions) (*objstore.Object, error) {
	switch {
	case f.unreadable:
		return nil, fmt.Errorf("its first line is damaged, or of a later version of the program: %w", objstore.ErrUnsupported)
	case o.Unless != "" && o.Unless == f.version:
		return nil, objstore.ErrNotModified
	case o.Length < 0:
		return nil, fmt.Errorf("length %d: %w", o.Length, objstore.ErrInvalid)
	}
	from := o.Offset
	if from < 0 {
		from = max(0, f.sizeBytes+o.Offset)
	}
	if from > 0 && from >= f.sizeBytes {
		return nil, fmt.Errorf("offset %d of %d bytes: %w", o.Offset, f.sizeBytes, objstore.ErrInvalid)
	}
	length := f.sizeBytes - from
	if o.Length > 0 {
		length = min(length, o.Length)
	}
	return &objstore.Object{
		Info: f.info(key),
		Body: &body{SectionReader: io.NewSectionReader(f, f.headerBytes+from, length), file: f, left: length},
		Date: time.Now(),
	}, nil
}

// body reads a part of a file, all of it or an error.
type body struct {
	*io.SectionReader
	file *file
	left int64
}

func (b *body) Read(p []byte) (int, error) {
	n, err := b.SectionReader.Read(p)
	b.left -= int64(n)
	if err != nil && b.left > 0 {
		if errors.Is(err, io.EOF) { // the file has got shorter: not by us
			err = io.ErrUnexpectedEOF
		}
		err = fmt.Errorf("read object, %d bytes before its end: %w: %w", b.left, objstore.ErrUnknown, err)
	}
	return n, err
}

func (b *body) Close() error { return b.file.Close() }

// Put writes an object, whole or not at all.
func (s *Store) Put(ctx context.Context, key string, body io.ReadSeeker, c objstore.Condition) (objstore.PutResult, error) {
	path, err := s.path(key)
	if err != nil {
		return objstore.PutResult{}, fmt.Errorf("put object: %w", err)
	}
	version, err := s.put(ctx, path, key, body, c)
	if err != nil {
		return objstore.PutResult{}, fmt.Errorf("put object %s: %w", key, err)
	}
	return objstore.PutResult{Version: version, Date: time.Now()}, nil
}

func (s *Store) put(ctx context.Context, path, key string, body io.ReadSeeker, c objstore.Condition) (objstore.Version, error) {
	// A write that is lost already need not be written first.
	if err := check(path, c); err != nil {
		return "", err
	}
	if err := s.prepare(ctx); err != nil {
		return "", err
	}
	t, err := s.writeTemp(ctx, body)
	if err != nil {
		return "", err
	}
	err = s.place(ctx, path, key, t, c)
	closed := t.close()
	if err != nil {
		return "", errors.Join(err, closed)
	}
	return t.version, nil // it is in its place and synced: what close says changes nothing
}

// check returns ErrPrecondition unless the condition holds.
func check(path string, c objstore.Condition) error {
	if !c.Conditional() {
		return nil
	}
	f, err := openFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if c.Absent() {
			return nil
		}
		return fmt.Errorf("there is none: %w", objstore.ErrPrecondition)
	case err != nil:
		return kind(err)
	}
	version := f.version
	if err := f.Close(); err != nil {
		return kind(err)
	}
	if c.Absent() || version != c.Version() {
		return fmt.Errorf("version %s is there: %w", version, objstore.ErrPrecondition)
	}
	return nil
}

// place makes a written file the object, if the condition holds.
func (s *Store) place(ctx context.Context, path, key string, t *temp, c objstore.Condition) error {
	l, err := s.lock(ctx, key)
	if err != nil {
		return err
	}
	defer l.Close()
	if err := check(path, c); err != nil {
		return err
	}
	if err := ended(ctx); err != nil {
		return err
	}
	for try := 1; ; try++ {
		if err = s.rename(t, path); err == nil {
			break
		}
		if !errors.Is(err, fs.ErrNotExist) || try == renameTries {
			return kindOfWrite(err)
		}
		if err := s.mkdirs(filepath.Dir(path)); err != nil {
			return kindOfWrite(err)
		}
	}
	// All of the directories, each time: that one was there does not say that the process that made it has synced it.
	if err := s.syncDirs(filepath.Dir(path)); err != nil {
		return fmt.Errorf("it is there, but a power cut may undo it: %w: %w", objstore.ErrUnknown, err)
	}
	return nil
}

func (s *Store) rename(t *temp, path string) error {
	if err := s.before("rename", path); err != nil {
		return err
	}
	if err := os.Rename(t.path, path); err != nil {
		return err
	}
	t.placed = true
	return nil
}

func (s *Store) mkdirs(dir string) error {
	if err := s.before("mkdir", dir); err != nil {
		return err
	}
	err := os.MkdirAll(dir, dirPerm)
	if errors.Is(err, fs.ErrNotExist) { // a Delete has removed one of them between two steps
		return nil
	}
	return err
}

// syncDirs syncs dir and what is above it, up to the store's directory.
func (s *Store) syncDirs(dir string) error {
	for {
		if err := s.syncDir(dir); err != nil || len(dir) <= len(s.dir) {
			return err
		}
		dir = filepath.Dir(dir)
	}
}

func (s *Store) syncDir(dir string) error {
	if err := s.before("sync", dir); err != nil {
		return err
	}
	d, err := os.OpenFile(dir, os.O_RDONLY|syscall.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// Delete removes an object, and the directories above it that are empty then.
func (s *Store) Delete(ctx context.Context, key string) error {
	path, err := s.path(key)
	if err != nil {
		return fmt.Errorf("delete object: %w", err)
	}
	if err := s.remove(ctx, path, key); err != nil {
		return fmt.Errorf("delete object %s: %w", key, err)
	}
	return nil
}

func (s *Store) remove(ctx context.Context, path, key string) error {
	if err := ended(ctx); err != nil {
		return err
	}
	stat, err := os.Lstat(path)
	if isAbsent(err) || err == nil && !stat.Mode().IsRegular() {
		return nil // and a lock would have to be made for nothing
	}
	if err == nil {
		err = s.prepare(ctx)
	}
	if err != nil {
		return kind(err)
	}
	l, err := s.lock(ctx, key)
	if err != nil {
		return err
	}
	defer l.Close()
	if err = s.before("remove", path); err == nil {
		err = syscall.Unlink(path) // not os.Remove, which removes a directory too
	}
	if err != nil && !isAbsent(err) {
		return kind(err)
	}
	dir := filepath.Dir(path)
	for ; dir != s.dir; dir = filepath.Dir(dir) {
		// A creator that finds its directory gone makes it again.
		if s.before("rmdir", dir) != nil {
			break
		}
		if err := syscall.Rmdir(dir); err != nil && !isAbsent(err) {
			break
		}
	}
	for {
		err := s.syncDir(dir)
		if !isAbsent(err) || dir == s.dir {
			if err != nil {
				return fmt.Errorf("it is gone, but a power cut may bring it back: %w: %w", objstore.ErrUnknown, err)
			}
			return nil
		}
		dir = filepath.Dir(dir) // somebody else's Delete has gone on from here
	}
}
