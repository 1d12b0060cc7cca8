package lease_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"ingest-agent/objstore"
	"ingest-agent/objstore/lease"
)

// overwrite is somebody who keeps no rules.
func overwrite(t *testing.T, s *store, text string) {
	t.Helper()
	if _, err := s.Bucket.Put(t.Context(), testKey, strings.NewReader(text), objstore.Condition{}); err != nil {
		t.Error(err)
	}
}

const laterFormat = `{"format":2,"owner":"x"}`

// TestCommitOutcomes lets a commit of a held lease go all the ways that a change can go: what the caller is told, what was
// asked of the bucket for it, whether the lease is held after it, and what the register is then.
func TestCommitOutcomes(t *testing.T) {
	get, put := objstore.OpGet, objstore.OpPut
	unknown := fails(objstore.ErrUnknown)
	skewed := fails(objstore.ErrUnknown, objstore.ErrClockSkew)
	mine := []body{{Count: 7}}
	for _, test := range []struct {
		name    string
		prepare func(t *testing.T, s *store)
		puts    []fate
		gets    []fate
		want    []error
		calls   []objstore.Op
		held    bool
		body    []body // of the register, while it is epoch 1 of "a"; none: it is not
	}{
		{name: "done", calls: []objstore.Op{put}, held: true, body: mine},
		{name: "done, answer lost", puts: []fate{unanswered}, calls: []objstore.Op{put, get}, held: true, body: mine},
		{name: "an error of no kind", puts: []fate{fails(errors.New("no kind"))}, calls: []objstore.Op{put, get, put}, held: true, body: mine},
		{name: "not done", puts: []fate{unknown}, calls: []objstore.Op{put, get, put}, held: true, body: mine},
		{name: "409 for a while", puts: []fate{unknown, unknown, unknown}, calls: []objstore.Op{put, get, put, get, put, get, put}, held: true, body: mine},
		{name: "412 that is our own echo", puts: []fate{echo}, calls: []objstore.Op{put, get}, held: true, body: mine},
		{
			name: "answer lost, and reads fail", puts: []fate{unanswered}, gets: []fate{unknown, hangs},
			calls: []objstore.Op{put, get, get, get}, held: true, body: mine,
		},
		{name: "403 clock skew", puts: []fate{skewed, skewed}, calls: []objstore.Op{put, put, put}, held: true, body: mine},
		{
			name: "amended by another", prepare: func(t *testing.T, s *store) { change(t, s, lease.Amend, setAmended(3)) },
			calls: []objstore.Op{put, get, put}, held: true, body: []body{{Count: 7, Amended: 3}},
		},
		{
			name: "vacated by another", prepare: func(t *testing.T, s *store) { change(t, s, lease.Vacate, nil) },
			want: []error{lease.ErrFenced}, calls: []objstore.Op{put, get},
		},
		{
			name: "fenced by another", prepare: func(t *testing.T, s *store) { change(t, s, lease.Fence, nil) },
			want: []error{lease.ErrFenced}, calls: []objstore.Op{put, get},
		},
		{
			name: "404 on If-Match: deleted", prepare: func(t *testing.T, s *store) {
				if err := s.Delete(t.Context(), testKey); err != nil {
					t.Error(err)
				}
			},
			want: []error{lease.ErrFenced}, calls: []objstore.Op{put, get},
		},
		{
			name: "later format", prepare: func(t *testing.T, s *store) { overwrite(t, s, laterFormat) },
			want: []error{lease.ErrFenced, lease.ErrFormat}, calls: []objstore.Op{put, get},
		},
		{
			name: "damaged", prepare: func(t *testing.T, s *store) { overwrite(t, s, `{"format":1,`) },
			want: []error{lease.ErrFenced, lease.ErrFormat}, calls: []objstore.Op{put, get},
		},
		{
			name: "denied", puts: []fate{fails(objstore.ErrDenied)}, want: []error{objstore.ErrDenied}, calls: []objstore.Op{put},
			held: true, body: []body{{}},
		},
		{
			name: "not done, then denied", puts: []fate{unknown, fails(objstore.ErrDenied)},
			want: []error{objstore.ErrUnknown, objstore.ErrDenied}, calls: []objstore.Op{put, get, put}, body: []body{{}},
		},
		{
			name: "answer lost, read denied", puts: []fate{unanswered}, gets: []fate{fails(objstore.ErrDenied)},
			want: []error{objstore.ErrUnknown, objstore.ErrDenied}, calls: []objstore.Op{put, get}, body: mine,
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newStore()
				l := acquire(t, as(s, "a"))
				if test.prepare != nil {
					test.prepare(t, s)
				}
				s.forget()
				s.next(put, test.puts...)
				s.next(get, test.gets...)
				wantErrors(t, "commit", l.Commit(t.Context(), setCount(7)), test.want...)
				if calls, _ := s.forget(); !slices.Equal(calls, test.calls) {
					t.Errorf("calls: %v, want %v", calls, test.calls)
				}
				if l.Held() != test.held {
					t.Errorf("held: %v, want %v", l.Held(), test.held)
				}
				for _, want := range test.body {
					wantRegister(t, s, 1, "a", want)
					if err := l.Renew(t.Context(), nil); err != nil || !l.Held() {
						t.Errorf("renew: %v, held %v", err, l.Held())
					}
				}
				if len(test.body) > 0 {
					return
				}
				wantErrors(t, "renew", l.Renew(t.Context(), nil), test.want...)
				wantErrors(t, "release", l.Release(t.Context(), nil), test.want...)
				if calls, _ := s.forget(); len(calls) > 0 {
					t.Errorf("a fenced lease calls the bucket: %v", calls)
				}
			})
		})
	}
}

