package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"ingest-agent/agent"
	"ingest-agent/agent/config"
	"ingest-agent/recovery"
	"ingest-agent/segment"
)

// recoverFlags are those of recover, beside the configuration's.
type recoverFlags struct {
	dryRun, asJSON bool
	owner          string
}

func newRecover() *cobra.Command {
	var flags recoverFlags
	cmd := &cobra.Command{
		Use:   "recover --bucket URL [--dry-run]",
		Short: "Delivers once what nodes that are gone have left in the bucket",
		Long: "Takes over all owners in the bucket that are claimable, delivers what they left, and deletes it. Destinations come from\n" +
			"--config or --destination, by the names under which the data was taken. An owner that may be alive is left alone.\n" +
			"With --dry-run: shows every owner, what is owed, what is damaged or nobody's, and what a run would do in which order.\n" +
			"It needs to read only, writes nothing anywhere, and ends with exit code 0.\n" +
			"Exit code 3: something is left that is claimable; stderr says what and why.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := loadRecover(cmd, &flags)
			if err != nil {
				return err
			}
			if flags.dryRun {
				return dryRun(cmd, &flags, c)
			}
			return recoverOnce(cmd, &flags, c)
		},
	}
	addConfigFlags(cmd)
	cmd.Flags().BoolVar(&flags.dryRun, "dry-run", false, "only show what a run would do")
	cmd.Flags().BoolVar(&flags.asJSON, "json", false, "write JSON")
	cmd.Flags().StringVar(&flags.owner, "owner", "", "only this owner's `ID`")
	return cmd
}

// unusedDestination stands for the destination that every configuration of an agent has, where only others are given.
const unusedDestination = config.DefaultDestination + "=otlp-http:http://unused.invalid"

// loadRecover reads flags and configuration. What has a default in an agent has to be said here: the bucket, and, for what
// is sent, the destinations. None of them need be the default one: nothing comes in.
func loadRecover(cmd *cobra.Command, f *recoverFlags) (config.Config, error) {
	if f.owner != "" {
		if _, err := segment.ParseOwnerID(f.owner); err != nil {
			return config.Config{}, usageError(fmt.Errorf("recover: --owner: %w", err))
		}
	}
	unused := false
	given, ok := cmd.Flags().Lookup("destination").Value.(pflag.SliceValue)
	if file, err := cmd.Flags().GetString(flagConfig); ok && err == nil && file == "" && os.Getenv(envName(flagConfig)) == "" {
		if unused = len(given.GetSlice()) > 0 && !namesDefault(given.GetSlice()); unused {
			if err := given.Append(unusedDestination); err != nil {
				return config.Config{}, fmt.Errorf("recover: %w", err)
			}
		}
	}
	c, err := loadConfig(cmd)
	switch {
	case err != nil:
		return c, err
	case !c.IsSet("bucket.url"):
		return c, usageError(errors.New("recover: no bucket; give --bucket URL, or --config FILE with bucket.url"))
	case !c.IsSet("destinations") && !f.dryRun:
		return c, usageError(errors.New("recover: no destination; give --destination [NAME=]otlp-http:URL, or --config FILE with destinations"))
	}
	if unused {
		delete(c.Destinations, config.DefaultDestination)
	}
	return c, nil
}

// namesDefault says whether one of the destinations is the default one, or cannot be read, which is told elsewhere.
func namesDefault(given []string) bool {
	for _, text := range given {
		if name, _, err := config.ParseDestination(text); err != nil || name == config.DefaultDestination {
			return true
		}
	}
	return false
}

func dryRun(cmd *cobra.Command, f *recoverFlags, c config.Config) error {
	ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	p := newProgress(cmd.ErrOrStderr())
	r, err := agent.DryRun(ctx, agent.RecoverOptions{
		Config: c, Owner: f.owner,
		Looked: func(registers int, objects uint64) { p.show("%d registers, %d objects listed", registers, objects) },
	})
	p.clear()
	if err != nil {
		return fmt.Errorf("%s: %w", c.Bucket.URL, err)
	}
	if f.owner != "" && len(r.Owners)+len(r.Orphans) == 0 {
		return fmt.Errorf("recover: no owner %s in %s; without --owner, --dry-run shows all", f.owner, c.Bucket.URL)
	}
	if f.asJSON {
		return writeJSON(cmd.OutOrStdout(), r)
	}
	return writeDryRun(cmd.OutOrStdout(), r)
}

// recoverOnce makes one pass. Its error names what is left.
func recoverOnce(cmd *cobra.Command, f *recoverFlags, c config.Config) error {
	log, err := newLogger(c.Log)
	if err != nil {
		return err
	}
	defer func() { _ = log.Sync() }() // stderr may not support it
	ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	p := newProgress(cmd.ErrOrStderr())
	r, err := agent.Recover(ctx, agent.RecoverOptions{
		Config: c, Log: log, Version: shortVersion(), Owner: f.owner,
		Told: func(s recovery.Stats) {
			p.show("%d owners, %d claimable, %d being adopted, %d drained; %d records",
				s.Owners, s.Claimable, len(s.Adopting), s.Adoptions[recovery.Drained], s.Ledger.Out().Sum())
		},
	})
	p.clear()
	stopped := err != nil && ctx.Err() != nil
	if err != nil && !stopped {
		return errors.Join(fmt.Errorf("recover from %s: %w", c.Bucket.URL, err), writeRecovered(cmd.OutOrStdout(), f.asJSON, &r))
	}
	if err := writeRecovered(cmd.OutOrStdout(), f.asJSON, &r); err != nil {
		return err
	}
	if stopped {
		return withCode(exitLeft, errors.New("recover: a signal came; what was not finished is given back, and claimable; run it again to go on"))
	}
	if f.owner != "" && r.Owners == 0 {
		return fmt.Errorf("recover: no owner %s in %s", f.owner, c.Bucket.URL)
	}
	return withCode(exitLeft, recoverLeft(&r))
}

// progressEvery is the least time between two states of a progress line.
const progressEvery = 200 * time.Millisecond

// progress is a line on a terminal that is written again and again; elsewhere nothing.
type progress struct {
	out   io.Writer // nil: no terminal
	last  time.Time
	shown bool
}

func newProgress(out io.Writer) *progress {
	file, ok := out.(*os.File)
	if !ok {
		return &progress{}
	}
	if info, err := file.Stat(); err != nil || info.Mode()&os.ModeCharDevice == 0 {
		return &progress{}
	}
	return &progress{out: out, last: time.Now()}
}

func (p *progress) show(format string, args ...any) {
	if p.out == nil || time.Since(p.last) < progressEvery {
		return
	}
	p.last, p.shown = time.Now(), true
	fmt.Fprintf(p.out, "\r"+format+"\x1b[K", args...)
}

func (p *progress) clear() {
	if p.shown {
		fmt.Fprint(p.out, "\r\x1b[K")
	}
}
