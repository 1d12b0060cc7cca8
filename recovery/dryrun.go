package recovery

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"ingest-agent/objstore"
	"ingest-agent/objstore/lease"
	"ingest-agent/recovery/owner"
)

const (
	// dryReads bounds the registers that a dry run reads at once.
	dryReads = 16
	// maxSecondLooks bounds the registers that a dry run reads twice: those of owners that seem damaged, or that came up
	// while it was listing.
	maxSecondLooks = 16
	// maxListed bounds what a report names one by one of what there should be none of: the rest is counted.
	maxListed = 1000
)

// DryRunOptions are what a dry run looks at, and as whom.
type DryRunOptions struct {
	Bucket objstore.Bucket // is read only
	Owner  string          // only this owner; "": all
	// Known says whether a destination is configured. nil: nobody knows, and none is called unknown.
	Known func(destination string) bool
	// Looked is told how far it is: registers there are, objects listed so far. It is called by one goroutine. nil: nobody is.
	Looked func(registers int, objects uint64)

	StaleAfter, Retention time.Duration // recovery.stale_after and recovery.tombstone_retention
}

// DryRun says what a pass would do. It lists the registers and the segment objects, page by page, reads each register once,
// some of them twice (maxSecondLooks), and no object; it writes nothing. Its memory grows with the owners, not with the
// objects.
//
// What it says of each owner is true of the moment at which its register was read. Keys prove less than objects do: that the
// last object of a segment is missing does not show where another segment follows. What a pass counts as lost is exact. An
// error is of the bucket, and then nothing is known.
func DryRun(ctx context.Context, o DryRunOptions) (*DryRunReport, error) {
	if o.Looked == nil {
		o.Looked = func(int, uint64) {}
	}
	d := &dryRun{o: o, owners: map[string]*dryOwner{}, report: &DryRunReport{}}
	for _, step := range []func(context.Context) error{d.listOwners, d.readRegisters, d.listObjects, d.lookAgain} {
		if err := step(ctx); err != nil {
			return nil, fmt.Errorf("dry run: %w", err)
		}
	}
	d.conclude()
	return d.report, nil
}

// dryRun is one dry run.
type dryRun struct {
	o      DryRunOptions
	ids    []string // with a register, in order of time
	owners map[string]*dryOwner
	report *DryRunReport
}

// dryOwner is what is known of one owner.
type dryOwner struct {
	id    string
	look  Look
	lanes map[string]*dryLane
	// stale: the register has changed since, so that it and the listing of the objects do not belong together.
	stale bool
}

// listOwners finds the registers there are.
func (d *dryRun) listOwners(ctx context.Context) error {
	if d.o.Owner != "" {
		d.ids = []string{d.o.Owner}
		return nil
	}
	for p, err := range objstore.Pages(ctx, d.o.Bucket, objstore.ListOptions{Prefix: objstore.OwnersPrefix}) {
		if err != nil {
			return err //nolint:wrapcheck // it says what it did
		}
		for i := range p.Objects {
			k, err := objstore.ParseKey(p.Objects[i].Key)
			if key, ok := k.(objstore.OwnerKey); err == nil && ok {
				d.ids = append(d.ids, key.Owner)
			} else {
				d.report.Foreign.add(&p.Objects[i])
			}
		}
	}
	return nil
}

// readRegisters reads each register, several at once.
func (d *dryRun) readRegisters(ctx context.Context) error {
	d.o.Looked(len(d.ids), 0)
	looks := make([]Look, len(d.ids))
	err := side(ctx, len(d.ids), func(ctx context.Context, i int) (err error) {
		looks[i], err = d.read(ctx, d.ids[i], lease.Seen{})
		return err
	})
	for i, id := range d.ids {
		if looks[i].Whose != lease.Absent || looks[i].Err != nil { // else it was buried meanwhile
			d.owners[id] = &dryOwner{id: id, look: looks[i]}
		}
	}
	return err
}

// side calls do for 0 to n-1, dryReads at once, until one fails.
func side(ctx context.Context, n int, do func(ctx context.Context, i int) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	next := make(chan int)
	var wg sync.WaitGroup
	for range min(n, dryReads) {
		wg.Go(func() {
			for i := range next {
				if err := do(ctx, i); err != nil {
					cancel(err)
				}
			}
		})
	}
	for i := 0; i < n && ctx.Err() == nil; i++ {
		select {
		case next <- i:
		case <-ctx.Done():
		}
	}
	close(next)
	wg.Wait()
	return context.Cause(ctx)
}

// read looks at a register. before is what an earlier look found.
func (d *dryRun) read(ctx context.Context, id string, before lease.Seen) (Look, error) {
	l := Look{StaleAfter: d.o.StaleAfter, Retention: d.o.Retention, Known: d.o.Known}
	register := lease.New(lease.Options{Bucket: d.o.Bucket, Key: objstore.OwnerKey{Owner: id}.String(), StaleAfter: d.o.StaleAfter})
	seen, err := register.Observe(ctx, before)
	if errors.Is(err, lease.ErrFormat) {
		l.Err = err
		return l, nil
	}
	if err != nil {
		return l, err //nolint:wrapcheck // it names the register
	}
	l.Seen, l.Whose, l.Unchanged = seen, register.Judge(seen), Unchanged(&seen, time.Now())
	if l.Whose != lease.Absent {
		l.Body, l.Err = owner.Read(&seen.Record)
		l.Seen.Body = nil // there are many
	}
	return l, nil
}

// lookAgain reads again what may only look wrong because it changed between register and listing.
func (d *dryRun) lookAgain(ctx context.Context) error {
	looks := 0
	for _, id := range d.suspects() {
		if looks++; looks > maxSecondLooks {
			break
		}
		w := d.owners[id]
		again, err := d.read(ctx, id, w.look.Seen)
		if err != nil {
			return err
		}
		if again.Seen.Version != w.look.Seen.Version {
			w.look, w.stale = again, true
		}
	}
	return nil
}

// suspects are the owners whose register and objects do not fit together.
func (d *dryRun) suspects() []string {
	var ids []string
	for _, id := range d.all() {
		w := d.owners[id]
		absent := w.look.Whose == lease.Absent && w.look.Err == nil
		if absent || (w.quiet() && w.gaps() > 0) {
			ids = append(ids, id)
		}
	}
	return ids
}

// quiet says whether the register is one that nobody is about to change, so that what is missing is missing.
func (w *dryOwner) quiet() bool {
	return w.look.Body != nil && w.look.Whose != lease.Beating
}
