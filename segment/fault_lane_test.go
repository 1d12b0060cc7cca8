package segment

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"ingest-agent/segment/vfs"
)

// onFault makes a lane use a file system whose operations decide may fail.
func onFault(decide func(vfs.Op) error) (func(*LaneOptions), *vfs.Fault) {
	f := vfs.NewFault(vfs.OS(), decide)
	return func(o *LaneOptions) { o.FS = f }, f
}

// segmentOp reports whether op is of a segment's log file, and not of the header's first sync, which belongs to its creation.
func segmentOp(op vfs.Op, kind string) bool {
	return op.Kind == kind && filepath.Base(op.Name) == logFile
}

// appendMany appends n frames from several senders and returns the bodies that were answered.
func appendMany(t *testing.T, l *Lane, from, n int) map[string]bool {
	t.Helper()
	var mu sync.Mutex
	answered := map[string]bool{}
	var wg sync.WaitGroup
	for w := range 4 {
		wg.Go(func() {
			for i := from + w; i < from+n; i += 4 {
				f := testFrame(i)
				err := l.Append(context.Background(), f)
				var r *RefusedError
				if err != nil && (!errors.As(err, &r) || r.After <= 0) {
					t.Errorf("append: %v: want a refusal with a delay", err)
				}
				if err == nil {
					mu.Lock()
					answered[string(f.Body)] = true
					mu.Unlock()
				}
			}
		})
	}
	wg.Wait()
	return answered
}

// checkDelivered holds what was delivered against what was answered and what was ever sent.
func checkDelivered(t *testing.T, got []string, answered map[string]bool, sent int, once bool) {
	t.Helper()
	seen := map[string]int{}
	for _, b := range got {
		seen[b]++
	}
	for b := range answered {
		if seen[b] == 0 {
			t.Errorf("answered but not delivered: %.20s", b)
		}
	}
	known := map[string]bool{}
	for i := range sent {
		known[string(testFrame(i).Body)] = true
	}
	for b, n := range seen {
		if !known[b] {
			t.Errorf("delivered but never sent: %.40q", b)
		}
		if once && n > 1 {
			t.Errorf("delivered %d times: %.20s", n, b)
		}
	}
}

// Case 31, I10: a failed sync answers nobody from that segment; its frames go to the next one, and nothing comes twice.
func TestFaultCase31SyncFailsOnce(t *testing.T) {
	var armed atomic.Int32
	opts, _ := onFault(func(op vfs.Op) error {
		if segmentOp(op, vfs.OpSync) && armed.CompareAndSwap(1, 0) {
			return syscall.EIO
		}
		return nil
	})
	dir := t.TempDir()
	l := newLane(t, dir, opts)
	answered := appendMany(t, l, 0, 100)
	armed.Store(1)
	for b := range appendMany(t, l, 100, 100) {
		answered[b] = true
	}
	if len(answered) != 200 {
		t.Errorf("%d of 200 answered: one failed sync must not refuse anything", len(answered))
	}
	sink := &takeSink{}
	drainAll(t, l, sink)
	checkDelivered(t, sink.got, answered, 200, true)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
}

