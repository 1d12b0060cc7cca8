// Package agent is the node agent: it wires receivers, lanes, drains and sinks together, starts and stops them in order, and
// serves the admin endpoint.
//
// Guarantees: a start checks everything that can be checked before it opens a data file; its time and memory do not depend
// on the backlog. A stop ends within shutdown.timeout, in order: not ready, listeners closed and requests in hand answered,
// lanes drained while time allows, sealed, the rest shipped to the bucket, cursors saved. Every goroutine is joined. What is left
// is named in one log line, and delivered by another node or by the next start.
//
// Assumes that one process uses a data directory at a time, which its lock file enforces. Commit points are those of package
// segment; this package persists nothing of its own.
package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/oklog/ulid/v2"
	"go.uber.org/zap"

	"ingest-agent/agent/config"
	"ingest-agent/agent/export"
	"ingest-agent/agent/otlpwire"
	"ingest-agent/agent/receiver"
	"ingest-agent/segment"
	"ingest-agent/segment/vfs"
)

// Options are what an agent is built from.
type Options struct {
	Config  config.Config
	Log     *zap.Logger
	Version string
}

// Layout is where things are in a data directory.
type Layout struct {
	Lock, Lanes, Quarantine, Dead string
	Shipped                       string // the shipper's note
	Adopted                       string // the ledger of adopted records
	Probe                         string // what a probe of the bucket has found
}

// LayoutOf returns the layout of a data directory.
func LayoutOf(dataDir string) Layout {
	return Layout{
		Lock:       filepath.Join(dataDir, "lock"),
		Lanes:      filepath.Join(dataDir, "lanes"),
		Quarantine: filepath.Join(dataDir, "quarantine"),
		Dead:       filepath.Join(dataDir, "dead"),
		Shipped:    filepath.Join(dataDir, "shipped.json"),
		Adopted:    filepath.Join(dataDir, "adopted.json"),
		Probe:      filepath.Join(dataDir, "bucket-probe.json"),
	}
}

// Agent is a running agent.
type Agent struct {
	o     Options
	cfg   config.Config
	log   *zap.Logger
	owner segment.OwnerID
	start time.Time

	lock       io.Closer
	space      *segment.Space
	quarantine *segment.Quarantine
	dead       *export.DeadLetters
	dests      map[string]*destination
	lanes      *laneSet
	shared     *shared    // nil: the bucket is inside the data directory
	archive    *archiving // nil: archive.enabled is false
	receiver   *receiver.Receiver
	admin      *admin
	metrics    *metrics

	addrs    Addrs
	stopping atomic.Bool
	drains   sync.WaitGroup
	endDrain context.CancelFunc
}

// Addrs are the addresses that the agent listens on.
type Addrs struct {
	GRPC, HTTP, Admin string
}

// Start starts an agent. On an error everything that was opened is closed again.
func Start(o Options) (*Agent, error) {
	a := &Agent{o: o, cfg: o.Config, log: o.Log, owner: segment.OwnerID(ulid.Make()), start: time.Now()}
	if err := a.open(); err != nil {
		return nil, errors.Join(err, a.release(context.Background()))
	}
	a.sayStarted()
	return a, nil
}

// open opens all parts, in order.
func (a *Agent) open() (err error) {
	if err := a.openData(); err != nil {
		return err
	}
	a.metrics = newMetrics(a)
	access := newAccess(a.metrics.registry, a.log)
	if a.dests, err = openDestinations(&a.cfg, a.o.Version, access); err != nil {
		return err
	}
	if err := a.openShared(); err != nil {
		return err
	}
	if a.lanes, err = openLanes(a); err != nil {
		return err
	}
	if err := a.shared.settle(a.lanes.lanes()); err != nil {
		return err
	}
	a.archive.add(a.lanes.lanes()...)
	a.startDrains()
	a.startShared()
	a.startArchive()
	return a.listen(access)
}

// openData locks the data directory and opens what lies beside the lanes.
func (a *Agent) openData() (err error) {
	dir, at := a.cfg.DataDir, LayoutOf(a.cfg.DataDir)
	if err := vfs.MkdirAll(vfs.OS(), dir, dirPerm); err != nil {
		return fmt.Errorf("create data directory: %w", err)
	}
	if a.lock, err = lockData(dir); err != nil {
		return err
	}
	a.space = segment.NewSpace(spaceOptions(&a.cfg))
	a.quarantine = segment.NewQuarantine(vfs.OS(), at.Quarantine, segment.DefaultQuarantineBytes)
	a.dead, err = openDead(dir, int64(a.cfg.DeadLetter.MaxBytes), func(n export.DeadCount) {
		a.log.Warn("dead letters deleted to make room", zap.String("destination", n.Destination), zap.Uint64("records", n.Records))
	})
	return err
}

const dirPerm = 0o750

const (
	// moveReservePart and mostMoveReserveBytes bound the part of wal.max_bytes that is kept for moves to parked lanes.
	moveReservePart      = 16
	mostMoveReserveBytes = 32 << 20
)

// moveReserveBytes is at least two segments: space comes back by segments, so that with less a full disk would never give
// back any.
func moveReserveBytes(c *config.Config) int64 {
	segments := 2 * laneSettings(c, len(c.Destinations)*c.WAL.Shards).SegmentSizeBytes
	return max(min(int64(c.WAL.MaxBytes)/moveReservePart, mostMoveReserveBytes), segments)
}

