package segment

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"testing"

	"ingest-agent/segment/vfs"
)

// ended is a context that lets a source look for what there is, and not wait for more.
func ended() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}

// nextFrame is the next frame of a source that has one. Nothing may be lost or come again before it.
func nextFrame(t *testing.T, src Source) *Frame {
	t.Helper()
	for {
		it, err := src.Next(ended())
		if err != nil {
			t.Fatalf("read the next frame: %v", err)
		}
		if it.Lost != (Totals{}) || it.Again != (Totals{}) || it.HandedOver != (Totals{}) {
			t.Fatalf("lost %+v, again %+v, handed over %+v", it.Lost, it.Again, it.HandedOver)
		}
		if it.Frame != nil {
			return it.Frame
		}
	}
}

// atEnd reads to the end of the lane, where no frame is.
func atEnd(t *testing.T, src Source) {
	t.Helper()
	for {
		it, err := src.Next(ended())
		if errors.Is(err, context.Canceled) {
			return
		}
		if err != nil || it.Frame != nil || it.Lost != (Totals{}) || it.Again != (Totals{}) {
			t.Fatalf("at the end: %+v, %v", it, err)
		}
	}
}

func appendBatch(t *testing.T, l *Lane, frames []Frame) {
	t.Helper()
	if err := l.AppendAll(context.Background(), frames); err != nil {
		t.Fatal(err)
	}
}

func TestRecentFramesNeedNoDisk(t *testing.T) {
	for _, segmentBytes := range []int64{1 << 20, 1} { // all in one segment; each block in its own
		l := newLane(t, t.TempDir(), func(o *LaneOptions) { o.Settings.SegmentSizeBytes = segmentBytes })
		src := l.Source()
		atEnd(t, src)
		frames := []Frame{*testFrame(1), *testFrame(2), *testFrame(3), *testFrame(4)}
		appendBatch(t, l, frames[:2])
		appendBatch(t, l, frames[2:3])
		appendBatch(t, l, frames[3:])
		// With the blocks gone bad on the disk, whatever comes out was in memory.
		for _, b := range l.recent.blocks {
			f, err := os.OpenFile(l.segmentFile(b.seq), os.O_RDWR, 0)
			if err != nil {
				t.Fatal(err)
			}
			_, err = f.WriteAt(make([]byte, b.end-b.off), b.off)
			if err := errors.Join(err, f.Close()); err != nil {
				t.Fatal(err)
			}
		}
		for i := range frames {
			f := nextFrame(t, src)
			if !bytes.Equal(f.Body, frames[i].Body) || f.Position != frames[i].Position || f.ID.Number != f.Position.Entry {
				t.Errorf("frame %d: %q at %v, want %q at %v", i, f.Body, f.Position, frames[i].Body, frames[i].Position)
			}
		}
		atEnd(t, src)
		if l.recent.bytes != 0 || len(l.recent.blocks) != 0 {
			t.Errorf("%d bytes are kept of what was read", l.recent.bytes)
		}
		if err := errors.Join(src.Close(), l.Close()); err != nil {
			t.Fatal(err)
		}
		if l.recent.on {
			t.Error("kept for a source that is closed")
		}
	}
}

// A drain that does not read costs no more than the bound, and nothing once it was passed.
func TestRecentFramesAreBounded(t *testing.T) {
	l := newLane(t, t.TempDir())
	src := l.Source()
	appendBatch(t, l, []Frame{*testFrame(0)})
	if len(l.recent.blocks) != 0 {
		t.Error("kept before the drain has come to the end")
	}
	nextFrame(t, src)
	atEnd(t, src)
	big := *testFrame(1)
	big.Body = make([]byte, maxRecentBytes/4)
	for i := range 8 {
		appendBatch(t, l, []Frame{big})
		if l.recent.bytes > maxRecentBytes {
			t.Errorf("%d bytes are kept", l.recent.bytes)
		}
		if kept := len(l.recent.blocks); kept != []int{1, 2, 3, 0, 0, 0, 0, 0}[i] {
			t.Errorf("%d blocks are kept of %d", kept, i+1)
		}
	}
	for range 8 {
		if f := nextFrame(t, src); len(f.Body) != len(big.Body) {
			t.Errorf("a body of %d bytes", len(f.Body))
		}
	}
	atEnd(t, src)
	if err := errors.Join(src.Close(), l.Close()); err != nil {
		t.Fatal(err)
	}
}

