package segment

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Drop is the oldest part of a lane's backlog that an operator may drop: found first, so that it can be shown, then dropped.
type Drop struct {
	Frames  uint64
	Records Counts
	Bytes   Counts // of bodies

	lane *Lane
	step Progress
}

// FindDrop finds the frames at the lane's cursor that were received at or before a time, up to the first younger one. The
// lane must be open, drain only, and without a drain. Damage on the way is part of the step and counts as lost to it.
// Nothing changes but for the copies that a read keeps of damaged bytes. Errors: ctx's, the disk's, or ErrVersion.
func FindDrop(ctx context.Context, l *Lane, before time.Time) (d *Drop, err error) {
	d = &Drop{lane: l}
	source := l.Source()
	defer func() {
		if cerr := source.Close(); err == nil && cerr != nil {
			err = fmt.Errorf("close source: %w", cerr)
		}
	}()
	ended, end := context.WithCancel(context.Background())
	end() // so that the source says where it would wait for more
	for {
		if err := ctx.Err(); err != nil {
			return nil, fmt.Errorf("find frames to drop: %w", err)
		}
		it, err := source.Next(ended)
		if errors.Is(err, context.Canceled) {
			return d, nil
		}
		if err != nil {
			return nil, fmt.Errorf("find frames to drop: %w", err)
		}
		if it.Frame != nil && it.Frame.Received.After(before) {
			d.step.Oldest = it.Frame.Received
			return d, nil
		}
		d.take(&it)
	}
}

// take adds an item to the step.
func (d *Drop) take(it *Item) {
	p := &d.step
	p.To, p.Again = it.Next, p.Again.Add(it.Again)
	p.Out = p.Out.Add(it.Lost).Add(it.HandedOver)
	p.Ledger.HandedOver = p.Ledger.HandedOver.Add(it.HandedOver.Records)
	if it.Lost != (Totals{}) {
		p.Ledger.lose(it.Cause, it.Lost.Records)
	}
	if it.Frame == nil {
		return
	}
	n := it.Frame.Totals()
	p.Out = p.Out.Add(n)
	p.Ledger.lose(LostDropped, n.Records)
	d.Frames += n.Frames
	d.Records = d.Records.Add(n.Records)
	d.Bytes = d.Bytes.Add(it.Frame.Signal.Of(n.Bytes))
}

// Do moves the lane's cursor over what was found. It is durable when the lane has been closed without an error, which also
// removes the segments that are passed as a whole.
func (d *Drop) Do() {
	if d.step.To != (Position{}) {
		d.lane.Advance(&d.step)
	}
}
