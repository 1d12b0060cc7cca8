package segment

import (
	"context"
	"fmt"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/oklog/ulid/v2"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest"

	"ingest-agent/segment/vfs"
)

// newLane opens a lane on the real disk in dir.
func newLane(t testing.TB, dir string, change ...func(*LaneOptions)) *Lane {
	t.Helper()
	l, err := tryLane(t, dir, change...)
	if err != nil {
		t.Fatalf("open lane: %v", err)
	}
	return l
}

func tryLane(t testing.TB, dir string, change ...func(*LaneOptions)) (*Lane, error) {
	o := LaneOptions{
		FS: vfs.OS(), Dir: filepath.Join(dir, "lanes"), ID: LaneID{Destination: "default"}, Owner: OwnerID(ulid.Make()),
		Space:      NewSpace(SpaceOptions{MaxBytes: 1 << 30}),
		Quarantine: NewQuarantine(vfs.OS(), filepath.Join(dir, "quarantine"), DefaultQuarantineBytes),
		Log:        zaptest.NewLogger(t, zaptest.Level(zap.ErrorLevel)),
		Settings:   Settings{Ack: AckDisk, SegmentSizeBytes: 1 << 20, SegmentAge: time.Hour, SyncInterval: 10 * time.Millisecond},
	}
	for _, c := range change {
		c(&o)
	}
	return OpenLane(o)
}

func testFrame(i int) *Frame {
	return &Frame{Signal: Signals[i%3], Tenant: "default", Received: time.Unix(int64(i), 0), Records: uint32(i%5 + 1),
		Body: fmt.Appendf(nil, "frame %06d %0*d", i, i%400, 0)}
}

// takeSink keeps the bodies that it is given.
type takeSink struct {
	mu  sync.Mutex
	got []string
}

func (s *takeSink) Deliver(_ context.Context, r *Request) Outcome {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range r.Frames {
		s.got = append(s.got, string(r.Frames[i].Body))
	}
	return Outcome{Verdict: Delivered}
}

type noDead struct{}

func (noDead) SetAside(context.Context, *Frame, string) error { return nil }

// drainAll drains until nothing is pending.
func drainAll(t testing.TB, l *Lane, sink Sink) {
	t.Helper()
	drained := make(chan struct{})
	var watch sync.WaitGroup
	watch.Go(func() {
		defer close(drained)
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); <-tick.C {
			if s := l.Stats(); s.Pending() == (Totals{}) {
				return
			}
		}
		t.Errorf("not drained: %+v", l.Stats())
	})
	if err := drainUntil(t, l, sink, drained); err != nil {
		t.Error(err)
	}
	watch.Wait()
}

// drainUntil drains until a channel is closed. Its error is that of the source's Close.
func drainUntil(t testing.TB, l *Lane, sink Sink, end <-chan struct{}) error {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	src := l.Source()
	var drain sync.WaitGroup
	drain.Go(func() {
		DrainOptions{Source: src, Cursor: l, Sink: func() Sink { return sink }, Dead: noDead{}, Log: zap.NewNop(),
			Limits: func() Limits {
				return Limits{InFlight: 3, MaxRequestBytes: 4096, WindowBytes: 1 << 20, RetryInitial: time.Millisecond, RetryMax: time.Second}
			}}.Run(ctx)
	})
	select {
	case <-end:
	case <-time.After(30 * time.Second):
		t.Error("the drain did not get where it should")
	}
	cancel()
	drain.Wait()
	return src.Close()
}

func TestLaneRoundTrip(t *testing.T) {
	for _, codec := range []Codec{CodecNone, CodecZstd} {
		dir := t.TempDir()
		set := func(o *LaneOptions) { o.Settings.Codec = codec; o.Settings.SegmentSizeBytes = 16 << 10 }
		l := newLane(t, dir, set)
		var wg sync.WaitGroup
		for w := range 4 {
			wg.Go(func() {
				for i := range 250 {
					if err := l.Append(context.Background(), testFrame(w*250+i)); err != nil {
						t.Error(err)
					}
				}
			})
		}
		wg.Wait()
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		l = newLane(t, dir, set)
		if s := l.Stats(); s.Pending().Frames != 1000 {
			t.Fatalf("pending %d", s.Pending().Frames)
		}
		sink := &takeSink{}
		drainAll(t, l, sink)
		seen := map[string]bool{}
		for _, b := range sink.got {
			seen[b] = true
		}
		if len(seen) != 1000 || len(sink.got) != 1000 {
			t.Fatalf("got %d, %d distinct", len(sink.got), len(seen))
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		seqs, _ := listSegments(vfs.OS(), filepath.Join(dir, "lanes", "default.0"))
		if len(seqs) != 0 {
			t.Errorf("segments left: %v", seqs)
		}
		l = newLane(t, dir, set)
		if s := l.Stats(); s.Pending() != (Totals{}) || s.Ledger.Out() != s.In.Records {
			t.Fatalf("after reopen: %+v", s)
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
