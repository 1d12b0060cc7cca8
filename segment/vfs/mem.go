package vfs

import (
	"io/fs"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
)

// Mem is a file system in memory for tests. Beside what processes see it keeps what is on the medium: the content of files
// as of their last Sync, the entries of directories as of their last SyncDir. Crash and CrashStrict tell what a power cut
// would leave. Permissions are ignored.
type Mem struct {
	mu         sync.Mutex
	root       *node
	log        []dirOp // changes of directories that are not on the medium yet, oldest first
	limitBytes int64   // 0: no limit
	usedBytes  int64
}

// node is a directory, or a file if file is set.
type node struct {
	entries map[string]*node // as processes see them
	durable map[string]*node // as they are on the medium
	file    *memData
}

// dirOp is one atomic change of directories: one entry set or removed, or both for a rename.
type dirOp []dirChange

type dirChange struct {
	dir  *node
	name string
	to   *node // nil: removed
}

// NewMem is an empty file system whose only directory is the root, "/". Relative names start there too.
func NewMem() *Mem { return &Mem{root: newDir()} }

func newDir() *node {
	return &node{entries: make(map[string]*node), durable: make(map[string]*node)}
}

// Limit sets the capacity in bytes; 0 is none. Writes count in whole blocks, names and directories not at all. A write that
// does not fit stores what does and returns syscall.ENOSPC.
func (m *Mem) Limit(limitBytes int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.limitBytes = limitBytes
}

// FreeBytes is for Mem what the function FreeBytes is for the real disk.
func (m *Mem) FreeBytes(string) (uint64, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.limitBytes == 0 {
		return math.MaxInt64, nil
	}
	return uint64(max(0, m.limitBytes-m.usedBytes)), nil
}

// OpenFile implements FS.
func (m *Mem) OpenFile(name string, flag int, _ fs.FileMode) (File, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	n, err := m.open(name, flag)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: name, Err: err}
	}
	n.file.opens++
	return &memFile{m: m, data: n.file, name: name, writable: flag&os.O_RDWR != 0}, nil
}

func (m *Mem) open(name string, flag int) (*node, error) {
	if err := checkFlag(flag); err != nil {
		return nil, err
	}
	dir, base, err := m.parent(name)
	if err != nil {
		return nil, err
	}
	n := dir.entries[base]
	switch {
	case n == nil && flag&os.O_CREATE == 0:
		return nil, syscall.ENOENT
	case n == nil:
		n = &node{file: newMemData(nil)}
		m.change(dirOp{{dir, base, n}})
	case flag&os.O_EXCL != 0:
		return nil, syscall.EEXIST
	case n.file == nil:
		return nil, syscall.EISDIR
	case flag&os.O_TRUNC != 0:
		m.resize(n.file, 0)
	}
	return n, nil
}

// Mkdir implements FS.
func (m *Mem) Mkdir(name string, _ fs.FileMode) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	dir, base, err := m.parent(name)
	if err == nil && dir.entries[base] != nil {
		err = syscall.EEXIST
	}
	if err != nil {
		return &fs.PathError{Op: "mkdir", Path: name, Err: err}
	}
	m.change(dirOp{{dir, base, newDir()}})
	return nil
}

// Rename implements FS. A rename between directories is one step, and a SyncDir of either makes it durable in both, as on
// a journalling file system.
func (m *Mem) Rename(oldname, newname string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.rename(clean(oldname), clean(newname)); err != nil {
		return &os.LinkError{Op: "rename", Old: oldname, New: newname, Err: err}
	}
	return nil
}

func (m *Mem) rename(oldname, newname string) error {
	oldDir, oldBase, err := m.parent(oldname)
	if err != nil {
		return err
	}
	newDir, newBase, err := m.parent(newname)
	if err != nil {
		return err
	}
	n, there := oldDir.entries[oldBase], newDir.entries[newBase]
	switch {
	case n == nil:
		return syscall.ENOENT
	case there != nil && there.file == nil:
		return syscall.EEXIST
	case n.file == nil && there != nil:
		return syscall.ENOTDIR
	case n.file == nil && strings.HasPrefix(newname, oldname+"/"):
		return syscall.EINVAL // a directory into itself
	case n == m.root:
		return syscall.EBUSY
	case n == there:
		return nil
	}
	m.change(dirOp{{oldDir, oldBase, nil}, {newDir, newBase, n}})
	if there != nil {
		m.unlink(there.file)
	}
	return nil
}

// Remove implements FS.
func (m *Mem) Remove(name string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	dir, base, err := m.parent(name)
	if err != nil {
		return &fs.PathError{Op: "remove", Path: name, Err: err}
	}
	n := dir.entries[base]
	switch {
	case n == nil:
		return &fs.PathError{Op: "remove", Path: name, Err: syscall.ENOENT}
	case n == m.root:
		return &fs.PathError{Op: "remove", Path: name, Err: syscall.EBUSY}
	case len(n.entries) > 0:
		return &fs.PathError{Op: "remove", Path: name, Err: syscall.ENOTEMPTY}
	}
	m.change(dirOp{{dir, base, nil}})
	if n.file != nil {
		m.unlink(n.file)
	}
	return nil
}

// List implements FS.
func (m *Mem) List(dir string) ([]Info, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	d, err := m.dir(clean(dir))
	if err != nil {
		return nil, &fs.PathError{Op: "list", Path: dir, Err: err}
	}
	infos := make([]Info, 0, len(d.entries))
	for _, name := range slices.Sorted(maps.Keys(d.entries)) {
		info := Info{Name: name, Dir: d.entries[name].file == nil}
		if !info.Dir {
			info.SizeBytes = int64(len(d.entries[name].file.data))
		}
		infos = append(infos, info)
	}
	return infos, nil
}

// SyncDir implements FS.
func (m *Mem) SyncDir(name string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	d, err := m.dir(clean(name))
	if err != nil {
		return &fs.PathError{Op: "syncdir", Path: name, Err: err}
	}
	happened := reached(m.log, map[*node]int{d: len(m.log)})
	var rest []dirOp
	for i, op := range m.log {
		if !happened[i] {
			rest = append(rest, op)
			continue
		}
		for _, c := range op {
			c.apply(c.dir.durable)
		}
	}
	m.log = rest
	return nil
}

// change does op for processes, and notes it for the medium.
func (m *Mem) change(op dirOp) {
	for _, c := range op {
		c.apply(c.dir.entries)
	}
	m.log = append(m.log, op)
}

func (c dirChange) apply(entries map[string]*node) {
	if c.to == nil {
		delete(entries, c.name)
	} else {
		entries[c.name] = c.to
	}
}

func clean(name string) string { return filepath.Clean("/" + name) }

// dir finds a directory by its clean name.
func (m *Mem) dir(name string) (*node, error) {
	d := m.root
	for part := range strings.SplitSeq(strings.Trim(name, "/"), "/") {
		if part == "" { // the root
			continue
		}
		if d = d.entries[part]; d == nil {
			return nil, syscall.ENOENT
		}
		if d.file != nil {
			return nil, syscall.ENOTDIR
		}
	}
	return d, nil
}

// parent finds the directory that name is in, or would be. The root counts as an entry ".": its name exists, and is in it.
func (m *Mem) parent(name string) (dir *node, base string, err error) {
	name = clean(name)
	if name == "/" {
		return &node{entries: map[string]*node{".": m.root}}, ".", nil
	}
	dir, err = m.dir(filepath.Dir(name))
	return dir, filepath.Base(name), err
}
