package recovery_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"ingest-agent/objstore"
	"ingest-agent/objstore/lease"
	"ingest-agent/recovery"
	"ingest-agent/recovery/owner"
	"ingest-agent/segment"
)

// collect is a drain that delivers by noting what it reads.
func collect(items *[]segment.Item) func(ctx context.Context, l recovery.Adopted) {
	return func(ctx context.Context, l recovery.Adopted) {
		for {
			it, err := l.Source.Next(ctx)
			if ctx.Err() != nil {
				return
			}
			if err != nil {
				if delay(ctx, time.Second) != nil {
					return
				}
				continue
			}
			*items = append(*items, it)
			p := segment.Progress{To: it.Next, Out: it.Lost}
			if it.Lost != (segment.Totals{}) {
				p.Ledger.Lost = map[segment.Cause]segment.Counts{it.Cause: it.Lost.Records}
			}
			if f := it.Frame; f != nil {
				n := f.Signal.Of(uint64(f.Records))
				p.Ledger.Delivered = n
				p.Out = p.Out.Add(segment.Totals{Frames: 1, Records: n, Bytes: uint64(len(f.Body))})
			}
			l.Cursor.Advance(&p)
		}
	}
}

// rewrite replaces an object by what change makes of it.
func rewrite(t *testing.T, b objstore.Bucket, key string, change func(data []byte) []byte) {
	t.Helper()
	obj, err := b.Get(context.Background(), key, objstore.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	data, err := io.ReadAll(obj.Body)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.Put(context.Background(), key, bytes.NewReader(change(data)), objstore.Condition{}); err != nil {
		t.Fatal(err)
	}
}

// TestSourceCountsWhatIsLost: five objects of four frames, with things done to them: what arrives, what is lost, and why.
func TestSourceCountsWhatIsLost(t *testing.T) {
	flip := func(data []byte, part float64) []byte {
		data[int(float64(len(data))*part)] ^= 0xff
		return data
	}
	remove := func(n ...int) func(d *dead) {
		return func(d *dead) {
			for _, i := range n {
				if err := d.b.(*store).Bucket.Delete(context.Background(), d.objects[lane0][i]); err != nil {
					d.t.Fatal(err)
				}
			}
		}
	}
	damage := func(n int, part float64) func(d *dead) {
		return func(d *dead) {
			rewrite(d.t, d.b, d.objects[lane0][n], func(data []byte) []byte { return flip(data, part) })
		}
	}
	garbage := func(n int) func(d *dead) {
		return func(d *dead) {
			rewrite(d.t, d.b, d.objects[lane0][n], func(data []byte) []byte { return bytes.Repeat([]byte{0xa5}, len(data)) })
		}
	}
	cut := func(n int) func(d *dead) {
		return func(d *dead) {
			rewrite(d.t, d.b, d.objects[lane0][n], func(data []byte) []byte { return data[:len(data)/2] })
		}
	}
	const missing, corrupt = segment.LostMissing, segment.LostCorrupt
	for _, c := range []struct {
		name   string
		export segment.Position // by the owner
		frames uint64           // before it
		do     []func(d *dead)
		want   int // frames
		lost   map[segment.Cause]uint64
		rough  bool // how many frames the records were in is not known: no object tells, and numbers begin again in each segment
	}{
		{name: "nothing", want: 20},
		{name: "begun", export: at(2, 3), frames: 6, want: 14},
		{name: "begun at the end of a segment", export: at(2, 5), frames: 8, want: 12},
		{name: "first missing", do: []func(*dead){remove(0)}, want: 16, lost: map[segment.Cause]uint64{missing: 4}, rough: true},
		{name: "third missing", do: []func(*dead){remove(2)}, want: 16, lost: map[segment.Cause]uint64{missing: 4}},
		{name: "last missing", do: []func(*dead){remove(4)}, want: 16, lost: map[segment.Cause]uint64{missing: 4}, rough: true},
		{name: "all missing", do: []func(*dead){remove(0, 1, 2, 3, 4)}, want: 0, lost: map[segment.Cause]uint64{missing: 20}, rough: true},
		{name: "begun one missing", export: at(2, 3), frames: 6, do: []func(*dead){remove(1)}, want: 12, lost: map[segment.Cause]uint64{missing: 2}, rough: true},
		{name: "a frame damaged", do: []func(*dead){damage(1, 0.5)}, want: 19, lost: map[segment.Cause]uint64{corrupt: 1}},
		{name: "first frame damaged", do: []func(*dead){damage(1, 0.33)}, want: 19, lost: map[segment.Cause]uint64{corrupt: 1}},
		{name: "before the cursor damaged", export: at(2, 3), frames: 6, do: []func(*dead){damage(1, 0.33)}, want: 14},
		{name: "header damaged", do: []func(*dead){damage(1, 0.1)}, want: 20},
		{name: "footer damaged", do: []func(*dead){damage(1, 0.95)}, want: 20},
		{name: "last footer damaged", do: []func(*dead){damage(4, 0.95)}, want: 20},
		{name: "garbage", do: []func(*dead){garbage(1)}, want: 16, lost: map[segment.Cause]uint64{corrupt: 4}},
		{name: "last garbage", do: []func(*dead){garbage(4)}, want: 16, lost: map[segment.Cause]uint64{corrupt: 4}},
		{name: "cut", do: []func(*dead){cut(2)}, want: 18, lost: map[segment.Cause]uint64{corrupt: 2}},
		{name: "last cut", do: []func(*dead){cut(4)}, want: 18, lost: map[segment.Cause]uint64{corrupt: 2}},
		{name: "damaged and missing", do: []func(*dead){damage(1, 0.5), remove(3)}, want: 15, lost: map[segment.Cause]uint64{corrupt: 1, missing: 4}},
		{name: "missing, then garbage", do: []func(*dead){remove(1), garbage(2)}, want: 12, lost: map[segment.Cause]uint64{corrupt: 8}},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newStore(t)
				d := newDead(t, b, id(1), lane0)
				for range 5 {
					d.put(lane0, 4, 100)
				}
				d.name()
				if c.frames > 0 {
					d.export(lane0, c.export, c.frames)
				}
				d.retire()
				for _, do := range c.do {
					do(d)
				}
				var items []segment.Item
				kept := map[string]bool{}
				o := options(b, "a", nil)
				o.Drain = collect(&items)
				o.Quarantine = func(_ segment.LaneID, key string, data []byte, _ []segment.Damage) error {
					kept[key] = len(data) > 0
					return nil
				}
				n := run(o)
				defer n.kill()
				passUntil(t, testScan, func() bool { s, _ := d.seen(); return s.State == owner.Drained })
				d.wantDrained()
				frames, lost, counted := 0, map[segment.Cause]uint64{}, map[segment.Cause]uint64{}
				var last segment.Position
				for _, it := range items {
					if it.Frame != nil {
						frames++
						if !last.Before(it.Next) {
							t.Errorf("%s after %s", it.Next, last)
						}
					}
					if last = it.Next; it.Cause != "" {
						lost[it.Cause] += it.Lost.Records.Sum() / testRecords
						counted[it.Cause] += it.Lost.Frames
					}
				}
				if frames != c.want || fmt.Sprint(lost) != fmt.Sprint(nonNil(c.lost)) {
					t.Errorf("%d frames, lost %v; want %d, %v", frames, lost, c.want, c.lost)
				}
				if !c.rough && fmt.Sprint(counted) != fmt.Sprint(lost) {
					t.Errorf("%v frames lost, with the records of %v", counted, lost)
				}
				if _, body := d.seen(); body.Lanes[lane0].Passed.Sum() != 20*testRecords {
					t.Errorf("the register says that %v were passed", body.Lanes[lane0].Passed)
				}
				damaged := slices.ContainsFunc(c.do, func(func(*dead)) bool { return lost[corrupt] > 0 })
				if damaged && len(kept) == 0 {
					t.Error("nothing was kept of what is damaged")
				}
			})
		})
	}
}

