package filestore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/oklog/ulid/v2"

	"ingest-agent/objstore"
)

// TestStepsOfAPut pins the order that the commit point rests on: the file is synced before its rename, each directory
// after, up to the store's; and the lock is held for the rename, not for the writing.
func TestStepsOfAPut(t *testing.T) {
	s := open(t, filepath.Join(t.TempDir(), "above", "b"))
	var steps []string
	s.before = func(step, path string) error {
		rel, err := filepath.Rel(s.dir, path)
		if err != nil {
			return err
		}
		if dir, name := filepath.Split(rel); len(name) == 26 {
			rel = dir + "…"
		}
		steps = append(steps, step+" "+rel)
		return nil
	}
	want := func(what string, want ...string) {
		t.Helper()
		if !slices.Equal(steps, want) {
			t.Errorf("%s:\n got %q\nwant %q", what, steps, want)
		}
		steps = nil
	}
	write := []string{"create .filestore/tmp/…", "own .filestore/tmp/…", "write .filestore/tmp/…", "sync .filestore/tmp/…", "lock .filestore/locks/20"}
	rename := []string{"rename d/e/k", "sync d/e", "sync d", "sync ."}
	v := put(t, s, "d/e/k", "x", objstore.IfAbsent())
	want("first put", slices.Concat(
		[]string{"mkdir .filestore/locks", "mkdir .filestore/tmp", "sync .", "sync ..", "sync ../.."}, write,
		[]string{"rename d/e/k", "mkdir d/e"}, rename)...)
	put(t, s, "d/e/k", "y", objstore.IfVersion(v))
	want("put", slices.Concat(write, rename)...)
	wantError(t, "lost put", putError(s, "d/e/k", objstore.IfVersion(v)), objstore.ErrPrecondition)
	want("lost put")
	ok(t, s.Delete(context.Background(), "d/e/k"))
	want("delete", "lock .filestore/locks/20", "remove d/e/k", "rmdir d/e", "rmdir d", "sync .")
}

// TestSyncsOfAProbe counts what a probe costs: two writes that are done, and a removal.
func TestSyncsOfAProbe(t *testing.T) {
	s := open(t, t.TempDir())
	put(t, s, "first", "x", objstore.IfAbsent())
	syncs := 0
	s.before = func(step, _ string) error {
		if step == "sync" {
			syncs++
		}
		return nil
	}
	result, err := objstore.Probe(context.Background(), s, ulid.Make().String())
	if err != nil || !result.OK || syncs != 7 {
		t.Errorf("got %+v, %v after %d syncs, want 7", result, err, syncs)
	}
}

// TestDirectoryTakenAway: a Put makes its directory as often as Deletes beside it find it empty.
func TestDirectoryTakenAway(t *testing.T) {
	s := open(t, t.TempDir())
	taken := 0
	s.before = func(step, path string) error {
		if step == "rename" && taken < renameTries/2 {
			taken++
			if err := os.RemoveAll(filepath.Dir(path)); err != nil {
				return err
			}
		}
		return nil
	}
	put(t, s, "d/k", "x", objstore.IfAbsent())
	if got := get(t, s, "d/k"); got != "x" || taken != renameTries/2 {
		t.Errorf("got %q, taken away %d times", got, taken)
	}
	s.before = func(step, path string) error {
		if step == "rename" {
			return os.RemoveAll(filepath.Dir(path))
		}
		return nil
	}
	wantError(t, "put without end", putError(s, "e/k", objstore.IfAbsent()), objstore.ErrUnknown)
}

