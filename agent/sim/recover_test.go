package sim

import (
	"context"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"

	"ingest-agent/objstore"
	"ingest-agent/recovery"
	"ingest-agent/segment"
)

// recover starts the process's recovery. stop ends it, in the time of a stop.
func (l *life) recover(ctx context.Context, rng *rand.Rand) (stop func()) {
	jitter := rand.New(rand.NewPCG(rng.Uint64(), 0))
	r := recovery.New(recovery.Options{
		Bucket: spread{l.others, l}, Holder: l.holder, Node: l.n.name,
		Own:          func(owner string) bool { return owner == l.ship.Stats().Owner.String() },
		ScanInterval: l.p.Span(scanInterval), StaleAfter: l.p.Span(staleAfter), Retention: l.p.Span(l.w.set.retention),
		CommitEvery: l.p.Span(commitEvery), StallAfter: l.p.Span(stallAfter),
		Knows: func(destination string) bool { return l.w.knows(l.n, destination) },
		Drain: l.drainAdopted,
		Log:   zap.NewNop(), NewID: l.holders.next, Jitter: jitter.Float64,
	})
	var running sync.WaitGroup
	running.Go(func() { r.Run(ctx) })
	return func() {
		defer running.Wait()
		budget, cancel := context.WithTimeout(context.WithoutCancel(ctx), l.p.Span(stopBudget))
		defer cancel()
		if ctx.Err() == nil {
			_ = r.Stop(budget) // what it could not say shows in the bucket
		}
	}
}

// spread delays looks at registers a little, each by another time: two adoptions that begin at the same moment would do all that
// they do by time at the same moments, in any order.
type spread struct {
	objstore.Bucket
	l *life
}

func (b spread) Get(ctx context.Context, key string, o objstore.GetOptions) (*objstore.Object, error) {
	if strings.HasPrefix(key, objstore.OwnersPrefix) {
		h := fnv.New64a()
		fmt.Fprint(h, b.l.p.Name(), key)
		_ = b.l.p.Sleep(ctx, time.Duration(h.Sum64()%uint64(time.Millisecond))) // the call tells
	}
	return b.Bucket.Get(ctx, key, o)
}

// drainAdopted drains a lane of another owner.
func (l *life) drainAdopted(ctx context.Context, lane recovery.Adopted) {
	h := fnv.New64a()
	fmt.Fprint(h, l.p.Name(), lane.Owner, lane.Lane)
	rng := rand.New(rand.NewPCG(l.w.seed, h.Sum64()))
	sink := &sink{l: l, lane: lane.Lane, owner: lane.Owner, rng: rng}
	l.w.happened("adopted lanes")
	l.drain(ctx, segment.DrainOptions{Source: lane.Source, Cursor: lane.Cursor, Sink: func() segment.Sink { return sink }}, rng)
}
