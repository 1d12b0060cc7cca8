package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"ingest-agent/agent"
	"ingest-agent/segment"
)

func newDrop() *cobra.Command {
	var laneName string
	var olderThan time.Duration
	var yes bool
	cmd := &cobra.Command{
		Use:   "drop --lane LANE --older-than DURATION",
		Short: "Drops the oldest part of a lane's backlog on purpose, counted as lost",
		Long: "Drops the backlog of one lane of a stopped agent's data directory from its oldest request up to the first one that\n" +
			"was received less than --older-than ago; 0s drops all of it. Also for lanes whose destination is not configured any\n" +
			"more. Shows what would go and asks, or wants --yes. What was dropped counts as records_lost_total{cause=\"dropped\"}.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			lane, err := dropLane(cmd, laneName, olderThan)
			if err != nil {
				return usageError(err)
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
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGTERM)
			defer stop()
			out := cmd.OutOrStdout()
			dropped, err := agent.Drop(ctx, agent.DropOptions{
				Config: c, Log: log, Lane: lane, OlderThan: olderThan,
				Confirm: func(d *segment.Drop) error {
					if yes {
						return nil
					}
					return confirmDrop(cmd.InOrStdin(), out, lane, d)
				},
			})
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(out, "lane %s: dropped %s\n", lane, describeDrop(dropped))
			return err
		},
	}
	addConfigFlags(cmd)
	cmd.Flags().StringVar(&laneName, "lane", "", "the `LANE`, such as default.0 or default.0.p1; ingest-agent inspect lists them")
	cmd.Flags().DurationVar(&olderThan, "older-than", 0, "`DURATION` since a request was received, such as 24h")
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask")
	return cmd
}

// dropLane checks the flags that have no default.
func dropLane(cmd *cobra.Command, name string, olderThan time.Duration) (segment.LaneID, error) {
	for _, f := range []string{"lane", "older-than"} {
		if !cmd.Flags().Changed(f) {
			return segment.LaneID{}, fmt.Errorf("drop: --%s is missing; see %s --help", f, cmd.CommandPath())
		}
	}
	if olderThan < 0 {
		return segment.LaneID{}, fmt.Errorf("drop: --older-than %v: want 0s or more", olderThan)
	}
	lane, err := segment.ParseLaneID(name)
	if err != nil {
		return lane, fmt.Errorf("drop: --lane: %w", err)
	}
	return lane, nil
}

// confirmDrop shows what would go, and asks if there is somebody to ask.
func confirmDrop(in io.Reader, out io.Writer, lane segment.LaneID, d *segment.Drop) error {
	if _, err := fmt.Fprintf(out, "lane %s: would drop %s\n", lane, describeDrop(d)); err != nil {
		return err
	}
	if file, ok := in.(*os.File); ok {
		if info, err := file.Stat(); err != nil || info.Mode()&os.ModeCharDevice == 0 {
			return usageError(errors.New("drop: nothing was dropped: no terminal to ask on; add --yes"))
		}
	}
	if _, err := fmt.Fprint(out, "type yes to drop it: "); err != nil {
		return err
	}
	answer, err := bufio.NewReader(in).ReadString('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("drop: read the answer: %w", err)
	}
	if strings.TrimSpace(answer) != "yes" {
		return errors.New("drop: nothing was dropped: the answer was not yes")
	}
	return nil
}

func describeDrop(d *segment.Drop) string {
	return fmt.Sprintf("%d requests; records: %s; bytes: %s", d.Frames, bySignal(d.Records), bySignal(d.Bytes))
}
