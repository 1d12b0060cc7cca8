package recovery

import (
	"context"
	"maps"
	"slices"

	"ingest-agent/objstore"
	"ingest-agent/recovery/owner"
	"ingest-agent/segment"
)

// dryLane is what a listing shows of one lane of an owner.
type dryLane struct {
	id      segment.LaneID
	objects uint64
	bytes   uint64
	done    uint64 // objects that are exported as a whole
	unnamed uint64 // objects that the register does not name
	cover   cover
	gaps    []dryGap // at most maxListed
	gapSum  uint64
}

// dryGap is a range of frames that are owed and that no object holds.
type dryGap struct{ from, to segment.Position }

// listObjects lists the segment objects, and holds each against its owner's register.
func (d *dryRun) listObjects(ctx context.Context) error {
	prefix := objstore.SegmentsPrefix
	if d.o.Owner != "" {
		prefix = objstore.OwnerPrefix(d.o.Owner)
	}
	var listed uint64
	for p, err := range objstore.Pages(ctx, d.o.Bucket, objstore.ListOptions{Prefix: prefix}) {
		if err != nil {
			return err //nolint:wrapcheck // it says what it did
		}
		listed += uint64(len(p.Objects))
		d.o.Looked(len(d.ids), listed)
		for i := range p.Objects {
			o, err := readRef(p.Objects[i].Key)
			if err != nil {
				d.report.Foreign.add(&p.Objects[i])
				continue
			}
			d.owner(o.key.Owner).add(&o, &p.Objects[i])
		}
	}
	for _, w := range d.owners {
		w.end()
	}
	return nil
}

// owner is what is known of an owner of objects; without a register, nothing.
func (d *dryRun) owner(id string) *dryOwner {
	w := d.owners[id]
	if w == nil {
		w = &dryOwner{id: id}
		d.owners[id] = w
	}
	return w
}

// all are the owners that have a register or objects, in order of time.
func (d *dryRun) all() []string { return slices.Sorted(maps.Keys(d.owners)) }

func (w *dryOwner) add(o *ref, info *objstore.Info) {
	l := w.lanes[o.key.Lane]
	if l == nil {
		l = w.lane(o.lane)
	}
	l.objects++
	l.bytes += uint64(max(info.SizeBytes, 0))
	named := w.registered(o.lane)
	switch {
	case named != nil && !named.Exported.Before(o.end()):
		l.done++
	case named == nil || !o.begin().Before(named.End()):
		l.unnamed++
	default:
		l.gap(l.cover.object(o))
	}
}

// lane begins a lane, as the register describes it.
func (w *dryOwner) lane(id segment.LaneID) *dryLane {
	if w.lanes == nil {
		w.lanes = map[string]*dryLane{}
	}
	l := &dryLane{id: id}
	if named := w.registered(id); named != nil {
		l.cover = cover{next: named.Exported, end: named.End(), counted: named.Owed != segment.Counts{}}
	}
	w.lanes[id.String()] = l
	return l
}

func (w *dryOwner) registered(lane segment.LaneID) *owner.Lane {
	if w.look.Body == nil {
		return nil
	}
	return w.look.Body.Lanes[lane]
}

// end holds what was listed against what is owed.
func (w *dryOwner) end() {
	if w.look.Body == nil {
		return
	}
	for id, named := range w.look.Body.Lanes {
		if !named.Owes() {
			continue
		}
		l := w.lanes[id.String()]
		if l == nil {
			l = w.lane(id)
		}
		l.gap(l.cover.finish())
	}
}

func (l *dryLane) gap(g dryGap, found bool) {
	if !found {
		return
	}
	if l.gapSum++; l.gapSum <= maxListed {
		l.gaps = append(l.gaps, g)
	}
}

func (w *dryOwner) gaps() (n uint64) {
	for _, l := range w.lanes {
		n += l.gapSum
	}
	return n
}

// objects says what was found below the owner's prefix.
func (w *dryOwner) objects() Objects {
	state := ObjectsNone
	for _, l := range w.lanes {
		switch {
		case l.objects > l.done:
			return ObjectsBeyond
		case l.objects > 0:
			state = ObjectsBelow
		}
	}
	return state
}

// cover follows the objects of a lane from what is exported to what is owed, in the order of their keys, and finds frames
// that must be there and are not. A key does not say whether its object ends the segment, nor which segment comes next. But
// frames are numbered from 1 without a hole: where one is known of, all before it in the segment are.
type cover struct {
	next segment.Position // what was followed ends here
	end  segment.Position
	// counted says that the register knows of records in what is owed.
	counted bool
	any     bool // an object was followed
}

// object goes on to the end of an object that holds something owed.
func (c *cover) object(o *ref) (dryGap, bool) {
	from := c.inSegment(o.begin().Seq)
	gap := dryGap{from, o.begin()}
	c.any = true
	if c.next.Before(o.end()) {
		c.next = o.end()
	}
	return gap, from.Before(gap.to)
}

// finish goes on to the end of what is owed.
func (c *cover) finish() (dryGap, bool) {
	from := c.inSegment(c.end.Seq)
	if c.end.Entry > 1 {
		return dryGap{from, c.end}, from.Before(c.end)
	}
	// It ends with a segment: with the one before, whose last object was named.
	if last := c.end.Seq - 1; c.next.Seq < last {
		return dryGap{c.next, c.end}, c.counted || c.any
	}
	return dryGap{c.next, c.end}, !c.any && c.counted
}

// inSegment is the first frame of a segment that was not followed yet.
func (c *cover) inSegment(seq segment.Seq) segment.Position {
	if start := (segment.Position{Seq: seq, Entry: 1}); c.next.Before(start) {
		return start
	}
	return c.next
}
