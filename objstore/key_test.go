package objstore

import (
	"errors"
	"math"
	"slices"
	"strings"
	"testing"
	"time"
)

const (
	ulidA = "01JEQ2Z6T0W6X9Q8Q7N3M5K4HV"
	ulidB = "01JEQ2Z6T0W6X9Q8Q7N3M5K4HW"
)

func segmentKey() SegmentKey { return SegmentKey{ulidA, "default.0", 7, 1, 12} }

func TestKeyText(t *testing.T) {
	hour := time.Date(2026, 3, 9, 4, 0, 0, 0, time.UTC)
	for _, test := range []struct {
		key  Key
		text string
	}{
		{OwnerKey{ulidA}, "owners/" + ulidA + ".json"},
		{segmentKey(), "segments/" + ulidA + "/default.0/00000000000000000007-0000000001-0000000012.seg"},
		{SegmentKey{ulidA, "a_b-c.1023.p3", math.MaxUint64, math.MaxUint32, math.MaxUint32},
			"segments/" + ulidA + "/a_b-c.1023.p3/18446744073709551615-4294967295-4294967295.seg"},
		{ArchiveKey{hour, segmentKey()}, "archive/2026/03/09/04/" + ulidA + "/default.0/00000000000000000007-0000000001-0000000012.seg"},
		{DeadKey{ulidA, "default.0", 7, 3, 0}, "dead/" + ulidA + "/default.0/00000000000000000007-0000000003-0000000000.seg"},
		{JobKey{ulidA}, "jobs/" + ulidA + ".json"},
		{PlanKey{ulidA, 5}, "plans/" + ulidA + "/0000000005.json"},
		{RunKey{ulidA, 2, 9, "logs.ndjson"}, "runs/" + ulidA + "/00000000000000000002/0000000009-logs.ndjson"},
		{RunKey{ulidA, 2, 9, "a-b"}, "runs/" + ulidA + "/00000000000000000002/0000000009-a-b"},
		{InboxKey{"of a user/ä%20.json"}, "inbox/of a user/ä%20.json"},
		{FleetKey{"scan"}, "fleet/scan.json"},
		{ProbeKey{ulidA}, "probe/" + ulidA},
	} {
		if got := test.key.String(); got != test.text {
			t.Errorf("%#v: got %s, want %s", test.key, got, test.text)
		}
		if got, err := ParseKey(test.text); err != nil || got != test.key {
			t.Errorf("parse %s: got %#v, %v, want %#v", test.text, got, err, test.key)
		}
	}
}

func TestKeyForeign(t *testing.T) {
	name := "00000000000000000007-0000000001-0000000012.seg"
	lane := "segments/" + ulidA + "/default.0/"
	for _, text := range []string{
		"", "x", "owners", "owners/", "owners/x.json", "owners/" + ulidA, "owners/" + ulidA + ".json.json", "owners/" + ulidA + ".json/x",
		"owners/" + strings.ToLower(ulidA) + ".json", "owners/8" + ulidA[1:] + ".json", "owners//" + ulidA + ".json", "/owners/" + ulidA + ".json",
		"OWNERS/" + ulidA + ".json", "segments/" + ulidA, "segments/" + ulidA + "/", lane, lane + name + ".tmp", lane + name[:len(name)-4], lane + "x/" + name,
		lane + "7-1-12.seg", lane + "+0000000000000000007-0000000001-0000000012.seg", lane + "00000000000000000000-0000000001-0000000012.seg",
		lane + "00000000000000000007-0000000000-0000000012.seg", lane + "00000000000000000007-0000000013-0000000012.seg",
		lane + "18446744073709551616-0000000001-0000000012.seg", lane + "00000000000000000007-0000000001-4294967296.seg",
		"segments/" + ulidA + "/default/" + name, "segments/" + ulidA + "/default.00/" + name, "segments/" + ulidA + "/default.1024/" + name,
		"segments/" + ulidA + "/Default.0/" + name, "segments/" + ulidA + "/default.0.p0/" + name, "segments/" + ulidA + "/default.0.1/" + name,
		"segments/" + ulidA + "/" + strings.Repeat("d", 64) + ".0/" + name, "segments/" + ulidA + "/-d.0/" + name,
		"archive/2026/13/09/04/" + ulidA + "/default.0/" + name, "archive/2026/3/9/4/" + ulidA + "/default.0/" + name, "archive/" + ulidA + "/default.0/" + name,
		"archive/2026/03/09/24/" + ulidA + "/default.0/" + name, "archive/2026/02/30/04/" + ulidA + "/default.0/" + name,
		"dead/" + ulidA + "/default.0/00000000000000000007-0000000000-0000000000.seg", "jobs/x.json", "plans/" + ulidA + "/5.json", "plans/" + ulidA + "/0000000005",
		"runs/" + ulidA + "/2/0000000009-x", "runs/" + ulidA + "/00000000000000000002/0000000009", "runs/" + ulidA + "/00000000000000000002/0000000009-",
		"runs/" + ulidA + "/00000000000000000002/0000000009-X", "inbox/", "inbox//x", "inbox/../x", "inbox/x/", "inbox/\xff", "fleet/.json", "fleet/a.b.json",
		"fleet/Scan.json", "probe/x", "probe/" + ulidA + ".json", "lost+found", ".DS_Store",
	} {
		if got, err := ParseKey(text); !errors.Is(err, ErrForeign) {
			t.Errorf("parse %q: got %#v, %v, want ErrForeign", text, got, err)
		}
	}
}