// Case 31, second half: a sync that goes on failing refuses everybody with a delay, and the lane comes back by itself.
func TestFaultCase31SyncKeepsFailing(t *testing.T) {
	var failing atomic.Bool
	opts, _ := onFault(func(op vfs.Op) error {
		if failing.Load() && segmentOp(op, vfs.OpSync) {
			return syscall.EIO
		}
		return nil
	})
	dir := t.TempDir()
	l := newLane(t, dir, opts)
	answered := appendMany(t, l, 0, 20)
	failing.Store(true)
	if refused := appendMany(t, l, 20, 20); len(refused) != 0 {
		t.Errorf("%d answered while syncs fail", len(refused))
	}
	if r := l.Check(); r == nil || r.Reason != RefusedSync {
		t.Errorf("check while syncs fail: %v", r)
	}
	failing.Store(false)
	eventually(t, "the lane to come back", func() bool { return l.Check() == nil })
	for b := range appendMany(t, l, 40, 20) {
		answered[b] = true
	}
	if len(answered) != 40 {
		t.Errorf("%d answered", len(answered))
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	l = newLane(t, dir)
	sink := &takeSink{}
	drainAll(t, l, sink)
	checkDelivered(t, sink.got, answered, 60, true)
	if len(sink.got) != 40 {
		t.Errorf("delivered %d, also what was refused", len(sink.got))
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
}

// I10: where the file cannot be cut, the limit in the cursor file ends the segment, also after a restart; and if that cannot
// be written either, the lane refuses.
func TestFaultI10CutFails(t *testing.T) {
	for _, cursorToo := range []bool{false, true} {
		t.Run(fmt.Sprintf("cursor=%v", cursorToo), func(t *testing.T) {
			var once, cut, cursor atomic.Bool
			opts, _ := onFault(func(op vfs.Op) error {
				switch {
				case segmentOp(op, vfs.OpSync) && once.CompareAndSwap(true, false):
					cursor.Store(cursorToo)
					return syscall.EIO
				case segmentOp(op, vfs.OpTruncate) && cut.Load():
					return syscall.EIO
				case op.Kind == vfs.OpWrite && filepath.Base(op.Name) == cursorFile && cursor.Load():
					return syscall.EIO
				}
				return nil
			})
			dir := t.TempDir()
			l := newLane(t, dir, opts)
			answered := appendMany(t, l, 0, 10)
			cut.Store(true)
			once.Store(true)
			more := appendMany(t, l, 10, 10)
			if cursorToo {
				if len(more) != 0 {
					t.Errorf("%d answered with the limit not on disk", len(more))
				}
				cursor.Store(false)
				eventually(t, "the lane to come back", func() bool { return l.Check() == nil })
				more = appendMany(t, l, 10, 10)
			}
			if len(more) != 10 {
				t.Errorf("%d of 10 answered", len(more))
			}
			for b := range more {
				answered[b] = true
			}
			if len(l.cur.Limits) == 0 {
				t.Error("no limit noted")
			}
			if err := l.Close(); err != nil {
				t.Fatal(err)
			}
			l = newLane(t, dir, opts) // cutting still fails
			sink := &takeSink{}
			drainAll(t, l, sink)
			checkDelivered(t, sink.got, answered, 20, true)
			if st := l.Stats(); st.Ledger.Out() != st.In.Records {
				t.Errorf("ledger does not balance: %+v", st)
			}
			if err := l.Close(); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// Each operation of a lane's life fails once, or for good from there on; what was answered is delivered after a reopen, and
// the lane takes new frames.
func TestFaultAtEveryOperation(t *testing.T) {
	life := func(t *testing.T, opts func(*LaneOptions), dir string) (answered map[string]bool) {
		o := func(o *LaneOptions) { o.Settings.SegmentSizeBytes = 4 << 10 }
		l, err := tryLane(t, dir, o, opts)
		if err != nil {
			return nil
		}
		answered = appendMany(t, l, 0, 40)
		partly := make(chan struct{})
		var taken atomic.Int32
		half := sync.OnceFunc(func() { close(partly) })
		giveUp := time.AfterFunc(2*time.Second, half) // a dead disk yields nothing more
		defer giveUp.Stop()
		_ = drainUntil(t, l, sinkFunc(func(ctx context.Context, r *Request) Outcome {
			if taken.Add(int32(len(r.Frames))) > 20 {
				half()
				<-ctx.Done()
				return Outcome{Verdict: Retry, Err: ctx.Err()}
			}
			return Outcome{Verdict: Delivered}
		}), partly)
		_ = l.Close() // may fail on purpose
		return answered
	}
	count, f := onFault(nil)
	life(t, count, t.TempDir())
	ops := f.Ops()
	if ops < 40 { // how many saves of the cursor there are depends on how fast the disk is
		t.Fatalf("only %d operations", ops)
	}
	step := 1
	if testing.Short() {
		step = 7
	}
	for _, how := range []string{"EIO once", "ENOSPC after effect", "stopped"} {
		for n := 1; n <= ops; n += step {
			t.Run(fmt.Sprintf("%s/%d", how, n), func(t *testing.T) {
				t.Parallel()
				opts, f := onFault(func(op vfs.Op) error {
					switch {
					case op.N != n || op.Kind == vfs.OpClose:
						return nil
					case how == "EIO once":
						return syscall.EIO
					default:
						return vfs.AfterEffect(syscall.ENOSPC)
					}
				})
				if how == "stopped" {
					f.StopAfter(n)
				}
				dir := t.TempDir()
				answered := life(t, opts, dir)
				checkReopened(t, dir, answered, f)
			})
		}
	}
}

// checkReopened opens what a faulty life left, appends, and drains everything.
func checkReopened(t *testing.T, dir string, answered map[string]bool, f *vfs.Fault) {
	t.Helper()
	delivered := map[string]bool{}
	l := newLane(t, dir)
	if more := appendMany(t, l, 1000, 8); len(more) != 8 {
		t.Errorf("%d of 8 answered after reopen", len(more))
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	l = newLane(t, dir)
	sink := &takeSink{}
	drainAll(t, l, sink)
	for _, b := range sink.got {
		delivered[b] = true
	}
	st := l.Stats()
	if st.Ledger.Out() != st.In.Records || st.Ledger.Lost != nil {
		t.Errorf("ledger: %+v", st)
	}
	// The first half of the life's frames was delivered before; the rest must come now.
	missing := 0
	for b := range answered {
		if !delivered[b] {
			missing++
		}
	}
	if missing > 20 {
		t.Errorf("%d answered frames missing, 20 were delivered before", missing)
	}
	for i := 1000; i < 1008; i++ {
		if !delivered[string(testFrame(i).Body)] {
			t.Errorf("frame %d, appended after reopen, is missing", i)
		}
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if t.Failed() {
		t.Logf("operations:\n%s", f.Trace())
	}
}

// A full disk at start: the lane opens, drains, refuses, and comes back by itself when there is space.
func TestFaultCase28FullAtStart(t *testing.T) {
	dir := t.TempDir()
	l := newLane(t, dir)
	answered := appendMany(t, l, 0, 50)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	var full atomic.Bool
	full.Store(true)
	opts, _ := onFault(func(op vfs.Op) error {
		if full.Load() && (op.Kind == vfs.OpMkdir || op.Kind == vfs.OpCreate && filepath.Base(op.Name) != cursorFile) {
			return syscall.ENOSPC
		}
		return nil
	})
	l = newLane(t, dir, opts)
	if r := l.Check(); r == nil || r.Reason != RefusedDisk {
		t.Errorf("check on a full disk: %v", r)
	}
	var r *RefusedError
	if err := l.Append(context.Background(), testFrame(1)); !errors.As(err, &r) || r.Reason != RefusedDisk || r.After <= 0 {
		t.Errorf("append on a full disk: %v", err)
	}
	sink := &takeSink{}
	drainAll(t, l, sink)
	checkDelivered(t, sink.got, answered, 50, true)
	full.Store(false)
	eventually(t, "the lane to come back", func() bool { return l.Check() == nil })
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(filepath.Join(dir, "lanes", "default.0")); err != nil || len(left) != 1 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// The library's log has to be closed twice after its own sync failed; descriptors must not pile up.
func TestFaultNoDescriptorLeft(t *testing.T) {
	var failing atomic.Bool
	opts, _ := onFault(func(op vfs.Op) error {
		if failing.Load() && segmentOp(op, vfs.OpSync) {
			return syscall.EIO
		}
		return nil
	})
	l := newLane(t, t.TempDir(), opts)
	failing.Store(true)
	appendMany(t, l, 0, 4)
	before := openFiles(t)
	appendMany(t, l, 4, 400)
	if after := openFiles(t); after > before+4 {
		t.Errorf("%d descriptors before, %d after failures", before, after)
	}
	failing.Store(false)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
}

func openFiles(t *testing.T) int {
	t.Helper()
	names, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Skip("no /proc: descriptors cannot be counted")
	}
	n := 0
	for _, d := range names {
		if to, err := os.Readlink("/proc/self/fd/" + d.Name()); err == nil && strings.Contains(to, logFile) {
			n++
		}
	}
	return n
}

// eventually waits for a condition that other goroutines bring about.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(20 * time.Second)
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("waited in vain for %s", what)
		}
	}
}
