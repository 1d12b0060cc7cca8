package recovery

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"go.uber.org/zap"

	"ingest-agent/objstore"
	"ingest-agent/objstore/lease"
	"ingest-agent/recovery/owner"
	"ingest-agent/segment"
)

const (
	// maxMisses: after so many owners in a row that others have taken, most are taken, and the next scan says which are not.
	maxMisses = 8
	// unknownFor is how long an owner whose destinations are not known here is left alone while its register stays as it is.
	unknownFor = time.Hour
	// maxBackoff bounds how long an owner is left alone with which nothing was achieved.
	maxBackoff = 16 * time.Minute
)

// Claimable is an owner of the list from which all nodes claim.
type Claimable struct {
	Owner string `json:"owner"`
	// Version is that of its register, so that a node that cannot do anything with it need not ask again.
	Version objstore.Version `json:"version"`
}

// result is what an attempt at an owner came to.
type result struct {
	owner   string
	version objstore.Version
	verdict Verdict
	missed  bool    // another was there first
	outcome Outcome // "": it was not adopted
	moved   bool    // something was exported
	err     error
}

// left is an owner that is not tried before a time.
type left struct {
	version objstore.Version // "": whatever its version
	until   time.Time
	fails   int
}

// claims is the claiming loop's own state.
type claims struct {
	edition uint64
	misses  int
	tried   map[string]bool // of this edition
	left    map[string]left
}

// claim starts adoptions from the board, up to the number that may run, until work ends and all of them have.
func (r *Recovery) claim(work, life context.Context) {
	c := claims{tried: map[string]bool{}, left: map[string]left{}}
	for {
		active := r.settle(&c)
		if work.Err() != nil {
			if active == 0 {
				return
			}
		} else {
			for ; active < r.o.Concurrency; active++ {
				next := r.choose(&c)
				if next == nil {
					break
				}
				r.start(work, life, next.Owner)
			}
		}
		<-r.wake
	}
}

// settle takes the results in, and returns how many attempts run.
func (r *Recovery) settle(c *claims) (active int) {
	r.mu.Lock()
	results := r.results
	r.results = nil
	active = len(r.working)
	r.mu.Unlock()
	slices.SortFunc(results, func(a, b result) int { return cmp.Compare(a.owner, b.owner) })
	now := time.Now()
	for i := range results {
		c.take(&results[i], now, r.o.StallAfter)
	}
	return active
}

// take says what a result means for the owner's next turn.
func (c *claims) take(res *result, now time.Time, first time.Duration) {
	if c.misses++; !res.missed {
		c.misses = 0
	}
	was := c.left[res.owner]
	delete(c.left, res.owner)
	switch {
	case res.missed:
	case res.verdict.Kind == UnknownDestination:
		c.left[res.owner] = left{version: res.version, until: now.Add(unknownFor)}
	case res.moved && res.outcome != Drained: // the rest has come to nothing for a while: others first
		c.left[res.owner] = left{until: now.Add(first)}
	case res.outcome != Drained && (res.err != nil || res.outcome != ""):
		c.left[res.owner] = left{until: now.Add(min(maxBackoff, first<<min(was.fails, 10))), fails: was.fails + 1}
	}
}

// choose returns the next owner to try; nil: there is none.
func (r *Recovery) choose(c *claims) *Claimable {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	if c.edition != r.edition {
		c.edition, c.misses = r.edition, 0
		clear(c.tried)
		for id, l := range c.left { // what it has failed with is forgotten when it was left alone for long
			if now.Sub(l.until) > maxBackoff {
				delete(c.left, id)
			}
		}
	}
	if c.misses >= maxMisses {
		return nil
	}
	var best *Claimable
	for i := range r.board {
		o := &r.board[i]
		l := c.left[o.Owner]
		waits := now.Before(l.until) && (l.version == "" || l.version == o.Version)
		switch {
		case c.tried[o.Owner] || waits || r.o.Own(o.Owner):
		case r.owners[o.Owner] != nil && r.owners[o.Owner].reading: // it has changed, and the scan will say to what
		case r.working[o.Owner]: // what is given back meanwhile has its turn when the next list shows it
			c.tried[o.Owner] = true
		case best == nil || l.until.Before(c.left[best.Owner].until):
			best = o // who has had no turn comes before who has
		}
	}
	if best != nil {
		c.tried[best.Owner] = true
	}
	return best
}

// start makes an attempt at an owner, in a goroutine of its own: a store that is slow for one holds up no other.
func (r *Recovery) start(work, life context.Context, id string) {
	r.mu.Lock()
	r.working[id] = true
	r.mu.Unlock()
	r.adoptions.Go(func() {
		res := r.attempt(work, life, id)
		r.mu.Lock()
		delete(r.working, id)
		r.results = append(r.results, res)
		r.mu.Unlock()
		r.Wake()
	})
}

