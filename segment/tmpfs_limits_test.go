package segment

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/oklog/ulid/v2"
)

// tmpfsLimit gives a lane a space of its own, and segments of a size at which it needs many of them.
func tmpfsLimit(o SpaceOptions) func(*LaneOptions) {
	return func(l *LaneOptions) { l.Space, l.Settings.SegmentSizeBytes = NewSpace(o), o.MaxBytes/16 }
}

// tmpfsFast is a temporary directory in memory where the machine has one: what is counted here does not depend on the disk.
func tmpfsFast(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "ingest-agent-test-") //nolint:usetesting // a directory in memory, which TempDir is not
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Errorf("remove test directory: %v", err)
		}
	})
	return dir
}

// tmpfsWatch looks again and again at what a lane takes on disk until it is stopped, and returns the most. Nothing must be
// removed meanwhile: a look is not of one moment.
func tmpfsWatch(t *testing.T, dir string) (stop func() int64) {
	end := make(chan struct{})
	var most int64
	var watch sync.WaitGroup
	watch.Go(func() {
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		for {
			most = max(most, tmpfsSegmentBytes(t, dir))
			select {
			case <-tick.C:
			case <-end:
				most = max(most, tmpfsSegmentBytes(t, dir))
				return
			}
		}
	})
	return func() int64 { close(end); watch.Wait(); return most }
}

// tmpfsFlood appends from many senders at once, each until it is refused n times, and returns the bodies that were answered.
// Every refusal must be for one of the reasons, with a delay.
func tmpfsFlood(t *testing.T, l *Lane, senders, n int, frame func(sender, i int) *Frame, reasons ...RefuseReason) map[string]bool {
	t.Helper()
	var mu sync.Mutex
	answered := map[string]bool{}
	var wg sync.WaitGroup
	for s := range senders {
		wg.Go(func() {
			for i, refused := 0, 0; refused < n; i++ {
				f := frame(s, i)
				err := l.Append(context.Background(), f)
				if err == nil {
					mu.Lock()
					answered[string(f.Body)] = true
					mu.Unlock()
					continue
				}
				refused++
				r, ok := errors.AsType[*RefusedError](err)
				if !ok || r.After <= 0 || !slices.Contains(reasons, r.Reason) {
					t.Errorf("append: %v: want one of %v with a delay", err, reasons)
					return
				}
			}
		})
	}
	wg.Wait()
	return answered
}

// tmpfsSized is a frame that names its sender and has a body of sizeBytes.
func tmpfsSized(tenant string, sender, i, sizeBytes int) *Frame {
	return &Frame{Signal: Logs, Tenant: tenant, Received: time.Unix(int64(i), 0), Records: 1,
		Body: fmt.Appendf(nil, "<%03d %06d> %0*d", sender, i, max(sizeBytes-13, 1), 0)}
}

