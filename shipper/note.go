package shipper

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"

	"ingest-agent/segment"
	"ingest-agent/segment/vfs"
)

const (
	// noteFormat is the version of the note's text form.
	noteFormat = 1
	// maxNoteBytes bounds the note: some hundred bytes for each lane of the few ids that it names.
	maxNoteBytes = 4 << 20
	// notePerm are the permissions of the note.
	notePerm = 0o640
	// damagedSuffix is added to the name of a note that cannot be read.
	damagedSuffix = ".damaged"
)

// errLaterNote: a later version of the program has written the note. It is left as it is.
var errLaterNote = errors.New("written by a later version of the program")

// noteData is what the data directory says about ids under which its frames may lie in the bucket.
type noteData struct {
	Format int `json:"format"`
	// Owner is the present shipping id, and Lanes are those of which it may have shipped something. None: nothing was shipped.
	Owner segment.OwnerID  `json:"owner"`
	Lanes []segment.LaneID `json:"lanes"`
	// Earlier ids may have shipped something and are not handed over yet.
	Earlier []earlierID `json:"earlier,omitempty"`
	// Skip is up to where frames are another owner's duty, until a saved cursor is there.
	Skip map[segment.LaneID]segment.Position `json:"skip,omitempty"`
}

// earlierID is an id of an earlier process of this disk.
type earlierID struct {
	Owner segment.OwnerID  `json:"owner"`
	Lanes []segment.LaneID `json:"lanes"`
	// Ends are behind the last frame of each lane that the id can have held on this disk: the first segment number of the
	// first process after it. nil: no process after it has come so far. A lane that is missing held nothing.
	Ends map[segment.LaneID]segment.Position `json:"ends,omitempty"`
}

func (d *noteData) clone() noteData {
	c := *d
	c.Lanes = slices.Clone(d.Lanes)
	c.Earlier = slices.Clone(d.Earlier)
	c.Skip = maps.Clone(d.Skip)
	if c.Skip == nil {
		c.Skip = map[segment.LaneID]segment.Position{}
	}
	return c
}

// note is the file of a noteData. One goroutine uses it.
//
// Commit point: the rename of the written and synced file.
type note struct {
	fs   vfs.FS
	path string
	data noteData
}

// openNote reads the note. What the last process left as its present id is an earlier one now. A note that cannot be decoded
// is set aside, which is said by damaged; errors are the disk's, or errLaterNote.
func openNote(fsys vfs.FS, path string) (n *note, damaged bool, err error) {
	n = &note{fs: fsys, path: path}
	text, err := vfs.ReadFile(fsys, path, maxNoteBytes)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return n, false, nil
	case errors.Is(err, vfs.ErrTooLarge):
		damaged = true
	case err != nil:
		return nil, false, fmt.Errorf("read note of shipping: %w", err)
	default:
		var d noteData
		if damaged = json.Unmarshal(text, &d) != nil || d.Format < noteFormat; !damaged && d.Format > noteFormat {
			return nil, false, fmt.Errorf("read note of shipping %s: format %d: %w", path, d.Format, errLaterNote)
		}
		n.data = d
	}
	if damaged {
		n.data = noteData{}
		if err := fsys.Rename(path, path+damagedSuffix); err != nil {
			return nil, true, fmt.Errorf("set aside damaged note of shipping: %w", err)
		}
		return n, true, nil
	}
	if len(n.data.Lanes) > 0 {
		n.data.Earlier = append(n.data.Earlier, earlierID{Owner: n.data.Owner, Lanes: n.data.Lanes})
	}
	n.data.Owner, n.data.Lanes = segment.OwnerID{}, nil
	return n, false, nil
}

// replace makes d the content of the note. After an error the file holds the old content or the new one.
func (n *note) replace(d noteData) error {
	d.Format = noteFormat
	text, err := json.Marshal(&d)
	if err != nil {
		return fmt.Errorf("encode note of shipping: %w", err)
	}
	if err := vfs.WriteFileAtomic(n.fs, n.path, text, notePerm); err != nil {
		return fmt.Errorf("write note of shipping: %w", err)
	}
	n.data = d
	return nil
}
