package segment

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"testing"
	"time"
)

// benchFrames are frames of sizeBytes together, in parts of 4 KiB that do not compress.
func benchFrames(sizeBytes int) []Frame {
	rng := rand.NewChaCha8([32]byte{1})
	var frames []Frame
	for left := sizeBytes; left > 0; left -= 4 << 10 {
		body := make([]byte, min(left, 4<<10))
		_, _ = rng.Read(body) // never fails
		frames = append(frames, Frame{Signal: Logs, Tenant: "default", Received: time.Now(), Records: 10, Body: body})
	}
	return frames
}

// BenchmarkAppend is one commit of the size in its name, sync included.
func BenchmarkAppend(b *testing.B) {
	for _, size := range []int{4 << 10, 64 << 10, 1 << 20} {
		b.Run(fmt.Sprintf("%dKiB", size>>10), func(b *testing.B) {
			l := newLane(b, b.TempDir(), func(o *LaneOptions) {
				o.Settings.SegmentSizeBytes = 8 << 20
				o.Space = NewSpace(SpaceOptions{MaxBytes: 1 << 40})
			})
			frames := benchFrames(size)
			b.SetBytes(int64(size))
			b.ReportAllocs()
			for b.Loop() {
				if err := l.AppendAll(context.Background(), frames); err != nil {
					b.Fatal(err)
				}
			}
			b.StopTimer()
			if err := l.Close(); err != nil {
				b.Fatal(err)
			}
		})
	}
}

// BenchmarkScan reads a segment of 8 MiB in memory.
func BenchmarkScan(b *testing.B) {
	birth := Birth{Lane: LaneID{Destination: "default"}, Seq: 1}
	frames := benchFrames(8 << 20)
	for i := range frames {
		frames[i].ID = FrameID{birth, Entry(i + 1)}
	}
	object, err := EncodeObject(frames, "", time.Now())
	if err != nil {
		b.Fatal(err)
	}
	b.SetBytes(int64(len(object)))
	b.ReportAllocs()
	for b.Loop() {
		sc := newScanner(bytes.NewReader(object), int64(len(object)), birth.Lane, birth.Seq, nil)
		n := 0
		for {
			it, err := sc.next()
			if err == io.EOF { //nolint:errorlint // the scanner returns it bare
				break
			}
			if err != nil {
				b.Fatal(err)
			}
			if it.kind == itemFrame {
				n++
			}
		}
		if n != len(frames) {
			b.Fatalf("%d frames", n)
		}
	}
}
