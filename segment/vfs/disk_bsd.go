//go:build darwin || freebsd

package vfs

import (
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// syncData is fsync (on macOS F_FULLFSYNC, the one that reaches the medium).
func syncData(f *os.File) error { return f.Sync() }

// FreeBytes is the space in bytes that a process without privileges can still use on the file system that holds dir.
func FreeBytes(dir string) (uint64, error) {
	var stat unix.Statfs_t
	if err := retryInterrupted(func() error { return unix.Statfs(dir, &stat) }); err != nil {
		return 0, &fs.PathError{Op: "statfs", Path: dir, Err: err}
	}
	if int64(stat.Bavail) <= 0 { // FreeBSD counts below zero when root has used the reserve
		return 0, nil
	}
	return uint64(stat.Bavail) * uint64(stat.Bsize), nil
}
