package recovery

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"ingest-agent/objstore"
	"ingest-agent/objstore/lease"
	"ingest-agent/segment"
)

// DryRunReport is what a dry run has found. Its JSON is stable: fields may be added.
type DryRunReport struct {
	Owners []OwnerRow `json:"owners"` // by id, which is in order of time
	// Orphans are objects below the prefix of an owner that has no register. They are not touched.
	Orphans []OrphanRow `json:"orphans"`
	Foreign Foreign     `json:"foreign"`
	Damage  []DamageRow `json:"damage"`
	// Steps are what a pass would do, in this order; some adoptions run side by side.
	Steps  []Step       `json:"steps"`
	Totals DryRunTotals `json:"totals"`
}

// OwnerRow is one owner.
type OwnerRow struct {
	Owner      string      `json:"owner"`
	Node       string      `json:"node"` // where its last holder runs
	State      string      `json:"state"`
	SignedOff  bool        `json:"signed_off"`
	Epoch      lease.Epoch `json:"epoch"`
	AgeSeconds int64       `json:"age_seconds"` // the register is unchanged since, by the bucket's time
	Lanes      int         `json:"lanes"`       // of the register, or with objects
	Objects    uint64      `json:"objects"`
	Bytes      uint64      `json:"bytes"`
	// Done are the objects that are exported as a whole, Unnamed those that the register does not name, whose records are not
	// known.
	Done    uint64 `json:"objects_exported"`
	Unnamed uint64 `json:"objects_unnamed"`
	// Owed are the records that are owed from the bucket, by the register.
	Owed      segment.Counts `json:"records_owed"`
	Verdict   string         `json:"verdict"`
	Claimable bool           `json:"claimable"`
	// Unknown are destinations of what it owes that are not configured.
	Unknown []string `json:"unknown_destinations"`

	owes bool
}

// OrphanRow are the objects of an owner without a register.
type OrphanRow struct {
	Owner   string `json:"owner"`
	Lanes   int    `json:"lanes"`
	Objects uint64 `json:"objects"`
	Bytes   uint64 `json:"bytes"`
}

// Foreign are objects that are none of this program's. They are not touched.
type Foreign struct {
	Objects uint64   `json:"objects"`
	Bytes   uint64   `json:"bytes"`
	Keys    []string `json:"keys"` // the first of them
}

func (f *Foreign) add(o *objstore.Info) {
	f.Objects++
	f.Bytes += uint64(max(o.SizeBytes, 0))
	if len(f.Keys) < maxListed {
		f.Keys = append(f.Keys, o.Key)
	}
}

// DamageRow is a register that cannot be read, or a range of frames that is owed and that no object holds.
type DamageRow struct {
	Owner string `json:"owner"`
	What  string `json:"what"`
	Lane  string `json:"lane,omitempty"`
	// From and To are positions: some or all of the frames at and behind From and before To are missing.
	From string `json:"from,omitempty"`
	To   string `json:"to,omitempty"`
}

func (d *DamageRow) String() string {
	if d.Lane == "" {
		return fmt.Sprintf("owner %s: %s", d.Owner, d.What)
	}
	return fmt.Sprintf("owner %s, lane %s, from %s to %s: %s", d.Owner, d.Lane, d.From, d.To, d.What)
}

// What a pass does.
const (
	StepAdopt = "adopt"
	StepSweep = "sweep" // deletes objects that are exported
	StepBury  = "bury"  // deletes the register
)

// Step is one thing that a pass would do.
type Step struct {
	Do      string `json:"do"`
	Owner   string `json:"owner"`
	Objects uint64 `json:"objects"` // to be read, or deleted
	// Records are those to be sent, as far as the register knows them.
	Records segment.Counts `json:"records"`
}

// DryRunTotals are sums over the report.
type DryRunTotals struct {
	Owners       int            `json:"owners"`
	Owing        int            `json:"owners_owing"`
	Claimable    int            `json:"owners_claimable"`
	Unknown      int            `json:"owners_with_unknown_destinations"`
	Objects      uint64         `json:"objects"` // of owners with a register
	Bytes        uint64         `json:"bytes"`
	Owed         segment.Counts `json:"records_owed"`
	Unnamed      uint64         `json:"objects_unnamed"`
	Orphans      uint64         `json:"orphan_objects"`
	OrphanBytes  uint64         `json:"orphan_bytes"`
	Foreign      uint64         `json:"foreign_objects"`
	Damage       uint64         `json:"damage"` // all, also what is not listed
	Unreadable   int            `json:"registers_unreadable"`
	ChangedSince int            `json:"owners_changed_meanwhile"`
}