// TestKeyOrder: a listing has keys in the order of their numbers.
func TestKeyOrder(t *testing.T) {
	var keys []string
	for _, seq := range []uint64{1, 9, 10, 99, 1 << 40, math.MaxUint64} {
		for _, first := range []uint32{1, 2, 10, math.MaxUint32} {
			keys = append(keys, SegmentKey{ulidA, "default.0", seq, first, math.MaxUint32}.String())
		}
	}
	for _, epoch := range []uint64{1, 9, 10} {
		for _, part := range []uint32{0, 9, 10} {
			keys = append(keys, "z"+RunKey{ulidA, epoch, part, "x"}.String())
		}
	}
	if !slices.IsSorted(keys) {
		t.Errorf("not in order: %q", keys)
	}
}

func TestKeyPrefixes(t *testing.T) {
	k := segmentKey()
	hour := time.Date(2026, 3, 9, 4, 0, 0, 0, time.UTC)
	run := RunKey{ulidA, 2, 9, "x"}.String()
	for key, prefixes := range map[string][]string{
		k.String():                               {SegmentsPrefix, OwnerPrefix(ulidA), LanePrefix(ulidA, "default.0")},
		ArchiveKey{hour, k}.String():             {ArchivePrefix, HourPrefix(hour.Add(59 * time.Minute).In(time.FixedZone("", 5400)))},
		run:                                      {RunsPrefix, JobRunsPrefix(ulidA), RunPrefix(ulidA, 2)},
		PlanKey{ulidA, 1}.String():               {PlansPrefix, PlanPrefix(ulidA)},
		DeadKey{ulidA, "d.0", 1, 1, 1}.String():  {DeadPrefix},
		SegmentKey{ulidA, "d.0", 1, 1, 1}.path(): {ulidA + "/d.0/"},
	} {
		for _, prefix := range prefixes {
			if !strings.HasPrefix(key, prefix) || !strings.HasSuffix(prefix, "/") {
				t.Errorf("%q is no prefix of %q", prefix, key)
			}
		}
	}
	if owner, err := ParseOwnerPrefix(OwnerPrefix(ulidB)); err != nil || owner != ulidB {
		t.Errorf("parse owner prefix: got %q, %v", owner, err)
	}
	for _, prefix := range []string{"", "segments/", "segments/x/", "segments/" + ulidA, "segments/" + ulidA + "//", "dead/" + ulidA + "/", LanePrefix(ulidA, "d.0")} {
		if owner, err := ParseOwnerPrefix(prefix); !errors.Is(err, ErrForeign) {
			t.Errorf("parse owner prefix %q: got %q, %v, want ErrForeign", prefix, owner, err)
		}
	}
}

// FuzzParseKey: what is parsed has one spelling, and is a key that a bucket takes.
func FuzzParseKey(f *testing.F) {
	for _, k := range []Key{
		OwnerKey{ulidA}, segmentKey(), ArchiveKey{time.Unix(0, 0), segmentKey()}, DeadKey{ulidA, "d.0.p1", 1, 2, 3}, JobKey{ulidB}, PlanKey{ulidA, 1},
		RunKey{ulidA, 1, 2, "traces.ndjson.gz"}, InboxKey{"a/b"}, FleetKey{"archive-sweep"}, ProbeKey{ulidB},
	} {
		f.Add(k.String())
	}
	f.Add("inbox/" + strings.Repeat("a/", 600))
	f.Fuzz(func(t *testing.T, text string) {
		k, err := ParseKey(text)
		if err != nil {
			if k != nil || !errors.Is(err, ErrForeign) {
				t.Fatalf("parse %q: got %#v, %v", text, k, err)
			}
			return
		}
		if k.String() != text {
			t.Fatalf("parse %q: is %#v, which is spelled %q", text, k, k)
		}
		if err := CheckKey(text); err != nil {
			t.Fatalf("parse %q: %v", text, err)
		}
	})
}

// FuzzSegmentKey: what is built parses to the same, or is refused because a field is not as it should be.
func FuzzSegmentKey(f *testing.F) {
	f.Add(ulidA, "default.0", uint64(1), uint32(1), uint32(1), int64(0))
	f.Add(ulidA, "d.1023.p7", uint64(math.MaxUint64), uint32(3), uint32(2), int64(math.MaxInt32))
	f.Add(ulidA, "d.0/x", uint64(1), uint32(1), uint32(1), int64(1<<50))
	f.Add(ulidA+"/d.0", "x", uint64(1), uint32(1), uint32(1), int64(-1<<50))
	f.Fuzz(func(t *testing.T, owner, lane string, seq uint64, first, last uint32, seconds int64) {
		segment := SegmentKey{owner, lane, seq, first, last}
		sound := isULID(owner) && isLane(lane) && seq > 0
		hour := time.Unix(seconds, 0).UTC().Truncate(time.Hour)
		years := hour.Year() >= 0 && hour.Year() <= 9999
		for _, test := range []struct {
			key   Key
			sound bool
		}{
			{segment, sound && first > 0 && first <= last},
			{ArchiveKey{hour, segment}, sound && first > 0 && first <= last && years},
			{DeadKey{owner, lane, seq, first, last}, sound && first > 0},
			{RunKey{owner, seq, first, lane}, isULID(owner) && isPartName(lane)},
			{PlanKey{owner, last}, isULID(owner)},
			{FleetKey{lane}, isName(lane)},
			{InboxKey{lane}, CheckKey(InboxPrefix+lane) == nil},
		} {
			got, err := ParseKey(test.key.String())
			if test.sound != (err == nil) || err == nil && got != test.key {
				t.Errorf("%#v: parsed as %#v, %v", test.key, got, err)
			}
		}
	})
}
