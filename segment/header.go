package segment

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"
)

// Header opens a segment: where its frames are born.
type Header struct {
	Birth
	Created time.Time `json:"created"`
	Note    string    `json:"note,omitempty"` // for people
	salt    uint64
}

// Footer closes a sealed segment, so that one that was cut is noticed.
type Footer struct {
	Header
	Frames   uint32           `json:"frames"`   // data frames
	Checksum uint32           `json:"checksum"` // over the checksums of all frames before it, in order
	Totals   Totals           `json:"totals"`   // of the lane, after the last frame
	Tenants  map[string]int64 `json:"tenants,omitempty"`
}

const (
	// maxMetaBytes bounds the bodies of header and footer frames.
	maxMetaBytes = 1 << 20
	// maxFooterTenants bounds the table of tenants; what lies beyond is summed under the name "".
	maxFooterTenants = 1000

	// segmentRoomBytes bounds a segment's header and footer on disk, without the table of tenants.
	segmentRoomBytes = 1 << 10

	trailerBytes = 8 // at the end of a footer's body: length of its block, trailerMagic
)

var trailerMagic = [4]byte{0xF1, 'I', 'A', 'E'}

// tenantRoomBytes bounds what a tenant takes in a footer's table: a name of which each byte is escaped, and a number.
func tenantRoomBytes(tenant string) int64 { return int64(6*len(tenant)) + 24 }

func (h *Header) frame() (storedFrame, error) {
	body, err := json.Marshal(h)
	if err != nil {
		return storedFrame{}, fmt.Errorf("encode segment header: %w", err)
	}
	return storedFrame{kind: kindHeader, salt: h.salt, received: h.Created.UnixNano(), body: body}, nil
}

func (f *storedFrame) header() (*Header, error) {
	if len(f.body) > maxMetaBytes {
		return nil, damaged("segment header of %d bytes", len(f.body))
	}
	h := &Header{salt: f.salt}
	if err := json.Unmarshal(f.body, h); err != nil {
		return nil, damaged("segment header: %v", err)
	}
	return h, nil
}

// encodeFooter returns the block that closes a segment.
func encodeFooter(f *Footer, last Entry) ([]byte, error) {
	body, err := json.Marshal(f)
	if err != nil {
		return nil, fmt.Errorf("encode segment footer: %w", err)
	}
	body = append(body, make([]byte, trailerBytes)...)
	copy(body[len(body)-4:], trailerMagic[:])
	sf := storedFrame{kind: kindFooter, salt: f.salt, entry: last + 1, body: body}
	order.PutUint32(body[len(body)-trailerBytes:], uint32(blockHeaderBytes+sf.size()))
	enc := blockEncoder{}
	block, _ := enc.encode(blockHeader{salt: f.salt, before: &f.Totals}, []storedFrame{sf}, 0)
	return block, nil
}

func (f *storedFrame) footer() (*Footer, error) {
	if len(f.body) > maxMetaBytes || len(f.body) < trailerBytes || [4]byte(f.body[len(f.body)-4:]) != trailerMagic {
		return nil, damaged("segment footer of %d bytes", len(f.body))
	}
	ft := &Footer{}
	if err := json.Unmarshal(f.body[:len(f.body)-trailerBytes], ft); err != nil {
		return nil, damaged("segment footer: %v", err)
	}
	ft.salt = f.salt
	return ft, nil
}

// readFooter finds the footer at the end of a sealed segment without reading the rest. It returns nil where there is none:
// the segment was not sealed, or its end is damaged or gone.
func readFooter(r io.ReaderAt, sizeBytes int64) (*Footer, error) {
	var tr [trailerBytes]byte
	if sizeBytes < blockHeaderBytes+frameHeaderBytes+trailerBytes {
		return nil, nil
	}
	if _, err := r.ReadAt(tr[:], sizeBytes-trailerBytes); err != nil {
		return nil, fmt.Errorf("read segment trailer: %w", err)
	}
	n := int64(order.Uint32(tr[:]))
	if [4]byte(tr[4:]) != trailerMagic || n < blockHeaderBytes+frameHeaderBytes+trailerBytes || n > min(sizeBytes, maxMetaBytes) {
		return nil, nil
	}
	b := make([]byte, n)
	if _, err := r.ReadAt(b, sizeBytes-n); err != nil {
		return nil, fmt.Errorf("read segment footer: %w", err)
	}
	footer, err := parseFooterBlock(b)
	if isDamaged(err) || errors.Is(err, ErrVersion) {
		return nil, nil // no footer that counts; the scan says what is there
	}
	return footer, err
}

// parseFooterBlock decodes a block that must hold a footer and nothing else.
func parseFooterBlock(b []byte) (*Footer, error) {
	bh, err := parseBlockHeader(b)
	if err != nil {
		return nil, err
	}
	if bh.storedLen != len(b)-blockHeaderBytes || bh.codec != CodecNone {
		return nil, damaged("footer block")
	}
	b = b[blockHeaderBytes:]
	fh, err := parseFrameHeader(b)
	if err != nil {
		return nil, err
	}
	if fh.size() != len(b) || fh.kind != kindFooter || fh.salt != bh.salt {
		return nil, damaged("footer frame")
	}
	sf, err := fh.parse(b)
	if err != nil {
		return nil, err
	}
	return sf.footer()
}

// newSalt returns the random number that marks the frames of one segment.
func newSalt() uint64 {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails
	return order.Uint64(b[:])
}
