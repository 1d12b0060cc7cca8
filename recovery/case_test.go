package recovery_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"ingest-agent/objstore"
	"ingest-agent/objstore/lease"
	"ingest-agent/recovery"
	"ingest-agent/recovery/owner"
	"ingest-agent/segment"
)

const scanKey = "fleet/scan.json"

// TestCase70: a conflict (409) decides nothing. While there is no object it is tried again, and won; where another's appears, it
// is lost; neither is trouble.
func TestCase70(t *testing.T) {
	for _, lost := range []bool{false, true} {
		t.Run(fmt.Sprintf("lost=%v", lost), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b, dest := newStore(t), newDestination()
				d := gone(t, b, id(1), lane0, 1, 4)
				logs, seen := observer.New(zap.WarnLevel)
				o := options(b, "a", dest)
				o.Log = zap.New(logs)
				other := lease.New(lease.Options{Bucket: b.Bucket, Key: scanKey, Holder: id(99).String(), Node: "other", StaleAfter: testStale})
				tries := 0
				b.Fail(func(ctx context.Context, op objstore.Op, key string) error {
					if op != objstore.OpPut || key != scanKey {
						return nil
					}
					if tries++; tries == 5 && lost {
						_, err := other.Acquire(ctx, lease.Seen{}, func(r *lease.Record) error { r.State = "scanning"; return nil })
						if err != nil {
							return err
						}
					}
					if tries <= 5 {
						return objstore.ErrUnknown
					}
					return nil
				})
				n := run(o)
				defer n.kill()
				pass(testScan / 2)
				if st := n.Stats(); st.Scanning == lost || st.LastError != "" || seen.Len() > 0 {
					t.Errorf("after %d tries: scanning %v, trouble %q, logged %v", tries, st.Scanning, st.LastError, seen.All())
				}
				if drained := d.state() == owner.Drained; drained == lost {
					t.Errorf("drained: %v", drained)
				}
			})
		})
	}
}

// TestCase74: 50 claimers, 200 segments, delays and conflicts: one holder at a time, and each record is exported once.
func TestCase74(t *testing.T) {
	seed := uint64(74)
	t.Logf("seed %d", seed)
	synctest.Test(t, func(t *testing.T) {
		const claimers, owners, segments = 50, 40, 5
		mem := newStore(t).Bucket
		var all []*dead
		for i := range uint64(owners) {
			all = append(all, gone(t, view(mem), id(i+1), lane0, segments, 2))
		}
		dest := newDestination()
		var mu sync.Mutex
		active := map[string]int{}
		rng := rand.New(rand.NewPCG(seed, 0))
		for i := range claimers {
			b := view(mem)
			b.Fail(func(ctx context.Context, op objstore.Op, _ string) error {
				mu.Lock()
				d, conflict := time.Duration(rng.Int64N(int64(300*time.Millisecond))), op == objstore.OpPut && rng.IntN(5) == 0
				mu.Unlock()
				if err := delay(ctx, d); err != nil || !conflict {
					return err
				}
				return objstore.ErrUnknown
			})
			o := options(b, fmt.Sprintf("n%d", i), dest)
			drain := o.Drain
			o.Drain = func(ctx context.Context, l recovery.Adopted) {
				mu.Lock()
				if active[l.Owner]++; active[l.Owner] > 1 {
					t.Errorf("owner %s has %d holders", l.Owner, active[l.Owner])
				}
				mu.Unlock()
				drain(ctx, l)
				mu.Lock()
				active[l.Owner]--
				mu.Unlock()
			}
			n := run(o)
			t.Cleanup(n.kill)
		}
		took := passUntil(t, 10*testStale, func() bool { return len(keys(t, mem, objstore.SegmentsPrefix)) == 0 })
		pass(testScan)
		t.Logf("all drained after %s", took)
		for _, d := range all {
			d.wantDrained()
		}
		if frames, twice := dest.taken(); frames != owners*segments*2 || twice > 0 {
			t.Errorf("%d frames delivered, %d twice; want %d, 0", frames, twice, owners*segments*2)
		}
	})
}

