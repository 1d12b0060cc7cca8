package archive

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.uber.org/zap"

	"ingest-agent/objstore"
	"ingest-agent/segment"
)

// Copied says whether an object of this process may be deleted, as far as the archive is concerned. Where it says no, the
// object is copied soon, and then Settled is called. It waits for nothing.
func (a *Archiver) Copied(key objstore.SegmentKey) bool {
	if !keepsLane(key.Lane) {
		return true
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	o := a.asked[key]
	switch {
	case o == nil && len(a.asked) < maxAsked:
		a.asked[key] = &asked{at: time.Now()}
		wake(a.asks)
	case o == nil:
	case o.done:
		delete(a.asked, key)
		return true
	default:
		o.at = time.Now()
	}
	return false
}

// toCopy returns at most n objects that are asked for.
func (a *Archiver) toCopy(now time.Time, n int) (keys []objstore.SegmentKey) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for key, o := range a.asked {
		switch {
		case now.Sub(o.at) >= forgetAsked:
			delete(a.asked, key)
		case !o.done && !now.Before(o.retryAt) && len(keys) < n:
			keys = append(keys, key)
		}
	}
	return keys
}

// objectLoop copies the objects that are asked for.
func (a *Archiver) objectLoop(ctx context.Context) {
	timer := time.NewTimer(lookEvery)
	defer timer.Stop()
	for {
		keys := a.toCopy(time.Now(), objectsAtOnce)
		var all sync.WaitGroup
		for _, key := range keys {
			all.Go(func() { a.copyAsked(ctx, key) })
		}
		all.Wait()
		if ctx.Err() != nil {
			return
		}
		if len(keys) > 0 {
			continue
		}
		timer.Reset(lookEvery)
		select {
		case <-a.asks:
		case <-timer.C:
		case <-ctx.Done():
		}
	}
}

// copyAsked copies an object that somebody waits for.
func (a *Archiver) copyAsked(ctx context.Context, key objstore.SegmentKey) {
	try, cancel := context.WithTimeout(ctx, putTimeout)
	defer cancel()
	err := a.Copy(try, key, endOf(key))
	a.mu.Lock()
	if o := a.asked[key]; o != nil {
		o.done, o.retryAt = err == nil, time.Now().Add(objectRetry)
	}
	a.mu.Unlock()
	if err == nil {
		a.o.Settled()
		return
	}
	if ctx.Err() == nil {
		a.note(err)
	}
}

func keepsLane(text string) bool {
	lane, err := segment.ParseLaneID(text)
	return err == nil && Keeps(lane)
}

// endOf is the position behind the last frame of an object.
func endOf(key objstore.SegmentKey) segment.Position {
	return segment.Position{Seq: segment.Seq(key.Seq), Entry: segment.Entry(key.Last)}.After()
}

// Copy copies into the archive what an object that is about to be deleted holds before a position: what is exported. nil: it
// may be deleted; that is so too where others have deleted it, and after some tries that failed: then its records are counted
// as missed. It may be called by many goroutines.
func (a *Archiver) Copy(ctx context.Context, key objstore.SegmentKey, exported segment.Position) error {
	lane, err := segment.ParseLaneID(key.Lane)
	if err != nil || !Keeps(lane) {
		return nil //nolint:nilerr // it is none of ours
	}
	data, err := objstore.ReadAll(ctx, a.o.Bucket, key.String(), segment.MaxObjectBytes)
	if errors.Is(err, objstore.ErrNotFound) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("archive object: %w", err)
	}
	o, err := segment.ReadObject(data, lane, segment.Seq(key.Seq))
	if err != nil {
		return fmt.Errorf("archive object %s: %w", key, err)
	}
	b := o.Batch()
	if b != nil {
		b = before(b, exported)
	}
	if b == nil {
		return nil
	}
	if err = a.copyBatch(ctx, key.Owner, key.Lane, b); a.letGo(ctx, err) {
		a.o.Log.Warn("object deleted that could not be archived", zap.Stringer("key", key), zap.Error(err))
		a.missed(b.After.Sub(b.Before).Records.Sum())
		return nil
	}
	return err
}

// letGo takes note of how a copy of an object ended, and says whether it has failed for good. An object is not kept for ever
// for an archive that takes nothing.
func (a *Archiver) letGo(ctx context.Context, err error) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch f := &a.objects; {
	case err == nil:
		*f = failing{}
	case errors.Is(ctx.Err(), context.Canceled): // not the archive's failure
	default:
		if f.n++; f.n == 1 {
			f.since = time.Now()
		}
		return f.n >= objectTries && time.Since(f.since) >= a.o.ObjectPatience
	}
	return false
}
