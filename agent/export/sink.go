// Package export holds the destinations: it delivers requests over OTLP/HTTP and OTLP/gRPC, writes them to NDJSON files,
// and keeps on local disk what a destination refused for good.
//
// It guarantees that one Deliver is one attempt with one verdict: Delivered only after the destination confirmed (a file:
// after fdatasync), Retry where OTLP says that the same request may succeed later, Refused or TooLarge otherwise. Nothing
// below it sends a request a second time on its own, but for one that no server took up: HTTP/2 says so, and gRPC then
// sends it on another connection. The bytes of a request leave as they came in; they are not decoded, but for the file
// sink, which writes OTLP JSON.
//
// It assumes that the caller paces, repeats and splits, that the bodies in a request are not changed while Deliver runs,
// and that a synced file in a synced directory survives a loss of power. Commit points: a line of a file sink counts from
// the return of fdatasync, a dead letter from the sync of its directory after the rename.
package export

import (
	"fmt"
	"io"
	"time"

	"ingest-agent/segment"
)

// Type of a destination, as configured.
type Type string

// The types of destinations.
const (
	TypeOTLPHTTP Type = "otlp_http"
	TypeOTLPGRPC Type = "otlp_grpc"
	TypeFile     Type = "file"
)

// Compression of requests on the wire.
type Compression string

// The compressions. An empty one means none.
const (
	CompressionNone Compression = "none"
	CompressionGzip Compression = "gzip"
	CompressionZstd Compression = "zstd"
)

// FrameIDsHeader is the HTTP header and gRPC metadata key that carries segment.FrameIDs, by which a receiver can drop
// duplicates.
const FrameIDsHeader = "ingest-agent-frames"

// Sink is a destination that holds connections or files, which Close gives back. Close may be called once no Deliver runs.
type Sink interface {
	segment.Sink
	io.Closer
}

// Options of a destination. Durations and sizes must be set where no default is named; New checks them.
type Options struct {
	Type        Type
	Endpoint    string            // otlp_http: URL that /v1/<signal> is appended to; otlp_grpc: host:port
	Directory   string            // file: where the files are written; created if absent
	Compression Compression       // of OTLP requests
	Headers     map[string]string // sent with each OTLP request
	Timeout     time.Duration     // of one attempt, from encoding to the last byte of the answer
	InFlight    int               // how many Deliver calls run at once, over all lanes; sizes the connection pool
	RetryCodes  []int             // HTTP status or gRPC codes that are retried as well as those that OTLP names
	FrameIDs    bool              // send FrameIDsHeader
	UserAgent   string            // a configured User-Agent is put before it
	TLS         TLSOptions
	Rotation    RotationOptions
}

// New makes the destination called name. An error means that the options can not be used; it names the option and what is
// allowed, and holds no header values. Whether an OTLP destination can be reached is not checked.
func New(name string, opts Options) (Sink, error) {
	sink, err := newSink(opts)
	if err != nil {
		return nil, fmt.Errorf("make destination %s: %w", name, err)
	}
	return sink, nil
}

func newSink(opts Options) (Sink, error) {
	switch opts.Type {
	case TypeFile:
		return openFileSink(opts.Directory, opts.Rotation)
	case TypeOTLPHTTP:
		return newHTTPSink(opts)
	case TypeOTLPGRPC:
		return newGRPCSink(opts)
	}
	return nil, fmt.Errorf("type %q: not one of otlp_http, otlp_grpc, file", opts.Type)
}

// checkWire checks what both OTLP transports share.
func (o *Options) checkWire() error {
	switch o.Compression {
	case "", CompressionNone, CompressionGzip, CompressionZstd:
	default:
		return fmt.Errorf("compression %q: not one of none, gzip, zstd", o.Compression)
	}
	if o.Timeout <= 0 {
		return fmt.Errorf("timeout %v: must be more than 0", o.Timeout)
	}
	if o.InFlight < 1 {
		return fmt.Errorf("in_flight %d: must be at least 1", o.InFlight)
	}
	return nil
}

func retry(err error) segment.Outcome {
	return segment.Outcome{Verdict: segment.Retry, Err: err}
}

func refused(err error) segment.Outcome {
	return segment.Outcome{Verdict: segment.Refused, Err: err}
}
