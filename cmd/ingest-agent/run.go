package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"ingest-agent/agent"
	"ingest-agent/agent/config"
)

func newRun() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "run",
		Short: "Runs the agent until SIGTERM or SIGINT; a second signal skips the drain",
		RunE: func(cmd *cobra.Command, _ []string) error {
			// Signals count from the first moment: a stop in the middle of a start is a stop.
			signals := make(chan os.Signal, 2)
			signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
			defer signal.Stop(signals)
			c, err := loadConfig(cmd)
			if err != nil {
				return err
			}
			return runAgent(cmd.Context(), c, signals)
		},
	}
	addConfigFlags(cmd)
	return cmd
}

// runAgent runs an agent until a signal comes, ctx ends or a listener fails.
func runAgent(ctx context.Context, c config.Config, signals <-chan os.Signal) error {
	log, err := newLogger(c.Log)
	if err != nil {
		return err
	}
	defer func() { _ = log.Sync() }() // stderr may not support it
	a, err := agent.Start(agent.Options{Config: c, Log: log, Version: shortVersion()})
	if err != nil {
		return fmt.Errorf("start: %w", err)
	}
	var fatal error
	select {
	case s := <-signals:
		log.Info("signal", zap.Stringer("signal", s))
	case <-ctx.Done():
	case fatal = <-a.Fatal():
		log.Error("listener failed", zap.Error(fatal))
	}
	skip := make(chan struct{})
	stopped := make(chan struct{})
	go func() { // ends with the stop
		select {
		case <-signals:
			close(skip)
		case <-stopped:
		}
	}()
	err = a.Stop(skip)
	close(stopped)
	if err != nil {
		log.Error("stop was not clean; what is on disk is delivered by the next start", zap.Error(err))
	}
	return fatal
}

func newLogger(c config.Log) (*zap.Logger, error) {
	level, err := zapcore.ParseLevel(string(c.Level))
	if err != nil {
		return nil, fmt.Errorf("make logger: %w", err)
	}
	z := zap.NewProductionConfig()
	z.Level = zap.NewAtomicLevelAt(level)
	z.Sampling = nil // what is written often is limited where it is written
	z.DisableStacktrace = true
	z.DisableCaller = true
	z.EncoderConfig.EncodeTime = zapcore.RFC3339NanoTimeEncoder
	z.EncoderConfig.EncodeDuration = zapcore.StringDurationEncoder
	if c.Format == "console" {
		z.Encoding = "console"
		z.EncoderConfig.EncodeLevel = zapcore.CapitalLevelEncoder
	}
	log, err := z.Build()
	if err != nil {
		return nil, fmt.Errorf("make logger: %w", err)
	}
	return log, nil
}
