package recovery

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"ingest-agent/objstore/lease"
)

const (
	// maxBoard bounds the list that all nodes read. More come in turn.
	maxBoard = 500
	// maxFailedScans is after how many scans in a row that failed another node may try, and standBack for how many times the
	// interval this one leaves it to others.
	maxFailedScans = 3
	standBack      = 10
	// spreadPart: intervals differ by up to this part, so that nodes do not go in step.
	spreadPart = 8
)

// scanBody is the body of fleet/scan.json: the list from which all claim.
type scanBody struct {
	Claimable []Claimable `json:"claimable"`
}

const scanning = "scanning"

// lookout is the state of the goroutine that scans, or reads what another has scanned.
type lookout struct {
	seen    lease.Seen
	lease   *lease.Lease    // nil: another scans
	act     context.Context //nolint:containedctx // ends when the lease does
	endKeep func()
	failed  int       // scans in a row
	notNow  time.Time // until then another may take the scan
	turn    int       // of the list, if it is too long
	listed  []Claimable
	sweeper chan struct{} // closed when the last sweep has ended; nil: there was none
}

// lookOut looks who is claimable, once in each interval, for as long as work goes on.
func (r *Recovery) lookOut(work, life context.Context) {
	l := &lookout{}
	for work.Err() == nil {
		interval := r.o.ScanInterval - time.Duration(r.o.Jitter()*float64(r.o.ScanInterval)/spreadPart)
		if err := r.lookOnce(work, l); err != nil && work.Err() == nil {
			r.trouble(err)
		}
		wait(work, interval)
	}
	if l.lease != nil {
		l.endKeep()
		ctx, cancel := context.WithTimeout(life, r.o.StaleAfter/releasePart)
		defer cancel()
		r.trouble(l.lease.Release(ctx, nil)) // if that fails, others wait for the silence
	}
	if l.sweeper != nil {
		<-l.sweeper
	}
	r.reads.Wait()
}

func wait(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// lookOnce scans, if this process holds the scan or can take it, or reads what the holder has found.
func (r *Recovery) lookOnce(work context.Context, l *lookout) error {
	if l.lease != nil && l.act.Err() != nil {
		l.endKeep()
		l.lease = nil // whoever has it now: what is seen says
		r.scans(false)
	}
	if l.lease == nil {
		if err := r.takeScan(work, l); err != nil || l.lease == nil {
			return err
		}
	}
	var found *findings
	seen, err := r.find(l.act, r.o.ScanInterval/patiencePart)
	if err == nil {
		found = r.judge(seen)
		err = r.publish(l, found)
	}
	if l.failed++; err == nil {
		l.failed = 0
		r.sweepBeside(l, found)
		return nil
	}
	if l.failed >= maxFailedScans { // it beats, but it does not see: let another try
		l.failed, l.notNow = 0, time.Now().Add(standBack*r.o.ScanInterval)
		l.endKeep()
		ctx, cancel := context.WithTimeout(work, r.o.StaleAfter/releasePart)
		defer cancel()
		err = errors.Join(err, l.lease.Release(ctx, nil))
		l.lease = nil
		r.scans(false)
	}
	return err
}

// takeScan reads fleet/scan.json, and takes it where nobody beats.
func (r *Recovery) takeScan(work context.Context, l *lookout) error {
	ctx, cancel := context.WithTimeout(work, r.o.StaleAfter/releasePart)
	defer cancel()
	seen, err := r.scan.Observe(ctx, l.seen)
	if err != nil {
		return fmt.Errorf("look who scans: %w", err)
	}
	l.seen = seen
	if r.scan.Judge(seen) == lease.Beating || time.Now().Before(l.notNow) {
		body, err := lease.Body[scanBody](&seen.Record)
		if err != nil {
			return fmt.Errorf("read what was scanned: %w", err)
		}
		r.show(l, body.Claimable)
		return nil
	}
	if err := r.allowed(work); err != nil {
		if errors.Is(err, errRefused) {
			return nil
		}
		return err
	}
	held, err := r.scan.Acquire(ctx, seen, func(rec *lease.Record) error {
		rec.State = scanning
		return nil
	})
	if errors.Is(err, lease.ErrLost) {
		return nil // to whom, the next look says
	}
	if err != nil {
		return fmt.Errorf("take the scan: %w", err)
	}
	l.lease, l.listed = held, nil
	l.act, l.endKeep = held.Keep(work, nil)
	r.scans(true)
	return nil
}

// publish writes the list, if it has changed, and makes it this node's own.
func (r *Recovery) publish(l *lookout, f *findings) error {
	r.found(f)
	r.show(l, f.claimable)
	list := f.claimable
	if len(list) > maxBoard {
		from := l.turn % len(list)
		list = slices.Concat(list[from:], list[:from])[:maxBoard]
		l.turn = from + maxBoard
	}
	if l.listed != nil && slices.Equal(l.listed, list) {
		return nil
	}
	err := l.lease.Commit(l.act, func(rec *lease.Record) error { return rec.SetBody(scanBody{Claimable: list}) })
	if err != nil {
		return fmt.Errorf("write who is claimable: %w", err)
	}
	l.listed = slices.Concat([]Claimable{}, list)
	return nil
}

// show puts a list onto the board, in an order of this node's own.
func (r *Recovery) show(l *lookout, list []Claimable) {
	list = slices.Clone(list)
	for i := len(list) - 1; i > 0; i-- {
		j := int(r.o.Jitter() * float64(i+1))
		list[i], list[j] = list[j], list[i]
	}
	r.mu.Lock()
	r.board = list
	r.edition++
	if l.lease == nil { // what is known of owners is kept for those that are shown
		shown := map[string]bool{}
		for i := range list {
			shown[list[i].Owner] = true
		}
		for id, k := range r.owners {
			if !shown[id] && !k.reading && !r.working[id] {
				delete(r.owners, id)
			}
		}
	}
	r.mu.Unlock()
	r.Wake()
}
