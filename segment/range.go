package segment

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"
)

// State is where a lane stands at one moment.
type State struct {
	Exported Position
	Saved    Position // Exported as it would be found after a crash
	Out      Totals   // of all frames before Exported
	Tail     Position
	In       Totals // of all durable frames
	// Oldest is the receive time of the first pending frame as far as the drain knows; zero: nothing is pending, or not known.
	Oldest time.Time
	// Spilled is up to where segments may be in the bucket instead of on the disk.
	Spilled Position
	// Skip is up to where frames are another owner's duty, and SkipFrom where the cursor stood when that was said.
	Skip, SkipFrom Position
}

// Batch is a run of durable frames of one segment, in order: what becomes one object in a bucket.
type Batch struct {
	Header Header  // of the segment in which they are stored
	Frames []Frame // at least one; bodies are read-only. Each has its Position and its birth id
	Next   Position
	Before Totals // of the lane before the first frame
	After  Totals // of the lane before Next
}

// First and Last are the numbers of the first and the last frame in their segment.
func (b *Batch) First() Entry { return b.Frames[0].Position.Entry }

// Last is the number of the last frame in its segment.
func (b *Batch) Last() Entry { return b.Frames[len(b.Frames)-1].Position.Entry }

// Part returns the frames from to to of the batch, counted from 0 and without the last, as a batch of their own. There is at
// least one.
func (b *Batch) Part(from, to int) *Batch {
	p := &Batch{Header: b.Header, Frames: b.Frames[from:to], Before: b.Before, Next: b.Next, After: b.After}
	for i := range b.Frames[:from] {
		p.Before = p.Before.Add(b.Frames[i].Totals())
	}
	if to == len(b.Frames) {
		return p
	}
	p.Next, p.After = p.Frames[to-from-1].Position.After(), p.Before
	for i := range p.Frames {
		p.After = p.After.Add(p.Frames[i].Totals())
	}
	return p
}

// Batch returns what could be read of an object as a batch; nil: nothing could. Totals that are damaged are counted from 0.
func (o *Object) Batch() *Batch {
	n := len(o.Frames)
	if n == 0 {
		return nil
	}
	b := &Batch{Header: o.Header, Frames: o.Frames, Next: o.Frames[n-1].Position.After()}
	if o.Before != nil {
		b.Before = *o.Before
	}
	b.After = b.Before
	for i := range o.Frames {
		b.After = b.After.Add(o.Frames[i].Totals())
	}
	return b
}

// EncodeRange returns a batch as a segment of its own: header, frames, footer. The bytes depend on the batch only, so that
// an upload whose outcome is not known is repeated with the same.
func EncodeRange(b *Batch) ([]byte, error) {
	head, err := b.Header.frame()
	if err != nil {
		return nil, err
	}
	enc := blockEncoder{}
	block, sum := enc.encode(blockHeader{salt: b.Header.salt}, []storedFrame{head}, 0)
	out := appendEntry(nil, block)
	stored := make([]storedFrame, len(b.Frames))
	for i := range b.Frames {
		f := &b.Frames[i]
		stored[i] = storedFrame{
			kind: kindData, signal: f.Signal, flags: f.Flags & storableFlags, salt: b.Header.salt, entry: f.Position.Entry,
			records: f.Records, received: f.Received.UnixNano(), tenant: f.Tenant, body: f.Body,
		}
		if f.ID.Birth != b.Header.Birth || f.ID.Number != f.Position.Entry {
			id := f.ID
			stored[i].birth = &id
		}
	}
	block, sum = enc.encode(blockHeader{salt: b.Header.salt, before: &b.Before}, stored, sum)
	out = appendEntry(slices.Grow(out, len(block)+segmentRoomBytes), block)
	footer, err := encodeFooter(&Footer{Header: b.Header, Frames: uint32(len(b.Frames)), Checksum: sum, Totals: b.After}, b.Last())
	if err != nil {
		return nil, err
	}
	return appendEntry(out, footer), nil
}

// MaxObjectBytes bounds a segment object: one frame, or a batch of 8 MiB, with what is around them.
const MaxObjectBytes = MaxBodyBytes + 8<<20

// Object is what a segment object of a bucket holds.
type Object struct {
	Header Header
	Frames []Frame // what can be read, in order; bodies alias the object's bytes
	// Before are the lane's totals before the first frame, and After behind the last; nil where that part is damaged.
	Before, After *Totals
	Damage        []Damage // Path is not set
	Whole         bool
}

// ReadObject reads the bytes of a segment object of a lane. What is damaged is passed, and reported. The only error is
// ErrVersion.
func ReadObject(data []byte, lane LaneID, seq Seq) (*Object, error) {
	footer, err := readFooter(bytes.NewReader(data), int64(len(data)))
	if err != nil {
		return nil, err
	}
	var second *Header
	if footer != nil && footer.Lane == lane && footer.Seq == seq {
		second = &footer.Header
	}
	sc := newScanner(bytes.NewReader(data), int64(len(data)), lane, seq, second)
	o := &Object{}
	for {
		it, err := sc.next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("read object: %w", err)
		}
		switch it.kind {
		case itemFooter:
			after := it.footer.Totals
			o.After = &after
		case itemDamage:
			o.Damage = append(o.Damage, Damage{From: it.offset, To: it.end, Reason: it.reason.Error(), Tail: it.tail})
		case itemFrame:
			if len(o.Frames) == 0 {
				o.Before = it.before
			}
			o.Frames = append(o.Frames, it.frame.frame(sc.hdr.Birth))
		}
	}
	if sc.hdr != nil {
		o.Header = *sc.hdr
	}
	o.Whole = sc.whole() && len(o.Damage) == 0
	return o, nil
}
