// Package wire is what load generator and sink share on the network: OTLP bodies as bytes over gRPC, and their codings.
//
// It guarantees that bytes are passed on as they are. It assumes nothing about what they hold.
package wire

import (
	"bytes"
	"fmt"
	"io"
	"slices"
	"sync"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/gzip" // registers gzip for gRPC
	"google.golang.org/grpc/mem"

	"ingest-agent/segment"
)

// Names of codings, as in Content-Encoding and grpc-encoding.
const (
	None = "none"
	Gzip = "gzip"
	Zstd = "zstd"
)

// maxWindowBytes bounds what a zstd frame may make its reader hold.
const maxWindowBytes = 8 << 20

// HTTPPath is where OTLP/HTTP takes requests of a signal.
func HTTPPath(signal segment.Signal) string { return "/v1/" + signal.String() }

// GRPCMethod is the full method name of OTLP/gRPC for a signal.
func GRPCMethod(signal segment.Signal) string {
	switch signal {
	case segment.Logs:
		return "/opentelemetry.proto.collector.logs.v1.LogsService/Export"
	case segment.Traces:
		return "/opentelemetry.proto.collector.trace.v1.TraceService/Export"
	default:
		return "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export"
	}
}

// RawCodec passes *[]byte as gRPC messages, without decoding them. Its name is proto's: that is what the bytes are.
type RawCodec struct{}

// Name is the content subtype.
func (RawCodec) Name() string { return "proto" }

// Marshal takes the bytes that v points to. The transport may still read them after a call has ended, unless that ended by an answer.
func (RawCodec) Marshal(v any) (mem.BufferSlice, error) {
	b, ok := v.(*[]byte)
	if !ok {
		return nil, fmt.Errorf("encode message: %T is not *[]byte", v)
	}
	return mem.BufferSlice{mem.SliceBuffer(*b)}, nil
}

// Unmarshal copies into what v points to: the transport uses its buffers again.
func (RawCodec) Unmarshal(data mem.BufferSlice, v any) error {
	b, ok := v.(*[]byte)
	if !ok {
		return fmt.Errorf("decode message: %T is not *[]byte", v)
	}
	*b = slices.Grow((*b)[:0], data.Len())[:data.Len()]
	data.CopyTo(*b)
	return nil
}

// Compressor packs bodies. It is for one goroutine: it keeps its tables between bodies, which cost more than a small body.
type Compressor struct {
	out  bytes.Buffer
	gzip *gzip.Writer
	zstd *zstd.Encoder
}

// NewCompressor makes one for a coding, which is one of the names above.
func NewCompressor(coding string) (*Compressor, error) {
	c := &Compressor{}
	switch coding {
	case None:
	case Gzip:
		c.gzip = gzip.NewWriter(&c.out)
	case Zstd:
		z, err := newZstdWriter(nil)
		if err != nil {
			return nil, fmt.Errorf("make compressor: %w", err)
		}
		c.zstd = z
	default:
		return nil, fmt.Errorf("make compressor: coding %q is not one of none, gzip, zstd", coding)
	}
	return c, nil
}

// Compress returns data packed. What it returns is valid until the next call.
func (c *Compressor) Compress(data []byte) ([]byte, error) {
	c.out.Reset()
	switch {
	case c.gzip != nil:
		c.gzip.Reset(&c.out)
		if _, err := c.gzip.Write(data); err != nil {
			return nil, fmt.Errorf("compress body: %w", err)
		}
		if err := c.gzip.Close(); err != nil {
			return nil, fmt.Errorf("compress body: %w", err)
		}
		return c.out.Bytes(), nil
	case c.zstd != nil:
		return c.zstd.EncodeAll(data, c.out.AvailableBuffer()), nil
	}
	return data, nil
}

// Decompressor reads r in the coding; an empty coding and identity are the same as none. The caller closes it.
func Decompressor(coding string, r io.Reader) (io.ReadCloser, error) {
	switch coding {
	case "", "identity", None:
		return io.NopCloser(r), nil
	case Gzip:
		z, err := gzip.NewReader(r)
		if err != nil {
			return nil, fmt.Errorf("decompress body: %w", err)
		}
		return z, nil
	case Zstd:
		z, err := zstd.NewReader(r, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(maxWindowBytes))
		if err != nil {
			return nil, fmt.Errorf("decompress body: %w", err)
		}
		return z.IOReadCloser(), nil
	}
	return nil, fmt.Errorf("decompress body: coding %q is not one of gzip, zstd", coding)
}

func newZstdWriter(w io.Writer) (*zstd.Encoder, error) {
	return zstd.NewWriter(w, zstd.WithEncoderConcurrency(1), zstd.WithEncoderLevel(zstd.SpeedFastest))
}

// zstdGRPC is the coding for gRPC. Encoders are pooled, as gRPC does for gzip.
type zstdGRPC struct{ encoders *sync.Pool }

func (zstdGRPC) Name() string { return Zstd }

func (z zstdGRPC) Compress(w io.Writer) (io.WriteCloser, error) {
	if e, ok := z.encoders.Get().(*zstd.Encoder); ok {
		e.Reset(w)
		return pooled{e, z.encoders}, nil
	}
	e, err := newZstdWriter(w)
	if err != nil {
		return nil, err
	}
	return pooled{e, z.encoders}, nil
}

func (zstdGRPC) Decompress(r io.Reader) (io.Reader, error) { return Decompressor(Zstd, r) }

// pooled gives its encoder back once it is closed.
type pooled struct {
	*zstd.Encoder
	pool *sync.Pool
}

func (p pooled) Close() error {
	err := p.Encoder.Close()
	p.pool.Put(p.Encoder)
	return err
}

// gRPC takes codings by registration at program start only; gzip comes with it, zstd does not.
//
//nolint:gochecknoinits // so says the registry's contract
func init() { encoding.RegisterCompressor(zstdGRPC{new(sync.Pool)}) }
