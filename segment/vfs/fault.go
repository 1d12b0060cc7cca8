package vfs

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"strings"
	"sync"
)

// Kinds of operations that Fault tells apart.
const (
	OpOpen     = "open"   // without os.O_CREATE
	OpCreate   = "create" // an open with os.O_CREATE, whether the file was there or not
	OpMkdir    = "mkdir"
	OpRename   = "rename"
	OpRemove   = "remove"
	OpList     = "list"
	OpSyncDir  = "syncdir"
	OpRead     = "read"
	OpWrite    = "write"
	OpTruncate = "truncate"
	OpSync     = "sync"
	OpSize     = "size"
	OpClose    = "close"
)

// Op is one operation that came to a Fault.
type Op struct {
	N    int    // from 1, over all files of the Fault
	Kind string // OpOpen and so on
	Name string // as given by the caller; of an open file the name it was opened under
	To   string // OpRename: the new name
}

func (op Op) String() string {
	s := fmt.Sprintf("%4d %s %s", op.N, op.Kind, op.Name)
	if op.To != "" {
		s += " -> " + op.To
	}
	return s
}

// ErrStopped is what the operation given to StopAfter and all later ones return.
var ErrStopped = errors.New("file system stopped")

// failure is what becomes of an operation that is to fail.
type failure struct {
	err       error
	effect    bool // it is done all the same
	sizeBytes int  // of a write with effect: so much of it
}

func (f *failure) Error() string {
	if f.effect {
		return "after effect: " + f.err.Error()
	}
	return f.err.Error()
}

// AfterEffect is for the answer of a decide function: the operation is done, and then fails with err.
func AfterEffect(err error) error { return &failure{err: err, effect: true, sizeBytes: math.MaxInt} }

// ShortWrite is for the answer of a decide function: a write stores its first sizeBytes bytes and fails with err.
func ShortWrite(err error, sizeBytes int) error {
	return &failure{err: err, effect: true, sizeBytes: sizeBytes}
}

// Fault is an FS that counts the operations on another one and fails those that a test chooses. A Close always closes, and a
// failed one then returns its error. A Sync that fails without effect on a Mem makes its blocks count as clean, as on Linux:
// a second Sync succeeds without writing them.
type Fault struct {
	under  FS
	decide func(Op) error

	mu     sync.Mutex
	n      int
	stopAt int
	trace  []string // the last traceOps operations
}

// traceOps bounds the trace: a test that loops on an error must not fill the memory.
const traceOps = 1000

// NewFault wraps under. decide, if not nil, is called before every operation that is not stopped, without a lock held but from
// any goroutine; its error is what the operation fails with, wrapped in a *fs.PathError.
func NewFault(under FS, decide func(Op) error) *Fault {
	return &Fault{under: under, decide: decide, stopAt: math.MaxInt}
}

// StopAfter fails operation n and all later ones with ErrStopped and without effect, as if the process had died before it.
func (f *Fault) StopAfter(n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.stopAt = n
}

// Ops is the number of operations so far.
func (f *Fault) Ops() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.n
}

// Trace lists the last operations, one to a line, with the error that each was made to fail with.
func (f *Fault) Trace() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return strings.Join(f.trace, "\n")
}

// next counts an operation and says whether it is to fail; nil if not.
func (f *Fault) next(op Op) *failure {
	f.mu.Lock()
	f.n++
	op.N = f.n
	stopped := op.N >= f.stopAt
	f.mu.Unlock()

	var err error
	switch {
	case stopped:
		err = ErrStopped
	case f.decide != nil:
		err = f.decide(op)
	}
	line := op.String()
	if err != nil {
		line += ": " + err.Error()
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.trace) == traceOps {
		f.trace = f.trace[1:]
	}
	f.trace = append(f.trace, line)

	fail, ok := errors.AsType[*failure](err)
	switch {
	case err == nil:
		return nil
	case !ok:
		fail = &failure{err: err}
	}
	return &failure{&fs.PathError{Op: op.Kind, Path: op.Name, Err: fail.err}, fail.effect, fail.sizeBytes}
}

