// Command sink takes OTLP requests made by the load command until it is stopped, and prints what arrived.
//
// With -acked it compares that with what the load command had acknowledged, and fails if something is missing.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"ingest-agent/bench/load"
	"ingest-agent/bench/seqset"
	"ingest-agent/bench/sink"
)

// maxRanges bounds how many missing ranges are listed.
const maxRanges = 20

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "sink:", err)
		os.Exit(1)
	}
}

func run() error {
	var cfg sink.Config
	flag.StringVar(&cfg.HTTP, "http", "127.0.0.1:14318", "`host:port` of OTLP/HTTP")
	flag.StringVar(&cfg.GRPC, "grpc", "", "`host:port` of OTLP/gRPC; empty: none")
	control := flag.String("control", "", "`host:port` for commands: GET /stats, POST /up, /down, /behavior?status=503&…")
	acked := flag.String("acked", "", "`file` of acknowledged numbers to compare with at the end")
	every := flag.Duration("every", 5*time.Second, "print counts this often; 0: only at the end")
	flag.Parse()

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	s, err := sink.New(cfg)
	if err != nil {
		return err
	}
	if err := s.Up(); err != nil {
		return err
	}
	stopControl, err := serveControl(*control, s)
	if err != nil {
		return errors.Join(err, s.Down(true))
	}
	fmt.Println("listening on", s.URL(), s.GRPCAddr())
	report(ctx, s, *every)
	if err := errors.Join(stopControl(), s.Down(false)); err != nil {
		return err
	}
	fmt.Print(line(s.Stats()))
	if *acked != "" {
		return compare(*acked, s)
	}
	return nil
}

func serveControl(address string, s *sink.Sink) (stop func() error, err error) {
	if address == "" {
		return func() error { return nil }, nil
	}
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return nil, err
	}
	server := &http.Server{Handler: s.Control(), ReadHeaderTimeout: time.Second}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(listener) }()
	return func() error {
		err := server.Close()
		if serveErr := <-ended; !errors.Is(serveErr, http.ErrServerClosed) {
			err = errors.Join(err, serveErr)
		}
		return err
	}, nil
}

// report prints counts until ctx ends.
func report(ctx context.Context, s *sink.Sink, every time.Duration) {
	if every <= 0 {
		<-ctx.Done()
		return
	}
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			fmt.Print(line(s.Stats()))
		}
	}
}

func line(s sink.Stats) string {
	var text strings.Builder
	fmt.Fprintf(&text, "records %d, distinct %d, duplicates %d, in requests %d; refused %d, bad %d\n",
		s.Records, s.Distinct, s.Duplicates, s.Requests, s.Refused, s.Bad)
	for _, note := range s.Notes {
		text.WriteString("  bad: " + note + "\n")
	}
	return text.String()
}

func compare(path string, s *sink.Sink) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	var acked seqset.Set
	if err := errors.Join(load.ReadAckLog(file, &acked), file.Close()); err != nil {
		return err
	}
	missing, ranges := acked.Minus(s.Received(), maxRanges)
	fmt.Printf("acknowledged %d, missing %d\n", acked.Count(), missing)
	if missing > 0 {
		return fmt.Errorf("%d acknowledged records did not arrive, first %v", missing, ranges)
	}
	return nil
}