// Cases 23 and 26: whatever the size of requests, however many write at once, the disk never holds more than the limit. What
// was answered is all delivered, by this process and by the next.
func TestFaultCase26ParallelWritersKeepTheLimit(t *testing.T) {
	for _, c := range []struct {
		maxBytes           int64
		senders, sizeBytes int
	}{
		{4 << 20, 16, 200 << 10}, // case 26
		{8 << 20, 8, 30_000},     // case 23
		{1 << 20, 16, 300},
		{64 << 10, 1, 1}, // fills the last corner
	} {
		t.Run(fmt.Sprintf("%d bytes, %d of %d", c.maxBytes, c.senders, c.sizeBytes), func(t *testing.T) {
			dir := tmpfsFast(t)
			limit := tmpfsLimit(SpaceOptions{MaxBytes: c.maxBytes})
			l := newLane(t, dir, limit)
			stop := tmpfsWatch(t, dir)
			answered := tmpfsFlood(t, l, c.senders, 3, func(s, i int) *Frame { return tmpfsSized("default", s, i, c.sizeBytes) }, RefusedFull)
			if r := l.Check(); r != nil && r.Reason != RefusedFull {
				t.Errorf("check at the limit: %v", r)
			}
			if err := l.Close(); err != nil { // seals: footers count, too
				t.Fatal(err)
			}
			if most := stop(); most > c.maxBytes || most < c.maxBytes/2 {
				t.Errorf("at most %d bytes on disk with a limit of %d", most, c.maxBytes)
			}
			l = newLane(t, dir, limit)
			sink := &takeSink{}
			drainAll(t, l, sink)
			tmpfsAll(t, sink.got, answered)
			if st := l.Stats(); st.Ledger.Out() != st.In.Records || st.Ledger.Lost != nil {
				t.Errorf("ledger: %+v", st)
			}
			eventually(t, "space to come back", func() bool { return l.o.Space.Used() < c.maxBytes/4 })
			if err := l.Append(context.Background(), tmpfsSized("default", 0, 0, c.sizeBytes)); err != nil {
				t.Errorf("after the drain: %v", err)
			}
			if err := l.Close(); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// tmpfsAll requires that got is the answered bodies, each once.
func tmpfsAll(t *testing.T, got []string, answered map[string]bool) {
	t.Helper()
	seen := map[string]bool{}
	for _, b := range got {
		if !answered[b] || seen[b] {
			t.Errorf("not answered, or twice: %.20s", b)
		}
		seen[b] = true
	}
	if len(seen) != len(answered) {
		t.Errorf("%d delivered of %d answered", len(seen), len(answered))
	}
}

// Case 25, refuse: at the limit nothing that was answered goes, while the sink is down and up by turns.
func TestFaultCase25RefuseLosesNothing(t *testing.T) {
	const maxBytes, frames, senders = 4 << 20, 10_000, 16
	dir := tmpfsFast(t)
	l := newLane(t, dir, tmpfsLimit(SpaceOptions{MaxBytes: maxBytes}))
	answered := map[string]bool{}
	sink := &takeSink{}
	rounds := 0
	for ; len(answered) < frames; rounds++ {
		more := tmpfsFlood(t, l, senders, 2, func(s, i int) *Frame { return tmpfsSized("default", rounds*senders+s, i, 1000) }, RefusedFull)
		if used := l.o.Space.Used(); used > maxBytes || len(more) == 0 {
			t.Fatalf("round %d: %d bytes used with a limit of %d, %d answered", rounds, used, maxBytes, len(more))
		}
		maps.Copy(answered, more)
		drainAll(t, l, sink)
		eventually(t, "space to come back", func() bool { return l.o.Space.Used() < maxBytes/4 })
	}
	if rounds < 2 {
		t.Errorf("%d rounds: the limit was not reached and left", rounds)
	}
	tmpfsAll(t, sink.got, answered)
	if st := l.Stats(); st.Ledger.Delivered.Sum() != uint64(len(answered)) || st.Ledger.Out() != st.In.Records || st.Ledger.Lost != nil {
		t.Errorf("ledger: %+v", st.Ledger)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
}

// One tenant cannot take more than its share while others have data, also when it was there first and after a restart; a
// tenant alone may take all.
func TestFaultTenantKeepsToItsShare(t *testing.T) {
	const maxBytes, share = 4 << 20, 2 << 20
	dir := tmpfsFast(t)
	limit := func() func(*LaneOptions) { return tmpfsLimit(SpaceOptions{MaxBytes: maxBytes, TenantShare: 0.5}) }
	l := newLane(t, dir, limit())
	one := func(tenant string, n int) *RefusedError {
		r, _ := errors.AsType[*RefusedError](l.Append(context.Background(), tmpfsSized(tenant, n, n, 10_000)))
		return r
	}
	if r := one("quiet", 0); r != nil {
		t.Fatal(r)
	}
	loud := tmpfsFlood(t, l, 8, 2, func(s, i int) *Frame { return tmpfsSized("loud", s, i, 10_000) }, RefusedTenantShare)
	has := func(tenant string) int64 {
		s := l.o.Space
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.tenants[tenant]
	}
	for life := range 2 {
		if n := has("loud"); n > share || n < share-20_000 {
			t.Errorf("life %d: %d bytes with a share of %d", life, n, share)
		}
		if r := one("loud", 1000); r == nil || r.Reason != RefusedTenantShare || r.After <= 0 {
			t.Errorf("life %d: over its share: %v", life, r)
		}
		if r := one("quiet", 1+life); r != nil {
			t.Errorf("life %d: the other tenant: %v", life, r)
		}
		if life == 0 {
			if err := l.Close(); err != nil {
				t.Fatal(err)
			}
			l = newLane(t, dir, limit())
			eventually(t, "the segments to be measured", func() bool {
				l.mu.Lock()
				defer l.mu.Unlock()
				return l.measured == nil
			})
		}
	}
	sink := &takeSink{}
	drainAll(t, l, sink)
	if len(sink.got) != len(loud)+3 {
		t.Errorf("%d delivered, %d answered", len(sink.got), len(loud)+3)
	}
	eventually(t, "the shares to be given back", func() bool { return has("loud") == 0 && has("quiet") == 0 })
	alone := tmpfsFlood(t, l, 8, 1, func(s, i int) *Frame { return tmpfsSized("loud", s, i, 10_000) }, RefusedFull)
	if n := len(alone) * 10_000; n < maxBytes*9/10 {
		t.Errorf("alone it got %d bytes of %d", n, maxBytes)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
}

// What does not fit is told to wait only if it can fit later.
func TestFaultLimitBelowARequest(t *testing.T) {
	l := newLane(t, tmpfsFast(t), tmpfsLimit(SpaceOptions{MaxBytes: 64 << 10}))
	r, ok := errors.AsType[*RefusedError](l.Append(context.Background(), tmpfsSized("default", 0, 0, 64<<10)))
	if !ok || r.Reason != RefusedTooLarge || r.After != 0 {
		t.Errorf("64 KiB and a header with a limit of 64 KiB: %v", r)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
}

// What a segment may write without asking has room in any case.
func TestFaultRoomOfASegment(t *testing.T) {
	name := LaneID{Destination: strings.Repeat("d", 63), Shard: 63, Parked: 1 << 30}
	hdr := Header{Birth: Birth{OwnerID(ulid.Make()), name, math.MaxUint64}, Created: time.Now(), salt: math.MaxUint64}
	head, err := hdr.frame()
	if err != nil {
		t.Fatal(err)
	}
	huge := Totals{math.MaxUint64, Counts{math.MaxUint64, math.MaxUint64, math.MaxUint64}, math.MaxUint64}
	footer := func(tenants map[string]int64) int64 {
		block, err := encodeFooter(&Footer{hdr, math.MaxUint32, math.MaxUint32, huge, tenants}, math.MaxUint32-1)
		if err != nil {
			t.Fatal(err)
		}
		return entryBytes(len(block))
	}
	if n := entryBytes(blockHeaderBytes+head.size()) + footer(nil); n > segmentRoomBytes {
		t.Errorf("header and footer take %d bytes", n)
	}
	tenant := strings.Repeat("\x01", MaxTenantBytes)
	const tableBytes = 20 // its name
	if n := footer(map[string]int64{tenant: math.MaxInt64}) - footer(nil) - tableBytes; n > tenantRoomBytes(tenant) {
		t.Errorf("a tenant takes %d bytes, expected at most %d", n, tenantRoomBytes(tenant))
	}
}

// The floor counts what was reserved before the volume was asked and is not written yet, and what open segments still write.
func TestFaultFloorCountsWhatIsOnItsWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		free := uint64(10_000)
		s := NewSpace(SpaceOptions{MaxBytes: 1 << 30, MinFreeBytes: 5000, Free: func() (uint64, error) { return free, nil }})
		ask := func(n int64) *RefusedError {
			time.Sleep(2 * freeInterval) // so that the volume is asked again
			return reserveNow(s, "a", n)
		}
		if r := ask(3000); r != nil {
			t.Fatal(r)
		}
		if r := ask(2500); r == nil || r.Reason != RefusedDisk {
			t.Errorf("3,000 on their way, 10,000 free, floor 5,000: %v", r)
		}
		s.settle("a", 3000, 2000)
		free = 8000
		if r := ask(2500); r != nil {
			t.Errorf("2,000 written, 8,000 free: %v", r)
		}
		s.settle("a", 2500, 0)
		time.Sleep(2 * freeInterval)
		if err := s.hold(1000, false); err != nil {
			t.Error(err)
		}
		if r := ask(2500); r == nil || r.Reason != RefusedDisk {
			t.Errorf("1,000 promised to a segment, 8,000 free: %v", r)
		}
		s.addRoom(-1000)
		if r := ask(2500); r != nil || s.Used() != 4500 {
			t.Errorf("the promise was given back: %v, %d used", r, s.Used())
		}
	})
}
