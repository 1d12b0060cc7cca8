package filestore

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"ingest-agent/objstore"
)

// childEnv makes the test's binary a process that uses the store in its working directory: what it does, and a number.
const childEnv = "FILESTORE_TEST_CHILD"

// callTimeout ends what hangs.
const callTimeout = time.Minute

func TestMain(m *testing.M) {
	if child := os.Getenv(childEnv); child != "" {
		if err := runChild(strings.Split(child, "\n")); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func command(what, dir string, n int) *exec.Cmd {
	cmd := exec.Command(os.Args[0])
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%s\n%d", childEnv, what, n), "GORACE=atexit_sleep_ms=0")
	return cmd
}

func runChild(args []string) error {
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	s, err := Open(".")
	if err != nil {
		return err
	}
	n, err := strconv.Atoi(args[1])
	if err != nil {
		return err
	}
	switch args[0] {
	case "write":
		return write(ctx, s, n)
	case "count":
		return inParallel(func(worker int) error { return count(ctx, s, fmt.Sprintf("%d-%d", n, worker)) })
	}
	steps := 0
	s.before = func(string, string) error {
		if steps++; steps == n {
			if err := syscall.Kill(os.Getpid(), syscall.SIGKILL); err != nil {
				return err
			}
			select {} // the signal may take a moment
		}
		return nil
	}
	switch c, old := (objstore.Condition{}), args[0]; old {
	case "delete":
		return s.Delete(ctx, "d/k")
	case "replace":
		page, err := s.List(ctx, objstore.ListOptions{})
		if err != nil {
			return err
		}
		c = objstore.IfVersion(page.Objects[0].Version)
		fallthrough
	default:
		_, err := s.Put(ctx, "d/k", strings.NewReader(newBody), c)
		return err
	}
}

const oldBody, newBody = "old", "new, and longer"

// TestCrashAtEveryStep kills a process before each step of each call. What is there afterwards is what was there or what was
// to be, whole; what the process left over goes with the first write of the next, which nothing holds up.
func TestCrashAtEveryStep(t *testing.T) {
	for _, call := range []struct{ name, was, want string }{{"create", "", newBody}, {"replace", oldBody, newBody}, {"delete", oldBody, ""}} {
		for n, ended := 1, false; !ended; n++ {
			dir := t.TempDir()
			if call.was != "" {
				put(t, open(t, dir), "d/k", call.was, objstore.Condition{})
			}
			out, err := command(call.name, dir, n).CombinedOutput()
			var exit *exec.ExitError
			ended = err == nil
			if !ended && (!errors.As(err, &exit) || exit.ExitCode() != -1) {
				t.Fatalf("%s: %v\n%s", call.name, err, out)
			}
			what := fmt.Sprintf("%s, killed before step %d", call.name, n)
			s := open(t, dir)
			got := get(t, s, "d/k")
			if got != call.want && (ended || got != call.was) {
				t.Errorf("%s: got %q", what, got)
			}
			put(t, s, "d/k", "next", objstore.Condition{})
			page, err := s.List(context.Background(), objstore.ListOptions{})
			ok(t, err)
			if len(page.Objects) != 1 || get(t, s, "d/k") != "next" || len(leftovers(t, dir)) != 0 {
				t.Errorf("%s: after a put: %q, objects %+v, leftovers %q", what, get(t, s, "d/k"), page.Objects, leftovers(t, dir))
			}
			ok(t, s.Delete(context.Background(), "d/k"))
		}
	}
}

// workers is how many goroutines a process has.
const workers = 4

func inParallel(f func(worker int) error) error {
	errs := make([]error, workers)
	var wg sync.WaitGroup
	for i := range workers {
		wg.Go(func() { errs[i] = f(i) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// written is what step n of a worker leaves at its key: every fourth deletes it.
func written(key string, n int) string {
	if n%4 == 0 {
		return ""
	}
	return fmt.Sprintf("%s %d ", key, n) + strings.Repeat("x", n*997%5000)
}

// write goes on until it is killed: each worker writes, replaces and deletes its own key in a directory shared by all, and
// says so after each step.
func write(ctx context.Context, s *Store, process int) error {
	var mu sync.Mutex
	return inParallel(func(worker int) error {
		key := fmt.Sprintf("shared/dir/%d-%d", process, worker)
		c := objstore.IfAbsent()
		for n := 1; ; n++ {
			if body := written(key, n); body == "" {
				if err := s.Delete(ctx, key); err != nil {
					return err
				}
				c = objstore.IfAbsent()
			} else {
				result, err := s.Put(ctx, key, strings.NewReader(body), c)
				if err != nil {
					return err
				}
				c = objstore.IfVersion(result.Version)
			}
			mu.Lock()
			_, err := fmt.Println(key, n)
			mu.Unlock()
			if err != nil {
				return err
			}
		}
	})
}

// TestCrashOfWriters kills two processes at a seeded moment. Each key then has what its worker said last, or what it was
// about to say.
func TestCrashOfWriters(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	for range 5 {
		dir := t.TempDir()
		var mu sync.Mutex
		said := map[string]int{}
		var wg sync.WaitGroup
		for process := range 2 {
			cmd, lines := command("write", dir, process), 20+rng.IntN(150)
			out, err := cmd.StdoutPipe()
			ok(t, err)
			var errOut strings.Builder
			cmd.Stderr = &errOut
			ok(t, cmd.Start())
			wg.Go(func() {
				scanner := bufio.NewScanner(out)
				for n := 1; scanner.Scan(); n++ {
					key, step, _ := strings.Cut(scanner.Text(), " ")
					mu.Lock()
					said[key], err = strconv.Atoi(step)
					mu.Unlock()
					if err == nil && n == lines {
						err = cmd.Process.Kill()
					}
					if err != nil {
						t.Errorf("line %d: %v", n, err)
					}
				}
				if err := cmd.Wait(); err == nil || errOut.Len() > 0 {
					t.Errorf("writer ended: %v %s", err, errOut.String())
				}
			})
		}
		wg.Wait()
		s := open(t, dir)
		for process := range 2 {
			for worker := range workers {
				key := fmt.Sprintf("shared/dir/%d-%d", process, worker)
				n := said[key]
				last, next := "", written(key, n+1)
				if n > 0 {
					last = written(key, n)
				}
				if got := get(t, s, key); got != last && got != next {
					t.Errorf("%s: got %.40q, said last %d", key, got, n)
				}
			}
		}
		put(t, s, "shared/dir/next", "x", objstore.IfAbsent())
		if l := leftovers(t, dir); len(l) != 0 {
			t.Errorf("left: %q", l)
		}
	}
}

// increments is how often each worker counts.
const increments = 12

// count increments a counter by compare-and-swap. Beside that it creates a key that all race for, and says so if it won.
func count(ctx context.Context, s *Store, worker string) error {
	for i := range increments {
		_, err := s.Put(ctx, fmt.Sprintf("race/%d/k", i), strings.NewReader(worker), objstore.IfAbsent())
		if err == nil {
			_, err = fmt.Println("won", i)
		}
		if err != nil && !errors.Is(err, objstore.ErrPrecondition) {
			return err
		}
		for {
			obj, err := s.Get(ctx, "counter", objstore.GetOptions{})
			if err != nil {
				return err
			}
			b, err := io.ReadAll(obj.Body)
			if err := errors.Join(err, obj.Body.Close()); err != nil {
				return err
			}
			n, err := strconv.Atoi(string(b))
			if err != nil {
				return err
			}
			_, err = s.Put(ctx, "counter", strings.NewReader(strconv.Itoa(n+1)), objstore.IfVersion(obj.Version))
			if err == nil {
				break
			}
			if !errors.Is(err, objstore.ErrPrecondition) {
				return err
			}
		}
	}
	return nil
}

// TestProcessesCount: processes that share a store lose no increment, and each key they race for has one winner.
func TestProcessesCount(t *testing.T) {
	const processes = 4
	s := open(t, t.TempDir())
	put(t, s, "counter", "0", objstore.Condition{})
	outs := make([]string, processes)
	var wg sync.WaitGroup
	for i := range processes {
		wg.Go(func() {
			out, err := command("count", s.dir, i).CombinedOutput()
			if err != nil {
				t.Errorf("process %d: %v\n%s", i, err, out)
			}
			outs[i] = string(out)
		})
	}
	wg.Wait()
	if got, want := get(t, s, "counter"), strconv.Itoa(processes*workers*increments); got != want {
		t.Errorf("counter is %s, want %s", got, want)
	}
	won := strings.Join(outs, "")
	for i := range increments {
		if n := strings.Count(won, fmt.Sprintf("won %d\n", i)); n != 1 {
			t.Errorf("key %d has %d winners", i, n)
		}
	}
}
