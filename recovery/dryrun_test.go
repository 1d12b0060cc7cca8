package recovery_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/oklog/ulid/v2"

	"ingest-agent/objstore"
	"ingest-agent/objstore/lease"
	"ingest-agent/objstore/memory"
	"ingest-agent/recovery"
	"ingest-agent/recovery/owner"
	"ingest-agent/segment"
)

// readOnly fails the test if something is written, and lets another act before a call.
type readOnly struct {
	objstore.Bucket

	t      *testing.T
	before func(op objstore.Op, key string)
}

func (b *readOnly) call(op objstore.Op, key string) {
	if b.before != nil {
		b.before(op, key)
	}
}

func (b *readOnly) Get(ctx context.Context, key string, o objstore.GetOptions) (*objstore.Object, error) {
	if !strings.HasPrefix(key, objstore.OwnersPrefix) {
		b.t.Errorf("read %s", key)
	}
	b.call(objstore.OpGet, key)
	return b.Bucket.Get(ctx, key, o)
}

func (b *readOnly) List(ctx context.Context, o objstore.ListOptions) (*objstore.Page, error) {
	b.call(objstore.OpList, o.Prefix)
	return b.Bucket.List(ctx, o)
}

func (b *readOnly) Put(_ context.Context, key string, _ io.ReadSeeker, _ objstore.Condition) (objstore.PutResult, error) {
	b.t.Errorf("wrote %s", key)
	return objstore.PutResult{}, objstore.ErrDenied
}

func (b *readOnly) Delete(_ context.Context, key string) error {
	b.t.Errorf("deleted %s", key)
	return objstore.ErrDenied
}

// fixture fills a bucket.
type fixture struct {
	t    testing.TB
	b    objstore.Bucket
	made int
}

func newFixture(t testing.TB, b objstore.Bucket) *fixture { return &fixture{t: t, b: b} }

// id makes ids in the order of calls.
func (f *fixture) id() string {
	f.made++
	var id ulid.ULID
	if err := id.SetTime(uint64(f.made)); err != nil {
		f.t.Fatal(err)
	}
	return id.String()
}

func (f *fixture) must(err error) {
	f.t.Helper()
	if err != nil {
		f.t.Fatal(err)
	}
}

func (f *fixture) put(key string) {
	f.t.Helper()
	_, err := f.b.Put(context.Background(), key, strings.NewReader("12345"), objstore.Condition{})
	f.must(err)
}

// object puts one object of lane default.0 in place, which nobody reads.
func (f *fixture) object(id string, seq uint64, first, last uint32) {
	f.t.Helper()
	f.lane(id, "default.0", seq, first, last)
}

func (f *fixture) lane(id, lane string, seq uint64, first, last uint32) {
	f.t.Helper()
	f.put(objstore.SegmentKey{Owner: id, Lane: lane, Seq: seq, First: first, Last: last}.String())
}

func at(seq segment.Seq, entry segment.Entry) segment.Position {
	return segment.Position{Seq: seq, Entry: entry}
}

var laneZero = segment.LaneID{Destination: "default"}

// live makes a register of an owner that beats, which has shipped lane default.0 up to shipped and exported it up to exported.
func (f *fixture) live(exported, shipped segment.Position, records uint64) (string, *lease.Lease) {
	return f.ship(laneZero, exported, shipped, records)
}

func (f *fixture) ship(lane segment.LaneID, exported, shipped segment.Position, records uint64) (string, *lease.Lease) {
	f.t.Helper()
	id := f.id()
	r := f.register(id, id)
	begin := owner.Begin(map[segment.LaneID]owner.Progress{lane: {Exported: exported}})
	l, err := r.Acquire(context.Background(), lease.Seen{Since: time.Now()}, begin)
	f.must(err)
	if exported != shipped {
		f.must(l.Commit(context.Background(), owner.Ship(map[segment.LaneID]owner.Progress{
			lane: {Exported: exported, Shipped: shipped, Records: segment.Counts{records, 0, 0}},
		})))
	}
	return id, l
}

func (f *fixture) register(id, holder string) *lease.Register {
	return lease.New(lease.Options{
		Bucket: f.b, Key: objstore.OwnerKey{Owner: id}.String(), Holder: holder, Node: "web-" + id[len(id)-1:], StaleAfter: testStale,
	})
}