// A commit that was in force when the lease was lost is neither done for its caller nor undone.
func TestCommitFencedInDoubt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore()
		l := acquire(t, as(s, "a"))
		s.next(objstore.OpPut, func(_ context.Context, do func(context.Context) error) error {
			err := do(t.Context())
			change(t, s, lease.Vacate, nil)
			return errors.Join(objstore.ErrUnknown, err)
		})
		wantErrors(t, "commit", l.Commit(t.Context(), setCount(7)), lease.ErrFenced, objstore.ErrUnknown)
		wantErrors(t, "the next", l.Commit(t.Context(), setCount(8)), lease.ErrFenced)
		last := l.Last()
		if b, err := lease.Body[body](&last.Record); err != nil || b.Count != 7 || last.Holder != "" {
			t.Errorf("last: %s, %+v, %v, want what fenced the lease, with the commit in it", &last, b, err)
		}
	})
}

// A change of a register that one does not hold, or not yet, tells the same difference.
func TestLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore()
		b := as(s, "b")
		absent := observe(t, b, lease.Seen{})
		l := acquire(t, as(s, "a"))
		_, err := b.Acquire(t.Context(), absent, nil)
		wantErrors(t, "acquire what others have created", err, lease.ErrLost)
		old := observe(t, b, lease.Seen{})
		_, err = b.Acquire(t.Context(), old, nil)
		wantErrors(t, "acquire what is beating", err, objstore.ErrInvalid)
		time.Sleep(testT)
		if err := l.Renew(t.Context(), nil); err != nil {
			t.Fatal(err)
		}
		_, err = b.Acquire(t.Context(), old, nil)
		wantErrors(t, "acquire what has beaten since", err, lease.ErrLost)
		_, err = b.Change(t.Context(), old, lease.Fence, nil)
		wantErrors(t, "change what has beaten since", err, lease.ErrLost)
		s.next(objstore.OpPut, func(_ context.Context, do func(context.Context) error) error {
			err := do(t.Context())
			if err := l.Renew(t.Context(), nil); err != nil {
				t.Error(err)
			}
			return errors.Join(objstore.ErrUnknown, err)
		})
		_, err = b.Change(t.Context(), observe(t, b, lease.Seen{}), lease.Amend, setAmended(1))
		wantErrors(t, "change that was in force before the holder went on", err, lease.ErrLost, objstore.ErrUnknown)
		wantRegister(t, s, 1, "a", body{Amended: 1})
	})
}

// An Acquire that was given up may land later: then the register is Mine, and taken again.
func TestAcquireMine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore()
		r := as(s, "a")
		land := make(chan struct{})
		landed := make(chan error, 1)
		s.next(objstore.OpPut, func(ctx context.Context, do func(context.Context) error) error {
			go func() { // joined by landed
				<-land
				landed <- do(context.WithoutCancel(ctx))
			}()
			return hangs(ctx, do)
		})
		s.always(objstore.OpGet, fails(objstore.ErrUnknown))
		ctx, cancel := context.WithTimeout(t.Context(), testT)
		defer cancel()
		_, err := r.Acquire(ctx, lease.Seen{}, nil)
		wantErrors(t, "acquire", err, objstore.ErrUnknown)
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("acquire: got error %v, want the context's beside", err)
		}
		s.always(objstore.OpGet, nil)
		if v := r.Judge(observe(t, r, lease.Seen{})); v != lease.Absent {
			t.Errorf("before the late write: verdict %d", v)
		}
		close(land)
		if err := <-landed; err != nil {
			t.Fatal(err)
		}
		seen := observe(t, r, lease.Seen{})
		if v := r.Judge(seen); v != lease.Mine {
			t.Errorf("after the late write: verdict %d, want Mine", v)
		}
		l, err := r.Acquire(t.Context(), seen, nil)
		if err != nil || l.Epoch() != 2 || !l.Held() {
			t.Errorf("acquire again: %v, %v", l, err)
		}
	})
}

// A process that takes again what it holds already has a new epoch, and the lease of the old one is fenced by it.
func TestAcquireAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore()
		old := acquire(t, as(s, "a"))
		l := acquire(t, as(s, "a"))
		wantErrors(t, "the old one", old.Renew(t.Context(), nil), lease.ErrFenced)
		wantErrors(t, "the new one", l.Renew(t.Context(), nil))
		wantRegister(t, s, 2, "a", body{})
	})
}

