package agent

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/oklog/ulid/v2"
	"go.uber.org/zap"

	"ingest-agent/agent/config"
	"ingest-agent/recovery"
	"ingest-agent/segment"
	"ingest-agent/segment/vfs"
	"ingest-agent/shipper"
)

// shared is what the agent does with a bucket outside of its data directory: it ships there what it cannot deliver, and takes
// over what other nodes have left.
type shared struct {
	bucket   *bucket
	shipper  *shipper.Shipper
	recovery *recovery.Recovery // nil: recovery.enabled is false
	adopted  *adoptedLedger

	running sync.WaitGroup
	kill    context.CancelFunc // ends what runs at once
}

// ackTimeout bounds how long a request waits for the bucket (wal.ack: bucket); it is refused then, with a delay.
const ackTimeout = 15 * time.Second

// openShared opens the bucket and reads what earlier processes noted about it. It asks the bucket nothing.
func (a *Agent) openShared() (err error) {
	if a.cfg.BucketInsideDataDir() {
		if a.cfg.WAL.Ack == config.AckBucket { // the configuration's own check says so with file and line
			return errors.New("start: wal.ack: bucket needs a bucket outside of the data directory")
		}
		return a.openArchive(nil)
	}
	s := &shared{}
	if s.adopted, err = openAdopted(vfs.OS(), LayoutOf(a.cfg.DataDir).Adopted); err != nil {
		return err
	}
	if s.bucket, err = openBucket(&a.cfg, a.metrics.bucketRequest, a.log); err != nil {
		return err
	}
	a.shared = s
	if err := a.openArchive(s.bucket); err != nil {
		return err
	}
	s.shipper, err = shipper.New(shipper.Options{
		Bucket: s.bucket, Owner: a.owner, Node: a.cfg.Node, StaleAfter: a.cfg.Recovery.StaleAfter, After: a.cfg.Shipper.After,
		RetryMax: a.cfg.Shipper.RetryMaxInterval, FS: vfs.OS(), Note: LayoutOf(a.cfg.DataDir).Shipped, Log: a.log.Named("shipper"),
		Probe: s.bucket.Probe, Pressure: a.space.Pressure, Archived: a.archive.copied(),
	})
	if err != nil {
		return fmt.Errorf("open shipper: %w", err)
	}
	return nil
}

// settle gives the lanes to the shipper before anything is appended.
func (s *shared) settle(lanes []*segment.Lane) error {
	if s == nil {
		return nil
	}
	for _, l := range lanes {
		s.shipper.AddLane(l)
	}
	if err := s.shipper.Settle(); err != nil {
		return fmt.Errorf("note what was shipped: %w", err)
	}
	return nil
}

// startShared starts shipping and recovery, beside everything else.
func (a *Agent) startShared() {
	s := a.shared
	if s == nil {
		return
	}
	a.space.WhenRefused(s.shipper.Wake) // it spills
	ctx, cancel := context.WithCancel(context.Background())
	s.kill = cancel
	if a.cfg.Recovery.Enabled {
		s.recovery = recovery.New(a.recoveryOptions())
		s.running.Go(func() { s.recovery.Run(ctx) })
	}
	s.running.Go(func() { s.shipper.Run(ctx) })
}

// recoveryOptions are those of the recovery that runs in an agent.
func (a *Agent) recoveryOptions() recovery.Options {
	s := a.shared
	c := &a.cfg.Recovery
	return adopting{a.dests, a.dead, a.quarantine, s.adopted, a.log}.options(recovery.Options{
		Bucket: s.bucket, Holder: ulid.Make().String(), Node: a.cfg.Node, Probe: s.bucket.Probe,
		Own:          func(id string) bool { return s.shipper.Stats().Owner.String() == id },
		ScanInterval: c.ScanInterval, StaleAfter: c.StaleAfter, Retention: c.TombstoneRetention, Concurrency: c.Concurrency,
		Log: a.log.Named("recovery"), Archive: a.archive.copy(),
	})
}

// remote is what a lane reads spilled segments from, or nil.
func (s *shared) remote() segment.Remote {
	if s == nil {
		return nil
	}
	return s.shipper
}

func (s *shared) skipOf(id segment.LaneID) segment.Position {
	if s == nil {
		return segment.Position{}
	}
	return s.shipper.SkipOf(id)
}

func (s *shared) addLane(l *segment.Lane) {
	if s != nil {
		s.shipper.AddLane(l)
	}
}

// awaitHandedOver waits before the drain of a lane of which earlier processes may have shipped something: until that is handed
// over, or as long as boot_wait allows. It is false if ctx ended first.
func (s *shared) awaitHandedOver(ctx context.Context, id segment.LaneID, bootWait time.Duration, log *zap.Logger) bool {
	if s == nil || !slices.Contains(s.shipper.Held(), id) {
		return true
	}
	timer := time.NewTimer(bootWait)
	defer timer.Stop()
	select {
	case <-s.shipper.HandedOver():
	case <-timer.C:
		log.Warn("the bucket did not answer within recovery.boot_wait; what was shipped before the start may be delivered twice",
			zap.Stringer("lane", id))
	case <-ctx.Done():
		return false
	}
	return true
}

// await is the second half of wal.ack: bucket.
func (s *shared) await(ctx context.Context, id segment.LaneID, at segment.Position) error {
	wait, cancel := context.WithTimeout(ctx, ackTimeout)
	defer cancel()
	err := s.shipper.Wait(wait, id, at)
	if err == nil || ctx.Err() != nil {
		return err
	}
	return bucketRefusal(err)
}

// ready returns why a request could not be acknowledged by the bucket now, or nil.
func (s *shared) ready() error {
	if err := s.shipper.Ready(); err != nil {
		return bucketRefusal(err)
	}
	return nil
}

// bucketDelay is after when a client may try again that was refused for the bucket.
const bucketDelay = 5 * time.Second

func bucketRefusal(err error) error {
	return &segment.RefusedError{Reason: segment.RefusedBucket, After: bucketDelay, Err: err}
}

// stopClaims makes recovery give back what it has adopted. It is part of the first step of a stop.
func (s *shared) stopClaims(ctx context.Context) error {
	if s == nil || s.recovery == nil {
		return nil
	}
	return s.recovery.Stop(ctx)
}

// ship ships what is owed and retires, within ctx.
func (s *shared) ship(ctx context.Context) error {
	if s == nil || s.kill == nil { // not started
		return nil
	}
	return s.shipper.Stop(ctx)
}

// close ends what still runs, and closes the bucket.
func (s *shared) close() error {
	if s == nil {
		return nil
	}
	if s.kill != nil {
		s.kill()
	}
	s.running.Wait()
	if err := s.bucket.Close(); err != nil {
		return fmt.Errorf("close bucket: %w", err)
	}
	return nil
}
