package export

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"sync"

	"ingest-agent/segment"
	"ingest-agent/segment/vfs"
)

// maxDeadLetterBytes is above the size of any dead letter: one frame, and what it is wrapped in.
const maxDeadLetterBytes = segment.MaxBodyBytes + 1<<20

// DeadReplay is a pass over the dead letters of one destination that were there when it began: the source, the cursor and the
// dead letter of a drain. A dead letter is removed when the drain has passed it, that is after the sink's success, and
// stays in its place if it was refused again. Where only some of its records were, those become dead letters of their own
// before it is removed.
//
// Commit point: that of DeadLetters' ledger. A crash between the sink's success and it sends again.
type DeadReplay struct {
	d           *DeadLetters
	destination string
	files       []deadFile // number i stands at position (i+1, 1)
	end         func()
	next        int // to be read
	passed      int // by the cursor

	mu     sync.Mutex
	stays  map[segment.Seq]bool // not to be removed
	counts DeadReplayCounts
	err    error
}

// DeadReplayCounts say what a replay came to.
type DeadReplayCounts struct {
	Delivered segment.Counts // records
	Rejected  segment.Counts // records, by partial success
	Refused   segment.Counts // records that were refused again, and stay
	Damaged   []string       // files that cannot be read, and stay
}

// Replay begins a pass over the dead letters of a destination; end is called when it has passed the last, or cannot go on.
// Nothing else may use d until then but SetAside.
func (d *DeadLetters) Replay(destination string, end func()) *DeadReplay {
	<-d.turn
	defer func() { d.turn <- struct{}{} }()
	r := &DeadReplay{d: d, destination: destination, end: end, stays: map[segment.Seq]bool{}}
	for _, f := range d.queue {
		if f.lane.destination == destination {
			r.files = append(r.files, f)
		}
	}
	if len(r.files) == 0 {
		end()
	}
	return r
}

// Counts are what the pass came to so far. The error is why it could not go on.
func (r *DeadReplay) Counts() (DeadReplayCounts, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.counts, r.err
}

// Next implements segment.Source. Behind the last dead letter it waits for the end of ctx.
func (r *DeadReplay) Next(ctx context.Context) (segment.Item, error) {
	if r.next == len(r.files) {
		<-ctx.Done()
		return segment.Item{}, ctx.Err()
	}
	f, err := r.read(&r.files[r.next])
	at := segment.Position{Seq: segment.Seq(r.next + 1), Entry: 1}
	it := segment.Item{Next: at.NextSegment()}
	switch {
	case err == nil:
		f.Position = at
		it.Frame = f
	case errors.Is(err, fs.ErrNotExist): // deleted by people
	case ctx.Err() != nil:
		return segment.Item{}, ctx.Err()
	default:
		r.mu.Lock()
		r.stays[at.Seq] = true
		r.counts.Damaged = append(r.counts.Damaged, fmt.Sprintf("%s: %v", r.files[r.next].path(), err))
		r.mu.Unlock()
	}
	r.next++
	return it, nil
}

// Close implements segment.Source.
func (r *DeadReplay) Close() error { return nil }

func (r *DeadReplay) read(f *deadFile) (*segment.Frame, error) {
	object, err := vfs.ReadFile(r.d.opts.FS, f.path(), maxDeadLetterBytes)
	if err != nil {
		return nil, err
	}
	lane, err := segment.ParseLaneID(filepath.Base(f.lane.dir))
	if err != nil {
		return nil, err
	}
	owner, err := segment.ParseOwnerID(f.lane.owner)
	if err != nil {
		return nil, err
	}
	frames, _, err := segment.DecodeObject(object, segment.Birth{Owner: owner, Lane: lane, Seq: f.seq})
	if err != nil {
		return nil, err
	}
	if len(frames) != 1 || frames[0].Records != f.records || frames[0].Signal != f.signal {
		return nil, errors.New("holds something else than its name says")
	}
	return &frames[0], nil
}

// SetAside implements segment.DeadLetter.
func (r *DeadReplay) SetAside(ctx context.Context, f *segment.Frame, cause string) error {
	whole := f.First == 0
	if !whole {
		if err := r.d.SetAside(ctx, f, cause); err != nil {
			return err
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if whole {
		r.stays[f.Position.Seq] = true
	}
	r.counts.Refused = r.counts.Refused.Add(f.Signal.Of(uint64(f.Records)))
	return nil
}

// Advance implements segment.Cursor: it takes out what was passed. After an error it takes out nothing more: what is left
// is sent again by the next replay.
func (r *DeadReplay) Advance(p *segment.Progress) {
	r.mu.Lock()
	defer r.mu.Unlock()
	to := int(p.To.Seq) - 1 // the number of the first that was not passed
	if r.err != nil || to <= r.passed {
		return
	}
	var out []deadFile
	for i := r.passed; i < to; i++ {
		if seq := segment.Seq(i + 1); r.stays[seq] {
			delete(r.stays, seq)
		} else {
			out = append(out, r.files[i])
		}
	}
	n := DeadTotals{Delivered: p.Ledger.Delivered, Rejected: p.Ledger.Rejected}
	if r.err = r.d.takeOut(r.destination, n, out); r.err != nil {
		r.end()
		return
	}
	r.passed = to
	r.counts.Delivered = r.counts.Delivered.Add(n.Delivered)
	r.counts.Rejected = r.counts.Rejected.Add(n.Rejected)
	if r.passed == len(r.files) {
		r.end()
	}
}

// takeOut removes files whose records were sent again.
func (d *DeadLetters) takeOut(destination string, n DeadTotals, files []deadFile) error {
	<-d.turn
	defer func() { d.turn <- struct{}{} }()
	if len(files) == 0 {
		return nil
	}
	names := make([]string, len(files))
	for i := range files {
		names[i] = d.name(&files[i])
	}
	if err := d.removeNamed(); err != nil { // of a step that failed, perhaps another destination's: its names must not be lost
		return fmt.Errorf("take out dead letters: %w", err)
	}
	if err := d.book(destination, n, names...); err != nil {
		return fmt.Errorf("take out dead letters: %w", err)
	}
	if err := d.removeNamed(); err != nil {
		return fmt.Errorf("take out dead letters: %w", err)
	}
	for _, f := range files {
		if i := slices.Index(d.queue, f); i >= 0 {
			d.drop(i)
		}
		d.removeEmpty(f.lane)
	}
	return nil
}

// drop takes number i of the queue out of the index.
func (d *DeadLetters) drop(i int) {
	f := d.queue[i]
	if i == 0 {
		d.forget(f)
		return
	}
	d.queue = slices.Delete(d.queue, i, i+1)
	d.bytes -= f.bytes
	f.lane.files--
	d.count(f, -1)
}
