// Package limit measures how near an append path comes to the limit of its disk: a bare loop that writes the same bytes
// in the same batches and syncs each of them.
//
// It guarantees that all sides write the same batches, in turns, so that a disk that becomes slower or faster meanwhile
// does so for all of them. It assumes that a side's Append returns only when the batch is as durable as fdatasync makes
// it; it does not check that.
package limit

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"time"
)

// Appender takes batches to disk. It is used by one goroutine.
type Appender interface {
	// Append returns when all parts of the batch are durable. It must not keep them.
	Append(batch [][]byte) error
	Close() error
}

// Side is one of the things that are compared.
type Side struct {
	Name string
	Open func(dir string) (Appender, error) // in an empty directory, which is removed after Close
}

// PartBytes is the size of the parts that a batch is made of: about that of a request of ten log records. A batch is one
// part at least.
const PartBytes = 4 << 10

// BatchSizes are those that results are published for.
func BatchSizes() []int { return []int{4 << 10, 64 << 10, 256 << 10, 1 << 20} }

// Defaults and bounds of Config.
const (
	DefaultRounds    = 9
	DefaultRoundTime = 500 * time.Millisecond
	minBatches       = 8       // in a round: fewer say nothing
	maxRoundBytes    = 1 << 30 // a round fits on small disks
)

// Config of a comparison.
type Config struct {
	Dir       string // on the disk that is meant
	Sizes     []int  // of batches in bytes; default: BatchSizes
	Rounds    int    // of each side and size
	RoundTime time.Duration
	Seed      uint64 // of the bytes, which do not compress
}

// Sample is what one side reached in one round.
type Sample struct {
	Batches int
	Elapsed time.Duration
}

// BytesPerSecond is the rate at a batch size.
func (s Sample) BytesPerSecond(sizeBytes int) float64 {
	return float64(s.Batches*sizeBytes) / max(s.Elapsed.Seconds(), 1e-9)
}

// Comparison is the outcome for one batch size.
type Comparison struct {
	SizeBytes int
	Sides     []string
	Samples   [][]Sample // by side, then round
}

// Run compares the sides; the first is the one that the others are measured against. It ends early, with an error, when
// ctx ends or a side fails.
func Run(ctx context.Context, cfg Config, sides ...Side) ([]Comparison, error) {
	if len(sides) == 0 {
		return nil, errors.New("compare: no sides")
	}
	if cfg.Rounds == 0 {
		cfg.Rounds = DefaultRounds
	}
	if cfg.RoundTime == 0 {
		cfg.RoundTime = DefaultRoundTime
	}
	if len(cfg.Sizes) == 0 {
		cfg.Sizes = BatchSizes()
	}
	dir, err := os.MkdirTemp(cfg.Dir, "limit-")
	if err != nil {
		return nil, fmt.Errorf("compare: %w", err)
	}
	var all []Comparison
	for _, size := range cfg.Sizes {
		var c Comparison
		if c, err = compare(ctx, cfg, dir, size, sides); err != nil {
			err = fmt.Errorf("compare batches of %d bytes: %w", size, err)
			break
		}
		all = append(all, c)
	}
	return all, errors.Join(err, os.RemoveAll(dir))
}

func compare(ctx context.Context, cfg Config, dir string, size int, sides []Side) (Comparison, error) {
	c := Comparison{SizeBytes: size, Samples: make([][]Sample, len(sides))}
	for _, s := range sides {
		c.Sides = append(c.Sides, s.Name)
	}
	batch := makeBatch(cfg.Seed, size)
	// The first side says how many batches fill a round; the first measurement of it is not counted, as it warms up.
	first, err := measure(ctx, sides[0], dir, batch, func(n int, took time.Duration) bool {
		return n < minBatches || (took < cfg.RoundTime && (n+1)*size <= maxRoundBytes)
	})
	if err != nil {
		return c, err
	}
	for round := range cfg.Rounds {
		for i := range sides {
			// Every other round goes the other way: ABBA. Who goes second finds what the first left the disk to do.
			side := i
			if round%2 == 1 {
				side = len(sides) - 1 - i
			}
			sample, err := measure(ctx, sides[side], dir, batch, func(n int, _ time.Duration) bool { return n < first.Batches })
			if err != nil {
				return c, err
			}
			c.Samples[side] = append(c.Samples[side], sample)
		}
	}
	return c, nil
}

// makeBatch is a batch of size bytes in parts of PartBytes.
func makeBatch(seed uint64, size int) [][]byte {
	rng := rand.New(rand.NewPCG(seed, uint64(size)))
	var batch [][]byte
	for left := size; left > 0; left -= PartBytes {
		part := make([]byte, min(left, PartBytes))
		for i := range part {
			part[i] = byte(rng.Uint32())
		}
		batch = append(batch, part)
	}
	return batch
}

// measure appends while more says so, given the number of batches done and the time it took.
func measure(ctx context.Context, side Side, parent string, batch [][]byte, more func(int, time.Duration) bool) (s Sample, err error) {
	dir := filepath.Join(parent, "round")
	if err := os.Mkdir(dir, 0o755); err != nil {
		return s, fmt.Errorf("make directory: %w", err)
	}
	a, err := side.Open(dir)
	if err != nil {
		return s, fmt.Errorf("open %s: %w", side.Name, err)
	}
	begin := time.Now()
	for err == nil && more(s.Batches, time.Since(begin)) {
		if err = ctx.Err(); err == nil {
			err = a.Append(batch)
		}
		s.Batches++
	}
	s.Elapsed = time.Since(begin)
	if err = errors.Join(err, a.Close()); err != nil {
		return s, fmt.Errorf("append to %s: %w", side.Name, err)
	}
	if err := os.RemoveAll(dir); err != nil {
		return s, fmt.Errorf("remove directory: %w", err)
	}
	return s, nil
}
