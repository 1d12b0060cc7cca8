package vfstest

import (
	"errors"
	"io/fs"
	"os"
	"syscall"
	"testing"

	"ingest-agent/segment/vfs"
)

func testMkdirAll(t *testing.T, r rig) {
	ok(t, vfs.MkdirAll(r, r.path("a", "b", "c"), dirPerm))
	ok(t, vfs.MkdirAll(r, r.path("a", "b", "c"), dirPerm))
	ok(t, vfs.MkdirAll(r, r.path("a", "b", "d")+"/", dirPerm))
	r.lists(t, "a/b", "c/", "d/")
	r.write(t, "f", "x")
	fails(t, vfs.MkdirAll(r, r.path("f"), dirPerm), syscall.ENOTDIR)
	fails(t, vfs.MkdirAll(r, r.path("f", "d"), dirPerm), syscall.ENOTDIR)
	r.holds(t, "f", "x")
}

func testReadFile(t *testing.T, r rig) {
	r.write(t, "a", "hello")
	for _, maxBytes := range []int64{5, 6, 1 << 40} {
		got, err := vfs.ReadFile(r, r.path("a"), maxBytes)
		if err != nil || string(got) != "hello" {
			t.Fatalf("limit %d: got %q, %v", maxBytes, got, err)
		}
	}
	_, err := vfs.ReadFile(r, r.path("a"), 4)
	fails(t, err, vfs.ErrTooLarge)
	_, err = vfs.ReadFile(r, r.path("no"), 4)
	fails(t, err, fs.ErrNotExist)
	r.write(t, "empty", "")
	if got, err := vfs.ReadFile(r, r.path("empty"), 0); err != nil || len(got) != 0 {
		t.Fatalf("empty file: got %q, %v", got, err)
	}
	// The limit is on the length, not on what is written.
	f := r.open(t, "huge", os.O_RDWR|os.O_CREATE)
	ok(t, f.Truncate(1<<20))
	ok(t, f.Close())
	_, err = vfs.ReadFile(r, r.path("huge"), 1<<10)
	fails(t, err, vfs.ErrTooLarge)
}

func testWriteFileAtomic(t *testing.T, r rig) {
	for _, content := range []string{"first", "the second is longer", "3", ""} {
		// A longer file left by a crash must not show through.
		r.write(t, "a"+vfs.TempSuffix, "left behind by an earlier process that died")
		ok(t, vfs.WriteFileAtomic(r, r.path("a"), []byte(content), filePerm))
		r.holds(t, "a", content)
		r.lists(t, "", "a")
	}
	fails(t, vfs.WriteFileAtomic(r, r.path("no", "a"), nil, filePerm), fs.ErrNotExist)
	r.mkdir(t, "d")
	if err := vfs.WriteFileAtomic(r, r.path("d"), []byte("x"), filePerm); !errors.Is(err, fs.ErrExist) {
		t.Fatalf("over a directory: got error %v", err)
	}
	r.lists(t, "", "a", "d/") // and no temporary file
}

func testRemoveAll(t *testing.T, r rig) {
	ok(t, vfs.RemoveAll(r, r.path("d")))
	ok(t, vfs.MkdirAll(r, r.path("d", "e", "f"), dirPerm))
	for _, name := range []string{"d/a", "d/e/a", "d/e/f/a", "keep"} {
		r.write(t, name, "x")
	}
	ok(t, vfs.RemoveAll(r, r.path("d")))
	r.lists(t, "", "keep")
	fails(t, vfs.RemoveAll(r, r.path("keep")), syscall.ENOTDIR)
}
