package recovery

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"

	"go.uber.org/zap"

	"ingest-agent/objstore"
	"ingest-agent/recovery/owner"
	"ingest-agent/segment"
)

// source reads a lane of another owner from the bucket: its frames from what is exported up to end, in order. It holds one
// object, and one page of a listing.
//
// What is missing is counted by the totals that objects carry and, where these do not say, by the numbers of frames. Records
// are counted from what the register says was passed.
type source struct {
	bucket objstore.Bucket
	log    *zap.Logger
	owner  string
	lane   segment.LaneID
	end    segment.Position // the frames at and behind it are somebody else's, or come later
	// want are the records before end by the register; known says that it knows.
	want  segment.Counts
	known bool
	// hold proves that the register is still held, and that no other has read or deleted what is missing.
	hold func(ctx context.Context) error
	// read is told of each piece that is read, and gone of each object that is passed.
	read func()
	gone func(ref)
	keep func(key string, data []byte, damage []segment.Damage) error

	pos   segment.Position
	sum   segment.Totals // of what lies before pos: records, and the rest once exact
	exact bool
	holes uint64        // frame numbers that were passed and not found since sum was last compared
	gap   segment.Cause // of what will show to be lost

	listing listing
	ref     ref // what is being read
	frames  []segment.Frame
	object  *segment.Object // nil: none
	ended   bool
}

// newSource reads a lane as the register describes it.
func newSource(l *owner.Lane) *source {
	return &source{
		pos: l.Exported, end: l.End(), sum: segment.Totals{Records: l.Passed},
		want: l.Passed.Add(l.Owed), known: !l.Shipped.Before(l.End()), // what was added to it later is not in Owed
	}
}

// Next returns the next item, and waits for the end of ctx behind the last. Errors: ctx's, the bucket's, the lease's, or
// segment.ErrVersion.
func (s *source) Next(ctx context.Context) (segment.Item, error) {
	for {
		if err := ctx.Err(); err != nil {
			return segment.Item{}, fmt.Errorf("read lane %s of owner %s: %w", s.lane, s.owner, err)
		}
		if s.object != nil {
			if it, ok := s.step(); ok {
				return it, nil
			}
			continue
		}
		it, ok, err := s.open(ctx)
		if err != nil {
			return it, fmt.Errorf("read lane %s of owner %s: %w", s.lane, s.owner, err)
		}
		if ok {
			return it, nil
		}
	}
}

// Close releases the object that is being read.
func (s *source) Close() error {
	s.object, s.frames = nil, nil
	return nil
}

// open goes on to the next object, or to the end.
func (s *source) open(ctx context.Context) (segment.Item, bool, error) {
	if s.ended {
		<-ctx.Done()
		return segment.Item{}, false, ctx.Err() //nolint:wrapcheck // Next does
	}
	saved := *s
	it, ok, err := s.advance(ctx)
	if err == nil && it.Cause == segment.LostMissing {
		// Only who holds the register knows that nobody else has read and deleted what is not there.
		err = s.hold(ctx)
	}
	if err != nil {
		*s = saved
		return segment.Item{}, false, err
	}
	if it.Lost != (segment.Totals{}) {
		s.tellLost(&it)
	}
	return it, ok, nil
}

// advance is open, before what is missing is believed.
func (s *source) advance(ctx context.Context) (segment.Item, bool, error) {
	if !s.pos.Before(s.end) {
		return s.finish(), true, nil
	}
	o, err := s.listing.peek(ctx, s)
	if err != nil {
		return segment.Item{}, false, err
	}
	if o == nil || !o.begin().Before(s.end) {
		return s.finish(), true, nil
	}
	data, err := s.get(ctx, o.key.String())
	if errors.Is(err, objstore.ErrNotFound) { // it was listed
		if err := s.hold(ctx); err != nil {
			return segment.Item{}, false, err
		}
		s.log.Error("object of another owner is missing", zap.Stringer("key", o.key))
		s.listing.take()
		s.pass(o, segment.LostMissing)
		return segment.Item{Next: s.pos}, true, nil
	}
	if err != nil {
		return segment.Item{}, false, err
	}
	object, err := segment.ReadObject(data, s.lane, segment.Seq(o.key.Seq))
	if err != nil {
		return segment.Item{}, false, fmt.Errorf("object %s: %w", o.key, err)
	}
	s.listing.take()
	if !object.Whole {
		s.damaged(o, object, data)
	}
	it, ok := s.begin(o, object)
	return it, ok, nil
}

