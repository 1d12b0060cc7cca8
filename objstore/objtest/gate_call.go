package objtest

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"hash/fnv"
	"io"
	"slices"
	"time"

	"ingest-agent/objstore"
)

// call is one call that is parked at the gate.
type call struct {
	process *Process
	op      objstore.Op
	key     string
	number  int // of the process's calls of this op and key that the driver has seen; 0: not yet
	writes  bool
	do      func() (any, error)
	answer  chan answer // has room for one

	stage  stage
	result answer    // to be delivered
	due    time.Time // of a call that is adrift: not before
}

type answer struct {
	value any
	err   error
}

// stage is how far a call has come.
type stage uint8

const (
	asked    stage = iota // nothing has happened
	answered              // it is done, and the answer is on its way
	adrift                // nobody waits for it any more, but it may still be done
)

func (s stage) String() string { return [...]string{"asked", "answered", "adrift"}[s] }

// label is how the call shows in the trace.
func (c *call) label() string {
	return fmt.Sprintf("%s %s %s #%d %s", c.process.name, c.op, c.key, c.number, c.stage)
}

// park waits for the fate of a call.
func (p *Process) park(ctx context.Context, op objstore.Op, key string, writes bool, do func() (any, error)) (any, error) {
	c := &call{process: p, op: op, key: key, writes: writes, do: do, answer: make(chan answer, 1)}
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("%s %s: %w: %w", op, key, objstore.ErrUnknown, err)
	}
	if !p.Alive() {
		return nil, fmt.Errorf("%s %s: process was killed: %w", op, key, objstore.ErrUnknown)
	}
	g := p.node.gate
	g.mu.Lock()
	g.calls = append(g.calls, c)
	g.mu.Unlock()
	select {
	case a := <-c.answer:
		return a.value, a.err
	case <-ctx.Done():
		g.abandon(c)
		c.settle()
		return nil, fmt.Errorf("%s %s: %w: %w", op, key, objstore.ErrUnknown, ctx.Err())
	case <-p.ctx.Done():
		g.abandon(c)
		return nil, fmt.Errorf("%s %s: process was killed: %w", op, key, objstore.ErrUnknown)
	}
}

// settle waits a little after the end of a call's time, each call for another while. Times are parts of one time, so that a call's
// and its lease's often end at the same moment: what the end of one does is done before the caller of the other goes on.
func (c *call) settle() {
	h := fnv.New64a()
	fmt.Fprint(h, c.process.name, c.op, c.key)
	timer := time.NewTimer(1 + time.Duration(h.Sum64()%uint64(time.Microsecond)))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-c.process.ctx.Done():
	}
}

// abandon is for a call whose caller has gone: a write may be on its way.
func (g *Gate) abandon(c *call) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if c.writes && c.stage == asked && c.number > 0 { // else it was given up at the moment in which it was made
		g.driftLocked(c)
		return
	}
	g.removeLocked(c)
}

func (g *Gate) remove(c *call) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.removeLocked(c)
}

// hold makes a call wait for the answer that there is.
func (g *Gate) hold(c *call, result answer) {
	g.mu.Lock()
	defer g.mu.Unlock()
	c.stage, c.result = answered, result
}

// drift puts a write that got an answer back, to be done later.
func (g *Gate) drift(c *call) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.driftLocked(c)
	g.calls = append(g.calls, c)
}

// driftLocked sets a call adrift. How long it takes is the call's own, since many are set adrift at the same moment.
func (g *Gate) driftLocked(c *call) {
	if c.stage = adrift; g.odds.Linger > 0 {
		h := fnv.New64a()
		fmt.Fprint(h, g.seed, c.label())
		c.due = time.Now().Add(time.Duration(h.Sum64() % uint64(g.odds.Linger)))
	}
}

// Adrift says how many writes are still on their way whose callers have gone.
func (g *Gate) Adrift() (n int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, c := range g.calls {
		if c.stage == adrift {
			n++
		}
	}
	return n
}

func (g *Gate) removeLocked(c *call) {
	g.calls = slices.DeleteFunc(g.calls, func(other *call) bool { return other == c })
}

