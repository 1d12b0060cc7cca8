package segment

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"time"
)

// EncodeObject returns frames of one birth segment, in order, as a segment of their own: header, frames, footer. note is a
// text for people, kept in the header (why a dead letter is one).
func EncodeObject(frames []Frame, note string, created time.Time) ([]byte, error) {
	if len(frames) == 0 {
		return nil, errors.New("encode object: no frames")
	}
	hdr := Header{Birth: frames[0].ID.Birth, Created: created.UTC(), Note: note, salt: newSalt()}
	head, err := hdr.frame()
	if err != nil {
		return nil, err
	}
	enc := blockEncoder{}
	block, sum := enc.encode(blockHeader{salt: hdr.salt}, []storedFrame{head}, 0)
	out := appendEntry(nil, block)
	stored := make([]storedFrame, len(frames))
	var totals Totals
	for i := range frames {
		f := &frames[i]
		if f.ID.Birth != hdr.Birth {
			return nil, fmt.Errorf("encode object: frame %s is not of segment %s", f.ID, hdr.Seq)
		}
		stored[i] = storedFrame{
			kind: kindData, signal: f.Signal, flags: f.Flags & storableFlags, salt: hdr.salt, entry: f.ID.Number,
			records: f.Records, received: f.Received.UnixNano(), tenant: f.Tenant, body: f.Body,
		}
		totals = totals.Add(f.totals())
	}
	block, sum = enc.encode(blockHeader{salt: hdr.salt, before: &Totals{}}, stored, sum)
	out = appendEntry(out, block)
	footer, err := encodeFooter(&Footer{Header: hdr, Frames: uint32(len(frames)), Checksum: sum, Totals: totals}, frames[len(frames)-1].ID.Number)
	if err != nil {
		return nil, err
	}
	return appendEntry(out, footer), nil
}

// DecodeObject is the inverse of EncodeObject. It fails unless the object is whole.
func DecodeObject(b []byte, birth Birth) (frames []Frame, note string, err error) {
	sc := newScanner(bytes.NewReader(b), int64(len(b)), birth.Lane, birth.Seq, nil)
	for {
		it, err := sc.next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, "", fmt.Errorf("decode object: %w", err)
		}
		switch it.kind {
		case itemFooter:
		case itemDamage:
			return nil, "", fmt.Errorf("decode object: bytes %d to %d: %w", it.offset, it.end, it.reason)
		case itemFrame:
			frames = append(frames, it.frame.frame(sc.hdr.Birth))
		}
	}
	if !sc.whole() {
		return nil, "", fmt.Errorf("decode object: %w", damaged("not closed by its footer"))
	}
	return frames, sc.hdr.Note, nil
}
