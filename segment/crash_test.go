package segment

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"

	"ingest-agent/segment/vfs"
)

// mortal is a sink of a process that may die: from then on it takes nothing.
type mortal struct {
	takeSink
	dead func() bool
}

func (s *mortal) Deliver(ctx context.Context, r *Request) Outcome {
	time.Sleep(50 * time.Millisecond)
	if s.dead() {
		return Outcome{Verdict: Retry, Err: errors.New("dead")}
	}
	return s.takeSink.Deliver(ctx, r)
}

// drainLife opens the lane that lies on disk, drains it, and dies before file operation stopAt; it lives on if that is 0. It
// returns what was delivered and how many operations there were.
func drainLife(t *testing.T, disk *vfs.Mem, stopAt int) (got []string, ops int) {
	t.Helper()
	f := vfs.NewFault(disk, nil)
	if stopAt > 0 {
		f.StopAfter(stopAt)
	}
	synctest.Test(t, func(t *testing.T) {
		sink := &mortal{dead: func() bool { return stopAt > 0 && f.Ops() >= stopAt }}
		l, err := drainOnly(t, f, seedDir)
		if err != nil {
			if !sink.dead() {
				t.Errorf("start: %v", err)
			}
			return
		}
		ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
		defer cancel()
		src := l.Source()
		DrainOptions{Source: src, Cursor: l, Sink: func() Sink { return sink }, Dead: noDead{}, Log: zap.NewNop(), Limits: func() Limits {
			return Limits{InFlight: 2, MaxRequestBytes: 350, WindowBytes: 8 << 10, RetryInitial: time.Second, RetryMax: time.Second}
		}}.Run(ctx)
		_ = src.Close()
		if err := l.Close(); err != nil && !sink.dead() {
			t.Error(err)
		}
		got = sink.got
		if st := l.Stats(); stopAt == 0 && (st.Ledger.Out() != st.In.Records || st.Pending() != (Totals{}) || st.Ledger.Lost != nil) {
			t.Errorf("ledger %+v with %+v", st.Ledger, st.In)
		}
	})
	return got, f.Ops()
}

// Case 14 of the field's bug reports: the machine dies before or after any operation of start, cut, quarantine, seal of what a
// crash left, cursor write and removal, and again in the life after that. Each start works, nothing is lost or made up, and a
// crash repeats at most what was delivered since the cursor was saved.
func TestCase14CrashAtEveryOperation(t *testing.T) {
	t.Parallel()
	const exported, segmentFrames = 7, 20
	ims := laneImages(t, CodecNone, 3, segmentFrames, 100)
	last := ims[2]
	all := frameBodies(ims...)
	torn := slices.Concat(last.bytes[:last.footer.from], last.blocks[1].raw[:300]) // not sealed, and half a block behind
	cur := &CursorState{
		Lane: last.hdr.Lane, Generation: 5, NextSeq: 4, In: last.totals, Exported: Position{1, exported + 1}, Open: []OpenSegment{{last.hdr, last.hdr.salt}},
	}
	for i := range exported {
		f := ims[0].frames[i].frame(Birth{})
		cur.Out = cur.Out.Add(f.Totals())
	}
	cur.Ledger.Delivered = cur.Out.Records
	disk := func() *vfs.Mem {
		m := vfs.NewMem()
		seed(t, m, seedDir, cur, map[Seq][]byte{1: ims[0].bytes, 2: ims[1].bytes, 3: torn})
		return m
	}
	got, ops := drainLife(t, disk(), 0)
	sameSet(t, got, all[exported:], false)
	if ops < 100 {
		t.Fatalf("only %d operations", ops)
	}
	const seed = 14
	t.Logf("%d operations, seed %d", ops, seed)
	for n := 1; n <= ops+1; n++ {
		for _, how := range []string{"strict", "chance"} {
			t.Run(fmt.Sprintf("%d/%s", n, how), func(t *testing.T) {
				rng := rand.New(rand.NewPCG(seed, uint64(n)))
				crash := func(m *vfs.Mem) *vfs.Mem {
					if how == "strict" {
						return m.CrashStrict()
					}
					return m.Crash(rng)
				}
				m := disk()
				first, _ := drainLife(t, m, n)
				m = crash(m)
				second, _ := drainLife(t, m, 1+rng.IntN(ops))
				m = crash(m)
				third, _ := drainLife(t, m, 0)
				m = crash(m)
				if more, _ := drainLife(t, m, 0); len(more) != 0 {
					t.Errorf("%d frames delivered after a clean end", len(more))
				}
				got := slices.Concat(first, second, third)
				sameSet(t, got, all[exported:], true)
				if twice := len(got) - len(all[exported:]); twice > 2*segmentFrames {
					t.Errorf("%d frames delivered twice by two crashes", twice)
				}
				if left, err := listSegments(m, seedLaneDir(seedDir)); err != nil || len(left) != 0 {
					t.Errorf("segments left: %v, %v", left, err)
				}
			})
		}
	}
}
