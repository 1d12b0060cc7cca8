// Package fleet ends a fleet of three agents over and over, by SIGKILL or SIGTERM, with and without their disks, while their
// destination is down, and judges what arrives once one of them is back and the destination is up.
//
// It guarantees that a run with the same seed plans the same rounds, ends by itself, and leaves no process. What it requires:
// with wal.ack: bucket every acknowledged record arrives, whatever became of the disks; with wal.ack: disk every one that was
// older than shipper.after and Margin at a kill, all of an agent that was stopped, and all of a disk that is started again.
// Nothing arrives that was not sent. What arrives twice came first within Window before some agent's end. At rest no object is
// left below segments/, and every register is idle or drained.
//
// Each round has a bucket of its own: a directory, or a part of a real S3 server's bucket.
package fleet

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"ingest-agent/bench/freeport"
	"ingest-agent/objstore"
)

// How the agents are configured.
const (
	nodes           = 3
	staleAfter      = 3 * time.Second
	shipAfter       = 300 * time.Millisecond
	shutdownTimeout = 6 * time.Second
)

// Limits of a round.
const (
	// Margin is what a round of the shipper may take on top of shipper.after, the first with its register and probe included.
	Margin = 1500 * time.Millisecond
	// Window is how long before an agent's end what comes twice may have been delivered: half of stale_after, after which a
	// holder that cannot commit stops, and what was in flight.
	Window = staleAfter/2 + time.Second

	readyTimeout = 20 * time.Second
	restTimeout  = time.Minute
	deathTimeout = 10 * time.Second
	sendTimeout  = 5 * time.Second
	pollInterval = 50 * time.Millisecond
)

// Config of a run.
type Config struct {
	Bin      string // path of the agent
	Dir      string // an existing directory, for data and logs
	Seed     uint64
	Rounds   int
	Buckets  []Bucket  // taken in turn
	Progress io.Writer // when set, gets a line for each round
}

// Bucket is a place where each round gets a bucket of its own.
type Bucket struct {
	Name string
	URL  func(round string) string
	Env  []string // of an agent
	Open func(ctx context.Context, url string) (objstore.Bucket, error)
}

// Run does all rounds, up to the first that fails. An error means that the run itself did not work, or ctx ended.
func Run(ctx context.Context, cfg Config) (*Report, error) {
	var err error
	if cfg.Dir, err = filepath.Abs(cfg.Dir); err != nil {
		return nil, fmt.Errorf("start run: %w", err)
	}
	if cfg.Bin, err = filepath.Abs(cfg.Bin); err != nil {
		return nil, fmt.Errorf("start run: %w", err)
	}
	ports, err := freeport.Pick(3 * nodes)
	if err != nil {
		return nil, fmt.Errorf("start run: %w", err)
	}
	report := &Report{Seed: cfg.Seed}
	for number := 1; number <= cfg.Rounds; number++ {
		r, err := newRound(&cfg, number, ports)
		if err != nil {
			return nil, fmt.Errorf("round %d: %w", number, err)
		}
		if err := errors.Join(r.run(ctx), r.sink.Down(true)); err != nil {
			return nil, fmt.Errorf("round %d: %w", number, err)
		}
		report.Rounds = append(report.Rounds, r.outcome)
		if cfg.Progress != nil {
			fmt.Fprintln(cfg.Progress, r.outcome)
		}
		if report.Failed() {
			break
		}
		if err := os.RemoveAll(r.dir); err != nil {
			return nil, fmt.Errorf("round %d: %w", number, err)
		}
	}
	return report, nil
}
