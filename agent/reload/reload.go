// Package reload keeps a value that is made from small files, and makes it anew when their content changes.
//
// What it guarantees: Get never fails, and never returns a value that was made from content that is not good as a whole. A
// bad new content, or a file that is gone, leaves the old value in use and is reported once. There is no goroutine: the call
// of Get that finds the interval over looks at the files, and calls beside it get the old value without waiting.
//
// What it assumes: the files lie on a disk that answers; each is replaced by a rename, or read again at the next look if it
// was caught half written. It persists nothing.
package reload

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// retryInterval is when bad files are looked at again, at the latest: they may have been caught between two writes.
const retryInterval = 10 * time.Second

// MaxFileBytes bounds each file that is read.
const MaxFileBytes = 4 << 20

// Options say what a Value is made from.
type Options[T any] struct {
	Paths    []string
	Interval time.Duration // least time between two looks at the files; 0: they are read once
	// Make builds the value from the contents, in the order of Paths.
	Make func(contents [][]byte) (T, error)
	// Report is called once for each change of the files: with nil when the new value is in use, else with the reason why
	// the old one stays. Calls come one at a time, from whoever called Get, and must not block. May be nil.
	Report func(err error)
}

// Value is a value that is made from files. Get may be called from any goroutine.
type Value[T any] struct {
	o       Options[T]
	start   time.Time
	next    atomic.Int64 // when to look again: nanoseconds since start
	looking sync.Mutex
	seen    string // what the last look found; this and bad are guarded by looking
	bad     bool   // it could not be used
	current atomic.Pointer[T]
}

// New reads the files for the first time.
func New[T any](o Options[T]) (*Value[T], error) {
	v := &Value[T]{o: o, start: time.Now()}
	v.next.Store(int64(o.Interval))
	contents, seen, err := v.read()
	if err != nil {
		return nil, err
	}
	made, err := o.Make(contents)
	if err != nil {
		return nil, err
	}
	v.seen = seen
	v.current.Store(&made)
	return v, nil
}

// Get returns the value, made anew if it is time to look and the files have changed.
func (v *Value[T]) Get() T {
	if v.due() && v.looking.TryLock() {
		if v.due() { // nobody was quicker
			v.look()
		}
		v.looking.Unlock()
	}
	return *v.current.Load()
}

func (v *Value[T]) due() bool {
	return v.o.Interval > 0 && int64(time.Since(v.start)) >= v.next.Load()
}

// look makes the value anew if the files have changed. Content is compared, not times of change, which are too coarse to
// tell two writes apart.
func (v *Value[T]) look() {
	v.next.Store(int64(time.Since(v.start) + v.o.Interval))
	contents, seen, err := v.read()
	if err != nil {
		seen = "error: " + err.Error()
	}
	changed := seen != v.seen
	if changed {
		v.seen, v.bad = seen, true
		if err == nil {
			var made T
			if made, err = v.o.Make(contents); err == nil {
				v.bad = false
				v.current.Store(&made)
			}
		}
	}
	if v.bad {
		v.next.Store(int64(time.Since(v.start) + min(v.o.Interval, retryInterval)))
	}
	if changed && v.o.Report != nil {
		v.o.Report(err)
	}
}

// read returns the contents and a digest of all of them.
func (v *Value[T]) read() (contents [][]byte, seen string, err error) {
	digest := sha256.New()
	for _, path := range v.o.Paths {
		content, err := ReadFile(path)
		if err != nil {
			return nil, "", fmt.Errorf("read file: %w", err)
		}
		contents = append(contents, content)
		digest.Write(binary.LittleEndian.AppendUint64(nil, uint64(len(content))))
		digest.Write(content)
	}
	return contents, string(digest.Sum(nil)), nil
}

// ReadFile reads a regular file of at most MaxFileBytes. It does not wait on a pipe or a device. Errors are *fs.PathError.
func ReadFile(path string) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, &fs.PathError{Op: "read", Path: path, Err: errors.New("not a regular file")}
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return ReadBounded(f, path)
}

// ReadBounded reads r to its end, at most MaxFileBytes; path is its name in the error.
func ReadBounded(r io.Reader, path string) ([]byte, error) {
	data, err := io.ReadAll(io.LimitReader(r, MaxFileBytes+1))
	if err == nil && len(data) > MaxFileBytes {
		err = &fs.PathError{Op: "read", Path: path, Err: fmt.Errorf("larger than %dMiB", MaxFileBytes>>20)}
	}
	return data, err
}