// TestFaultAtEveryStep fails each step of each call in turn, with what a full disk, missing rights and a broken disk say.
// Whatever fails: the object is what it was or what it was to be, nothing is left over, the error is of the right kind, and
// the same call works afterwards.
func TestFaultAtEveryStep(t *testing.T) {
	ctx := context.Background()
	const before, after = "before", "after, and longer"
	for _, fault := range []struct{ is, kind error }{
		{syscall.ENOSPC, objstore.ErrUnknown},
		{syscall.EDQUOT, objstore.ErrUnknown},
		{syscall.EIO, objstore.ErrUnknown},
		{syscall.EMFILE, objstore.ErrUnknown},
		{syscall.EACCES, objstore.ErrDenied},
		{syscall.EROFS, objstore.ErrDenied},
	} {
		for _, call := range []struct {
			name string
			was  string // "": nothing
			want string
			do   func(s *Store, v objstore.Version) error
		}{
			{"create", "", after, func(s *Store, _ objstore.Version) error {
				_, err := s.Put(ctx, "d/k", strings.NewReader(after), objstore.IfAbsent())
				return err
			}},
			{"replace", before, after, func(s *Store, v objstore.Version) error {
				_, err := s.Put(ctx, "d/k", strings.NewReader(after), objstore.IfVersion(v))
				return err
			}},
			{"delete", before, "", func(s *Store, _ objstore.Version) error { return s.Delete(ctx, "d/k") }},
		} {
			for n := 1; ; n++ {
				what := fmt.Sprintf("%s, %v at step %d", call.name, fault.is, n)
				dir := t.TempDir()
				var v objstore.Version
				if call.was != "" {
					v = put(t, open(t, dir), "d/k", call.was, objstore.Condition{})
				}
				s, steps, failed, above := open(t, dir), 0, "", false
				s.before = func(step, path string) error {
					if steps++; steps == n {
						failed, above = step, len(path) < len(dir)
						return &syscallError{step, path, fault.is}
					}
					return nil
				}
				err := call.do(s, v)
				got := get(t, s, "d/k")
				if failed == "" {
					if ok(t, err); got != call.want {
						t.Fatalf("%s: got %q", what, got)
					}
					break
				}
				what += " (" + failed + ")"
				kind := fault.kind
				if err == nil && (failed == "rmdir" || errors.Is(fault.is, syscall.EACCES) && above) { // an empty directory more, or not ours
					kind = nil
				} else if got == call.want {
					kind = objstore.ErrUnknown // it is there, and may not last
				}
				if !errors.Is(err, kind) || kind != nil && !errors.Is(err, fault.is) {
					t.Errorf("%s: got error %v, want %v", what, err, kind)
				}
				if got != call.was && got != call.want {
					t.Errorf("%s: got %q", what, got)
				}
				if l := leftovers(t, dir); len(l) != 0 {
					t.Errorf("%s: left: %q", what, l)
				}
				if err := call.do(s, v); err != nil && !(got == call.want && errors.Is(err, objstore.ErrPrecondition)) {
					t.Errorf("%s: the next try: %v", what, err)
				}
				if got := get(t, s, "d/k"); got != call.want {
					t.Errorf("%s: after the next try: %q", what, got)
				}
			}
		}
	}
}

// syscallError is as the os package makes them, with an error that can be compared.
type syscallError struct {
	step, path string
	err        error
}

func (e *syscallError) Error() string { return e.step + " " + e.path + ": " + e.err.Error() }
func (e *syscallError) Unwrap() error { return e.err }

// TestFaultWhileWriting: a body that no longer fits leaves nothing, whatever part of it was written.
func TestFaultWhileWriting(t *testing.T) {
	s := open(t, t.TempDir())
	var limit, old syscall.Rlimit
	ok(t, syscall.Getrlimit(syscall.RLIMIT_FSIZE, &old))
	limit = old
	limit.Cur = 100_000
	// The kernel then answers EFBIG; the signal that goes with it is one that the Go runtime ignores.
	ok(t, syscall.Setrlimit(syscall.RLIMIT_FSIZE, &limit))
	_, err := s.Put(context.Background(), "k", io.ReadSeeker(&endless{size: 300_000}), objstore.Condition{})
	ok(t, syscall.Setrlimit(syscall.RLIMIT_FSIZE, &old))
	wantError(t, "put", err, syscall.EFBIG)
	wantError(t, "put", err, objstore.ErrInvalid)
	if got := get(t, s, "k"); got != "" || len(leftovers(t, s.dir)) != 0 {
		t.Errorf("got %q, leftovers %q", got, leftovers(t, s.dir))
	}
	put(t, s, "k", "fits", objstore.IfAbsent())
}
