package export

import (
	"bytes"
	"errors"
	"io"
	"sync"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"

	"ingest-agent/segment"
)

const (
	// gzipLevel is the fastest: telemetry repeats itself so much that higher levels cost several times the CPU for a few
	// percent of size, on a node that has other work.
	gzipLevel = gzip.BestSpeed

	// zstdWindowBytes is far below the 8 MiB that each receiver must support, since a window is also memory of ours, one
	// for each request in flight.
	zstdWindowBytes = 1 << 20

	// maxPooledBytes is the largest buffer that is kept for the next request.
	maxPooledBytes = 8 << 20
)

// errRevoked is what a transport gets that reads on after the attempt has ended.
var errRevoked = errors.New("the attempt has ended")

// compressor is what gzip and zstd writers have in common.
type compressor interface {
	io.WriteCloser
	Reset(w io.Writer)
}

// newCompressor makes a writer of c, which must be gzip or zstd.
func newCompressor(c Compression) (compressor, error) {
	if c == CompressionGzip {
		return gzip.NewWriterLevel(nil, gzipLevel)
	}
	// One goroutine: the writer works in the caller's, so there is nothing to stop when a pool drops it.
	return zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1), zstd.WithEncoderLevel(zstd.SpeedFastest),
		zstd.WithWindowSize(zstdWindowBytes))
}

// payloads makes the bodies of requests.
type payloads struct {
	compression Compression
	compressors sync.Pool // of compressor
	buffers     sync.Pool // of *bytes.Buffer
}

// payload is the body of one attempt. Without compression it reads the frames' own bytes, with compression those of one
// buffer, so that its length is known before it is sent.
//
// A transport may read on in a goroutine of its own after it has given an answer. revoke cuts it off, after which neither
// the frames' bytes nor the buffer are touched.
type payload struct {
	mu      sync.Mutex
	parts   [][]byte // not yet read
	unread  int
	revoked bool
	buffer  *bytes.Buffer
}

// make encodes the frames of r, one after the other, as one gzip member or zstd frame: some receivers read only the first.
func (p *payloads) make(r *segment.Request) (*payload, error) {
	if p.compression != CompressionGzip && p.compression != CompressionZstd {
		body := &payload{parts: make([][]byte, len(r.Frames)), unread: r.Size()}
		for i := range r.Frames {
			body.parts[i] = r.Frames[i].Body
		}
		return body, nil
	}
	buffer, ok := p.buffers.Get().(*bytes.Buffer)
	if !ok {
		buffer = new(bytes.Buffer)
	}
	buffer.Reset()
	if err := p.compress(buffer, r); err != nil {
		return nil, err
	}
	return &payload{parts: [][]byte{buffer.Bytes()}, unread: buffer.Len(), buffer: buffer}, nil
}

func (p *payloads) compress(w io.Writer, r *segment.Request) error {
	c, ok := p.compressors.Get().(compressor)
	if !ok {
		var err error
		if c, err = newCompressor(p.compression); err != nil {
			return err
		}
	}
	c.Reset(w)
	for i := range r.Frames {
		if _, err := c.Write(r.Frames[i].Body); err != nil {
			return err
		}
	}
	if err := c.Close(); err != nil {
		return err
	}
	c.Reset(nil) // a pooled compressor must not hold the buffer
	p.compressors.Put(c)
	return nil
}

// release ends the attempt of body and takes its buffer back.
func (p *payloads) release(body *payload) {
	body.revoke()
	if body.buffer != nil && body.buffer.Cap() <= maxPooledBytes {
		p.buffers.Put(body.buffer)
	}
	body.buffer = nil
}

// Read implements io.Reader.
func (b *payload) Read(to []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.revoked {
		return 0, errRevoked
	}
	n := 0
	for n < len(to) && len(b.parts) > 0 {
		m := copy(to[n:], b.parts[0])
		n += m
		if b.parts[0] = b.parts[0][m:]; len(b.parts[0]) == 0 {
			b.parts = b.parts[1:]
		}
	}
	if b.unread -= n; b.unread == 0 {
		return n, io.EOF
	}
	return n, nil
}

// Close is for the transport; an attempt ends with revoke.
func (b *payload) Close() error { return nil }

// size is the number of bytes not yet read.
func (b *payload) size() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.unread
}

func (b *payload) revoke() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.revoked, b.parts = true, nil
}
