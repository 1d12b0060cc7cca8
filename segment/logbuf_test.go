package segment

import (
	"bytes"
	"context"
	"runtime"
	"testing"

	"github.com/tidwall/wal"
)

// The library must be as logBuffers expects it: with another version this test says that nothing is lent any more.
func TestLogUsesLentBuffers(t *testing.T) {
	l, err := wal.Open(t.TempDir(), &wal.Options{NoSync: true, NoCopy: true})
	if err != nil {
		t.Fatal(err)
	}
	first := []byte("first entry")
	if err := l.Write(1, first); err != nil {
		t.Fatal(err)
	}
	var b logBuffers
	b.lend(l, 1<<20)
	if got := cap(*entryBuffer(l)); got < 1<<20 {
		t.Fatalf("capacity %d after lending", got)
	}
	memory := &(*entryBuffer(l))[0]
	for i := uint64(2); i < 200; i++ {
		if err := l.Write(i, make([]byte, 5000)); err != nil {
			t.Fatal(err)
		}
	}
	if &(*entryBuffer(l))[0] != memory {
		t.Error("the log grew a buffer of its own")
	}
	if got, err := l.Read(1); err != nil || !bytes.Equal(got, first) {
		t.Errorf("first entry is %q, %v", got, err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	b.takeBack(l)
	if *entryBuffer(l) != nil || *batchBuffer(l) != nil {
		t.Error("the log kept its buffers")
	}
}

// Within a segment an append allocates nothing that grows with the body.
func TestAppendAllocatesNoBodies(t *testing.T) {
	l := newLane(t, t.TempDir(), func(o *LaneOptions) { o.Settings.SegmentSizeBytes = 32 << 20 })
	f := testFrame(1)
	f.Body = make([]byte, 256<<10)
	appendOne := func() {
		if err := l.Append(context.Background(), f); err != nil {
			t.Fatal(err)
		}
	}
	appendOne() // lends the buffers
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	const n = 50
	for range n {
		appendOne()
	}
	runtime.ReadMemStats(&after)
	if got := (after.TotalAlloc - before.TotalAlloc) / n; got > 64<<10 {
		t.Errorf("%d bytes allocated for an append of %d", got, len(f.Body))
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
}
