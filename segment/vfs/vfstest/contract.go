// Package vfstest holds the contract of vfs.FS as tests, which run on every implementation. It guarantees nothing by itself
// and assumes that the root it is given is an empty directory of its own. What a power cut does is not part of it: only
// vfs.Mem can show that.
package vfstest

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"ingest-agent/segment/vfs"
)

const (
	filePerm fs.FileMode = 0o600
	dirPerm  fs.FileMode = 0o700
)

// Run runs the contract. newFS returns a file system and an existing empty directory in it, and is called for every subtest.
func Run(t *testing.T, newFS func(t *testing.T) (fsys vfs.FS, root string)) {
	for _, c := range []struct {
		name string
		test func(t *testing.T, r rig)
	}{
		{"open flags", testOpenFlags},
		{"read and write", testReadWrite},
		{"truncate", testTruncate},
		{"read-only file", testReadOnly},
		{"closed file", testClosed},
		{"directories", testDirectories},
		{"list", testList},
		{"rename", testRename},
		{"remove", testRemove},
		{"names that are not there", testMissing},
		{"file in place of a directory", testNotDir},
		{"open files survive rename and remove", testOpenFiles},
		{"concurrent use", testConcurrent},
		{"MkdirAll", testMkdirAll},
		{"ReadFile", testReadFile},
		{"WriteFileAtomic", testWriteFileAtomic},
		{"RemoveAll", testRemoveAll},
	} {
		t.Run(c.name, func(t *testing.T) {
			fsys, root := newFS(t)
			c.test(t, rig{fsys, root})
		})
	}
}

// rig is a file system with short forms that fail the test.
type rig struct {
	vfs.FS
	root string
}

func (r rig) path(parts ...string) string {
	return filepath.Join(append([]string{r.root}, parts...)...)
}

func (r rig) open(t *testing.T, name string, flag int) vfs.File {
	t.Helper()
	f, err := r.OpenFile(r.path(name), flag, filePerm)
	ok(t, err)
	return f
}

func (r rig) write(t *testing.T, name, content string) {
	t.Helper()
	f := r.open(t, name, os.O_RDWR|os.O_CREATE|os.O_TRUNC)
	_, err := f.WriteAt([]byte(content), 0)
	ok(t, err)
	ok(t, f.Close())
}

func (r rig) mkdir(t *testing.T, name string) {
	t.Helper()
	ok(t, r.Mkdir(r.path(name), dirPerm))
}

// holds checks the content of a file.
func (r rig) holds(t *testing.T, name, want string) {
	t.Helper()
	f := r.open(t, name, os.O_RDONLY)
	content(t, f, want)
	ok(t, f.Close())
}

// lists checks the names in a directory; those of directories end in a slash.
func (r rig) lists(t *testing.T, dir string, want ...string) {
	t.Helper()
	infos, err := r.List(r.path(dir))
	ok(t, err)
	var got []string
	for _, i := range infos {
		if i.Dir {
			i.Name += "/"
		}
		got = append(got, i.Name)
	}
	if !slices.Equal(got, want) {
		t.Fatalf("list %q: got %q, want %q", dir, got, want)
	}
}

func content(t *testing.T, f vfs.File, want string) {
	t.Helper()
	sizeBytes, err := f.Size()
	ok(t, err)
	if sizeBytes != int64(len(want)) {
		t.Fatalf("size: got %d, want %d", sizeBytes, len(want))
	}
	got := make([]byte, len(want)+1)
	n, err := f.ReadAt(got, 0)
	if n != len(want) || !errors.Is(err, io.EOF) || string(got[:n]) != want {
		t.Fatalf("read: got %d bytes %q and error %v, want %q and io.EOF", n, got[:n], err, want)
	}
}

func ok(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func fails(t *testing.T, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Fatalf("got error %v, want %v", err, want)
	}
}

