package filestore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/oklog/ulid/v2"

	"ingest-agent/objstore"
)

func ok(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func put(t *testing.T, s *Store, key, body string, c objstore.Condition) objstore.Version {
	t.Helper()
	result, err := s.Put(context.Background(), key, strings.NewReader(body), c)
	ok(t, err)
	return result.Version
}

func putError(s *Store, key string, c objstore.Condition) error {
	_, err := s.Put(context.Background(), key, strings.NewReader("refused"), c)
	return err
}

// get is the body of an object, "" if there is none.
func get(t *testing.T, s *Store, key string) string {
	t.Helper()
	obj, err := s.Get(context.Background(), key, objstore.GetOptions{})
	if errors.Is(err, objstore.ErrNotFound) {
		return ""
	}
	ok(t, err)
	b, err := io.ReadAll(obj.Body)
	ok(t, errors.Join(err, obj.Body.Close()))
	return string(b)
}

func wantError(t *testing.T, what string, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%s: got error %v, want %v", what, err, want)
	}
}

// tree is every file and directory below dir, with the time of its last change and, for files, the content.
func tree(t *testing.T, dir string) []string {
	t.Helper()
	var lines []string
	ok(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		stat, err := d.Info()
		if err != nil {
			return err
		}
		line := fmt.Sprint(path, " ", stat.Mode(), " ", stat.ModTime())
		if stat.Mode().IsRegular() {
			b, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			line += " " + string(b)
		}
		lines = append(lines, line)
		return nil
	}))
	return lines
}

// leftovers are the temporary files there are.
func leftovers(t *testing.T, dir string) []string {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(dir, reservedDir, tempDir, "*"))
	ok(t, err)
	return names
}

// TestVersionsAreNew: content that comes back does not bring its version back.
func TestVersionsAreNew(t *testing.T) {
	s := open(t, t.TempDir())
	seen := map[objstore.Version]bool{}
	for _, body := range []string{"a", "b", "a", "a", ""} {
		v := put(t, s, "k", body, objstore.Condition{})
		if seen[v] {
			t.Errorf("version %s came back", v)
		}
		seen[v] = true
	}
	ok(t, s.Delete(context.Background(), "k"))
	last := put(t, s, "k", "a", objstore.IfAbsent())
	for v := range seen {
		wantError(t, "replace of an old version", putError(s, "k", objstore.IfVersion(v)), objstore.ErrPrecondition)
	}
	put(t, s, "k", "a", objstore.IfVersion(last))
}

// TestReadingWritesNothing: not in a bucket that is not there, and not in one that is.
func TestReadingWritesNothing(t *testing.T) {
	ctx, dir := context.Background(), filepath.Join(t.TempDir(), "not", "there")
	read := func() {
		s := open(t, dir)
		_, err := s.Get(ctx, "absent/k", objstore.GetOptions{})
		wantError(t, "get", err, objstore.ErrNotFound)
		_, err = s.List(ctx, objstore.ListOptions{})
		ok(t, err)
		ok(t, s.Delete(ctx, "absent/k"))
		wantError(t, "replace of nothing", putError(s, "absent/k", objstore.IfVersion("v")), objstore.ErrPrecondition)
		get(t, s, "d/k")
	}
	read()
	if _, err := os.Stat(filepath.Dir(dir)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("reading made the directory: %v", err)
	}
	put(t, open(t, dir), "d/k", "x", objstore.Condition{})
	ok(t, os.WriteFile(filepath.Join(dir, reservedDir, tempDir, "left"), nil, filePerm))
	before := tree(t, dir)
	read()
	if after := tree(t, dir); !slices.Equal(before, after) {
		t.Errorf("reading changed\n%s\nto\n%s", strings.Join(before, "\n"), strings.Join(after, "\n"))
	}
}

func TestOpenOfAFile(t *testing.T) {
	name := filepath.Join(t.TempDir(), "f")
	ok(t, os.WriteFile(name, nil, filePerm))
	_, err := Open(name)
	wantError(t, "open", err, objstore.ErrInvalid)
	_, err = Open(filepath.Join(name, "below"))
	wantError(t, "open below", err, objstore.ErrInvalid)
}

