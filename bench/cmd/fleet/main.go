//go:build unix

// Command fleet runs three agents through rounds of crashes, stops and lost disks, with a file bucket and a real S3 server in
// turn, and says whether anything that was promised is missing.
//
// It exits with 1 if something is, and then keeps the last round's data and logs.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"ingest-agent/bench/fleet"
	"ingest-agent/objstore"
	"ingest-agent/objstore/s3"
	"ingest-agent/objstore/s3/s3test"
	"ingest-agent/objstore/stores"
)

func main() {
	ok, err := run()
	if err != nil {
		fmt.Fprintln(os.Stderr, "fleet:", err)
	}
	if err != nil || !ok {
		os.Exit(1)
	}
}

func run() (ok bool, err error) {
	cfg := fleet.Config{Progress: os.Stderr}
	flag.StringVar(&cfg.Bin, "bin", "", "`path` of the agent")
	flag.Uint64Var(&cfg.Seed, "seed", 0, "of the rounds; 0: a random one")
	flag.IntVar(&cfg.Rounds, "rounds", 20, "number of rounds")
	parent := flag.String("dir", "", "`directory` to work in; empty: the system's for temporary files")
	withS3 := flag.Bool("s3", true, "every second round on a real S3 server")
	flag.Parse()
	if cfg.Bin == "" {
		return false, errors.New("-bin is missing: the path of the agent")
	}
	if cfg.Seed == 0 {
		cfg.Seed = uint64(rand.Uint32()) // short enough to be typed again
	}
	if cfg.Dir, err = os.MkdirTemp(*parent, "fleet-"); err != nil {
		return false, fmt.Errorf("make directory: %w", err)
	}
	cfg.Buckets = []fleet.Bucket{{
		Name: "file", Env: os.Environ(),
		URL: func(round string) string { return "file:" + filepath.Join(cfg.Dir, round, "bucket") },
		Open: func(ctx context.Context, url string) (objstore.Bucket, error) {
			return stores.Open(ctx, url, stores.Options{})
		},
	}}
	if *withS3 {
		server, stop, err := s3test.StartOutside()
		if err != nil {
			return false, err
		}
		defer stop()
		cfg.Buckets = append(cfg.Buckets, fleet.Bucket{
			Name: "s3", URL: server.URL, Env: server.Env(),
			Open: func(ctx context.Context, url string) (objstore.Bucket, error) {
				return s3.Open(ctx, url, s3.Options{Credentials: server.Credentials()})
			},
		})
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	report, err := fleet.Run(ctx, cfg)
	if err != nil {
		return false, fmt.Errorf("seed %d, data and logs in %s: %w", cfg.Seed, cfg.Dir, err)
	}
	if err := report.Print(os.Stdout); err != nil {
		return false, fmt.Errorf("tell the outcome: %w", err)
	}
	if report.Failed() {
		fmt.Println("data and logs are in", cfg.Dir)
		return false, nil
	}
	if err := os.RemoveAll(cfg.Dir); err != nil {
		return false, fmt.Errorf("remove data: %w", err)
	}
	return true, nil
}
