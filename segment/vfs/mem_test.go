package vfs

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// crashSeeds is how many random crashes a test looks at. Each outcome that is expected has a chance of at least 1 in 100.
const crashSeeds = 3000

func ok(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func open(t *testing.T, fsys FS, name string) File {
	t.Helper()
	f, err := fsys.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)
	ok(t, err)
	return f
}

func write(t *testing.T, f File, content string, off int64) {
	t.Helper()
	_, err := f.WriteAt([]byte(content), off)
	ok(t, err)
}

// durable stores a file with everything synced, in a directory that exists.
func durable(t *testing.T, fsys FS, name, content string) {
	t.Helper()
	ok(t, WriteFileAtomic(fsys, name, []byte(content), 0o600))
}

// block is one block of the letter.
func block(letter string) string { return strings.Repeat(letter, blockBytes) }

// short writes runs of one letter as letter and number, zeros as 0.
func short(content string) string {
	var b strings.Builder
	for i := 0; i < len(content); {
		run := 1
		for i+run < len(content) && content[i+run] == content[i] {
			run++
		}
		letter := string(content[i])
		if content[i] == 0 {
			letter = "0"
		}
		fmt.Fprintf(&b, "%s*%d ", letter, run)
		i += run
	}
	return strings.TrimSpace(b.String())
}

// tree lists all files and directories with their content.
func tree(t *testing.T, fsys FS, dir string) string {
	t.Helper()
	infos, err := fsys.List(dir)
	ok(t, err)
	var parts []string
	for _, i := range infos {
		name := dir + i.Name
		if i.Dir {
			parts = append(parts, name+"/")
			if inner := tree(t, fsys, name+"/"); inner != "" {
				parts = append(parts, inner)
			}
			continue
		}
		content, err := ReadFile(fsys, name, 1<<20)
		ok(t, err)
		parts = append(parts, fmt.Sprintf("%s[%s]", name, short(string(content))))
	}
	return strings.Join(parts, " ")
}

// outcomes crashes m with many seeds and checks that exactly the wanted trees come out, each at least once, and that the
// strict crash gives the first of them.
func outcomes(t *testing.T, m *Mem, want ...string) {
	t.Helper()
	if got := tree(t, m.CrashStrict(), "/"); got != want[0] {
		t.Errorf("strict crash: got %q, want %q", got, want[0])
	}
	seen := make(map[string]uint64)
	for seed := range uint64(crashSeeds) {
		seen[tree(t, m.Crash(rand.New(rand.NewPCG(seed, 0))), "/")] = seed
	}
	for _, w := range want {
		if _, there := seen[w]; !there {
			t.Errorf("no crash of %d gave %q", crashSeeds, w)
		}
		delete(seen, w)
	}
	for _, got := range slices.Sorted(maps.Keys(seen)) {
		t.Errorf("seed %d: a crash gave %q", seen[got], got)
	}
}

func TestCrashNewFile(t *testing.T) {
	t.Run("nothing synced", func(t *testing.T) {
		m := NewMem()
		write(t, open(t, m, "a"), "xxxx", 0)
		outcomes(t, m, "", "/a[]", "/a[x*4]", "/a[0*4]")
	})
	t.Run("only the content synced", func(t *testing.T) {
		m := NewMem()
		f := open(t, m, "a")
		write(t, f, "xxxx", 0)
		ok(t, f.Sync())
		outcomes(t, m, "", "/a[x*4]")
	})
	t.Run("only the entry synced", func(t *testing.T) {
		m := NewMem()
		write(t, open(t, m, "a"), "xxxx", 0)
		ok(t, m.SyncDir("/"))
		outcomes(t, m, "/a[]", "/a[x*4]", "/a[0*4]")
	})
	t.Run("both synced", func(t *testing.T) {
		m := NewMem()
		durable(t, m, "a", "xxxx")
		outcomes(t, m, "/a[x*4]")
	})
	t.Run("in a directory that is not synced in its parent", func(t *testing.T) {
		m := NewMem()
		ok(t, m.Mkdir("d", 0))
		durable(t, m, "d/a", "xxxx")
		outcomes(t, m, "", "/d/ /d/a[x*4]")
	})
}

