package lease_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"sync"
	"testing"

	"ingest-agent/objstore"
	"ingest-agent/objstore/lease"
)

// Registers that are broken in ways that are easily written, each by a layer between register and bucket: the checks see it.
func TestSimulationCatches(t *testing.T) {
	const seeds = 50
	for _, variant := range []struct {
		name string
		wrap func(objstore.Bucket) objstore.Bucket
	}{
		{"no precondition", func(b objstore.Bucket) objstore.Bucket { return noPrecondition{b} }},
		{"unknown taken for success", func(b objstore.Bucket) objstore.Bucket { return unknownIsSuccess{b} }},
		{"412 taken for loss without reading back", func(b objstore.Bucket) objstore.Bucket { return &refusedIsLost{Bucket: b} }},
		{"release that deletes", func(b objstore.Bucket) objstore.Bucket { return releaseDeletes{b} }},
		{"content that is older than its version", func(b objstore.Bucket) objstore.Bucket { return mixedReads{b, false} }},
	} {
		t.Run(variant.name, func(t *testing.T) {
			for seed := range uint64(seeds) {
				if _, err := simulate(t, seed+1, variant.wrap, map[string]int{}); err != nil {
					first, _, _ := strings.Cut(err.Error(), ";")
					t.Logf("caught: %s", first)
					return
				}
			}
			t.Errorf("%d seeds did not catch it", seeds)
		})
	}
}

// A store that reads version and content of an object one after the other is no danger, as long as the version comes first.
func TestSimulationVersionReadBeforeContent(t *testing.T) {
	const seeds = 30
	for seed := range uint64(seeds) {
		wrap := func(b objstore.Bucket) objstore.Bucket { return mixedReads{b, true} }
		if _, err := simulate(t, seed+1, wrap, map[string]int{}); err != nil {
			t.Fatal(err)
		}
	}
}

// mixedReads reads an object twice, and returns the version of one read with the content of the other.
type mixedReads struct {
	objstore.Bucket
	versionFirst bool
}

func (b mixedReads) Get(ctx context.Context, key string, o objstore.GetOptions) (*objstore.Object, error) {
	first, err := b.Bucket.Get(ctx, key, o)
	if err != nil {
		return nil, err
	}
	then, err := b.Bucket.Get(ctx, key, objstore.GetOptions{})
	if err != nil {
		return nil, err
	}
	if b.versionFirst {
		first.Body = then.Body
		return first, nil
	}
	then.Body = first.Body
	return then, nil
}

type noPrecondition struct{ objstore.Bucket }

func (b noPrecondition) Put(ctx context.Context, key string, body io.ReadSeeker, _ objstore.Condition) (objstore.PutResult, error) {
	return b.Bucket.Put(ctx, key, body, objstore.Condition{})
}

type unknownIsSuccess struct{ objstore.Bucket }

func (b unknownIsSuccess) Put(ctx context.Context, key string, body io.ReadSeeker, c objstore.Condition) (objstore.PutResult, error) {
	result, err := b.Bucket.Put(ctx, key, body, c)
	if errors.Is(err, objstore.ErrUnknown) && ctx.Err() == nil {
		return objstore.PutResult{Version: "hoped-for"}, nil
	}
	return result, err
}

// refusedIsLost shows somebody else's register after a 412, as if it had not been read back.
type refusedIsLost struct {
	objstore.Bucket
	mu      sync.Mutex
	refused bool
}

func (b *refusedIsLost) Put(ctx context.Context, key string, body io.ReadSeeker, c objstore.Condition) (objstore.PutResult, error) {
	result, err := b.Bucket.Put(ctx, key, body, c)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.refused = errors.Is(err, objstore.ErrPrecondition)
	return result, err
}

func (b *refusedIsLost) Get(ctx context.Context, key string, o objstore.GetOptions) (*objstore.Object, error) {
	b.mu.Lock()
	refused := b.refused
	b.refused = false
	b.mu.Unlock()
	if !refused {
		return b.Bucket.Get(ctx, key, o)
	}
	const other = `{"format":1,"epoch":99,"holder":"other","write_id":"other"}`
	return &objstore.Object{Info: objstore.Info{Key: key, Version: "other"}, Body: io.NopCloser(bytes.NewReader([]byte(other)))}, nil
}

type releaseDeletes struct{ objstore.Bucket }

func (b releaseDeletes) Put(ctx context.Context, key string, body io.ReadSeeker, c objstore.Condition) (objstore.PutResult, error) {
	var r lease.Record
	if err := json.NewDecoder(body).Decode(&r); err != nil || r.Holder != "" {
		return b.Bucket.Put(ctx, key, body, c)
	}
	return objstore.PutResult{Version: "gone"}, b.Bucket.Delete(ctx, key)
}