// get reads an object whole.
func (s *source) get(ctx context.Context, key string) (data []byte, err error) {
	obj, err := s.bucket.Get(ctx, key, objstore.GetOptions{})
	if err != nil {
		return nil, err //nolint:wrapcheck // it says which object
	}
	defer func() { err = errors.Join(err, obj.Body.Close()) }()
	if obj.SizeBytes > segment.MaxObjectBytes {
		return nil, fmt.Errorf("object %s of %d bytes, at most %d: %w", key, obj.SizeBytes, int64(segment.MaxObjectBytes), objstore.ErrInvalid)
	}
	data = make([]byte, obj.SizeBytes)
	n, err := io.ReadFull(told{obj.Body, s.read}, data)
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		return nil, fmt.Errorf("read object %s: %w", key, err)
	}
	return data[:n], nil
}

// told is a reader that tells of each read, so that a slow one is not taken for one that hangs.
type told struct {
	io.Reader
	read func()
}

func (t told) Read(p []byte) (int, error) {
	n, err := t.Reader.Read(p)
	t.read()
	return n, err //nolint:wrapcheck // io.EOF is compared
}

// pass moves to the end of an object, over what could not be read of it.
func (s *source) pass(o *ref, why segment.Cause) {
	to := o.end()
	if s.end.Before(to) {
		to = s.end
	}
	if !s.pos.Before(to) {
		return
	}
	if from := max(s.pos.Entry, segment.Entry(o.key.First)); s.pos.Seq == to.Seq {
		s.skip(uint64(to.Entry-from), why)
	} else {
		s.skip(uint64(o.key.Last-o.key.First)+1, why)
	}
	s.pos = to
}

// skip notes that frames were passed that could not be read.
func (s *source) skip(frames uint64, why segment.Cause) {
	if frames == 0 {
		return
	}
	s.holes += frames
	if s.gap != segment.LostCorrupt { // of two causes the one that somebody can look at
		s.gap = why
	}
}

// begin starts with an object, and counts what is lost before its first frame, if that shows.
func (s *source) begin(o *ref, object *segment.Object) (segment.Item, bool) {
	if first := o.begin(); s.pos.Before(first) {
		if s.pos.Seq == first.Seq {
			s.skip(uint64(first.Entry-s.pos.Entry), segment.LostMissing)
		}
		s.pos = first
	}
	frames, passed := object.Frames, segment.Totals{}
	for len(frames) > 0 && frames[0].Position.Before(s.pos) {
		passed = passed.Add(frames[0].Totals())
		frames = frames[1:]
	}
	s.ref, s.object, s.frames = *o, object, frames
	if object.Before == nil || len(frames) == 0 || !frames[0].Position.Before(s.end) {
		return segment.Item{}, false
	}
	if uint64(frames[0].Position.Entry-object.Frames[0].Position.Entry) != passed.Frames {
		return segment.Item{}, false // some of those that were passed are damaged: what they held does not show
	}
	s.skipTo(frames[0].Position)
	return s.compare(object.Before.Add(passed), segment.LostMissing)
}

// skipTo passes frame numbers of an object that are damaged.
func (s *source) skipTo(at segment.Position) {
	if s.pos.Seq == at.Seq && s.pos.Entry < at.Entry {
		s.skip(uint64(at.Entry-s.pos.Entry), segment.LostCorrupt)
		s.pos = at
	}
}

// compare goes on from totals that are known, and tells of what is lost: by them, or by numbers where only their difference to
// others would tell.
func (s *source) compare(at segment.Totals, why segment.Cause) (segment.Item, bool) {
	lost := at.Sub(s.sum)
	if !s.exact {
		lost.Frames, lost.Bytes = s.holes, 0
	}
	it := segment.Item{Next: s.pos, Lost: lost}
	if lost != (segment.Totals{}) {
		it.Cause = cmp.Or(s.gap, why)
	}
	s.sum, s.exact, s.holes, s.gap = at, true, 0, ""
	return it, it.Cause != ""
}

