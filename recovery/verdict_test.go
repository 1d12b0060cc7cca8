package recovery_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"ingest-agent/objstore/lease"
	"ingest-agent/recovery"
	"ingest-agent/recovery/owner"
	"ingest-agent/segment"
)

const (
	testStale     = time.Minute
	testRetention = 168 * time.Hour
)

var (
	allStates  = []string{owner.Live, owner.Idle, owner.Retired, owner.Adopted, owner.Drained, owner.Buried, "resurrected"}
	allWhose   = []lease.Verdict{lease.Absent, lease.Free, lease.Mine, lease.Silent, lease.Beating}
	allObjects = []recovery.Objects{
		recovery.ObjectsUnknown, recovery.ObjectsNone, recovery.ObjectsBelow, recovery.ObjectsBeyond, recovery.ObjectsSome,
	}
)

func look(state string, whose lease.Verdict) recovery.Look {
	return recovery.Look{
		Seen: lease.Seen{Record: lease.Record{State: state}}, Whose: whose, Body: &owner.Body{},
		StaleAfter: testStale, Retention: testRetention,
	}
}

// Every state, whoever holds it, whatever is below its prefix: fresh, silent and past the retention.
func TestJudgeStates(t *testing.T) {
	const (
		idle, drained, late      = "nothing owed: idle", "nothing owed: drained", "claimable: late objects"
		below, signedOff, beats  = "sweep: late objects below exported", "sweep: late objects of a signed-off owner", "not: beating"
		unreadable, bury, orphan = "not: unreadable", "bury", "not: no register"
		mine, released, retired  = "claimable: claimed here", "claimable: released", "claimable: retired"
	)
	all := func(verdict string) []string { return slices.Repeat([]string{verdict}, len(allObjects)) }
	tests := []struct {
		state     string
		whose     []lease.Verdict
		signedOff []bool
		unchanged time.Duration
		want      []string // in the order of allObjects
	}{
		{owner.Live, allWhose[1:2], nil, 0, all(released)},
		{owner.Live, allWhose[2:3], nil, 0, all(mine)},
		{owner.Live, allWhose[3:4], nil, 14*time.Minute + 59*time.Second, all("claimable: silent for 14m")},
		{owner.Live, allWhose[3:4], nil, 0, all("claimable: silent for 1m")}, // silent by the other clock
		{owner.Live, allWhose[4:], nil, 0, all(beats)},
		{owner.Adopted, allWhose[1:2], nil, 0, all(released)},
		{owner.Adopted, allWhose[2:3], nil, 0, all(mine)},
		{owner.Adopted, allWhose[3:4], nil, 30 * time.Hour, all("claimable: silent for 30h")},
		{owner.Adopted, allWhose[4:], nil, 0, all(beats)},
		{owner.Retired, allWhose[1:2], nil, 0, all(retired)},
		{owner.Retired, allWhose[2:3], nil, 0, all(mine)},
		{owner.Retired, allWhose[3:4], nil, 0, all(retired)},
		{owner.Retired, allWhose[4:], nil, 0, all(beats)},
		{owner.Idle, allWhose[1:4], []bool{false}, testStale - 1, []string{idle, idle, below, idle, idle}},
		{owner.Idle, allWhose[1:4], []bool{false}, testStale, []string{idle, idle, below, late, late}},
		{owner.Idle, allWhose[1:4], []bool{false}, testRetention, []string{idle, bury, below, late, late}},
		{owner.Idle, allWhose[4:], nil, testRetention, all(beats)},
		{owner.Drained, allWhose[1:4], []bool{false}, 0, []string{drained, drained, below, late, late}},
		{owner.Drained, allWhose[1:4], []bool{false}, testRetention - 1, []string{drained, drained, below, late, late}},
		{owner.Drained, allWhose[1:4], []bool{false}, testRetention, []string{drained, bury, below, late, late}},
		{owner.Drained, allWhose[1:4], []bool{true}, 0, []string{drained, drained, signedOff, signedOff, signedOff}},
		{owner.Drained, allWhose[1:4], []bool{true}, testRetention, []string{drained, bury, signedOff, signedOff, signedOff}},
		{owner.Drained, allWhose[4:], nil, testRetention, all(beats)},
		{owner.Buried, allWhose[1:], nil, 0, all(bury)},
		{"resurrected", allWhose[1:], nil, testRetention, all(unreadable)},
		{"", allWhose[:1], nil, testRetention, all(orphan)},
	}
	for _, test := range tests {
		if test.signedOff == nil {
			test.signedOff = []bool{false, true}
		}
		for _, whose := range test.whose {
			for _, off := range test.signedOff {
				for i, objects := range allObjects {
					l := look(test.state, whose)
					l.Body.SignedOff, l.Objects, l.Unchanged = off, objects, test.unchanged
					if got := recovery.Judge(l).String(); got != test.want[i] {
						t.Errorf("%q, whose %d, signed off %v, objects %d, unchanged %s: %q, want %q",
							test.state, whose, off, objects, test.unchanged, got, test.want[i])
					}
				}
			}
		}
	}
}

