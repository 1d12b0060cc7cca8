package segment

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"math"
	"slices"

	"github.com/klauspost/compress/zstd"
)

// Codec says how a block's frames are stored.
type Codec uint8

const (
	// CodecNone stores frames as they are: damage costs only the frames that it hits.
	CodecNone Codec = 0
	// CodecZstd stores all frames of a block as one zstd frame: smaller, but damage costs the block.
	CodecZstd Codec = 1
)

// ParseCodec reads a codec's name: none or zstd.
func ParseCodec(name string) (Codec, error) {
	switch name {
	case "none":
		return CodecNone, nil
	case "zstd":
		return CodecZstd, nil
	}
	return 0, fmt.Errorf("parse codec %q: not one of none, zstd", name)
}

const (
	blockHeaderBytes = 84

	// maxBatchBytes bounds what one commit gathers beyond its first frame.
	maxBatchBytes = 8 << 20
	// maxBlockBytes bounds a block's frames before and after compression: a full batch and one frame of the largest size.
	maxBlockBytes = maxBatchBytes + MaxBodyBytes + 1<<20

	blockHasTotals = 1 << 0
)

var blockMagic = [4]byte{0xF1, 'I', 'A', 'B'}

// blockHeader opens each commit. before makes losses exact: it says what entered the lane before this block.
type blockHeader struct {
	codec     Codec
	salt      uint64
	first     Entry
	frames    uint32
	rawLen    int
	storedLen int
	sum       uint32  // of the stored bytes; CodecZstd only
	before    *Totals // nil in the block of a header frame, which is written before it is known
}

func (h *blockHeader) appendTo(dst []byte) []byte {
	start := len(dst)
	dst = append(dst, blockMagic[:]...)
	var flags byte
	var t Totals
	if h.before != nil {
		flags, t = blockHasTotals, *h.before
	}
	dst = append(dst, formatVersion, byte(h.codec), flags, 0)
	dst = order.AppendUint64(dst, h.salt)
	dst = order.AppendUint32(dst, uint32(h.first))
	dst = order.AppendUint32(dst, h.frames)
	dst = order.AppendUint32(dst, uint32(h.rawLen))
	dst = order.AppendUint32(dst, uint32(h.storedLen))
	dst = order.AppendUint32(dst, h.sum)
	dst = order.AppendUint32(dst, 0)
	dst = order.AppendUint64(dst, t.Frames)
	for _, n := range t.Records {
		dst = order.AppendUint64(dst, n)
	}
	dst = order.AppendUint64(dst, t.Bytes)
	return order.AppendUint32(dst, crc32.Checksum(dst[start:], castagnoli))
}

// parseBlockHeader decodes the first blockHeaderBytes of b, which must have that many.
func parseBlockHeader(b []byte) (h blockHeader, err error) {
	if [4]byte(b[:4]) != blockMagic {
		return h, damaged("no block magic")
	}
	if order.Uint32(b[80:]) != crc32.Checksum(b[:80], castagnoli) {
		return h, damaged("block header checksum")
	}
	if b[4] != formatVersion {
		return h, fmt.Errorf("block version %d: %w", b[4], ErrVersion)
	}
	h = blockHeader{
		codec:     Codec(b[5]),
		salt:      order.Uint64(b[8:]),
		first:     Entry(order.Uint32(b[16:])),
		frames:    order.Uint32(b[20:]),
		rawLen:    int(order.Uint32(b[24:])),
		storedLen: int(order.Uint32(b[28:])),
		sum:       order.Uint32(b[32:]),
	}
	if b[6]&blockHasTotals != 0 {
		h.before = &Totals{Frames: order.Uint64(b[40:]), Bytes: order.Uint64(b[72:])}
		for i := range h.before.Records {
			h.before.Records[i] = order.Uint64(b[48+8*i:])
		}
	}
	switch {
	case b[6]&^blockHasTotals != 0 || b[7] != 0 || order.Uint32(b[36:]) != 0:
		return h, damaged("block with unknown flags or reserved bytes")
	case h.codec > CodecZstd:
		return h, fmt.Errorf("block codec %d: %w", h.codec, ErrVersion)
	case h.frames == 0 || h.rawLen > maxBlockBytes || h.storedLen > maxBlockBytes:
		return h, damaged("block of %d frames, %d bytes, %d stored", h.frames, h.rawLen, h.storedLen)
	case h.codec == CodecNone && (h.rawLen != h.storedLen || h.sum != 0):
		return h, damaged("plain block of %d bytes, %d stored", h.rawLen, h.storedLen)
	}
	return h, nil
}

