// Package grpczip registers gzip and zstd for gRPC, for servers and clients of the process: import it for its effect.
//
// What it guarantees: at most Places messages of each coding are inflated at once in the process, a zstd frame gets a window
// of at most maxWindowBytes, all members or frames of a message count, and a message that is damaged can be told by
// Damaged. What it assumes: a codec that takes outside messages asks Damaged; the library reads a message to
// its end or to its own size limit, and then closes the reader; and nothing else registers these names.
package grpczip

import (
	"bytes"
	"crypto/rand"
	"errors"
	"io"
	"runtime"
	"strings"
	"sync"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/gzip" // registers its own gzip first, so that ours replaces it
)

const (
	// processorsPerPlace is one place for each this many processors, and at least one. Inflating never waits for a client,
	// since the body as sent is in memory by then: a place gives out some hundred megabytes a second.
	processorsPerPlace = 4

	// maxWindowBytes bounds the window of a zstd frame, which is memory of the decoder: what each receiver has to support
	// (RFC 8878, 3.1.1.1.2).
	maxWindowBytes = 8 << 20
	// sendWindowBytes is the window of what we compress: small, since each receiver needs it too.
	sendWindowBytes = 1 << 20
)

// Places is how many bodies should be inflated at once on this machine.
func Places() int { return max(1, runtime.GOMAXPROCS(0)/processorsPerPlace) }

// grpc-go finds compressors only in one table for the whole process, which may be written only while the program is
// initialised.
func init() { //nolint:gochecknoinits // see above
	encoding.RegisterCompressor(newCompressor("gzip",
		func() (inflateStream, error) { return gzipStream{new(gzip.Reader)}, nil },
		func() (deflateStream, error) { return gzip.NewWriterLevel(io.Discard, gzip.BestSpeed) }))
	encoding.RegisterCompressor(newCompressor("zstd",
		func() (inflateStream, error) {
			return zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true),
				zstd.WithDecoderMaxWindow(maxWindowBytes))
		},
		func() (deflateStream, error) {
			return zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1), zstd.WithEncoderLevel(zstd.SpeedFastest),
				zstd.WithWindowSize(sendWindowBytes))
		}))
}

type inflateStream interface {
	io.Reader
	Reset(r io.Reader) error
}

type deflateStream interface {
	io.WriteCloser
	Reset(w io.Writer)
}

// gzipStream hides WriteTo, which would write past the library's size limit.
type gzipStream struct{ z *gzip.Reader }

func (s gzipStream) Read(p []byte) (int, error) { return s.z.Read(p) }
func (s gzipStream) Reset(r io.Reader) error    { return s.z.Reset(r) }

// compressor is a compressor with pooled state. Its places bound what is inflated at once in the process: the library
// calls Decompress when it has the whole message, reads to the end or its limit, and closes, without waiting for a client
// in between. A place is thus held for work only.
type compressor struct {
	name     string
	places   chan struct{}
	inflates sync.Pool // of inflateStream
	deflates sync.Pool // of deflateStream
	inflater func() (inflateStream, error)
	deflater func() (deflateStream, error)
}

func newCompressor(name string, inflater func() (inflateStream, error), deflater func() (deflateStream, error)) *compressor {
	return &compressor{name: name, places: make(chan struct{}, Places()), inflater: inflater, deflater: deflater}
}

// Name is the value of grpc-encoding.
func (c *compressor) Name() string { return c.name }

// Decompress returns a reader that the library closes once.
func (c *compressor) Decompress(r io.Reader) (io.Reader, error) {
	c.places <- struct{}{}
	stream, _ := c.inflates.Get().(inflateStream)
	var err error
	if stream == nil {
		if stream, err = c.inflater(); err != nil {
			<-c.places
			return nil, err
		}
	}
	read := &reader{compressor: c, stream: stream}
	if stream.Reset(r) != nil {
		read.rest = strings.NewReader(damageMark)
	}
	return read, nil
}

type reader struct {
	compressor *compressor
	stream     inflateStream
	rest       io.Reader // in place of the stream, once that has failed
}

// Read inflates. It never fails, since the library would answer INTERNAL to that, whatever is wrong:
//   - A zstd window that is larger than allowed counts as a message that is too large, which the library says only of what
//     it has read: so it gets to read more than any limit.
//   - What comes of a damaged message ends with the mark that Damaged looks for.
func (r *reader) Read(p []byte) (int, error) {
	if r.rest != nil {
		return r.rest.Read(p)
	}
	n, err := r.stream.Read(p)
	switch {
	case err == nil, errors.Is(err, io.EOF):
		return n, err
	case errors.Is(err, zstd.ErrWindowSizeExceeded), errors.Is(err, zstd.ErrDecoderSizeExceeded):
		r.rest = endless{}
	default:
		r.rest = strings.NewReader(damageMark)
	}
	return n, nil
}

type endless struct{}

func (endless) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

// damageMark cannot be guessed, so that nobody makes a sound message look damaged by what is in it.
var damageMark = rand.Text() //nolint:gochecknoglobals // drawn once for each process

// Damaged reports whether a message that was inflated here is not whole. It must then not be used.
func Damaged(message []byte) bool { return bytes.HasSuffix(message, []byte(damageMark)) }

func (r *reader) Close() error {
	r.compressor.inflates.Put(r.stream)
	<-r.compressor.places
	return nil
}

// Compress returns a writer that the library closes once.
func (c *compressor) Compress(w io.Writer) (io.WriteCloser, error) {
	stream, _ := c.deflates.Get().(deflateStream)
	if stream == nil {
		var err error
		if stream, err = c.deflater(); err != nil {
			return nil, err
		}
	}
	stream.Reset(w)
	return &writer{compressor: c, deflateStream: stream}, nil
}

type writer struct {
	deflateStream
	compressor *compressor
}

func (w *writer) Close() error {
	err := w.deflateStream.Close()
	w.compressor.deflates.Put(w.deflateStream)
	return err
}
