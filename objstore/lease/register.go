package lease

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/oklog/ulid/v2"

	"ingest-agent/objstore"
)

// Fractions of StaleAfter.
const (
	// actPart: the holder stops acting after this part of it without a confirmed beat.
	actPart = 2
	// beatPart: beats are sent every so many parts, and no call takes longer, so that one that hangs leaves time for another.
	beatPart = 6
	// retryFirstPart and retryMostPart bound the delay between two tries.
	retryFirstPart = 240
	retryMostPart  = 24
)

// Options say which register, and who works on it.
type Options struct {
	Bucket objstore.Bucket
	Key    string
	// Holder is this process: a ULID, of this process alone. Two goroutines that may take one register at the same time need
	// two. "" for those that only look.
	Holder string
	Node   string // for people
	// StaleAfter is how long a holder may be silent: the owner's stale_after or the job's lease. The same for all processes.
	StaleAfter time.Duration
	// NewID makes write ids, each another. nil: ULIDs.
	NewID func() string
}

// Register is one register, as one process sees it. It has no state of its own, and is safe for many goroutines at once.
type Register struct{ o Options }

// New returns a register. It calls nothing.
func New(o Options) *Register {
	if o.NewID == nil {
		o.NewID = func() string { return ulid.Make().String() }
	}
	return &Register{o}
}

// Observe looks at the register. before is what the last look found, or the zero Seen: an unchanged register is then not
// transferred, and Since is kept until a beat comes. That there is none is not an error.
func (r *Register) Observe(ctx context.Context, before Seen) (Seen, error) {
	seen, err := r.read(ctx, before.Version)
	switch {
	case errors.Is(err, objstore.ErrNotModified):
		return before, nil
	case err != nil:
		return Seen{}, fmt.Errorf("observe register %s: %w", r.o.Key, err)
	case seen.Epoch == before.Epoch && seen.Beat == before.Beat && !before.Since.IsZero():
		seen.Since = before.Since
	}
	return seen, nil
}

func (r *Register) read(ctx context.Context, unless objstore.Version) (Seen, error) {
	obj, err := r.o.Bucket.Get(ctx, r.o.Key, objstore.GetOptions{Unless: unless})
	if errors.Is(err, objstore.ErrNotFound) {
		return Seen{Since: time.Now()}, nil
	}
	if err != nil {
		return Seen{}, fmt.Errorf("get register: %w", err)
	}
	record, err := decode(obj.Body)
	if err := errors.Join(err, obj.Body.Close()); err != nil {
		return Seen{}, err
	}
	return Seen{Record: record, Version: obj.Version, Modified: obj.Modified, Date: obj.Date, Since: time.Now()}, nil
}

// Verdict is what may be done with a register, as far as time and holder tell. States are for the user to judge.
type Verdict uint8

// The verdicts.
const (
	Absent  Verdict = iota // there is none
	Free                   // nobody holds it
	Mine                   // this process holds it: by a Lease, or by an Acquire whose outcome was unknown
	Silent                 // its holder was silent for StaleAfter
	Beating                // its holder may be alive
)

// Judge says whose the register is now.
func (r *Register) Judge(s Seen) Verdict {
	switch {
	case s.Version == "":
		return Absent
	case s.Holder == "":
		return Free
	case s.Holder == r.o.Holder:
		return Mine
	case s.silent(time.Now(), r.o.StaleAfter):
		return Silent
	}
	return Beating
}

// Acquire takes the register that was seen, or creates it, with the next epoch. It tries until that is done or lost, or ctx
// ends; then the outcome may be objstore.ErrUnknown, and a later Observe may find it Mine. ErrLost: it has changed since. One
// that is Beating is objstore.ErrInvalid: who means to take it from a holder that may be alive has to Fence it first.
func (r *Register) Acquire(ctx context.Context, seen Seen, edit Edit) (*Lease, error) {
	if r.o.Holder == "" {
		return nil, fmt.Errorf("acquire register %s: without a holder: %w", r.o.Key, objstore.ErrInvalid)
	}
	if r.Judge(seen) == Beating {
		return nil, fmt.Errorf("acquire register %s: %w: it is beating: %s", r.o.Key, objstore.ErrInvalid, &seen)
	}
	c, err := r.once(ctx, take, seen, edit)
	if err != nil {
		return nil, fmt.Errorf("acquire register %s: %w", r.o.Key, err)
	}
	return newLease(r, c), nil
}

// How says what a Change does to epoch and holder.
type How uint8

// The ways to change a register that one does not hold.
const (
	Amend  How = How(amend)  // the holder keeps it, and goes on from what it then reads
	Vacate How = How(vacate) // nobody holds it: the holder is fenced
	Fence  How = How(fence)  // nobody holds it, with the next epoch
)

// Change changes the register that was seen without taking it. If there is none, it creates one that nobody holds. It tries,
// and fails, like Acquire.
func (r *Register) Change(ctx context.Context, seen Seen, how How, edit Edit) (Seen, error) {
	c, err := r.once(ctx, kind(how), seen, edit)
	if err != nil {
		return Seen{}, fmt.Errorf("change register %s: %w", r.o.Key, err)
	}
	return c.base, nil
}

// once makes a change on the version that was seen.
func (r *Register) once(ctx context.Context, k kind, seen Seen, edit Edit) (*change, error) {
	c := r.change(k, seen, edit)
	err := r.run(ctx, c, func(*change) {})
	if c.lost != nil {
		err = fmt.Errorf("%w: %w", ErrLost, err)
	}
	return c, err
}

func (r *Register) change(k kind, base Seen, edit Edit) *change {
	return &change{
		kind: k, edit: edit, base: base, holder: r.o.Holder, node: r.o.Node, newID: r.o.NewID,
		retry: backoff{first: r.part(retryFirstPart), most: r.part(retryMostPart)},
	}
}

// part is a fraction of StaleAfter.
func (r *Register) part(n time.Duration) time.Duration { return r.o.StaleAfter / n }

// run carries a change out. note is told after each step.
func (r *Register) run(ctx context.Context, c *change, note func(*change)) error {
	e := c.start()
	for e.do != end {
		if err := sleep(ctx, e.delay); err != nil {
			return c.givenUp(err).err
		}
		e = r.step(ctx, c, e.do)
		note(c)
	}
	return e.err
}

// step makes one call, which ends with ctx, and in time for another.
func (r *Register) step(ctx context.Context, c *change, do action) effect {
	ctx, cancel := context.WithTimeout(ctx, r.part(beatPart))
	defer cancel()
	if do == get {
		return c.getEnded(r.read(ctx, ""))
	}
	sent := time.Now()
	c.sending(sent)
	result, err := r.o.Bucket.Put(ctx, r.o.Key, bytes.NewReader(c.bytes), c.condition())
	return c.putEnded(result, err, sent, time.Now())
}

// sleep returns the cause of ctx's end, if that comes first.
func sleep(ctx context.Context, d time.Duration) error {
	if d <= 0 || ctx.Err() != nil {
		return context.Cause(ctx)
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
	return context.Cause(ctx)
}
