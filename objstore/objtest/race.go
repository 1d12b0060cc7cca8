package objtest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"ingest-agent/objstore"
)

// racers is how many goroutines race for one key.
const racers = 16

// race runs f in racers goroutines and joins them.
func race(f func(racer int)) {
	var wg sync.WaitGroup
	for i := range racers {
		wg.Go(func() { f(i) })
	}
	wg.Wait()
}

// settled repeats a call of which the outcome is not known. In these tests no such call may have had an effect that matters.
func settled(ctx context.Context, call func() error) error {
	for {
		if err := call(); !errors.Is(err, objstore.ErrUnknown) || ctx.Err() != nil {
			return err
		}
	}
}

// testRaceCreate has one winner a key. A racer of unknown outcome reads back whether it has won.
func testRaceCreate(t *testing.T, s suite) {
	ctx := callContext(t)
	for round := range 8 {
		key := fmt.Sprintf("race/%d/k", round)
		var winners atomic.Int32
		var won atomic.Value
		race(func(racer int) {
			mine := fmt.Sprintf("racer %d", racer)
			err := settled(ctx, func() error {
				_, err := s.bucket.Put(ctx, key, strings.NewReader(mine), objstore.IfAbsent())
				if errors.Is(err, objstore.ErrUnknown) {
					if got, _, _ := s.read(ctx, key); got == mine {
						return nil
					}
				}
				return err
			})
			switch {
			case err == nil:
				winners.Add(1)
				won.Store(mine)
			case !errors.Is(err, objstore.ErrPrecondition):
				t.Errorf("create %s: %v", key, err)
			}
		})
		if n := winners.Load(); n != 1 {
			t.Fatalf("%s has %d winners", key, n)
		}
		if mine, _ := won.Load().(string); mine != "" {
			s.wantBody(t, key, mine)
		}
	}
}

// read is a Get of the whole, for use in goroutines.
func (s suite) read(ctx context.Context, key string) (body string, version objstore.Version, err error) {
	obj, err := s.bucket.Get(ctx, key, objstore.GetOptions{})
	if err != nil {
		return "", "", fmt.Errorf("get %s: %w", key, err)
	}
	b, err := io.ReadAll(obj.Body)
	return string(b), obj.Version, errors.Join(err, obj.Body.Close())
}

// testRaceCount counts by compare-and-swap. No increment is lost and none is done twice. Each carries who did it, so that
// an unknown outcome is settled by reading.
func testRaceCount(t *testing.T, s suite) {
	const each = 8
	ctx := callContext(t)
	s.put(t, "counter", "0 start", always())
	race(func(racer int) {
		for i := range each {
			mark := fmt.Sprintf("%d-%d", racer, i)
			for {
				body, version, err := s.read(ctx, "counter")
				if err != nil {
					t.Errorf("read counter: %v", err)
					return
				}
				number, last, _ := strings.Cut(body, " ")
				if last == mark {
					break // an unknown outcome was a success
				}
				n, err := strconv.Atoi(number)
				if err != nil {
					t.Errorf("counter is %q", body)
					return
				}
				_, err = s.bucket.Put(ctx, "counter", strings.NewReader(fmt.Sprintf("%d %s", n+1, mark)), objstore.IfVersion(version))
				if err == nil {
					break
				}
				if !errors.Is(err, objstore.ErrPrecondition) && !errors.Is(err, objstore.ErrUnknown) || ctx.Err() != nil {
					t.Errorf("count: %v", err)
					return
				}
			}
		}
	})
	_, body := s.get(t, "counter", objstore.GetOptions{})
	if number, _, _ := strings.Cut(body, " "); number != strconv.Itoa(racers*each) {
		t.Errorf("counter is %q, want %d", body, racers*each)
	}
}

// testRaceDelete replaces by version beside a Delete: once it is deleted, no replacement brings it back.
func testRaceDelete(t *testing.T, s suite) {
	ctx := callContext(t)
	for round := range 8 {
		key := fmt.Sprintf("gone/%d/k", round)
		s.put(t, key, "start", always())
		race(func(racer int) {
			if racer == racers/2 {
				if err := settled(ctx, func() error { return s.bucket.Delete(ctx, key) }); err != nil {
					t.Errorf("delete: %v", err)
				}
				return
			}
			_, version, err := s.read(ctx, key)
			if errors.Is(err, objstore.ErrNotFound) {
				return
			}
			_, err = s.bucket.Put(ctx, key, strings.NewReader(strconv.Itoa(racer)), objstore.IfVersion(version))
			if err != nil && !errors.Is(err, objstore.ErrPrecondition) && !errors.Is(err, objstore.ErrUnknown) {
				t.Errorf("replace: %v", err)
			}
		})
		wantKind(t, "deleted", s.getError(t, key, objstore.GetOptions{}), objstore.ErrNotFound)
	}
}

