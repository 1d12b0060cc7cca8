package vfs

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"syscall"
	"testing"
)

// crashes gives the strict crash of m and some random ones, each with a name for messages.
func crashes(m *Mem, n int) map[string]*Mem {
	all := map[string]*Mem{"strict": m.CrashStrict()}
	for seed := range uint64(n) {
		all[fmt.Sprintf("seed %d", seed)] = m.Crash(rand.New(rand.NewPCG(seed, 2)))
	}
	return all
}

// TestWriteFileAtomicCrash cuts the power at every operation of a replacement: the old content or the new is there, whole,
// after success only the new, and the next replacement works.
func TestWriteFileAtomicCrash(t *testing.T) {
	before, after := strings.Repeat("old ", 300), strings.Repeat("new ", 700)
	for n, done := 1, false; !done; n++ {
		m := NewMem()
		durable(t, m, "a", before)
		fsys := NewFault(m, nil)
		fsys.StopAfter(n)
		done = WriteFileAtomic(fsys, "a", []byte(after), 0o600) == nil
		for name, crashed := range crashes(m, 100) {
			content, err := ReadFile(crashed, "a", 1<<20)
			if got := string(content); err != nil || got != after && (done || got != before) {
				t.Fatalf("stopped at %d, %s, answered %v: got %d bytes %.20q, %v\n%s", n, name, done, len(got), got, err, fsys.Trace())
			}
			ok(t, WriteFileAtomic(crashed, "a", []byte("again"), 0o600))
			outcome := tree(t, crashed.CrashStrict(), "/")
			if want := "/a[" + short("again") + "]"; outcome != want {
				t.Fatalf("stopped at %d, %s: after the next: got %q, want %q", n, name, outcome, want)
			}
		}
		if n > 20 {
			t.Fatalf("does not end:\n%s", fsys.Trace())
		}
	}
}

// TestWriteFileAtomicFault fails every operation of a replacement: an error is told, and the temporary file gives its space
// back, since the disk may be full.
func TestWriteFileAtomicFault(t *testing.T) {
	counting := NewFault(NewMem(), nil)
	durable(t, counting, "a", "n")
	for n := 1; n <= counting.Ops(); n++ {
		for _, fault := range []error{syscall.EIO, AfterEffect(syscall.EIO), ShortWrite(syscall.ENOSPC, 1)} {
			m := NewMem()
			durable(t, m, "a", "oo")
			fsys := NewFault(m, failNth(n, fault))
			if err := WriteFileAtomic(fsys, "a", []byte("nn"), 0o600); err == nil {
				t.Errorf("operation %d failed with %v: no error\n%s", n, fault, fsys.Trace())
			}
			if got := tree(t, m, "/"); got != "/a[o*2]" && got != "/a[n*2]" {
				t.Errorf("operation %d failed with %v: got %q\n%s", n, fault, got, fsys.Trace())
			}
		}
	}
}

func TestWriteFileAtomicFullDisk(t *testing.T) {
	m := NewMem()
	durable(t, m, "a", "old")
	m.Limit(3 * blockBytes)
	if err := WriteFileAtomic(m, "a", make([]byte, 4*blockBytes), 0o600); !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("got error %v", err)
	}
	if free, err := m.FreeBytes("/"); err != nil || free != 2*blockBytes {
		t.Fatalf("free: %d, %v", free, err)
	}
	for name, crashed := range crashes(m, 100) {
		if content, err := ReadFile(crashed, "a", 10); err != nil || string(content) != "old" {
			t.Errorf("%s: got %q, %v", name, content, err)
		}
	}
}

// TestMkdirAllAfterKill kills two processes in a row, each at every operation of MkdirAll. The next one finds some of the
// directories, and what it stores in them and syncs must survive a power cut.
func TestMkdirAllAfterKill(t *testing.T) {
	const dir, most = "/a/b/c", 20
	for first := 1; first < most; first++ {
		for second := 1; second < most; second++ {
			m := NewMem()
			var traces []string
			for _, n := range []int{first, second} {
				fsys := NewFault(m, nil)
				fsys.StopAfter(n)
				if err := MkdirAll(fsys, dir, 0o700); err == nil && n == most-1 && fsys.Ops() >= most-1 {
					t.Fatalf("not killed everywhere:\n%s", fsys.Trace())
				}
				traces = append(traces, fsys.Trace())
			}
			ok(t, MkdirAll(m, dir, 0o700))
			durable(t, m, dir+"/f", "x")
			if content, err := ReadFile(m.CrashStrict(), dir+"/f", 1); err != nil || string(content) != "x" {
				t.Fatalf("killed at %d and %d: got %q, %v\n%s", first, second, content, err, strings.Join(traces, "\n\n"))
			}
		}
	}
}

func TestMkdirAllFault(t *testing.T) {
	counting := NewFault(NewMem(), nil)
	ok(t, MkdirAll(counting, "/a/b/c", 0o700))
	for n := 1; n <= counting.Ops(); n++ {
		fsys := NewFault(NewMem(), failNth(n, syscall.EIO))
		if err := MkdirAll(fsys, "/a/b/c", 0o700); !errors.Is(err, syscall.EIO) {
			t.Errorf("operation %d failed: got error %v\n%s", n, err, fsys.Trace())
		}
	}
	// A parent that may not be read is somebody else's, but only if the directory is there already.
	denied := func(op Op) error {
		if op.Kind == OpSyncDir && op.Name == "/" {
			return syscall.EACCES
		}
		return nil
	}
	m := NewMem()
	if err := MkdirAll(NewFault(m, denied), "/a", 0o700); !errors.Is(err, syscall.EACCES) {
		t.Errorf("new directory in an unreadable parent: got error %v", err)
	}
	ok(t, MkdirAll(NewFault(m, denied), "/a", 0o700))
}

// TestRemoveAllCrash: whatever a crash leaves of a removed directory, the next RemoveAll removes.
func TestRemoveAllCrash(t *testing.T) {
	for n, done := 1, false; !done; n++ {
		m := NewMem()
		ok(t, MkdirAll(m, "/d/e", 0o700))
		durable(t, m, "/keep", "x")
		durable(t, m, "/d/a", "x")
		durable(t, m, "/d/e/b", "x")
		fsys := NewFault(m, nil)
		fsys.StopAfter(n)
		done = RemoveAll(fsys, "/d") == nil
		for name, crashed := range crashes(m, 30) {
			ok(t, RemoveAll(crashed, "/d"))
			ok(t, crashed.SyncDir("/"))
			if got := tree(t, crashed.CrashStrict(), "/"); got != "/keep[x*1]" {
				t.Fatalf("stopped at %d, %s: got %q", n, name, got)
			}
		}
	}
}

func TestReadFileFault(t *testing.T) {
	for n := 1; n <= 4; n++ { // open, size, read, close
		fsys := NewFault(prepared(t), failNth(n, syscall.EIO))
		if _, err := ReadFile(fsys, "a", 10); !errors.Is(err, syscall.EIO) {
			t.Errorf("operation %d failed: got error %v\n%s", n, err, fsys.Trace())
		}
	}
}