func (f *fixture) retired(exported, shipped segment.Position, records uint64) string {
	f.t.Helper()
	id, l := f.live(exported, shipped, records)
	f.must(l.Release(context.Background(), owner.Retire(nil)))
	return id
}

func (f *fixture) idle(exported segment.Position) string {
	f.t.Helper()
	id, l := f.live(exported, exported, 0)
	f.must(l.Release(context.Background(), owner.Rest(nil)))
	return id
}

// adopt is a claim that is then let go with edit.
func (f *fixture) adopt(id string, edit lease.Edit) {
	f.t.Helper()
	r := f.register(id, "01ADOPTER")
	seen, err := r.Observe(context.Background(), lease.Seen{})
	f.must(err)
	l, err := r.Acquire(context.Background(), seen, owner.Adopt())
	f.must(err)
	f.must(l.Release(context.Background(), edit))
}

func dryRun(t *testing.T, b objstore.Bucket, o recovery.DryRunOptions) *recovery.DryRunReport {
	t.Helper()
	if _, ok := b.(*readOnly); !ok {
		b = &readOnly{Bucket: b, t: t}
	}
	o.Bucket, o.StaleAfter, o.Retention = b, testStale, testRetention
	r, err := recovery.DryRun(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// One owner in each state that there is, and everything beside owners that a bucket can hold.
func TestDryRunReport(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, memory.New())
		gone := f.idle(at(3, 1))
		drained := f.retired(at(1, 1), at(2, 1), 5)
		f.adopt(drained, both(owner.Export(map[segment.LaneID]owner.Progress{laneZero: {Exported: at(2, 1)}}), owner.Finish()))
		f.object(drained, 1, 1, 9) // late
		time.Sleep(testRetention)
		silent, _ := f.live(at(1, 1), at(1, 11), 7)
		f.object(silent, 1, 1, 10)
		f.object(silent, 1, 11, 12) // that it did not live to name
		time.Sleep(14*time.Minute + 2*time.Second)
		beating, _ := f.live(at(2, 5), at(4, 1), 50)
		f.object(beating, 2, 1, 4) // exported
		f.object(beating, 3, 2, 9) // what lies between is not damage: it is at work
		retired := f.retired(at(1, 4), at(2, 1), 9)
		f.object(retired, 1, 1, 3) // exported
		f.object(retired, 1, 4, 6)
		released := f.retired(at(1, 1), at(1, 3), 2)
		f.adopt(released, nil)
		f.object(released, 1, 1, 2)
		idle := f.idle(at(2, 2))
		elsewhere, l := f.ship(segment.LaneID{Destination: "acme", Shard: 1}, at(1, 1), at(1, 3), 4)
		f.must(l.Release(t.Context(), owner.Retire(nil)))
		f.lane(elsewhere, "acme.1", 1, 1, 2)
		later := f.id()
		f.put(objstore.OwnerKey{Owner: later}.String()) // "12345" is no register
		orphan := f.id()
		f.object(orphan, 1, 1, 1)
		f.lane(orphan, "default.1", 1, 1, 1)
		f.put("owners/README.txt")
		f.put("segments/" + orphan + "/default.0/x.seg")
		f.put("segments/" + orphan + "/default.9999/00000000000000000001-0000000001-0000000001.seg")

		r := dryRun(t, f.b, recovery.DryRunOptions{Known: func(d string) bool { return d == "default" }})
		logs := func(n uint64) segment.Counts { return segment.Counts{n, 0, 0} }
		type row struct {
			id, state, verdict            string
			objects, bytes, done, unnamed uint64
			owed                          segment.Counts
		}
		want := []row{
			{gone, "idle", "bury", 0, 0, 0, 0, logs(0)},
			{drained, "drained", "sweep: late objects below exported", 1, 5, 1, 0, logs(0)},
			{silent, "live", "claimable: silent for 14m", 2, 10, 0, 1, logs(7)},
			{beating, "live", "not: beating", 2, 10, 1, 0, logs(50)},
			{retired, "retired", "claimable: retired", 2, 10, 1, 0, logs(9)},
			{released, "adopted", "claimable: released", 1, 5, 0, 0, logs(2)},
			{idle, "idle", "nothing owed: idle", 0, 0, 0, 0, logs(0)},
			{elsewhere, "retired", "not: unknown destination acme", 1, 5, 0, 0, logs(4)},
			{later, "", "not: unreadable", 0, 0, 0, 0, logs(0)},
		}
		var got []row
		for _, o := range r.Owners {
			got = append(got, row{o.Owner, o.State, o.Verdict, o.Objects, o.Bytes, o.Done, o.Unnamed, o.Owed})
		}
		if !slices.Equal(got, want) {
			t.Errorf("owners:\n%+v\nwant\n%+v", got, want)
		}
		if o := r.Owners[2]; o.AgeSeconds != 14*60+1 || o.Lanes != 1 || !o.Claimable || !strings.HasPrefix(o.Node, "web-") || o.Epoch != 1 {
			t.Errorf("silent: %+v", o)
		}
		if o := r.Owners[7]; !slices.Equal(o.Unknown, []string{"acme"}) || o.Claimable {
			t.Errorf("of unknown destination: %+v", o)
		}
		if want := []recovery.OrphanRow{{Owner: orphan, Lanes: 2, Objects: 2, Bytes: 10}}; !slices.Equal(r.Orphans, want) {
			t.Errorf("orphans %+v, want %+v", r.Orphans, want)
		}
		if len(r.Foreign.Keys) != 3 || r.Foreign.Objects != 3 || r.Foreign.Bytes != 15 {
			t.Errorf("foreign: %+v", r.Foreign)
		}
		if len(r.Damage) != 1 || r.Damage[0].Owner != later || !strings.Contains(r.Damage[0].What, "cannot be read") {
			t.Errorf("damage: %+v", r.Damage)
		}
		steps := []recovery.Step{
			{Do: "bury", Owner: gone}, {Do: "sweep", Owner: drained, Objects: 1}, {Do: "adopt", Owner: silent, Objects: 2, Records: logs(7)},
			{Do: "adopt", Owner: retired, Objects: 2, Records: logs(9)}, {Do: "adopt", Owner: released, Objects: 1, Records: logs(2)},
		}
		if !slices.Equal(r.Steps, steps) {
			t.Errorf("steps %+v, want %+v", r.Steps, steps)
		}
		totals := recovery.DryRunTotals{
			Owners: 9, Owing: 5, Claimable: 3, Unknown: 1, Objects: 9, Bytes: 45, Owed: logs(72), Unnamed: 1, Orphans: 2, OrphanBytes: 10,
			Foreign: 3, Damage: 1, Unreadable: 1,
		}
		if r.Totals != totals {
			t.Errorf("totals %+v, want %+v", r.Totals, totals)
		}
		one := dryRun(t, f.b, recovery.DryRunOptions{Owner: retired})
		if len(one.Owners) != 1 || one.Owners[0].Verdict != "claimable: retired" || one.Totals.Objects != 2 || one.Totals.Foreign != 0 {
			t.Errorf("one owner: %+v", one)
		}
	})
}