func TestCrashContent(t *testing.T) {
	t.Run("overwritten", func(t *testing.T) {
		m := NewMem()
		durable(t, m, "a", block("o")+block("o")+"ooo")
		write(t, open(t, m, "a"), block("n")+"n", 0) // two blocks, the third is untouched
		outcomes(t, m, "/a[o*1027]", "/a[n*512 o*515]", "/a[o*512 n*1 o*514]", "/a[n*513 o*514]")
	})
	t.Run("grown", func(t *testing.T) {
		m := NewMem()
		durable(t, m, "a", "ooo")
		write(t, open(t, m, "a"), block("n"), 3)
		outcomes(t, m,
			"/a[o*3]",
			"/a[o*3 n*509]", "/a[o*3 0*509]", // stopped at the block
			"/a[o*3 n*512]", "/a[o*3 0*512]", "/a[o*3 n*509 0*3]", "/a[o*3 0*509 n*3]")
	})
	t.Run("cut", func(t *testing.T) {
		m := NewMem()
		durable(t, m, "a", block("o")+block("o"))
		ok(t, open(t, m, "a").Truncate(100))
		outcomes(t, m, "/a[o*1024]", "/a[o*100]", "/a[o*100 0*924]", "/a[o*512 0*512]", "/a[o*100 0*412 o*512]")
	})
	t.Run("cut and written again as it was", func(t *testing.T) {
		m := NewMem()
		durable(t, m, "a", "oooo")
		f := open(t, m, "a")
		ok(t, f.Truncate(0))
		write(t, f, "oooo", 0)
		outcomes(t, m, "/a[o*4]", "/a[]", "/a[0*4]")
	})
	t.Run("cut and synced", func(t *testing.T) {
		m := NewMem()
		durable(t, m, "a", block("o")+block("o"))
		f := open(t, m, "a")
		ok(t, f.Truncate(100))
		ok(t, f.Sync())
		outcomes(t, m, "/a[o*100]")
	})
	t.Run("cut, grown and synced", func(t *testing.T) {
		m := NewMem()
		durable(t, m, "a", block("o")+block("o"))
		f := open(t, m, "a")
		ok(t, f.Truncate(100))
		write(t, f, "n", 600)
		ok(t, f.Sync())
		outcomes(t, m, "/a[o*100 0*500 n*1]")
	})
}

func TestCrashDirectories(t *testing.T) {
	t.Run("changes keep their order", func(t *testing.T) {
		m := NewMem()
		for _, name := range []string{"a", "b", "c"} {
			open(t, m, name)
		}
		outcomes(t, m, "", "/a[]", "/a[] /b[]", "/a[] /b[] /c[]")
	})
	t.Run("directories are independent", func(t *testing.T) {
		m := NewMem()
		ok(t, MkdirAll(m, "d", 0))
		ok(t, MkdirAll(m, "e", 0))
		open(t, m, "d/a")
		open(t, m, "e/b")
		outcomes(t, m, "/d/ /e/", "/d/ /d/a[] /e/", "/d/ /e/ /e/b[]", "/d/ /d/a[] /e/ /e/b[]")
	})
	t.Run("rename over a file", func(t *testing.T) {
		m := NewMem()
		durable(t, m, "a", "o")
		durable(t, m, "b", "n")
		ok(t, m.Rename("b", "a"))
		outcomes(t, m, "/a[o*1] /b[n*1]", "/a[n*1]")
		ok(t, m.SyncDir("/"))
		outcomes(t, m, "/a[n*1]")
	})
	t.Run("rename of a file that is not synced", func(t *testing.T) {
		m := NewMem()
		durable(t, m, "a", "o")
		write(t, open(t, m, "b"), "n", 0)
		ok(t, m.Rename("b", "a"))
		ok(t, m.SyncDir("/"))
		outcomes(t, m, "/a[]", "/a[n*1]", "/a[0*1]") // the classic loss: neither old nor new
	})
	t.Run("remove", func(t *testing.T) {
		m := NewMem()
		durable(t, m, "a", "o")
		ok(t, m.Remove("a"))
		write(t, open(t, m, "a"), "n", 0)
		outcomes(t, m, "/a[o*1]", "", "/a[]", "/a[n*1]", "/a[0*1]")
		ok(t, m.Remove("a"))
		ok(t, m.SyncDir("/"))
		outcomes(t, m, "")
	})
	t.Run("removed directory comes back in part", func(t *testing.T) {
		m := NewMem()
		ok(t, MkdirAll(m, "d", 0))
		durable(t, m, "d/a", "o")
		durable(t, m, "d/b", "o")
		ok(t, RemoveAll(m, "d"))
		outcomes(t, m, "/d/ /d/a[o*1] /d/b[o*1]", "/d/ /d/b[o*1]", "/d/", "")
	})
}

