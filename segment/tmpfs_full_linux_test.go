package segment

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/zap"

	"ingest-agent/segment/vfs"
)

// tmpfsFrame is frame n with a body of sizeBytes that does not compress and names it.
func tmpfsFrame(n, sizeBytes int) *Frame {
	body := fmt.Appendf(make([]byte, 0, sizeBytes+32), "<frame %08d>", n)
	rng := rand.New(rand.NewPCG(uint64(n), 1))
	for len(body) < sizeBytes {
		body = binary.LittleEndian.AppendUint64(body, rng.Uint64())
	}
	body = body[:max(sizeBytes, 16)]
	return &Frame{Signal: Logs, Tenant: "default", Received: time.Unix(int64(n), 0), Records: 1, Body: body}
}

// tmpfsLedger is what a test knows of the frames it sent.
type tmpfsLedger struct {
	answered, refused map[string]bool
	next              int
}

func newTmpfsLedger() *tmpfsLedger {
	return &tmpfsLedger{answered: map[string]bool{}, refused: map[string]bool{}}
}

// append sends one frame and returns why it was refused.
func (k *tmpfsLedger) append(t *testing.T, l *Lane, sizeBytes int) *RefusedError {
	t.Helper()
	f := tmpfsFrame(k.next, sizeBytes)
	k.next++
	err := l.Append(context.Background(), f)
	if err == nil {
		k.answered[string(f.Body)] = true
		return nil
	}
	var r *RefusedError
	if !errors.As(err, &r) || r.After <= 0 {
		t.Fatalf("append: %v: want a refusal with a delay", err)
	}
	k.refused[string(f.Body)] = true
	return r
}

// fillUp appends until the lane refuses, and requires that it does for the disk.
func (k *tmpfsLedger) fillUp(t *testing.T, l *Lane, sizeBytes int) {
	t.Helper()
	for range 100_000 {
		if r := k.append(t, l, sizeBytes); r != nil {
			if r.Reason != RefusedDisk {
				t.Fatalf("refused for %v, want the disk", r)
			}
			return
		}
	}
	t.Fatal("a volume of a few MiB never runs full")
}

// check requires that got is what was answered, each once, and nothing of what was refused.
func (k *tmpfsLedger) check(t *testing.T, got []string) {
	t.Helper()
	seen := map[string]int{}
	for _, b := range got {
		seen[b]++
		switch {
		case k.refused[b]:
			t.Errorf("refused, and yet there: %.16s", b)
		case !k.answered[b]:
			t.Errorf("never sent: %.40q", b)
		case seen[b] == 2:
			t.Errorf("twice: %.16s", b)
		}
	}
	for b := range k.answered {
		if seen[b] == 0 {
			t.Errorf("answered, but not there: %.16s", b)
		}
	}
}

// tmpfsReopen closes a lane, requires that what is on disk is whole, and opens it again.
func tmpfsReopen(t *testing.T, l *Lane, v *tmpfsVolume, opts ...func(*LaneOptions)) *Lane {
	t.Helper()
	if err := l.Close(); err != nil {
		t.Fatalf("close: %v", err)
	}
	r, err := InspectLane(vfs.OS(), filepath.Join(v.dir, "lanes"), LaneID{Destination: "default"}, nil)
	if err != nil || !r.Whole() {
		t.Errorf("lane is not whole: %v, %+v", err, r)
	}
	return newLane(t, v.dir, opts...)
}

// tmpfsDrain drains a lane, requires the balance, and returns the bodies.
func tmpfsDrain(t *testing.T, l *Lane) []string {
	t.Helper()
	sink := &takeSink{}
	drainAll(t, l, sink)
	if st := l.Stats(); st.Ledger.Out() != st.In.Records || st.Ledger.Lost != nil || st.Ledger.DeadLetter != (Counts{}) {
		t.Errorf("ledger does not balance: %+v", st)
	}
	return sink.got
}

func tmpfsCodecs(t *testing.T, run func(t *testing.T, codec func(*LaneOptions))) {
	for name, c := range map[string]Codec{"none": CodecNone, "zstd": CodecZstd} {
		t.Run(name, func(t *testing.T) {
			run(t, func(o *LaneOptions) { o.Settings.Codec, o.Settings.SegmentSizeBytes = c, 64<<10 })
		})
	}
}

