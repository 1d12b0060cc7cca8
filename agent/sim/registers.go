package sim

import (
	"encoding/json"
	"fmt"
	"hash/fnv"
	"slices"
	"strings"
	"time"

	"ingest-agent/objstore"
	"ingest-agent/objstore/lease"
	"ingest-agent/recovery/owner"
	"ingest-agent/segment"
)

// register is what became of the register of an owner.
type register struct {
	there    bool
	record   lease.Record
	body     *owner.Body
	process  string    // that began it
	beginner string    // as a holder
	own      time.Time // when its last write was sent
	holders  map[lease.Epoch]string
	last     map[lease.Epoch]time.Time // when the last write of an epoch's holder was sent
}

func (r *register) String() string {
	if r == nil || !r.there {
		return "absent"
	}
	return fmt.Sprintf("{begun by %s, epoch %d, holder %q, %s %s}", r.process, r.record.Epoch, r.record.Holder, r.record.State, r.record.Body)
}

func (r *register) lane(id segment.LaneID) *owner.Lane {
	if r == nil || !r.there {
		return nil
	}
	return r.body.Lanes[id]
}

// covers says whether a frame that is in the bucket is the register's duty, or will be as soon as somebody adopts it.
func (r *register) covers(p placement) bool {
	if r == nil || !r.there || r.record.State == owner.Buried {
		return false
	}
	l := r.body.Lanes[p.at.lane]
	if l == nil {
		return !r.body.SignedOff
	}
	return !p.pos.Before(l.Exported) && (p.pos.Before(l.End()) || !r.body.SignedOff)
}