// A change of a lease that is held ends when that lapses, whatever time the caller would give it.
func TestCommitEndsWhenTheLeaseLapses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore()
		l := acquire(t, as(s, "a"))
		start := time.Now()
		s.always(objstore.OpPut, hangs)
		wantErrors(t, "commit", l.Commit(t.Context(), setCount(1)), lease.ErrLapsed, objstore.ErrUnknown)
		if took := time.Since(start); took != testT/2 {
			t.Errorf("commit took %s, want %s", took, testT/2)
		}
	})
}

// A beat that is found by reading back counts from when it was first sent, however long the reading took. Where that is too
// long ago, Renew sends another.
func TestBeatReadBackCountsFromFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore()
		l := acquire(t, as(s, "a"))
		start := time.Now()
		s.next(objstore.OpPut, fails(objstore.ErrUnknown), echo)
		s.next(objstore.OpGet, hangs)
		wantErrors(t, "renew", l.Renew(t.Context(), nil))
		time.Sleep(testT/2 - 1 - time.Since(start))
		if !l.Held() {
			t.Error("not held for long enough")
		}
		time.Sleep(time.Nanosecond)
		if l.Held() {
			t.Error("held for longer than from the first try on")
		}

		s.next(objstore.OpPut, unanswered)
		s.next(objstore.OpGet, slices.Repeat([]fate{hangs}, 4)...)
		s.forget()
		wantErrors(t, "renew that takes long", l.Renew(t.Context(), nil))
		if !l.Held() {
			t.Error("not held after a renew")
		}
		if at, others := puts(s, time.Now()); len(at) != 2 || others != 5 {
			t.Errorf("writes at %v and %d other calls, want 2 and 5", at, others)
		}
	})
}

// A Release whose answer was lost is settled, by itself or by the next call, with one write id.
func TestReleaseSettled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore()
		release := func(r *lease.Record) error { r.State = "queued"; return nil }
		l := acquire(t, as(s, "a"))
		s.next(objstore.OpPut, unanswered)
		wantErrors(t, "release", l.Release(t.Context(), release))
		wantErrors(t, "after it", l.Commit(t.Context(), nil), lease.ErrFenced)
		wantRegister(t, s, 1, "", body{})

		l = acquire(t, as(s, "b"))
		s.next(objstore.OpPut, unanswered)
		s.always(objstore.OpGet, hangs)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		wantErrors(t, "release that is given up", l.Release(ctx, release), objstore.ErrUnknown)
		if l.Held() {
			t.Error("held although the release may be in force")
		}
		wantErrors(t, "commit", l.Commit(t.Context(), nil), lease.ErrLapsed)
		s.always(objstore.OpGet, nil)
		s.forget()
		wantErrors(t, "the same again", l.Release(t.Context(), release))
		if calls, _ := s.forget(); !slices.Equal(calls, []objstore.Op{objstore.OpPut, objstore.OpGet}) {
			t.Errorf("the same again: calls %v", calls)
		}
		wantRegister(t, s, 2, "", body{})

		l = acquire(t, as(s, "c"))
		s.next(objstore.OpPut, fails(objstore.ErrDenied))
		wantErrors(t, "release that is refused", l.Release(t.Context(), release), objstore.ErrDenied)
		if l.Held() {
			t.Error("held although it was to be released")
		}
		wantErrors(t, "renew instead", l.Renew(t.Context(), nil))
		if !l.Held() {
			t.Error("not held after a renew")
		}
		wantRegister(t, s, 3, "c", body{})
	})
}

// An edit that refuses ends the change, with nothing sent.
func TestEditRefuses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore()
		l := acquire(t, as(s, "a"))
		s.forget()
		no := errors.New("no")
		if err := l.Commit(t.Context(), func(*lease.Record) error { return no }); !errors.Is(err, no) {
			t.Errorf("got error %v", err)
		}
		if calls, _ := s.forget(); len(calls) > 0 || !l.Held() {
			t.Errorf("calls %v, held %v", calls, l.Held())
		}
		if err := l.Commit(t.Context(), func(r *lease.Record) error {
			r.Epoch, r.Holder, r.WriteID, r.Beat = 99, "x", "x", 99
			return nil
		}); err != nil {
			t.Error(err)
		}
		wantRegister(t, s, 1, "a", body{})
		_, err := as(s, "").Acquire(t.Context(), lease.Seen{}, nil)
		wantErrors(t, "acquire without a holder", err, objstore.ErrInvalid)
	})
}

// Case 71: a store that answers 501 to preconditions is not asked again and again.
func TestCase71PreconditionUnsupported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore()
		s.always(objstore.OpPut, fails(objstore.ErrUnsupported))
		_, err := as(s, "a").Acquire(t.Context(), lease.Seen{}, nil)
		wantErrors(t, "acquire", err, objstore.ErrUnsupported)
		if calls, _ := s.forget(); len(calls) != 1 {
			t.Errorf("calls: %v", calls)
		}
	})
}
