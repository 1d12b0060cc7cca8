package vfs

import (
	"errors"
	"io"
	"io/fs"
	"syscall"
)

// blockBytes is what a medium writes whole or not at all.
const blockBytes = 512

// memData is the content of a file of Mem.
type memData struct {
	data     []byte             // as processes read it
	synced   []byte             // as it is on the medium
	dirty    map[int64]struct{} // numbers of the written blocks that the next Sync stores
	held     map[int64]struct{} // numbers of the blocks that take space; the others are holes
	sizes    []int64            // lengths since the last Sync, oldest first
	lowBytes int64              // the least of them and of synced: bytes behind it may be zeros on the medium

	linked bool // has a name; without one and without opens its space is given back
	opens  int
}

func newMemData(content []byte) *memData {
	d := &memData{linked: true, dirty: make(map[int64]struct{}), held: make(map[int64]struct{})}
	d.data, d.synced = append(d.data, content...), append(d.synced, content...)
	d.lowBytes = int64(len(content))
	for b := int64(0); b*blockBytes < int64(len(content)); b++ {
		d.held[b] = struct{}{}
	}
	return d
}

// write stores p at off block by block, as much of it as there is space for.
func (m *Mem) write(d *memData, p []byte, off int64) (n int, err error) {
	for n < len(p) {
		at := off + int64(n)
		b := at / blockBytes
		if _, ok := d.held[b]; !ok {
			if m.limitBytes > 0 && m.usedBytes+blockBytes > m.limitBytes {
				return n, syscall.ENOSPC
			}
			m.usedBytes += blockBytes
			d.held[b] = struct{}{}
		}
		part := p[n:min(len(p), n+int((b+1)*blockBytes-at))]
		if end := at + int64(len(part)); end > int64(len(d.data)) {
			m.resize(d, end)
		}
		copy(d.data[at:], part)
		d.dirty[b] = struct{}{}
		n += len(part)
	}
	return n, nil
}

// resize sets the length. What is added is a hole. A write grows the file block by block, so that sizes holds every length
// at which a power cut may find it.
func (m *Mem) resize(d *memData, sizeBytes int64) {
	was := int64(len(d.data))
	if sizeBytes == was {
		return
	}
	if sizeBytes < was {
		d.data = d.data[:sizeBytes]
		for b := (sizeBytes + blockBytes - 1) / blockBytes; b*blockBytes < was; b++ {
			if _, ok := d.held[b]; ok {
				delete(d.held, b)
				m.usedBytes -= blockBytes
			}
		}
	} else {
		d.data = append(d.data, make([]byte, sizeBytes-was)...)
	}
	d.sizes = append(d.sizes, sizeBytes)
	d.lowBytes = min(d.lowBytes, sizeBytes)
}

// sync writes the dirty blocks, and zeros for what was cut off, even if it has grown again.
func (d *memData) sync() {
	d.synced = d.synced[:d.lowBytes]
	d.synced = append(d.synced, make([]byte, int64(len(d.data))-d.lowBytes)...)
	for b := range d.dirty {
		if from := b * blockBytes; from < int64(len(d.data)) {
			to := min(from+blockBytes, int64(len(d.data)))
			copy(d.synced[from:to], d.data[from:to])
		}
	}
	clear(d.dirty)
	d.sizes = nil
	d.lowBytes = int64(len(d.data))
}

// unlink is called when a file lost its name.
func (m *Mem) unlink(d *memData) {
	d.linked = false
	m.release(d)
}

func (m *Mem) release(d *memData) {
	if !d.linked && d.opens == 0 {
		m.usedBytes -= int64(len(d.held)) * blockBytes
		clear(d.held)
	}
}

// memFile is an open file of Mem.
type memFile struct {
	m        *Mem
	data     *memData
	name     string
	writable bool
	closed   bool
}

// locked runs call under the lock of the file system unless the file is closed.
func (f *memFile) locked(op string, call func() error) error {
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	err := fs.ErrClosed
	if !f.closed {
		err = call()
	}
	if err != nil && !errors.Is(err, io.EOF) {
		return &fs.PathError{Op: op, Path: f.name, Err: err}
	}
	return err
}

func (f *memFile) ReadAt(p []byte, off int64) (n int, err error) {
	err = f.locked("read", func() error {
		if off < 0 {
			return syscall.EINVAL
		}
		if off < int64(len(f.data.data)) {
			n = copy(p, f.data.data[off:])
		}
		if n < len(p) {
			return io.EOF
		}
		return nil
	})
	return n, err
}

func (f *memFile) WriteAt(p []byte, off int64) (n int, err error) {
	err = f.locked("write", func() error {
		if !f.writable {
			return syscall.EBADF
		}
		if off < 0 {
			return syscall.EINVAL
		}
		n, err = f.m.write(f.data, p, off)
		return err
	})
	return n, err
}

func (f *memFile) Truncate(sizeBytes int64) error {
	return f.locked("truncate", func() error {
		if !f.writable || sizeBytes < 0 {
			return syscall.EINVAL
		}
		f.m.resize(f.data, sizeBytes)
		return nil
	})
}

func (f *memFile) Sync() error {
	return f.locked("sync", func() error {
		f.data.sync()
		return nil
	})
}

// failSync is a Sync that fails, as on Linux: the blocks count as clean from now on although they may not be on the
// medium, so that the next Sync succeeds without writing them.
func (f *memFile) failSync() {
	_ = f.locked("sync", func() error {
		clear(f.data.dirty)
		return nil
	})
}

func (f *memFile) Size() (sizeBytes int64, err error) {
	err = f.locked("stat", func() error {
		sizeBytes = int64(len(f.data.data))
		return nil
	})
	return sizeBytes, err
}

func (f *memFile) Close() error {
	return f.locked("close", func() error {
		f.closed = true
		f.data.opens--
		f.m.release(f.data)
		return nil
	})
}
