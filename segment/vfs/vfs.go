// Package vfs is the file seam of package segment: everything that segment opens itself goes through an FS, so that a test
// can cut the power, fill the disk or fail any single operation.
//
// There are three implementations and one contract suite (package vfstest) that runs on each: OS is the real disk, Mem is a
// disk in memory that knows what is synced and can lose the rest, and Fault wraps another FS and fails chosen operations.
//
// Guarantees: after File.Sync the file's bytes and size survive a power cut; after SyncDir the directory's entries do. Both
// are needed for a new file. WriteFileAtomic has its commit point at the sync of the directory, after the rename: a reader
// finds the old content or the new, never a mix, and once the call succeeded only the new.
//
// Assumes a local POSIX file system that keeps the order of changes to one directory and renames atomically, also through a
// power cut (ext4, XFS, Btrfs and APFS do). After a failed Sync the bytes since the last good one must be taken for lost,
// also when a later Sync succeeds: the kernel marks them clean. All names are paths in the form of the host.
package vfs

import (
	"io"
	"io/fs"
	"os"
)

// FS is a file system. All methods may be called from several goroutines. Errors match fs.ErrNotExist, fs.ErrExist and the
// like with errors.Is, and carry the syscall.Errno (ENOSPC, EIO) where there is one.
type FS interface {
	// OpenFile opens a file. flag is os.O_RDONLY or os.O_RDWR, the latter with any of os.O_CREATE, os.O_EXCL (with
	// os.O_CREATE only) and os.O_TRUNC; anything else is fs.ErrInvalid. The parent must exist.
	OpenFile(name string, flag int, perm fs.FileMode) (File, error)
	// Mkdir creates one directory. The parent must exist. fs.ErrExist if there is anything of that name.
	Mkdir(name string, perm fs.FileMode) error
	// Rename moves a file or directory. A file replaces a file at newname; a directory at newname is fs.ErrExist. Files open
	// under either name stay usable. It is durable only after a SyncDir of the directories of both names.
	Rename(oldname, newname string) error
	// Remove removes a file or an empty directory. An open file stays usable.
	Remove(name string) error
	// List returns the entries of a directory, sorted by name.
	List(dir string) ([]Info, error)
	// SyncDir makes the entries of a directory durable: what was created, renamed and removed in it. It says nothing about
	// the contents of the files, nor about the entry of the directory in its own parent.
	SyncDir(name string) error
}

// File is an open file. All methods may be called from several goroutines. After Close they return fs.ErrClosed.
type File interface {
	io.ReaderAt // io.EOF if fewer bytes are there
	io.WriterAt // on an error the first n bytes are written, and any of the others may be
	// Truncate sets the length of the file; what is added reads as zeros.
	Truncate(sizeBytes int64) error
	// Sync makes the content and length of the file durable (fdatasync where there is one), whoever wrote it.
	Sync() error
	// Size is the present length of the file in bytes.
	Size() (int64, error)
	io.Closer
}

// Info is an entry of a directory.
type Info struct {
	Name      string // without the directory
	SizeBytes int64  // 0 for everything but regular files
	Dir       bool
}

// checkFlag holds every implementation to the flags that the contract names.
func checkFlag(flag int) error {
	switch {
	case flag&^(os.O_RDWR|os.O_CREATE|os.O_EXCL|os.O_TRUNC) != 0,
		flag&os.O_EXCL != 0 && flag&os.O_CREATE == 0,
		flag != os.O_RDONLY && flag&os.O_RDWR == 0:
		return fs.ErrInvalid
	}
	return nil
}