// blockEncoder builds blocks in a buffer that it reuses.
type blockEncoder struct {
	codec Codec
	zstd  *zstd.Encoder // nil: CodecNone
	raw   []byte
	out   []byte
	sum   chained
}

func newBlockEncoder(codec Codec) (*blockEncoder, error) {
	e := &blockEncoder{codec: codec}
	if codec == CodecZstd {
		enc, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1))
		if err != nil {
			return nil, fmt.Errorf("create block encoder: %w", err)
		}
		e.zstd = enc
	}
	return e, nil
}

// entryRoom is the room before a block for the length that the log library puts there.
const entryRoom = binary.MaxVarintLen64

// encode returns the block that holds frames, valid until the next call, and sum continued over the frames' checksums.
func (e *blockEncoder) encode(h blockHeader, frames []storedFrame, sum uint32) ([]byte, uint32) {
	entry, sum := e.encodeEntry(h, frames, sum)
	return entry[entryRoom:], sum
}

// encodeEntry is encode with entryRoom bytes before the block, which the caller may write to.
func (e *blockEncoder) encodeEntry(h blockHeader, frames []storedFrame, sum uint32) ([]byte, uint32) {
	const head = entryRoom + blockHeaderBytes
	size := 0
	for i := range frames {
		size += frames[i].size()
	}
	out := slices.Grow(e.out[:0], head)[:head]
	raw := out
	if e.zstd != nil {
		raw = e.raw[:0]
	}
	start := len(raw)
	e.sum.sum = sum
	raw = slices.Grow(raw, size) // once: growing on the way would leave several times the bytes behind
	for i := range frames {
		var s uint32
		raw, s = frames[i].appendTo(raw)
		e.sum.add(s)
	}
	h.codec, h.first, h.frames = CodecNone, frames[0].entry, uint32(len(frames))
	h.rawLen = len(raw) - start
	if e.zstd != nil {
		out = e.zstd.EncodeAll(raw, out)
		h.codec = CodecZstd
		h.sum = crc32.Checksum(out[head:], castagnoli)
		e.raw = raw
	} else {
		out = raw
	}
	h.storedLen = len(out) - head
	h.appendTo(out[:entryRoom])
	e.out = out
	if max(cap(e.out), cap(e.raw)) > 2*maxBatchBytes { // one huge request must not hold its memory for ever
		e.out, e.raw = nil, nil
	}
	return out, e.sum.sum
}

// chained is a checksum over the checksums of frames. It has the bytes that it is made of in it, since they would be allocated for
// each frame otherwise.
type chained struct {
	sum   uint32
	bytes [4]byte
}

func (c *chained) add(frame uint32) {
	order.PutUint32(c.bytes[:], frame)
	c.sum = crc32.Update(c.sum, castagnoli, c.bytes[:])
}

// entryBytes is what a block of n bytes takes in the log file, with the log's own length prefix.
func entryBytes(n int) int64 {
	var b [binary.MaxVarintLen64]byte
	return int64(binary.PutUvarint(b[:], uint64(n)) + n)
}

// maxEntryOverheadBytes bounds what a block adds to the frames in it.
const maxEntryOverheadBytes = blockHeaderBytes + binary.MaxVarintLen64

// decompress returns the frames of a zstd block. dec must be limited to the capacity of what it decodes into.
func (h *blockHeader) decompress(dec *zstd.Decoder, stored []byte) ([]byte, error) {
	if crc32.Checksum(stored, castagnoli) != h.sum {
		return nil, damaged("block checksum")
	}
	raw, err := dec.DecodeAll(stored, make([]byte, 0, h.rawLen))
	if err != nil {
		return nil, damaged("block: %v", err)
	}
	if len(raw) != h.rawLen {
		return nil, damaged("block inflates to %d bytes, not %d", len(raw), h.rawLen)
	}
	return raw, nil
}

func newBlockDecoder() (*zstd.Decoder, error) {
	return zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(maxBlockBytes), zstd.WithDecoderLowmem(true),
		zstd.WithDecodeAllCapLimit(true)) // no block takes more than the length that it names
}

// maxEntries bounds the frames of a segment, so that numbers cannot run over.
const maxEntries = math.MaxUint32 - 1<<20

// appendEntry appends a block as the log library writes it: its length as a varint, then the block.
func appendEntry(dst, block []byte) []byte {
	return append(binary.AppendUvarint(dst, uint64(len(block))), block...)
}
