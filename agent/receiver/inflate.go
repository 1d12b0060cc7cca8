package receiver

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync/atomic"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"

	"ingest-agent/agent/receiver/grpczip"
)

// coding is how an HTTP body is compressed.
type coding uint8

const (
	identity coding = iota
	gzipCoding
	zstdCoding
)

const (
	// gzipFactor is the first guess of how much longer the inflated body is, where the body itself claims less.
	gzipFactor = 8
	// maxGzipFactor is the most that deflate can do.
	maxGzipFactor = 1032
	// maxZstdBlockBytes is the most that a block can decode to (RFC 8878, 3.1.1.2.4).
	maxZstdBlockBytes = 128 << 10
	// zstdSlackBytes is room that the decoder wants behind the last block.
	zstdSlackBytes = maxZstdBlockBytes + 64
	// keptBytes is the buffer that a place keeps when nobody waits for it.
	keptBytes = 1 << 20
)

// inflater inflates bodies that are in memory. All members of a gzip body and all frames of a zstd body count.
type inflater struct {
	limitBytes int
	places     chan *place
	waiting    atomic.Int32
	zstd       *zstd.Decoder // for DecodeAll only, which has no state between calls and no goroutine
}

// place is what one body needs while it is inflated. A pool in the garbage collector's care would let go of buffers while
// they are needed, and so need twice as many.
type place struct {
	buffer []byte
	gzip   gzip.Reader
}

func newInflater(limitBytes int) (*inflater, error) {
	n := grpczip.Places()
	// The library takes the memory for the largest window too. A body above the limit but not above that is refused
	// after it was decoded.
	decoder, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(n), zstd.WithDecoderLowmem(true),
		zstd.WithDecoderMaxMemory(uint64(max(limitBytes, minZstdWindowBytes))))
	if err != nil {
		return nil, fmt.Errorf("make zstd decoder: %w", err)
	}
	f := &inflater{limitBytes: limitBytes, places: make(chan *place, n), zstd: decoder}
	for range n {
		f.places <- new(place)
	}
	return f, nil
}

// inflate calls use with the inflated body, which is valid only during the call. It waits for a place.
func (f *inflater) inflate(ctx context.Context, c coding, body []byte, use func(inflated []byte) error) error {
	f.waiting.Add(1)
	var p *place
	select {
	case p = <-f.places:
		f.waiting.Add(-1)
	case <-ctx.Done():
		f.waiting.Add(-1)
		return ctx.Err()
	}
	defer func() {
		if f.waiting.Load() == 0 && cap(p.buffer) > keptBytes {
			p.buffer = nil
		}
		f.places <- p
	}()
	var err error
	if c == gzipCoding {
		err = f.gunzip(body, p)
	} else {
		err = f.unzstd(body, p)
	}
	if err != nil {
		return err
	}
	return use(p.buffer)
}

// gunzip fills the place's buffer.
func (f *inflater) gunzip(body []byte, p *place) error {
	p.buffer = p.buffer[:0]
	if err := p.gzip.Reset(bytes.NewReader(body)); err != nil {
		return badData("body is not gzip")
	}
	claim := int(binary.LittleEndian.Uint32(body[len(body)-4:])) // of the last member; 18 bytes are there at least
	p.room(min(max(claim+1, gzipFactor*len(body)), maxGzipFactor*len(body), f.limitBytes+1))
	for {
		if len(p.buffer) == cap(p.buffer) {
			p.room(min(2*cap(p.buffer), f.limitBytes+1))
		}
		n, err := p.gzip.Read(p.buffer[len(p.buffer):cap(p.buffer)])
		p.buffer = p.buffer[:len(p.buffer)+n]
		switch {
		case len(p.buffer) > f.limitBytes:
			return tooLarge(f.limitBytes)
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return badData("body is damaged gzip")
		}
	}
}

// unzstd fills the place's buffer. Decoding in one go needs no window besides it.
func (f *inflater) unzstd(body []byte, p *place) error {
	p.buffer = p.buffer[:0]
	p.room(min(zstdBound(body, f.limitBytes), f.limitBytes) + zstdSlackBytes)
	out, err := f.zstd.DecodeAll(body, p.buffer)
	if cap(out) > cap(p.buffer) || err == nil {
		p.buffer = out
	}
	switch {
	case errors.Is(err, zstd.ErrDecoderSizeExceeded), err == nil && len(out) > f.limitBytes:
		return tooLarge(f.limitBytes)
	case errors.Is(err, zstd.ErrWindowSizeExceeded):
		refused := tooLarge(f.limitBytes)
		refused.text = "zstd window is too large"
		return refused
	case err != nil:
		return badData("body is not zstd, or damaged")
	}
	return nil
}

// zstdBound is the most that body can decode to, by the headers of its frames and blocks, which the decoder would otherwise
// find out by growing its buffer step by step. It ends early at enough, and at damage, which the decoder will report.
func zstdBound(body []byte, enough int) int {
	bound := 0
	for len(body) > 0 && bound < enough {
		var frame zstd.Header
		if frame.Decode(body) != nil {
			return bound
		}
		if frame.Skippable {
			body = body[min(frame.HeaderSize+int(frame.SkippableSize), len(body)):]
			continue
		}
		body = body[min(frame.HeaderSize, len(body)):]
		for last := false; !last && len(body) >= 3; {
			header := int(body[0]) | int(body[1])<<8 | int(body[2])<<16
			last = header&1 == 1
			stored, decoded := header>>3, header>>3
			switch header >> 1 & 3 {
			case 1: // one byte, repeated
				stored = 1
			case 2: // compressed
				decoded = maxZstdBlockBytes
			}
			bound += min(decoded, maxZstdBlockBytes)
			body = body[min(3+stored, len(body)):]
		}
		if frame.HasCheckSum {
			body = body[min(4, len(body)):]
		}
	}
	return bound
}

// room gives the buffer a capacity of at least size.
func (p *place) room(size int) {
	if cap(p.buffer) >= size {
		return
	}
	grown := make([]byte, len(p.buffer), size)
	copy(grown, p.buffer)
	p.buffer = grown
}
