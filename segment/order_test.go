package segment

import (
	"context"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"ingest-agent/segment/vfs"
)

// Segments are used in the order of their numbers, also when one is full while the next is still being prepared.
func TestSegmentNumbersRiseInOrderOfUse(t *testing.T) {
	t.Parallel()
	preparing, made := make(chan struct{}), make(chan struct{})
	release := sync.OnceFunc(func() { close(made) })
	defer release()
	fs := vfs.NewFault(noSync{vfs.OS()}, func(op vfs.Op) error {
		if op.Kind == vfs.OpMkdir && filepath.Base(op.Name) == Seq(2).String() {
			close(preparing)
			<-made
		}
		return nil
	})
	dir := t.TempDir()
	l := newLane(t, dir, func(o *LaneOptions) { o.FS, o.Settings.SegmentSizeBytes = fs, 1 }) // a segment for each commit
	<-preparing
	const n = 6
	appended := make(chan error, n)
	var sender sync.WaitGroup
	sender.Go(func() {
		for i := range n {
			appended <- l.Append(context.Background(), testFrame(i))
		}
	})
	answered := 0
	for waiting := time.After(200 * time.Millisecond); ; { // the second answer must not come, however long one waits
		select {
		case err := <-appended:
			if answered++; err != nil {
				t.Fatal(err)
			}
			continue
		case <-waiting:
		}
		break
	}
	if answered > 1 {
		t.Errorf("%d answered while the second segment is being made, want what the first takes", answered)
	}
	release()
	for ; answered < n; answered++ {
		if err := <-appended; err != nil {
			t.Fatal(err)
		}
	}
	sender.Wait()
	frames, lost := readPending(t, l)
	var want []string
	for i := range n {
		want = append(want, string(testFrame(i).Body))
	}
	if got := bodiesOf(frames); !slices.Equal(got, want) || lost != (Totals{}) {
		t.Errorf("read %q, lost %+v", got, lost)
	}
	if !slices.IsSortedFunc(frames, func(a, b Frame) int { return a.Position.Compare(b.Position) }) {
		t.Error("positions go back")
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
}