// testRaceDirectory creates and deletes objects of one directory that is empty again and again.
func testRaceDirectory(t *testing.T, s suite) {
	ctx := callContext(t)
	race(func(racer int) {
		key := fmt.Sprintf("shared/deep/%d", racer)
		for i := range 10 {
			err := settled(ctx, func() error {
				_, err := s.bucket.Put(ctx, key, strings.NewReader(strconv.Itoa(i)), always())
				return err
			})
			if err == nil {
				var body string
				if body, _, err = s.read(ctx, key); err == nil && body != strconv.Itoa(i) {
					err = fmt.Errorf("read %q after put of %d", body, i)
				}
			}
			if err == nil && i%2 == 0 {
				err = settled(ctx, func() error { return s.bucket.Delete(ctx, key) })
			}
			if err != nil {
				t.Errorf("%s: %v", key, err)
				return
			}
		}
	})
	keys := make([]string, racers)
	for i := range keys {
		keys[i] = fmt.Sprintf("shared/deep/%d", i)
		s.wantBody(t, keys[i], "9")
	}
	s.wantKeys(t, objstore.ListOptions{}, keys...)
}

// testRaceWhole reads while others replace: every body is whole, and no older than the version that it came with. It may be
// newer: a compare-and-swap on that version is then refused, where the other way round it would undo a write.
func testRaceWhole(t *testing.T, s suite) {
	const reads = 12
	ctx := callContext(t)
	first := s.put(t, "whole", numbered(0), always())
	var mu sync.Mutex
	numbers := map[objstore.Version]int{first.Version: 0} // of what was put, by the version that Put told
	got := map[objstore.Version][]int{}                   // of what was read, by the version that Get told
	stop := make(chan struct{})
	var writer sync.WaitGroup
	writer.Go(func() {
		for n, version := 1, first.Version; ; n++ {
			select {
			case <-stop:
				return
			default:
			}
			result, err := s.bucket.Put(ctx, "whole", strings.NewReader(numbered(n)), objstore.IfVersion(version))
			if err != nil { // nobody else writes
				t.Errorf("put %d: %v", n, err)
				return
			}
			version = result.Version
			mu.Lock()
			numbers[version] = n
			mu.Unlock()
		}
	})
	race(func(int) {
		for range reads {
			body, version, err := s.read(ctx, "whole")
			if err != nil {
				t.Errorf("read: %v", err)
				return
			}
			text, _, _ := strings.Cut(body, " ")
			n, err := strconv.Atoi(text)
			if err != nil || body != numbered(n) {
				t.Errorf("read a mixture of %d bytes, beginning with %.10q", len(body), body)
				return
			}
			mu.Lock()
			got[version] = append(got[version], n)
			mu.Unlock()
		}
	})
	close(stop)
	writer.Wait()
	for version, bodies := range got {
		n, known := numbers[version]
		if !known {
			t.Errorf("read a version %q that no put told", version)
		}
		for _, body := range bodies {
			if body < n {
				t.Errorf("read version %d with the body of %d, which it replaced", n, body)
			}
		}
	}
	last := len(numbers) - 1
	if info := s.wantBody(t, "whole", numbered(last)); numbers[info.Version] != last {
		t.Errorf("at rest, version %q goes with the last body", info.Version)
	}
}

// numbered is the body of the nth put: none near it is as long.
func numbered(n int) string {
	return strconv.Itoa(n) + " " + strings.Repeat(string(rune('a'+n%26)), 1000+n%97*100)
}

// testListWhileReplacing lists while an object is replaced: it is always there, and once.
func testListWhileReplacing(t *testing.T, s suite) {
	keys := []string{"r/a", "r/b", "r/c"}
	for _, key := range keys {
		s.put(t, key, "start", always())
	}
	ctx, stop := context.WithCancel(callContext(t))
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := 0; ctx.Err() == nil; i++ {
			_, err := s.bucket.Put(ctx, "r/b", strings.NewReader(strconv.Itoa(i)), always())
			if err != nil && !errors.Is(err, objstore.ErrUnknown) {
				t.Errorf("put: %v", err)
			}
		}
	})
	for range 20 {
		s.wantKeys(t, objstore.ListOptions{Prefix: "r/"}, keys...)
	}
	stop()
	wg.Wait()
}