func TestReservedKeys(t *testing.T) {
	s := open(t, t.TempDir())
	put(t, s, "k", "x", objstore.Condition{})
	for _, key := range []string{reservedDir, reservedDir + "/x", reservedDir + "/tmp/x"} {
		wantError(t, "put", putError(s, key, objstore.Condition{}), objstore.ErrInvalid)
		wantError(t, "delete", s.Delete(context.Background(), key), objstore.ErrInvalid)
		_, err := s.Get(context.Background(), key, objstore.GetOptions{})
		wantError(t, "get", err, objstore.ErrInvalid)
	}
	for _, prefix := range []string{"", ".", reservedDir, reservedDir + "/", reservedDir + "/locks/"} {
		page, err := s.List(context.Background(), objstore.ListOptions{Prefix: prefix})
		ok(t, err)
		if want := prefix == ""; (len(page.Objects) == 1) != want || len(page.Objects) > 1 {
			t.Errorf("list %q: got %+v", prefix, page.Objects)
		}
	}
}

// TestKeyBelowAnObject, and above one: neither takes the place of the other.
func TestKeyBelowAnObject(t *testing.T) {
	s := open(t, t.TempDir())
	put(t, s, "a/b", "x", objstore.Condition{})
	for _, key := range []string{"a", "a/b/c", "a/b/c/d"} {
		for _, c := range []objstore.Condition{{}, objstore.IfAbsent()} {
			wantError(t, "put "+key, putError(s, key, c), objstore.ErrInvalid)
		}
		ok(t, s.Delete(context.Background(), key))
	}
	if get(t, s, "a/b") != "x" || len(leftovers(t, s.dir)) != 0 {
		t.Errorf("got %q, leftovers %q", get(t, s, "a/b"), leftovers(t, s.dir))
	}
}

// TestForeignFiles: a file that somebody has put there is an object. What is no file is none.
func TestForeignFiles(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	ok(t, os.Mkdir(filepath.Join(dir, "inbox"), dirPerm))
	plain := filepath.Join(dir, "inbox", "plain")
	ok(t, os.WriteFile(plain, []byte("0123456789"), filePerm))
	ok(t, os.WriteFile(filepath.Join(dir, "inbox", "empty"), nil, filePerm))
	ok(t, syscall.Mkfifo(filepath.Join(dir, "inbox", "fifo"), filePerm))
	ok(t, os.Symlink("plain", filepath.Join(dir, "inbox", "link")))
	ok(t, os.Symlink(dir, filepath.Join(dir, "loop")))
	ok(t, os.Mkdir(filepath.Join(dir, "bare"), dirPerm))
	page, err := s.List(context.Background(), objstore.ListOptions{})
	ok(t, err)
	if len(page.Objects) != 2 || page.Objects[0].Key != "inbox/empty" || page.Objects[1].Key != "inbox/plain" || page.Objects[1].SizeBytes != 10 {
		t.Fatalf("listed %+v", page.Objects)
	}
	for _, key := range []string{"inbox/fifo", "inbox/link", "bare"} {
		if got := get(t, s, key); got != "" {
			t.Errorf("%s is %q", key, got)
		}
		ok(t, s.Delete(context.Background(), key))
	}
	if got := get(t, s, "inbox/plain"); got != "0123456789" {
		t.Errorf("got %q", got)
	}
	old := page.Objects[1].Version
	wantError(t, "create", putError(s, "inbox/plain", objstore.IfAbsent()), objstore.ErrPrecondition)
	put(t, s, "inbox/plain", "ours", objstore.IfVersion(old))
	wantError(t, "replace of the old version", putError(s, "inbox/plain", objstore.IfVersion(old)), objstore.ErrPrecondition)
	if _, err := os.Lstat(filepath.Join(dir, "inbox", "fifo")); err != nil {
		t.Errorf("a delete took what is no object: %v", err)
	}
}

// TestDamagedHeader: an object that begins like ours, but is not, is refused by name, listed, and can be replaced.
func TestDamagedHeader(t *testing.T) {
	for name, damage := range map[string]func(b []byte) []byte{
		"later version": func(b []byte) []byte { return bytes.Replace(b, []byte(formatVersion), []byte(magic+"2 "), 1) },
		"changed id":    func(b []byte) []byte { b[len(formatVersion)+20] ^= 1; return b },
		"changed sum":   func(b []byte) []byte { b[headerBytes-2] ^= 1; return b },
		"cut":           func(b []byte) []byte { return b[:headerBytes-1] },
	} {
		t.Run(name, func(t *testing.T) {
			s := open(t, t.TempDir())
			v := put(t, s, "k", "body", objstore.Condition{})
			path := filepath.Join(s.dir, "k")
			b, err := os.ReadFile(path)
			ok(t, err)
			ok(t, os.WriteFile(path, damage(b), filePerm))
			_, err = s.Get(context.Background(), "k", objstore.GetOptions{})
			wantError(t, "get", err, objstore.ErrUnsupported)
			wantError(t, "replace of what it was", putError(s, "k", objstore.IfVersion(v)), objstore.ErrPrecondition)
			page, err := s.List(context.Background(), objstore.ListOptions{})
			ok(t, err)
			if len(page.Objects) != 1 {
				t.Fatalf("listed %+v", page.Objects)
			}
			put(t, s, "k", "again", objstore.IfVersion(page.Objects[0].Version))
			if got := get(t, s, "k"); got != "again" {
				t.Errorf("got %q", got)
			}
		})
	}
}

