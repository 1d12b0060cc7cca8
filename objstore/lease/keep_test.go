package lease_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"ingest-agent/objstore"
	"ingest-agent/objstore/lease"
)

// puts are the times of the writes since start, and how many other calls there were.
func puts(s *store, start time.Time) (at []time.Duration, others int) {
	calls, sent := s.forget()
	for i, op := range calls {
		if op == objstore.OpPut {
			at = append(at, sent[i].Sub(start))
		} else {
			others++
		}
	}
	return at, others
}

// Beats go out every sixth of StaleAfter, or that long after a commit, and end with stop.
func TestKeepBeats(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore()
		start := time.Now()
		l := acquire(t, as(s, "a"))
		s.forget()
		ctx, stop := l.Keep(t.Context(), nil)
		time.Sleep(testT)
		synctest.Wait()
		second := time.Second
		at, others := puts(s, start)
		if want := []time.Duration{10 * second, 20 * second, 30 * second, 40 * second, 50 * second, 60 * second}; !slices.Equal(at, want) || others > 0 {
			t.Errorf("beats at %v and %d other calls, want %v", at, others, want)
		}
		time.Sleep(5 * second)
		if err := l.Commit(ctx, setCount(1)); err != nil {
			t.Error(err)
		}
		time.Sleep(15 * second)
		synctest.Wait()
		if at, _ := puts(s, start); !slices.Equal(at, []time.Duration{65 * second, 75 * second}) {
			t.Errorf("after a commit: writes at %v", at)
		}
		if ctx.Err() != nil || !l.Held() {
			t.Errorf("context %v, held %v", ctx.Err(), l.Held())
		}
		stop()
		if !errors.Is(context.Cause(ctx), context.Canceled) || !l.Held() {
			t.Errorf("after stop: cause %v, held %v", context.Cause(ctx), l.Held())
		}
		time.Sleep(testT)
		if at, others := puts(s, start); len(at)+others > 0 {
			t.Errorf("after stop: writes at %v, %d other calls", at, others)
		}
		if l.Held() {
			t.Error("held long after the last beat")
		}
	})
}

// Without a confirmed beat the context of Keep ends at half of StaleAfter, counted from when the last confirmed one was sent,
// to the nanosecond, whatever the bucket does; and the lease is not held from then on.
func TestKeepEndsAtHalf(t *testing.T) {
	unknown, denied := fails(objstore.ErrUnknown), fails(objstore.ErrDenied)
	skewed := fails(objstore.ErrUnknown, objstore.ErrClockSkew)
	for _, test := range []struct {
		name     string
		put, get fate
		cause    []error
	}{
		{"calls fail", unknown, unknown, []error{objstore.ErrUnknown}},
		{"calls hang", hangs, hangs, []error{objstore.ErrUnknown}},
		{"calls hang longer than they may", deaf, deaf, nil},
		{"writes hang", hangs, nil, []error{objstore.ErrUnknown}},
		{"writes are done, answers and reads are lost", unanswered, hangs, []error{objstore.ErrUnknown}},
		{"denied", denied, denied, []error{objstore.ErrDenied}},
		{"clock skew", skewed, skewed, []error{objstore.ErrUnknown, objstore.ErrClockSkew}},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newStore()
				s.always(objstore.OpPut, slow)
				l := acquire(t, as(s, "a"))
				ctx, stop := l.Keep(t.Context(), nil)
				defer stop()
				time.Sleep(testT/6 - time.Second) // a beat is on its way: it was sent a sixth after the Acquire was
				synctest.Wait()
				last := time.Now()
				s.always(objstore.OpPut, test.put)
				s.always(objstore.OpGet, test.get)
				time.Sleep(testT/2 - 1)
				synctest.Wait()
				if ctx.Err() != nil {
					t.Fatalf("ended a nanosecond early: %v", context.Cause(ctx))
				}
				<-ctx.Done()
				if after := time.Since(last); after != testT/2 {
					t.Errorf("ended %s after the last confirmed beat, want %s", after, testT/2)
				}
				cause := context.Cause(ctx)
				for _, want := range append(test.cause, lease.ErrLapsed) {
					if !errors.Is(cause, want) {
						t.Errorf("cause %v, want %v in it", cause, want)
					}
				}
				if l.Held() {
					t.Error("still held")
				}
				s.forget()
				wantErrors(t, "commit", l.Commit(t.Context(), setCount(1)), lease.ErrLapsed)
				synctest.Wait()
				if calls, _ := s.forget(); len(calls) > 0 {
					t.Errorf("a lapsed lease and its keeper call the bucket: %v", calls)
				}
				s.always(objstore.OpPut, nil)
				s.always(objstore.OpGet, nil)
				if err := l.Renew(t.Context(), nil); err != nil || !l.Held() {
					t.Errorf("renew after that: %v, held %v", err, l.Held())
				}
				if ctx.Err() == nil {
					t.Error("the context came back to life")
				}
			})
		})
	}
}