func testOpenFlags(t *testing.T, r rig) {
	name := r.path("a")
	_, err := r.OpenFile(name, os.O_RDONLY, filePerm)
	fails(t, err, fs.ErrNotExist)
	_, err = r.OpenFile(name, os.O_RDWR, filePerm)
	fails(t, err, fs.ErrNotExist)
	for _, flag := range []int{
		os.O_WRONLY, os.O_WRONLY | os.O_CREATE, os.O_RDWR | os.O_APPEND, os.O_RDWR | os.O_SYNC, os.O_RDWR | os.O_EXCL,
		os.O_CREATE, os.O_TRUNC,
	} {
		if _, err = r.OpenFile(name, flag, filePerm); !errors.Is(err, fs.ErrInvalid) {
			t.Errorf("open with flags %#x: got error %v, want %v", flag, err, fs.ErrInvalid)
		}
	}
	r.lists(t, "")

	ok(t, r.open(t, "a", os.O_RDWR|os.O_CREATE|os.O_EXCL).Close())
	r.write(t, "a", "hello")
	_, err = r.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_EXCL, filePerm)
	fails(t, err, fs.ErrExist)
	ok(t, r.open(t, "a", os.O_RDWR|os.O_CREATE).Close())
	ok(t, r.open(t, "a", os.O_RDWR).Close())
	r.holds(t, "a", "hello")
	ok(t, r.open(t, "a", os.O_RDWR|os.O_TRUNC).Close())
	r.holds(t, "a", "")
}

func testReadWrite(t *testing.T, r rig) {
	f := r.open(t, "a", os.O_RDWR|os.O_CREATE)
	content(t, f, "")
	big := strings.Repeat("0123456789abcdef", 200) // several blocks
	n, err := f.WriteAt([]byte(big), 0)
	ok(t, err)
	if n != len(big) {
		t.Fatalf("write: got %d, want %d", n, len(big))
	}
	_, err = f.WriteAt([]byte("HELLO"), 510)
	ok(t, err)
	want := big[:510] + "HELLO" + big[515:]
	content(t, f, want)

	_, err = f.WriteAt([]byte("x"), int64(len(big))+700) // leaves a hole
	ok(t, err)
	want += strings.Repeat("\x00", 700) + "x"
	content(t, f, want)
	ok(t, f.Sync())
	content(t, f, want)
	ok(t, f.Close())
	r.holds(t, "a", want)
	f = r.open(t, "a", os.O_RDONLY)
	defer func() { ok(t, f.Close()) }()

	p := make([]byte, 4)
	n, err = f.ReadAt(p, 509)
	if n != 4 || err != nil || string(p) != want[509:513] {
		t.Fatalf("read in the middle: %d %v %q", n, err, p)
	}
	if n, err = f.ReadAt(p, int64(len(want))-2); n != 2 || !errors.Is(err, io.EOF) {
		t.Fatalf("read across the end: %d %v", n, err)
	}
	if n, err = f.ReadAt(p, int64(len(want))+10); n != 0 || !errors.Is(err, io.EOF) {
		t.Fatalf("read behind the end: %d %v", n, err)
	}
	if _, err = f.ReadAt(p, -1); err == nil || errors.Is(err, io.EOF) {
		t.Fatalf("read before the start: %v", err)
	}
}

func testTruncate(t *testing.T, r rig) {
	r.write(t, "a", "hello, world")
	f := r.open(t, "a", os.O_RDWR)
	defer func() { ok(t, f.Close()) }()
	ok(t, f.Truncate(5))
	content(t, f, "hello")
	ok(t, f.Truncate(8)) // what was cut must not come back
	content(t, f, "hello\x00\x00\x00")
	ok(t, f.Truncate(0))
	content(t, f, "")
	ok(t, f.Sync())
	if _, err := f.WriteAt([]byte("x"), 2); err != nil {
		t.Fatal(err)
	}
	content(t, f, "\x00\x00x")
	if err := f.Truncate(-1); err == nil {
		t.Fatal("truncate to a negative size: no error")
	}
}