// TestHeader pins the format.
func TestHeader(t *testing.T) {
	id := ulid.MustParseStrict("01JEQ2Z6T0W6X9Q8Q7N3M5K4HV")
	const want = "ingest-agent object 1 01JEQ2Z6T0W6X9Q8Q7N3M5K4HV 2b4eb335\n"
	if got := header(id); got != want || len(got) != headerBytes {
		t.Errorf("got %q, want %q of %d bytes", got, want, headerBytes)
	}
}

func FuzzParseHeader(f *testing.F) {
	f.Add(header(ulid.MustParseStrict("01JEQ2Z6T0W6X9Q8Q7N3M5K4HV")))
	f.Add(strings.ToLower(header(ulid.ULID{})))
	f.Add(magic)
	f.Fuzz(func(t *testing.T, line string) {
		if id, isHeader := parseHeader(line); isHeader && header(id) != line {
			t.Errorf("%q was read as that of %s, which is %q", line, id, header(id))
		}
	})
}

// TestBodyOutlivesTheObject: what is read is the object as it was when it was asked for.
func TestBodyOutlivesTheObject(t *testing.T) {
	s := open(t, t.TempDir())
	body := strings.Repeat("old ", 1<<16)
	put(t, s, "d/k", body, objstore.Condition{})
	obj, err := s.Get(context.Background(), "d/k", objstore.GetOptions{Offset: 1})
	ok(t, err)
	put(t, s, "d/k", "new", objstore.Condition{})
	ok(t, s.Delete(context.Background(), "d/k"))
	got, err := io.ReadAll(obj.Body)
	ok(t, errors.Join(err, obj.Body.Close()))
	if string(got) != body[1:] {
		t.Errorf("got %d bytes, want the %d of the old body", len(got), len(body)-1)
	}
}

// TestShortReadIsNoEnd: a file that gets shorter under its reader is trouble, not the end of the body.
func TestShortReadIsNoEnd(t *testing.T) {
	s := open(t, t.TempDir())
	put(t, s, "k", "0123456789", objstore.Condition{})
	obj, err := s.Get(context.Background(), "k", objstore.GetOptions{})
	ok(t, err)
	ok(t, os.Truncate(filepath.Join(s.dir, "k"), int64(headerBytes)+4))
	got, err := io.ReadAll(obj.Body)
	if string(got) != "0123" || !errors.Is(err, objstore.ErrUnknown) || errors.Is(err, io.EOF) {
		t.Errorf("got %q, %v", got, err)
	}
	ok(t, obj.Body.Close())
}

// endless is a body of a given size that is nowhere in memory.
type endless struct{ at, size int64 }

func (e *endless) Read(p []byte) (int, error) {
	if e.at >= e.size {
		return 0, io.EOF
	}
	n := min(int64(len(p)), e.size-e.at)
	e.at += n
	return int(n), nil
}

func (e *endless) Seek(offset int64, whence int) (int64, error) {
	e.at = offset
	if whence == io.SeekEnd {
		e.at += e.size
	}
	return e.at, nil
}

// TestBodiesAreStreamed: no object is held in memory as a whole.
func TestBodiesAreStreamed(t *testing.T) {
	const sizeBytes, mostBytes = 16 << 20, 1 << 20
	s := open(t, t.TempDir())
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err := s.Put(context.Background(), "k", &endless{size: sizeBytes}, objstore.Condition{})
	ok(t, err)
	obj, err := s.Get(context.Background(), "k", objstore.GetOptions{})
	ok(t, err)
	n, err := io.Copy(io.Discard, obj.Body)
	ok(t, errors.Join(err, obj.Body.Close()))
	runtime.ReadMemStats(&after)
	if n != sizeBytes {
		t.Errorf("got %d bytes, want %d", n, sizeBytes)
	}
	if took := after.TotalAlloc - before.TotalAlloc; took > mostBytes {
		t.Errorf("took %d bytes of memory, want at most %d", took, mostBytes)
	}
}

