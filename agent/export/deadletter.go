package export

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"ingest-agent/segment"
	"ingest-agent/segment/vfs"
)

// diskBlockBytes is what the space of a file is counted in. Counted by length, many small frames would take several times
// the limit on disk, and their number, which is also memory here, would have no bound worth the name.
const diskBlockBytes = 4 << 10

// DeadLetterOptions say where refused frames are kept.
type DeadLetterOptions struct {
	FS        vfs.FS
	Directory string // created with the first frame
	MaxBytes  int64  // space on disk in whole blocks of 4 KiB; 0 keeps nothing
	// Encode makes the object that is stored for a frame, cause included.
	Encode func(f segment.Frame, cause string) ([]byte, error)
	// OnEvict is told what was deleted to make room, after it was deleted: it counts as lost with cause dead_letter_full. It is called within SetAside, by one goroutine at a time. May be nil.
	OnEvict func(DeadCount)
}

// DeadCount counts the dead letters of one destination and signal.
type DeadCount struct {
	Destination string
	Signal      segment.Signal
	Frames      uint64
	Records     uint64
	Bytes       int64 // on disk, in whole blocks
}

// DeadLetters keeps frames that a destination refused, each in a file of its own:
//
//	<dir>/<owner>/<lane>/<seq>-<number>-<part>.<signal>.<records>.seg
//
// Owner, lane, seq and number are the frame's id, part is a digest of the body, so that the parts of a frame that was split
// are kept apart while the same part set aside again, as after a crash, is kept once. Records and signal are in the name so
// that what is kept and what is evicted can be counted without reading it, and if it is damaged.
//
// It assumes that no other process adds to the directory. Files may be deleted from it at any time; that is how they are
// taken out after they were sent again.
type DeadLetters struct {
	opts DeadLetterOptions
	turn chan struct{} // holds one token; its holder alone touches the disk and the fields below

	lanes map[string]*deadLane // by directory
	queue []deadFile           // in the order of being set aside; those found at start in the order of birth, before them
	bytes int64

	mu     sync.Mutex // guards what is read at any time
	counts map[deadKey]DeadCount
	ledger deadLedger // as it is on disk; written by the holder of turn alone
}

type deadKey struct {
	destination string
	signal      segment.Signal
}

// deadLane is a directory of dead letters.
type deadLane struct {
	dir         string
	owner       string
	destination string
	files       int
	durable     bool // made and synced in its parents by this process
}

// OpenDeadLetters counts what is there; it reads names and sizes only.
func OpenDeadLetters(o DeadLetterOptions) (*DeadLetters, error) {
	d := &DeadLetters{opts: o, turn: make(chan struct{}, 1), lanes: map[string]*deadLane{}, counts: map[deadKey]DeadCount{}}
	if err := d.loadLedger(); err != nil {
		return nil, fmt.Errorf("settle ledger of dead letters: %w", err)
	}
	if err := d.load(); err != nil {
		return nil, fmt.Errorf("list dead letters: %w", err)
	}
	d.turn <- struct{}{}
	return d, nil
}

// Counts are the dead letters kept, one item for each destination and signal that has some, in no order.
func (d *DeadLetters) Counts() []DeadCount {
	d.mu.Lock()
	defer d.mu.Unlock()
	all := make([]DeadCount, 0, len(d.counts))
	for _, c := range d.counts {
		all = append(all, c)
	}
	return all
}

// SetAside implements segment.DeadLetter. It makes room first if need be. A frame that is larger than all the room there
// is is reported to OnEvict at once and not kept: no later try could keep it, and its lane must go on.
func (d *DeadLetters) SetAside(ctx context.Context, f *segment.Frame, cause string) error {
	select {
	case <-d.turn:
		defer func() { d.turn <- struct{}{} }()
	case <-ctx.Done():
		return fmt.Errorf("set aside frame %v: %w", f.ID, context.Cause(ctx))
	}
	if err := d.setAside(f, cause); err != nil {
		return fmt.Errorf("set aside frame %v: %w", f.ID, err)
	}
	return nil
}