// What must hold of all combinations there are, whatever the table above lists.
func TestJudgeNever(t *testing.T) {
	seen := map[recovery.Kind]bool{}
	for _, l := range everyLook() {
		v := recovery.Judge(l)
		seen[v.Kind] = true
		name := fmt.Sprintf("%q, whose %d, own %v, signed off %v, objects %d, unchanged %s: %q",
			l.Seen.State, l.Whose, l.Own, l.Body.SignedOff, l.Objects, l.Unchanged, v)
		if v.Claimable() && (l.Own || l.Whose == lease.Beating || l.Whose == lease.Absent || l.Seen.State == owner.Buried) {
			t.Error("claims what it must not:", name)
		}
		if v.Kind == recovery.ClaimLate && (l.Body.SignedOff || l.Objects < recovery.ObjectsBeyond) {
			t.Error("claims for objects that nobody owes:", name)
		}
		if (v.Kind == recovery.SweepBelow || v.Kind == recovery.SweepSignedOff) && l.Objects < recovery.ObjectsBelow {
			t.Error("sweeps what is not there:", name)
		}
		if v.Kind == recovery.SweepBelow && l.Objects != recovery.ObjectsBelow {
			t.Error("sweeps what is owed:", name)
		}
		if v.Kind == recovery.Bury && l.Seen.State != owner.Buried && (l.Objects != recovery.ObjectsNone || l.Unchanged < testRetention) {
			t.Error("buries too early:", name)
		}
		if l.Body.SignedOff && l.Seen.State == owner.Adopted && l.Whose == lease.Free && !l.Own && !v.Claimable() {
			t.Error("what was handed over is nobody's:", name)
		}
	}
	for k := range recovery.UnknownDestination {
		if !seen[k] {
			t.Errorf("no combination is judged %q", recovery.Verdict{Kind: k})
		}
	}
}

func everyLook() (all []recovery.Look) {
	for _, state := range allStates {
		for _, whose := range allWhose {
			for _, objects := range allObjects {
				for bits := range 4 {
					for _, unchanged := range []time.Duration{0, testStale, testRetention} {
						l := look(state, whose)
						l.Own, l.Body.SignedOff = bits&1 > 0, bits&2 > 0
						l.Objects, l.Unchanged = objects, unchanged
						all = append(all, l)
					}
				}
			}
		}
	}
	return all
}

func TestJudgeUnreadable(t *testing.T) {
	l := look(owner.Live, lease.Silent)
	l.Body, l.Err = nil, fmt.Errorf("format 2: %w", lease.ErrFormat)
	if v := recovery.Judge(l); v.Kind != recovery.Unreadable || v.Claimable() {
		t.Errorf("a later format: %q", v)
	}
}

