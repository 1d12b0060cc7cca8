package fleet

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"ingest-agent/bench/load"
	"ingest-agent/bench/seqset"
	"ingest-agent/bench/sink"
)

// round is one life of the fleet.
type round struct {
	cfg      *Config
	number   int
	plan     plan
	dir      string
	bucket   *Bucket
	url      string
	nodes    [nodes]*node
	sink     *sink.Sink
	sequence load.Sequence
	acked    seqset.Set
	judge    judge
	outcome  *Round
}

func newRound(cfg *Config, number int, ports []string) (*round, error) {
	name := fmt.Sprintf("round-%04d", number)
	r := &round{cfg: cfg, number: number, plan: planRound(cfg.Seed, number), dir: filepath.Join(cfg.Dir, name),
		bucket: &cfg.Buckets[number%len(cfg.Buckets)]}
	r.url = r.bucket.URL(name)
	r.outcome = &Round{Number: number, Bucket: r.bucket.Name, plan: r.plan}
	if err := os.MkdirAll(r.dir, 0o755); err != nil {
		return nil, fmt.Errorf("make directory: %w", err)
	}
	for i := range r.nodes {
		name := fmt.Sprintf("node-%d", i+1)
		r.nodes[i] = &node{name: name, data: filepath.Join(r.dir, name), grpc: ports[3*i], http: ports[3*i+1], addr: ports[3*i+2]}
	}
	var err error
	if r.sink, err = sink.New(sink.Config{OnDuplicate: r.judge.duplicate}); err != nil {
		return nil, fmt.Errorf("make sink: %w", err)
	}
	return r, nil
}

func (r *round) violation(format string, args ...any) {
	r.outcome.Violations = append(r.outcome.Violations, fmt.Sprintf(format, args...))
}

// run plays the round. What the agents do wrong is a violation, not an error.
func (r *round) run(ctx context.Context) error {
	begin := time.Now()
	defer func() {
		r.outcome.Took = time.Since(begin)
		for _, n := range r.nodes {
			if n.process != nil {
				destroy(n.process)
			}
		}
	}()
	owed, err := r.outage(ctx)
	if err != nil {
		return err
	}
	if err := r.sink.Up(); err != nil {
		return fmt.Errorf("start sink: %w", err)
	}
	if err := r.comeBack(ctx); err != nil {
		return err
	}
	r.missing("without the other disks", owed)
	for i, n := range r.nodes { // what is still there of the others
		if i == r.plan.back || !r.plan.fates[i].kept {
			continue
		}
		add(owed, n, r.sink.Now())
		if err := r.start(n); err != nil {
			return err
		}
	}
	r.rest(ctx, "with the disks that were kept")
	r.missing("with the disks that were kept", owed)
	for _, n := range r.nodes {
		r.stop(n)
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("run: %w", err)
	}
	r.atRest(ctx, "after all stops")
	r.finish()
	return nil
}

// outage lets all nodes take requests until each meets its fate. It returns what must arrive with no disk but the one that
// comes back.
func (r *round) outage(ctx context.Context) (*seqset.Set, error) {
	if r.plan.sinkUp > 0 {
		if err := r.sink.Up(); err != nil {
			return nil, fmt.Errorf("start sink: %w", err)
		}
	}
	for _, n := range r.nodes {
		if err := r.start(n); err != nil {
			return nil, err
		}
	}
	for _, n := range r.nodes {
		if err := n.ready(ctx); err != nil {
			r.violation("start: %v", err)
		}
	}
	owed := &seqset.Set{}
	var mu sync.Mutex
	var all error
	var running sync.WaitGroup
	for i, n := range r.nodes {
		running.Go(func() {
			ended, clean, err := r.live(ctx, n, r.plan.fates[i])
			mu.Lock()
			defer mu.Unlock()
			if clean != nil {
				r.violation("%s: %v; see %s", n.name, clean, n.log)
			}
			all = errors.Join(all, err)
			f := r.plan.fates[i]
			if f.term || r.plan.ack == "bucket" || (f.kept && i == r.plan.back) {
				ended = r.sink.Now()
			} else {
				ended -= shipAfter + Margin
			}
			add(owed, n, ended)
		})
	}
	if r.plan.sinkUp > 0 {
		sleep(ctx, r.plan.sinkUp)
		r.judge.flipped(r.sink.Now())
		all = errors.Join(all, r.sink.Down(true))
	}
	running.Wait()
	for i, n := range r.nodes {
		if !r.plan.fates[i].kept {
			all = errors.Join(all, os.RemoveAll(n.data))
		}
	}
	return owed, all
}

// live sends to a node until its end, at the moment that is returned. wrong is what the node did wrong.
func (r *round) live(ctx context.Context, n *node, f fate) (ended time.Duration, wrong, err error) {
	loading, stop := context.WithCancel(ctx)
	defer stop()
	loaded := make(chan error, 1)
	go func() {
		_, err := n.send(loading, r)
		loaded <- err
	}()
	sleep(ctx, f.life)
	ended = r.sink.Now()
	wrong = end(n.process, f.term)
	r.judge.ended(ended, r.sink.Now())
	stop()
	return ended, wrong, <-loaded
}

// comeBack starts the one that comes back, and waits until all is at rest.
func (r *round) comeBack(ctx context.Context) error {
	n := r.nodes[r.plan.back]
	if err := r.start(n); err != nil {
		return err
	}
	if r.plan.killBack > 0 {
		if err := n.ready(ctx); err != nil {
			r.violation("start: %v", err)
		}
		sleep(ctx, r.plan.killBack)
		ended := r.sink.Now()
		if err := end(n.process, false); err != nil {
			r.violation("%s: %v; see %s", n.name, err, n.log)
		}
		r.judge.ended(ended, r.sink.Now())
		// Of a disk with the only copy of what it owes, nothing is promised once it is lost.
		if r.plan.loseBack && (!r.plan.fates[r.plan.back].kept || r.plan.ack == "bucket") {
			if err := os.RemoveAll(n.data); err != nil {
				return fmt.Errorf("lose disk: %w", err)
			}
		}
		if err := r.start(n); err != nil {
			return err
		}
	}
	r.rest(ctx, "without the other disks")
	return nil
}

// stop stops a node that runs.
func (r *round) stop(n *node) {
	select {
	case <-n.process.Exited():
		return
	default:
	}
	if err := end(n.process, true); err != nil {
		r.violation("%s: %v; see %s", n.name, err, n.log)
	}
}

// sleep waits, or until ctx ends.
func sleep(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
