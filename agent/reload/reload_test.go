package reload

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// joined is the two contents, unless they do not go together.
func joined(contents [][]byte) (string, error) {
	if string(contents[1]) == "bad" {
		return "", errors.New("does not fit")
	}
	return string(contents[0]) + string(contents[1]), nil
}

func TestValueFollowsItsFiles(t *testing.T) {
	dir := t.TempDir()
	a, b := filepath.Join(dir, "a"), filepath.Join(dir, "b")
	write(t, a, "1")
	write(t, b, "2")
	synctest.Test(t, func(t *testing.T) {
		var heard []string
		v, err := New(Options[string]{Paths: []string{a, b}, Interval: time.Minute, Make: joined, Report: func(err error) {
			if err == nil {
				heard = append(heard, "ok")
				return
			}
			heard = append(heard, err.Error())
		}})
		if err != nil {
			t.Fatal(err)
		}
		expect := func(what, want string, reports ...string) {
			t.Helper()
			if got := v.Get(); got != want {
				t.Errorf("%s: %q, want %q", what, got, want)
			}
			if len(heard) != len(reports) {
				t.Fatalf("%s: reported %q, want %q", what, heard, reports)
			}
			for i := range reports {
				if !strings.Contains(heard[i], reports[i]) {
					t.Errorf("%s: reported %q, want %q", what, heard[i], reports[i])
				}
			}
			heard = nil
		}
		write(t, a, "3")
		time.Sleep(time.Minute - 1)
		expect("before the interval is over", "12")
		time.Sleep(time.Nanosecond)
		expect("after it", "32", "ok")
		write(t, a, "4")
		expect("looked at only once in an interval", "32")
		time.Sleep(time.Hour)
		expect("changed", "42", "ok")
		write(t, a, "")
		write(t, b, "42")
		time.Sleep(time.Minute)
		expect("the same bytes, split in another way", "42", "ok")
		write(t, b, "bad")
		time.Sleep(time.Minute)
		expect("bad", "42", "does not fit")
		write(t, b, "43")
		time.Sleep(retryInterval)
		expect("bad only for a moment", "43", "ok")
		write(t, b, "42")
		time.Sleep(retryInterval)
		expect("good is left alone for the interval", "43")
		time.Sleep(time.Minute)
		expect("and then", "42", "ok")
		write(t, b, "bad")
		time.Sleep(time.Minute)
		expect("bad again", "42", "does not fit")
		time.Sleep(time.Minute)
		expect("still bad", "42")
		if err := os.Remove(b); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		expect("gone", "42", "no such file")
		time.Sleep(time.Minute)
		expect("still gone", "42")
		write(t, b, "42")
		time.Sleep(time.Minute)
		expect("back", "42", "ok")
	})
}

func TestNoIntervalReadsOnce(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a")
	write(t, path, "1")
	synctest.Test(t, func(t *testing.T) {
		v, err := New(Options[string]{Paths: []string{path, path}, Make: joined})
		if err != nil {
			t.Fatal(err)
		}
		write(t, path, "2")
		time.Sleep(1000 * time.Hour)
		if got := v.Get(); got != "11" {
			t.Errorf("got %q", got)
		}
	})
}

func TestNewFails(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a")
	if _, err := New(Options[string]{Paths: []string{path}, Make: joined}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
	write(t, path, "bad")
	if _, err := New(Options[string]{Paths: []string{path, path}, Make: joined}); err == nil || err.Error() != "does not fit" {
		t.Errorf("bad file: %v", err)
	}
}

// While one call makes a new value, others get the old one at once; it is made once.
func TestGetDoesNotWait(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a")
	write(t, path, "1")
	synctest.Test(t, func(t *testing.T) {
		var made atomic.Int32
		proceed := make(chan struct{})
		v, err := New(Options[string]{Paths: []string{path}, Interval: time.Second, Make: func(contents [][]byte) (string, error) {
			if made.Add(1) > 1 {
				<-proceed
			}
			return string(contents[0]), nil
		}})
		if err != nil {
			t.Fatal(err)
		}
		write(t, path, "2")
		time.Sleep(time.Second)
		slow := make(chan string, 1)
		go func() { slow <- v.Get() }()
		synctest.Wait()
		time.Sleep(time.Minute) // due again meanwhile
		var calls sync.WaitGroup
		for range 8 {
			calls.Go(func() {
				if got := v.Get(); got != "1" {
					t.Errorf("beside the look: %q", got)
				}
			})
		}
		calls.Wait()
		close(proceed)
		if got := <-slow; got != "2" || made.Load() != 2 {
			t.Errorf("got %q, made %d times", got, made.Load())
		}
	})
}

// A pipe that nobody writes to must not hang the caller, nor a device or a huge file fill the memory.
func TestReadFileRefuses(t *testing.T) {
	dir := t.TempDir()
	pipe, large := filepath.Join(dir, "pipe"), filepath.Join(dir, "large")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	write(t, large, strings.Repeat("x", MaxFileBytes+1))
	for path, want := range map[string]string{pipe: "not a regular file", "/dev/zero": "not a regular file", dir: "not a regular file", large: "larger than 4MiB"} {
		if data, err := ReadFile(path); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %d bytes, %v; want %s", path, len(data), err, want)
		}
	}
	write(t, large, strings.Repeat("x", MaxFileBytes))
	if data, err := ReadFile(large); err != nil || len(data) != MaxFileBytes {
		t.Errorf("at the limit: %d bytes, %v", len(data), err)
	}
}
