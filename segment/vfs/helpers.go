package vfs

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// TempSuffix ends the name of every file that WriteFileAtomic has not renamed yet. A file of such a name that is found at
// start was left by a crash and can be removed.
const TempSuffix = ".tmp"

// ErrTooLarge is returned by ReadFile for a file over the limit. What is small by its format and is not on disk is damaged.
var ErrTooLarge = errors.New("file is too large")

// MkdirAll creates the directory path and its missing parents. Each is durable in its parent before the next is created.
//
// So of all directories that a process left when it died at most the deepest is not durable, and to be sure of a path it
// takes one more sync: that of the parent of the deepest directory that is there already.
func MkdirAll(fsys FS, path string, perm fs.FileMode) error {
	path = filepath.Clean(path)
	parent := filepath.Dir(path)
	err := checkDir(fsys, path)
	switch {
	case err == nil:
		// A parent that we may not read is above what is ours: whoever set the machine up made it.
		if err := fsys.SyncDir(parent); err != nil && !errors.Is(err, fs.ErrPermission) {
			return fmt.Errorf("sync directory: %w", err)
		}
		return nil
	case !errors.Is(err, fs.ErrNotExist), parent == path:
		return fmt.Errorf("create directory: %w", err)
	}
	if err := MkdirAll(fsys, parent, perm); err != nil {
		return err
	}
	if err := fsys.Mkdir(path, perm); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("create directory: %w", err)
	}
	if err := fsys.SyncDir(parent); err != nil {
		return fmt.Errorf("sync directory: %w", err)
	}
	return nil
}

// checkDir is nil if name is a directory, fs.ErrNotExist if there is nothing, and syscall.ENOTDIR for anything else. An FS
// has no stat; opening a directory to write is EISDIR, whatever its permissions.
func checkDir(fsys FS, name string) error {
	f, err := fsys.OpenFile(name, os.O_RDWR, 0)
	if errors.Is(err, syscall.EISDIR) {
		return nil
	}
	if err != nil {
		return err
	}
	return errors.Join(&fs.PathError{Op: "open directory", Path: name, Err: syscall.ENOTDIR}, f.Close())
}

// ReadFile returns the content of a file of at most maxBytes bytes; ErrTooLarge if it is longer, before anything is read
// or allocated.
func ReadFile(fsys FS, name string, maxBytes int64) (data []byte, err error) {
	f, err := fsys.OpenFile(name, os.O_RDONLY, 0)
	if err != nil {
		return nil, fmt.Errorf("open file: %w", err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	sizeBytes, err := f.Size()
	if err != nil {
		return nil, fmt.Errorf("read size: %w", err)
	}
	if sizeBytes > maxBytes {
		return nil, fmt.Errorf("read %s: %w: %d bytes, at most %d", name, ErrTooLarge, sizeBytes, maxBytes)
	}
	data = make([]byte, sizeBytes)
	n, err := f.ReadAt(data, 0)
	if n == len(data) {
		return data, nil
	}
	if errors.Is(err, io.EOF) { // cut short since its size was taken
		err = io.ErrUnexpectedEOF
	}
	return nil, fmt.Errorf("read %s: %w", name, err)
}

// WriteFileAtomic replaces the content of a file, or creates it: temporary file beside it, sync, rename, sync of the
// directory. After an error the file holds the old content or the new, and after a crash either may come back. Only one
// call at a time may be made for a name.
func WriteFileAtomic(fsys FS, name string, data []byte, perm fs.FileMode) error {
	temp := name + TempSuffix
	if err := writeSynced(fsys, temp, data, perm); err != nil {
		return errors.Join(err, removeIfThere(fsys, temp)) // give the space back: the disk may be full
	}
	if err := fsys.Rename(temp, name); err != nil {
		return errors.Join(fmt.Errorf("rename file: %w", err), removeIfThere(fsys, temp))
	}
	if err := fsys.SyncDir(filepath.Dir(name)); err != nil {
		return fmt.Errorf("sync directory: %w", err)
	}
	return nil
}

func writeSynced(fsys FS, name string, data []byte, perm fs.FileMode) error {
	f, err := fsys.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_TRUNC, perm)
	if err != nil {
		return fmt.Errorf("create file: %w", err)
	}
	if _, err := f.WriteAt(data, 0); err != nil {
		return errors.Join(fmt.Errorf("write file: %w", err), f.Close())
	}
	if err := f.Sync(); err != nil {
		return errors.Join(fmt.Errorf("sync file: %w", err), f.Close())
	}
	if err := f.Close(); err != nil {
		return fmt.Errorf("close file: %w", err)
	}
	return nil
}

func removeIfThere(fsys FS, name string) error {
	if err := fsys.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove file: %w", err)
	}
	return nil
}

// RemoveAll removes a directory and everything in it; no error if it is not there. It is not durable before a SyncDir of
// the parent: after a crash the directory may be there with any part of its content.
func RemoveAll(fsys FS, dir string) error {
	entries, err := fsys.List(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("list directory: %w", err)
	}
	for _, e := range entries {
		name := filepath.Join(dir, e.Name)
		if e.Dir {
			err = RemoveAll(fsys, name)
		} else {
			err = removeIfThere(fsys, name)
		}
		if err != nil {
			return err
		}
	}
	if err := fsys.Remove(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove directory: %w", err)
	}
	return nil
}
