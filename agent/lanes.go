package agent

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"slices"
	"sort"
	"sync"
	"time"

	"go.uber.org/zap"

	"ingest-agent/agent/config"
	"ingest-agent/agent/receiver"
	"ingest-agent/segment"
	"ingest-agent/segment/vfs"
	"ingest-agent/shipper/archive"
)

// laneSet holds the lanes of the data directory and says which lane a request belongs to.
type laneSet struct {
	mu       sync.Mutex
	all      []*segment.Lane // that have a destination, also those of earlier settings
	stopping bool            // no lane is opened any more

	moves  map[laneKey]moveBalance    // as they were found
	taking map[string][]*segment.Lane // destination -> shard -> lane
	orphan []segment.LaneID           // whose destination is not configured; left as they are
	routes *config.Live[routes]

	await func(ctx context.Context, id segment.LaneID, at segment.Position) error // wal.ack: bucket; else nil
}

// routes says where a tenant's data goes.
type routes struct {
	byTenant map[string]string
}

func newRoutes(c *config.Config) routes {
	r := routes{byTenant: map[string]string{}}
	for _, route := range slices.Backward(c.Routes) { // the first match counts
		r.byTenant[route.Tenant] = route.Destination
	}
	for name, t := range c.Tenants {
		if t.Destination != "" {
			r.byTenant[name] = t.Destination
		}
	}
	return r
}

func (r routes) destination(tenant string) string {
	if d, ok := r.byTenant[tenant]; ok {
		return d
	}
	return config.DefaultDestination
}

// openLanes opens a lane for each destination and shard, and those that earlier settings left behind.
func openLanes(a *Agent) (*laneSet, error) {
	s := &laneSet{taking: map[string][]*segment.Lane{}, routes: config.NewLive(newRoutes(&a.cfg))}
	if a.cfg.WAL.Ack == config.AckBucket {
		s.await = a.shared.await
	}
	dir := LayoutOf(a.cfg.DataDir).Lanes
	found, other, err := segment.ListLanes(vfs.OS(), dir)
	if err != nil {
		return nil, err
	}
	for _, name := range other {
		a.log.Warn("not a lane; left alone", zap.String("name", name))
	}
	want := map[segment.LaneID]bool{}
	var ids []segment.LaneID
	for name := range a.dests {
		for shard := range a.cfg.WAL.Shards {
			id := segment.LaneID{Destination: name, Shard: shard}
			want[id] = true
			ids = append(ids, id)
		}
	}
	for _, id := range found {
		switch {
		case want[id]:
		case a.dests[id.Destination] != nil:
			ids = append(ids, id)
		default:
			s.orphan = append(s.orphan, id)
			a.log.Warn("lane of a destination that is not configured; its backlog stays until the name is configured again",
				zap.Stringer("lane", id))
		}
	}
	sort.Slice(ids, func(i, j int) bool { return ids[i].String() < ids[j].String() })
	if err := s.open(a, ids, want); err != nil {
		return nil, errors.Join(err, s.close())
	}
	s.moves = balances(s.stats())
	return s, nil
}

// open opens the lanes side by side: each waits for its own syncs.
func (s *laneSet) open(a *Agent, ids []segment.LaneID, want map[segment.LaneID]bool) error {
	lanes := make([]*segment.Lane, len(ids))
	errs := make([]error, len(ids))
	var wg sync.WaitGroup
	for i, id := range ids {
		wg.Go(func() {
			lanes[i], errs[i] = openLane(a, id, !want[id] && id.Parked == 0)
		})
	}
	wg.Wait()
	for i, l := range lanes {
		if l == nil {
			continue
		}
		s.all = append(s.all, l)
		if id := ids[i]; want[id] {
			s.taking[id.Destination] = append(s.taking[id.Destination], l)
		}
	}
	for _, t := range s.taking { // the text order has shard 10 before shard 2
		sort.Slice(t, func(i, j int) bool { return t[i].ID().Shard < t[j].ID().Shard })
	}
	return errors.Join(errs...)
}

func openLane(a *Agent, id segment.LaneID, drainOnly bool) (*segment.Lane, error) {
	settings := laneSettings(&a.cfg, len(a.dests)*a.cfg.WAL.Shards)
	if id.Parked > 0 {
		settings.Ack = segment.AckDisk // the cursor of another lane passes what is moved here
	}
	return segment.OpenLane(segment.LaneOptions{
		FS: vfs.OS(), Dir: LayoutOf(a.cfg.DataDir).Lanes, ID: id, Owner: a.owner, Space: a.space, Quarantine: a.quarantine,
		Log: a.log, Settings: settings, Observe: a.metrics.lane(id), DrainOnly: drainOnly,
		Remote: a.shared.remote(), Skip: a.shared.skipOf(id),
		KeepExported: a.archive != nil && archive.Keeps(id),
	})
}

