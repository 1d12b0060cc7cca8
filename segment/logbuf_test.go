package segment

import (
	"bytes"
	"context"
	"errors"
	"runtime"
	"testing"

	"github.com/tidwall/wal"
)

// The library must be as logBuffers expects it: with another version this test says that nothing is lent any more.
func TestLogUsesLentBuffers(t *testing.T) {
	dir := t.TempDir()
	l, err := wal.Open(dir, &wal.Options{NoSync: true, NoCopy: true})
	if err != nil {
		t.Fatal(err)
	}
	var w entryWriter
	entry := make([]byte, entryRoom+5000)
	n := 0
	write := func(block []byte) error {
		n++
		for at := range block {
			block[at] = byte(n)
		}
		return w.write(l, uint64(n), entry[:entryRoom+len(block)])
	}
	var sizes []int
	for size := range []int{1: 0, 127: 0, 129: 0, 5000: 0} { // prefixes of one and of two bytes
		if size == 0 || size > 130 && size%97 != 0 {
			continue
		}
		if err := write(entry[entryRoom : entryRoom+size]); err != nil {
			t.Fatal(err)
		}
		sizes = append(sizes, size)
		if data, _ := batchFields(&w.batch); *entryBuffer(l) != nil || data != nil && *data != nil {
			t.Fatal("the log kept memory that was lent")
		}
	}
	if got := testing.AllocsPerRun(50, func() {
		if err := write(entry[entryRoom:]); err != nil {
			t.Fatal(err)
		}
		sizes = append(sizes, 5000)
	}); got > 3 { // positions of entries, and what reflection needs
		t.Errorf("%v allocations a write", got)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	again, err := wal.Open(dir, &wal.Options{NoSync: true, NoCopy: true})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := again.Close(); err != nil {
			t.Error(err)
		}
	}()
	for i, size := range sizes {
		if got, err := again.Read(uint64(i) + 1); err != nil || !bytes.Equal(got, bytes.Repeat([]byte{byte(i + 1)}, size)) {
			t.Fatalf("entry %d of %d bytes: %d bytes, %v", i, size, len(got), err)
		}
	}
	if err := w.write(l, uint64(n)+1, entry); !errors.Is(err, wal.ErrClosed) {
		t.Errorf("written to a closed log: %v", err)
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
	appendOne() // makes the buffer
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