// What is in memory need not begin where the drain stands: a block may have become durable just before the drain said that it is
// at the end, or have been read from the disk just before it was looked for in memory.
func TestRecentFramesBesideThePlaceOfTheDrain(t *testing.T) {
	for _, codec := range []Codec{CodecNone, CodecZstd} {
		l := newLane(t, t.TempDir(), func(o *LaneOptions) { o.Settings.Codec = codec })
		src := l.Source()
		atEnd(t, src)
		var frames []Frame
		for i := range 9 {
			frames = append(frames, *testFrame(i))
		}
		l.recent.stop()
		appendBatch(t, l, frames[:3]) // on disk only
		l.recent.start()
		appendBatch(t, l, frames[3:6]) // in memory, too
		read := func(from, to int) {
			t.Helper()
			for i := from; i < to; i++ {
				if f := nextFrame(t, src); !bytes.Equal(f.Body, frames[i].Body) {
					t.Fatalf("codec %d: frame %d is %q", codec, i, f.Body)
				}
			}
		}
		read(0, 3)
		kept := l.recent
		l.recent.stop()
		read(3, 6) // from the disk, although
		l.recent = kept
		appendBatch(t, l, frames[6:])
		read(6, 9)
		atEnd(t, src)
		if err := errors.Join(src.Close(), l.Close()); err != nil {
			t.Fatal(err)
		}
	}
}

// However a drain falls behind and catches up, over segments that end, it reads each frame once, in order, and as the disk has
// it.
func TestRecentFramesAndDiskMakeOneStream(t *testing.T) {
	for _, codec := range []Codec{CodecNone, CodecZstd} {
		var fromMemory, fromDisk int
		for seed := range uint64(30) {
			memory, disk := streamOnce(t, codec, seed)
			fromMemory, fromDisk = fromMemory+memory, fromDisk+disk
		}
		if fromMemory < 50 || fromDisk < 50 {
			t.Errorf("codec %d: %d frames from memory, %d from the disk: one of them is not tested", codec, fromMemory, fromDisk)
		}
	}
}

func streamOnce(t *testing.T, codec Codec, seed uint64) (fromMemory, fromDisk int) {
	rng := rand.New(rand.NewPCG(seed, uint64(codec)))
	dir := t.TempDir()
	set := func(o *LaneOptions) {
		o.FS, o.Settings.Codec, o.Settings.SegmentSizeBytes = noSync{vfs.OS()}, codec, 24<<10
	}
	l := newLane(t, dir, set)
	src := l.Source()
	var sent []Frame
	read := 0
	for range 60 {
		switch rng.IntN(5) {
		case 0, 1:
			batch := make([]Frame, 1+rng.IntN(6))
			for i := range batch {
				batch[i] = *testFrame(len(sent) + i)
				batch[i].Body = fmt.Appendf(nil, "%d %0*d", len(sent)+i, rng.IntN(3000), 0)
				if rng.IntN(60) == 0 {
					batch[i].Body = append(batch[i].Body, make([]byte, maxRecentBytes/3)...)
				}
			}
			appendBatch(t, l, batch)
			sent = append(sent, batch...)
		case 2, 3:
			for range rng.IntN(10) {
				if read == len(sent) {
					break
				}
				held := len(l.recent.blocks) > 0 || len(src.(*laneSource).block.frames) > 0
				f := nextFrame(t, src)
				if want := &sent[read]; !bytes.Equal(f.Body, want.Body) || f.Position != want.Position || f.Signal != want.Signal || f.Records != want.Records {
					t.Fatalf("seed %d: frame %d is %.20q at %v, want %.20q at %v", seed, read, f.Body, f.Position, want.Body, want.Position)
				}
				l.Advance(&Progress{To: f.Position.After(), Out: f.Totals(), Ledger: Ledger{Delivered: f.Signal.Of(uint64(f.Records))}})
				read++
				if held {
					fromMemory++
				} else {
					fromDisk++
				}
			}
		default:
			if read == len(sent) {
				atEnd(t, src)
			}
		}
	}
	for ; read < len(sent); read++ {
		if f := nextFrame(t, src); !bytes.Equal(f.Body, sent[read].Body) {
			t.Fatalf("seed %d: frame %d is %.20q", seed, read, f.Body)
		}
	}
	if err := errors.Join(src.Close(), l.Close()); err != nil {
		t.Fatal(err)
	}
	return fromMemory, fromDisk
}