// Case 11: what a full volume refused is absent, also half of it; what was answered before and after is there.
func TestFaultCase11FullVolumeThreeTimes(t *testing.T) {
	tmpfsCodecs(t, func(t *testing.T, codec func(*LaneOptions)) {
		v := tmpfsMount(t, 1<<20)
		v.fill(700 << 10)
		l := newLane(t, v.dir, codec)
		known := newTmpfsLedger()
		for range 3 {
			known.fillUp(t, l, 11_000)
			tmpfsGauges(t, l, v.dir, "refused")
		}
		if len(known.refused) != 3 || len(known.answered) < 50 {
			t.Fatalf("%d refused, %d answered", len(known.refused), len(known.answered))
		}
		if r := l.Check(); r == nil || r.Reason != RefusedDisk {
			t.Errorf("check on a full volume: %v", r)
		}
		v.unfill()
		for range 2 {
			if r := known.append(t, l, 11_000); r != nil {
				t.Fatalf("refused with space again: %v", r)
			}
		}
		tmpfsGauges(t, l, v.dir, "two more")
		l = tmpfsReopen(t, l, v, codec)
		tmpfsGauges(t, l, v.dir, "reopened")
		known.check(t, tmpfsDrain(t, l))
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		if n := tmpfsSegmentBytes(t, v.dir); n != 0 {
			t.Errorf("%d bytes of segments left", n)
		}
	})
}

// Case 22: a full volume drains by itself: cursors are saved on it, segments go, and requests are taken again.
func TestFaultCase22FullVolumeDrains(t *testing.T) {
	tmpfsCodecs(t, func(t *testing.T, codec func(*LaneOptions)) {
		v := tmpfsMount(t, 8<<20)
		l := newLane(t, v.dir, codec)
		known := newTmpfsLedger()
		known.fillUp(t, l, 20_000)
		v.fill(0) // not one page for the cursor
		saved := l.Stats().Saved
		got := tmpfsDrain(t, l)
		begin := time.Now()
		known.check(t, got)
		var r *RefusedError
		eventually(t, "a request to be taken", func() bool { r = known.append(t, l, 100); return r == nil })
		if took := time.Since(begin); took > 2*time.Second {
			t.Errorf("taking requests %v after the drain", took)
		}
		eventually(t, "the cursor to be saved", func() bool { return saved.Before(l.Stats().Saved) })
		v.unfill()
		eventually(t, "90 % of the volume to be free", func() bool { return v.free() >= v.sizeBytes/10*9 })
		tmpfsGauges(t, l, v.dir, "drained")
		if r := known.append(t, l, 20_000); r != nil {
			t.Errorf("refused after the drain: %v", r)
		}
		for b := range known.answered {
			if slices.Contains(got, b) {
				delete(known.answered, b)
			}
		}
		l = tmpfsReopen(t, l, v, codec)
		known.check(t, tmpfsDrain(t, l)) // what was delivered does not come again
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
	})
}