func (s *source) tellLost(it *segment.Item) {
	s.log.Error("records of another owner are lost", zap.String("cause", string(it.Cause)), zap.Stringer("before", it.Next),
		zap.Uint64("frames", it.Lost.Frames), zap.Any("records", it.Lost.Records))
}

// damaged reports what is damaged in an object, and keeps it: the object will go.
func (s *source) damaged(o *ref, object *segment.Object, data []byte) {
	key := o.key.String()
	for _, d := range object.Damage {
		d.Path = key
		s.log.Error("damage in an object", zap.Stringer("damage", d))
	}
	if len(object.Damage) == 0 {
		s.log.Error("object is not as it was written", zap.String("key", key))
	}
	if s.keep == nil {
		return
	}
	if err := s.keep(key, data, object.Damage); err != nil {
		s.log.Warn("damaged object not kept", zap.String("key", key), zap.Error(err))
	}
}

// step returns the next frame of the object, or leaves it.
func (s *source) step() (segment.Item, bool) {
	if len(s.frames) == 0 || !s.frames[0].Position.Before(s.end) {
		return s.leave()
	}
	f := s.frames[0]
	s.frames = s.frames[1:]
	s.skipTo(f.Position)
	s.sum = s.sum.Add(f.Totals())
	s.pos = f.Position.After()
	return segment.Item{Frame: &f, Next: s.pos}, true
}

// leave ends an object: its totals tell what is lost of it.
func (s *source) leave() (segment.Item, bool) {
	from, cut := s.pos, len(s.frames) > 0 // cut: the rest is not ours
	o, object := s.ref, s.object
	s.object, s.frames = nil, nil
	s.gone(o)
	s.pass(&o, segment.LostCorrupt)
	if cut || object.After == nil {
		return segment.Item{Next: s.pos}, s.pos != from
	}
	it, lost := s.compare(*object.After, segment.LostCorrupt)
	if lost {
		s.tellLost(&it)
	}
	return it, lost || s.pos != from
}

// finish goes to the end of what is owed: what the register counts and no object held is lost.
func (s *source) finish() segment.Item {
	lost := segment.Totals{Frames: s.holes}
	if s.known {
		lost.Records = s.want.Sub(s.sum.Records)
	}
	if s.pos.Seq == s.end.Seq && s.pos.Before(s.end) {
		lost.Frames += uint64(s.end.Entry - s.pos.Entry)
	}
	s.ended = true
	if s.pos.Before(s.end) {
		s.pos = s.end
	}
	it := segment.Item{Next: s.pos, Lost: lost}
	if lost != (segment.Totals{}) {
		it.Cause = cmp.Or(s.gap, segment.LostMissing)
	}
	return it
}

// listing reads the keys of a lane's objects, a page at a time.
type listing struct {
	begun bool
	after string // only keys behind it: those of the segments in which the lane is read, and of later ones
	token string
	refs  []ref
}

// peek returns the first object that ends behind where the source stands; nil: there is none.
func (l *listing) peek(ctx context.Context, s *source) (*ref, error) {
	for {
		for len(l.refs) > 0 {
			o := &l.refs[0]
			if s.pos.Before(o.end()) {
				return o, nil
			}
			l.take()
		}
		if l.begun && l.token == "" {
			return nil, nil //nolint:nilnil // there is none
		}
		prefix := objstore.LanePrefix(s.owner, s.lane.String())
		if !l.begun {
			l.after = prefix + s.pos.Seq.String()
		}
		page, err := s.bucket.List(ctx, objstore.ListOptions{Prefix: prefix, After: l.after, Token: l.token})
		if err != nil {
			return nil, fmt.Errorf("list %s: %w", prefix, err)
		}
		l.begun, l.token = true, page.Next
		for _, info := range page.Objects {
			if o, err := readRef(info.Key); err == nil {
				l.refs = append(l.refs, o)
			}
		}
	}
}

// take drops the first object.
func (l *listing) take() { l.refs = l.refs[1:] }