func TestCrashRenameBetweenDirectories(t *testing.T) {
	prepare := func(t *testing.T) *Mem {
		m := NewMem()
		ok(t, MkdirAll(m, "d", 0))
		ok(t, MkdirAll(m, "e", 0))
		durable(t, m, "d/a", "o")
		open(t, m, "d/x") // before the rename
		ok(t, m.Rename("d/a", "e/a"))
		open(t, m, "e/y") // after it
		return m
	}
	const before, moved = "/d/ /d/a[o*1] /d/x[] /e/", "/d/ /d/x[] /e/ /e/a[o*1]"
	m := prepare(t)
	outcomes(t, m, "/d/ /d/a[o*1] /e/", before, moved, moved+" /e/y[]") // never in both, never in neither
	ok(t, m.SyncDir("d"))
	outcomes(t, m, moved, moved+" /e/y[]")
	ok(t, m.SyncDir("e"))
	outcomes(t, m, moved+" /e/y[]")
	m = prepare(t)
	ok(t, m.SyncDir("e"))
	outcomes(t, m, moved+" /e/y[]")
}

func TestCrashLeavesTheOriginalAlone(t *testing.T) {
	m := NewMem()
	ok(t, MkdirAll(m, "d", 0))
	durable(t, m, "d/a", "o")
	f := open(t, m, "d/a")
	write(t, f, "n", 0)
	open(t, m, "d/b")
	const now = "/d/ /d/a[n*1] /d/b[]"
	crashed := m.CrashStrict()
	if got := tree(t, m, "/"); got != now {
		t.Fatalf("after a crash of the copy: got %q, want %q", got, now)
	}
	write(t, f, "late", 0) // what a dead process still writes is not seen
	ok(t, f.Sync())
	ok(t, m.Remove("d/b"))
	outcomes(t, crashed, "/d/ /d/a[o*1]") // and what is left is on the medium
	open(t, crashed, "d/c")
	outcomes(t, crashed, "/d/ /d/a[o*1]", "/d/ /d/a[o*1] /d/c[]")
}

func TestCrashRepeats(t *testing.T) {
	m := NewMem()
	for i := range 10 {
		name := fmt.Sprintf("d%d", i)
		ok(t, m.Mkdir(name, 0))
		durable(t, m, name+"/a", block("o")+block("o"))
		write(t, open(t, m, name+"/a"), block("n")+block("n"), 100)
	}
	for seed := range uint64(20) {
		one := tree(t, m.Crash(rand.New(rand.NewPCG(seed, 1))), "/")
		two := tree(t, m.Crash(rand.New(rand.NewPCG(seed, 1))), "/")
		if one != two {
			t.Fatalf("seed %d: %q and %q", seed, one, two)
		}
	}
}

func TestRootStays(t *testing.T) {
	m := NewMem()
	if err := m.Remove("/"); !errors.Is(err, syscall.EBUSY) {
		t.Errorf("remove: got error %v", err)
	}
	if err := m.Rename("/", "/x"); !errors.Is(err, syscall.EBUSY) {
		t.Errorf("rename: got error %v", err)
	}
	outcomes(t, m, "")
}

func TestLimit(t *testing.T) {
	m := NewMem()
	m.Limit(3 * blockBytes)
	free := func(want uint64) {
		t.Helper()
		if got, err := m.FreeBytes("/"); err != nil || got != want {
			t.Fatalf("free: got %d and %v, want %d", got, err, want)
		}
	}
	free(3 * blockBytes)
	f := open(t, m, "a")
	n, err := f.WriteAt(make([]byte, 5*blockBytes), 10)
	if n != 3*blockBytes-10 || !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("write over the limit: got %d and %v", n, err)
	}
	if sizeBytes, err := f.Size(); err != nil || sizeBytes != 3*blockBytes {
		t.Fatalf("size: got %d and %v", sizeBytes, err)
	}
	free(0)
	write(t, f, "in place", 0)
	n, err = open(t, m, "b").WriteAt([]byte("x"), 0)
	if n != 0 || !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("write to a full disk: got %d and %v", n, err)
	}
	ok(t, f.Truncate(blockBytes+1))
	free(blockBytes)
	ok(t, f.Truncate(10*blockBytes)) // a hole takes nothing
	free(blockBytes)
	write(t, f, "x", 9*blockBytes)
	free(0)
	if _, err = f.WriteAt([]byte("x"), 8*blockBytes); !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("write into a hole of a full disk: got %v", err)
	}
	ok(t, m.Remove("a"))
	free(0) // it is open
	_, err = f.ReadAt(make([]byte, 1), 9*blockBytes)
	ok(t, err)
	ok(t, f.Close())
	free(3 * blockBytes)
	durable(t, m, "c", "x")
	ok(t, m.Rename("c", "c"))
	free(2 * blockBytes)
	durable(t, m, "c", "y") // the file that is replaced gives its space back
	free(2 * blockBytes)
	if got, _ := m.CrashStrict().FreeBytes("/"); got != 2*blockBytes {
		t.Fatalf("free after a crash: got %d", got)
	}
}
