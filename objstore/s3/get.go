package s3

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	awsmiddleware "github.com/aws/aws-sdk-go-v2/aws/middleware"
	awss3 "github.com/aws/aws-sdk-go-v2/service/s3"

	"ingest-agent/objstore"
)

// Get reads an object or a part of it.
func (b *bucket) Get(ctx context.Context, key string, o objstore.GetOptions) (*objstore.Object, error) {
	c := call{verb: "get object", key: key, gone: true}
	if err := objstore.CheckKey(key); err != nil {
		return nil, fmt.Errorf("get object: %w", err)
	}
	if o.Length < 0 {
		return nil, fmt.Errorf("get object %s: %w: length %d", key, objstore.ErrInvalid, o.Length)
	}
	in := &awss3.GetObjectInput{Bucket: &b.location.Bucket, Key: &key, Range: rangeHeader(o)}
	if o.Unless != "" {
		in.IfNoneMatch = quoted(o.Unless)
	}
	out, err := b.client.GetObject(ctx, in)
	empty := o.Offset < 0 && statusOf(err) == http.StatusRequestedRangeNotSatisfiable
	if empty { // no byte of an empty object can be asked for
		in.Range = nil
		out, err = b.client.GetObject(ctx, in)
	}
	if err != nil {
		return nil, b.explain(ctx, c, err)
	}
	object, err := b.object(ctx, c, out, o)
	if err == nil && empty && object.SizeBytes != 0 {
		err = fmt.Errorf("%w: the object changed while it was read", objstore.ErrUnknown)
	}
	if err != nil {
		_ = out.Body.Close() // nothing of it is used
		return nil, b.explain(ctx, c, err)
	}
	return object, nil
}

// rangeHeader asks for what GetOptions narrow to. Of a range from the end that does not reach it, the rest is cut off later.
func rangeHeader(o objstore.GetOptions) *string {
	switch {
	case o.Offset < 0:
		return aws.String(fmt.Sprintf("bytes=%d", o.Offset))
	case o.Length > 0:
		return aws.String(fmt.Sprintf("bytes=%d-%d", o.Offset, max(o.Offset, o.Offset+o.Length-1)))
	case o.Offset > 0:
		return aws.String(fmt.Sprintf("bytes=%d-", o.Offset))
	}
	return nil
}

// object checks an answer against what was asked for.
func (b *bucket) object(ctx context.Context, c call, out *awss3.GetObjectOutput, o objstore.GetOptions) (*objstore.Object, error) {
	if out.ContentLength == nil || *out.ContentLength < 0 {
		return nil, fmt.Errorf("%w: answer without a length", objstore.ErrUnknown)
	}
	if version(out.ETag) == "" {
		return nil, fmt.Errorf("%w: answer without an ETag", objstore.ErrUnknown)
	}
	var start int64
	sent, total := *out.ContentLength, *out.ContentLength
	if out.ContentRange != nil {
		var err error
		if start, sent, total, err = parseContentRange(*out.ContentRange); err != nil {
			return nil, err
		}
	}
	want := o.Offset
	if want < 0 {
		want = max(0, total+want)
	}
	if start != want {
		return nil, fmt.Errorf("%w: answer starts at byte %d, not %d", objstore.ErrUnknown, start, want)
	}
	if o.Length > 0 {
		sent = min(sent, o.Length)
	}
	object := &objstore.Object{
		Info: objstore.Info{Key: c.key, SizeBytes: total, Version: version(out.ETag), Modified: aws.ToTime(out.LastModified)},
		Body: &body{bucket: b, ctx: ctx, call: c, ReadCloser: out.Body, leftSize: sent},
	}
	object.Date, _ = awsmiddleware.GetServerTime(out.ResultMetadata)
	return object, nil
}

// parseContentRange reads "bytes 5-9/20".
func parseContentRange(text string) (start, length, total int64, err error) {
	span, of, _ := strings.Cut(strings.TrimPrefix(text, "bytes "), "/")
	first, last, _ := strings.Cut(span, "-")
	start, err1 := strconv.ParseInt(first, 10, 64)
	end, err2 := strconv.ParseInt(last, 10, 64)
	total, err3 := strconv.ParseInt(of, 10, 64)
	if err := errors.Join(err1, err2, err3); err != nil || start < 0 || end < start || total <= end {
		return 0, 0, 0, fmt.Errorf("%w: answer with a Content-Range %q", objstore.ErrUnknown, text)
	}
	return start, end - start + 1, total, nil
}

// body reads exactly as many bytes as were promised, or fails.
type body struct {
	io.ReadCloser
	bucket   *bucket
	ctx      context.Context //nolint:containedctx // that of the Get, which the body belongs to
	call     call
	leftSize int64
}

func (r *body) Read(p []byte) (int, error) {
	if r.leftSize == 0 && len(p) > 0 {
		// One more read where it is the end anyway: there the SDK compares its checksum, and the connection becomes free.
		var one [1]byte
		if n, err := r.ReadCloser.Read(one[:]); n == 0 && err != nil && !errors.Is(err, io.EOF) {
			return 0, r.fail(err)
		}
		return 0, io.EOF
	}
	n, err := r.ReadCloser.Read(p[:min(int64(len(p)), r.leftSize)])
	r.leftSize -= int64(n)
	switch {
	case err == nil:
		return n, nil
	case !errors.Is(err, io.EOF):
		return n, r.fail(err)
	case r.leftSize > 0:
		return n, r.fail(fmt.Errorf("%w: the answer ends %d bytes early", objstore.ErrUnknown, r.leftSize))
	}
	return n, io.EOF
}

func (r *body) fail(err error) error {
	c := r.call
	c.verb = "read object"
	return r.bucket.explain(r.ctx, c, err)
}
