package owner

import (
	"fmt"

	"ingest-agent/objstore/lease"
	"ingest-agent/segment"
)

// Progress is where a lane stands, by the disk of its owner.
type Progress struct {
	Exported segment.Position
	Passed   segment.Counts // records before Exported
	// Shipped is the end of the last object that the bucket has confirmed; zero: none beyond what the register says.
	Shipped segment.Position
	// Records are those of the lane before Shipped. Not read where Shipped is zero.
	Records segment.Counts
}

// Begin is the first write of a register, before anything is shipped under its id: it names lanes, and owes nothing. Only
// the process that made the id begins it, and only where there is none.
func Begin(lanes map[segment.LaneID]Progress) lease.Edit {
	return func(r *lease.Record) error {
		if r.State != "" {
			return fmt.Errorf("begin an owner that is %q: %w", r.State, ErrState)
		}
		b := &Body{Lanes: map[segment.LaneID]*Lane{}}
		for id, p := range lanes {
			b.Lanes[id] = &Lane{Exported: p.Exported, Shipped: p.Exported, Passed: p.Passed}
		}
		r.State = Live
		return r.SetBody(b)
	}
}

// Ship names what was shipped and says what was exported: the owner's commit, its heartbeat, and its way back from idle. A
// lane that the register does not name yet is added with nothing owed, which must come before its first object.
func Ship(lanes map[segment.LaneID]Progress) lease.Edit {
	return edit("ship by", Live, []string{Live, Idle}, func(_ string, b *Body) error {
		for id, p := range lanes {
			b.progress(id, p)
		}
		return nil
	})
}

// Rest is the change to idle: everything is exported, and the prefix was listed empty.
func Rest(lanes map[segment.LaneID]Progress) lease.Edit {
	return edit("rest", Idle, []string{Live, Idle}, func(_ string, b *Body) error {
		for id, p := range lanes {
			b.progress(id, p)
		}
		for id, l := range b.Lanes {
			if l.Owes() {
				return fmt.Errorf("lane %s owes frames: %w", id, ErrState)
			}
			// Where the cursor stands, nothing is in the bucket: whatever shows up before it is late.
			l.Shipped = l.Exported
		}
		return nil
	})
}

// Retire is the last commit of a process that stops and owes.
func Retire(lanes map[segment.LaneID]Progress) lease.Edit {
	return edit("retire", Retired, []string{Live}, func(_ string, b *Body) error {
		for id, p := range lanes {
			b.progress(id, p)
		}
		return nil
	})
}

func (b *Body) progress(id segment.LaneID, p Progress) {
	l := b.Lanes[id]
	if l == nil {
		l = &Lane{Exported: p.Exported, Shipped: p.Exported}
		b.Lanes[id] = l
	}
	all := l.Passed.Add(l.Owed) // records before Shipped
	if l.Shipped.Before(p.Shipped) {
		l.Shipped, all = p.Shipped, p.Records
	}
	later(&l.Exported, p.Exported)
	if l.Passed = l.Passed.Max(p.Passed); l.Owes() {
		l.Owed = all.Sub(l.Passed)
	} else {
		later(&l.Shipped, l.Exported)
		l.Owed = segment.Counts{}
	}
}

// HandOver is how a later process on the owner's disk gives up what was shipped under an earlier id: adopted, signed off,
// with the next epoch and no holder (lease.Fence). exported may say for each lane how far the disk has exported frames of
// that id; it must not lie behind the last of them that the disk held. Of an owner that somebody has adopted, it is a sign-off.
func HandOver(exported map[segment.LaneID]Progress) lease.Edit {
	return edit("hand over", Adopted, []string{Live, Idle, Retired}, func(_ string, b *Body) error {
		b.take()
		for id, p := range exported {
			if l := b.Lanes[id]; l != nil {
				l.pass(p.Exported, p.Passed)
			}
		}
		b.SignedOff = true
		return nil
	})
}

// SignOff is how the owner's process, or a later one on its disk, accepts that the owner is adopted or drained
// (lease.Amend): from then on Taken stands still, and what lies at or behind it is the owner's.
func SignOff() lease.Edit {
	return edit("sign off", "", []string{Adopted, Drained}, func(_ string, b *Body) error {
		b.SignedOff = true
		return nil
	})
}

// pass moves Exported forward, with the records before it.
func (l *Lane) pass(exported segment.Position, passed segment.Counts) {
	if !l.Exported.Before(exported) {
		return
	}
	all := l.Passed.Add(l.Owed)
	l.Exported, l.Passed = exported, l.Passed.Max(passed)
	if l.Owed = (segment.Counts{}); l.Owes() {
		l.Owed = all.Sub(l.Passed)
	}
}
