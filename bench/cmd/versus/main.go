//go:build unix

// Command versus runs the agent and the OpenTelemetry Collector in turns on the same load and prints what each delivered at
// which price, beside the goals, in Markdown. It exits with 1 if a record was lost or came twice.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"
	"syscall"
	"time"

	"ingest-agent/bench/versus"
	"ingest-agent/bench/wire"
)

func main() {
	ok, err := run()
	if err != nil {
		fmt.Fprintln(os.Stderr, "versus:", err)
	}
	if err != nil || !ok {
		os.Exit(1)
	}
}

// Parts of a run.
const (
	partLoad    = "load"    // many senders
	partAnswer  = "answer"  // one sender, against the bare disk
	partBacklog = "backlog" // the sink is down while a backlog is sent
	partAdopt   = "adopt"   // the same, and another agent delivers it from a bucket
	partStart   = "start"   // the same, and a kill -9 before the sink is up
)

// gcPercent is for the load and the sink: their garbage is not what is measured.
const gcPercent = 400

func run() (ok bool, err error) {
	cfg := versus.Config{Log: func(text string) { fmt.Fprintln(os.Stderr, time.Now().Format(time.TimeOnly), text) }}
	agent := flag.String("agent", "", "`path` of the agent")
	collector := flag.String("collector", "", "`path` of the Collector; empty: the agent alone")
	parts := flag.String("parts", "load,answer,backlog,adopt", "what to run; and start")
	flag.StringVar(&cfg.Dir, "dir", "", "`directory` on the disk to measure; empty: the system's for temporary files")
	flag.StringVar(&cfg.Transport, "transport", versus.GRPC, "grpc or http, in and out")
	flag.StringVar(&cfg.Compression, "compression", wire.None, "none, gzip or zstd, in and out")
	flag.IntVar(&cfg.Senders, "senders", 64, "clients of the load")
	flag.IntVar(&cfg.Records, "records", 100, "records in a request")
	flag.DurationVar(&cfg.Length, "for", 10*time.Second, "how long a round sends")
	flag.IntVar(&cfg.Rounds, "rounds", 5, "rounds of each subject")
	backlog := flag.Int64("backlog", 2048, "`MiB` of the backlog")
	flag.Uint64Var(&cfg.Seed, "seed", 1, "of the content")
	commit := flag.String("commit", "", "what is measured, for the heading")
	flag.Parse()
	for _, path := range []*string{agent, collector} {
		if *path != "" {
			if *path, err = filepath.Abs(*path); err != nil {
				return false, fmt.Errorf("find program: %w", err)
			}
		}
	}
	if *agent == "" {
		return false, errors.New("-agent is missing: the path of the agent")
	}
	subjects := []versus.Subject{versus.Agent(*agent)}
	if *collector != "" {
		subjects = append(subjects, versus.Collector(*collector))
	}
	debug.SetGCPercent(gcPercent)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	heading(*commit)
	r := runner{cfg: cfg, subjects: subjects, backlogMiB: *backlog}
	for name := range strings.SplitSeq(*parts, ",") {
		if err := r.part(ctx, name); err != nil {
			return false, err
		}
	}
	fmt.Println()
	if err := versus.Goals(os.Stdout, r.goals); err != nil {
		return false, err
	}
	return versus.Whole(r.rows), nil
}

type runner struct {
	cfg        versus.Config
	subjects   []versus.Subject // the agent first
	backlogMiB int64
	own        []versus.Row // of the part backlog
	rows       []versus.Row
	goals      []versus.Goal
}

// part runs one part and prints its table.
func (r *runner) part(ctx context.Context, name string) error {
	cfg, agent := r.cfg, r.subjects[0].Name
	how := fmt.Sprintf("%d records a request, OTLP over %s, compression %s", cfg.Records, cfg.Transport, cfg.Compression)
	var rows []versus.Row
	var err error
	switch name {
	case partLoad:
		fmt.Printf("\n%d senders, %s, %d rounds of %v:\n\n", cfg.Senders, how, cfg.Rounds, cfg.Length)
		rows, err = versus.Run(ctx, cfg, r.subjects...)
		if len(r.subjects) > 1 {
			r.goals = append(r.goals, versus.LoadGoals(rows, agent, r.subjects[1].Name)...)
		}
	case partAnswer:
		fmt.Printf("\n1 sender, %s, %d rounds of %v:\n\n", how, cfg.Rounds, cfg.Length)
		cfg.Senders = 1
		rows, err = answer(ctx, cfg, r.subjects)
		r.goals = append(r.goals, versus.AnswerGoals(rows, agent)...)
	case partBacklog, partAdopt, partStart:
		what := map[string]string{
			partBacklog: "before the sink is up", partAdopt: "to one that is stopped; another delivers it from a bucket in a directory",
			partStart: "to one that is killed and started again before the sink is up",
		}[name]
		mib := r.backlogMiB
		if name == partAdopt {
			mib /= 2 // the stop must have the time to ship it
		}
		fmt.Printf("\nA backlog of %d MiB, %d senders, %s, sent %s:\n\n", mib, cfg.Senders, how, what)
		cfg.Backlog, cfg.Rounds = mib<<20, 1
		cfg.Again = map[string]versus.Again{partAdopt: versus.Adopt, partStart: versus.Kill}[name]
		rows, err = versus.Run(ctx, cfg, r.subjects[0])
		switch name {
		case partBacklog:
			r.own = rows
			r.goals = append(r.goals, versus.BacklogGoals(rows, agent)...)
		case partAdopt:
			r.goals = append(r.goals, versus.AdoptGoals(rows, r.own, agent)...)
		case partStart:
			r.goals = append(r.goals, versus.StartGoals(rows, agent)...)
		}
	default:
		err = fmt.Errorf("-parts=%s: allowed are %s, %s, %s, %s, %s", name, partLoad, partAnswer, partBacklog, partAdopt, partStart)
	}
	r.rows = append(r.rows, rows...)
	return errors.Join(err, versus.Table(os.Stdout, rows))
}

// answer takes turns between the bare disk and the subjects.
func answer(ctx context.Context, cfg versus.Config, subjects []versus.Subject) (rows []versus.Row, err error) {
	rounds := cfg.Rounds
	cfg.Rounds = 1
	for range rounds {
		bare, err := versus.Bare(ctx, cfg)
		if err != nil {
			return rows, err
		}
		more, err := versus.Run(ctx, cfg, subjects...)
		rows = append(append(rows, bare), more...)
		if err != nil {
			return rows, err
		}
	}
	return rows, nil
}

// heading says what was measured, and where.
func heading(commit string) {
	fmt.Printf("- commit: %s\n- machine: %s, %d cores for Go, %s, %s %s\n- command: versus %s\n",
		commit, model(), runtime.GOMAXPROCS(0), runtime.Version(), runtime.GOOS, runtime.GOARCH, strings.Join(os.Args[1:], " "))
}

// model is the name of the processor, where the system tells it.
func model() string {
	text, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return "unknown processor"
	}
	for line := range strings.Lines(string(text)) {
		if name, value, found := strings.Cut(line, ":"); found && strings.TrimSpace(name) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return "unknown processor"
}
