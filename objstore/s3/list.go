package s3

import (
	"context"
	"fmt"
	"net/url"
	"slices"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	awsmiddleware "github.com/aws/aws-sdk-go-v2/aws/middleware"
	awss3 "github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"

	"ingest-agent/objstore"
)

// List returns one page, in one request.
func (b *bucket) List(ctx context.Context, o objstore.ListOptions) (*objstore.Page, error) {
	c := call{verb: "list objects", key: o.Prefix + "*"}
	if (o.Delimiter != "" && o.Delimiter != "/") || o.Limit < 0 {
		return nil, fmt.Errorf("list objects %s*: %w: delimiter %q, limit %d", o.Prefix, objstore.ErrInvalid, o.Delimiter, o.Limit)
	}
	in := &awss3.ListObjectsV2Input{
		Bucket: &b.location.Bucket, Prefix: optional(o.Prefix), Delimiter: optional(o.Delimiter),
		ContinuationToken: optional(o.Token),
		// A key may have characters that XML has not.
		EncodingType: types.EncodingTypeUrl,
	}
	if o.After != "" {
		in.StartAfter = &o.After
	}
	if o.Limit > 0 {
		in.MaxKeys = aws.Int32(int32(min(o.Limit, maxListKeys)))
	}
	out, err := b.client.ListObjectsV2(ctx, in)
	if err != nil {
		return nil, b.explain(ctx, c, err)
	}
	page, err := readPage(out, o.Prefix)
	return page, b.explain(ctx, c, err)
}

// maxListKeys is the most entries that the protocol has on a page.
const maxListKeys = 1000

// readPage takes what belongs to the prefix, in order: not every store sorts common prefixes, or takes a prefix to the letter.
func readPage(out *awss3.ListObjectsV2Output, prefix string) (*objstore.Page, error) {
	page := &objstore.Page{}
	page.Date, _ = awsmiddleware.GetServerTime(out.ResultMetadata)
	for _, entry := range out.Contents {
		key, err := decode(entry.Key, out.EncodingType)
		if err != nil {
			return nil, err
		}
		if strings.HasPrefix(key, prefix) {
			page.Objects = append(page.Objects, objstore.Info{
				Key: key, SizeBytes: aws.ToInt64(entry.Size), Version: version(entry.ETag), Modified: aws.ToTime(entry.LastModified),
			})
		}
	}
	for _, entry := range out.CommonPrefixes {
		common, err := decode(entry.Prefix, out.EncodingType)
		if err != nil {
			return nil, err
		}
		if strings.HasPrefix(common, prefix) {
			page.Prefixes = append(page.Prefixes, common)
		}
	}
	slices.SortFunc(page.Objects, func(a, b objstore.Info) int { return strings.Compare(a.Key, b.Key) })
	slices.Sort(page.Prefixes)
	if aws.ToBool(out.IsTruncated) {
		page.Next = aws.ToString(out.NextContinuationToken)
		if page.Next == "" { // to take it for the end would hide the rest
			return nil, fmt.Errorf("%w: a page that is not the last names no next one", objstore.ErrUnknown)
		}
	}
	return page, nil
}

// decode is the key as it was before the store made it fit for XML.
func decode(text *string, encoding types.EncodingType) (string, error) {
	key := aws.ToString(text)
	if encoding != types.EncodingTypeUrl {
		return key, nil
	}
	decoded, err := url.QueryUnescape(key)
	if err != nil {
		return "", fmt.Errorf("%w: listing with a key %q that is not encoded as announced", objstore.ErrUnknown, key)
	}
	return decoded, nil
}
