package owner

import (
	"fmt"

	"ingest-agent/objstore/lease"
	"ingest-agent/segment"
)

// take sets Taken where it is not set.
func (b *Body) take() {
	for _, l := range b.Lanes {
		if l.Taken == nil {
			at := l.Shipped
			l.Taken = &at
		}
	}
}

// Adopt is the claim (Register.Acquire). Of an owner that is live, retired or idle it sets Taken; a re-adoption keeps it.
func Adopt() lease.Edit {
	return edit("adopt", Adopted, []string{Live, Idle, Retired, Adopted, Drained}, func(_ string, b *Body) error {
		b.take()
		return nil
	})
}

// Raise adds objects beyond Taken, which the owner wrote and did not live to name: ends says how far they go, and from is
// where the first begins of a lane that the register does not know. records are theirs. An owner that has signed off has
// them on its disk: ErrState.
func Raise(lane segment.LaneID, from, end segment.Position) lease.Edit {
	return edit("raise what is taken of", "", []string{Adopted}, func(_ string, b *Body) error {
		if b.SignedOff {
			return fmt.Errorf("it has signed off: %w", ErrState)
		}
		l := b.Lanes[lane]
		if l == nil {
			l = &Lane{Exported: from, Shipped: from}
			b.Lanes[lane] = l
			b.take()
		}
		later(l.Taken, end)
		return nil
	})
}

// Export says how far an adopter has exported a lane, and how many of its records have been passed since the lane was
// created.
func Export(lanes map[segment.LaneID]Progress) lease.Edit {
	return edit("export", "", []string{Adopted}, func(_ string, b *Body) error {
		for id, p := range lanes {
			l := b.Lanes[id]
			if l == nil {
				return fmt.Errorf("lane %s is not the owner's: %w", id, ErrState)
			}
			l.pass(p.Exported, p.Passed)
		}
		return nil
	})
}

// Finish is the change to drained: all that was taken is exported, and the prefix was listed empty.
func Finish() lease.Edit {
	return edit("finish", Drained, []string{Adopted, Drained}, func(_ string, b *Body) error {
		for id, l := range b.Lanes {
			if l.Owes() {
				return fmt.Errorf("lane %s owes frames: %w", id, ErrState)
			}
		}
		return nil
	})
}

// Bury is the last write of a register, before it is deleted (lease.Fence): after the retention, with an empty prefix.
func Bury() lease.Edit {
	return edit("bury", Buried, []string{Idle, Drained, Buried}, func(_ string, b *Body) error {
		if b.Owes() {
			return fmt.Errorf("it owes frames: %w", ErrState)
		}
		return nil
	})
}
