package objstore

import (
	"context"
	"errors"
	"io"
	"time"
)

// Op is an operation of a Bucket, as metrics name it.
type Op string

// The operations.
const (
	OpGet    Op = "get"
	OpPut    Op = "put"
	OpDelete Op = "delete"
	OpList   Op = "list"
)

// Outcome is the kind of an error of a Bucket in one word, as metrics name it: done (no error), lost, not_found,
// not_modified, clock_skew, unknown, denied, unsupported or invalid. An error without a kind is unknown.
func Outcome(err error) string {
	switch {
	case err == nil:
		return "done"
	case errors.Is(err, ErrPrecondition):
		return "lost"
	case errors.Is(err, ErrNotFound):
		return "not_found"
	case errors.Is(err, ErrNotModified):
		return "not_modified"
	case errors.Is(err, ErrDenied):
		return "denied"
	case errors.Is(err, ErrUnsupported):
		return "unsupported"
	case errors.Is(err, ErrInvalid):
		return "invalid"
	case errors.Is(err, ErrClockSkew): // is ErrUnknown as well
		return "clock_skew"
	}
	return "unknown"
}

// Observe is b, with report told of every call after it: what and how it ended, how long it took, and how many bytes of
// bodies were read by a Get or written by a Put that is done. A Get that returns an object is told of when its body is
// closed, and takes until the object is returned and as long as reads then wait. report is called by many goroutines at once.
func Observe(b Bucket, report func(op Op, outcome string, took time.Duration, bytes int64)) Bucket {
	return observed{b, report}
}

type observed struct {
	bucket Bucket
	report func(Op, string, time.Duration, int64)
}

func (w observed) Get(ctx context.Context, key string, o GetOptions) (*Object, error) {
	start := time.Now()
	obj, err := w.bucket.Get(ctx, key, o)
	took := time.Since(start)
	if err != nil {
		w.report(OpGet, Outcome(err), took, 0)
		return nil, err
	}
	obj.Body = &observedBody{body: obj.Body, report: w.report, took: took}
	return obj, nil
}

func (w observed) Put(ctx context.Context, key string, body io.ReadSeeker, c Condition) (PutResult, error) {
	start := time.Now()
	result, err := w.bucket.Put(ctx, key, body, c)
	took := time.Since(start)
	var sizeBytes int64
	if err == nil {
		// Reads cannot be counted: a body may be read more than once. Where it cannot say its size it counts as empty.
		sizeBytes, _ = body.Seek(0, io.SeekEnd)
	}
	w.report(OpPut, Outcome(err), took, sizeBytes)
	return result, err
}

func (w observed) Delete(ctx context.Context, key string) error {
	start := time.Now()
	err := w.bucket.Delete(ctx, key)
	w.report(OpDelete, Outcome(err), time.Since(start), 0)
	return err
}

func (w observed) List(ctx context.Context, o ListOptions) (*Page, error) {
	start := time.Now()
	page, err := w.bucket.List(ctx, o)
	w.report(OpList, Outcome(err), time.Since(start), 0)
	return page, err
}

func (w observed) Close() error { return w.bucket.Close() }

// observedBody counts what is read. Like any body it is used by one goroutine at a time.
type observedBody struct {
	body   io.ReadCloser
	report func(Op, string, time.Duration, int64)
	took   time.Duration
	bytes  int64
	failed error
	closed bool
}

func (b *observedBody) Read(p []byte) (int, error) {
	start := time.Now()
	n, err := b.body.Read(p)
	b.took += time.Since(start)
	b.bytes += int64(n)
	if err != nil && !errors.Is(err, io.EOF) {
		b.failed = err
	}
	return n, err
}

func (b *observedBody) Close() error {
	err := b.body.Close()
	if !b.closed { // a second Close is no second call
		b.closed = true
		b.report(OpGet, Outcome(b.failed), b.took, b.bytes)
	}
	return err
}
