package vfs

import (
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// syncData is fdatasync: content and length, without the times, which saves a write of the inode per commit.
func syncData(f *os.File) error {
	conn, err := f.SyscallConn() // and not Fd: it holds the descriptor open while the call runs
	if err != nil {
		return err
	}
	syncErr := fs.ErrClosed // stays when Control does not call: it refuses a closed file with an error of its own
	_ = conn.Control(func(fd uintptr) {
		syncErr = retryInterrupted(func() error { return unix.Fdatasync(int(fd)) })
	})
	if syncErr != nil {
		return &fs.PathError{Op: "fdatasync", Path: f.Name(), Err: syncErr}
	}
	return nil
}

// FreeBytes is the space in bytes that a process without privileges can still use on the file system that holds dir.
func FreeBytes(dir string) (uint64, error) {
	var stat unix.Statfs_t
	if err := retryInterrupted(func() error { return unix.Statfs(dir, &stat) }); err != nil {
		return 0, &fs.PathError{Op: "statfs", Path: dir, Err: err}
	}
	unit := stat.Frsize // the unit of the counts (POSIX, statvfs); Bsize is the size that transfers like best
	if unit <= 0 {
		unit = stat.Bsize
	}
	return stat.Bavail * uint64(unit), nil
}
