package objstore

import (
	"context"
	"io"
	"strings"
)

// Prefixed is the part of a bucket below prefix, as a bucket of its own. Slashes around the prefix do not count; "" is b
// itself. Errors and MaxKeyBytes speak of the whole key. Close closes b.
func Prefixed(b Bucket, prefix string) Bucket {
	prefix = strings.Trim(prefix, "/")
	if prefix == "" {
		return b
	}
	return prefixed{b, prefix + "/"}
}

type prefixed struct {
	bucket Bucket
	prefix string // ends in a slash
}

func (p prefixed) Get(ctx context.Context, key string, o GetOptions) (*Object, error) {
	obj, err := p.bucket.Get(ctx, p.prefix+key, o)
	if err != nil {
		return nil, err
	}
	obj.Key = key
	return obj, nil
}

func (p prefixed) Put(ctx context.Context, key string, body io.ReadSeeker, c Condition) (PutResult, error) {
	return p.bucket.Put(ctx, p.prefix+key, body, c)
}

func (p prefixed) Delete(ctx context.Context, key string) error {
	return p.bucket.Delete(ctx, p.prefix+key)
}

func (p prefixed) List(ctx context.Context, o ListOptions) (*Page, error) {
	o.Prefix = p.prefix + o.Prefix
	if o.After != "" {
		o.After = p.prefix + o.After
	}
	page, err := p.bucket.List(ctx, o)
	if err != nil {
		return nil, err
	}
	for i := range page.Objects {
		page.Objects[i].Key = strings.TrimPrefix(page.Objects[i].Key, p.prefix)
	}
	for i := range page.Prefixes {
		page.Prefixes[i] = strings.TrimPrefix(page.Prefixes[i], p.prefix)
	}
	return page, nil
}

func (p prefixed) Close() error { return p.bucket.Close() }
