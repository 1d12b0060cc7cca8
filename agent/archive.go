package agent

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/oklog/ulid/v2"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"ingest-agent/agent/config"
	"ingest-agent/objstore"
	"ingest-agent/segment"
	"ingest-agent/shipper/archive"
)

// archiving is the agent's archive. Its methods do nothing where there is none (nil).
type archiving struct {
	archiver *archive.Archiver
	own      *bucket // nil: the bucket is the shared one

	running sync.WaitGroup
	kill    context.CancelFunc // ends what runs at once
}

// openArchive makes the archive, if it is enabled, in the shared bucket or, if that is nil, in the one inside the data directory.
func (a *Agent) openArchive(b *bucket) (err error) {
	if !a.cfg.Archive.Enabled {
		return nil
	}
	s := &archiving{}
	if b == nil {
		if b, err = openBucket(&a.cfg, a.metrics.bucketRequest, a.log); err != nil {
			return err
		}
		s.own = b
	}
	o := archiveOptions(&a.cfg, b, a.log)
	if s.own != nil {
		o.Spare = a.space.Spare
	}
	o.Taken = a.space.Taken
	o.Owner = func() string { return a.owner.String() }
	if s.own == nil {
		o.Owner = func() string { return a.shared.shipper.Stats().Owner.String() }
		o.Settled = func() { a.shared.shipper.Wake() }
	}
	s.archiver = archive.New(o)
	a.archive = s
	return nil
}

func archiveOptions(c *config.Config, b *bucket, log *zap.Logger) archive.Options {
	return archive.Options{
		Bucket: b, SegmentAge: c.WAL.SegmentAge, RetryMax: c.Shipper.RetryMaxInterval, Log: log.Named("archive"), Probe: b.Probe,
		Holder: ulid.Make().String(), Node: c.Node, StaleAfter: c.Recovery.StaleAfter, Retention: c.Archive.Retention,
	}
}

// copying is what a recovery from the command line archives with: nobody waits for long there.
func copying(c *config.Config, b *bucket, log *zap.Logger) func(context.Context, objstore.SegmentKey, segment.Position) error {
	if !c.Archive.Enabled {
		return nil
	}
	o := archiveOptions(c, b, log)
	o.ObjectPatience = time.Nanosecond // a few tries
	return archive.New(o).Copy
}

// startArchive starts archiving beside everything else.
func (a *Agent) startArchive() {
	s := a.archive
	if s == nil {
		return
	}
	a.space.WhenRefused(s.archiver.Wake) // it lets go of what it cannot archive
	ctx, cancel := context.WithCancel(context.Background())
	s.kill = cancel
	s.running.Go(func() { s.archiver.Run(ctx) })
}

func (s *archiving) add(lanes ...*segment.Lane) {
	if s == nil {
		return
	}
	for _, l := range lanes {
		if archive.Keeps(l.ID()) {
			s.archiver.Add(l)
		}
	}
}

// copied is what the shipper asks before it deletes what was spilled; nil: nothing.
func (s *archiving) copied() func(objstore.SegmentKey) bool {
	if s == nil {
		return nil
	}
	return s.archiver.Copied
}

// copy is what recovery does before it deletes what was adopted; nil: nothing.
func (s *archiving) copy() func(context.Context, objstore.SegmentKey, segment.Position) error {
	if s == nil {
		return nil
	}
	return s.archiver.Copy
}

// stop archives what is delivered, within ctx.
func (s *archiving) stop(ctx context.Context) {
	if s != nil && s.kill != nil {
		s.archiver.Stop(ctx)
	}
}

// close ends what still runs, and closes the bucket if nobody else uses it.
func (s *archiving) close() error {
	if s == nil {
		return nil
	}
	if s.kill != nil {
		s.kill()
	}
	s.running.Wait()
	if s.own == nil {
		return nil
	}
	if err := s.own.Close(); err != nil {
		return fmt.Errorf("close bucket of the archive: %w", err)
	}
	return nil
}

// archiveMetrics collects what the archive knows.
type archiveMetrics struct{ a *Agent }

// Describe sends nothing: without an archive there is nothing to collect.
func (archiveMetrics) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (c archiveMetrics) Collect(ch chan<- prometheus.Metric) {
	if c.a.archive == nil {
		return
	}
	st := c.a.archive.archiver.Stats()
	counter := func(name, help string, v uint64) {
		ch <- prometheus.MustNewConstMetric(desc(name, help), prometheus.CounterValue, float64(v))
	}
	counter("archived_objects_total", "Objects that were put into the archive.", st.ArchivedObjects)
	counter("archived_bytes_total", "Bytes of objects that were put into the archive.", st.ArchivedBytes)
	counter("archive_missed_records_total", "Delivered records that are missing in the archive.", st.MissedRecords)
	counter("archive_swept_objects_total", "Objects that this node deleted from the archive for archive.retention.", st.SweptObjects)
}
