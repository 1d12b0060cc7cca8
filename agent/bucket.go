package agent

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/oklog/ulid/v2"
	"go.uber.org/zap"

	"ingest-agent/agent/config"
	"ingest-agent/objstore"
	"ingest-agent/objstore/stores"
)

// bucket is the shared storage as all parts of the agent use it: observed by metrics, and probed once for all of them.
type bucket struct {
	objstore.Bucket
	url       string
	probeFile string
	log       *zap.Logger

	turn   chan struct{} // whoever has put the token in may probe
	mu     sync.Mutex
	probed *objstore.ProbeResult
}

// openBucket opens the bucket of a configuration. It asks it nothing.
func openBucket(c *config.Config, report func(op objstore.Op, outcome string, took time.Duration, bytes int64), log *zap.Logger) (*bucket, error) {
	b, err := stores.Open(context.Background(), c.Bucket.URL, stores.Options{})
	if err != nil {
		return nil, err
	}
	return &bucket{
		Bucket: objstore.Observe(b, report), url: c.Bucket.URL, probeFile: LayoutOf(c.DataDir).Probe, log: log,
		turn: make(chan struct{}, 1),
	}, nil
}

// Probe says whether compare-and-swap is real in this bucket. It is found out once, before the first conditional write, and a
// good result is remembered in the data directory for a day.
func (b *bucket) Probe(ctx context.Context) (objstore.ProbeResult, error) {
	select {
	case b.turn <- struct{}{}:
	case <-ctx.Done():
		return objstore.ProbeResult{}, fmt.Errorf("probe bucket: %w", ctx.Err())
	}
	defer func() { <-b.turn }()
	if r := b.known(); r != nil {
		return *r, nil
	}
	r, ok := objstore.RecallProbe(b.probeFile, b.url)
	if !ok {
		var err error
		if r, err = objstore.Probe(ctx, b, ulid.Make().String()); err != nil {
			return r, fmt.Errorf("probe bucket: %w", err)
		}
		if !r.OK {
			b.log.Error("the bucket does not honour preconditions; undelivered data is copied there, but nothing is taken over from other nodes",
				zap.String("found", r.Found))
		} else if err := objstore.RememberProbe(b.probeFile, b.url, r); err != nil {
			b.log.Warn("result of the bucket's probe not kept; the next start probes again", zap.Error(err))
		}
	}
	b.mu.Lock()
	b.probed = &r
	b.mu.Unlock()
	return r, nil
}

// known is what a probe has found, or nil.
func (b *bucket) known() *objstore.ProbeResult {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.probed
}