// attempt looks at an owner, and adopts and drains it if it is claimable.
func (r *Recovery) attempt(work, life context.Context, id string) result {
	res := result{owner: id}
	if res.err = r.allowed(work); res.err != nil {
		return res
	}
	register := r.register(objstore.OwnerKey{Owner: id})
	look, err := r.look(work, register, id)
	if err != nil {
		res.err = err
		r.trouble(err)
		return res
	}
	res.version, res.verdict = look.Seen.Version, Judge(look)
	if !res.verdict.Claimable() {
		res.missed = res.verdict.Kind != UnknownDestination
		r.unknown(id, &res.verdict)
		return res
	}
	claim, cancel := context.WithTimeout(work, r.o.StaleAfter/releasePart)
	l, err := register.Acquire(claim, look.Seen, owner.Adopt())
	cancel()
	switch {
	case errors.Is(err, lease.ErrLost):
		res.missed = true
		r.conflict()
		return res
	case err != nil:
		res.err = fmt.Errorf("claim owner %s: %w", id, err)
		r.trouble(res.err)
		return res
	}
	r.unknown(id, nil)
	log := r.o.Log.With(zap.String("owner", id), zap.String("owner_node", look.Seen.Node))
	log.Info("adopting an owner", zap.Stringer("verdict", res.verdict), zap.Uint64("records", look.Body.Owed().Sum()))
	a := &adoption{
		r: r, owner: id, lease: l, log: log, kick: make(chan struct{}, 1),
		pending: map[segment.LaneID]pending{}, stuck: map[segment.LaneID]bool{},
	}
	r.begun(id)
	res.outcome = a.run(work, life)
	res.moved, res.version = a.progress, l.Last().Version
	r.ended(id, res.outcome)
	return res
}

// look reads an owner's register, and its objects where the verdict depends on them.
func (r *Recovery) look(ctx context.Context, register *lease.Register, id string) (Look, error) {
	ctx, cancel := context.WithTimeout(ctx, r.o.StaleAfter/releasePart)
	defer cancel()
	if err := r.read(ctx, register, id); err != nil {
		return Look{}, err
	}
	l := r.lookAt(register, id)
	l.Known, l.Own = r.o.Knows, r.o.Own(id)
	switch {
	case l.Body == nil:
		return l, nil
	case l.Seen.State == owner.Idle, l.Seen.State == owner.Drained, Judge(l).Kind == UnknownDestination:
		err := r.inspect(ctx, id, &l)
		return l, err
	}
	return l, nil
}

// read brings what is known of an owner's register up to date.
func (r *Recovery) read(ctx context.Context, register *lease.Register, id string) error {
	r.mu.Lock()
	var before lease.Seen
	if k := r.owners[id]; k != nil && k.state.Err == nil {
		before = k.seen
	}
	r.mu.Unlock()
	seen, err := register.Observe(ctx, before)
	if err != nil && !errors.Is(err, lease.ErrFormat) {
		return fmt.Errorf("look at owner %s: %w", id, err)
	}
	var body *owner.Body
	if err == nil && seen.Version != "" {
		body, err = owner.Read(&seen.Record)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	k := r.owners[id]
	if k == nil {
		k = &known{}
		r.owners[id] = k
	}
	if err != nil {
		seen.Version = k.listed // it is not read again before it changes
	}
	k.seen, k.state = seen, Look{Body: body, Err: err}
	return nil
}

// lookAt is what is known of an owner, without its objects.
func (r *Recovery) lookAt(register *lease.Register, id string) Look {
	r.mu.Lock()
	defer r.mu.Unlock()
	k := r.owners[id]
	if k == nil {
		return Look{}
	}
	l := k.state
	l.Seen, l.Whose, l.Unchanged = k.seen, register.Judge(k.seen), Unchanged(&k.seen, time.Now())
	l.StaleAfter, l.Retention = r.o.StaleAfter, r.o.Retention
	return l
}

// inspect lists an owner's objects for its verdict.
func (r *Recovery) inspect(ctx context.Context, id string, l *Look) error {
	l.Objects, l.Late = ObjectsNone, nil
	_, err := eachObject(ctx, r.o.Bucket, id, func(o ref) error {
		lane := l.Body.Lanes[o.lane]
		switch {
		case lane != nil && !lane.Exported.Before(o.end()):
			l.Objects = max(l.Objects, ObjectsBelow)
			return nil
		case lane == nil || lane.End().Before(o.end()):
			if n := len(l.Late); n == 0 || l.Late[n-1] != o.lane {
				l.Late = append(l.Late, o.lane)
			}
		}
		l.Objects = ObjectsBeyond
		return nil
	})
	return err
}
