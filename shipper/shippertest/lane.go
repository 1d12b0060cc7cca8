package shippertest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"ingest-agent/segment"
)

// ErrKilled is the error of a lane whose process was killed.
var ErrKilled = errors.New("process was killed")

// Lane is one process's view of a LaneDisk. It is safe for many goroutines at once; its drain is one of them.
type Lane struct {
	d        *LaneDisk
	o        Options
	firstSeq segment.Seq

	// Under d.mu.
	active   segment.Seq // 0: none
	exported segment.Position
	spilled  segment.Position
	skip     segment.Position
	read     segment.Position // where the drain reads
	moved    chan struct{}    // closed when there may be more to read
}

// ID returns the lane's id.
func (l *Lane) ID() segment.LaneID { return l.d.id }

// FirstSeq is the first number of this process.
func (l *Lane) FirstSeq() segment.Seq { return l.firstSeq }

// lock is d.mu.Lock, and says whether the process may still change the disk.
func (l *Lane) lock() (alive bool) {
	l.d.mu.Lock()
	return l.d.life == l
}

// Kill ends the process: from here on nothing that it does has an effect on the disk.
func (l *Lane) Kill() {
	if l.lock() {
		l.d.life = nil
	}
	l.d.mu.Unlock()
}

// Append stores a frame. Position is set, and ID where it has none.
func (l *Lane) Append(f *segment.Frame) error {
	alive := l.lock()
	defer l.d.mu.Unlock()
	if !alive {
		return ErrKilled
	}
	g := l.d.segs[l.active]
	if g == nil {
		g = l.create()
	}
	g.last++
	f.Position = segment.Position{Seq: l.active, Entry: g.last}
	if f.ID.Owner.IsZero() {
		f.ID = segment.FrameID{Birth: g.header.Birth, Number: g.last}
	}
	if f.Received.IsZero() {
		f.Received = time.Now()
	}
	l.d.frames = append(l.d.frames, stored{pos: f.Position, frame: *f, before: l.d.in()})
	if l.o.SegmentFrames > 0 && int(g.last) >= l.o.SegmentFrames {
		l.seal(g)
	}
	l.signal()
	return nil
}

// Seal ends the segment that is appended to.
func (l *Lane) Seal() {
	alive := l.lock()
	defer l.d.mu.Unlock()
	if g := l.d.segs[l.active]; g != nil && alive {
		l.seal(g)
		l.signal()
	}
}

func (l *Lane) seal(g *seg) {
	g.open, l.active = false, 0
	l.exported, l.read = l.spell(l.exported), l.spell(l.read)
}

func (l *Lane) signal() {
	close(l.moved)
	l.moved = make(chan struct{})
}

// State is as that of a segment.Lane.
func (l *Lane) State() segment.State {
	l.d.mu.Lock()
	defer l.d.mu.Unlock()
	s := segment.State{
		Exported: l.exported, Saved: l.spell(l.d.saved.exported), Out: l.d.totals(l.exported), Tail: l.tail(), In: l.d.in(),
		Spilled: l.spilled, Skip: l.skip,
	}
	if i := l.d.at(l.exported); i < len(l.d.frames) {
		s.Oldest = l.d.frames[i].frame.Received
	}
	return s
}

// tail is behind the last frame. d.mu is held.
func (l *Lane) tail() segment.Position {
	if len(l.d.frames) == 0 {
		return l.exported
	}
	p := l.spell(l.d.frames[len(l.d.frames)-1].pos.After())
	if p.Before(l.exported) {
		return l.exported
	}
	return p
}

// Read is as that of a segment.Lane.
func (l *Lane) Read(from segment.Position, maxBytes int) (*segment.Batch, error) {
	alive := l.lock()
	defer l.d.mu.Unlock()
	if !alive {
		return nil, ErrKilled
	}
	var b *segment.Batch
	size := 0
	for i := l.d.at(from); i < len(l.d.frames); i++ {
		f := &l.d.frames[i]
		g := l.d.segs[f.pos.Seq]
		switch {
		case g.gone:
			continue
		case b == nil:
			b = &segment.Batch{Header: g.header, Before: f.before}
		case b.Header.Seq != f.pos.Seq || size+len(f.frame.Body) > maxBytes:
			return b, nil
		}
		size += len(f.frame.Body)
		frame := f.frame
		frame.Position = f.pos
		b.Frames = append(b.Frames, frame)
		b.Next, b.After = l.spell(f.pos.After()), f.before.Add(totalsOf(&frame))
	}
	if b == nil {
		return nil, io.EOF
	}
	return b, nil
}

// Spill is as that of a segment.Lane.
func (l *Lane) Spill(_ context.Context, to segment.Position) (int64, error) {
	alive := l.lock()
	defer l.d.mu.Unlock()
	if !alive {
		return 0, ErrKilled
	}
	var freed int64
	for seq, g := range l.d.segs {
		if seq < to.Seq && !g.open && !g.gone && seq > l.exported.Seq && seq != l.read.Seq {
			g.gone = true
			for i := l.d.at(segment.Position{Seq: seq, Entry: 1}); i < len(l.d.frames) && l.d.frames[i].pos.Seq == seq; i++ {
				freed += int64(len(l.d.frames[i].frame.Body))
			}
		}
	}
	if freed > 0 && l.spilled.Before(to) {
		l.spilled, l.d.saved.spilled = to, to
	}
	return freed, nil
}

// Skip is as that of a segment.Lane.
func (l *Lane) Skip(to segment.Position) {
	l.d.mu.Lock()
	defer l.d.mu.Unlock()
	if l.skip.Before(to) {
		l.skip = to
		l.signal()
	}
}

