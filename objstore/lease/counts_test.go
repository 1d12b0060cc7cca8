package lease_test

import (
	"testing"
	"testing/synctest"
	"time"

	"ingest-agent/objstore"
	"ingest-agent/objstore/lease"
)

// TestRequestCounts holds every operation against what it costs in calls to the bucket.
func TestRequestCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore()
		a, b := as(s, "a"), as(s, "b")
		var seen lease.Seen
		var l *lease.Lease
		look := func() (err error) { seen, err = b.Observe(t.Context(), seen); return err }
		amended := func() { change(t, s, lease.Amend, setAmended(1)) }
		lost := func() { s.next(objstore.OpPut, unanswered) }
		failed := func() { s.next(objstore.OpPut, fails(objstore.ErrUnknown)) }
		commit := func() error { return l.Commit(t.Context(), setCount(1)) }
		for _, test := range []struct {
			name       string
			before     func()
			call       func() error
			gets, puts int
		}{
			{"observe: absent", nil, look, 1, 0},
			{"acquire: create", nil, func() (err error) { l, err = a.Acquire(t.Context(), seen, nil); return err }, 0, 1},
			{"acquire: lost", nil, func() error { _, err := b.Acquire(t.Context(), seen, nil); return err }, 1, 1},
			{"observe", nil, look, 1, 0},
			{"observe: unchanged", nil, look, 1, 0},
			{"renew", nil, func() error { return l.Renew(t.Context(), nil) }, 0, 1},
			{"commit", nil, commit, 0, 1},
			{"commit: amended by others since", amended, commit, 1, 2},
			{"commit: answer lost", lost, commit, 1, 1},
			{"commit: failed once", failed, commit, 1, 2},
			{"keep: a minute, with StaleAfter of one", nil, func() error {
				_, stop := l.Keep(t.Context(), nil)
				defer stop()
				time.Sleep(testT)
				synctest.Wait()
				return nil
			}, 0, 6},
			{"release", nil, func() error { return l.Release(t.Context(), nil) }, 0, 1},
			{"renew: released", nil, func() error { return l.Renew(t.Context(), nil) }, 0, 0},
			{"acquire: take over", func() { seen = observe(t, a, lease.Seen{}) }, func() (err error) {
				l, err = a.Acquire(t.Context(), seen, nil)
				return err
			}, 0, 1},
			{"commit: fenced", func() { change(t, s, lease.Fence, nil) }, commit, 1, 1},
			{"change", func() { seen = observe(t, b, lease.Seen{}) }, func() error {
				_, err := b.Change(t.Context(), seen, lease.Amend, setAmended(2))
				return err
			}, 0, 1},
		} {
			if test.before != nil {
				test.before()
			}
			s.forget()
			_ = test.call() // the other tests look at what it returns
			calls, _ := s.forget()
			var gets, puts int
			for _, op := range calls {
				if op == objstore.OpGet {
					gets++
				} else {
					puts++
				}
			}
			if gets != test.gets || puts != test.puts {
				t.Errorf("%s: %d gets and %d puts, want %d and %d", test.name, gets, puts, test.gets, test.puts)
			}
		}
	})
}
