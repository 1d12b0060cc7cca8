package segment

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"ingest-agent/segment/vfs"
)

// Damage is a range of a file that is not whole.
type Damage struct {
	Path   string `json:"path"`
	From   int64  `json:"from"` // offset in bytes
	To     int64  `json:"to"`
	Reason string `json:"reason"`
	// Tail: nothing whole follows, in a segment that was not sealed. A crash leaves this behind; nothing in it was answered.
	Tail bool `json:"tail,omitempty"`
}

func (d Damage) String() string {
	what := "damage"
	if d.Tail {
		what = "torn tail"
	}
	return fmt.Sprintf("%s: bytes %d to %d: %s: %s", d.Path, d.From, d.To, what, d.Reason)
}

// SegmentReport is what a segment file holds.
type SegmentReport struct {
	Seq       Seq       `json:"seq"`
	Owner     OwnerID   `json:"owner"`
	Created   time.Time `json:"created"`
	Note      string    `json:"note,omitempty"`
	SizeBytes int64     `json:"size_bytes"`
	Sealed    bool      `json:"sealed"` // closed by a whole footer
	Totals    Totals    `json:"totals"` // of the frames that can be read
	First     Entry     `json:"first"`  // 0: no frames
	Last      Entry     `json:"last"`
	Damage    []Damage  `json:"damage,omitempty"`
}

// LaneReport is what a lane's directory holds.
type LaneReport struct {
	Lane         LaneID          `json:"lane"`
	Cursor       *CursorState    `json:"cursor"` // nil: none can be read
	CursorDamage []string        `json:"cursor_damage,omitempty"`
	Segments     []SegmentReport `json:"segments"`
	// Pending are the frames at or after the cursor that can be read.
	Pending Totals `json:"pending"`
	// Missing are frames that the lane's totals say were there and that no segment holds.
	Missing Totals `json:"missing"`
	// Spilled are frames that are in the bucket instead.
	Spilled Totals `json:"spilled,omitzero"`
}

// Whole reports whether everything in the lane can be read.
func (r *LaneReport) Whole() bool {
	for _, s := range r.Segments {
		if len(s.Damage) > 0 {
			return false
		}
	}
	return len(r.CursorDamage) == 0 && r.Missing == (Totals{})
}

// InspectLane reads a lane without changing anything. visit, if not nil, is called with each frame and whether it is pending;
// the frame is valid only during the call.
func InspectLane(fsys vfs.FS, lanesDir string, id LaneID, visit func(f *Frame, pending bool)) (*LaneReport, error) {
	dir := filepath.Join(lanesDir, id.String())
	r := &LaneReport{Lane: id, Segments: []SegmentReport{}}
	cur, damage, err := ReadCursor(fsys, dir, id)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		r.CursorDamage = append(r.CursorDamage, "no cursor file")
	case err != nil:
		return nil, err
	}
	for _, d := range damage {
		r.CursorDamage = append(r.CursorDamage, d.Error())
	}
	from := Start
	if r.Cursor = cur; cur != nil {
		from = cur.Exported
	} else {
		cur = &CursorState{}
	}
	seqs, err := listSegments(fsys, dir)
	if err != nil {
		return nil, err
	}
	var sum *Totals // what had entered the lane up to here, once that is known
	prev := from.Seq - 1
	gap := func(seq Seq, t Totals) { // t is missing between prev and seq
		if seq > prev+1 && prev+1 < cur.Spilled.Seq {
			r.Spilled = r.Spilled.Add(t)
		} else {
			r.Missing = r.Missing.Add(t)
		}
		prev = seq
	}
	for _, seq := range seqs {
		one := segmentInspection{
			path: filepath.Join(dir, seq.String(), logFile), lane: id, seq: seq, known: cur.header(seq), limit: cur.Limits[seq],
			visit: func(f *Frame) {
				pending := !f.Position.Before(from)
				if pending {
					r.Pending = r.Pending.Add(f.Totals())
				}
				if visit != nil {
					visit(f, pending)
				}
			},
			sum: sum, out: cur.Out,
		}
		report, err := one.run(fsys)
		if err != nil {
			return nil, err
		}
		sum = one.sum
		gap(seq, one.missing)
		r.Segments = append(r.Segments, *report)
	}
	end := cur.Out
	if sum != nil {
		end = end.Max(*sum)
	}
	gap(maxSeq, cur.In.Sub(end)) // more was durable than is there
	return r, nil
}

// InspectObject reads one segment file of its own, such as a dead letter.
func InspectObject(fsys vfs.FS, path string, birth Birth, visit func(f *Frame)) (*SegmentReport, error) {
	one := segmentInspection{path: path, lane: birth.Lane, seq: birth.Seq, visit: visit}
	return one.run(fsys)
}

type segmentInspection struct {
	path    string
	lane    LaneID
	seq     Seq
	known   *Header
	limit   int64 // 0: none
	visit   func(f *Frame)
	sum     *Totals
	out     Totals // what the cursor has passed: its loss matters to nobody
	missing Totals
}

func (s *segmentInspection) run(fsys vfs.FS) (*SegmentReport, error) {
	r := &SegmentReport{Seq: s.seq}
	f, err := fsys.OpenFile(s.path, os.O_RDONLY, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return r, nil // a directory whose file did not become durable, or was removed first
	}
	if err != nil {
		return nil, fmt.Errorf("open segment: %w", err)
	}
	defer func() { _ = f.Close() }()
	if r.SizeBytes, err = f.Size(); err != nil {
		return nil, fmt.Errorf("size segment: %w", err)
	}
	size := r.SizeBytes
	if s.limit > 0 {
		size = min(size, s.limit)
	}
	if s.known == nil {
		footer, err := readFooter(f, size)
		if err != nil {
			return nil, err
		}
		if footer != nil && footer.Lane == s.lane && footer.Seq == s.seq {
			s.known = &footer.Header
		}
	}
	sc := newScanner(f, size, s.lane, s.seq, s.known)
	for {
		it, err := sc.next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", s.path, err)
		}
		s.take(r, sc, &it)
	}
	if sc.hdr != nil {
		r.Owner, r.Created, r.Note = sc.hdr.Owner, sc.hdr.Created, sc.hdr.Note
	}
	if r.Sealed = sc.whole(); sc.footer != nil && !r.Sealed && len(r.Damage) == 0 {
		r.Damage = append(r.Damage, Damage{Path: s.path, From: 0, To: size, Reason: "footer does not fit the frames"})
	}
	return r, nil
}

func (s *segmentInspection) take(r *SegmentReport, sc *scanner, it *item) {
	if it.before != nil {
		if s.sum != nil {
			s.missing = s.missing.Add(it.before.Sub(s.sum.Max(s.out)))
		}
		before := *it.before
		s.sum = &before
	}
	switch it.kind {
	case itemFooter:
	case itemDamage:
		r.Damage = append(r.Damage, Damage{Path: s.path, From: it.offset, To: it.end, Reason: it.reason.Error(), Tail: it.tail && sc.footer == nil})
	case itemFrame:
		f := it.frame.frame(sc.hdr.Birth)
		r.Totals = r.Totals.Add(f.Totals())
		if r.First == 0 {
			r.First = it.frame.entry
		}
		r.Last = it.frame.entry
		if s.sum != nil {
			sum := s.sum.Add(f.Totals())
			s.sum = &sum
		}
		if s.visit != nil {
			s.visit(&f)
		}
	}
}