func both(a, b lease.Edit) lease.Edit {
	return func(r *lease.Record) error { return errors.Join(a(r), b(r)) }
}

// Ranges that are owed and that no object holds, by what keys can prove: never one that is not there.
func TestDryRunDamage(t *testing.T) {
	type object struct {
		seq         uint64
		first, last uint32
	}
	for _, test := range []struct {
		name              string
		exported, shipped segment.Position
		records           uint64
		objects           []object
		want              [][2]segment.Position
	}{
		{"whole", at(1, 1), at(1, 7), 1, []object{{1, 1, 3}, {1, 4, 6}}, nil},
		{"whole, the end sealed", at(1, 1), at(2, 1), 1, []object{{1, 1, 3}, {1, 4, 6}}, nil},
		{"whole, over segments whose numbers have a gap", at(1, 1), at(9, 2), 1, []object{{1, 1, 3}, {4, 1, 2}, {9, 1, 1}}, nil},
		{"begun in the middle of an object", at(1, 2), at(1, 7), 1, []object{{1, 1, 3}, {1, 4, 6}}, nil},
		{"put twice over other ranges", at(1, 1), at(1, 7), 1, []object{{1, 1, 3}, {1, 1, 6}, {1, 4, 5}}, nil},
		{"exported to the end of a segment", at(1, 7), at(2, 3), 1, []object{{2, 1, 2}}, nil},
		{"beyond the end", at(1, 1), at(1, 4), 1, []object{{1, 1, 3}, {1, 9, 9}}, nil},
		{"nothing at all", at(1, 1), at(1, 7), 1, nil, [][2]segment.Position{{at(1, 1), at(1, 7)}}},
		{"nothing of two segments", at(1, 5), at(3, 1), 1, nil, [][2]segment.Position{{at(1, 5), at(3, 1)}}},
		{"nothing, and no record that would be missing", at(1, 5), at(2, 1), 0, nil, nil},
		{"the first", at(1, 1), at(1, 7), 1, []object{{1, 4, 6}}, [][2]segment.Position{{at(1, 1), at(1, 4)}}},
		{"the middle", at(1, 1), at(1, 7), 1, []object{{1, 1, 2}, {1, 6, 6}}, [][2]segment.Position{{at(1, 3), at(1, 6)}}},
		{"the last", at(1, 1), at(1, 7), 1, []object{{1, 1, 3}}, [][2]segment.Position{{at(1, 4), at(1, 7)}}},
		{"the first of a later segment", at(1, 1), at(2, 7), 1, []object{{1, 1, 3}, {2, 4, 6}}, [][2]segment.Position{{at(2, 1), at(2, 4)}}},
		{"the last segment, open", at(1, 1), at(2, 7), 1, []object{{1, 1, 3}}, [][2]segment.Position{{at(2, 1), at(2, 7)}}},
		{"the last segment, sealed", at(1, 1), at(4, 1), 1, []object{{1, 1, 3}}, [][2]segment.Position{{at(1, 4), at(4, 1)}}},
		{"two", at(1, 1), at(2, 5), 1, []object{{1, 3, 3}, {2, 1, 1}, {2, 4, 4}},
			[][2]segment.Position{{at(1, 1), at(1, 3)}, {at(2, 2), at(2, 4)}}},
	} {
		f := newFixture(t, memory.New())
		id := f.retired(test.exported, test.shipped, test.records)
		for _, o := range test.objects {
			f.object(id, o.seq, o.first, o.last)
		}
		r := dryRun(t, f.b, recovery.DryRunOptions{})
		var got [][2]segment.Position
		for _, d := range r.Damage {
			from, fromErr := segment.ParsePosition(d.From)
			to, toErr := segment.ParsePosition(d.To)
			if d.Owner != id || d.Lane != "default.0" || fromErr != nil || toErr != nil || !strings.Contains(d.String(), d.From) {
				t.Errorf("%s: %+v", test.name, d)
			}
			got = append(got, [2]segment.Position{from, to})
		}
		if !slices.Equal(got, test.want) || r.Totals.Damage != uint64(len(got)) {
			t.Errorf("%s: damage %v (%d), want %v", test.name, got, r.Totals.Damage, test.want)
		}
	}
}

