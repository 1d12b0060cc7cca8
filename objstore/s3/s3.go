// Package s3 is the bucket on Amazon S3 and on stores that speak its protocol.
//
// It guarantees what objstore.Bucket asks for, of a store that decides If-Match and If-None-Match: "*" of PutObject and
// CompleteMultipartUpload in one step; objstore.Probe finds out for the first. One Put, Get, Delete or page of a List is one
// request as long as nothing fails. A conditional Put is never sent twice by itself, except where the store's refusal shows
// that nothing was done; the other calls are tried up to three times. An object longer than PartBytes is written with a
// multipart upload of n parts, in n+2 requests. Commit point: the 200 of PutObject or CompleteMultipartUpload.
//
// It assumes that every answer carries the bucket's time as Date (where one does not, the times are zero) and that ETags
// differ when contents do. A multipart upload that neither ended nor could be aborted is in no listing of objects: a
// lifecycle rule of the bucket (AbortIncompleteMultipartUpload) removes it.
//
// On endpoints of one's own the requests are as plain as the protocol has them: signed bodies, no trailers, no aws-chunked
// encoding, no checksum headers until the store asks for one. On AWS every body has a CRC32C header.
package s3

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/ratelimit"
	"github.com/aws/aws-sdk-go-v2/aws/retry"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/config"
	awss3 "github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/smithy-go/logging"

	"ingest-agent/objstore"
)

const (
	// maxAttempts and maxBackoff bound the tries of calls without a condition. Callers have a backoff of their own.
	maxAttempts = 3
	maxBackoff  = 2 * time.Second
	// defaultRegion is what stores other than AWS expect in a signature when they have no regions.
	defaultRegion = "us-east-1"
)

// Options are what a URL cannot say. The zero value is right for a program.
type Options struct {
	// Credentials sign the requests. nil: the SDK's chain (environment, files, web identity, instance).
	Credentials aws.CredentialsProvider
	// RequestTimeout bounds one request beside the time that its bytes take at the lowest speed. 0: DefaultRequestTimeout.
	RequestTimeout time.Duration
	// Transport carries the requests. nil: one with a bounded pool of connections, closed by Close.
	Transport http.RoundTripper
}

// bucket is a whole bucket.
type bucket struct {
	client      *awss3.Client
	location    Location
	credentials aws.CredentialsProvider
	checksum    atomic.Int32 // a checksumKind: by setting, or learned from a refusal
	closeIdle   func()
}

var _ objstore.Bucket = (*bucket)(nil)

// Open prepares for the bucket of a URL (see ParseURL). It sends nothing to the bucket: whether it answers is seen at the
// first call. ctx bounds the reading of the SDK's own configuration.
func Open(ctx context.Context, url string, o Options) (objstore.Bucket, error) {
	location, err := ParseURL(url)
	if err != nil {
		return nil, fmt.Errorf("open bucket: %w", err)
	}
	if o.RequestTimeout == 0 {
		o.RequestTimeout = DefaultRequestTimeout
	}
	settings := []func(*config.LoadOptions) error{
		// A buildable client, so that the SDK adds the certificates of AWS_CA_BUNDLE.
		config.WithHTTPClient(awshttp.NewBuildableClient().WithTransportOptions(pool)),
		config.WithLogger(logging.Nop{}),
	}
	if location.Region != "" {
		settings = append(settings, config.WithRegion(location.Region))
	}
	if o.Credentials != nil {
		settings = append(settings, config.WithCredentialsProvider(o.Credentials))
	}
	cfg, err := config.LoadDefaultConfig(ctx, settings...)
	if err != nil {
		return nil, fmt.Errorf("open bucket: read the SDK's configuration: %w: %w", objstore.ErrInvalid, err)
	}
	b := &bucket{location: location, credentials: cfg.Credentials, closeIdle: func() {}}
	transport := o.Transport
	if transport == nil {
		buildable, ok := cfg.HTTPClient.(*awshttp.BuildableClient)
		if !ok {
			return nil, fmt.Errorf("open bucket: %w: unexpected HTTP client %T", objstore.ErrInvalid, cfg.HTTPClient)
		}
		own := buildable.GetTransport()
		transport, b.closeIdle = own, own.CloseIdleConnections
	}
	b.client = awss3.NewFromConfig(cfg, func(so *awss3.Options) { b.configure(so, transport, o.RequestTimeout) })
	if b.client.Options().Region == "" {
		return nil, fmt.Errorf("open bucket: %w: no region: add region= to the URL or set AWS_REGION", objstore.ErrInvalid)
	}
	return objstore.Prefixed(b, location.Prefix), nil
}

// configure sets what differs from the SDK's defaults.
func (b *bucket) configure(o *awss3.Options, transport http.RoundTripper, timeout time.Duration) {
	o.HTTPClient = newClient(transport, timeout)
	o.UsePathStyle = b.location.PathStyle
	o.Retryer = retry.NewStandard(func(ro *retry.StandardOptions) {
		ro.MaxAttempts = maxAttempts
		ro.MaxBackoff = maxBackoff
		ro.RateLimiter = ratelimit.None // its refusals would hide what failed
	})
	o.RetryMaxAttempts = 0 // AWS_MAX_ATTEMPTS would give tries to conditional writes
	o.DisableLogOutputChecksumValidationSkipped = true
	// Checksums are ours, in plain headers: the SDK's are trailers, which other stores refuse.
	o.RequestChecksumCalculation = aws.RequestChecksumCalculationWhenRequired
	if b.location.Endpoint != "" {
		o.BaseEndpoint = aws.String(b.location.Endpoint)
	}
	kind := b.location.checksum
	if o.BaseEndpoint != nil { // also where the SDK's own configuration names one
		o.ResponseChecksumValidation = aws.ResponseChecksumValidationWhenRequired
		o.ContinueHeaderThresholdBytes = -1 // not every store answers Expect: 100-continue
		if o.Region == "" {
			o.Region = defaultRegion
		}
	} else if kind == checksumUnset {
		kind = checksumCRC32C
	}
	b.checksum.Store(int32(kind))
}

// Close gives back the connections that are idle.
func (b *bucket) Close() error {
	b.closeIdle()
	return nil
}

// Delete removes an object; 204 and 404 are the same to it.
func (b *bucket) Delete(ctx context.Context, key string) error {
	if err := objstore.CheckKey(key); err != nil {
		return fmt.Errorf("delete object: %w", err)
	}
	_, err := b.client.DeleteObject(ctx, &awss3.DeleteObjectInput{Bucket: &b.location.Bucket, Key: &key})
	if err = b.explain(ctx, call{verb: "delete object", key: key, gone: true}, err); errors.Is(err, objstore.ErrNotFound) {
		return nil
	}
	return err
}

// version is the form in which ETags compare: some stores quote them in answers and not in listings.
func version(etag *string) objstore.Version {
	return objstore.Version(strings.Trim(aws.ToString(etag), `"`))
}

func quoted(v objstore.Version) *string { return aws.String(`"` + string(v) + `"`) }

// sizeOf is the length of a body, which it leaves at its start.
func sizeOf(body io.Seeker) (int64, error) {
	size, err := body.Seek(0, io.SeekEnd)
	if err == nil {
		_, err = body.Seek(0, io.SeekStart)
	}
	if err != nil {
		return 0, fmt.Errorf("%w: measure body: %w", objstore.ErrInvalid, err)
	}
	return size, nil
}
