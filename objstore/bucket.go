// Package objstore is the seam to the bucket: what the agent needs of an object store, as one small interface, and the one
// place where keys are built and parsed.
//
// It assumes of a bucket: a read or a list that starts after a write has answered sees that write; an object is seen whole
// or not at all; the two preconditions of a Put are decided and acted upon in one step. The first two hold for the stores it
// is used with; that preconditions are honoured at all is probed (see Probe), that it is one step is assumed. Commit point: Put returns nil.
//
// It guarantees that every error is of one of the kinds below, so that a caller knows what it knows: that nothing was done
// (ErrNotFound, ErrPrecondition, ErrNotModified, ErrDenied, ErrUnsupported, ErrInvalid), or that it is not known whether the
// write was done or will still be done (ErrUnknown).
package objstore

import (
	"context"
	"errors"
	"io"
	"time"
)

// The kinds of errors. Every error of a Bucket wraps exactly one of them, or the error of the caller's context beside
// ErrUnknown.
var (
	// ErrNotFound: there is no object of that key.
	ErrNotFound = errors.New("not found")
	// ErrPrecondition: the object was there, or it was not of that version, or there was none: nothing was written by this
	// request. It may be the echo of an earlier try of one's own that was thought to have failed.
	ErrPrecondition = errors.New("precondition failed")
	// ErrNotModified: the object still has the version of GetOptions.Unless.
	ErrNotModified = errors.New("not modified")
	// ErrUnknown: nobody can say whether a write was done, or will be (409, 5xx, time-outs, cut connections). For reads:
	// trying again may help.
	ErrUnknown = errors.New("outcome unknown")
	// ErrClockSkew: the store refuses requests signed by this host's clock. Nothing was done; it passes when the clock is
	// set. Errors of this kind are also ErrUnknown, so that callers which know two kinds of trouble treat it as passing.
	ErrClockSkew = errors.New("clock skewed")
	// ErrDenied: the store refuses for good what was asked for: credentials, policy, no such bucket.
	ErrDenied = errors.New("denied")
	// ErrUnsupported: the store does not know the operation or the precondition.
	ErrUnsupported = errors.New("not supported by the store")
	// ErrInvalid: the call makes no sense: a bad key, a range beyond the object, a body that is too large.
	ErrInvalid = errors.New("invalid")
)

// Version names one state of an object (S3: its ETag). Opaque; compared for equality only. A Put of the same content may
// have the same version: what is to be replaced by version must not come to an earlier content again.
type Version string

// Info describes an object.
type Info struct {
	Key       string
	SizeBytes int64
	Version   Version
	// Modified is when the bucket took the object, by the bucket's own clock. Whole seconds on many stores.
	Modified time.Time
}

// GetOptions narrow a Get. The zero value reads the whole object.
type GetOptions struct {
	Offset int64   // first byte; negative: that many bytes from the end, or all of a shorter object
	Length int64   // at most so many bytes; 0: to the end
	Unless Version // ErrNotModified instead of the object, if it still has this version
}

// Object is an object that is being read. Body must be closed. Reading it may fail with ErrUnknown where the connection is
// cut: a short read never looks like the end.
//
// Body is no older than Version. Beside a Put it may be newer: there are stores that look up the version first and the
// content then. A Put on such a version is refused, and a Get unless it has such a version reads again.
type Object struct {
	Info // SizeBytes is that of the whole object
	Body io.ReadCloser
	Date time.Time // the bucket's own time when it answered
}

// Condition is the precondition of a Put. The zero value is none.
type Condition struct {
	absent  bool
	version Version
}

// IfAbsent makes a Put create an object or fail with ErrPrecondition.
func IfAbsent() Condition { return Condition{absent: true} }

// IfVersion makes a Put replace exactly this version or fail with ErrPrecondition, also where there is no object. "" is the
// version of no object, so that one that is not known is never replaced.
func IfVersion(v Version) Condition {
	if v == "" {
		v = "none"
	}
	return Condition{version: v}
}

// Absent says whether the condition is that there is no object.
func (c Condition) Absent() bool { return c.absent }

// Version returns the version that must be there; "" for none.
func (c Condition) Version() Version { return c.version }

// Conditional says whether there is a condition at all.
func (c Condition) Conditional() bool { return c.absent || c.version != "" }

// PutResult is what a successful Put tells.
type PutResult struct {
	Version Version
	Date    time.Time // the bucket's own time when it answered
}

// ListOptions choose what to list.
type ListOptions struct {
	Prefix    string
	After     string // only keys behind this one
	Delimiter string // keys that have it behind the prefix are rolled up into Page.Prefixes; "" or "/"
	Limit     int    // entries a page; 0: the store's own
	Token     string // Page.Next of the page before, with the other options unchanged
}

// Page is one page of a listing, in the order of keys (bytes).
type Page struct {
	Objects  []Info
	Prefixes []string  // a hint: on some stores a prefix stays listed after its last object went
	Next     string    // Token of the next page; "" at the end
	Date     time.Time // the bucket's own time when it answered
}

// Bucket is an object store. It is safe for many goroutines at once. Every call ends soon after ctx does.
//
// Keys are as CheckKey says: UTF-8 text without control characters, without leading or trailing slash and without empty, "."
// or ".." elements, at most MaxKeyBytes long, an element at most MaxElementBytes; no key may be the directory of another (a
// and a/b). Others are ErrInvalid where they are seen. A listing may show others, which somebody else has put there.
type Bucket interface {
	// Get reads an object or a part of it.
	Get(ctx context.Context, key string, o GetOptions) (*Object, error)
	// Put writes an object, whole or not at all. The body is read from its start, perhaps more than once.
	Put(ctx context.Context, key string, body io.ReadSeeker, c Condition) (PutResult, error)
	// Delete removes an object. It is no error if there is none. It is unconditional: no two stores agree on another.
	Delete(ctx context.Context, key string) error
	// List returns one page of the objects there are.
	List(ctx context.Context, o ListOptions) (*Page, error)
	// Close gives back connections and files. No other call may be running or follow.
	Close() error
}

// MaxKeyBytes bounds a key, by the limit of S3.
const MaxKeyBytes = 1024
