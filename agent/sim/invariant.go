// Package sim states what must hold of shipping and recovery, and judges by it: Judge is told of what was acknowledged, what
// the bucket went through and what arrived, and says which of the numbered invariants of docs/protocol.md that breaks. The
// simulation in its tests runs the real shipper and the real recovery of several nodes against one bucket in memory, with all
// calls of all nodes and the passing of time in the hand of a seeded driver (objstore/objtest.Gate).
//
// It guarantees that a ViolationError names an event that contradicts an invariant; nothing is guessed from times alone but the
// windows in which a duplicate may be made. It assumes that it is told of everything, in the order in which it happened.
package sim

import "fmt"

// Invariant is the number of an invariant of docs/protocol.md.
type Invariant int

// The invariants.
const (
	I1 Invariant = 1 + iota
	I2
	I3
	I4
	I5
	I6
	I7
	I8
	I9
	I10
	I11
	I12
	I13
	I14
	I15
)

// statement is what an invariant demands of what a Judge sees. "" stands for what it cannot see.
func (i Invariant) statement() string {
	switch i {
	case I1:
		return "an answer with ack: bucket comes after the bucket has the frame within a register's duty, or the frame was delivered"
	case I2:
		return "one id is appended to by one process: no frame id is used twice"
	case I3:
		return "what was once put under a segment's key is all that is ever put there"
	case I4:
		return "every frame that is promised is on a kept disk at or after the cursor, or in the bucket within a register's duty, or delivered"
	case I5:
		return "epochs of a register follow each other, each has one holder, and a register is created once and deleted when it is buried"
	case I6:
		return "a register changes as the protocol's states allow, by its holder or with the next epoch; positions, taken and signed_off never go back"
	case I7:
		return "what a process was told of its commit is true" // of frames: seen by I1 and I4; of registers: objstore/lease
	case I8:
		return "an object goes after a commit that covers it"
	case I11:
		return "a saved cursor does not pass what is neither delivered nor another's duty" // as a loss: I4
	case I12:
		return "no frame arrives twice but for an answer that was lost, a copied disk, or the window of a crash or takeover"
	case I13:
		return "a dry run writes nothing"
	case I14:
		return "a stop ends in its time, and its register is then idle, retired or another's"
	case I15:
		return "at rest nothing is left in segments/, and every register is idle, drained or gone"
	case I9, I10: // of bytes on a disk: package segment
	}
	return ""
}

// String is the number.
func (i Invariant) String() string { return fmt.Sprintf("I%d", int(i)) }

// ViolationError is an event that contradicts an invariant.
type ViolationError struct {
	Invariant Invariant
	What      string
}

func (v *ViolationError) Error() string {
	return fmt.Sprintf("%s (%s): %s", v.Invariant, v.Invariant.statement(), v.What)
}
