package segment

import (
	"errors"
	"fmt"
	"time"
)

// EncodeObject returns frames of one birth segment, in order, as a segment of their own under their birth numbers. note is a
// text for people, kept in the header (why a dead letter is one).
func EncodeObject(frames []Frame, note string, created time.Time) ([]byte, error) {
	if len(frames) == 0 {
		return nil, errors.New("encode object: no frames")
	}
	b := Batch{
		Header: Header{Birth: frames[0].ID.Birth, Created: created.UTC(), Note: note, salt: newSalt()},
		Frames: make([]Frame, len(frames)),
	}
	for i, f := range frames {
		if f.ID.Birth != b.Header.Birth {
			return nil, fmt.Errorf("encode object: frame %s is not of segment %s", f.ID, b.Header.Seq)
		}
		f.Position = Position{f.ID.Seq, f.ID.Number}
		b.Frames[i], b.After = f, b.After.Add(f.Totals())
	}
	return EncodeRange(&b)
}

// DecodeObject is the inverse of EncodeObject. It fails unless the object is whole.
func DecodeObject(b []byte, birth Birth) (frames []Frame, note string, err error) {
	o, err := ReadObject(b, birth.Lane, birth.Seq)
	switch {
	case err != nil:
		return nil, "", err
	case len(o.Damage) > 0:
		return nil, "", fmt.Errorf("decode object: %w", damaged("%s", o.Damage[0]))
	case !o.Whole:
		return nil, "", fmt.Errorf("decode object: %w", damaged("not closed by its footer"))
	}
	return o.Frames, o.Header.Note, nil
}
