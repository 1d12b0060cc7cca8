package s3

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/aws/aws-sdk-go-v2/aws"
	awss3 "github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"

	"ingest-agent/objstore"
)

const (
	// PartBytes is the length of the parts of an object that is longer than this.
	PartBytes = 16 << 20
	// maxParts is the protocol's bound.
	maxParts = 10_000
	// MaxObjectBytes bounds an object: 156 GiB.
	MaxObjectBytes = maxParts * PartBytes
)

// putParts writes an object in parts, one after the other. The condition is decided when they are put together.
func (b *bucket) putParts(ctx context.Context, key string, body io.ReadSeeker, size int64, c objstore.Condition, kind checksumKind) (objstore.PutResult, error) {
	in := &awss3.CreateMultipartUploadInput{
		Bucket: &b.location.Bucket, Key: &key,
		ServerSideEncryption: b.location.SSE, SSEKMSKeyId: optional(b.location.SSEKMSKey), StorageClass: b.location.StorageClass,
	}
	if kind == checksumCRC32C {
		in.ChecksumAlgorithm = types.ChecksumAlgorithmCrc32c
	}
	created, err := b.client.CreateMultipartUpload(ctx, in)
	if err != nil {
		return objstore.PutResult{}, err //nolint:wrapcheck // Put explains it
	}
	result, err := b.fillUpload(ctx, key, created.UploadId, body, size, c, kind)
	if err != nil {
		// Also when the outcome is unknown: an upload that is gone cannot come to life later.
		err = b.abort(ctx, key, created.UploadId, err)
	}
	return result, err
}

// fillUpload sends the parts and puts them together.
func (b *bucket) fillUpload(ctx context.Context, key string, id *string, body io.ReadSeeker, size int64, c objstore.Condition, kind checksumKind) (objstore.PutResult, error) {
	var parts []types.CompletedPart
	for start := int64(0); start < size; start += PartBytes {
		part := &section{body: body, start: start, size: min(PartBytes, size-start)}
		sums, err := sum(kind, part)
		if err != nil {
			return objstore.PutResult{}, err
		}
		number := aws.Int32(int32(len(parts) + 1))
		out, err := b.client.UploadPart(ctx, &awss3.UploadPartInput{
			Bucket: &b.location.Bucket, Key: &key, UploadId: id, PartNumber: number,
			Body: part, ContentLength: &part.size, ContentMD5: sums.md5, ChecksumCRC32C: sums.crc32c,
		})
		if err != nil {
			return objstore.PutResult{}, err //nolint:wrapcheck // Put explains it
		}
		parts = append(parts, types.CompletedPart{PartNumber: number, ETag: out.ETag, ChecksumCRC32C: sums.crc32c})
	}
	in := &awss3.CompleteMultipartUploadInput{
		Bucket: &b.location.Bucket, Key: &key, UploadId: id,
		MultipartUpload: &types.CompletedMultipartUpload{Parts: parts},
	}
	in.IfNoneMatch, in.IfMatch = headers(c)
	out, err := b.client.CompleteMultipartUpload(ctx, in, tries(c))
	if err != nil {
		return objstore.PutResult{}, err //nolint:wrapcheck // Put explains it
	}
	return written(out.ETag, out.ResultMetadata)
}

// abort removes the parts of an upload that failed. The error that it failed with is returned, and says what may be left.
func (b *bucket) abort(ctx context.Context, key string, id *string, failure error) error {
	ctx, cancel := objstore.Cleanup(ctx)
	defer cancel()
	_, err := b.client.AbortMultipartUpload(ctx, &awss3.AbortMultipartUploadInput{Bucket: &b.location.Bucket, Key: &key, UploadId: id})
	var gone *types.NoSuchUpload
	if err == nil || errors.As(err, &gone) {
		return failure
	}
	return &leftoverError{error: failure, uploadID: aws.ToString(id)}
}

// leftoverError adds to a failure that the parts of an upload may still be there.
type leftoverError struct {
	error

	uploadID string
}

func (e *leftoverError) Unwrap() error { return e.error }

// section is a part of a body. Its reads and seeks move the body, so only one of them is used at a time.
type section struct {
	body        io.ReadSeeker
	start, size int64
	at          int64
}

func (s *section) Read(p []byte) (int, error) {
	if s.at >= s.size {
		return 0, io.EOF
	}
	if _, err := s.body.Seek(s.start+s.at, io.SeekStart); err != nil {
		return 0, fmt.Errorf("seek in body: %w", err)
	}
	n, err := s.body.Read(p[:min(int64(len(p)), s.size-s.at)])
	s.at += int64(n)
	if errors.Is(err, io.EOF) && s.at < s.size {
		err = io.ErrUnexpectedEOF
	}
	return n, err //nolint:wrapcheck // io.EOF must stay what it is
}

func (s *section) Seek(offset int64, whence int) (int64, error) {
	switch whence {
	case io.SeekCurrent:
		offset += s.at
	case io.SeekEnd:
		offset += s.size
	}
	if offset < 0 {
		return 0, fmt.Errorf("seek in part to %d", offset)
	}
	s.at = offset
	return offset, nil
}
