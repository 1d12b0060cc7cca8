package recovery

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"ingest-agent/objstore"
	"ingest-agent/segment"
)

// Report says what a pass came to.
type Report struct {
	Owners    int                // registers that were looked at
	Adoptions map[Outcome]uint64 // by how they ended
	Ledger    segment.Ledger     // what became of the records that were taken over
	Swept     uint64             // late objects that were deleted
	Buried    uint64             // registers that were deleted
	Orphans   []string           // owners that have objects and no register
	Foreign   int                // objects and prefixes that are none of ours
	Left      []Left             // what is still claimable, by this process or another
}

// Left is an owner that is claimable after a pass.
type Left struct {
	Owner, Node string
	Verdict     Verdict // Unknown names destinations that are not configured here
	Records     segment.Counts
	Outcome     Outcome // of this pass's last adoption of it; "" for none
	Err         error   // why it was not adopted; nil: see Verdict and Outcome
}

// Pass scans once, adopts and drains all that is claimable, sweeps, and says what is left. When ctx ends, what runs is given back
// with what it has reached. It needs no register but those that it adopts. Errors: the bucket's, ctx's, or that preconditions are
// not honoured; the report is of what was done until then. A Recovery is for one Pass, or for Run.
func (r *Recovery) Pass(ctx context.Context) (Report, error) {
	if err := r.allowed(ctx); err != nil {
		return Report{}, err
	}
	life, kill := context.WithCancel(context.WithoutCancel(ctx))
	defer kill()
	defer r.reads.Wait()
	done := map[string]result{}
	for {
		found, err := r.findAll(ctx)
		if err != nil {
			return r.report(nil, done), err
		}
		todo := slices.DeleteFunc(slices.Clone(found.claimable), func(c Claimable) bool {
			last, tried := done[c.Owner]
			return r.o.Own(c.Owner) || tried && !(last.moved && last.outcome == Released)
		})
		if len(todo) == 0 {
			return r.report(found, done), nil
		}
		r.attempts(ctx, life, todo, done)
	}
}

// findAll scans, and sweeps what that shows.
func (r *Recovery) findAll(ctx context.Context) (*findings, error) {
	l, err := r.find(ctx, 0)
	if err != nil {
		return nil, err
	}
	found := r.judge(l)
	r.found(found)
	r.sweep(ctx, found.sweep)
	if ctx.Err() != nil {
		return nil, fmt.Errorf("sweep owners: %w", context.Cause(ctx))
	}
	return r.judge(l), nil // with what the sweep has found
}

// attempts makes an attempt at each owner, some side by side.
func (r *Recovery) attempts(ctx, life context.Context, todo []Claimable, done map[string]result) {
	results := make([]result, len(todo))
	slots := make(chan struct{}, r.o.Concurrency)
	var all sync.WaitGroup
	for i := range todo {
		slots <- struct{}{}
		all.Go(func() {
			defer func() { <-slots }()
			results[i] = r.attempt(ctx, life, todo[i].Owner)
		})
	}
	all.Wait()
	for _, res := range results {
		done[res.owner] = res
	}
}

// report is what was done, and what the last scan shows to be left.
func (r *Recovery) report(f *findings, done map[string]result) Report {
	s := r.Stats()
	rep := Report{
		Owners: s.Owners, Adoptions: s.Adoptions, Ledger: s.Ledger, Swept: s.Swept, Buried: s.Buried, Orphans: s.Orphans, Foreign: s.Foreign,
	}
	if f == nil {
		return rep
	}
	rep.Orphans = f.orphans
	for _, c := range f.claimable {
		look := r.lookAt(r.register(objstore.OwnerKey{Owner: c.Owner}), c.Owner)
		look.Known, look.Own = r.o.Knows, r.o.Own(c.Owner)
		look.Objects = ObjectsBeyond // asked for where nothing is owed: that is why it is claimable
		l := Left{Owner: c.Owner, Node: look.Seen.Node, Verdict: Judge(look), Outcome: done[c.Owner].outcome, Err: done[c.Owner].err}
		if look.Body != nil {
			l.Records = look.Body.Owed()
		}
		rep.Left = append(rep.Left, l)
	}
	return rep
}
