//go:build unix

package lease_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"ingest-agent/objstore/lease"
	"ingest-agent/objstore/s3/s3test"
	"ingest-agent/objstore/stores"
)

const (
	// counterEnv makes the test's binary a process that counts: the bucket's URL and the process's number.
	counterEnv      = "LEASE_TEST_COUNTER"
	counterKey      = "jobs/counter.json"
	counterT        = time.Minute
	counterTimeout  = 2 * time.Minute
	countProcesses  = 4
	countGoroutines = 8 // in each
	countTotal      = 2000
	// countPause is the most that a goroutine waits for another look. They are 32, and an increment takes some 10 ms, so that
	// somebody looks once meanwhile; more looks would take the processors from the holder.
	countPause = 512 * time.Millisecond
	// countHandOvers is how often at least the lease must go from one goroutine to another, or it was no contest.
	countHandOvers = countTotal / 100
)

func TestMain(m *testing.M) {
	if url, number, is := strings.Cut(os.Getenv(counterEnv), "\n"); is {
		if err := countHere(url, number, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	m.Run()
}

// countHere is what one process does: its share of the counting.
func countHere(url, number string, out io.Writer) error {
	ctx, cancel := context.WithTimeout(context.Background(), counterTimeout)
	defer cancel()
	b, err := stores.Open(ctx, url, stores.Options{})
	if err != nil {
		return fmt.Errorf("open bucket: %w", err)
	}
	var left atomic.Int64
	left.Store(countTotal / countProcesses)
	var mu sync.Mutex
	var wg sync.WaitGroup
	failed := make([]error, countGoroutines)
	for i := range countGoroutines {
		c := counter{
			r: lease.New(lease.Options{
				Bucket: b, Key: counterKey, Holder: fmt.Sprintf("%s.%d", number, i), Node: number, StaleAfter: counterT,
			}),
			rand: rand.New(rand.NewPCG(uint64(number[0]), uint64(i))),
		}
		wg.Go(func() {
			for left.Add(-1) >= 0 && failed[i] == nil {
				var epoch lease.Epoch
				var n int
				if epoch, n, failed[i] = c.count(ctx); failed[i] == nil {
					mu.Lock()
					fmt.Fprintln(out, epoch, n, i)
					mu.Unlock()
				}
			}
		})
	}
	wg.Wait()
	return errors.Join(errors.Join(failed...), b.Close())
}

// counter is one goroutine that counts.
type counter struct {
	r    *lease.Register
	rand *rand.Rand
	seen lease.Seen
}

// count adds one under a lease of its own.
func (c *counter) count(ctx context.Context) (lease.Epoch, int, error) {
	l, err := c.acquire(ctx)
	if err != nil {
		return 0, 0, err
	}
	last := l.Last()
	b, err := lease.Body[body](&last.Record)
	if err != nil {
		return 0, 0, err
	}
	if err := l.Commit(ctx, setCount(b.Count+1)); err != nil {
		return 0, 0, err
	}
	return l.Epoch(), b.Count + 1, l.Release(ctx, nil)
}

func (c *counter) acquire(ctx context.Context) (*lease.Lease, error) {
	for ; ; c.pause(ctx) {
		var err error
		if c.seen, err = c.r.Observe(ctx, c.seen); err != nil {
			return nil, err
		}
		switch v := c.r.Judge(c.seen); v {
		case lease.Beating:
			continue
		case lease.Absent, lease.Free:
		case lease.Mine, lease.Silent:
			return nil, fmt.Errorf("verdict %d of %s, where nobody dies", v, &c.seen)
		}
		l, err := c.r.Acquire(ctx, c.seen, nil)
		if !errors.Is(err, lease.ErrLost) {
			return l, err
		}
	}
}

func (c *counter) pause(ctx context.Context) {
	timer := time.NewTimer(time.Duration(c.rand.Int64N(int64(countPause))))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done(): // the next call tells
	}
}

func TestCountInProcessesFile(t *testing.T) {
	url := "file:" + t.TempDir()
	countInProcesses(t, url, os.Environ())
}

func TestCountInProcessesS3(t *testing.T) {
	server := s3test.Start(t)
	countInProcesses(t, server.URL("count"), server.Env())
}

// countInProcesses lets goroutines of several processes count in the body of one register: each under a lease of its own, none
// twice, none lost.
func countInProcesses(t *testing.T, url string, env []string) {
	t.Helper()
	start := time.Now()
	processes := make([]*exec.Cmd, countProcesses)
	outs, errs := make([]bytes.Buffer, countProcesses), make([]bytes.Buffer, countProcesses)
	for i := range processes {
		p := exec.CommandContext(t.Context(), os.Args[0])
		p.Env = append(slices.Clone(env), fmt.Sprintf("%s=%s\n%d", counterEnv, url, i), "GORACE=atexit_sleep_ms=0")
		p.Stdout, p.Stderr = &outs[i], &errs[i]
		if err := p.Start(); err != nil {
			t.Fatal(err)
		}
		processes[i] = p
	}
	counts, holders := map[lease.Epoch]int{}, map[lease.Epoch]string{}
	for i, p := range processes {
		if err := p.Wait(); err != nil {
			t.Errorf("process %d: %v\n%s", i, err, errs[i].String())
		}
		for line := range strings.Lines(outs[i].String()) {
			var epoch lease.Epoch
			var n, goroutine int
			if _, err := fmt.Sscan(line, &epoch, &n, &goroutine); err != nil {
				t.Fatalf("process %d said %q: %v", i, line, err)
			}
			if other, used := counts[epoch]; used {
				t.Errorf("epoch %d had two holders, who counted %d and %d", epoch, other, n)
			}
			counts[epoch], holders[epoch] = n, fmt.Sprintf("%d.%d", i, goroutine)
		}
	}
	// Nobody takes an epoch without counting in it, so they are the same.
	handOvers := 0
	for epoch, n := range counts {
		if holders[epoch] != holders[epoch+1] {
			handOvers++
		}
		if lease.Epoch(n) != epoch {
			t.Errorf("in epoch %d the counter was %d", epoch, n)
		}
	}
	if len(counts) != countTotal {
		t.Errorf("%d were counted, want %d", len(counts), countTotal)
	}
	if handOvers < countHandOvers {
		t.Errorf("the lease went from one to another %d times, want %d at least", handOvers, countHandOvers)
	}
	t.Logf("%d counted by %d goroutines in each of %d processes, with %d hand-overs, in %s",
		len(counts), countGoroutines, countProcesses, handOvers, time.Since(start).Round(time.Millisecond))
	wantCounter(t, url, env)
}

// wantCounter reads what is in the bucket in the end.
func wantCounter(t *testing.T, url string, env []string) {
	t.Helper()
	for _, variable := range env {
		if name, value, _ := strings.Cut(variable, "="); strings.HasPrefix(name, "AWS_") {
			t.Setenv(name, value)
		}
	}
	b, err := stores.Open(t.Context(), url, stores.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	}()
	seen, err := lease.New(lease.Options{Bucket: b, Key: counterKey, StaleAfter: counterT}).Observe(t.Context(), lease.Seen{})
	if err != nil {
		t.Fatal(err)
	}
	got, err := lease.Body[body](&seen.Record)
	if err != nil || got.Count != countTotal || seen.Epoch != countTotal || seen.Holder != "" {
		t.Errorf("in the end: %s, body %+v, %v, want %d and nobody", &seen, got, err, countTotal)
	}
}
