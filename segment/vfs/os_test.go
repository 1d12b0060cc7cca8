package vfs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

func TestLock(t *testing.T) {
	name := filepath.Join(t.TempDir(), "lock")
	held, err := Lock(name)
	ok(t, err)
	if _, err := Lock(name); !errors.Is(err, ErrLocked) {
		t.Fatalf("second lock: got error %v", err)
	}
	ok(t, held.Close())
	held, err = Lock(name) // the file is there still
	ok(t, err)
	if _, err := Lock(name); !errors.Is(err, ErrLocked) {
		t.Fatalf("second lock after a refused one was closed: got error %v", err)
	}
	ok(t, held.Close())
	if _, err := Lock(filepath.Join(name, "x")); err == nil || errors.Is(err, ErrLocked) {
		t.Fatalf("lock in a place that is not there: got error %v", err)
	}
}

func TestFreeBytes(t *testing.T) {
	dir := t.TempDir()
	free, err := FreeBytes(dir)
	if err != nil || free == 0 || free > 1<<60 {
		t.Fatalf("got %d, %v", free, err)
	}
	if _, err := FreeBytes(filepath.Join(dir, "no")); !errors.Is(err, fs.ErrNotExist) {
		t.Fatalf("of a directory that is not there: got error %v", err)
	}
}

// TestSymlinks: a link is an entry, and neither listed nor removed as what it points to.
func TestSymlinks(t *testing.T) {
	dir, other := t.TempDir(), t.TempDir()
	durable(t, OS(), filepath.Join(other, "precious"), "x")
	ok(t, MkdirAll(OS(), filepath.Join(dir, "d"), 0o700))
	ok(t, os.Symlink(other, filepath.Join(dir, "d", "link")))
	got, err := OS().List(filepath.Join(dir, "d"))
	ok(t, err)
	if want := []Info{{Name: "link"}}; !slices.Equal(got, want) {
		t.Errorf("list: got %+v, want %+v", got, want)
	}
	ok(t, RemoveAll(OS(), filepath.Join(dir, "d")))
	if content, err := ReadFile(OS(), filepath.Join(other, "precious"), 1); err != nil || string(content) != "x" {
		t.Errorf("behind the link: got %q, %v", content, err)
	}
}

func TestPermissions(t *testing.T) {
	dir := t.TempDir()
	ok(t, MkdirAll(OS(), filepath.Join(dir, "d"), 0o700))
	ok(t, WriteFileAtomic(OS(), filepath.Join(dir, "f"), nil, 0o600))
	for name, want := range map[string]fs.FileMode{"d": 0o700 | fs.ModeDir, "f": 0o600} {
		stat, err := os.Stat(filepath.Join(dir, name))
		ok(t, err)
		if stat.Mode() != want {
			t.Errorf("mode of %s: got %v, want %v", name, stat.Mode(), want)
		}
	}
}

// BenchmarkList lists a lane whose destination was down for long.
func BenchmarkList(b *testing.B) {
	const subdirectories = 10_000
	dir := b.TempDir()
	for i := range subdirectories {
		if err := OS().Mkdir(filepath.Join(dir, fmt.Sprintf("%020d", i)), 0o700); err != nil {
			b.Fatal(err)
		}
	}
	for b.Loop() {
		if infos, err := OS().List(dir); err != nil || len(infos) != subdirectories {
			b.Fatal(len(infos), err)
		}
	}
}
