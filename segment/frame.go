package segment

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"time"
)

// The byte layout of frames is specified in docs/format.md. All integers are little-endian.
const (
	formatVersion = 1

	frameHeaderBytes = 48
	birthBytes       = 16 + 8 + 4 // owner, seq, number; the lane's text follows

	// MaxBodyBytes bounds a frame's body. It is the largest request size that a receiver can be configured to take.
	MaxBodyBytes = 64 << 20
	// MaxTenantBytes bounds a tenant's name.
	MaxTenantBytes = 255
	// maxLaneBytes bounds the text form of a lane: destination 63, shard 4, parked number and separators.
	maxLaneBytes = 96

	flagBirth     Flags = 1 << 7 // a birth id follows the tenant: the frame was not born in this segment
	storableFlags       = FlagInvalidUTF8
	knownFlags          = storableFlags | flagBirth
)

var (
	frameMagic = [4]byte{0xF1, 'I', 'A', 'F'}
	castagnoli = crc32.MakeTable(crc32.Castagnoli) // hardware CRC32C where the processor has it
	order      = binary.LittleEndian               //nolint:gochecknoglobals // the format's one byte order, by a short name
)

type frameKind uint8

const (
	kindData   frameKind = 1
	kindHeader frameKind = 2
	kindFooter frameKind = 3
)

// ErrVersion is returned for a format of a later version: it is left untouched, not treated as damage.
var ErrVersion = errors.New("format of a later version")

// errDamaged is the reason of everything else that does not decode.
var errDamaged = errors.New("damaged")

func damaged(format string, args ...any) error {
	return fmt.Errorf("%w: %s", errDamaged, fmt.Sprintf(format, args...))
}

// storedFrame is a frame as it lies in a segment.
type storedFrame struct {
	kind     frameKind
	signal   Signal
	flags    Flags
	salt     uint64
	entry    Entry
	records  uint32
	received int64 // ns since the Unix epoch
	tenant   string
	birth    *FrameID
	body     []byte
}

// size is the encoded length in bytes.
func (f *storedFrame) size() int {
	return frameHeaderBytes + len(f.tenant) + f.birthSize() + len(f.body)
}

func (f *storedFrame) birthSize() int {
	if f.birth == nil {
		return 0
	}
	return birthBytes + len(f.birth.Lane.String())
}

// appendTo appends the encoded frame to dst and returns it with the frame's checksum.
func (f *storedFrame) appendTo(dst []byte) ([]byte, uint32) {
	start := len(dst)
	dst = append(dst, frameMagic[:]...)
	flags := f.flags
	if f.birth != nil {
		flags |= flagBirth
	}
	dst = append(dst, formatVersion, byte(f.kind), byte(f.signal), byte(flags))
	dst = order.AppendUint64(dst, f.salt)
	dst = order.AppendUint32(dst, uint32(f.entry))
	dst = order.AppendUint32(dst, f.records)
	dst = order.AppendUint64(dst, uint64(f.received))
	dst = order.AppendUint32(dst, uint32(len(f.body)))
	dst = append(dst, byte(len(f.tenant)), 0)
	dst = order.AppendUint16(dst, uint16(f.birthSize()))
	dst = order.AppendUint32(dst, crc32.Checksum(dst[start:], castagnoli))
	sum := crc32.Checksum(dst[start:], castagnoli)
	at := len(dst)
	dst = append(dst, 0, 0, 0, 0)
	dst = append(dst, f.tenant...)
	if f.birth != nil {
		dst = append(dst, f.birth.Owner[:]...)
		dst = order.AppendUint64(dst, uint64(f.birth.Seq))
		dst = order.AppendUint32(dst, uint32(f.birth.Number))
		dst = append(dst, f.birth.Lane.String()...)
	}
	dst = append(dst, f.body...)
	sum = crc32.Update(sum, castagnoli, dst[at+4:])
	order.PutUint32(dst[at:], sum)
	return dst, sum
}

