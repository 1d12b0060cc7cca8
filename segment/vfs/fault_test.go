package vfs

import (
	"errors"
	"os"
	"strings"
	"syscall"
	"testing"
)

// failNth fails operation n with err.
func failNth(n int, err error) func(Op) error {
	return func(op Op) error {
		if op.N == n {
			return err
		}
		return nil
	}
}

// everyOp does every operation once, with the files a and d there before, and gives the errors in order.
func everyOp(fsys FS) []error {
	var errs []error
	did := func(err error) { errs = append(errs, err) }
	f, err := fsys.OpenFile("a", os.O_RDWR, 0)
	did(err)
	if f != nil {
		_, err = f.ReadAt(make([]byte, 1), 0)
		did(err)
		_, err = f.WriteAt([]byte("new"), 0)
		did(err)
		did(f.Truncate(2))
		did(f.Sync())
		_, err = f.Size()
		did(err)
		did(f.Close())
	}
	f, err = fsys.OpenFile("b", os.O_RDWR|os.O_CREATE, 0)
	did(err)
	if f != nil {
		did(f.Close())
	}
	did(fsys.Mkdir("e", 0))
	did(fsys.Rename("d", "c"))
	did(fsys.Remove("e"))
	_, err = fsys.List("/")
	did(err)
	did(fsys.SyncDir("/"))
	return errs
}

func prepared(t *testing.T) *Mem {
	m := NewMem()
	durable(t, m, "a", "o")
	durable(t, m, "d", "o")
	return m
}

func TestFaultCountsAndTraces(t *testing.T) {
	var kinds []string
	f := NewFault(prepared(t), func(op Op) error {
		kinds = append(kinds, op.Kind)
		if op.Kind == OpRename {
			return syscall.EIO
		}
		return nil
	})
	for i, err := range everyOp(f) {
		if failed := kinds[i] == OpRename; failed != errors.Is(err, syscall.EIO) {
			t.Errorf("operation %d, %s: got error %v", i+1, kinds[i], err)
		}
	}
	const want = "open read write truncate sync size close create close mkdir rename remove list syncdir"
	if got := strings.Join(kinds, " "); got != want {
		t.Errorf("kinds: got %s, want %s", got, want)
	}
	if got := f.Ops(); got != 14 {
		t.Errorf("operations: got %d, want 14", got)
	}
	lines := strings.Split(f.Trace(), "\n")
	if len(lines) != 14 || lines[10] != "  11 rename d -> c: input/output error" || lines[13] != "  14 syncdir /" {
		t.Errorf("trace:\n%s", f.Trace())
	}
	for range traceOps + 5 {
		ok(t, f.SyncDir("/"))
	}
	if got := strings.Count(f.Trace(), "\n") + 1; got != traceOps {
		t.Errorf("trace has %d lines, want %d", got, traceOps)
	}
}

// TestFaultEveryOperation fails each operation, before and after its effect, and looks at what is left.
func TestFaultEveryOperation(t *testing.T) {
	const all, untouched = "/a[n*1 e*1] /b[] /c[o*1]", "/a[o*1] /d[o*1]"
	for _, c := range []struct {
		n             int
		kind          string
		before, after string // the tree when operation n fails before and after its effect; the later ones are done
	}{
		{1, OpOpen, "/a[o*1] /b[] /c[o*1]", "/a[o*1] /b[] /c[o*1]"},
		{2, OpRead, all, all},
		{3, OpWrite, "/a[o*1 0*1] /b[] /c[o*1]", all},
		{4, OpTruncate, "/a[n*1 e*1 w*1] /b[] /c[o*1]", all},
		{5, OpSync, all, all},
		{6, OpSize, all, all},
		{7, OpClose, all, all},
		{8, OpCreate, "/a[n*1 e*1] /c[o*1]", all},
		{9, OpClose, all, all},
		{10, OpMkdir, all, all},
		{11, OpRename, "/a[n*1 e*1] /b[] /d[o*1]", all},
		{12, OpRemove, all + " /e/", all},
		{13, OpList, all, all},
		{14, OpSyncDir, all, all},
	} {
		for _, after := range []bool{false, true} {
			fault, want := error(syscall.EIO), c.before
			if after {
				fault, want = AfterEffect(syscall.EIO), c.after
			}
			m := prepared(t)
			f := NewFault(m, failNth(c.n, fault))
			errs := everyOp(f)
			if !errors.Is(errs[c.n-1], syscall.EIO) {
				t.Errorf("%s, after effect %v: got error %v\n%s", c.kind, after, errs[c.n-1], f.Trace())
			}
			if got := tree(t, m, "/"); got != want {
				t.Errorf("%s, after effect %v: got %q, want %q\n%s", c.kind, after, got, want, f.Trace())
			}
		}
	}
	for n := 1; n <= 14; n++ { // the process dies
		m := prepared(t)
		f := NewFault(m, nil)
		f.StopAfter(n)
		for i, err := range everyOp(f) {
			if stopped := i+1 >= n; stopped != errors.Is(err, ErrStopped) {
				t.Errorf("stopped at %d: operation %d: got error %v", n, i+1, err)
			}
		}
		if got := tree(t, m, "/"); n == 1 && got != untouched {
			t.Errorf("stopped at once: got %q", got)
		}
	}
}