// A call that hangs is ended in time for another.
func TestKeepOutlivesAHangingCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore()
		l := acquire(t, as(s, "a"))
		s.next(objstore.OpPut, hangs)
		ctx, stop := l.Keep(t.Context(), nil)
		defer stop()
		time.Sleep(testT/6 + testT/12)
		if l.Held() != true {
			t.Error("not held before a call has an unknown outcome")
		}
		time.Sleep(testT)
		synctest.Wait()
		if ctx.Err() != nil || !l.Held() {
			t.Errorf("context %v, held %v", context.Cause(ctx), l.Held())
		}
		wantRegister(t, s, 1, "a", body{})
	})
}

// stop does not wait for the bucket. What it cuts off is open, until a Renew settles it.
func TestKeepStoppedInACall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore()
		l := acquire(t, as(s, "a"))
		s.next(objstore.OpPut, hangs)
		_, stop := l.Keep(t.Context(), nil)
		time.Sleep(testT/6 + time.Second)
		before := time.Now()
		stop()
		if took := time.Since(before); took > 0 {
			t.Errorf("stop took %s", took)
		}
		wantErrors(t, "commit", l.Commit(t.Context(), nil), lease.ErrLapsed)
		if err := l.Renew(t.Context(), nil); err != nil || !l.Held() {
			t.Errorf("renew: %v, held %v", err, l.Held())
		}
		if err := l.Commit(t.Context(), setCount(1)); err != nil {
			t.Error(err)
		}
	})
}

// stop waits for the keeper, also where a call does not end with its context.
func TestKeepIsJoined(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore()
		l := acquire(t, as(s, "a"))
		start := time.Now()
		s.next(objstore.OpPut, deaf)
		_, stop := l.Keep(t.Context(), nil)
		time.Sleep(testT/6 + time.Second)
		stop()
		if took := time.Since(start); took != testT/6+24*time.Hour {
			t.Errorf("stop has not waited: %s", took)
		}
	})
}

// A keeper hears with its next beat that it is fenced, and at once that its lease is released or over.
func TestKeepFenced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore()
		l := acquire(t, as(s, "a"))
		start := time.Now()
		ctx, stop := l.Keep(t.Context(), nil)
		defer stop()
		time.Sleep(time.Second)
		change(t, s, lease.Fence, nil)
		<-ctx.Done()
		wantErrors(t, "cause", context.Cause(ctx), lease.ErrFenced)
		if after := time.Since(start); after != testT/6 {
			t.Errorf("told after %s, want %s", after, testT/6)
		}

		l = acquire(t, as(s, "b"))
		ctx, stopSecond := l.Keep(t.Context(), nil)
		defer stopSecond()
		s.next(objstore.OpPut, func(context.Context, func(context.Context) error) error {
			if ctx.Err() == nil || l.Held() {
				t.Error("a release is sent while the holder may act")
			}
			return objstore.ErrUnknown
		})
		if err := l.Release(t.Context(), nil); err != nil {
			t.Error(err)
		}
		wantRegister(t, s, 3, "", body{})
		ctx, stopThird := l.Keep(t.Context(), nil)
		defer stopThird()
		wantErrors(t, "cause where it was over before", context.Cause(ctx), lease.ErrFenced)
	})
}

