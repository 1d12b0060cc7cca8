package s3

import (
	"context"
	"fmt"
	"io"

	"github.com/aws/aws-sdk-go-v2/aws"
	awsmiddleware "github.com/aws/aws-sdk-go-v2/aws/middleware"
	awss3 "github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/smithy-go/middleware"

	"ingest-agent/objstore"
)

// Put writes an object, whole or not at all.
func (b *bucket) Put(ctx context.Context, key string, body io.ReadSeeker, c objstore.Condition) (objstore.PutResult, error) {
	if err := objstore.CheckKey(key); err != nil {
		return objstore.PutResult{}, fmt.Errorf("put object: %w", err)
	}
	size, err := sizeOf(body)
	if err != nil {
		return objstore.PutResult{}, fmt.Errorf("put object %s: %w", key, err)
	}
	if size > MaxObjectBytes {
		return objstore.PutResult{}, fmt.Errorf("put object %s: %w: %d bytes, %d are possible", key, objstore.ErrInvalid, size, int64(MaxObjectBytes))
	}
	kind := checksumKind(b.checksum.Load())
	result, err := b.put(ctx, key, body, size, c, kind)
	if want, ok := demanded(err); ok && kind == checksumUnset {
		// The store has refused the body for what it lacks, so nothing was done, and the second try is no second write.
		b.checksum.Store(int32(want))
		result, err = b.put(ctx, key, body, size, c, want)
	}
	return result, b.explain(ctx, call{verb: "put object", key: key, cond: c}, err)
}

// put is one attempt with one kind of checksum.
func (b *bucket) put(ctx context.Context, key string, body io.ReadSeeker, size int64, c objstore.Condition, kind checksumKind) (objstore.PutResult, error) {
	if size > PartBytes {
		return b.putParts(ctx, key, body, size, c, kind)
	}
	if _, err := body.Seek(0, io.SeekStart); err != nil {
		return objstore.PutResult{}, fmt.Errorf("%w: rewind body: %w", objstore.ErrInvalid, err)
	}
	sums, err := sum(kind, body)
	if err != nil {
		return objstore.PutResult{}, err
	}
	in := &awss3.PutObjectInput{
		Bucket: &b.location.Bucket, Key: &key, Body: body, ContentLength: &size,
		ContentMD5: sums.md5, ChecksumCRC32C: sums.crc32c,
		ServerSideEncryption: b.location.SSE, SSEKMSKeyId: optional(b.location.SSEKMSKey), StorageClass: b.location.StorageClass,
	}
	in.IfNoneMatch, in.IfMatch = headers(c)
	out, err := b.client.PutObject(ctx, in, tries(c))
	if err != nil {
		return objstore.PutResult{}, err //nolint:wrapcheck // Put explains it
	}
	return written(out.ETag, out.ResultMetadata)
}

// tries leaves one try to what must not be sent twice: a second one would be refused because the first was done.
func tries(c objstore.Condition) func(*awss3.Options) {
	return func(o *awss3.Options) {
		if c.Conditional() {
			o.Retryer = aws.NopRetryer{}
		}
	}
}

// headers are the values of If-None-Match and If-Match.
func headers(c objstore.Condition) (ifNoneMatch, ifMatch *string) {
	switch {
	case c.Absent():
		return aws.String("*"), nil
	case c.Version() != "":
		return nil, quoted(c.Version())
	}
	return nil, nil
}

// written makes the result of a 200. One without a version cannot be used as a condition: an empty one would be none.
func written(etag *string, metadata middleware.Metadata) (objstore.PutResult, error) {
	result := objstore.PutResult{Version: version(etag)}
	if result.Version == "" {
		return objstore.PutResult{}, fmt.Errorf("%w: answer without an ETag", objstore.ErrUnknown)
	}
	result.Date, _ = awsmiddleware.GetServerTime(metadata)
	return result, nil
}

// optional leaves out what is empty.
func optional(text string) *string {
	if text == "" {
		return nil
	}
	return &text
}
