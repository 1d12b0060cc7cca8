// Command kill runs an agent through rounds of load and SIGKILL and says whether it lost or invented anything.
//
// It exits with 1 if it did, and then keeps the data directory and the agent's logs.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/signal"
	"syscall"

	"ingest-agent/bench/kill"
)

func main() {
	ok, err := run()
	if err != nil {
		fmt.Fprintln(os.Stderr, "kill:", err)
	}
	if err != nil || !ok {
		os.Exit(1)
	}
}

func run() (ok bool, err error) {
	cfg := kill.Config{}
	flag.StringVar(&cfg.Bin, "bin", "", "`path` of the agent")
	flag.Uint64Var(&cfg.Seed, "seed", 0, "of the rounds; 0: a random one")
	flag.IntVar(&cfg.Rounds, "rounds", 20, "number of rounds")
	flag.DurationVar(&cfg.MaxDelay, "max-delay", kill.DefaultMaxDelay, "longest time under load before the kill")
	flag.DurationVar(&cfg.Window, "window", kill.DefaultWindow, "how long before a crash a record that comes again may have been delivered")
	flag.Float64Var(&cfg.Rate, "rate", kill.DefaultRate, "requests a `second`")
	flag.DurationVar(&cfg.DrainTimeout, "drain-timeout", kill.DefaultDrainTimeout, "for the backlog at the end")
	parent := flag.String("dir", "", "`directory` to work in; empty: the system's for temporary files")
	keep := flag.Bool("keep", false, "keep data and logs also on success")
	quiet := flag.Bool("quiet", false, "print nothing before the table")
	flag.Parse()
	if cfg.Bin == "" {
		return false, errors.New("-bin is missing: the path of the agent")
	}
	if cfg.Seed == 0 {
		cfg.Seed = uint64(rand.Uint32()) // short enough to be typed again
	}
	if !*quiet {
		cfg.Progress = os.Stderr
	}
	if cfg.Dir, err = os.MkdirTemp(*parent, "kill-"); err != nil {
		return false, err
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	report, err := kill.Run(ctx, cfg)
	if err != nil {
		return false, fmt.Errorf("seed %d, data and logs in %s: %w", cfg.Seed, cfg.Dir, err)
	}
	if err := report.Print(os.Stdout); err != nil {
		return false, err
	}
	if report.Failed() || *keep {
		fmt.Println("data and logs are in", cfg.Dir)
		return !report.Failed(), nil
	}
	return true, os.RemoveAll(cfg.Dir)
}