func spaceOptions(c *config.Config) segment.SpaceOptions {
	shares := map[string]float64{}
	for name, t := range c.Tenants {
		if t.Share > 0 {
			shares[name] = t.Share
		}
	}
	return segment.SpaceOptions{
		MaxBytes:         int64(c.WAL.MaxBytes),
		MinFreeBytes:     int64(c.WAL.MinFreeBytes),
		TenantShare:      c.WAL.TenantShare,
		TenantShares:     shares,
		FullWait:         c.WAL.FullWait,
		MoveReserveBytes: moveReserveBytes(c),
		Free:             func() (uint64, error) { return vfs.FreeBytes(c.DataDir) },
	}
}

// startDrains starts one drain for each lane that has a destination.
func (a *Agent) startDrains() {
	ctx, cancel := context.WithCancel(context.Background())
	a.endDrain = cancel
	lanes := a.lanes.lanes()
	parkings := map[laneKey]*parking{}
	for _, l := range lanes {
		k := keyOf(l.ID())
		if parkings[k] == nil {
			parkings[k] = a.newParking(ctx, k)
		}
		if n := l.ID().Parked; n > 0 {
			parkings[k].found(n, l)
		}
	}
	for _, l := range lanes {
		a.startDrain(ctx, l, parkings[keyOf(l.ID())])
	}
}

// newParking makes the parking of one shard of a destination. The drains of the lanes that it opens are started by a drain
// that runs, so that nobody waits for them before.
func (a *Agent) newParking(ctx context.Context, k laneKey) *parking {
	dest := a.dests[k.destination]
	p := newParking(&dest.health, func() bool { return dest.cfg.Load().Ordered }, nil)
	p.open = func(n int) (*segment.Lane, error) {
		l, err := a.lanes.openParked(a, segment.LaneID{Destination: k.destination, Shard: k.shard, Parked: n})
		if err == nil {
			a.startDrain(ctx, l, p)
		}
		return l, err
	}
	return p
}

func (a *Agent) startDrain(ctx context.Context, l *segment.Lane, p *parking) {
	id := l.ID()
	dest := a.dests[id.Destination]
	o := segment.DrainOptions{
		Source: l.Source(), Cursor: l, Sink: dest.current, Limits: dest.limits, Dead: a.dead,
		Log: a.log.With(zap.Stringer("lane", id)), Split: splitFrame,
		Park: p, Parked: id.Parked > 0,
	}
	if id.Parked > 0 {
		o.Limits = dest.parkedLimits
	}
	a.drains.Go(func() {
		if a.shared.awaitHandedOver(ctx, id, a.cfg.Recovery.BootWait, a.log) {
			o.Run(ctx)
		}
		if err := o.Source.Close(); err != nil {
			a.log.Warn("source not closed", zap.Stringer("lane", id), zap.Error(err))
		}
	})
}

func splitFrame(f *segment.Frame, n int) (head, tail []byte, err error) {
	return otlpwire.Split(f.Signal, f.Body, n)
}

// listen opens the admin endpoint and the receivers.
func (a *Agent) listen(access *access) (err error) {
	if a.admin, err = startAdmin(a, access); err != nil {
		return err
	}
	options := receiver.Options{
		GRPCEndpoint: a.cfg.Receivers.GRPC.Endpoint,
		HTTPEndpoint: a.cfg.Receivers.HTTP.Endpoint,
		Settings: receiver.Settings{
			GRPCMaxRequestSizeBytes: int(a.cfg.Receivers.GRPC.MaxRequestSizeBytes),
			HTTPMaxRequestSizeBytes: int(a.cfg.Receivers.HTTP.MaxRequestSizeBytes),
			ReadTimeout:             a.cfg.Receivers.HTTP.ReadTimeout,
		},
		Store:    a.lanes,
		Observer: a.metrics,
		Ready:    a.ready,
		Log:      a.log,
	}
	if err := access.receive(&a.cfg, &options); err != nil {
		return err
	}
	if a.receiver, err = receiver.New(options); err != nil {
		return err
	}
	addrs, err := a.receiver.Start()
	if err != nil {
		a.receiver = nil
		return err
	}
	if addrs.GRPC != nil {
		a.addrs.GRPC = addrs.GRPC.String()
	}
	if addrs.HTTP != nil {
		a.addrs.HTTP = addrs.HTTP.String()
	}
	a.addrs.Admin = a.admin.addr
	a.admin.serving.Store(true)
	return nil
}

// Addrs returns the addresses that the agent listens on.
func (a *Agent) Addrs() Addrs { return a.addrs }

func (a *Agent) sayStarted() {
	for _, key := range config.Unbuilt(a.cfg) {
		a.log.Warn("configuration key has no effect yet", zap.String("key", key))
	}
	pending := a.lanes.pending()
	a.log.Info("started", zap.String("version", a.o.Version), zap.Stringer("owner", a.owner), zap.String("grpc", a.addrs.GRPC),
		zap.String("http", a.addrs.HTTP), zap.String("admin", a.addrs.Admin), zap.String("data_dir", a.cfg.DataDir),
		zap.Uint64("pending_records", pending.Records.Sum()), zap.Duration("took", time.Since(a.start)))
}

// ready returns nil if a request would now be made durable, else why not.
func (a *Agent) ready() error {
	if a.stopping.Load() {
		return &segment.RefusedError{Reason: segment.RefusedStopping}
	}
	if err := a.lanes.check(); err != nil {
		return err
	}
	if a.cfg.WAL.Ack == config.AckBucket {
		return a.shared.ready()
	}
	return nil
}

// Fatal yields an error when a listener fails. The agent should then be stopped.
func (a *Agent) Fatal() <-chan error { return a.receiver.Fatal() }
