package owner

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	"ingest-agent/objstore/lease"
	"ingest-agent/segment"
)

var lane = segment.LaneID{Destination: "default"}

func at(seq, entry uint64) segment.Position {
	return segment.Position{Seq: segment.Seq(seq), Entry: segment.Entry(entry)}
}

func records(n uint64) segment.Counts { return segment.Counts{n, 0, 0} }

func must(t *testing.T, r *lease.Record, edits ...lease.Edit) *Lane {
	t.Helper()
	for i, e := range edits {
		if err := e(r); err != nil {
			t.Fatalf("edit %d: %v", i, err)
		}
	}
	b, err := Read(r)
	if err != nil {
		t.Fatal(err)
	}
	return b.Lanes[lane]
}

func one(p Progress) map[segment.LaneID]Progress { return map[segment.LaneID]Progress{lane: p} }

// began is a register that has shipped frames 1 to 9 of segment 1, 90 records, of which 3 frames, 30 records, are exported.
func began(t *testing.T) *lease.Record {
	t.Helper()
	r := &lease.Record{}
	must(t, r,
		Begin(one(Progress{Exported: at(1, 1)})),
		Ship(one(Progress{Exported: at(1, 1), Shipped: at(1, 10), Records: records(90)})),
		Ship(one(Progress{Exported: at(1, 4), Passed: records(30)})))
	return r
}

// TestStates: which change may be made in which state.
func TestStates(t *testing.T) {
	none := map[segment.LaneID]Progress{}
	done := one(Progress{Exported: at(2, 1), Passed: records(90)})
	changes := []struct {
		name string
		edit lease.Edit
		from []string
		to   string // "": unchanged
	}{
		{"begin", Begin(none), []string{""}, Live},
		{"ship", Ship(none), []string{Live, Idle}, Live},
		{"rest", Rest(done), []string{Live, Idle}, Idle},
		{"retire", Retire(none), []string{Live}, Retired},
		{"hand over", HandOver(none), []string{Live, Idle, Retired}, Adopted},
		{"sign off", SignOff(), []string{Adopted, Drained}, ""},
		{"adopt", Adopt(), []string{Live, Idle, Retired, Adopted, Drained}, Adopted},
		{"raise", Raise(lane, at(1, 10), at(1, 12)), []string{Adopted}, ""},
		{"export", Export(none), []string{Adopted}, ""},
		{"finish", Finish(), []string{Adopted, Drained}, Drained},
		{"bury", Bury(), []string{Idle, Drained, Buried}, Buried},
	}
	for _, c := range changes {
		for _, state := range []string{"", Live, Idle, Retired, Adopted, Drained, Buried, "later"} {
			r := &lease.Record{State: state}
			if state != "" {
				b := &Body{Lanes: map[segment.LaneID]*Lane{lane: {Exported: at(1, 10), Shipped: at(1, 10)}}}
				if !slices.Contains([]string{Live, Idle, Retired}, state) {
					b.take()
				}
				if err := r.SetBody(b); err != nil {
					t.Fatal(err)
				}
			}
			before := string(r.Body)
			err := c.edit(r)
			if allowed := slices.Contains(c.from, state); allowed != (err == nil) {
				t.Errorf("%s in state %q: %v", c.name, state, err)
			} else if !allowed && (!errors.Is(err, ErrState) || r.State != state || string(r.Body) != before) {
				t.Errorf("%s in state %q: %v, and the register changed", c.name, state, err)
			} else if allowed && c.to != "" && r.State != c.to || allowed && c.to == "" && r.State != state {
				t.Errorf("%s in state %q leads to %q", c.name, state, r.State)
			}
		}
	}
}

