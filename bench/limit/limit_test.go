package limit

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// recorder is a side that does nothing but remember.
type recorder struct {
	name string
	log  *[]string
	err  error
	got  []byte
}

func (r *recorder) side() Side {
	return Side{Name: r.name, Open: func(dir string) (Appender, error) {
		entries, err := os.ReadDir(dir)
		if err != nil || len(entries) != 0 {
			return nil, errors.New("directory is not empty")
		}
		*r.log = append(*r.log, r.name)
		return r, os.WriteFile(filepath.Join(dir, "left over"), nil, 0o644)
	}}
}

func (r *recorder) Append(batch [][]byte) error {
	r.got = bytes.Join(batch, nil)
	return r.err
}

func (r *recorder) Close() error { return nil }

func TestSidesTakeTurnsWithTheSameBytes(t *testing.T) {
	var log []string
	a, b := &recorder{name: "a", log: &log}, &recorder{name: "b", log: &log}
	dir := t.TempDir()
	all, err := Run(t.Context(), Config{Dir: dir, Sizes: []int{10_000}, Rounds: 3, RoundTime: time.Millisecond}, a.side(), b.side())
	if err != nil {
		t.Fatal(err)
	}
	// The first a is for warming up and finding the number of batches.
	if want := []string{"a", "a", "b", "b", "a", "a", "b"}; !slices.Equal(log, want) {
		t.Errorf("order %v, want %v", log, want)
	}
	if len(a.got) != 10_000 || !bytes.Equal(a.got, b.got) {
		t.Errorf("batches of %d and %d bytes, or not the same", len(a.got), len(b.got))
	}
	c := all[0]
	for _, samples := range c.Samples {
		for _, s := range samples {
			if s.Batches != c.Samples[0][0].Batches || s.Batches < minBatches || s.Elapsed <= 0 {
				t.Errorf("%+v", c.Samples)
			}
		}
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("left over: %v, %v", left, err)
	}
}

func TestFailureOfASideEndsTheRun(t *testing.T) {
	var log []string
	full := errors.New("disk full")
	a, b := &recorder{name: "a", log: &log}, &recorder{name: "b", log: &log, err: full}
	dir := t.TempDir()
	cfg := Config{Dir: dir, Sizes: []int{100}, Rounds: 3, RoundTime: time.Millisecond}
	if _, err := Run(t.Context(), cfg, a.side(), b.side()); !errors.Is(err, full) || !strings.Contains(err.Error(), "append to b") {
		t.Errorf("error %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Run(ctx, cfg, a.side()); !errors.Is(err, context.Canceled) {
		t.Errorf("after the end of ctx: error %v", err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("left over: %v, %v", left, err)
	}
}

func TestBareWritesAllBytes(t *testing.T) {
	dir := t.TempDir()
	a, err := Bare().Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	batch := makeBatch(1, 10_000)
	for range 3 {
		if err := a.Append(batch); err != nil {
			t.Fatal(err)
		}
	}
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(filepath.Join(dir, "file"))
	if want := bytes.Repeat(bytes.Join(batch, nil), 3); err != nil || !bytes.Equal(got, want) {
		t.Errorf("%d bytes, want %d (%v)", len(got), len(want), err)
	}
	if len(batch) != 3 || len(batch[2]) != 10_000-2*PartBytes {
		t.Errorf("%d parts", len(batch))
	}
}

func TestSummaryComparesWithinRounds(t *testing.T) {
	// A disk that becomes ten times slower for both: the second side has half of the first's rate throughout.
	c := Comparison{SizeBytes: 1 << 20, Sides: []string{"bare", "lane"}, Samples: [][]Sample{
		{{10, 100 * time.Millisecond}, {10, time.Second}, {10, 100 * time.Millisecond}},
		{{10, 200 * time.Millisecond}, {10, 2 * time.Second}, {10, 200 * time.Millisecond}},
	}}
	s := c.Summaries()[1]
	if s.Ratio != 0.5 || s.RatioMin != 0.5 || s.RatioMax != 0.5 {
		t.Errorf("%+v", s)
	}
	if want := 50.0 * (1 << 20); s.Median != want || s.Max != want || s.Min != want/10 {
		t.Errorf("%+v", s)
	}
	var out strings.Builder
	if err := Print(&out, []Comparison{c}); err != nil || !strings.Contains(out.String(), "goal: lane at least 75 % of bare with batches of 1024 KiB: 50 %, not met") {
		t.Errorf("%v\n%s", err, out.String())
	}
	if m := median([]float64{4, 1, 3, 2}); m != 2.5 {
		t.Errorf("median of an even number of values: %v", m)
	}
}
