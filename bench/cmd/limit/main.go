// Command limit prints how fast batches can be made durable on a disk.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"ingest-agent/bench/limit"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "limit:", err)
		os.Exit(1)
	}
}

func run() error {
	var cfg limit.Config
	flag.StringVar(&cfg.Dir, "dir", "", "`directory` on the disk to measure; empty: the system's for temporary files")
	flag.IntVar(&cfg.Rounds, "rounds", limit.DefaultRounds, "rounds of each side and batch size")
	flag.DurationVar(&cfg.RoundTime, "round-time", limit.DefaultRoundTime, "about how long a round takes")
	flag.Uint64Var(&cfg.Seed, "seed", 1, "of the bytes")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	all, err := limit.Run(ctx, cfg, limit.Bare(), limit.Lane())
	if err != nil {
		return err
	}
	return limit.Print(os.Stdout, all)
}
