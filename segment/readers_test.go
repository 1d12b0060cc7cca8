package segment

import (
	"math/rand/v2"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"

	"ingest-agent/segment/vfs"
)

// Case 8: readers at random places, one writer and one that removes what is exported. A reader sees right bytes or a segment
// that is gone; of the segment that is being written it may see a torn end.
func TestCase08ReadersBesideAppendAndRemoval(t *testing.T) {
	dir := t.TempDir()
	l := newLane(t, dir, func(o *LaneOptions) { o.Settings.SegmentSizeBytes = 2 << 10 })
	appendMany(t, l, 0, 300) // more than 32 segments
	const sent = 600
	known := map[string]bool{}
	for i := range sent {
		known[string(testFrame(i).Body)] = true
	}
	id := LaneID{Destination: "default"}
	var done atomic.Bool
	var seen atomic.Int64
	var readers sync.WaitGroup
	for r := range 4 {
		readers.Go(func() {
			rng := rand.New(rand.NewPCG(8, uint64(r)))
			for first := true; first || !done.Load(); first = false {
				seqs, err := listSegments(vfs.OS(), l.dir)
				if err != nil || len(seqs) == 0 {
					t.Errorf("list: %v, %v", seqs, err)
					return
				}
				seq := seqs[rng.IntN(len(seqs))]
				one := segmentInspection{path: filepath.Join(l.dir, seq.String(), logFile), lane: id, seq: seq, visit: func(f *Frame) {
					seen.Add(1)
					if !known[string(f.Body)] || f.ID.Seq != seq {
						t.Errorf("segment %s holds %q", f.ID, f.Body)
					}
				}}
				report, err := one.run(vfs.OS())
				if err != nil {
					t.Errorf("segment %s: %v", seq, err)
					return
				}
				for _, d := range report.Damage {
					if !d.Tail {
						t.Errorf("segment %s: %s", seq, d)
					}
				}
			}
		})
	}
	answered := appendMany(t, l, 300, sent-300)
	sink := &takeSink{}
	drainAll(t, l, sink)
	done.Store(true)
	readers.Wait()
	checkDelivered(t, sink.got, answered, sent, true)
	if seen.Load() == 0 {
		t.Error("nobody read anything")
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
}