// brokenBody fails in its middle.
type brokenBody struct{ *strings.Reader }

func (b brokenBody) Read(p []byte) (int, error) {
	if b.Len() < 5 {
		return 0, io.ErrClosedPipe
	}
	return b.Reader.Read(p[:1])
}

func TestBrokenBody(t *testing.T) {
	s := open(t, t.TempDir())
	_, err := s.Put(context.Background(), "k", brokenBody{strings.NewReader("0123456789")}, objstore.Condition{})
	wantError(t, "put", err, io.ErrClosedPipe)
	wantError(t, "put", err, objstore.ErrUnknown)
	if got := get(t, s, "k"); got != "" || len(leftovers(t, s.dir)) != 0 {
		t.Errorf("got %q, leftovers %q", got, leftovers(t, s.dir))
	}
}

// TestLockOfAnotherProcess: a writer that is stopped while it has the lock holds up others only as long as they want.
func TestLockOfAnotherProcess(t *testing.T) {
	s := open(t, t.TempDir())
	v := put(t, s, "k", "one", objstore.Condition{})
	l, err := s.lock(context.Background(), "k")
	ok(t, err)
	other := open(t, s.dir) // knows the lock file only, as another process does
	for name, call := range map[string]func(context.Context) error{
		"put": func(ctx context.Context) error {
			_, err := other.Put(ctx, "k", strings.NewReader("two"), objstore.IfVersion(v))
			return err
		},
		"delete": func(ctx context.Context) error { return other.Delete(ctx, "k") },
	} {
		ctx, cancel := context.WithCancel(context.Background())
		other.before = func(step, _ string) error {
			if step == "lock" {
				cancel()
			}
			return nil
		}
		err := call(ctx)
		wantError(t, name, err, objstore.ErrUnknown)
		wantError(t, name, err, context.Canceled)
		cancel()
	}
	if got := get(t, s, "k"); got != "one" || len(leftovers(t, s.dir)) != 0 {
		t.Errorf("got %q, leftovers %q", got, leftovers(t, s.dir))
	}
	other.before = func(step, _ string) error {
		if step == "lock" {
			time.AfterFunc(10*minLockPause, func() { _ = l.Close() })
		}
		return nil
	}
	put(t, other, "k", "two", objstore.IfVersion(v))
	if got := get(t, s, "k"); got != "two" {
		t.Errorf("got %q", got)
	}
}

// TestCleanSparesTheLiving: leftovers go with the first write, files of other writers stay, also before they are locked.
func TestCleanSparesTheLiving(t *testing.T) {
	dir := t.TempDir()
	for _, at := range []string{"own", "write", "sync", "lock", "rename"} {
		left := filepath.Join(dir, reservedDir, tempDir, "left")
		s, creations, cleaned := open(t, dir), 0, false
		put(t, s, "other", "x", objstore.Condition{})
		s.before = func(step, _ string) error {
			if step == "create" {
				creations++
			}
			if step == at && !cleaned {
				cleaned = true
				ok(t, os.WriteFile(left, []byte("torn"), filePerm))
				put(t, open(t, dir), "made/meanwhile", at, objstore.Condition{}) // its first write cleans
			}
			return nil
		}
		put(t, s, "k", at, objstore.Condition{})
		if got := get(t, s, "k"); got != at {
			t.Errorf("cleaned at %s: got %q", at, got)
		}
		if want := map[bool]int{true: 2, false: 1}[at == "own"]; creations != want {
			t.Errorf("cleaned at %s: %d files were made, want %d", at, creations, want)
		}
		if l := leftovers(t, dir); len(l) != 0 {
			t.Errorf("cleaned at %s: left: %q", at, l)
		}
	}
}

// TestStoreRemovedUnderIt: a store whose directory is gone begins a new one.
func TestStoreRemovedUnderIt(t *testing.T) {
	s := open(t, filepath.Join(t.TempDir(), "b"))
	put(t, s, "k", "x", objstore.Condition{})
	ok(t, os.RemoveAll(s.dir))
	put(t, s, "d/k", "y", objstore.IfAbsent())
	if get(t, s, "k") != "" || get(t, s, "d/k") != "y" {
		t.Errorf("got %q and %q", get(t, s, "k"), get(t, s, "d/k"))
	}
}
