package agent

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"
)

// Shares of shutdown.timeout. Each step gets what earlier ones left of theirs; the last is reserved for saving.
const (
	listenersUntil   = 0.4  // listeners closed, requests in hand answered, what was adopted given back
	drainUntil       = 0.75 // lanes drained
	sharedDrainUntil = 0.55 // lanes drained, where what is left is shipped
	shipUntil        = 0.92 // the rest shipped, the register retired
	archiveUntil     = 0.96 // what is delivered archived
	// pollInterval is how often a stop looks whether anything is pending.
	pollInterval = 10 * time.Millisecond
)

// Stop stops the agent within shutdown.timeout. skipDrain, when it is closed, ends the wait for the drain. The error says what
// could not be closed; what is left undelivered is no error.
func (a *Agent) Stop(skipDrain <-chan struct{}) error {
	begin := time.Now()
	timeout := a.cfg.Shutdown.Timeout
	at := func(share float64) time.Time { return begin.Add(time.Duration(float64(timeout) * share)) }
	a.stopping.Store(true)
	a.log.Info("stopping", zap.Duration("timeout", timeout))

	ctx, cancel := context.WithDeadline(context.Background(), at(listenersUntil))
	claims := make(chan error, 1)
	go func() { claims <- a.shared.stopClaims(ctx) }()
	err := errors.Join(a.stopReceiver(ctx), <-claims)
	cancel()
	a.lanes.stop()
	if a.shared == nil {
		a.awaitDrained(at(drainUntil), skipDrain)
	} else {
		a.awaitDrained(at(sharedDrainUntil), skipDrain)
	}
	if a.shared != nil || a.archive != nil {
		ctx, cancel = context.WithDeadline(context.Background(), at(shipUntil))
		err = errors.Join(err, a.shipRest(ctx))
		cancel()
		ctx, cancel = context.WithDeadline(context.Background(), at(archiveUntil))
		a.archive.stop(ctx)
		cancel()
	}

	ctx, cancel = context.WithDeadline(context.Background(), at(1))
	defer cancel()
	err = errors.Join(err, a.release(ctx))
	left := a.lanes.pending()
	a.log.Info("stopped", zap.Uint64("left_records", left.Records.Sum()), zap.Uint64("left_frames", left.Frames),
		zap.Any("lanes", a.lanes.left()), zap.Duration("took", time.Since(begin)))
	return err
}

func (a *Agent) stopReceiver(ctx context.Context) error {
	if a.receiver == nil {
		return nil
	}
	err := a.receiver.Shutdown(ctx)
	a.receiver = nil
	if err != nil {
		return fmt.Errorf("stop receiver: %w", err)
	}
	return nil
}

// awaitDrained waits until nothing is pending.
func (a *Agent) awaitDrained(until time.Time, skip <-chan struct{}) {
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	for time.Now().Before(until) {
		if left := a.lanes.drainable(); left.Frames == 0 {
			return
		}
		select {
		case <-tick.C:
		case <-skip:
			return
		}
	}
}

// shipRest ends the drains, so that it is settled what is left, and ships that.
func (a *Agent) shipRest(ctx context.Context) error {
	a.endDrain()
	ended := make(chan struct{})
	go func() { // ends with them; the tail of the stop waits for them too
		defer close(ended)
		a.drains.Wait()
	}()
	select {
	case <-ended:
	case <-ctx.Done(): // what they move still is shipped as it stands
	}
	if err := a.shared.ship(ctx); err != nil {
		return fmt.Errorf("ship what is left: %w", err)
	}
	return nil
}

// release ends everything that is open, in order. It is the tail of a stop and of a start that failed. When ctx ends first,
// what hangs (a disk that does not answer) is left to the end of the process and named.
func (a *Agent) release(ctx context.Context) error {
	done := make(chan error, 1)
	go func() { done <- a.closeAll(ctx) }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
	}
	select { // both may be ready
	case err := <-done:
		return err
	case <-time.After(pollInterval):
		return fmt.Errorf("stop: not all closed in time: %w", ctx.Err())
	}
}

func (a *Agent) closeAll(ctx context.Context) (err error) {
	err = a.stopReceiver(ctx)
	if a.endDrain != nil {
		a.endDrain()
	}
	a.drains.Wait()
	err = errors.Join(err, a.archive.close(), a.shared.close())
	if a.lanes != nil {
		err = errors.Join(err, a.lanes.close())
	}
	for _, d := range a.dests {
		err = errors.Join(err, d.close())
	}
	if a.admin != nil {
		err = errors.Join(err, a.admin.stop(ctx))
	}
	if a.lock != nil {
		err = errors.Join(err, a.lock.Close())
	}
	return err
}
