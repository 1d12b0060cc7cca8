package objtest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"

	"ingest-agent/objstore"
	"ingest-agent/objstore/memory"
)

// ErrAnswerLost is for a Fault: the call is done, and nobody hears of it.
var ErrAnswerLost = fmt.Errorf("answer lost: %w", objstore.ErrUnknown)

// Fault is asked before each call; key is the prefix of a List. Its error is that of the call, which is then not done, unless it is
// ErrAnswerLost. It may wait.
type Fault func(ctx context.Context, op objstore.Op, key string) error

// Faulty is a bucket in memory that notes its calls, and fails or waits as it is told. Calls of the bucket in it are not noted.
type Faulty struct {
	*memory.Bucket
	mu    sync.Mutex
	fault Fault
	calls []string
	now   map[string]int // calls under way, by operation and first element
	most  map[string]int
}

// NewFaulty returns b as one process reaches it.
func NewFaulty(b *memory.Bucket) *Faulty {
	return &Faulty{Bucket: b, now: map[string]int{}, most: map[string]int{}}
}

// Fail sets what goes wrong from now on; nil: nothing.
func (f *Faulty) Fail(fault Fault) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fault = fault
}

// Forget returns the calls since the last time, as "put segments/…".
func (f *Faulty) Forget() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	calls := f.calls
	f.calls = nil
	return calls
}

// Most says how many calls of an operation below a first element were under way at once.
func (f *Faulty) Most(op objstore.Op, first string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.most[string(op)+" "+first]
}

func (f *Faulty) do(ctx context.Context, op objstore.Op, key string, call func(context.Context) error) (err error) {
	first, _, _ := strings.Cut(key, "/")
	kind := string(op) + " " + first
	f.mu.Lock()
	f.calls = append(f.calls, string(op)+" "+key)
	f.now[kind]++
	f.most[kind] = max(f.most[kind], f.now[kind])
	fault := f.fault
	f.mu.Unlock()
	defer func() {
		f.mu.Lock()
		f.now[kind]--
		f.mu.Unlock()
	}()
	if fault != nil {
		err = fault(ctx, op, key)
	}
	if errors.Is(err, ErrAnswerLost) {
		ctx = context.WithoutCancel(ctx) // it is under way
	} else if err != nil {
		return err
	}
	if done := call(ctx); done != nil {
		return done
	}
	return err
}

// Get is Bucket's.
func (f *Faulty) Get(ctx context.Context, key string, o objstore.GetOptions) (obj *objstore.Object, err error) {
	err = f.do(ctx, objstore.OpGet, key, func(ctx context.Context) error { obj, err = f.Bucket.Get(ctx, key, o); return err })
	return obj, err
}

// Put is Bucket's.
func (f *Faulty) Put(ctx context.Context, key string, body io.ReadSeeker, c objstore.Condition) (r objstore.PutResult, err error) {
	err = f.do(ctx, objstore.OpPut, key, func(ctx context.Context) error { r, err = f.Bucket.Put(ctx, key, body, c); return err })
	return r, err
}

// Delete is Bucket's.
func (f *Faulty) Delete(ctx context.Context, key string) error {
	return f.do(ctx, objstore.OpDelete, key, func(ctx context.Context) error { return f.Bucket.Delete(ctx, key) })
}

// List is Bucket's.
func (f *Faulty) List(ctx context.Context, o objstore.ListOptions) (p *objstore.Page, err error) {
	err = f.do(ctx, objstore.OpList, o.Prefix, func(ctx context.Context) error { p, err = f.Bucket.List(ctx, o); return err })
	return p, err
}
