// Command load sends OTLP requests to an agent until it is stopped or done, and prints what came of them.
//
// With -acked it leaves a file of the sequence numbers that were acknowledged, for the sink command to compare with.
package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"ingest-agent/bench/load"
	"ingest-agent/segment"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "load:", err)
		os.Exit(1)
	}
}

func run() (err error) {
	var cfg load.Config
	flag.StringVar(&cfg.GRPC, "grpc", "", "`host:port` of OTLP/gRPC")
	flag.StringVar(&cfg.HTTP, "http", "", "`host:port` of OTLP/HTTP")
	flag.IntVar(&cfg.Senders, "senders", load.DefaultSenders, "senders for each endpoint")
	flag.IntVar(&cfg.Records, "records", load.DefaultRecords, "records in a request")
	flag.StringVar(&cfg.Compression, "compression", "none", "none, gzip or zstd")
	flag.Float64Var(&cfg.Rate, "rate", 0, "requests a `second` over all senders; 0: as fast as answers come")
	flag.Uint64Var(&cfg.Requests, "requests", 0, "end after so many requests; 0: never")
	flag.DurationVar(&cfg.Timeout, "timeout", load.DefaultTimeout, "of a request")
	flag.BoolVar(&cfg.Retry, "retry", false, "send a request again until it is acknowledged")
	flag.Uint64Var(&cfg.Seed, "seed", 1, "of the content")
	signalName := flag.String("signal", "", "logs, traces or metrics; empty: all in turn")
	length := flag.Duration("for", 10*time.Second, "end after this time; 0: never")
	ackedFile := flag.String("acked", "", "`file` to write the acknowledged numbers to")
	first := flag.Uint64("first", 1, "first sequence `number`")
	flag.Parse()

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if *length > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, *length)
		defer cancel()
	}
	if *signalName != "" {
		one, err := segment.ParseSignal(*signalName)
		if err != nil {
			return err
		}
		cfg.Signals = []segment.Signal{one}
	}
	cfg.Sequence = &load.Sequence{}
	cfg.Sequence.Skip(*first - 1)
	if *ackedFile != "" {
		file, createErr := os.Create(*ackedFile)
		if createErr != nil {
			return createErr
		}
		buffered := bufio.NewWriter(file)
		cfg.AckLog = buffered
		defer func() { err = errors.Join(err, buffered.Flush(), file.Close()) }()
	}
	l, err := load.New(cfg)
	if err != nil {
		return err
	}
	result, err := l.Run(ctx)
	fmt.Print(result.String())
	return err
}