func TestOwedIsKeptByTheCommits(t *testing.T) {
	l := must(t, began(t))
	if l.Owed != records(60) || l.Passed != records(30) || !l.Owes() {
		t.Errorf("after shipping 90 and exporting 30: %+v", l)
	}
	r := began(t)
	l = must(t, r, Adopt(), Export(one(Progress{Exported: at(1, 8), Passed: records(70)})))
	if l.Owed != records(20) || *l.Taken != at(1, 10) {
		t.Errorf("after an adopter exported up to 70: %+v", l)
	}
	if l = must(t, r, Export(one(Progress{Exported: at(1, 10), Passed: records(90)})), Finish()); l.Owes() || l.Owed != records(0) {
		t.Errorf("after all was exported: %+v", l)
	}
	l = must(t, began(t), HandOver(one(Progress{Exported: at(1, 6), Passed: records(50)})))
	if l.Owed != records(40) || l.Exported != at(1, 6) {
		t.Errorf("after a hand-over from 50: %+v", l)
	}
}

// TestTakenStandsStill: it is what the owner had named when it was adopted, a second adopter keeps it, and nothing raises it
// once the owner has signed off.
func TestTakenStandsStill(t *testing.T) {
	r := began(t)
	must(t, r, Adopt(), Raise(lane, at(1, 10), at(1, 15)))
	if l := must(t, r, Adopt()); *l.Taken != at(1, 15) || l.Shipped != at(1, 10) {
		t.Errorf("after an object that was not named, and a second adopter: %+v", l)
	}
	must(t, r, SignOff())
	if err := Raise(lane, at(1, 15), at(1, 20))(r); !errors.Is(err, ErrState) {
		t.Errorf("raised after the sign-off: %v", err)
	}
	r = began(t)
	must(t, r, HandOver(nil))
	if err := Raise(lane, at(1, 10), at(1, 20))(r); !errors.Is(err, ErrState) {
		t.Errorf("raised after the hand-over: %v", err)
	}
}

func TestNothingEndsThatOwes(t *testing.T) {
	if err := Rest(nil)(began(t)); !errors.Is(err, ErrState) {
		t.Errorf("rest: %v", err)
	}
	r := began(t)
	must(t, r, Adopt())
	if err := Finish()(r); !errors.Is(err, ErrState) {
		t.Errorf("finish: %v", err)
	}
	r.State = Idle
	if err := Bury()(r); !errors.Is(err, ErrState) {
		t.Errorf("bury: %v", err)
	}
}

// TestEditsAreRepeatable: an edit that is applied twice does what it does once, and positions only go forward, whatever is
// drawn.
func TestEditsAreRepeatable(t *testing.T) {
	for seed := range uint64(300) {
		rng := rand.New(rand.NewPCG(seed, 0))
		r := &lease.Record{}
		must(t, r, Begin(one(Progress{Exported: at(1, 1)})))
		for step := range 30 {
			p := Progress{Exported: at(1+rng.Uint64N(4), 1+rng.Uint64N(9)), Passed: records(rng.Uint64N(100)),
				Shipped: at(1+rng.Uint64N(4), 1+rng.Uint64N(9)), Records: records(100 + rng.Uint64N(100))}
			edits := []lease.Edit{Ship(one(p)), Rest(one(p)), Retire(one(p)), HandOver(one(p)), SignOff(), Adopt(),
				Raise(lane, p.Exported, p.Shipped), Export(one(p)), Finish()}
			n := rng.IntN(len(edits))
			before := must(t, r)
			was := *before
			if edits[n](r) != nil {
				continue
			}
			once := must(t, r)
			again := *r
			what := fmt.Sprintf("seed %d, step %d, edit %d", seed, step, n)
			if err := edits[n](&again); err == nil {
				if l := must(t, &again); !reflect.DeepEqual(l, once) {
					t.Fatalf("%s: once %+v, twice %+v", what, once, l)
				}
			}
			if once.Exported.Before(was.Exported) || once.Shipped.Before(was.Shipped) || was.Taken != nil && (once.Taken == nil || once.Taken.Before(*was.Taken)) {
				t.Fatalf("%s: %+v became %+v", what, was, once)
			}
			if !once.Owes() && once.Owed != (segment.Counts{}) && r.State != Adopted {
				t.Fatalf("%s: owes nothing, and yet %+v", what, once)
			}
		}
	}
}
