package receiver

import (
	"context"
	"errors"

	"ingest-agent/agent/otlpwire"
	"ingest-agent/segment"
)

// DefaultTenant owns everything where no tenant resolver is set.
const DefaultTenant = "default"

// Store makes requests durable.
type Store interface {
	// Accept returns nil only when the request is as durable as wal.ack promises, and an error only if nothing of it is
	// stored or will be. ctx ends when the client has gone: it may end a wait for space, but it must not undo or halve a
	// request that is being written. *segment.RefusedError says why a request was not taken and when to try again.
	Accept(ctx context.Context, r Request) error
}

// Request is one checked OTLP request. The body belongs to the store from the call on, whatever Accept returns.
type Request struct {
	Tenant string
	Signal segment.Signal
	Body   []byte        // an OTLP export request in protobuf
	Info   otlpwire.Info // FirstResource is a part of Body
}

// Observer counts. Its methods are called from many goroutines and must not block.
type Observer interface {
	// Accepted is called after the store took a request; bytes is the length of its protobuf body.
	Accepted(signal segment.Signal, tenant string, records, bytes int)
	// Refused is called for each request that was answered with an error, with one of the Refused texts (refusal.go) or a
	// segment.RefuseReason.
	Refused(signal segment.Signal, reason string)
}

type nobody struct{}

func (nobody) Accepted(segment.Signal, string, int, int) {}
func (nobody) Refused(segment.Signal, string)            {}

// Caller is what is known of a client before its request is read.
type Caller struct {
	// Header yields the values of a header or metadata key; names are case-insensitive.
	Header func(name string) []string
	// RemoteAddr is the peer's address, host:port.
	RemoteAddr string
}

// TenantFunc resolves the tenant of a request before its body is read. The errors below become the answers of these names;
// any other error becomes 503 / UNAVAILABLE.
type TenantFunc func(ctx context.Context, c Caller) (string, error)

// What a TenantFunc may return.
var (
	ErrUnauthenticated = errors.New("no valid credentials")                               // 401 / UNAUTHENTICATED
	ErrForbidden       = errors.New("not allowed")                                        // 403 / PERMISSION_DENIED
	ErrMalformed       = errors.New("credentials or tenant are malformed or there twice") // 400 / INVALID_ARGUMENT
)