// conclude judges, and writes the report.
func (d *dryRun) conclude() {
	r := d.report
	r.Owners, r.Orphans, r.Damage, r.Steps = []OwnerRow{}, []OrphanRow{}, []DamageRow{}, []Step{}
	if r.Foreign.Keys == nil {
		r.Foreign.Keys = []string{}
	}
	var adoptions []Step
	for _, id := range d.all() {
		w := d.owners[id]
		if w.look.Whose == lease.Absent && w.look.Err == nil {
			if !w.stale { // else it was buried meanwhile
				r.orphan(w)
			}
			continue
		}
		row, v := w.row()
		r.Owners = append(r.Owners, row)
		r.damage(w)
		r.Totals.add(&row, w)
		switch step := (Step{Owner: id, Objects: row.Objects}); {
		case v.Claimable():
			step.Do, step.Records = StepAdopt, row.Owed
			adoptions = append(adoptions, step)
		case v.Kind == SweepBelow, v.Kind == SweepSignedOff:
			step.Do = StepSweep
			r.Steps = append(r.Steps, step)
		case v.Kind == Bury:
			step.Do = StepBury
			r.Steps = append(r.Steps, step)
		}
	}
	r.Steps = append(r.Steps, adoptions...) // a pass sweeps before it claims
	r.Totals.Foreign = r.Foreign.Objects
}

func (r *DryRunReport) orphan(w *dryOwner) {
	row := OrphanRow{Owner: w.id, Lanes: len(w.lanes)}
	for _, l := range w.lanes {
		row.Objects += l.objects
		row.Bytes += l.bytes
	}
	r.Totals.Orphans += row.Objects
	r.Totals.OrphanBytes += row.Bytes
	r.Orphans = append(r.Orphans, row)
}

// damage reports what is wrong with an owner.
func (r *DryRunReport) damage(w *dryOwner) {
	list := func(d DamageRow) {
		if len(r.Damage) < maxListed {
			r.Damage = append(r.Damage, d)
		}
	}
	switch {
	case w.look.Err != nil:
		r.Totals.Damage++
		r.Totals.Unreadable++
		list(DamageRow{Owner: w.id, What: fmt.Sprintf("register cannot be read: %v", w.look.Err)})
		return
	case w.stale || !w.quiet():
		return // it is at work: what its register owed then may be gone by right
	}
	r.Totals.Damage += w.gaps()
	for _, name := range slices.Sorted(maps.Keys(w.lanes)) {
		for _, g := range w.lanes[name].gaps {
			list(DamageRow{Owner: w.id, Lane: name, From: g.from.String(), To: g.to.String(), What: "frames are owed, and no object holds them"})
		}
	}
}

// row judges an owner.
func (w *dryOwner) row() (OwnerRow, Verdict) {
	l := &w.look
	r := OwnerRow{
		Owner: w.id, Node: l.Seen.Node, State: l.Seen.State, Epoch: l.Seen.Epoch, AgeSeconds: int64(l.Unchanged / time.Second),
		Lanes: len(w.lanes), Unknown: []string{},
	}
	for _, name := range slices.Sorted(maps.Keys(w.lanes)) {
		lane := w.lanes[name]
		r.Objects += lane.objects
		r.Bytes += lane.bytes
		r.Done += lane.done
		if r.Unnamed += lane.unnamed; lane.unnamed > 0 && !w.stale {
			l.Late = append(l.Late, lane.id)
		}
	}
	if l.Body != nil {
		r.Owed, r.SignedOff, r.owes = l.Body.Owed(), l.Body.SignedOff, l.Body.Owes()
		for id := range l.Body.Lanes {
			if w.lanes[id.String()] == nil {
				r.Lanes++
			}
		}
	}
	if !w.stale {
		l.Objects = w.objects()
	}
	v := Judge(*l)
	r.Verdict, r.Claimable = v.String(), v.Claimable()
	r.Unknown = append(r.Unknown, v.Unknown...)
	return r, v
}

func (t *DryRunTotals) add(r *OwnerRow, w *dryOwner) {
	t.Owners++
	t.Objects += r.Objects
	t.Bytes += r.Bytes
	t.Owed = t.Owed.Add(r.Owed)
	if r.owes {
		t.Owing++
	}
	if r.Claimable {
		t.Claimable++
	}
	if len(r.Unknown) > 0 {
		t.Unknown++
	}
	if w.stale {
		t.ChangedSince++
	}
	if w.quiet() {
		t.Unnamed += r.Unnamed
	}
}
