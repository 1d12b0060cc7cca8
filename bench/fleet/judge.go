package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"ingest-agent/bench/seqset"
	"ingest-agent/bench/sink"
	"ingest-agent/objstore"
	"ingest-agent/objstore/lease"
	"ingest-agent/recovery/owner"
)

const (
	maxExamples      = 3
	maxRegisterBytes = 1 << 20
)

// judge decides on each duplicate when it arrives. Times are of the sink's clock.
type judge struct {
	mu        sync.Mutex
	ends      []struct{ from, to time.Duration } // of agents
	flip      time.Duration                      // when the sink went down; 0: it did not
	excused   int
	unexcused int
	examples  []string
}

func (j *judge) ended(from, to time.Duration) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.ends = append(j.ends, struct{ from, to time.Duration }{from, to})
}

func (j *judge) flipped(at time.Duration) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.flip = at
}

// duplicate is called by the sink.
func (j *judge) duplicate(d sink.Duplicate) {
	j.mu.Lock()
	defer j.mu.Unlock()
	// While a request waits since the sink went down, the cursor cannot pass what was delivered behind it.
	excused := j.flip > 0 && d.Last >= j.flip-Window && d.Last <= j.flip
	for _, e := range j.ends {
		excused = excused || (d.Last >= e.from-Window && d.Last <= e.to)
	}
	if excused {
		j.excused++
		return
	}
	if j.unexcused++; len(j.examples) < maxExamples {
		j.examples = append(j.examples, fmt.Sprintf("record %d came at %v and again at %v", d.Seq, d.Last, d.Now))
	}
}

// add puts what a node has acknowledged up to a moment into a set.
func add(owed *seqset.Set, n *node, until time.Duration) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, a := range n.acked {
		if a.at <= until {
			owed.AddRange(a.first, a.records)
		}
	}
}

// missing requires that a set has arrived.
func (r *round) missing(when string, owed *seqset.Set) {
	if count, ranges := owed.Minus(r.sink.Received(), maxExamples); count > 0 {
		r.violation("%s, %d of %d owed records are missing: %v …", when, count, owed.Count(), ranges)
	}
}

// rest waits until nothing is owed any more: by the nodes that run, and from the bucket.
func (r *round) rest(ctx context.Context, when string) {
	err := await(ctx, restTimeout, func() error {
		for _, n := range r.nodes {
			select {
			case <-n.process.Exited():
				continue
			default:
			}
			if pending, err := n.pending(ctx); err != nil || pending > 0 {
				return errors.Join(err, fmt.Errorf("%s has %v records pending", n.name, pending))
			}
		}
		return r.bucketAtRest(ctx)
	})
	if err != nil {
		r.violation("not at rest %s: %v", when, err)
	}
}

// atRest requires it of the bucket now.
func (r *round) atRest(ctx context.Context, when string) {
	if err := r.bucketAtRest(ctx); err != nil {
		r.violation("%s: %v", when, err)
	}
}

// bucketAtRest says what is left in the bucket: an object, or a register of one that owes.
func (r *round) bucketAtRest(ctx context.Context) (err error) {
	b, err := r.bucket.Open(ctx, r.url)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.Close()) }()
	objects, err := keys(ctx, b, objstore.SegmentsPrefix)
	if err == nil && len(objects) > 0 {
		err = fmt.Errorf("%d objects are left, such as %s", len(objects), objects[0])
	}
	if err != nil {
		return err
	}
	registers, err := keys(ctx, b, objstore.OwnersPrefix)
	if err != nil {
		return err
	}
	for _, key := range registers {
		o, err := b.Get(ctx, key, objstore.GetOptions{})
		if errors.Is(err, objstore.ErrNotFound) {
			continue
		}
		if err != nil {
			return fmt.Errorf("read %s: %w", key, err)
		}
		text, err := io.ReadAll(io.LimitReader(o.Body, maxRegisterBytes))
		var record lease.Record
		if err = errors.Join(err, o.Body.Close()); err == nil {
			err = json.Unmarshal(text, &record)
		}
		if err != nil {
			return fmt.Errorf("read %s: %w", key, err)
		}
		if s := record.State; s != owner.Idle && s != owner.Drained && s != owner.Buried {
			return fmt.Errorf("%s is %s: %s", key, s, text)
		}
	}
	return nil
}

// keys lists all keys with a prefix.
func keys(ctx context.Context, b objstore.Bucket, prefix string) (all []string, err error) {
	for o := (objstore.ListOptions{Prefix: prefix}); ; {
		page, err := b.List(ctx, o)
		if err != nil {
			return nil, fmt.Errorf("list %s: %w", prefix, err)
		}
		for _, info := range page.Objects {
			all = append(all, info.Key)
		}
		if o.Token = page.Next; page.Next == "" {
			return all, nil
		}
	}
}
