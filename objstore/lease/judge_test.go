package lease_test

import (
	"testing"
	"testing/synctest"
	"time"

	"ingest-agent/objstore"
	"ingest-agent/objstore/lease"
)

func TestJudge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		now := time.Now()
		modified := now.Add(-5000 * time.Hour) // by a clock that is nobody's here
		seen := func(holder string, since, bucketAge time.Duration) lease.Seen {
			return lease.Seen{
				Record: lease.Record{Epoch: 1, Holder: holder}, Version: "v", Since: now.Add(-since), Modified: modified, Date: modified.Add(bucketAge),
			}
		}
		unknownTime := seen("b", 0, 0)
		unknownTime.Modified = time.Time{}
		for _, test := range []struct {
			name string
			seen lease.Seen
			want lease.Verdict
		}{
			{"absent", lease.Seen{Since: now.Add(-2 * testT)}, lease.Absent},
			{"free", seen("", 0, 0), lease.Free},
			{"mine", seen("a", 2*testT, 2*testT), lease.Mine},
			{"beating", seen("b", 0, 0), lease.Beating},
			{"watched for a nanosecond less", seen("b", testT-1, 0), lease.Beating},
			{"watched for the whole time", seen("b", testT, 0), lease.Silent},
			{"as old as that, in whole seconds", seen("b", 0, testT), lease.Beating}, // of which one may not have passed
			{"a second older", seen("b", 0, testT+time.Second), lease.Silent},
			{"from the bucket's future", seen("b", 0, -testT), lease.Beating},
			{"written at an unknown time", unknownTime, lease.Beating},
		} {
			if got := as(newStore(), "a").Judge(test.seen); got != test.want {
				t.Errorf("%s: verdict %d, want %d", test.name, got, test.want)
			}
		}
	})
}

// By the bucket's whole seconds a beat is never taken for older than it is, wherever in a second the beat and the look fall.
func TestSilentByWholeSeconds(t *testing.T) {
	for _, phase := range []time.Duration{0, 1, 400 * time.Millisecond, 999999999} {
		for _, look := range []time.Duration{testT - time.Second, testT - 1, testT, testT + 999999999, testT + 2*time.Second} {
			synctest.Test(t, func(t *testing.T) {
				s := newStore()
				time.Sleep(phase)
				acquire(t, as(s, "a"))
				time.Sleep(look)
				other := as(s, "b")
				silent := other.Judge(observe(t, other, lease.Seen{})) == lease.Silent
				if silent && look < testT || !silent && look >= testT+2*time.Second {
					t.Errorf("a beat at %s in the second is silent after %s: %v", phase, look, silent)
				}
			})
		}
	}
}

// Who watches counts from when the beat first reached him. A beat begins that anew; what others amend does not, or they could
// make a dead holder look alive for ever.
func TestObserveSince(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore()
		s.SetSkew(-1000 * time.Hour)
		b := as(s, "b")
		absent := observe(t, b, lease.Seen{})
		time.Sleep(time.Second)
		if again := observe(t, b, absent); again.Since != absent.Since || b.Judge(again) != lease.Absent {
			t.Errorf("absent: %+v", again)
		}
		l := acquire(t, as(s, "a"))
		time.Sleep(time.Second)
		first := observe(t, b, absent)
		if first.Since != time.Now() {
			t.Errorf("created: since %s, it is %s", first.Since, time.Now())
		}
		for i := range 3 {
			time.Sleep(testT / 4)
			change(t, s, lease.Amend, setAmended(i))
			seen := observe(t, b, first)
			if seen.Version == first.Version || seen.Since != first.Since || b.Judge(seen) != lease.Beating {
				t.Errorf("amended: %+v", seen)
			}
			first = seen
		}
		time.Sleep(testT / 4)
		if b.Judge(first) != lease.Silent {
			t.Error("amended: not silent")
		}
		if err := l.Renew(t.Context(), nil); err != nil {
			t.Fatal(err)
		}
		seen := observe(t, b, first)
		if seen.Since != time.Now() || b.Judge(seen) != lease.Beating {
			t.Errorf("beat: %+v", seen)
		}
		s.forget()
		if again := observe(t, b, seen); again.Since != seen.Since || again.WriteID != seen.WriteID {
			t.Errorf("unchanged: %+v", again)
		}
		s.next(objstore.OpGet, fails(objstore.ErrDenied))
		_, err := b.Observe(t.Context(), seen)
		wantErrors(t, "denied", err, objstore.ErrDenied)
	})
}