// What others do between register and listing is neither damage nor an orphan.
func TestDryRunBesideOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, memory.New())
		drained := f.retired(at(1, 1), at(1, 4), 3)
		f.object(drained, 1, 1, 3)
		lost := f.retired(at(1, 1), at(1, 4), 3)
		buried := f.retired(at(1, 1), at(1, 4), 3)
		var mu sync.Mutex
		reads := map[string]int{}
		var born string
		b := &readOnly{Bucket: f.b, t: t}
		b.before = func(op objstore.Op, key string) {
			if op == objstore.OpGet {
				mu.Lock()
				defer mu.Unlock()
				reads[key]++
				return
			}
			if key != objstore.SegmentsPrefix || born != "" {
				return
			}
			f.adopt(drained, both(owner.Export(map[segment.LaneID]owner.Progress{laneZero: {Exported: at(1, 4)}}), owner.Finish()))
			f.must(f.b.Delete(t.Context(), objstore.SegmentKey{Owner: drained, Lane: "default.0", Seq: 1, First: 1, Last: 3}.String()))
			f.must(f.b.Delete(t.Context(), objstore.OwnerKey{Owner: buried}.String()))
			born, _ = f.live(at(1, 1), at(1, 2), 1)
			f.object(born, 1, 1, 1)
		}
		r := dryRun(t, b, recovery.DryRunOptions{})
		verdicts := map[string]string{}
		for _, o := range r.Owners {
			verdicts[o.Owner] = o.Verdict
		}
		want := map[string]string{drained: "nothing owed: drained", lost: "claimable: retired", born: "not: beating"}
		if !reflect.DeepEqual(verdicts, want) || r.Totals.ChangedSince != 2 {
			t.Errorf("verdicts %v, want %v; totals %+v", verdicts, want, r.Totals)
		}
		if len(r.Orphans) != 0 || len(r.Damage) != 1 || r.Damage[0].Owner != lost {
			t.Errorf("orphans %+v, damage %+v", r.Orphans, r.Damage)
		}
		for key, n := range reads {
			if n > 2 {
				t.Errorf("%s was read %d times", key, n)
			}
		}
	})
}