func testReadOnly(t *testing.T, r rig) {
	r.write(t, "a", "hello")
	f := r.open(t, "a", os.O_RDONLY)
	defer func() { ok(t, f.Close()) }()
	if n, err := f.WriteAt([]byte("x"), 0); err == nil || n != 0 {
		t.Fatalf("write: %d %v", n, err)
	}
	if err := f.Truncate(0); err == nil {
		t.Fatal("truncate: no error")
	}
	ok(t, f.Sync())
	content(t, f, "hello")
}

func testClosed(t *testing.T, r rig) {
	f := r.open(t, "a", os.O_RDWR|os.O_CREATE)
	ok(t, f.Close())
	_, err := f.ReadAt(make([]byte, 1), 0)
	fails(t, err, fs.ErrClosed)
	_, err = f.WriteAt([]byte("x"), 0)
	fails(t, err, fs.ErrClosed)
	fails(t, f.Truncate(0), fs.ErrClosed)
	fails(t, f.Sync(), fs.ErrClosed)
	_, err = f.Size()
	fails(t, err, fs.ErrClosed)
	fails(t, f.Close(), fs.ErrClosed)
}

func testDirectories(t *testing.T, r rig) {
	r.mkdir(t, "d")
	fails(t, r.Mkdir(r.path("d"), dirPerm), fs.ErrExist)
	fails(t, r.Mkdir(r.path("no", "d"), dirPerm), fs.ErrNotExist)
	fails(t, r.Mkdir(r.root, dirPerm), fs.ErrExist)
	fails(t, r.Mkdir("/", dirPerm), fs.ErrExist)
	r.write(t, "a", "")
	fails(t, r.Mkdir(r.path("a"), dirPerm), fs.ErrExist)
	_, err := r.OpenFile(r.path("d"), os.O_RDWR, filePerm)
	fails(t, err, syscall.EISDIR)
	_, err = r.OpenFile(r.path("d"), os.O_RDWR|os.O_CREATE, filePerm)
	fails(t, err, syscall.EISDIR)
	ok(t, r.SyncDir(r.path("d")))
	ok(t, r.SyncDir(r.root))
	r.lists(t, "", "a", "d/")
}

func testList(t *testing.T, r rig) {
	r.lists(t, "")
	r.write(t, "b", "four")
	r.mkdir(t, "c")
	r.write(t, "c/inner", "x")
	r.write(t, "a", "")
	got, err := r.List(r.root)
	ok(t, err)
	want := []vfs.Info{{Name: "a"}, {Name: "b", SizeBytes: 4}, {Name: "c", Dir: true}}
	if !slices.Equal(got, want) {
		t.Fatalf("got %+v, want %+v", got, want)
	}
	r.lists(t, "c", "inner")
}

func testRename(t *testing.T, r rig) {
	r.write(t, "a", "from a")
	ok(t, r.Rename(r.path("a"), r.path("b")))
	r.holds(t, "b", "from a")
	r.write(t, "a", "second")
	ok(t, r.Rename(r.path("a"), r.path("b"))) // over a file
	r.holds(t, "b", "second")
	ok(t, r.Rename(r.path("b"), r.path("b")))
	r.holds(t, "b", "second")
	r.lists(t, "", "b")

	r.mkdir(t, "d")
	ok(t, r.Rename(r.path("b"), r.path("d", "b"))) // to another directory
	ok(t, r.SyncDir(r.path("d")))
	ok(t, r.SyncDir(r.root))
	r.lists(t, "", "d/")
	r.holds(t, "d/b", "second")
	ok(t, r.Rename(r.path("d"), r.path("e"))) // a directory with its content
	r.holds(t, "e/b", "second")

	r.mkdir(t, "d")
	r.write(t, "a", "a")
	fails(t, r.Rename(r.path("a"), r.path("d")), fs.ErrExist)
	fails(t, r.Rename(r.path("e"), r.path("d")), fs.ErrExist)
	fails(t, r.Rename(r.path("d"), r.path("a")), syscall.ENOTDIR)
	fails(t, r.Rename(r.path("d"), r.path("d", "x")), syscall.EINVAL)
	fails(t, r.Rename(r.path("no"), r.path("x")), fs.ErrNotExist)
	fails(t, r.Rename(r.path("a"), r.path("no", "x")), fs.ErrNotExist)
	r.lists(t, "", "a", "d/", "e/")
}

