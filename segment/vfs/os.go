package vfs

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// OS is the real file system.
func OS() FS { return osFS{} }

type osFS struct{}

func (osFS) OpenFile(name string, flag int, perm fs.FileMode) (File, error) {
	if err := checkFlag(flag); err != nil {
		return nil, &fs.PathError{Op: "open", Path: name, Err: err}
	}
	f, err := os.OpenFile(name, flag, perm)
	if err != nil {
		return nil, err
	}
	return osFile{f}, nil
}

func (osFS) Mkdir(name string, perm fs.FileMode) error { return os.Mkdir(name, perm) }

func (osFS) Rename(oldname, newname string) error { return os.Rename(oldname, newname) }

func (osFS) Remove(name string) error { return os.Remove(name) }

// List asks the kernel for the size of regular files only: a lane's directory has ten thousand subdirectories when its
// destination was down for long, and a stat of each would cost more than the listing.
func (osFS) List(dir string) ([]Info, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	infos := make([]Info, 0, len(entries))
	for _, e := range entries {
		info := Info{Name: e.Name(), Dir: e.IsDir()}
		if e.Type().IsRegular() {
			stat, err := e.Info()
			if errors.Is(err, fs.ErrNotExist) {
				continue // removed since it was listed
			}
			if err != nil {
				return nil, err
			}
			info.SizeBytes = stat.Size()
		}
		infos = append(infos, info)
	}
	return infos, nil
}

func (osFS) SyncDir(name string) error {
	d, err := os.OpenFile(name, os.O_RDONLY|syscall.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

type osFile struct{ f *os.File }

func (f osFile) ReadAt(p []byte, off int64) (int, error)  { return f.f.ReadAt(p, off) }
func (f osFile) WriteAt(p []byte, off int64) (int, error) { return f.f.WriteAt(p, off) }
func (f osFile) Truncate(sizeBytes int64) error           { return f.f.Truncate(sizeBytes) }
func (f osFile) Sync() error                              { return syncData(f.f) }
func (f osFile) Close() error                             { return f.f.Close() }

func (f osFile) Size() (int64, error) {
	stat, err := f.f.Stat()
	if err != nil {
		return 0, err
	}
	return stat.Size(), nil
}

// ErrLocked is returned by Lock when another process (or another Lock in this one) holds the lock.
var ErrLocked = errors.New("locked by another process")

// lockPerm is the mode of lock files: nobody else has business with them.
const lockPerm fs.FileMode = 0o600

// Lock takes an exclusive lock on the file name on the real disk, creating the file if needed, and does not wait: ErrLocked
// if it is taken. Close releases it; so does the end of the process, however it ends. The file stays: removing it would let
// two processes lock two files of one name.
func Lock(name string) (io.Closer, error) {
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, lockPerm)
	if err != nil {
		return nil, fmt.Errorf("open lock file: %w", err)
	}
	err = retryInterrupted(func() error { return unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) })
	if err == nil {
		return f, nil
	}
	if errors.Is(err, unix.EWOULDBLOCK) {
		err = ErrLocked
	}
	return nil, errors.Join(fmt.Errorf("lock %s: %w", name, err), f.Close())
}

// retryInterrupted repeats a system call that a signal (the Go runtime sends itself some) has cut short.
func retryInterrupted(call func() error) error {
	for {
		if err := call(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}
