package load

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"
)

// Result counts what came of a load's requests.
type Result struct {
	Requests     uint64            // attempts that came to an end
	Resent       uint64            // of those, again
	AckedRecords uint64            // records of requests answered with success
	AckedBytes   uint64            // their OTLP bytes before compression
	Failures     map[string]uint64 // attempts without success, by cause
	Latency      Histogram         // of successes; in an open loop from the moment when the request was due
	Elapsed      time.Duration     // 0 until the end
}

// Failed is the number of attempts without success.
func (r *Result) Failed() (n uint64) {
	for _, count := range r.Failures {
		n += count
	}
	return n
}

// String is a summary in lines for people.
func (r *Result) String() string {
	var b strings.Builder
	seconds := max(r.Elapsed.Seconds(), 1e-9)
	fmt.Fprintf(&b, "requests       %d, failed %d, sent again %d\n", r.Requests, r.Failed(), r.Resent)
	for _, cause := range slices.Sorted(maps.Keys(r.Failures)) {
		fmt.Fprintf(&b, "  failed       %d: %s\n", r.Failures[cause], cause)
	}
	fmt.Fprintf(&b, "acknowledged   %d records, %.0f/s, %.2f MB/s in %.1f s\n",
		r.AckedRecords, float64(r.AckedRecords)/seconds, float64(r.AckedBytes)/seconds/1e6, seconds)
	fmt.Fprintf(&b, "latency ms     p50 %s  p90 %s  p99 %s  p99.9 %s  max %s\n",
		ms(r.Latency.Quantile(0.5)), ms(r.Latency.Quantile(0.9)), ms(r.Latency.Quantile(0.99)),
		ms(r.Latency.Quantile(0.999)), ms(r.Latency.Max()))
	return b.String()
}

func ms(d time.Duration) string { return fmt.Sprintf("%.2f", float64(d)/float64(time.Millisecond)) }

// tally collects a result from all senders.
type tally struct {
	mu     sync.Mutex
	result Result
}

func (t *tally) acked(records, sizeBytes int, took time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.result.Requests++
	t.result.AckedRecords += uint64(records)
	t.result.AckedBytes += uint64(sizeBytes)
	t.result.Latency.Add(took)
}

func (t *tally) failed(cause string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.result.Requests++
	if t.result.Failures == nil {
		t.result.Failures = map[string]uint64{}
	}
	t.result.Failures[cause]++
}

func (t *tally) resend() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.result.Resent++
}

func (t *tally) snapshot() Result {
	t.mu.Lock()
	defer t.mu.Unlock()
	r := t.result
	r.Failures = maps.Clone(r.Failures)
	return r
}
