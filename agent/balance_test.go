package agent

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"ingest-agent/segment"
)

// A crash behind the sync of a parked lane and before the cursor's save leaves frames in both lanes: they are sent twice,
// with the same ids, and the balance holds all the same.
func TestCrashInAMove(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newParkWorld(t, parkLimits())
		w.start()
		w.set(func(string) bool { return true })
		const both, all = 7, 20
		var moved []segment.Frame
		source := w.lane.Source()
		for i := range all {
			w.send("a", i)
		}
		for range both {
			it, err := source.Next(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			moved = append(moved, *it.Frame)
		}
		if err := source.Close(); err != nil {
			t.Fatal(err)
		}
		if err := w.park.Move(t.Context(), moved); err != nil {
			t.Fatal(err)
		}
		w.balanced(&laneSet{all: w.lanes, moves: map[laneKey]moveBalance{}}, all) // on its way: counted once
		w.stop()

		w.start()
		set := &laneSet{all: w.lanes}
		set.moves = balances(set.stats())
		if got := set.moves[laneKey{"default", 0}][segment.Logs.Index()]; got != both {
			t.Errorf("%d are found twice, want %d", got, both)
		}
		w.balanced(set, all+both)
		w.set(func(string) bool { return false })
		time.Sleep(time.Minute)
		w.balanced(set, all+both)
		w.stop()
		seen := map[string]int{}
		for _, body := range w.got["a"] {
			seen[body[:8]]++
		}
		for i := range all {
			if n := seen[fmt.Sprintf("a %06d", i)]; n != 1 && (i >= both || n != 2) {
				t.Errorf("frame %d is delivered %d times", i, n)
			}
		}
	})
}

// balanced checks that what left the lanes and what is pending is so much together.
func (w *parkWorld) balanced(s *laneSet, want uint64) {
	w.t.Helper()
	var sum uint64
	for _, st := range s.stats() {
		sum += st.pending.Records.Sum() + st.Ledger.Out().Sum() - st.Ledger.Moved.Sum()
	}
	if sum != want {
		w.t.Errorf("%d are accounted for, want %d", sum, want)
	}
}
