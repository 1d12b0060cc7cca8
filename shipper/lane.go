package shipper

import (
	"context"

	"ingest-agent/segment"
)

// Lane is what shipping needs of a lane. *segment.Lane is one; the simulation has another.
type Lane interface {
	ID() segment.LaneID
	// FirstSeq is the first segment number of this process: all frames of earlier ones lie before it. It does not change.
	FirstSeq() segment.Seq
	// State is where the lane stands now. It costs no disk access.
	State() segment.State
	// Read returns durable frames of one segment, from a position on or from the first frame behind it, with bodies of
	// about maxBytes or one frame. io.EOF: there is none yet. Calls for positions that follow each other read on where
	// the last one ended. One goroutine at a time.
	Read(from segment.Position, maxBytes int) (*segment.Batch, error)
	// Spill removes sealed segments before a position, all of whose frames are named by the register, from the local disk.
	// The drain reads them from the bucket when their turn comes. It returns the bytes that came back.
	Spill(ctx context.Context, to segment.Position) (int64, error)
	// Skip makes the drain pass the frames before a position as handed over: they are another's duty.
	Skip(to segment.Position)
}