func (d *DeadLetters) setAside(f *segment.Frame, cause string) error {
	lane := d.lane(f.ID.Owner.String(), f.ID.Lane)
	file := newDeadFile(lane, f)
	if there, err := d.exists(file.path()); err != nil {
		return err
	} else if there {
		return d.opts.FS.SyncDir(lane.dir) // the try that put it there may have failed behind the rename
	}
	object, err := d.opts.Encode(*f, cause)
	if err != nil {
		return fmt.Errorf("encode: %w", err)
	}
	file.bytes = diskBytes(int64(len(object)))
	if file.bytes > d.opts.MaxBytes {
		if err := d.bookEviction(&file, false); err != nil {
			return err
		}
		d.evicted(file)
		return nil
	}
	if err := d.keepAgain(&file); err != nil {
		return err
	}
	if err := d.makeRoom(file.bytes); err != nil {
		return fmt.Errorf("make room: %w", err)
	}
	if !lane.durable {
		if err := vfs.MkdirAll(d.opts.FS, lane.dir, dirPerm); err != nil {
			return err
		}
		lane.durable = true
	}
	writeErr := vfs.WriteFileAtomic(d.opts.FS, file.path(), object, filePerm)
	if writeErr != nil {
		lane.durable = false // somebody may have removed the directory
		if there, err := d.exists(file.path()); err != nil || !there {
			return errors.Join(writeErr, err)
		}
	}
	d.add(file)
	return writeErr
}

func (d *DeadLetters) exists(path string) (bool, error) {
	file, err := d.opts.FS.OpenFile(path, os.O_RDONLY, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	return true, file.Close()
}

// lane is the directory for a lane of an owner, whether it exists or not.
func (d *DeadLetters) lane(owner string, id segment.LaneID) *deadLane {
	dir := filepath.Join(d.opts.Directory, owner, id.String())
	lane := d.lanes[dir]
	if lane == nil {
		lane = &deadLane{dir: dir, owner: owner, destination: id.Destination}
		d.lanes[dir] = lane
	}
	return lane
}

// add counts a file that is in its directory.
func (d *DeadLetters) add(file deadFile) {
	d.queue = append(d.queue, file)
	d.bytes += file.bytes
	file.lane.files++
	d.count(file, 1)
}

// count adds a file to the counts, or takes it out with sign -1.
func (d *DeadLetters) count(file deadFile, sign int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	key := deadKey{file.lane.destination, file.signal}
	c := d.counts[key]
	c.Destination, c.Signal = key.destination, key.signal
	c.Frames += uint64(sign)
	c.Records += uint64(sign * int64(file.records))
	c.Bytes += sign * file.bytes
	if c.Frames == 0 {
		delete(d.counts, key)
		return
	}
	d.counts[key] = c
}

// makeRoom deletes the oldest files until need more bytes fit. One that is gone already was sent again or deleted by the
// operator, and is not reported.
func (d *DeadLetters) makeRoom(need int64) error {
	for len(d.queue) > 0 && d.bytes+need > d.opts.MaxBytes {
		file := d.queue[0]
		if there, err := d.exists(file.path()); err != nil {
			return err
		} else if there {
			if err := d.bookEviction(&file, true); err != nil {
				return err
			}
		}
		err := d.opts.FS.Remove(file.path())
		gone := errors.Is(err, fs.ErrNotExist)
		if err != nil && !gone { // it may be removed all the same; later that would look like somebody else's doing
			if there, existsErr := d.exists(file.path()); there || existsErr != nil {
				return errors.Join(err, existsErr)
			}
		}
		d.forget(file)
		if gone {
			continue
		}
		// A file that comes back after a crash would be counted twice: as lost, and as kept.
		err = d.opts.FS.SyncDir(file.lane.dir)
		d.evicted(file)
		if err != nil {
			return err
		}
		d.removeEmpty(file.lane)
	}
	return nil
}

// forget takes the oldest file, which is file, out of the index.
func (d *DeadLetters) forget(file deadFile) {
	d.queue[0] = deadFile{} // lets go of the lane while the slice lives on
	d.queue = d.queue[1:]
	d.bytes -= file.bytes
	file.lane.files--
	d.count(file, -1)
}

// evicted reports a file that is not kept.
func (d *DeadLetters) evicted(file deadFile) {
	if d.opts.OnEvict != nil {
		d.opts.OnEvict(DeadCount{Destination: file.lane.destination, Signal: file.signal, Frames: 1,
			Records: uint64(file.records), Bytes: file.bytes})
	}
}

// removeEmpty removes the directory of a lane that has no more files, and its owner's. Either fails if something is in it.
func (d *DeadLetters) removeEmpty(lane *deadLane) {
	if lane.files > 0 || d.opts.FS.Remove(lane.dir) != nil {
		return
	}
	lane.durable = false
	_ = d.opts.FS.Remove(filepath.Dir(lane.dir)) // other lanes of the owner may be there
}

func diskBytes(size int64) int64 {
	return (size + diskBlockBytes - 1) / diskBlockBytes * diskBlockBytes
}
