package segment

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"testing"
	"time"

	"go.uber.org/zap"
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

// given is a source of frames in memory, which ends the drain when all of them are passed.
type given struct {
	frame Frame
	left  int
	end   context.CancelFunc
}

func (g *given) Next(ctx context.Context) (Item, error) {
	if g.left == 0 {
		<-ctx.Done()
		return Item{}, ctx.Err()
	}
	g.left--
	f := g.frame
	f.Position = Position{1, Entry(1<<30 - g.left)}
	f.ID = FrameID{Birth{Lane: LaneID{Destination: "default"}, Seq: 1}, f.Position.Entry}
	return Item{Frame: &f, Next: f.Position.After()}, nil
}

func (g *given) Close() error { return nil }

func (g *given) Advance(p *Progress) {
	if p.To == (Position{1, 1<<30 + 1}) {
		g.end()
	}
}

// BenchmarkDrain is one frame of 4 KiB through the drain, from a source in memory to a sink that takes everything at once.
func BenchmarkDrain(b *testing.B) {
	ctx, end := context.WithCancel(b.Context())
	g := &given{frame: benchFrames(4 << 10)[0], left: b.N, end: end}
	sink := sinkFunc(func(context.Context, *Request) Outcome { return Outcome{Verdict: Delivered} })
	b.SetBytes(4 << 10)
	b.ReportAllocs()
	b.ResetTimer()
	DrainOptions{Source: g, Cursor: g, Sink: func() Sink { return sink }, Dead: noDead{}, Log: zap.NewNop(),
		Limits: func() Limits { return Limits{InFlight: 4, MaxRequestBytes: 4 << 20, WindowBytes: 16 << 20} }}.Run(ctx)
}

// A block costs no allocation, however many frames are in it.
func TestEncodeAllocatesNothing(t *testing.T) {
	enc, err := newBlockEncoder(CodecNone)
	if err != nil {
		t.Fatal(err)
	}
	stored := benchStored(256 << 10)
	before := &Totals{}
	if n := testing.AllocsPerRun(50, func() { enc.encodeEntry(blockHeader{before: before}, stored, 0) }); n != 0 {
		t.Errorf("%v allocations for a block of %d frames", n, len(stored))
	}
}

func benchStored(sizeBytes int) (stored []storedFrame) {
	for _, f := range benchFrames(sizeBytes) {
		stored = append(stored, storedFrame{kind: kindData, signal: f.Signal, records: f.Records, tenant: f.Tenant, body: f.Body, entry: 1})
	}
	return stored
}

// BenchmarkEncode makes a block of 1 MiB.
func BenchmarkEncode(b *testing.B) {
	for name, codec := range map[string]Codec{"none": CodecNone, "zstd": CodecZstd} {
		b.Run(name, func(b *testing.B) {
			enc, err := newBlockEncoder(codec)
			if err != nil {
				b.Fatal(err)
			}
			stored := benchStored(1 << 20)
			b.SetBytes(1 << 20)
			b.ReportAllocs()
			for b.Loop() {
				enc.encodeEntry(blockHeader{before: &Totals{}}, stored, 0)
			}
		})
	}
}