func testRemove(t *testing.T, r rig) {
	r.mkdir(t, "d")
	r.write(t, "d/a", "x")
	if err := r.Remove(r.path("d")); err == nil {
		t.Fatal("remove a directory with content: no error")
	}
	r.holds(t, "d/a", "x")
	ok(t, r.Remove(r.path("d", "a")))
	ok(t, r.Remove(r.path("d")))
	ok(t, r.SyncDir(r.root))
	r.lists(t, "")
	fails(t, r.Remove(r.path("d")), fs.ErrNotExist)
}

func testMissing(t *testing.T, r rig) {
	_, err := r.List(r.path("no"))
	fails(t, err, fs.ErrNotExist)
	fails(t, r.SyncDir(r.path("no")), fs.ErrNotExist)
	_, err = r.OpenFile(r.path("no", "a"), os.O_RDWR|os.O_CREATE, filePerm)
	fails(t, err, fs.ErrNotExist)
	fails(t, r.Remove(r.path("no", "a")), fs.ErrNotExist)
}

func testNotDir(t *testing.T, r rig) {
	r.write(t, "a", "x")
	_, err := r.List(r.path("a"))
	fails(t, err, syscall.ENOTDIR)
	fails(t, r.SyncDir(r.path("a")), syscall.ENOTDIR)
	fails(t, r.Mkdir(r.path("a", "d"), dirPerm), syscall.ENOTDIR)
	_, err = r.OpenFile(r.path("a", "b"), os.O_RDWR|os.O_CREATE, filePerm)
	fails(t, err, syscall.ENOTDIR)
}

func testOpenFiles(t *testing.T, r rig) {
	r.write(t, "a", "hello")
	f := r.open(t, "a", os.O_RDWR)
	ok(t, r.Rename(r.path("a"), r.path("b")))
	_, err := f.WriteAt([]byte("J"), 0)
	ok(t, err)
	r.holds(t, "b", "Jello")

	r.write(t, "c", "other")
	ok(t, r.Rename(r.path("c"), r.path("b"))) // f has no name any more
	_, err = f.WriteAt([]byte("B"), 0)
	ok(t, err)
	content(t, f, "Bello")
	ok(t, f.Sync())
	r.holds(t, "b", "other")
	ok(t, f.Close())

	f = r.open(t, "b", os.O_RDWR)
	ok(t, r.Remove(r.path("b")))
	r.write(t, "b", "new file of the name")
	content(t, f, "other")
	ok(t, f.Truncate(0))
	ok(t, f.Close())
	r.holds(t, "b", "new file of the name")
}

// testConcurrent has several goroutines at one file and one directory; the race detector and the sums judge.
func testConcurrent(t *testing.T, r rig) {
	const workers, rounds, blockBytes = 4, 20, 600
	shared := r.open(t, "shared", os.O_RDWR|os.O_CREATE)
	errs := make([]error, workers)
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			own := r.path(fmt.Sprintf("own-%d", w))
			block := []byte(strings.Repeat(string(rune('a'+w)), blockBytes))
			for i := range rounds {
				_, writeErr := shared.WriteAt(block, int64(i*workers+w)*blockBytes)
				_, listErr := r.List(r.root)
				errs[w] = errors.Join(errs[w], writeErr, listErr, shared.Sync(),
					vfs.WriteFileAtomic(r, own, block, filePerm), r.SyncDir(r.root))
			}
		})
	}
	wg.Wait()
	ok(t, errors.Join(errs...))
	var want strings.Builder
	for range rounds {
		for w := range workers {
			want.WriteString(strings.Repeat(string(rune('a'+w)), blockBytes))
		}
	}
	content(t, shared, want.String())
	ok(t, shared.Close())
	r.lists(t, "", "own-0", "own-1", "own-2", "own-3", "shared")
}