// Advance moves the cursor, which a Save makes durable.
func (l *Lane) Advance(p *segment.Progress) {
	l.d.mu.Lock()
	defer l.d.mu.Unlock()
	if l.exported.Before(p.To) {
		l.exported = l.spell(p.To)
	}
}

// Save makes the cursor durable, and removes the segments before it.
func (l *Lane) Save() {
	alive := l.lock()
	defer l.d.mu.Unlock()
	if !alive {
		return
	}
	l.d.saved.exported = l.exported
	for seq, g := range l.d.segs {
		if seq < l.exported.Seq && !g.open {
			g.gone = true
		}
	}
}

// Source returns the reader of the undelivered frames, for the one drain of the lane.
func (l *Lane) Source() segment.Source {
	l.d.mu.Lock()
	defer l.d.mu.Unlock()
	l.read = l.exported
	return &source{l: l, pos: l.exported}
}

type source struct {
	l       *Lane
	pos     segment.Position
	fetched []segment.Frame // read back, and not yet returned
	until   segment.Position
}

func (s *source) Close() error { return nil }

// Next returns the next frame, or progress, or waits for more.
func (s *source) Next(ctx context.Context) (segment.Item, error) {
	for {
		it, moved, err := s.step(ctx)
		if err != nil || moved == nil {
			return it, err
		}
		select {
		case <-moved:
		case <-ctx.Done():
			return segment.Item{}, ctx.Err() //nolint:wrapcheck // as a lane's
		}
	}
}

// step is one look. moved is not nil where there is nothing now.
func (s *source) step(ctx context.Context) (it segment.Item, moved <-chan struct{}, err error) {
	l := s.l
	alive := l.lock()
	s.pos = l.spell(s.pos)
	i := l.d.at(s.pos)
	switch {
	case !alive:
		l.d.mu.Unlock()
		return it, nil, ErrKilled
	case s.pos.Before(l.skip):
		it.HandedOver = l.d.totals(l.skip).Sub(l.d.totals(s.pos))
		s.pos, s.fetched, it.Next = l.skip, nil, l.skip
		l.read = s.pos
		l.d.mu.Unlock()
		return it, nil, nil
	case i == len(l.d.frames):
		moved = l.moved
		l.d.mu.Unlock()
		return it, moved, nil
	}
	f := l.d.frames[i]
	gone, spilled := l.d.segs[f.pos.Seq].gone, l.spilled
	l.d.mu.Unlock()
	if gone {
		it, err = s.stored(ctx, f.pos, spilled)
		return it, nil, err
	}
	s.move(f.pos.After())
	frame := f.frame
	frame.Position = f.pos
	return segment.Item{Frame: &frame, Next: s.pos}, nil, nil
}

func (s *source) move(to segment.Position) {
	s.l.d.mu.Lock()
	defer s.l.d.mu.Unlock()
	s.pos = s.l.spell(to)
	s.l.read = s.pos
}

// stored returns the frame at pos, which is not on the disk, from the bucket, or counts what is missing as lost.
func (s *source) stored(ctx context.Context, pos, spilled segment.Position) (segment.Item, error) {
	if len(s.fetched) > 0 && s.fetched[0].Position.Before(pos) {
		s.fetched = slices.DeleteFunc(s.fetched, func(f segment.Frame) bool { return f.Position.Before(pos) })
	}
	before := s.end(spilled)
	if len(s.fetched) == 0 || s.until.Before(pos) {
		if s.l.o.Remote == nil {
			return segment.Item{}, errors.New("read spilled frames: there is no bucket")
		}
		o, err := s.l.o.Remote.Fetch(ctx, s.l.d.id, pos, before)
		if err != nil {
			return segment.Item{}, fmt.Errorf("read spilled frames: %w", err)
		}
		if o == nil {
			return s.lose(pos, before), nil
		}
		object, err := segment.ReadObject(o.Data, s.l.d.id, o.Seq)
		if err != nil {
			return segment.Item{}, fmt.Errorf("read spilled frames: %w", err)
		}
		s.fetched, s.until = object.Frames, segment.Position{Seq: o.Seq, Entry: o.Last}
		s.fetched = slices.DeleteFunc(s.fetched, func(f segment.Frame) bool { return f.Position.Before(pos) })
		if len(s.fetched) == 0 {
			return s.lose(pos, s.until.After()), nil
		}
	}
	f := s.fetched[0]
	if pos.Before(f.Position) {
		return s.lose(pos, f.Position), nil
	}
	s.fetched = s.fetched[1:]
	s.move(f.Position.After())
	return segment.Item{Frame: &f, Next: s.pos}, nil
}

// end is up to where nothing is on the disk from the reader on, and at most up to where it may be spilled.
func (s *source) end(spilled segment.Position) segment.Position {
	s.l.d.mu.Lock()
	defer s.l.d.mu.Unlock()
	for i := s.l.d.at(s.pos); i < len(s.l.d.frames); i++ {
		if p := s.l.d.frames[i].pos; !s.l.d.segs[p.Seq].gone {
			return segment.Position{Seq: p.Seq, Entry: 1}
		}
	}
	return spilled
}

// lose passes what is nowhere.
func (s *source) lose(from, to segment.Position) segment.Item {
	if !from.Before(to) {
		to = from.After()
	}
	s.l.d.mu.Lock()
	lost := s.l.d.totals(to).Sub(s.l.d.totals(from))
	s.l.d.mu.Unlock()
	s.move(to)
	return segment.Item{Next: s.pos, Lost: lost, Cause: segment.LostMissing}
}
