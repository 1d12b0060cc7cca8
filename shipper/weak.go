package shipper

import (
	"context"
	"io"

	"ingest-agent/objstore"
)

// unconditional is a bucket that honours no preconditions, used without them: some of these refuse a request that has one.
// Nobody takes over from such a bucket, so that each key has one writer, the processes of one disk, one after the other.
type unconditional struct{ objstore.Bucket }

func (b unconditional) Put(ctx context.Context, key string, body io.ReadSeeker, _ objstore.Condition) (objstore.PutResult, error) {
	return b.Bucket.Put(ctx, key, body, objstore.Condition{}) //nolint:wrapcheck // it is the bucket's own
}
