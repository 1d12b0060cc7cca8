package recovery

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"ingest-agent/objstore/lease"
	"ingest-agent/recovery/owner"
	"ingest-agent/segment"
)

// Objects says what is known of the objects below an owner's prefix.
type Objects uint8

// What a listing of the prefix can have shown. That a listing by delimiter names the prefix shows nothing: some stores name
// one that is empty.
const (
	ObjectsUnknown Objects = iota // not listed
	ObjectsNone
	ObjectsBelow  // some, each wholly before its lane's Exported
	ObjectsBeyond // some, of which one or more end behind it
	ObjectsSome   // some, of which nobody has asked where they lie
)

// Look is what is known of one owner, at one moment.
type Look struct {
	Seen lease.Seen
	// Whose is what lease.Register.Judge says of Seen: the one rule on who beats and who is silent.
	Whose lease.Verdict
	// Unchanged is for how long the register has been as it is, at least (see Unchanged).
	Unchanged time.Duration
	Body      *owner.Body // nil: Err says why it cannot be read, or there is no register
	Err       error       // of reading the register
	Objects   Objects
	// Late are the lanes that have objects which the register does not name, as far as that is known.
	Late []segment.LaneID
	// Own says that the id is in present use by this process.
	Own bool
	// Known says whether a destination is configured here. nil: all are.
	Known func(destination string) bool

	StaleAfter, Retention time.Duration // recovery.stale_after and recovery.tombstone_retention
}

// secondCut is how much older than it is a register can seem, by two times of the bucket that are cut to whole seconds.
const secondCut = time.Second

// Unchanged is for how long a register has been as it was seen, at least: by the bucket's own time, or by how long this process
// has known it.
func Unchanged(s *lease.Seen, now time.Time) time.Duration {
	age := now.Sub(s.Since)
	if s.Since.IsZero() {
		age = 0
	}
	if !s.Modified.IsZero() {
		age = max(age, s.Date.Sub(s.Modified)-secondCut)
	}
	return max(age, 0)
}

// Kind is what may be done about an owner.
type Kind uint8

// The kinds of verdicts.
const (
	Orphan             Kind = iota // there is no register; what is below the prefix is reported, and not touched
	NotOwn                         // in present use by this process
	NotBeating                     // its holder may be alive
	ClaimRetired                   // stopped, and owes
	ClaimSilent                    // its holder was silent for StaleAfter
	ClaimReleased                  // somebody has adopted it, or handed it over, and nobody holds it
	ClaimMine                      // this process holds it; without an adoption under way, by a claim whose outcome was unknown
	ClaimLate                      // idle or drained, with objects that are still to be exported
	SweepBelow                     // idle or drained: what is there is exported, and may be deleted
	SweepSignedOff                 // drained and signed off: what is there is exported, or on the owner's own disk
	Bury                           // the retention is over and the prefix empty, or it is buried and still there
	NothingIdle                    // nothing owed
	NothingDrained                 // nothing owed
	Unreadable                     // of a later version of the program, or damaged: not touched
	UnknownDestination             // claimable, by somebody who knows the destinations of what it owes
)

// Verdict is what may be done about an owner, and why.
type Verdict struct {
	Kind   Kind
	Silent time.Duration // of ClaimSilent: at least so long
	// Unknown are destinations of lanes that owe and that are not configured here, sorted. With a Kind that is claimable: of
	// some of the lanes.
	Unknown []string
}

// Claimable says whether the owner may be adopted by this process.
func (v Verdict) Claimable() bool {
	switch v.Kind {
	case ClaimRetired, ClaimSilent, ClaimReleased, ClaimMine, ClaimLate:
		return true
	case Orphan, NotOwn, NotBeating, SweepBelow, SweepSignedOff, Bury, NothingIdle, NothingDrained, Unreadable, UnknownDestination:
	}
	return false
}

// String is the verdict for people, and stable.
func (v Verdict) String() string {
	switch v.Kind {
	case Orphan:
		return "not: no register"
	case NotOwn:
		return "not: own"
	case NotBeating:
		return "not: beating"
	case ClaimRetired:
		return "claimable: retired"
	case ClaimSilent:
		return "claimable: silent for " + Coarse(v.Silent)
	case ClaimReleased:
		return "claimable: released"
	case ClaimMine:
		return "claimable: claimed here"
	case ClaimLate:
		return "claimable: late objects"
	case SweepBelow:
		return "sweep: late objects below exported"
	case SweepSignedOff:
		return "sweep: late objects of a signed-off owner"
	case Bury:
		return "bury"
	case NothingIdle:
		return "nothing owed: idle"
	case NothingDrained:
		return "nothing owed: drained"
	case Unreadable:
		return "not: unreadable"
	case UnknownDestination:
		return "not: unknown destination " + strings.Join(v.Unknown, ", ")
	}
	return fmt.Sprintf("verdict %d", v.Kind)
}

