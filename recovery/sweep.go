package recovery

import (
	"context"
	"errors"
	"fmt"

	"go.uber.org/zap"

	"ingest-agent/objstore"
	"ingest-agent/objstore/lease"
	"ingest-agent/recovery/owner"
)

// sweepBeside sweeps beside the next scans, unless the last sweep still goes on.
func (r *Recovery) sweepBeside(l *lookout, f *findings) {
	if l.sweeper != nil {
		select {
		case <-l.sweeper:
		default:
			return
		}
	}
	if len(f.sweep) == 0 {
		return
	}
	ended := make(chan struct{})
	l.sweeper = ended
	act := l.act
	go func() { // joined by lookOut
		defer close(ended)
		r.sweep(act, f.sweep)
	}()
}

// sweep deals with owners that owe nothing: it deletes what came late and is exported, tells the scan of what is still to be
// exported, and buries what is over. Nothing of it needs the scan to be held: each change is made on the version that was judged.
func (r *Recovery) sweep(ctx context.Context, ids []string) {
	for _, id := range ids {
		if ctx.Err() != nil {
			return
		}
		if err := r.sweepOwner(ctx, id); err != nil && !errors.Is(err, lease.ErrLost) {
			r.trouble(fmt.Errorf("sweep owner %s: %w", id, err))
		}
	}
}

func (r *Recovery) sweepOwner(ctx context.Context, id string) error {
	register := r.register(objstore.OwnerKey{Owner: id})
	look := r.lookAt(register, id)
	if look.Body == nil {
		return nil
	}
	if err := r.inspect(ctx, id, &look); err != nil {
		return err
	}
	own := look.Own
	look.Own = false
	kind := Judge(look).Kind
	if own && kind != SweepBelow { // this process has nobody else's sweep while it scans, and asks for nothing while it is idle
		return nil
	}
	switch kind {
	case ClaimLate:
		r.mu.Lock()
		defer r.mu.Unlock()
		if k := r.owners[id]; k != nil {
			k.late = look.Seen.Version
		}
	case SweepBelow, SweepSignedOff:
		return r.sweepObjects(ctx, id, look.Body)
	case Bury:
		return r.bury(ctx, register, id, &look)
	case Orphan, NotOwn, NotBeating, ClaimRetired, ClaimSilent, ClaimReleased, ClaimMine, NothingIdle, NothingDrained, Unreadable,
		UnknownDestination:
	}
	return nil
}

// sweepObjects deletes the objects of an owner that came late and are exported, or are the owner's own. Exported never goes back,
// and who has signed off has done so for ever, so that an older body says nothing wrong.
func (r *Recovery) sweepObjects(ctx context.Context, id string, body *owner.Body) error {
	var gone []ref
	swept := 0
	flush := func() error {
		err := r.delete(ctx, gone)
		swept += len(gone)
		gone = gone[:0]
		return err
	}
	_, err := eachObject(ctx, r.o.Bucket, id, func(o ref) error {
		if !done(body, &o) {
			return nil
		}
		if gone = append(gone, o); len(gone) < deleteChunk {
			return nil
		}
		return flush()
	})
	err = errors.Join(err, flush())
	if swept > 0 {
		r.o.Log.Info("late objects of an owner deleted", zap.String("owner", id), zap.Int("objects", swept))
		r.swept(swept)
	}
	return err
}

// bury ends a register: the write that nothing leads out of, then its removal.
func (r *Recovery) bury(ctx context.Context, register *lease.Register, id string, look *Look) error {
	if look.Seen.State != owner.Buried {
		if _, err := register.Change(ctx, look.Seen, lease.Fence, owner.Bury()); err != nil {
			return fmt.Errorf("bury: %w", err)
		}
	}
	if err := r.o.Bucket.Delete(ctx, objstore.OwnerKey{Owner: id}.String()); err != nil {
		return fmt.Errorf("delete buried register: %w", err)
	}
	r.o.Log.Debug("register of an owner deleted", zap.String("owner", id))
	r.buried()
	return nil
}