// ready is the calls that can be chosen, in an order that is the same in each run.
func (g *Gate) ready() []*call {
	g.mu.Lock()
	defer g.mu.Unlock()
	var ready []*call
	now := time.Now()
	for _, c := range g.calls {
		if c.number == 0 {
			label := string(c.op) + c.key
			c.process.numbers[label]++
			c.number = c.process.numbers[label]
		}
		if c.stage == adrift && !now.Before(c.due) || c.stage != adrift && !c.process.node.paused {
			ready = append(ready, c)
		}
	}
	slices.SortFunc(ready, func(a, b *call) int {
		return cmp.Or(
			cmp.Compare(a.process.name, b.process.name), cmp.Compare(a.op, b.op), cmp.Compare(a.key, b.key),
			cmp.Compare(a.number, b.number),
		)
	})
	return ready
}

// Do sends something else than a call to the bucket through the gate: a delivery, say. effect is called by the driver, at
// most once, perhaps long after Do has returned an error. Errors are of the kinds of objstore.
func (p *Process) Do(ctx context.Context, op objstore.Op, key string, effect func() error) error {
	_, err := p.park(ctx, op, key, true, func() (any, error) { return nil, effect() })
	return err
}

// Bucket is the gate's bucket, as this process sees it.
func (p *Process) Bucket() objstore.Bucket { return gated{p, ""} }

// BucketFor is Bucket for one of several parts of the process that may call the same for the same key at the same moment: the
// driver tells them apart by the name.
func (p *Process) BucketFor(part string) objstore.Bucket { return gated{p, part + " "} }

type gated struct {
	p    *Process
	part string
}

func (b gated) op(op objstore.Op) objstore.Op { return objstore.Op(b.part) + op }

func (b gated) Get(ctx context.Context, key string, o objstore.GetOptions) (*objstore.Object, error) {
	return parkAs[*objstore.Object](ctx, b.p, b.op(objstore.OpGet), key, false, func() (any, error) {
		return b.p.node.gate.bucket.Get(context.Background(), key, o)
	})
}

func (b gated) Put(ctx context.Context, key string, body io.ReadSeeker, c objstore.Condition) (objstore.PutResult, error) {
	if _, err := body.Seek(0, io.SeekStart); err != nil {
		return objstore.PutResult{}, fmt.Errorf("seek body: %w: %w", objstore.ErrInvalid, err)
	}
	data, err := io.ReadAll(body)
	if err != nil {
		return objstore.PutResult{}, fmt.Errorf("read body: %w: %w", objstore.ErrInvalid, err)
	}
	g := b.p.node.gate
	return parkAs[objstore.PutResult](ctx, b.p, b.op(objstore.OpPut), key, true, func() (any, error) {
		result, err := g.bucket.Put(context.Background(), key, bytes.NewReader(data), c)
		g.effect(Effect{Process: b.p.name, Op: objstore.OpPut, Key: key, Body: data, Condition: c, Result: result, Err: err})
		return result, err
	})
}

func (b gated) Delete(ctx context.Context, key string) error {
	g := b.p.node.gate
	return b.p.Do(ctx, b.op(objstore.OpDelete), key, func() error {
		err := g.bucket.Delete(context.Background(), key)
		g.effect(Effect{Process: b.p.name, Op: objstore.OpDelete, Key: key, Err: err})
		return err
	})
}

func (b gated) List(ctx context.Context, o objstore.ListOptions) (*objstore.Page, error) {
	return parkAs[*objstore.Page](ctx, b.p, b.op(objstore.OpList), o.Prefix, false, func() (any, error) {
		return b.p.node.gate.bucket.List(context.Background(), o)
	})
}

func (b gated) Close() error { return nil }

// parkAs is park for calls that return something.
func parkAs[T any](ctx context.Context, p *Process, op objstore.Op, key string, writes bool, do func() (any, error)) (T, error) {
	value, err := p.park(ctx, op, key, writes, do)
	v, _ := value.(T) // nothing beside an error
	return v, err
}