// The bucket's trouble is an error, and no report with holes.
func TestDryRunBucketFails(t *testing.T) {
	f := newFixture(t, memory.New())
	id := f.retired(at(1, 1), at(1, 4), 3)
	for _, test := range []struct {
		op  objstore.Op
		key string
	}{
		{objstore.OpList, objstore.OwnersPrefix}, {objstore.OpList, objstore.SegmentsPrefix}, {objstore.OpGet, objstore.OwnerKey{Owner: id}.String()},
	} {
		b := &failing{Bucket: f.b, op: test.op, key: test.key}
		r, err := recovery.DryRun(t.Context(), recovery.DryRunOptions{Bucket: b, StaleAfter: testStale, Retention: testRetention})
		if r != nil || !errors.Is(err, objstore.ErrDenied) {
			t.Errorf("%s %s: %v, %v", test.op, test.key, r, err)
		}
	}
}

type failing struct {
	objstore.Bucket

	op  objstore.Op
	key string
}

func (b *failing) Get(ctx context.Context, key string, o objstore.GetOptions) (*objstore.Object, error) {
	if b.op == objstore.OpGet && b.key == key {
		return nil, objstore.ErrDenied
	}
	return b.Bucket.Get(ctx, key, o)
}

func (b *failing) List(ctx context.Context, o objstore.ListOptions) (*objstore.Page, error) {
	if b.op == objstore.OpList && b.key == o.Prefix {
		return nil, objstore.ErrDenied
	}
	return b.Bucket.List(ctx, o)
}

// An empty bucket has a report, in which nothing is null.
func TestDryRunEmpty(t *testing.T) {
	text, err := json.Marshal(dryRun(t, memory.New(), recovery.DryRunOptions{}))
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(text), "null") || !strings.Contains(string(text), `"owners":[]`) {
		t.Errorf("%s", text)
	}
}

// wide is a bucket of one owner with many objects, which are made up as they are listed.
type wide struct {
	objstore.Bucket

	owner string
	pages int
	heap  []uint64 // in use after each page
}

const wideKeys = 1000

func (b *wide) List(ctx context.Context, o objstore.ListOptions) (*objstore.Page, error) {
	if o.Prefix != objstore.SegmentsPrefix {
		return b.Bucket.List(ctx, o)
	}
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	b.heap = append(b.heap, m.HeapAlloc)
	page := &objstore.Page{}
	n := len(b.heap)
	for i := range wideKeys {
		k := objstore.SegmentKey{Owner: b.owner, Lane: "default.0", Seq: uint64(n*wideKeys + i), First: 2, Last: 3} // frame 1 is missing of each
		page.Objects = append(page.Objects, objstore.Info{Key: k.String(), SizeBytes: 1})
	}
	if n < b.pages {
		page.Next = fmt.Sprint(n)
	}
	return page, nil
}

func TestDryRunMemoryIsFlat(t *testing.T) {
	const pages = 60
	f := newFixture(t, memory.New())
	b := &wide{Bucket: f.b, pages: pages}
	b.owner = f.retired(at(wideKeys, 1), at(wideKeys*(pages+1), 1), 1)
	r := dryRun(t, &readOnly{Bucket: b, t: t}, recovery.DryRunOptions{})
	if r.Totals.Objects != pages*wideKeys || r.Totals.Damage != pages*wideKeys || len(r.Damage) != 1000 {
		t.Errorf("totals %+v, %d named", r.Totals, len(r.Damage))
	}
	const mostGrowth = 1 << 20 // 58,000 objects; 18 bytes each
	first, last := b.heap[2], b.heap[pages-1]
	if last > first+mostGrowth {
		t.Errorf("heap grew from %d to %d bytes over %d pages", first, last, pages-3)
	}
}