// An owner of which nothing can be sent from here is left to others; one of which a part can is claimed, and the rest named.
func TestJudgeDestinations(t *testing.T) {
	lane := func(destination string, shard int) segment.LaneID {
		return segment.LaneID{Destination: destination, Shard: shard}
	}
	owing := func() *owner.Lane { return &owner.Lane{Exported: segment.Start, Shipped: segment.Start.NextSegment()} }
	paid := func() *owner.Lane { return &owner.Lane{Exported: segment.Start, Shipped: segment.Start} }
	for _, test := range []struct {
		name      string
		lanes     map[segment.LaneID]*owner.Lane
		late      []segment.LaneID
		signedOff bool
		want      string
		unknown   []string
	}{
		{"all known", map[segment.LaneID]*owner.Lane{lane("here", 0): owing()}, nil, false, "claimable: retired", nil},
		{"one of two", map[segment.LaneID]*owner.Lane{lane("here", 0): owing(), lane("x", 0): owing(), lane("x", 1): owing()}, nil, false,
			"claimable: retired", []string{"x"}},
		{"none", map[segment.LaneID]*owner.Lane{lane("y", 0): owing(), lane("x", 0): owing()}, nil, false,
			"not: unknown destination x, y", []string{"x", "y"}},
		{"what owes nothing does not count", map[segment.LaneID]*owner.Lane{lane("here", 0): paid(), lane("x", 0): owing()}, nil, false,
			"not: unknown destination x", []string{"x"}},
		{"nothing owed", map[segment.LaneID]*owner.Lane{lane("x", 0): paid()}, nil, false, "claimable: retired", nil},
		{"late objects", map[segment.LaneID]*owner.Lane{lane("x", 0): paid()}, []segment.LaneID{lane("x", 0)}, false,
			"not: unknown destination x", []string{"x"}},
		{"late objects, signed off", map[segment.LaneID]*owner.Lane{lane("x", 0): paid()}, []segment.LaneID{lane("x", 0)}, true,
			"claimable: retired", nil},
	} {
		l := look(owner.Retired, lease.Free)
		l.Body.Lanes, l.Body.SignedOff, l.Late = test.lanes, test.signedOff, test.late
		l.Known = func(d string) bool { return d == "here" }
		v := recovery.Judge(l)
		if v.String() != test.want || !slices.Equal(v.Unknown, test.unknown) {
			t.Errorf("%s: %q, unknown %v; want %q, unknown %v", test.name, v, v.Unknown, test.want, test.unknown)
		}
	}
}

func TestUnchanged(t *testing.T) {
	now := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	bucket := now.Add(-5000 * time.Hour)
	for _, test := range []struct {
		name string
		seen lease.Seen
		want time.Duration
	}{
		{"nothing known", lease.Seen{}, 0},
		{"watched", lease.Seen{Since: now.Add(-time.Hour)}, time.Hour},
		{"by the bucket, but for a second", lease.Seen{Since: now, Modified: bucket, Date: bucket.Add(time.Hour)}, time.Hour - time.Second},
		{"the longer of both", lease.Seen{Since: now.Add(-2 * time.Hour), Modified: bucket, Date: bucket.Add(time.Hour)}, 2 * time.Hour},
		{"from the bucket's future", lease.Seen{Since: now, Modified: bucket, Date: bucket.Add(-time.Hour)}, 0},
		{"written at an unknown time", lease.Seen{Since: now, Date: bucket}, 0},
	} {
		if got := recovery.Unchanged(&test.seen, now); got != test.want {
			t.Errorf("%s: %s, want %s", test.name, got, test.want)
		}
	}
}

func TestCoarse(t *testing.T) {
	for want, d := range map[string]time.Duration{
		"0s": 0, "59s": time.Minute - 1, "1m": time.Minute, "59m": time.Hour - 1, "1h": time.Hour, "47h": 48*time.Hour - 1, "2d": 48 * time.Hour,
	} {
		if got := recovery.Coarse(d); got != want {
			t.Errorf("%s: %q, want %q", d, got, want)
		}
	}
}
