package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"ingest-agent/agent"
	"ingest-agent/segment"
)

func newReplay() *cobra.Command {
	var dead bool
	var only []string
	cmd := &cobra.Command{
		Use:   "replay --dead",
		Short: "Sends dead letters again, after which they are gone",
		Long: "Sends the dead letters of a stopped agent's data directory again, to the destinations that they were for. One that\n" +
			"is delivered is removed; one that is refused again stays. A destination that does not answer is tried until a signal\n" +
			"comes. Exit code 0 only if no dead letter is left of the destinations that were asked for.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !dead {
				return usageError(errors.New("replay: say what to replay: --dead is all there is"))
			}
			c, err := loadConfig(cmd)
			if err != nil {
				return err
			}
			log, err := newLogger(c.Log)
			if err != nil {
				return err
			}
			defer func() { _ = log.Sync() }() // stderr may not support it
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGTERM, syscall.SIGINT)
			defer stop()
			report, err := agent.Replay(ctx, agent.ReplayOptions{Config: c, Log: log, Version: shortVersion(), Only: only})
			if err != nil {
				return errors.Join(err, writeReplay(cmd.OutOrStdout(), &report))
			}
			if err := writeReplay(cmd.OutOrStdout(), &report); err != nil {
				return err
			}
			return replayLeft(ctx, &report)
		},
	}
	addConfigFlags(cmd)
	cmd.Flags().BoolVar(&dead, "dead", false, "replay the dead letters")
	cmd.Flags().StringArrayVar(&only, "only", nil, "`NAME` of a destination; only its dead letters; may be repeated; none: all")
	return cmd
}

func writeReplay(out io.Writer, r *agent.ReplayReport) error {
	_, err := fmt.Fprintf(out, "records: delivered %s; rejected %s; refused again %s; left %s\n",
		bySignal(r.Delivered), bySignal(r.Rejected), bySignal(r.Refused), bySignal(r.Left))
	return err
}

// replayLeft says why something is left, if it is.
func replayLeft(ctx context.Context, r *agent.ReplayReport) error {
	var why []string
	if n := r.Refused.Sum(); n > 0 {
		why = append(why, fmt.Sprintf("%d records were refused again (the log says why)", n))
	}
	if len(r.Damaged) > 0 {
		why = append(why, "files that cannot be read: "+strings.Join(r.Damaged, ", "))
	}
	if len(r.Unknown) > 0 {
		why = append(why, "destinations that are not configured: "+strings.Join(r.Unknown, ", "))
	}
	if ctx.Err() != nil {
		why = append(why, "a signal came; run it again to go on")
	}
	if r.Left == (segment.Counts{}) && len(r.Damaged) == 0 {
		return nil
	}
	return fmt.Errorf("replay: %d records are left: %s", r.Left.Sum(), strings.Join(why, "; "))
}

// bySignal writes counts for people: the sum, and what it is made of.
func bySignal(n segment.Counts) string {
	if n == (segment.Counts{}) {
		return "0"
	}
	var parts []string
	for i, s := range segment.Signals {
		if n[i] > 0 {
			parts = append(parts, fmt.Sprintf("%s %d", s, n[i]))
		}
	}
	return fmt.Sprintf("%d (%s)", n.Sum(), strings.Join(parts, ", "))
}
