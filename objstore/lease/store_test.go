package lease_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"testing"
	_ "testing/synctest" // all that sleeps here runs in a bubble
	"time"

	"ingest-agent/objstore"
	"ingest-agent/objstore/lease"
	"ingest-agent/objstore/memory"
)

const (
	testKey = "fleet/scan.json"
	testT   = time.Minute
)

// fate is how a call ends. do is the call itself.
type fate func(ctx context.Context, do func(context.Context) error) error

func done(ctx context.Context, do func(context.Context) error) error { return do(ctx) }

func unanswered(ctx context.Context, do func(context.Context) error) error {
	return errors.Join(objstore.ErrUnknown, do(ctx))
}

// echo is what somebody sees whose request was sent twice.
func echo(ctx context.Context, do func(context.Context) error) error {
	return errors.Join(objstore.ErrPrecondition, do(ctx))
}

func fails(kinds ...error) fate {
	return func(context.Context, func(context.Context) error) error { return errors.Join(kinds...) }
}

func hangs(ctx context.Context, _ func(context.Context) error) error {
	<-ctx.Done()
	return fmt.Errorf("%w: %w", objstore.ErrUnknown, ctx.Err())
}

// slow takes a second, and reaches the bucket at the end of it.
func slow(ctx context.Context, do func(context.Context) error) error {
	time.Sleep(time.Second)
	return do(ctx)
}

// deaf hangs for a day, whatever becomes of its context.
func deaf(context.Context, func(context.Context) error) error {
	time.Sleep(24 * time.Hour)
	return objstore.ErrUnknown
}

// store is a bucket in memory, of which a test says how calls end, and which counts them.
type store struct {
	*memory.Bucket

	mu    sync.Mutex
	fates map[objstore.Op][]fate // of the next calls
	rest  map[objstore.Op]fate   // of those after them; nil: done
	calls []objstore.Op
	sent  []time.Time // when each was
}

func newStore() *store {
	return &store{Bucket: memory.New(), fates: map[objstore.Op][]fate{}, rest: map[objstore.Op]fate{}}
}

// next sets how the next calls end.
func (s *store) next(op objstore.Op, fates ...fate) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fates[op] = fates
}

// always sets how all calls end from now on.
func (s *store) always(op objstore.Op, f fate) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.rest[op] = f
}

// forget returns the calls so far, and begins to count anew.
func (s *store) forget() (calls []objstore.Op, sent []time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	calls, sent = s.calls, s.sent
	s.calls, s.sent = nil, nil
	return calls, sent
}

func (s *store) call(ctx context.Context, op objstore.Op, do func(context.Context) error) error {
	s.mu.Lock()
	s.calls, s.sent = append(s.calls, op), append(s.sent, time.Now())
	f := s.rest[op]
	if len(s.fates[op]) > 0 {
		f, s.fates[op] = s.fates[op][0], s.fates[op][1:]
	}
	s.mu.Unlock()
	if f == nil {
		f = done
	}
	return f(ctx, do)
}

func (s *store) Get(ctx context.Context, key string, o objstore.GetOptions) (obj *objstore.Object, err error) {
	err = s.call(ctx, objstore.OpGet, func(ctx context.Context) (err error) {
		obj, err = s.Bucket.Get(ctx, key, o)
		return err
	})
	return obj, err
}

func (s *store) Put(ctx context.Context, key string, body io.ReadSeeker, c objstore.Condition) (result objstore.PutResult, err error) {
	err = s.call(ctx, objstore.OpPut, func(ctx context.Context) (err error) {
		result, err = s.Bucket.Put(ctx, key, body, c)
		return err
	})
	if err != nil {
		return objstore.PutResult{}, err
	}
	return result, nil
}

// as is the register, as a process of that name sees it.
func as(b objstore.Bucket, holder string) *lease.Register {
	return lease.New(lease.Options{Bucket: b, Key: testKey, Holder: holder, Node: "node of " + holder, StaleAfter: testT})
}

func observe(t *testing.T, r *lease.Register, before lease.Seen) lease.Seen {
	t.Helper()
	seen, err := r.Observe(t.Context(), before)
	if err != nil {
		t.Fatal(err)
	}
	return seen
}

// acquire takes the register as it is now.
func acquire(t *testing.T, r *lease.Register) *lease.Lease {
	t.Helper()
	l, err := r.Acquire(t.Context(), observe(t, r, lease.Seen{}), nil)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// setCount is an edit.
func setCount(n int) lease.Edit {
	return func(r *lease.Record) error {
		b, err := lease.Body[body](r)
		b.Count = n
		return errors.Join(err, r.SetBody(b))
	}
}

// setAmended is an edit of somebody else's.
func setAmended(n int) lease.Edit {
	return func(r *lease.Record) error {
		b, err := lease.Body[body](r)
		b.Amended = n
		return errors.Join(err, r.SetBody(b))
	}
}

// change changes the register as it is now without holding it.
func change(t *testing.T, b objstore.Bucket, how lease.How, edit lease.Edit) {
	t.Helper()
	r := as(b, "")
	if _, err := r.Change(t.Context(), observe(t, r, lease.Seen{}), how, edit); err != nil {
		t.Fatal(err)
	}
}

// wantRegister compares what is in the bucket.
func wantRegister(t *testing.T, b objstore.Bucket, epoch lease.Epoch, holder string, want body) {
	t.Helper()
	seen := observe(t, as(b, ""), lease.Seen{})
	got, err := lease.Body[body](&seen.Record)
	if err != nil || seen.Epoch != epoch || seen.Holder != holder || got != want {
		t.Errorf("register: %s, body %+v, %v, want epoch %d of %q, body %+v", &seen, got, err, epoch, holder, want)
	}
}

// wantErrors checks that err is all of want and none of the other kinds that a caller acts on. No want: nil.
func wantErrors(t *testing.T, what string, err error, want ...error) {
	t.Helper()
	if (err == nil) != (len(want) == 0) {
		t.Errorf("%s: got error %v, want %v", what, err, want)
		return
	}
	for _, kind := range []error{
		lease.ErrFenced, lease.ErrLapsed, lease.ErrLost, lease.ErrFormat, lease.ErrTooLarge,
		objstore.ErrUnknown, objstore.ErrDenied, objstore.ErrUnsupported, objstore.ErrInvalid,
	} {
		wanted := false
		for _, w := range want {
			wanted = wanted || errors.Is(w, kind)
		}
		if errors.Is(err, kind) != wanted {
			t.Errorf("%s: got error %v, want %v", what, err, want)
			return
		}
	}
}
