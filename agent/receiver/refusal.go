package receiver

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"ingest-agent/segment"
)

// Why a request was refused before the store saw it: label values of ingest_agent_requests_refused_total, besides those of
// segment.RefuseReason.
const (
	RefusedBadData         = "bad_data"        // not what it is said to be
	RefusedTooLarge        = "too_large"       // larger than max_request_size, as sent or inflated
	RefusedUnsupported     = "unsupported"     // method, content type or coding
	RefusedUnauthenticated = "unauthenticated" // no or wrong credentials
	RefusedForbidden       = "forbidden"       // credentials do not allow it
	RefusedTenantRate      = "tenant_rate"     // the tenant sends faster than its bytes_per_second
	RefusedBusy            = "busy"            // too many requests are in memory
	RefusedTimeout         = "timeout"         // the client sent too slowly
	RefusedCanceled        = "canceled"        // the client went away
	RefusedInternal        = "internal"        // our own trouble
)

// refusal is the answer to a request that was not taken, for both transports. It is an error, so that the steps of reading
// a request can return it.
type refusal struct {
	reason string
	code   codes.Code
	http   int
	after  time.Duration // when to try again; 0: the same request will be refused again
	text   string        // for the client
	cause  error         // for our log only
}

func (r *refusal) Error() string { return r.reason + ": " + r.text }

// grpcError is the refusal as a gRPC status. Without RetryInfo, clients take RESOURCE_EXHAUSTED for final (OTLP
// specification, "OTLP/gRPC Throttling").
func (r *refusal) grpcError() error {
	s := status.New(r.code, r.text)
	if r.after > 0 {
		if detailed, err := s.WithDetails(&errdetails.RetryInfo{RetryDelay: durationpb.New(r.after)}); err == nil {
			s = detailed
		}
	}
	return s.Err()
}

// errBusy means that there is no memory for a request now.
var errBusy = &refusal{RefusedBusy, codes.ResourceExhausted, http.StatusTooManyRequests, shortDelay, "too many requests at once", nil}

func badData(format string, args ...any) *refusal {
	return &refusal{RefusedBadData, codes.InvalidArgument, http.StatusBadRequest, 0, fmt.Sprintf(format, args...), nil}
}

func tooLarge(limit int) *refusal {
	return &refusal{RefusedTooLarge, codes.ResourceExhausted, http.StatusRequestEntityTooLarge, 0,
		fmt.Sprintf("request is larger than %d bytes", limit), nil}
}

func unsupported(httpStatus int, format string, args ...any) *refusal {
	code := codes.InvalidArgument
	if httpStatus != http.StatusUnsupportedMediaType {
		code = codes.Unimplemented
	}
	return &refusal{RefusedUnsupported, code, httpStatus, 0, fmt.Sprintf(format, args...), nil}
}

// slowClient has a delay, since the network may be better the next time.
func slowClient() *refusal {
	return &refusal{RefusedTimeout, codes.DeadlineExceeded, http.StatusRequestTimeout, shortDelay, "request was not sent in time", nil}
}

func stopping() *refusal { return storeRefusal(&segment.RefusedError{Reason: segment.RefusedStopping}) }

// refusalOf is the answer to err, whatever it is. ctx is the request's.
func refusalOf(ctx context.Context, err error) *refusal {
	var known *refusal
	var refused *segment.RefusedError
	switch {
	case errors.As(err, &known):
		return known
	case errors.As(err, &refused):
		return storeRefusal(refused)
	case ctx.Err() != nil && (errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)):
		return &refusal{RefusedCanceled, status.FromContextError(ctx.Err()).Code(), http.StatusServiceUnavailable, shortDelay,
			"request was given up by the client", nil}
	case errors.Is(err, ErrUnauthenticated):
		return &refusal{RefusedUnauthenticated, codes.Unauthenticated, http.StatusUnauthorized, 0, "no valid credentials", nil}
	case errors.Is(err, ErrForbidden):
		return &refusal{RefusedForbidden, codes.PermissionDenied, http.StatusForbidden, 0, "not allowed", nil}
	case errors.Is(err, ErrMalformed):
		return badData("%v", ErrMalformed)
	}
	return &refusal{RefusedInternal, codes.Unavailable, http.StatusServiceUnavailable, shortDelay,
		"the request cannot be stored at the moment", err}
}

// storeRefusal is the answer to a refusal of a lane: overload is 429 / RESOURCE_EXHAUSTED, our own trouble 503 /
// UNAVAILABLE, both with a delay; what can never fit is 413 / RESOURCE_EXHAUSTED without one.
func storeRefusal(e *segment.RefusedError) *refusal {
	r := &refusal{reason: string(e.Reason), code: codes.Unavailable, http: http.StatusServiceUnavailable, after: e.After, cause: e.Err}
	if r.after <= 0 {
		r.after = shortDelay
	}
	switch e.Reason {
	case segment.RefusedFull:
		r.code, r.http, r.text = codes.ResourceExhausted, http.StatusTooManyRequests, "the write-ahead log is full"
	case segment.RefusedDisk:
		r.code, r.http, r.text = codes.ResourceExhausted, http.StatusTooManyRequests, "the disk is full"
	case segment.RefusedTenantShare:
		r.code, r.http, r.text = codes.ResourceExhausted, http.StatusTooManyRequests, "the tenant has used up its share"
	case segment.RefusedTooLarge:
		r.code, r.http, r.text = codes.ResourceExhausted, http.StatusRequestEntityTooLarge, "request is larger than can be stored"
		r.after = 0
	case segment.RefusedStopping:
		r.text = "the agent is stopping"
	case segment.RefusedBucket:
		r.text = "the shared storage does not answer"
	default: // RefusedSync, and what may come
		r.text = "the request cannot be stored at the moment"
	}
	return r
}