func nonNil[K comparable, V any](m map[K]V) map[K]V {
	if m == nil {
		return map[K]V{}
	}
	return m
}

// TestSignedOffOwnerKeepsWhatIsNotTaken: what lies behind taken is on the owner's own disk: it is deleted, and not exported.
func TestSignedOffOwnerKeepsWhatIsNotTaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, dest := newStore(t), newDestination()
		d := newDead(t, b, id(1), lane0)
		d.put(lane0, 4, 100)
		d.name()
		d.put(lane0, 3, 100) // not named
		d.change(lease.Fence, owner.HandOver(nil))
		n := run(options(b, "a", dest))
		defer n.kill()
		passUntil(t, testScan, func() bool { s, _ := d.seen(); return s.State == owner.Drained })
		d.wantDrained()
		if frames, _ := dest.taken(); frames != 4 {
			t.Errorf("%d frames, want those that were named", frames)
		}
	})
}

// TestWhatWasNotNamedIsTaken: an object that its owner wrote and did not live to name is delivered.
func TestWhatWasNotNamedIsTaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, dest := newStore(t), newDestination()
		other := segment.LaneID{Destination: "default", Shard: 1}
		d := newDead(t, b, id(1), lane0, other)
		d.put(lane0, 4, 100)
		d.name()
		d.put(lane0, 3, 100)
		d.put(other, 2, 100)
		n := run(options(b, "a", dest))
		defer n.kill()
		took := passUntil(t, 10*testStale, func() bool { s, _ := d.seen(); return s.State == owner.Drained })
		d.wantDrained()
		if frames, twice := dest.taken(); frames != 9 || twice != 0 {
			t.Errorf("%d frames, %d twice; want 9, 0", frames, twice)
		}
		if took < testStale-time.Second || took > testStale+2*testScan {
			t.Errorf("a live owner was adopted after %s", took)
		}
	})
}

// TestMissingIsNotBelievedWithoutTheRegister: what is not there any more, listed or not, is a loss only to who holds the register.
func TestMissingIsNotBelievedWithoutTheRegister(t *testing.T) {
	for _, listed := range []bool{false, true} {
		t.Run(fmt.Sprintf("listed=%v", listed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newStore(t)
				d := gone(t, b, id(1), lane0, 3, 2)
				second := d.objects[lane0][1]
				var items []segment.Item
				o := options(b, "a", nil)
				o.Drain = collect(&items)
				b.Fail(func(ctx context.Context, op objstore.Op, key string) error {
					if listed && (op != objstore.OpGet || key != second) ||
						!listed && (op != objstore.OpList || key != objstore.LanePrefix(d.id.String(), lane0.String())) {
						return nil
					}
					// Somebody else has it by now, and has delivered and deleted the object.
					if d.holder() == o.Holder {
						d.change(lease.Fence, owner.Export(map[segment.LaneID]owner.Progress{lane0: {Exported: d.ends[lane0]}}))
					}
					return b.Bucket.Delete(ctx, second)
				})
				n := run(o)
				defer n.kill()
				passUntil(t, 5*testStale, func() bool { s, _ := d.seen(); return s.State == owner.Drained })
				for _, it := range items {
					if it.Cause != "" || at(2, 1).Before(it.Next) {
						t.Errorf("counted as lost, or passed: %+v", it)
					}
				}
				if st := n.Stats(); st.Adoptions[recovery.Fenced] != 1 {
					t.Errorf("adoptions %v, want one that was fenced", st.Adoptions)
				}
			})
		})
	}
}