// Case 28: with not one byte free a lane with a backlog opens in time, says why it refuses, drains, and comes back.
func TestFaultCase28FullVolumeAtStart(t *testing.T) {
	tmpfsCodecs(t, func(t *testing.T, codec func(*LaneOptions)) {
		v := tmpfsMount(t, 2<<20)
		l := newLane(t, v.dir, codec)
		known := newTmpfsLedger()
		for range 40 {
			if r := known.append(t, l, 20_000); r != nil {
				t.Fatal(r)
			}
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		v.fill(0)
		begin := time.Now()
		l = newLane(t, v.dir, codec)
		if took := time.Since(begin); took > 2*time.Second {
			t.Errorf("opened after %v", took)
		}
		if r := l.Check(); r == nil || r.Reason != RefusedDisk || r.After <= 0 {
			t.Errorf("check with nothing free: %v", r)
		}
		if r := known.append(t, l, 100); r == nil || r.Reason != RefusedDisk {
			t.Errorf("append with nothing free: %v", r)
		}
		tmpfsGauges(t, l, v.dir, "full at start")
		known.check(t, tmpfsDrain(t, l))
		eventually(t, "the lane to come back by itself", func() bool { return l.Check() == nil })
		if r := known.append(t, l, 100); r != nil {
			t.Errorf("refused after the drain: %v", r)
		}
		tmpfsGauges(t, l, v.dir, "drained")
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
	})
}

// Case 28, a lane that was never there, as after a change of wal.shards: no space for its cursor must not keep the others
// from starting.
func TestFaultCase28NewLaneOnFullVolume(t *testing.T) {
	v := tmpfsMount(t, 1<<20)
	v.fill(0)
	l := newLane(t, v.dir)
	known := newTmpfsLedger()
	if r := known.append(t, l, 100); r == nil || r.Reason != RefusedDisk {
		t.Errorf("append with nothing free: %v", r)
	}
	if r := l.Check(); r == nil || r.Reason != RefusedDisk {
		t.Errorf("check with nothing free: %v", r)
	}
	v.unfill()
	eventually(t, "the lane to come back by itself", func() bool { return l.Check() == nil })
	for range 20 {
		if r := known.append(t, l, 1000); r != nil {
			t.Fatalf("refused with space again: %v", r)
		}
	}
	v.fill(0) // the cursor has its space by now
	known.check(t, tmpfsDrain(t, l))
	l = tmpfsReopen(t, l, v)
	if st := l.Stats(); st.Pending() != (Totals{}) {
		t.Errorf("the cursor was not kept: %+v", st)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
}

// A block that a full volume cut in the middle leaves no byte behind, and the space goes to smaller ones.
func TestFaultTornBlockLeavesNothing(t *testing.T) {
	tmpfsCodecs(t, func(t *testing.T, codec func(*LaneOptions)) {
		v := tmpfsMount(t, 1<<20)
		l := newLane(t, v.dir, codec)
		known := newTmpfsLedger()
		if r := known.append(t, l, 30_000); r != nil {
			t.Fatal(r)
		}
		v.fill(200 << 10)
		for range 40 { // more than there are pages left: a refusal must not take space for good
			if r := known.append(t, l, 300_000); r == nil || r.Reason != RefusedDisk {
				t.Fatalf("300 kB on 200 KiB: %v", r)
			}
		}
		for i := range 4 {
			if r := known.append(t, l, 30_000); r != nil {
				t.Fatalf("30 kB, number %d, on 200 KiB: %v", i, r)
			}
		}
		tmpfsGauges(t, l, v.dir, "after the refusals")
		names, err := filepath.Glob(filepath.Join(v.dir, "lanes", "*", "*", logFile))
		if err != nil || len(names) > 5 {
			t.Errorf("%d segments for 5 frames, %v", len(names), err)
		}
		for _, name := range names {
			data, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			for b := range known.refused {
				if bytes.Contains(data, []byte(b[:64])) {
					t.Errorf("%s holds bytes of what was refused", name)
				}
			}
		}
		l = tmpfsReopen(t, l, v, codec)
		known.check(t, tmpfsDrain(t, l))
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
	})
}

// The same block, and the process dies before it can cut. The next start does, if it can keep a copy of the bytes; if the
// volume has no space for that either, they are not read, and go with their segment.
func TestFaultTornBlockThenCrash(t *testing.T) {
	for _, room := range []bool{true, false} {
		t.Run(fmt.Sprintf("room=%v", room), func(t *testing.T) {
			tmpfsCodecs(t, func(t *testing.T, codec func(*LaneOptions)) { tmpfsCrash(t, room, codec) })
		})
	}
}

func tmpfsCrash(t *testing.T, room bool, codec func(*LaneOptions)) {
	v := tmpfsMount(t, 1<<20)
	var dead atomic.Bool // all but the log library's own write, which the volume cuts
	opts, _ := onFault(func(vfs.Op) error {
		if dead.Load() {
			return vfs.ErrStopped
		}
		return nil
	})
	quiet := func(o *LaneOptions) { o.Log = zap.NewNop() }
	l := newLane(t, v.dir, codec, opts, quiet)
	known := newTmpfsLedger()
	for range 2 {
		if r := known.append(t, l, 5000); r != nil {
			t.Fatal(r)
		}
	}
	eventually(t, "the next segment and the cursor", func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		return l.spare != nil && !l.changed
	})
	name := l.segmentFile(l.Stats().Tail.Seq)
	v.fill(40 << 10)
	dead.Store(true)
	if r := known.append(t, l, 300_000); r == nil {
		t.Fatal("300 kB were taken on 40 KiB")
	}
	if err := l.Close(); err == nil {
		t.Fatal("the cursor was saved after the crash")
	}
	torn := tmpfsSize(t, name)
	if v.free() != 0 || torn < 40<<10 {
		t.Fatalf("%d bytes free, %d written: the write was not cut in the middle", v.free(), torn)
	}
	if room {
		v.unfill()
	}
	l = newLane(t, v.dir, codec, quiet)
	tmpfsGauges(t, l, v.dir, "after the crash")
	if n := tmpfsSize(t, name); room == (n == torn) {
		t.Errorf("%d bytes in the segment, %d before the start", n, torn)
	}
	if files, kept, err := l.o.Quarantine.Usage(); err != nil || (files == 1 && kept > 30<<10) != room {
		t.Errorf("%d bytes in %d files kept aside, %v", kept, files, err)
	}
	if r := known.append(t, l, 5000); (r == nil) != room {
		t.Errorf("append: %v", r)
	}
	got := tmpfsDrain(t, l)
	eventually(t, "the lane to take requests", func() bool { return l.Check() == nil })
	if r := known.append(t, l, 5000); r != nil {
		t.Errorf("append after the drain: %v", r)
	}
	known.check(t, append(got, tmpfsDrain(t, l)...))
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if n := tmpfsSegmentBytes(t, v.dir); n != 0 {
		t.Errorf("%d bytes of segments left", n)
	}
}

func tmpfsSize(t *testing.T, name string) int64 {
	t.Helper()
	stat, err := os.Stat(name)
	if err != nil {
		t.Fatal(err)
	}
	return stat.Size()
}

// A segment whose footer does not fit on the volume stays without one: it is read all the same, now and after a restart.
func TestFaultSealOnFullVolume(t *testing.T) {
	for _, restart := range []bool{false, true} {
		t.Run(fmt.Sprintf("restart=%v", restart), func(t *testing.T) {
			v := tmpfsMount(t, 1<<20)
			l := newLane(t, v.dir)
			known := newTmpfsLedger()
			const page = 4096
			end := func() int {
				l.mu.Lock()
				defer l.mu.Unlock()
				return int(l.segs[len(l.segs)-1].end)
			}
			from := end()
			if r := known.append(t, l, 1000); r != nil {
				t.Fatal(r)
			}
			overhead := end() - from - 1000
			if r := known.append(t, l, 3*page-20-end()-overhead); r != nil {
				t.Fatal(r)
			}
			if left := 3*page - end(); left < 0 || left > 40 {
				t.Fatalf("%d bytes left in the last page, want a few", left)
			}
			eventually(t, "the next segment", func() bool {
				l.mu.Lock()
				defer l.mu.Unlock()
				return l.spare != nil
			})
			v.fill(0)
			seq := l.Stats().Tail.Seq
			set := l.settings
			set.SegmentAge = time.Millisecond
			l.Set(set)
			eventually(t, "the end of the segment", func() bool {
				l.mu.Lock()
				defer l.mu.Unlock()
				return l.tail.Seq > seq && len(l.sealing) == 0
			})
			tmpfsGauges(t, l, v.dir, "not sealed")
			if restart {
				if err := l.Close(); err != nil {
					t.Fatal(err)
				}
			}
			r, err := InspectLane(vfs.OS(), filepath.Join(v.dir, "lanes"), l.ID(), nil)
			if err != nil || !r.Whole() || r.Segments[0].Sealed || r.Pending.Frames != 2 {
				t.Errorf("want a whole segment without a footer: %v, %+v", err, r)
			}
			if restart {
				l = newLane(t, v.dir) // tries to write the footer, and has no space for it either
				tmpfsGauges(t, l, v.dir, "reopened")
			}
			if !restart { // the spare has room in its first page
				if r := known.append(t, l, 100); r != nil {
					t.Errorf("refused: %v", r)
				}
			}
			known.check(t, tmpfsDrain(t, l))
			if err := l.Close(); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// Case 23, second half: the floor keeps its bytes free, whoever else writes to the volume; the refusal says disk.
func TestFaultCase23FloorOnSmallVolume(t *testing.T) {
	const floor = 4 << 20
	v := tmpfsMount(t, 16<<20)
	space := func(o *LaneOptions) {
		o.Space = NewSpace(SpaceOptions{MaxBytes: 1 << 30, MinFreeBytes: floor, Free: func() (uint64, error) { return vfs.FreeBytes(v.dir) }})
		o.Settings.SegmentSizeBytes = 1 << 20
	}
	l := newLane(t, v.dir, space)
	answered := tmpfsFlood(t, l, 16, 2, func(s, i int) *Frame { return tmpfsSized("default", s, i, 50_000) }, RefusedDisk)
	// Pages are not accounted: each segment and the cursor may take one more than their bytes.
	if free := v.free(); free < floor-20*4096 || free > floor+2<<20 {
		t.Errorf("%d bytes free with a floor of %d", free, floor)
	}
	for b := range tmpfsFlood(t, l, 1, 1, func(s, i int) *Frame { return tmpfsSized("default", 100+s, i, 1000) }, RefusedDisk) {
		answered[b] = true
	}
	for b := range tmpfsFlood(t, l, 1, 1, func(s, i int) *Frame { return tmpfsSized("default", 200+s, i, 1) }, RefusedDisk) {
		answered[b] = true
	}
	tmpfsGauges(t, l, v.dir, "at the floor")
	sink := &takeSink{}
	drainAll(t, l, sink)
	tmpfsAll(t, sink.got, answered)
	eventually(t, "requests to be taken again", func() bool { return l.Check() == nil })
	eventually(t, "space to come back", func() bool { return l.o.Space.Used() < 1<<20 })
	eventually(t, "the floor to be noticed", func() bool {
		v.fill(floor - 8192) // somebody else takes the space, also that of the last segments that go
		r := l.Check()
		return r != nil && r.Reason == RefusedDisk
	})
	v.unfill()
	eventually(t, "the lane to come back", func() bool { return l.Check() == nil })
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
}