// frameHeader is the fixed part of a stored frame, verified by its own checksum, so that its lengths can be trusted before
// anything is read or allocated by them.
type frameHeader struct {
	storedFrame
	bodyLen, tenantLen, birthLen int
	sum                          uint32
}

func (h *frameHeader) size() int { return frameHeaderBytes + h.tenantLen + h.birthLen + h.bodyLen }

// parseFrameHeader decodes the first frameHeaderBytes of b, which must have that many.
func parseFrameHeader(b []byte) (h frameHeader, err error) {
	if [4]byte(b[:4]) != frameMagic {
		return h, damaged("no frame magic")
	}
	if order.Uint32(b[40:]) != crc32.Checksum(b[:40], castagnoli) {
		return h, damaged("frame header checksum")
	}
	if b[4] != formatVersion {
		return h, fmt.Errorf("frame version %d: %w", b[4], ErrVersion)
	}
	h.kind, h.signal, h.flags = frameKind(b[5]), Signal(b[6]), Flags(b[7])
	h.salt = order.Uint64(b[8:])
	h.entry = Entry(order.Uint32(b[16:]))
	h.records = order.Uint32(b[20:])
	h.received = int64(order.Uint64(b[24:]))
	h.bodyLen = int(order.Uint32(b[32:]))
	h.tenantLen = int(b[36])
	h.birthLen = int(order.Uint16(b[38:]))
	h.sum = order.Uint32(b[44:])
	switch {
	case b[37] != 0 || h.flags&^knownFlags != 0:
		return h, damaged("frame with unknown flags or reserved bytes")
	case h.kind < kindData || h.kind > kindFooter || h.kind == kindData && !h.signal.Valid():
		return h, damaged("frame kind %d, signal %d", b[5], b[6])
	case h.bodyLen > MaxBodyBytes:
		return h, damaged("frame body of %d bytes", h.bodyLen)
	case (h.flags&flagBirth != 0) != (h.birthLen > 0) || h.birthLen > birthBytes+maxLaneBytes || h.birthLen > 0 && h.birthLen <= birthBytes:
		return h, damaged("frame birth id of %d bytes", h.birthLen)
	}
	return h, nil
}

// parse completes h from b, the h.size() bytes of the whole frame. The body aliases b.
func (h *frameHeader) parse(b []byte) (f storedFrame, err error) {
	sum := crc32.Checksum(b[:44], castagnoli)
	if crc32.Update(sum, castagnoli, b[frameHeaderBytes:]) != h.sum {
		return f, damaged("frame checksum")
	}
	f = h.storedFrame
	f.flags &^= flagBirth
	at := frameHeaderBytes
	f.tenant = string(b[at : at+h.tenantLen])
	at += h.tenantLen
	if h.birthLen > 0 {
		birth := b[at : at+h.birthLen]
		lane, err := ParseLaneID(string(birth[birthBytes:]))
		if err != nil {
			return f, damaged("frame birth id: %v", err)
		}
		f.birth = &FrameID{
			Birth:  Birth{Owner: OwnerID(birth[:16]), Lane: lane, Seq: Seq(order.Uint64(birth[16:]))},
			Number: Entry(order.Uint32(birth[24:])),
		}
		at += h.birthLen
	}
	f.body = b[at:len(b):len(b)]
	return f, nil
}

// frame turns a stored data frame into one with its place and identity.
func (f *storedFrame) frame(in Birth) Frame {
	id := FrameID{Birth: in, Number: f.entry}
	if f.birth != nil {
		id = *f.birth
	}
	return Frame{
		ID:       id,
		Position: Position{in.Seq, f.entry},
		Signal:   f.signal,
		Flags:    f.flags,
		Tenant:   f.tenant,
		Received: time.Unix(0, f.received),
		Records:  f.records,
		Body:     f.body,
	}
}

// isDamaged reports whether err is about bytes that do not decode, not about a disk that does not answer.
func isDamaged(err error) bool { return errors.Is(err, errDamaged) }