// Put is told of a write that the bucket has done.
func (j *Judge) Put(process, key string, data []byte) {
	parsed, err := objstore.ParseKey(key)
	if err != nil {
		return
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	switch k := parsed.(type) {
	case objstore.OwnerKey:
		j.putRegister(process, k.Owner, data)
	case objstore.SegmentKey:
		j.putObject(k, key, data)
	}
}

// putObject is for an object with frames.
func (j *Judge) putObject(k objstore.SegmentKey, key string, data []byte) {
	h := fnv.New64a()
	h.Write(data)
	if old, again := j.contents[key]; again && old != h.Sum64() {
		j.breaks(I3, "other bytes were put under %s", key)
		return
	}
	j.contents[key] = h.Sum64()
	if _, there := j.objects[key]; there {
		return
	}
	j.counts.Objects++
	lane, err := segment.ParseLaneID(k.Lane)
	if err != nil {
		j.breaks(I3, "object %s: %v", key, err)
		return
	}
	o, err := segment.ReadObject(data, lane, segment.Seq(k.Seq))
	if err != nil || !o.Whole || len(o.Frames) == 0 {
		j.breaks(I3, "object %s is not whole", key)
		return
	}
	at := laneKey{k.Owner, lane}
	var places []placement
	for i := range o.Frames {
		f := j.frames[o.Frames[i].ID]
		if f == nil {
			j.breaks(I9, "object %s has frame %s, which nobody has stored", key, o.Frames[i].ID)
			return
		}
		p := placement{frame: f, at: at, pos: o.Frames[i].Position, key: key}
		if !slices.Contains(f.places, p) {
			f.places = append(f.places, p)
		}
		places = append(places, p)
	}
	j.objects[key] = places
	j.placed[at] = append(j.placed[at], places...)
	if r := j.owners[k.Owner]; r != nil && r.there {
		if r.record.State != owner.Live {
			j.counts.Late++
		}
		j.name(k.Owner, r)
	}
}

// name notes which frames a register has named.
func (j *Judge) name(id string, r *register) {
	for lane, l := range r.body.Lanes {
		at := laneKey{id, lane}
		j.placed[at] = slices.DeleteFunc(j.placed[at], func(p placement) bool {
			named := p.pos.Before(l.End())
			p.frame.named = p.frame.named || named
			return named
		})
	}
}

// putRegister holds a register against the one before.
func (j *Judge) putRegister(process, id string, data []byte) {
	next := &register{there: true, process: process, holders: map[lease.Epoch]string{}, last: map[lease.Epoch]time.Time{}}
	if err := json.Unmarshal(data, &next.record); err != nil {
		j.breaks(I6, "%s wrote what is no register: %v", process, err)
		return
	}
	body, err := owner.Read(&next.record)
	if err != nil {
		j.breaks(I6, "%s wrote what is no register: %v", process, err)
		return
	}
	next.body = body
	next.beginner = next.record.Holder
	if before := j.owners[id]; before != nil {
		if !before.there {
			j.breaks(I5, "%s created the register of %s again", process, id)
			return
		}
		next.process, next.beginner, next.own, next.holders, next.last = before.process, before.beginner, before.own, before.holders, before.last
		j.compareRecords(process, before, next)
		j.compareBodies(process, before, next)
	} else if next.record.State != owner.Live || next.record.Epoch != 1 {
		j.breaks(I6, "%s began with %s", process, next)
	}
	e := &next.record
	if held, used := next.holders[e.Epoch]; used && held != e.Holder && e.Holder != "" {
		j.breaks(I5, "epoch %d of %q was that of %q", e.Epoch, e.Holder, held)
	} else if !used {
		next.holders[e.Epoch] = e.Holder
	}
	if before := j.owners[id]; before == nil || before.record.Beat != e.Beat || before.record.Epoch != e.Epoch {
		next.last[e.Epoch] = j.sent[e.WriteID]
		if next.holders[e.Epoch] == next.beginner {
			next.own = j.sent[e.WriteID]
		}
	}
	j.owners[id] = next
	j.name(id, next)
}

func (j *Judge) compareRecords(process string, before, next *register) {
	b, n := &before.record, &next.record
	switch {
	case n.Epoch != b.Epoch && n.Epoch != b.Epoch+1:
		j.breaks(I5, "epoch %d after %d: %s after %s by %s", n.Epoch, b.Epoch, next, before, process)
	case n.Epoch == b.Epoch && n.Holder != b.Holder && n.Holder != "":
		j.breaks(I5, "epoch %d went from %q to %q", n.Epoch, b.Holder, n.Holder)
	case !leads(b.State, n.State):
		j.breaks(I6, "%s led to %s by %s", before, next, process)
	case n.State == owner.Live && b.State == n.State && n.Epoch != b.Epoch && n.Holder != b.Holder:
		j.breaks(I6, "%s took a live register: %s after %s", process, next, before)
	}
}

// leads says whether one state may follow on another.
func leads(from, to string) bool {
	switch from {
	case owner.Live, owner.Idle:
		return to == owner.Live || to == owner.Idle || to == owner.Adopted || from == owner.Live && to == owner.Retired || from == owner.Idle && to == owner.Buried
	case owner.Retired:
		return to == owner.Adopted
	case owner.Adopted:
		return to == owner.Adopted || to == owner.Drained
	case owner.Drained:
		return to == owner.Adopted || to == owner.Drained || to == owner.Buried
	case owner.Buried:
		return to == owner.Buried
	}
	return false
}

func (j *Judge) compareBodies(process string, before, next *register) {
	if before.body.SignedOff && !next.body.SignedOff {
		j.breaks(I6, "%s took back the sign-off: %s after %s", process, next, before)
	}
	for lane, b := range before.body.Lanes {
		n := next.body.Lanes[lane]
		switch {
		case n == nil:
			j.breaks(I6, "%s dropped lane %s: %s after %s", process, lane, next, before)
		case n.Exported.Before(b.Exported), n.Shipped.Before(b.Shipped):
			j.breaks(I6, "%s went back in lane %s: %s after %s", process, lane, next, before)
		case b.Taken == nil && n.Taken != nil && *n.Taken != b.Shipped:
			j.breaks(I6, "%s took other than what was shipped of lane %s: %s after %s", process, lane, next, before)
		case b.Taken != nil && (n.Taken == nil || n.Taken.Before(*b.Taken)):
			j.breaks(I6, "%s took less of lane %s: %s after %s", process, lane, next, before)
		case b.Taken != nil && before.body.SignedOff && *n.Taken != *b.Taken:
			j.breaks(I6, "%s took more of lane %s, which was signed off: %s after %s", process, lane, next, before)
		}
	}
}

// Deleted is told of an object that the bucket has removed.
func (j *Judge) Deleted(process, key string) {
	parsed, err := objstore.ParseKey(key)
	if err != nil {
		return
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	switch k := parsed.(type) {
	case objstore.OwnerKey:
		r := j.owners[k.Owner]
		if r == nil || !r.there {
			return
		}
		if r.there = false; r.record.State != owner.Buried {
			j.breaks(I5, "%s deleted a register that was not buried: %s", process, &register{there: true, process: r.process, record: r.record})
		}
	case objstore.SegmentKey:
		places := j.objects[key]
		delete(j.objects, key)
		r := j.owners[k.Owner]
		if r == nil || !r.there {
			return // whether something is lost by it, Check tells
		}
		for _, p := range places {
			l := r.body.Lanes[p.at.lane]
			if l == nil || !p.pos.Before(l.Exported) && !(r.body.SignedOff && !p.pos.Before(l.End())) {
				j.breaks(I8, "%s deleted %s, which the register does not cover: %s", process, key, r)
				return
			}
		}
	}
}

// Rest is what must hold when all is at rest: I15, and that every promise was kept.
func (j *Judge) Rest() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	for key, places := range j.objects {
		j.breaks(I15, "object %s is left, register %s", key, j.owners[places[0].at.owner])
	}
	for id, r := range j.owners {
		if s := r.record.State; r.there && s != owner.Idle && s != owner.Drained {
			j.breaks(I15, "register of %s is left: %s", id, r)
		}
	}
	for id, f := range j.open {
		j.breaks(I4, "frame %s was promised and never delivered: %s", id, j.whereabouts(f))
	}
	if j.violation == nil {
		return nil
	}
	return j.violation
}

// AtRest says whether nothing is left to do, as far as the bucket and the promises tell; why says what is.
func (j *Judge) AtRest() (why string, rest bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	var left []string
	if n := len(j.objects); n > 0 {
		left = append(left, fmt.Sprintf("%d objects", n))
	}
	for id, r := range j.owners {
		if s := r.record.State; r.there && s != owner.Idle && s != owner.Drained {
			left = append(left, fmt.Sprintf("register %s: %s", id, r))
		}
	}
	if n := len(j.open); n > 0 {
		left = append(left, fmt.Sprintf("%d frames", n))
	}
	return strings.Join(left, "; "), len(left) == 0
}
