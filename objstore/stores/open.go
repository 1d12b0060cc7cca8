// Package stores opens the bucket that a URL names. It is the one place that knows every kind of bucket there is.
package stores

import (
	"context"
	"fmt"
	"strings"

	"ingest-agent/objstore"
	"ingest-agent/objstore/filestore"
	"ingest-agent/objstore/s3"
)

// Options are what a URL cannot say. The zero value is right for a program.
type Options struct {
	S3 s3.Options
}

// Open returns the bucket of file:DIR or of s3://BUCKET/PREFIX?… (see s3.ParseURL). It asks the bucket nothing, so that it
// also returns one that is out of reach. DIR is taken as it stands, relative to the working directory or not. The error of a
// URL that names no bucket is objstore.ErrInvalid.
func Open(ctx context.Context, url string, o Options) (objstore.Bucket, error) {
	dir, isFile := strings.CutPrefix(url, "file:")
	switch {
	case isFile && dir != "" && !strings.HasPrefix(dir, "//"):
		b, err := filestore.Open(dir)
		if err != nil {
			return nil, fmt.Errorf("open bucket %s: %w", url, err)
		}
		return b, nil
	case strings.HasPrefix(url, "s3:"):
		return s3.Open(ctx, url, o.S3)
	}
	return nil, fmt.Errorf("open bucket %q: %w: want file:DIR, without //, or s3://BUCKET/PREFIX", url, objstore.ErrInvalid)
}
