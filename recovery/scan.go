package recovery

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"ingest-agent/objstore"
	"ingest-agent/recovery/owner"
)

// findings is what a scan has seen.
type findings struct {
	claimable []Claimable // in the order of their ids
	sweep     []string    // owners that may have something to be swept
	orphans   []string    // prefixes without a register
	foreign   int         // objects and prefixes that are none of ours
	owners    int
}

// lists are what the two listings show.
type lists struct {
	owners   map[string]objstore.Version
	dates    map[string]time.Time // the bucket's, of the page that shows the owner
	prefixes map[string]bool
	foreign  int
}

// find scans once: two listings, and the registers that have changed, for which it waits until patience is over; 0: for all.
func (r *Recovery) find(ctx context.Context, patience time.Duration) (*lists, error) {
	l, err := r.list(ctx)
	if err != nil {
		return nil, err
	}
	r.fetch(ctx, r.compare(l), patience)
	if ctx.Err() != nil {
		return nil, fmt.Errorf("scan owners: %w", context.Cause(ctx))
	}
	return l, nil
}

// list lists segments first: an object that is seen has a register that is seen, or it has none.
func (r *Recovery) list(ctx context.Context) (*lists, error) {
	l := &lists{owners: map[string]objstore.Version{}, dates: map[string]time.Time{}, prefixes: map[string]bool{}}
	wanted := func(id string) bool { return r.o.Only == "" || r.o.Only == id }
	byOwner := objstore.ListOptions{Prefix: objstore.SegmentsPrefix, Delimiter: "/"}
	for p, err := range objstore.Pages(ctx, r.o.Bucket, byOwner) {
		if err != nil {
			return nil, err //nolint:wrapcheck // it says what it did
		}
		l.foreign += len(p.Objects)
		for _, prefix := range p.Prefixes {
			if id, err := objstore.ParseOwnerPrefix(prefix); err != nil {
				l.foreign++
			} else if wanted(id) {
				l.prefixes[id] = true
			}
		}
	}
	for p, err := range objstore.Pages(ctx, r.o.Bucket, objstore.ListOptions{Prefix: objstore.OwnersPrefix}) {
		if err != nil {
			return nil, err //nolint:wrapcheck // it says what it did
		}
		for _, info := range p.Objects {
			key, err := objstore.ParseKey(info.Key)
			if id, ok := key.(objstore.OwnerKey); err != nil || !ok {
				l.foreign++
			} else if wanted(id.Owner) {
				l.owners[id.Owner], l.dates[id.Owner] = info.Version, p.Date
			}
		}
	}
	return l, nil
}

// compare says which registers have to be read, sorted, and forgets those that are gone.
func (r *Recovery) compare(l *lists) (changed []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for id, k := range r.owners {
		if _, there := l.owners[id]; !there && !k.reading && !r.working[id] {
			delete(r.owners, id)
		}
	}
	for id, version := range l.owners {
		k := r.owners[id]
		if k == nil {
			k = &known{}
			r.owners[id] = k
		}
		k.listed, k.hinted = version, l.prefixes[id]
		switch {
		case k.seen.Version == version:
			k.seen.Date = l.dates[id]
		case !k.reading && !r.working[id]: // of what is adopted here, the lease knows
			k.reading = true
			changed = append(changed, id)
		}
	}
	slices.Sort(changed)
	return changed
}

// fetch reads registers, some side by side. One that takes longer than patience is seen by the next scan, and holds up no other.
func (r *Recovery) fetch(ctx context.Context, changed []string, patience time.Duration) {
	if len(changed) == 0 {
		return
	}
	read := make(chan struct{})
	r.reads.Go(func() {
		defer close(read)
		slots := make(chan struct{}, fetchesAtOnce)
		var all sync.WaitGroup
		for _, id := range changed {
			slots <- struct{}{}
			all.Go(func() {
				defer func() { <-slots }()
				err := r.read(ctx, r.register(objstore.OwnerKey{Owner: id}), id)
				r.mu.Lock()
				r.owners[id].reading = false
				r.mu.Unlock()
				if ctx.Err() == nil {
					r.trouble(err)
				}
			})
		}
		all.Wait()
	})
	if patience == 0 {
		<-read
		return
	}
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-read:
	case <-timer.C:
	}
}

// patiencePart: a scan waits for registers for this part of the time between two scans.
const patiencePart = 4

// judge says what is to be done about each owner that the listings show.
func (r *Recovery) judge(l *lists) *findings {
	f := &findings{foreign: l.foreign, owners: len(l.owners)}
	for _, id := range slices.Sorted(maps.Keys(l.owners)) {
		look := r.lookAt(r.register(objstore.OwnerKey{Owner: id}), id)
		if look.Seen.Version != l.owners[id] {
			continue // not read yet: what was seen before says nothing about who beats
		}
		r.mu.Lock()
		k := r.owners[id]
		late := k != nil && k.late == look.Seen.Version
		r.mu.Unlock()
		switch {
		case !l.prefixes[id]:
			look.Objects = ObjectsNone
		case late:
			look.Objects = ObjectsBeyond
		}
		switch v := Judge(look); {
		case v.Claimable():
			f.claimable = append(f.claimable, Claimable{Owner: id, Version: look.Seen.Version})
		case v.Kind == Bury, look.Objects == ObjectsUnknown && (v.Kind == NothingIdle || v.Kind == NothingDrained),
			look.Objects == ObjectsUnknown && v.Kind == NotOwn && look.Seen.State == owner.Idle:
			f.sweep = append(f.sweep, id)
		}
	}
	for _, id := range slices.Sorted(maps.Keys(l.prefixes)) {
		if _, there := l.owners[id]; !there {
			f.orphans = append(f.orphans, id)
		}
	}
	return f
}