// TestCase77: the third of five segments is gone: from the listing, or between the listing and the read. The others are
// exported, the lost range is counted and named, and the claim completes.
func TestCase77(t *testing.T) {
	for _, late := range []bool{false, true} {
		t.Run(fmt.Sprintf("late=%v", late), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b, dest := newStore(t), newDestination()
				d := gone(t, b, id(1), lane0, 5, 4)
				third := d.objects[lane0][2]
				if late {
					b.Fail(func(ctx context.Context, op objstore.Op, key string) error {
						if op == objstore.OpGet && key == third {
							return b.Bucket.Delete(ctx, key)
						}
						return nil
					})
				} else if err := b.Bucket.Delete(context.Background(), third); err != nil {
					t.Fatal(err)
				}
				logs, seen := observer.New(zap.ErrorLevel)
				o := options(b, "a", dest)
				o.Log = zap.New(logs)
				n := run(o)
				defer n.kill()
				passUntil(t, testScan, func() bool { return d.state() == owner.Drained })
				d.wantDrained()
				if frames, _ := dest.taken(); frames != 16 {
					t.Errorf("%d frames delivered, want 16", frames)
				}
				if lost := n.Stats().Ledger.Lost; lost[segment.LostMissing].Sum() != 4*testRecords || len(lost) != 1 {
					t.Errorf("lost: %v", lost)
				}
				lines := seen.FilterMessage("records of another owner are lost").All()
				if len(lines) != 1 || lines[0].ContextMap()["before"] != at(4, 1).String() {
					t.Errorf("logged: %v", lines)
				}
			})
		})
	}
}

// TestCase83: three nodes with backlogs go away while the destination is down, one stays: all arrives, and nothing is left of the
// others but that they were there.
func TestCase83(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, dest := newStore(t), newDestination()
		dest.set(true)
		stays := run(options(b, "a", dest))
		defer stays.kill()
		second, third := run(options(b, "b", dest)), run(options(b, "c", dest))
		stopped := gone(t, b, id(1), lane0, 4, 3)
		killed := newDead(t, b, id(2), lane0)
		killed.put(lane0, 3, 100)
		killed.name()
		killed.put(lane0, 2, 100) // not named any more
		pass(3 * testStale)
		if err := second.Stop(t.Context()); err != nil {
			t.Error(err)
		}
		third.kill()
		pass(3 * testStale)
		dest.set(false)
		passUntil(t, 30*testStale, func() bool { return stopped.state() == owner.Drained && killed.state() == owner.Drained })
		stopped.wantDrained()
		killed.wantDrained()
		if frames, twice := dest.taken(); frames != 17 || twice != 0 {
			t.Errorf("%d frames delivered, %d twice; want 17, 0", frames, twice)
		}
	})
}

// TestCase85: of 100 owners that die at once, one lies in a store that answers in 10 s, or in 10 minutes. The other 99 are claimed
// within the time after which they are stale, and two polls.
func TestCase85(t *testing.T) {
	for _, answers := range []time.Duration{10 * time.Second, 10 * time.Minute} {
		t.Run(answers.String(), func(t *testing.T) { oneSlowOf100(t, answers) })
	}
}

func oneSlowOf100(t *testing.T, answers time.Duration) {
	synctest.Test(t, func(t *testing.T) {
		b, dest := newStore(t), newDestination()
		var all []*dead
		for i := range uint64(100) {
			d := newDead(t, b, id(i+1), lane0)
			d.put(lane0, 2, 100)
			d.name()
			all = append(all, d)
		}
		slow := all[42]
		b.Fail(func(ctx context.Context, _ objstore.Op, key string) error {
			if strings.Contains(key, slow.id.String()) {
				return delay(ctx, answers)
			}
			return nil
		})
		n := run(options(b, "a", dest))
		defer n.kill()
		claimed := func() bool {
			for _, d := range all {
				if d != slow && d.state() == owner.Live {
					return false
				}
			}
			return true
		}
		took := passUntil(t, testStale+2*testScan, claimed)
		t.Logf("claimed after %s; stale after %s, a poll in %s", took, testStale, testScan)
		b.Fail(nil)
		passUntil(t, 20*testStale, func() bool { return slow.state() == owner.Drained })
	})
}
