package objstore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
)

// Pages lists page by page, until there is no more or one fails: then the last has an error and no page.
func Pages(ctx context.Context, b Bucket, o ListOptions) iter.Seq2[*Page, error] {
	return func(yield func(*Page, error) bool) {
		for {
			page, err := b.List(ctx, o)
			if err != nil {
				yield(nil, fmt.Errorf("list %s: %w", o.Prefix, err))
				return
			}
			if !yield(page, nil) || page.Next == "" {
				return
			}
			o.Token = page.Next
		}
	}
}

// ReadAll reads an object of at most maxBytes whole. A larger one is ErrInvalid.
func ReadAll(ctx context.Context, b Bucket, key string, maxBytes int64) (data []byte, err error) {
	o, err := b.Get(ctx, key, GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("get object: %w", err)
	}
	defer func() { err = errors.Join(err, o.Body.Close()) }()
	if o.SizeBytes > maxBytes {
		return nil, fmt.Errorf("get object %s of %d bytes, at most %d: %w", key, o.SizeBytes, maxBytes, ErrInvalid)
	}
	if data, err = io.ReadAll(io.LimitReader(o.Body, maxBytes)); err != nil {
		return nil, fmt.Errorf("read object %s: %w", key, err)
	}
	return data, nil
}