// Judge says what may be done about an owner. Who claims or changes it does so on the version that was judged, so that what
// has happened since is never overruled.
func Judge(l Look) Verdict {
	if l.Err != nil {
		return Verdict{Kind: Unreadable}
	}
	if l.Whose == lease.Absent {
		return Verdict{Kind: Orphan}
	}
	if l.Body == nil {
		return Verdict{Kind: Unreadable}
	}
	if l.Seen.State == owner.Buried {
		return Verdict{Kind: Bury} // nothing leads out of it, whatever else is true
	}
	if l.Own {
		return Verdict{Kind: NotOwn}
	}
	switch l.Seen.State {
	case owner.Idle, owner.Drained:
		return l.resting()
	case owner.Live, owner.Adopted, owner.Retired:
		return l.owing()
	}
	return Verdict{Kind: Unreadable} // a state of a later version
}

// owing judges an owner that owes something, or may: it is claimed in any case, so that it comes to an end.
func (l *Look) owing() Verdict {
	switch {
	case l.Whose == lease.Beating:
		return Verdict{Kind: NotBeating}
	case l.Whose == lease.Mine:
		return l.claim(Verdict{Kind: ClaimMine})
	case l.Seen.State == owner.Retired:
		return l.claim(Verdict{Kind: ClaimRetired})
	case l.Whose == lease.Silent:
		return l.claim(Verdict{Kind: ClaimSilent, Silent: max(l.Unchanged, l.StaleAfter)})
	}
	return l.claim(Verdict{Kind: ClaimReleased})
}

// resting judges an owner that owes nothing by its register.
func (l *Look) resting() Verdict {
	nothing := Verdict{Kind: NothingIdle}
	if l.Seen.State == owner.Drained {
		nothing.Kind = NothingDrained
	}
	if l.Whose == lease.Beating {
		return Verdict{Kind: NotBeating} // no edit leads here
	}
	switch l.Objects {
	case ObjectsUnknown:
		return nothing
	case ObjectsNone:
		if l.Unchanged >= l.Retention {
			return Verdict{Kind: Bury}
		}
		return nothing
	case ObjectsBelow, ObjectsBeyond, ObjectsSome:
	}
	switch {
	case l.Body.SignedOff:
		return Verdict{Kind: SweepSignedOff}
	case l.Objects == ObjectsBelow:
		return Verdict{Kind: SweepBelow}
	case l.Seen.State == owner.Idle && l.Unchanged < l.StaleAfter:
		return nothing // its process may be alive, and on the way back to live
	}
	return l.claim(Verdict{Kind: ClaimLate})
}

// claim is v, unless all that is owed is for destinations that are not known here.
func (l *Look) claim(v Verdict) Verdict {
	if l.Known == nil {
		return v
	}
	owes := slices.Clone(l.Late)
	if l.Body.SignedOff {
		owes = nil // what is not named is the owner's own
	}
	for id, lane := range l.Body.Lanes {
		if lane.Owes() {
			owes = append(owes, id)
		}
	}
	known := len(owes) == 0
	for _, id := range owes {
		if l.Known(id.Destination) {
			known = true
		} else {
			v.Unknown = append(v.Unknown, id.Destination)
		}
	}
	slices.Sort(v.Unknown)
	v.Unknown = slices.Compact(v.Unknown)
	if !known {
		v.Kind, v.Silent = UnknownDestination, 0
	}
	return v
}

// Coarse writes a duration as people say it: 45s, 14m, 30h, 9d. It is never rounded up.
func Coarse(d time.Duration) string {
	const day = 24 * time.Hour
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%ds", d/time.Second)
	case d < time.Hour:
		return fmt.Sprintf("%dm", d/time.Minute)
	case d < 2*day:
		return fmt.Sprintf("%dh", d/time.Hour)
	}
	return fmt.Sprintf("%dd", d/day)
}
