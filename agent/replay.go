package agent

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"ingest-agent/agent/config"
	"ingest-agent/agent/export"
	"ingest-agent/segment"
	"ingest-agent/segment/vfs"
)

// ReplayOptions say which dead letters are sent again.
type ReplayOptions struct {
	Config  config.Config
	Log     *zap.Logger
	Version string
	Only    []string // destinations; none: all that are configured
}

// ReplayReport says what a replay came to, in records.
type ReplayReport struct {
	Delivered, Rejected, Refused segment.Counts
	// Left is what is a dead letter now, of the destinations that were asked for, those refused again among it.
	Left segment.Counts
	// Damaged names files that cannot be read, and stay.
	Damaged []string
	// Unknown are destinations that have dead letters and are not configured.
	Unknown []string
}

// Replay sends the dead letters of a data directory again, each destination's through a drain of its own. It ends when each
// was delivered or refused again, or with ctx; a destination that does not answer is tried until then. It needs the data
// directory for itself. What was delivered is removed after the sink's success. Ages do not count: who replays wants them
// sent.
func Replay(ctx context.Context, o ReplayOptions) (r ReplayReport, err error) {
	lock, err := lockData(o.Config.DataDir)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, lock.Close()) }()
	dead, err := openDead(o.Config.DataDir, math.MaxInt64, nil) // nothing is deleted to make room for parts of what goes
	if err != nil {
		return r, err
	}
	dests, err := replayDestinations(&o, dead, &r)
	if err != nil {
		return r, err
	}
	type outcome struct {
		counts export.DeadReplayCounts
		err    error
	}
	outcomes := make(chan outcome, len(dests))
	for _, d := range dests {
		go func() {
			counts, err := replayTo(ctx, o.Log, dead, d)
			outcomes <- outcome{counts, errors.Join(err, d.close())}
		}()
	}
	for range dests {
		got := <-outcomes
		r.Delivered = r.Delivered.Add(got.counts.Delivered)
		r.Rejected = r.Rejected.Add(got.counts.Rejected)
		r.Refused = r.Refused.Add(got.counts.Refused)
		r.Damaged = append(r.Damaged, got.counts.Damaged...)
		err = errors.Join(err, got.err)
	}
	for _, c := range dead.Counts() {
		if len(o.Only) == 0 || slices.Contains(o.Only, c.Destination) {
			r.Left = r.Left.Add(c.Signal.Of(c.Records))
		}
	}
	return r, err
}

// replayDestinations opens the destinations that have dead letters and are asked for.
func replayDestinations(o *ReplayOptions, dead *export.DeadLetters, r *ReplayReport) (map[string]*destination, error) {
	for _, name := range o.Only {
		if _, ok := o.Config.Destinations[name]; !ok {
			return nil, fmt.Errorf("replay: destination %q is not configured; configured are %v", name,
				slices.Sorted(maps.Keys(o.Config.Destinations)))
		}
	}
	c := o.Config
	c.Destinations = map[string]config.Destination{}
	unknown := map[string]bool{}
	for _, n := range dead.Counts() {
		if len(o.Only) > 0 && !slices.Contains(o.Only, n.Destination) {
			continue
		}
		d, ok := o.Config.Destinations[n.Destination]
		if !ok {
			unknown[n.Destination] = true
			continue
		}
		// A dead letter may be a part of a frame, and does not say which: under the id of the whole frame, a receiver that
		// drops duplicates would drop it.
		d.FrameIDs = false
		c.Destinations[n.Destination] = d
	}
	r.Unknown = slices.Sorted(maps.Keys(unknown))
	return openDestinations(&c, o.Version, newAccess(prometheus.NewRegistry(), o.Log))
}

// replayTo sends the dead letters of one destination.
func replayTo(ctx context.Context, log *zap.Logger, dead *export.DeadLetters, d *destination) (export.DeadReplayCounts, error) {
	ctx, end := context.WithCancel(ctx)
	defer end()
	pass := dead.Replay(d.name, end)
	segment.DrainOptions{
		Source: pass, Cursor: pass, Dead: pass, Sink: d.current, Split: splitFrame,
		Log: log.With(zap.String("destination", d.name)),
		Limits: func() segment.Limits {
			l := d.limits()
			l.MaxAge = 0
			return l
		},
	}.Run(ctx)
	counts, err := pass.Counts()
	if err != nil {
		return counts, fmt.Errorf("replay to destination %s: %w", d.name, err)
	}
	return counts, nil
}

// openDead opens the dead letters of a data directory.
func openDead(dataDir string, maxBytes int64, onEvict func(export.DeadCount)) (*export.DeadLetters, error) {
	d, err := export.OpenDeadLetters(export.DeadLetterOptions{
		FS: vfs.OS(), Directory: LayoutOf(dataDir).Dead, MaxBytes: maxBytes, OnEvict: onEvict,
		Encode: func(f segment.Frame, cause string) ([]byte, error) {
			return segment.EncodeObject([]segment.Frame{f}, cause, time.Now())
		},
	})
	if err != nil {
		return nil, fmt.Errorf("open dead letters: %w", err)
	}
	return d, nil
}
