package agent

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/oklog/ulid/v2"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"ingest-agent/agent/config"
	"ingest-agent/agent/export"
	"ingest-agent/objstore"
	"ingest-agent/objstore/stores"
	"ingest-agent/recovery"
	"ingest-agent/segment"
	"ingest-agent/segment/vfs"
)

// tellEvery is the time between two states of a recovery that somebody watches.
const tellEvery = 250 * time.Millisecond

// RecoverOptions say what a recovery from the command line works on.
type RecoverOptions struct {
	Config  config.Config
	Log     *zap.Logger
	Version string
	Owner   string // only this one; "": all
	// Looked is told how far a dry run is: registers there are, objects listed so far. nil: nobody is.
	Looked func(registers int, objects uint64)
	// Told is told four times a second how far Recover is, by one goroutine. nil: nobody is.
	Told func(recovery.Stats)
}

// DryRun says what Recover would do. It reads the bucket, and nothing is written, neither there nor here. Where no destination
// is configured, none is called unknown.
func DryRun(ctx context.Context, o RecoverOptions) (r *recovery.DryRunReport, err error) {
	b, err := stores.Open(ctx, o.Config.Bucket.URL, stores.Options{})
	if err != nil {
		return nil, err
	}
	defer closeInto(&err, "bucket", b.Close)
	options := recovery.DryRunOptions{
		Bucket: b, Owner: o.Owner, Looked: o.Looked,
		StaleAfter: o.Config.Recovery.StaleAfter, Retention: o.Config.Recovery.TombstoneRetention,
	}
	if o.Config.IsSet("destinations") {
		options.Known = o.knows
	}
	return recovery.DryRun(ctx, options)
}

// Recover makes one recovery pass: it adopts all owners that are claimable, delivers what they owe to the destinations of the
// configuration, and sweeps. What a destination refuses for good becomes a dead letter of the data directory, where the
// recovered records are booked too; the pass needs that directory for itself, and makes it where there is none. When ctx ends,
// what runs is given back with what it has reached.
func Recover(ctx context.Context, o RecoverOptions) (r recovery.Report, err error) {
	c := &o.Config
	if err := vfs.MkdirAll(vfs.OS(), c.DataDir, dirPerm); err != nil {
		return r, fmt.Errorf("create data directory: %w", err)
	}
	lock, err := lockData(c.DataDir)
	if err != nil {
		return r, err
	}
	defer closeInto(&err, "lock of data directory", lock.Close)
	dead, err := openDead(c.DataDir, int64(c.DeadLetter.MaxBytes), func(n export.DeadCount) {
		o.Log.Warn("dead letters deleted to make room", zap.String("destination", n.Destination), zap.Uint64("records", n.Records))
	})
	if err != nil {
		return r, err
	}
	adopted, err := openAdopted(vfs.OS(), LayoutOf(c.DataDir).Adopted)
	if err != nil {
		return r, err
	}
	b, err := openBucket(c, func(objstore.Op, string, time.Duration, int64) {}, o.Log)
	if err != nil {
		return r, err
	}
	defer closeInto(&err, "bucket", b.Close)
	dests, err := openDestinations(c, o.Version, newAccess(prometheus.NewRegistry(), o.Log))
	if err != nil {
		return r, err
	}
	defer func() {
		for _, d := range dests {
			err = errors.Join(err, d.close())
		}
	}()
	helpers := adopting{
		dests: dests, dead: dead, ledger: adopted, log: o.Log,
		quarantine: segment.NewQuarantine(vfs.OS(), LayoutOf(c.DataDir).Quarantine, segment.DefaultQuarantineBytes),
	}
	pass := recovery.New(helpers.options(recovery.Options{
		Bucket: b, Holder: ulid.Make().String(), Node: c.Node, Only: o.Owner, Probe: b.Probe, Log: o.Log,
		ScanInterval: c.Recovery.ScanInterval, StaleAfter: c.Recovery.StaleAfter, Retention: c.Recovery.TombstoneRetention,
		Concurrency: c.Recovery.Concurrency, Archive: copying(c, b, o.Log),
	}))
	defer o.tell(pass)()
	return pass.Pass(ctx)
}

func (o *RecoverOptions) knows(destination string) bool {
	_, found := o.Config.Destinations[destination]
	return found
}

// tell tells how far a pass is until it is stopped.
func (o *RecoverOptions) tell(pass *recovery.Recovery) (stop func()) {
	if o.Told == nil {
		return func() {}
	}
	ended, joined := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(joined)
		tick := time.NewTicker(tellEvery)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				o.Told(pass.Stats())
			case <-ended:
				return
			}
		}
	}()
	return func() { close(ended); <-joined }
}

// closeInto closes what a function has opened, and adds the error to that of the function.
func closeInto(err *error, what string, closeIt func() error) {
	if cerr := closeIt(); cerr != nil {
		*err = errors.Join(*err, fmt.Errorf("close %s: %w", what, cerr))
	}
}
