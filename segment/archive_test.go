package segment

import (
	"testing"
	"time"

	"ingest-agent/segment/vfs"
)

// TestTakenAndSpare: what is taken knows of the volume's floor, and of no refusals for other reasons; what is spare is beside all
// that the lanes may still take.
func TestTakenAndSpare(t *testing.T) {
	free := uint64(1000 << 10)
	s := NewSpace(SpaceOptions{
		MaxBytes: 100 << 10, MinFreeBytes: 50 << 10, TenantShare: 0.1, Free: func() (uint64, error) { return free, nil },
	})
	s.charge("a", 40<<10)
	s.charge("b", 1<<10)
	if err := s.reserve(t.Context(), "a", 1<<10, false); err == nil {
		t.Fatal("not refused for the tenant's share")
	}
	if taken := s.Taken(); taken < 0.4 || taken > 0.42 || s.Pressure() < 1 {
		t.Errorf("taken %.2f, pressure %.2f", taken, s.Pressure())
	}
	for _, v := range []struct {
		free  uint64
		full  bool
		spare bool
	}{{1000 << 10, false, true}, {110 << 10, false, true}, {108 << 10, false, false}, {55 << 10, false, false}, {53 << 10, true, false}} {
		free, s.freeAt = v.free, time.Time{}
		if full, spare := s.Taken() >= 1, s.Spare(); full != v.full || spare != v.spare {
			t.Errorf("%d bytes free: full %v, spare %v", v.free, full, spare)
		}
	}
}

// TestArchivedSegmentsGo: an exported segment stays until it is archived, also over a restart, and a pending one stays in any case.
func TestArchivedSegmentsGo(t *testing.T) {
	dir := t.TempDir()
	keep := func(o *LaneOptions) { small(o); o.KeepExported = true }
	l := newLane(t, dir, keep)
	fill(t, l, 0, 100)
	drainAll(t, l, &takeSink{})
	eventually(t, "the cursor is saved", func() bool { st := l.State(); return st.Saved == st.Exported })
	before := segmentCount(t, dir)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	l = newLane(t, dir, keep)
	eventually(t, "the cursor is saved again", func() bool { return l.State().Saved == l.State().Exported })
	if now := segmentCount(t, dir); now < before || before < 5 {
		t.Errorf("%d segments are %d after a restart", before, now)
	}
	l.Archived(Position{3, 2})
	infos, err := vfs.OS().List(l.dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range infos {
		if seq, err := ParseSeq(i.Name); err == nil && seq < 3 {
			t.Errorf("segment %s is archived, and stays", seq)
		}
	}
	fill(t, l, 100, 200)
	l.Archived(Position{1 << 40, 1})
	sink := &takeSink{}
	drainAll(t, l, sink)
	if len(sink.got) != 100 {
		t.Errorf("%d of 100 frames are left of what was pending", len(sink.got))
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestPart: parts of a batch encode to objects that tell of the same totals as the whole.
func TestPart(t *testing.T) {
	l := newLane(t, t.TempDir())
	fill(t, l, 0, 10)
	b, err := l.NewReader().Read(Start, 1<<20)
	if err != nil || len(b.Frames) != 10 {
		t.Fatal(err)
	}
	at := b.Before
	for from := 0; from < 10; from += 3 {
		p := b.Part(from, min(from+3, 10))
		data, err := EncodeRange(p)
		if err != nil {
			t.Fatal(err)
		}
		o, err := ReadObject(data, l.ID(), b.Header.Seq)
		if err != nil || !o.Whole || *o.Before != at || o.Batch().After != *o.After || *o.After != p.After {
			t.Fatalf("part from %d: %+v (%v)", from, o, err)
		}
		if want := p.Frames[len(p.Frames)-1].Position.After(); p.Next != want && p.Next != b.Next {
			t.Errorf("part from %d goes on at %s", from, p.Next)
		}
		at = p.After
	}
	if at != b.After {
		t.Errorf("the parts end at %+v, the whole at %+v", at, b.After)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
}