// do runs call, or fails in its place or after it.
func (f *Fault) do(op Op, call func() error) error {
	fail := f.next(op)
	if fail == nil {
		return call()
	}
	return fail.after(call)
}

// after runs call if the failure comes after the effect. An error of call itself comes first.
func (f *failure) after(call func() error) error {
	if f.effect {
		if err := call(); err != nil {
			return err
		}
	}
	return f.err
}

// OpenFile implements FS.
func (f *Fault) OpenFile(name string, flag int, perm fs.FileMode) (File, error) {
	kind := OpOpen
	if flag&os.O_CREATE != 0 {
		kind = OpCreate
	}
	var file File
	err := f.do(Op{Kind: kind, Name: name}, func() (err error) {
		file, err = f.under.OpenFile(name, flag, perm)
		return err
	})
	if err != nil {
		if file != nil { // failed after effect
			err = errors.Join(err, file.Close())
		}
		return nil, err
	}
	return &faultFile{f, file, name}, nil
}

// Mkdir implements FS.
func (f *Fault) Mkdir(name string, perm fs.FileMode) error {
	return f.do(Op{Kind: OpMkdir, Name: name}, func() error { return f.under.Mkdir(name, perm) })
}

// Rename implements FS.
func (f *Fault) Rename(oldname, newname string) error {
	op := Op{Kind: OpRename, Name: oldname, To: newname}
	return f.do(op, func() error { return f.under.Rename(oldname, newname) })
}

// Remove implements FS.
func (f *Fault) Remove(name string) error {
	return f.do(Op{Kind: OpRemove, Name: name}, func() error { return f.under.Remove(name) })
}

// List implements FS.
func (f *Fault) List(dir string) (infos []Info, err error) {
	err = f.do(Op{Kind: OpList, Name: dir}, func() (err error) {
		infos, err = f.under.List(dir)
		return err
	})
	if err != nil {
		return nil, err
	}
	return infos, nil
}

// SyncDir implements FS.
func (f *Fault) SyncDir(name string) error {
	return f.do(Op{Kind: OpSyncDir, Name: name}, func() error { return f.under.SyncDir(name) })
}

// faultFile is an open file of a Fault.
type faultFile struct {
	fault *Fault
	under File
	name  string
}

func (f *faultFile) do(kind string, call func() error) error {
	return f.fault.do(Op{Kind: kind, Name: f.name}, call)
}

func (f *faultFile) ReadAt(p []byte, off int64) (n int, err error) {
	err = f.do(OpRead, func() (err error) {
		n, err = f.under.ReadAt(p, off)
		return err
	})
	return n, err
}

func (f *faultFile) WriteAt(p []byte, off int64) (n int, err error) {
	write := func() (err error) {
		n, err = f.under.WriteAt(p, off)
		return err
	}
	fail := f.fault.next(Op{Kind: OpWrite, Name: f.name})
	if fail == nil {
		err = write()
		return n, err
	}
	p = p[:min(len(p), fail.sizeBytes)]
	err = fail.after(write)
	return n, err
}

func (f *faultFile) Truncate(sizeBytes int64) error {
	return f.do(OpTruncate, func() error { return f.under.Truncate(sizeBytes) })
}

func (f *faultFile) Sync() error {
	fail := f.fault.next(Op{Kind: OpSync, Name: f.name})
	if fail == nil {
		return f.under.Sync()
	}
	if mem, ok := f.under.(*memFile); ok && !fail.effect && !errors.Is(fail.err, ErrStopped) {
		mem.failSync()
	}
	return fail.after(f.under.Sync)
}

func (f *faultFile) Size() (sizeBytes int64, err error) {
	err = f.do(OpSize, func() (err error) {
		sizeBytes, err = f.under.Size()
		return err
	})
	return sizeBytes, err
}

func (f *faultFile) Close() error {
	fail := f.fault.next(Op{Kind: OpClose, Name: f.name})
	if err := f.under.Close(); err != nil || fail == nil {
		return err
	}
	return fail.err
}
