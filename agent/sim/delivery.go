package sim

import (
	"slices"
	"time"

	"ingest-agent/objstore/lease"
	"ingest-agent/recovery/owner"
	"ingest-agent/segment"
)

// Source is where a frame is delivered from: a copy of a disk, or, if Owner is set, an adopted owner's objects.
type Source struct {
	Copy  int
	Owner string
}

// Attempt is one try to deliver a frame.
type Attempt struct {
	Frame    segment.FrameID
	Lane     segment.LaneID
	Position segment.Position
	From     Source
	Process  string // its name for the bucket's writes
	ID       string // its name in registers
	// Ships are the ids under which the process has shipped since it read the frame, of whose end it need not know.
	Ships []string
	// Waited says that the process has given up waiting for the hand-over of earlier ids of its disk.
	Waited bool
	// Passed says that the process knows that the frame is another's duty, or has passed its saved cursor.
	Passed bool

	epoch lease.Epoch
	began time.Time
	known time.Time // when the process was told of its success; zero: it was not
}

// Begin is told of an attempt before it leaves the process.
func (j *Judge) Begin(a *Attempt) {
	j.mu.Lock()
	defer j.mu.Unlock()
	a.began = time.Now()
	if a.Passed {
		j.breaks(I12, "%s delivers %s, which it knows to be delivered or another's duty", a.Process, a.Frame)
	}
	if a.From.Owner != "" {
		j.beginAdopted(a)
		return
	}
	if f := j.frames[a.Frame]; f != nil {
		for _, p := range f.places {
			j.beginShipped(a, p)
		}
	}
}

// beginShipped checks that who delivers a frame from a disk does not know that it lies in the bucket, as another's duty.
func (j *Judge) beginShipped(a *Attempt, p placement) {
	r := j.owners[p.at.owner]
	l := r.lane(p.at.lane)
	if l == nil || p.pos.Before(l.Exported) || !p.pos.Before(l.End()) || j.copies[r.process] != a.From.Copy {
		return
	}
	switch {
	case r.process == a.Process && !slices.Contains(a.Ships, p.at.owner):
		j.breaks(I12, "%s delivers %s from its disk, and has signed it over: %s", a.Process, a.Frame, r)
	case r.process != a.Process && !a.Waited:
		j.breaks(I12, "%s delivers %s from its disk, which an earlier process has shipped, and has not waited: %s", a.Process, a.Frame, r)
	}
}

// beginAdopted checks that who delivers an adopted frame may.
func (j *Judge) beginAdopted(a *Attempt) {
	r := j.owners[a.From.Owner]
	l := r.lane(a.Lane)
	switch {
	case r == nil || !r.there || l == nil:
		j.breaks(I6, "%s delivers %s of a register that is not there", a.Process, a.Frame)
	case r.record.Holder != a.ID:
		j.breaks(I6, "%s delivers %s and does not hold the register: %s", a.Process, a.Frame, r)
	case a.Position.Before(l.Exported):
		j.breaks(I12, "%s delivers %s at %s, which is before what is exported: %s", a.Process, a.Frame, a.Position, r)
	case !a.Position.Before(l.End()):
		j.breaks(I12, "%s delivers %s at %s, which is behind what was taken: %s", a.Process, a.Frame, a.Position, r)
	default:
		a.epoch = r.record.Epoch
	}
}

// Landed is told that what an attempt carried has arrived, perhaps long after its process has gone.
func (j *Judge) Landed(a *Attempt) {
	j.mu.Lock()
	defer j.mu.Unlock()
	f := j.frames[a.Frame]
	if f == nil {
		j.breaks(I9, "%s delivers %s, which nobody has stored", a.Process, a.Frame)
		return
	}
	delete(j.open, a.Frame)
	if len(f.delivered) == 0 {
		j.counts.Delivered++
	} else {
		j.counts.Twice++
	}
	for _, other := range f.delivered {
		first, then := other, a
		if then.began.Before(first.began) {
			first, then = then, first
		}
		if why := j.unexplained(first, then); why != "" {
			j.breaks(I12, "%s from %+v by %s after %+v by %s: %s", a.Frame, then.From, then.Process, first.From, first.Process, why)
		}
	}
	f.delivered = append(f.delivered, a)
}

// Succeeded is told that the process was told so.
func (j *Judge) Succeeded(a *Attempt) {
	j.mu.Lock()
	defer j.mu.Unlock()
	a.known = time.Now()
}

// unexplained says why a frame may not have been delivered by both attempts; "" if it may. What each of them may do for
// itself was checked when it began.
func (j *Judge) unexplained(first, then *Attempt) string {
	switch {
	case first.known.IsZero():
		return "" // nobody could know
	case j.bounds.Exact:
		return "there was no fault"
	case first.From == then.From && first.Process == then.Process && first.epoch == then.epoch:
		return "the process knew"
	case first.From.Owner == "" && then.From.Owner == "":
		return "" // a crash before the cursor was saved, or two copies of a disk
	case first.From.Owner != "" && then.From.Owner != "":
		return j.twoRegisters(first, then)
	}
	disk, adopted := first, then
	if disk.From.Owner != "" {
		disk, adopted = then, first
	}
	r := j.owners[adopted.From.Owner]
	switch {
	case j.copies[r.process] != disk.From.Copy, disk.Waited:
		return ""
	case disk == then && (!r.there || r.record.State == owner.Buried):
		return "" // it was down for longer than registers are kept
	case j.began[disk.Process] < j.began[r.process]:
		return "" // it died before its cursor was saved
	case r.process != disk.Process:
		return "the disk's process had handed the owner over"
	case disk == then:
		return "" // it had not heard of the adoption, or it would have known
	case first.known.Before(r.own.Add(-j.bounds.Window)):
		return "the register could have said so"
	}
	return ""
}

func (j *Judge) twoRegisters(first, then *Attempt) string {
	a, b := j.owners[first.From.Owner], j.owners[then.From.Owner]
	switch {
	case a != b && j.copies[a.process] == j.copies[b.process]:
		return "it was the duty of two registers"
	case a == b && first.known.Before(a.last[first.epoch].Add(-j.bounds.Window)):
		return "the register could have said so"
	}
	return ""
}
