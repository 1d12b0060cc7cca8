package recovery_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"ingest-agent/objstore"
	"ingest-agent/recovery/owner"
	"ingest-agent/segment"
)

// keeper is an archive that notes what it is given, and fails as it is told.
type keeper struct {
	mu   sync.Mutex
	kept map[objstore.SegmentKey]segment.Position
	fail error
	bad  []string
	b    *store
}

func (k *keeper) archive(ctx context.Context, key objstore.SegmentKey, exported segment.Position) error {
	obj, err := k.b.Bucket.Get(ctx, key.String(), objstore.GetOptions{})
	k.mu.Lock()
	defer k.mu.Unlock()
	if err != nil {
		k.bad = append(k.bad, "deleted before it was archived: "+key.String())
		return err
	}
	if k.fail != nil {
		return errors.Join(k.fail, obj.Body.Close())
	}
	k.kept[key] = exported
	return obj.Body.Close()
}

func (k *keeper) set(err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.fail = err
}

// TestAdoptedObjectsAreArchivedFirst, up to what is exported.
func TestAdoptedObjectsAreArchivedFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, dest := newStore(t), newDestination()
		d := gone(t, b, id(1), lane0, 5, 4)
		k := &keeper{kept: map[objstore.SegmentKey]segment.Position{}, b: b}
		o := options(b, "a", dest)
		o.Archive = k.archive
		n := run(o)
		defer n.kill()
		passUntil(t, testScan, func() bool { return d.state() == owner.Drained })
		d.wantDrained()
		if len(k.kept) != 5 || len(k.bad) > 0 {
			t.Errorf("archived %d of 5 objects; %q", len(k.kept), k.bad)
		}
		for key, exported := range k.kept {
			if end := (segment.Position{Seq: segment.Seq(key.Seq), Entry: segment.Entry(key.Last)}); !end.Before(exported) {
				t.Errorf("object %s was archived up to %s", key, exported)
			}
		}
	})
}

// TestArchiveHoldsUpNoDelivery: while it fails, everything is delivered and committed, and only the objects stay; the claim is given
// back, and later attempts find them.
func TestArchiveHoldsUpNoDelivery(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, dest := newStore(t), newDestination()
		d := newDead(t, b, id(1), lane0)
		d.put(lane0, 4, 100)
		d.name()
		d.export(lane0, d.ends[lane0], 4) // exported, and not deleted
		for range 4 {
			d.put(lane0, 4, 100)
		}
		p := d.ends[lane0]
		if err := d.lease.Commit(t.Context(), owner.Ship(map[segment.LaneID]owner.Progress{lane0: {
			Exported: segment.Position{Seq: 2, Entry: 1}, Passed: segment.Logs.Of(4 * testRecords), Shipped: p, Records: d.in[lane0].Records,
		}})); err != nil {
			t.Fatal(err)
		}
		d.retire()
		k := &keeper{kept: map[objstore.SegmentKey]segment.Position{}, b: b, fail: errors.New("no archive")}
		o := options(b, "a", dest)
		o.Archive = k.archive
		n := run(o)
		defer n.kill()
		pass(2 * testScan)
		if frames, twice := dest.taken(); frames != 16 || twice != 0 {
			t.Errorf("%d frames delivered, %d twice; want 16, 0", frames, twice)
		}
		if _, body := d.seen(); body.Owes() {
			t.Error("what is delivered is not committed")
		}
		if left := len(keys(t, b.Bucket, objstore.SegmentsPrefix)); left != 5 {
			t.Errorf("%d objects of 5 are left", left)
		}
		if holder := d.holder(); holder != "" {
			t.Errorf("held by %s", holder)
		}
		k.set(nil)
		passUntil(t, time.Hour, func() bool { return d.state() == owner.Drained })
		d.wantDrained()
		if len(k.kept) != 5 || len(k.bad) > 0 {
			t.Errorf("archived %d of 5 objects; %q", len(k.kept), k.bad)
		}
		if _, twice := dest.taken(); twice != 0 {
			t.Errorf("%d frames were delivered twice", twice)
		}
	})
}