// openParked opens a parked lane that does not exist yet. None is opened once the agent stops.
func (s *laneSet) openParked(a *Agent, id segment.LaneID) (*segment.Lane, error) {
	s.mu.Lock()
	stopping := s.stopping
	s.mu.Unlock()
	if stopping {
		return nil, &segment.RefusedError{Reason: segment.RefusedStopping}
	}
	l, err := openLane(a, id, false)
	if err != nil {
		return nil, err
	}
	a.shared.addLane(l)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all = append(s.all, l) // closed with the others, also if the stop has begun
	if s.stopping {
		l.Stop()
	}
	return l, nil
}

// lanes returns those that are open.
func (s *laneSet) lanes() []*segment.Lane {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.all)
}

// segmentsPerLane is into how many segments the space of a lane divides at least: what is exported comes back by segments, so
// that with few large ones a full disk would stay full for long.
const segmentsPerLane = 8

func laneSettings(c *config.Config, lanes int) segment.Settings {
	codec := segment.CodecNone
	if c.WAL.Compression == config.WALZstd {
		codec = segment.CodecZstd
	}
	most := int64(c.WAL.MaxBytes) / int64(segmentsPerLane*max(lanes, 1))
	ack := segment.Ack(c.WAL.Ack)
	if c.WAL.Ack == config.AckBucket {
		ack = segment.AckDisk // first, then the bucket
	}
	return segment.Settings{
		Ack:              ack,
		Codec:            codec,
		SegmentSizeBytes: min(int64(c.WAL.SegmentSizeBytes), max(most, 4<<10)),
		SegmentAge:       c.WAL.SegmentAge,
		SyncInterval:     c.WAL.SyncInterval,
	}
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Accept stores a request in its lane: the shard comes from tenant and resource, so that one resource's records stay
// together.
func (s *laneSet) Accept(ctx context.Context, r receiver.Request) error {
	shards := s.taking[s.routes.Load().destination(r.Tenant)]
	if len(shards) == 0 {
		return fmt.Errorf("accept request: no lane for tenant %q", r.Tenant)
	}
	sum := crc32.Update(crc32.Checksum([]byte(r.Tenant), castagnoli), castagnoli, r.Info.FirstResource)
	f := segment.Frame{
		Signal: r.Signal, Tenant: r.Tenant, Received: time.Now(), Records: uint32(r.Info.Records), Body: r.Body,
	}
	if r.Info.InvalidUTF8 {
		f.Flags |= segment.FlagInvalidUTF8
	}
	l := shards[sum%uint32(len(shards))]
	if err := l.Append(ctx, &f); err != nil {
		return err
	}
	if s.await != nil {
		return s.await(ctx, l.ID(), f.Position)
	}
	return nil
}

// check returns why some lane would refuse a request now, or nil.
func (s *laneSet) check() error {
	for _, shards := range s.taking {
		for _, l := range shards {
			if r := l.Check(); r != nil {
				return r
			}
		}
	}
	return nil
}

// pending sums what is not delivered yet.
func (s *laneSet) pending() (t segment.Totals) {
	for _, l := range s.lanes() {
		t = t.Add(l.Pending())
	}
	return t
}

// drainable is what a stop waits for.
func (s *laneSet) drainable() segment.Totals { return s.pending() }

// left names the lanes that have something pending.
func (s *laneSet) left() (names []string) {
	for _, l := range s.lanes() {
		if l.Pending().Frames > 0 {
			names = append(names, l.ID().String())
		}
	}
	return names
}

func (s *laneSet) stop() {
	s.mu.Lock()
	s.stopping = true
	s.mu.Unlock()
	for _, l := range s.lanes() {
		l.Stop()
	}
}

func (s *laneSet) close() error {
	lanes := s.lanes()
	errs := make([]error, len(lanes))
	var wg sync.WaitGroup
	for i, l := range lanes {
		wg.Go(func() {
			if err := l.Close(); err != nil {
				errs[i] = fmt.Errorf("close lane %s: %w", l.ID(), err)
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}
