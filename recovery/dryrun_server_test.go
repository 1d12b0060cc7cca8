//go:build unix

package recovery_test

import (
	"context"
	"flag"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"ingest-agent/objstore"
	"ingest-agent/objstore/lease"
	"ingest-agent/objstore/s3"
	"ingest-agent/objstore/s3/s3test"
	"ingest-agent/recovery"
	"ingest-agent/recovery/owner"
	"ingest-agent/segment"
)

var (
	dryOwners  = flag.Int("dryrun.owners", 50, "registers of TestDryRunRequests")
	dryOwing   = flag.Int("dryrun.owing", 10, "owners that owe, of TestDryRunRequests")
	dryObjects = flag.Int("dryrun.objects", 5000, "objects of TestDryRunRequests")
)

// readers is the wire of somebody who may read: what else he asks for is refused, as by his credentials. It counts.
type readers struct {
	http.RoundTripper

	gets, lists, others  atomic.Int64
	reading, mostReading atomic.Int64
	mu                   sync.Mutex
	read                 map[string]int
}

func (w *readers) RoundTrip(r *http.Request) (*http.Response, error) {
	_, key, isObject := strings.Cut(r.URL.Path, "/test-bucket/")
	switch {
	case r.Method != http.MethodGet:
		w.others.Add(1)
		return &http.Response{
			StatusCode: http.StatusForbidden, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Request: r,
			Header: http.Header{"Content-Type": {"application/xml"}}, Body: io.NopCloser(strings.NewReader("<Error><Code>AccessDenied</Code></Error>")),
		}, nil
	case !isObject || key == "":
		w.lists.Add(1)
	default:
		w.gets.Add(1)
		w.mu.Lock()
		w.read[key]++
		w.mu.Unlock()
		n := w.reading.Add(1)
		defer w.reading.Add(-1)
		for most := w.mostReading.Load(); n > most && !w.mostReading.CompareAndSwap(most, n); most = w.mostReading.Load() {
		}
	}
	return w.RoundTripper.RoundTrip(r)
}

// fillInParallel calls do for 0 to n-1 over several connections.
func fillInParallel(n int, do func(i int)) {
	next := make(chan int)
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			for i := range next {
				do(i)
			}
		})
	}
	for i := range n {
		next <- i
	}
	close(next)
	wg.Wait()
}

// TestDryRunRequests counts what a dry run asks of a real server, over a connection that takes no writes: one GET for each
// register, at most 16 at a time, and the pages of two listings.
func TestDryRunRequests(t *testing.T) {
	const pageKeys = 1000
	server := s3test.Start(t)
	transport := &http.Transport{MaxIdleConnsPerHost: 16}
	defer transport.CloseIdleConnections()
	f := newFixture(t, server.Open(t, "", s3.Options{Transport: transport}))
	began := time.Now()
	ids := make([]string, *dryOwners)
	for i := range ids {
		ids[i] = f.id()
	}
	each := *dryObjects / *dryOwing
	fillInParallel(len(ids), func(i int) { f.serverOwner(ids[i], i < *dryOwing, each) })
	t.Logf("%d registers written in %s", len(ids), time.Since(began).Round(time.Millisecond))
	began = time.Now()
	fillInParallel(each**dryOwing, func(i int) { f.object(ids[i/each], uint64(i%each/10+1), uint32(i%10+1), uint32(i%10+1)) })
	t.Logf("%d objects written in %s", each**dryOwing, time.Since(began).Round(time.Millisecond))

	wire := &readers{RoundTripper: transport, read: map[string]int{}}
	var counts sync.Map
	b := objstore.Observe(server.Open(t, "", s3.Options{Transport: wire}), func(op objstore.Op, outcome string, _ time.Duration, _ int64) {
		n, _ := counts.LoadOrStore(string(op)+" "+outcome, new(atomic.Int64))
		n.(*atomic.Int64).Add(1)
	})
	if _, err := b.Put(t.Context(), "x", strings.NewReader("x"), objstore.Condition{}); objstore.Outcome(err) != "denied" {
		t.Fatalf("a write: %v", err)
	}
	if wire.others.Swap(0) == 0 {
		t.Fatal("the write did not come by here")
	}
	counts.Clear()
	began = time.Now()
	r := dryRun(t, &readOnly{Bucket: b, t: t}, recovery.DryRunOptions{Known: func(d string) bool { return d == "default" }})
	took := time.Since(began)
	count := func(what string) int {
		n, ok := counts.Load(what)
		if !ok {
			return 0
		}
		return int(n.(*atomic.Int64).Load())
	}
	gets, lists, others := int(wire.gets.Load()), int(wire.lists.Load()), wire.others.Load()
	t.Logf("dry run in %s: %d GET (%d at a time), %d LIST, %d others", took.Round(time.Millisecond), gets, wire.mostReading.Load(), lists, others)
	pages := func(keys int) int { return max(1, (keys+pageKeys-1)/pageKeys) }
	if want := pages(*dryOwners) + pages(each**dryOwing); lists < want || lists > want+2 { // a full last page may name an empty one
		t.Errorf("%d LIST, want %d", lists, want)
	}
	if gets != *dryOwners || others != 0 || wire.mostReading.Load() > 16 {
		t.Errorf("%d GET for %d registers, %d at a time; %d other requests", gets, *dryOwners, wire.mostReading.Load(), others)
	}
	if count("get done") != gets || count("list done") != lists {
		t.Errorf("by operation: %d GET, %d LIST", count("get done"), count("list done"))
	}
	for key, n := range wire.read {
		if !strings.HasPrefix(key, objstore.OwnersPrefix) || n != 1 {
			t.Errorf("%s was read %d times", key, n)
		}
	}
	want := recovery.DryRunTotals{
		Owners: *dryOwners, Owing: *dryOwing, Claimable: *dryOwing, Objects: uint64(each * *dryOwing), Bytes: uint64(each * *dryOwing * 5),
		Owed: segment.Counts{uint64(7 * *dryOwing), 0, 0},
	}
	if r.Totals != want {
		t.Errorf("totals %+v, want %+v", r.Totals, want)
	}
	if len(r.Steps) != *dryOwing || r.Steps[0] != (recovery.Step{Do: "adopt", Owner: ids[0], Objects: uint64(each), Records: segment.Counts{7, 0, 0}}) {
		t.Errorf("%d steps, first %+v", len(r.Steps), r.Steps[:1])
	}
}

// serverOwner writes one register: retired and owing each objects, or idle.
func (f *fixture) serverOwner(id string, owes bool, each int) {
	ctx := context.Background()
	l, err := f.register(id, id).Acquire(ctx, lease.Seen{Since: time.Now()},
		owner.Begin(map[segment.LaneID]owner.Progress{laneZero: {Exported: segment.Start}}))
	if err != nil {
		f.t.Error(err)
		return
	}
	edit := owner.Rest(nil)
	if owes {
		end := at(segment.Seq((each-1)/10+1), segment.Entry((each-1)%10+1)).After()
		edit = owner.Retire(map[segment.LaneID]owner.Progress{laneZero: {Exported: segment.Start, Shipped: end, Records: segment.Counts{7, 0, 0}}})
	}
	if err := l.Release(ctx, edit); err != nil {
		f.t.Error(err)
	}
}