// Case 76: a store that refuses this host's clock for a minute. It is waited for; nothing is given up before the lease lapses,
// and what lapsed is got back if nobody has taken it.
func TestCase76ClockSkew(t *testing.T) {
	for _, test := range []struct {
		name   string
		lasts  time.Duration
		lapses bool
	}{{"twenty seconds", 20 * time.Second, false}, {"a minute", time.Minute, true}} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newStore()
				l := acquire(t, as(s, "a"))
				start := time.Now()
				skewed := fails(objstore.ErrUnknown, objstore.ErrClockSkew)
				s.always(objstore.OpPut, skewed)
				s.always(objstore.OpGet, skewed)
				ctx, stop := l.Keep(t.Context(), nil)
				defer stop()
				time.Sleep(test.lasts)
				synctest.Wait()
				s.always(objstore.OpPut, nil)
				s.always(objstore.OpGet, nil)
				if lapsed := ctx.Err() != nil; lapsed != test.lapses {
					t.Fatalf("lapsed: %v, %v", lapsed, context.Cause(ctx))
				}
				if test.lapses {
					if at, _ := puts(s, start); at[len(at)-1] >= testT/2 {
						t.Errorf("a write at %s of a lease that has lapsed", at[len(at)-1])
					}
					wantErrors(t, "renew", l.Renew(t.Context(), nil))
				} else {
					time.Sleep(testT)
				}
				if l.Epoch() != 1 || !l.Held() {
					t.Errorf("epoch %d, held %v", l.Epoch(), l.Held())
				}
				wantRegister(t, s, 1, "a", body{})
			})
		})
	}
}

// Case 86: the bucket is out of reach for the holder alone, for twice StaleAfter. Its context ends half of StaleAfter, which
// is the margin, before anybody else may judge it silent, however that is judged and wherever the bucket's clock stands. Then
// another takes over, and the first is fenced.
func TestCase86HolderStopsBeforeOthersMayAct(t *testing.T) {
	for _, skew := range []time.Duration{0, 1000 * time.Hour, -1000*time.Hour - 1, 500 * time.Millisecond} {
		t.Run(skew.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				shared := newStore()
				shared.SetSkew(skew)
				cut := &store{Bucket: shared.Bucket, fates: map[objstore.Op][]fate{}, rest: map[objstore.Op]fate{}}
				l := acquire(t, as(cut, "a"))
				sent := time.Now()
				other := as(shared, "b")
				warm := observe(t, other, lease.Seen{})
				cut.always(objstore.OpPut, hangs)
				cut.always(objstore.OpGet, hangs)
				ctx, stop := l.Keep(t.Context(), nil)
				ended := make(chan time.Duration, 1)
				context.AfterFunc(ctx, func() { ended <- time.Since(sent) })
				var byTime, byBucket time.Duration
				for warm = observe(t, other, warm); byBucket == 0; warm = observe(t, other, warm) {
					cold := observe(t, other, lease.Seen{})
					now := time.Since(sent)
					if byTime == 0 && other.Judge(warm) == lease.Silent {
						byTime = now
					}
					if byBucket == 0 && other.Judge(cold) == lease.Silent {
						byBucket = now
					}
					time.Sleep(50 * time.Millisecond)
				}
				stop()
				if ended := <-ended; ended != testT/2 || byTime != testT || byBucket < testT || byBucket > testT+2*time.Second {
					t.Errorf("holder's context ended after %s; silent to who has watched after %s, to who has not after %s", ended, byTime, byBucket)
				}
				if _, err := other.Acquire(t.Context(), warm, nil); err != nil {
					t.Fatal(err)
				}
				time.Sleep(testT)
				cut.always(objstore.OpPut, nil)
				cut.always(objstore.OpGet, nil)
				wantErrors(t, "renew", l.Renew(t.Context(), nil), lease.ErrFenced)
				wantRegister(t, shared, 2, "b", body{})
			})
		})
	}
}