func TestFaultClosesWhatItOpened(t *testing.T) {
	m := prepared(t)
	opens := m.root.entries["a"].file
	for n := 1; n <= 7; n++ {
		for _, fault := range []error{syscall.EIO, AfterEffect(syscall.EIO), ErrStopped} {
			_ = everyOp(NewFault(m, failNth(n, fault)))
			if opens.opens != 0 {
				t.Fatalf("operation %d failed with %v: %d files open", n, fault, opens.opens)
			}
			_ = m.Rename("c", "d")
		}
	}
}

func TestFaultShortWrite(t *testing.T) {
	for _, short := range []int{0, 2, 5, 100} {
		m := NewMem()
		f := open(t, NewFault(m, failNth(2, ShortWrite(syscall.ENOSPC, short))), "a")
		n, err := f.WriteAt([]byte("hello"), 0)
		if n != min(short, 5) || !errors.Is(err, syscall.ENOSPC) {
			t.Errorf("short write of %d: got %d and %v", short, n, err)
		}
		content, err := ReadFile(m, "a", 10)
		if string(content) != "hello"[:min(short, 5)] || err != nil {
			t.Errorf("short write of %d: file has %q, %v", short, content, err)
		}
	}
}

// TestFailedSyncLosesItsPages: after a failed sync a second one succeeds and yet the data is not there after a power cut,
// also for a sync through another descriptor of the file.
func TestFailedSyncLosesItsPages(t *testing.T) {
	m := NewMem()
	durable(t, m, "a", "o")
	fsys := NewFault(m, nil)
	fsys.decide = func(op Op) error {
		if op.N == 3 {
			return syscall.EIO
		}
		return nil
	}
	f := open(t, fsys, "a")
	write(t, f, "nn", 0)
	if err := f.Sync(); !errors.Is(err, syscall.EIO) {
		t.Fatalf("sync: got %v", err)
	}
	ok(t, f.Sync())
	other := open(t, m, "a")
	ok(t, other.Sync())
	if got := tree(t, m, "/"); got != "/a[n*2]" {
		t.Fatalf("before the cut: %s", got) // the page cache still has it
	}
	outcomes(t, m, "/a[o*1 0*1]", "/a[n*2]")
	write(t, f, "nn", 0)
	ok(t, f.Sync())
	outcomes(t, m, "/a[n*2]")
}

// TestStoppedSyncLosesNothing: a process that dies instead of syncing leaves the pages to the kernel.
func TestStoppedSyncLosesNothing(t *testing.T) {
	m := NewMem()
	durable(t, m, "a", "o")
	fsys := NewFault(m, nil)
	fsys.StopAfter(3)
	f := open(t, fsys, "a")
	write(t, f, "n", 0)
	if err := f.Sync(); !errors.Is(err, ErrStopped) {
		t.Fatalf("sync: got %v", err)
	}
	ok(t, open(t, m, "a").Sync()) // the next process
	outcomes(t, m, "/a[n*1]")
}
