package segment

import (
	"errors"
	"math/rand/v2"
	"os"
	"testing"

	"go.uber.org/zap"

	"ingest-agent/segment/vfs"
)

// TestCrashInASpill: the machine dies before any file operation of a spill. In the next life each frame is on the disk or read
// back from where it was stored; none is counted as lost.
func TestCrashInASpill(t *testing.T) {
	t.Parallel()
	ims := laneImages(t, CodecNone, 6, 10, 100)
	all := frameBodies(ims...)
	last := ims[len(ims)-1]
	remote := &memRemote{}
	open := func(fsys vfs.FS) (*Lane, error) {
		return tryLane(t, seedDir, func(o *LaneOptions) {
			o.FS, o.DrainOnly, o.Log, o.Remote = fsys, true, zap.NewNop(), remote
			o.Quarantine = NewQuarantine(fsys, seedDir+"/quarantine", DefaultQuarantineBytes)
		})
	}
	disk := func() *vfs.Mem {
		m, segments := vfs.NewMem(), map[Seq][]byte{}
		for _, im := range ims {
			segments[im.hdr.Seq] = im.bytes
		}
		seed(t, m, seedDir, &CursorState{Lane: last.hdr.Lane, Generation: 5, NextSeq: 7, In: last.totals, Exported: Start}, segments)
		return m
	}
	// life opens the lane, spills it, and dies before an operation; it lives on if that is 0.
	life := func(m *vfs.Mem, stopAt int) (begun, ops int, freed int64) {
		f := vfs.NewFault(m, nil)
		if stopAt > 0 {
			f.StopAfter(stopAt)
		}
		l, err := open(f)
		if err != nil {
			return 0, f.Ops(), 0
		}
		begun = f.Ops()
		freed, err = l.Spill(t.Context(), Position{7, 1})
		if err != nil && stopAt == 0 {
			t.Fatal(err)
		}
		if err := l.Close(); err != nil && stopAt == 0 {
			t.Fatal(err)
		}
		return begun, f.Ops(), freed
	}
	l, err := open(disk())
	if err != nil {
		t.Fatal(err)
	}
	if n, _ := remote.ship(t, l, 1<<20); n != len(all) {
		t.Fatalf("shipped %d of %d frames", n, len(all))
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	_, ops, freed := life(disk(), 0)
	if freed == 0 {
		t.Fatal("nothing was spilled")
	}
	const seed = 5
	t.Logf("%d operations, seed %d", ops, seed)
	for n := 1; n <= ops+1; n++ {
		rng := rand.New(rand.NewPCG(seed, uint64(n)))
		m := disk()
		life(m, n)
		if n%2 == 0 {
			m = m.CrashStrict()
		} else {
			m = m.Crash(rng)
		}
		if n%4 > 1 { // and the newer slot of the cursor is damaged
			m = damagedSlot(t, m)
		}
		l, err := open(m)
		if err != nil {
			t.Fatalf("operation %d: %v", n, err)
		}
		frames, lost := readPending(t, l)
		var got []string
		for i := range frames {
			got = append(got, string(frames[i].Body))
		}
		sameSet(t, got, all, false)
		if lost != (Totals{}) {
			t.Errorf("operation %d: lost %+v", n, lost)
		}
		if err := l.Close(); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			t.Fatalf("operation %d", n)
		}
	}
}

// damagedSlot damages the newer slot of the cursor file.
func damagedSlot(t *testing.T, m *vfs.Mem) *vfs.Mem {
	t.Helper()
	f, err := m.OpenFile(seedLaneDir(seedDir)+"/"+cursorFile, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	var c cursorStore
	c.file = f
	if _, _, err := c.load(LaneID{Destination: "default"}); err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt([]byte("damage"), int64(1-c.slot)*cursorSlotBytes+cursorHeadBytes); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(f.Sync(), f.Close()); err != nil {
		t.Fatal(err)
	}
	return m
}
