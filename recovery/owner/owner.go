// Package owner is the register of an owner of lanes: what it holds, which states there are, and every change that may be made
// to it, as pure edits of a lease.Record. Who owns what is decided here and nowhere else; shipper and recovery call the edits.
//
// Guarantee: an edit that the state does not allow fails with ErrState and changes nothing; Taken is set once, when the state
// leaves live, retired or idle, only grows after that, and stands still once the owner has signed off; Exported and Shipped
// never go back. Edits set values and never add to what is there, so that one that is applied again, on a register that
// others have amended meanwhile, does the same.
//
// Assumption: positions of one register are compared with each other only. A lane owes from the bucket if and only if
// Exported is before End.
package owner

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"ingest-agent/objstore/lease"
	"ingest-agent/segment"
)

// The states of the register. Absent, and buried, which reads as absent, are the beginning and the end.
const (
	Live    = "live"    // its process ships and beats
	Idle    = "idle"    // nothing is owed from the bucket; nobody holds it
	Retired = "retired" // stopped, and owes: anybody may adopt it, at once
	Adopted = "adopted" // owes, and is another's duty; without a holder anybody may take it at once
	Drained = "drained" // all that was taken is exported
	Buried  = "buried"  // about to be deleted; nothing leads out of it
)

// ErrState says that a register is not in a state in which the change may be made.
var ErrState = errors.New("state does not allow it")

// Body is what the register says about the owner's lanes.
type Body struct {
	Lanes map[segment.LaneID]*Lane `json:"lanes"`
	// SignedOff says that the owner's process knows that it is adopted: what lies at or behind Taken is its own duty, and
	// Taken stands still.
	SignedOff bool `json:"signed_off,omitempty"`
}

// Lane is one lane of an owner.
type Lane struct {
	// Exported names the next frame that is to be exported: an object that ends at or before it may go.
	Exported segment.Position `json:"exported"`
	// Shipped is the end of the last object that the owner has named.
	Shipped segment.Position `json:"shipped"`
	// Taken is up to where the frames are the adopters' duty. Set when the owner is adopted.
	Taken *segment.Position `json:"taken,omitempty"`
	// Owed are the records between Exported and End, as far as is known: those of objects that the owner did not live to name
	// are not in it.
	Owed segment.Counts `json:"owed"`
	// Passed are the records of the lane before Exported, as its own disk counts them.
	Passed segment.Counts `json:"passed"`
}

// End is up to where frames are owed from the bucket.
func (l *Lane) End() segment.Position {
	if l.Taken != nil {
		return *l.Taken
	}
	return l.Shipped
}

// Owes says whether something is owed from the bucket.
func (l *Lane) Owes() bool { return l.Exported.Before(l.End()) }

// Owes says whether some lane owes something from the bucket.
func (b *Body) Owes() bool {
	for _, l := range b.Lanes {
		if l.Owes() {
			return true
		}
	}
	return false
}

// Owed sums the records that are owed from the bucket.
func (b *Body) Owed() (n segment.Counts) {
	for _, l := range b.Lanes {
		if l.Owes() {
			n = n.Add(l.Owed)
		}
	}
	return n
}

// IDs returns the lanes in order.
func (b *Body) IDs() []segment.LaneID {
	return slices.SortedFunc(maps.Keys(b.Lanes), segment.LaneID.Compare)
}

// Read returns the body of a register.
func Read(r *lease.Record) (*Body, error) {
	b, err := lease.Body[Body](r)
	if err != nil {
		return nil, err
	}
	if b.Lanes == nil {
		b.Lanes = map[segment.LaneID]*Lane{}
	}
	for id, l := range b.Lanes {
		if l == nil {
			return nil, fmt.Errorf("lane %s is null: %w", id, lease.ErrFormat)
		}
	}
	return &b, nil
}

// edit is an Edit that may be made in some states, and leaves the register in state to, or in the one it is in for "".
func edit(what, to string, from []string, change func(state string, b *Body) error) lease.Edit {
	return func(r *lease.Record) error {
		if !slices.Contains(from, r.State) {
			return fmt.Errorf("%s an owner that is %q: %w", what, r.State, ErrState)
		}
		b, err := Read(r)
		if err != nil {
			return err
		}
		if err := change(r.State, b); err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
		if to != "" {
			r.State = to
		}
		return r.SetBody(b)
	}
}

// later moves p forward, never back.
func later(p *segment.Position, to segment.Position) {
	if p.Before(to) {
		*p = to
	}
}
