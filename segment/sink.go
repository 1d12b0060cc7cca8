package segment

import (
	"context"
	"time"
)

// Flags of a frame; stored in its header.
type Flags uint8

// FlagInvalidUTF8 marks a body with a string that is not UTF-8. Such a frame is delivered as it came and alone: merged with
// others it could make a strict receiver refuse them too.
const FlagInvalidUTF8 Flags = 1 << 0

// Frame is one request as it was received: the unit of acknowledgement, damage and identity.
type Frame struct {
	ID       FrameID
	Position Position // where it is stored now; differs from ID for a parked or adopted frame
	Signal   Signal
	Flags    Flags
	Tenant   string
	Received time.Time
	Records  uint32
	// First is the number of the first record, from 1, where this is only a part of a stored frame: one that was too large
	// or refused as a whole. 0: the whole frame.
	First uint32
	Body  []byte // OTLP protobuf; shared, and never written again
}

// Request is what one delivery attempt carries: frames of one tenant and signal in order. Their bodies, one after the
// other, are one OTLP request (protobuf defines concatenation as merge).
type Request struct {
	Tenant string
	Signal Signal
	Frames []Frame
}

// Size is the length in bytes of the merged body.
func (r *Request) Size() int {
	n := 0
	for i := range r.Frames {
		n += len(r.Frames[i].Body)
	}
	return n
}

// Records is the number of records in the request.
func (r *Request) Records() uint64 {
	var n uint64
	for i := range r.Frames {
		n += uint64(r.Frames[i].Records)
	}
	return n
}

// Verdict says what a delivery attempt came to.
type Verdict uint8

const (
	// Delivered: the destination has it. Rejected of its records were refused by partial success and are not sent again.
	Delivered Verdict = iota + 1
	// Retry: the same request may succeed later; not before RetryAfter if that is set.
	Retry
	// Refused: the destination will never take this request as it is.
	Refused
	// TooLarge: the destination will not take a request of this size, but may take parts of it. Later requests are made
	// smaller.
	TooLarge
)

// Outcome of one delivery attempt.
type Outcome struct {
	Verdict    Verdict
	Rejected   uint64        // Delivered: records refused by partial success
	RetryAfter time.Duration // Retry: the delay that the destination asked for, 0 if none
	Err        error         // why, for logs and the dead letter; nil when all were delivered
}

// Sink takes requests to a destination. Deliver makes one attempt and returns; it is called from several goroutines at
// once, must return soon after ctx ends, and must not change the request's bodies. Delivered may be answered only when the
// destination has confirmed (a file sink: when it has synced).
type Sink interface {
	Deliver(ctx context.Context, r *Request) Outcome
}

// DeadLetter keeps frames that a destination refused for good. SetAside returns only when the frame is as durable as a
// local disk makes it; its cause is a short text for people.
type DeadLetter interface {
	SetAside(ctx context.Context, f *Frame, cause string) error
}

// RefuseReason says why a lane did not take a frame. The text is the label value of ingest_agent_requests_refused_total.
type RefuseReason string

// Why a frame was not taken.
const (
	RefusedFull        RefuseReason = "full"         // wal.max_bytes is reached
	RefusedDisk        RefuseReason = "disk"         // the free-space floor is reached or the volume is full
	RefusedTenantShare RefuseReason = "tenant_share" // this tenant has its share, others wait for space too
	RefusedSync        RefuseReason = "sync"         // write or sync fails
	RefusedBucket      RefuseReason = "bucket"       // the bucket does not confirm; what was stored on the disk is delivered all the same
	RefusedStopping    RefuseReason = "stopping"     // the agent stops
	RefusedTooLarge    RefuseReason = "too_large"    // can never fit
)

// RefusedError is returned when a frame was not taken. Nothing of it is stored.
type RefusedError struct {
	Reason RefuseReason
	After  time.Duration // when to try again, computed from the drain rate; 0: never
	Err    error         // the cause for our own log; must not be shown to a client
}

func (e *RefusedError) Error() string {
	if e.Err != nil {
		return "refused (" + string(e.Reason) + "): " + e.Err.Error()
	}
	return "refused (" + string(e.Reason) + ")"
}

func (e *RefusedError) Unwrap() error { return e.Err }
