package agent

import (
	"sort"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"ingest-agent/objstore"
	"ingest-agent/segment"
)

// metrics are the counters of /metrics. Those of records come from the lanes' ledgers when they are asked for, so that they
// go on over restarts and cannot differ from what the lanes hold.
type metrics struct {
	a        *Agent
	registry *prometheus.Registry
	refused  *prometheus.CounterVec
	sync     *prometheus.HistogramVec
	batch    *prometheus.HistogramVec
	requests *prometheus.CounterVec
	took     *prometheus.HistogramVec
}

const namespace = "ingest_agent"

func newMetrics(a *Agent) *metrics {
	m := &metrics{
		a:        a,
		registry: prometheus.NewRegistry(),
		refused: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: namespace, Name: "requests_refused_total", Help: "Requests answered with an error, by signal and reason.",
		}, []string{"signal", "reason"}),
		sync: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: namespace, Name: "wal_sync_seconds", Help: "Time of each sync that answers wait for.",
			Buckets: prometheus.ExponentialBuckets(0.0001, 2, 16),
		}, []string{"lane"}),
		batch: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: namespace, Name: "wal_batch_frames", Help: "Requests made durable by one sync.",
			Buckets: prometheus.ExponentialBuckets(1, 2, 14),
		}, []string{"lane"}),
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: namespace, Name: "bucket_requests_total", Help: "Calls to the bucket, by operation and outcome.",
		}, []string{"operation", "outcome"}),
		took: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: namespace, Name: "bucket_request_seconds", Help: "Time of each call to the bucket.",
			Buckets: prometheus.ExponentialBuckets(0.001, 2, 16),
		}, []string{"operation", "outcome"}),
	}
	m.registry.MustRegister(m.refused, m.sync, m.batch, m.requests, m.took, ledgers{a}, sharedMetrics{a}, archiveMetrics{a},
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// Accepted implements receiver.Observer. The lanes count what they took themselves.
func (m *metrics) Accepted(segment.Signal, string, int, int) {}

// Refused implements receiver.Observer.
func (m *metrics) Refused(signal segment.Signal, reason string) {
	m.refused.WithLabelValues(signal.String(), reason).Inc()
}

// bucketRequest counts a call to the bucket.
func (m *metrics) bucketRequest(op objstore.Op, outcome string, took time.Duration, _ int64) {
	m.requests.WithLabelValues(string(op), outcome).Inc()
	m.took.WithLabelValues(string(op), outcome).Observe(took.Seconds())
}

// lane returns the observer of one lane.
func (m *metrics) lane(id segment.LaneID) segment.Observer {
	sync, batch := m.sync.WithLabelValues(id.String()), m.batch.WithLabelValues(id.String())
	return segment.Observer{
		Synced: func(d time.Duration) { sync.Observe(d.Seconds()) },
		Batch:  func(frames int) { batch.Observe(float64(frames)) },
	}
}

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(namespace+"_"+name, help, labels, nil)
}

// ledgers collects what the lanes know. Its descriptions are made anew each time, which costs little beside the rest.
type ledgers struct{ a *Agent }

// Describe sends nothing: the collector is unchecked, since its labels come from the data directory.
func (ledgers) Describe(chan<- *prometheus.Desc) {}

type tenantKey struct {
	signal segment.Signal
	tenant string
}

type outKey struct {
	destination string
	signal      segment.Signal
}

type lostKey struct {
	outKey
	cause segment.Cause
}

// Collect implements prometheus.Collector.
func (c ledgers) Collect(ch chan<- prometheus.Metric) {
	if c.a.lanes == nil {
		return
	}
	sum := newSums()
	lanes := c.a.lanes.stats()
	for i := range lanes {
		st := &lanes[i]
		lane := st.id.String()
		pending := st.pending
		gauge := func(name, help string, v float64) {
			ch <- prometheus.MustNewConstMetric(desc(name, help, "lane"), prometheus.GaugeValue, v, lane)
		}
		gauge("pending_records", "Records that are accepted and not yet delivered.", float64(pending.Records.Sum()))
		gauge("pending_bytes", "Bytes of bodies that are accepted and not yet delivered.", float64(pending.Bytes))
		age := 0.0
		if !st.Oldest.IsZero() {
			age = max(0, time.Since(st.Oldest).Seconds())
		}
		gauge("oldest_pending_seconds", "Age of the oldest record that is not yet delivered.", age)
		gauge("wal_disk_bytes", "Bytes that the lane's segments take on disk.", float64(st.DiskBytes))
		sum.add(st.id, &st.Stats)
	}
	for k, b := range c.a.lanes.moves {
		sum.balance(k.destination, b)
	}
	sum.dead(c.a.dead.Totals())
	if c.a.shared != nil {
		sum.adopted(c.a.shared.adopted.totals())
	}
	sum.collect(ch)
	c.quarantine(ch)
}

func (c ledgers) quarantine(ch chan<- prometheus.Metric) {
	deleted, failed := c.a.quarantine.Stats()
	ch <- prometheus.MustNewConstMetric(desc("quarantine_deleted_total", "Copies of damaged bytes that went for the bound on the quarantine."),
		prometheus.CounterValue, float64(deleted))
	ch <- prometheus.MustNewConstMetric(desc("quarantine_failed_total", "Copies of damaged bytes that could not be written."),
		prometheus.CounterValue, float64(failed))
}

// sums adds up lanes by the labels of the counters.
type sums struct {
	accepted map[tenantKey][2]uint64 // records, bytes
	out      map[outKey]*[6]uint64   // in the order of outNames
	lost     map[lostKey]uint64
}

func outNames() [6][2]string {
	return [6][2]string{
		{"records_delivered_total", "Records that the destination took."},
		{"records_rejected_total", "Records that the destination refused by partial success."},
		{"records_dead_letter_total", "Records set aside since the destination refused them for good."},
		{"records_resent_total", "Records sent again after an attempt that failed or whose answer was lost."},
		{"records_adopted_total", "Records that came from elsewhere: taken over from other owners, or left by a crash in a lane and in its parked lane."},
		{"records_handed_over_total", "Records that others deliver, from the bucket."},
	}
}

func newSums() *sums {
	return &sums{accepted: map[tenantKey][2]uint64{}, out: map[outKey]*[6]uint64{}, lost: map[lostKey]uint64{}}
}

// The places of what came from elsewhere and of what others deliver in outNames.
const (
	adoptedOut    = 4
	handedOverOut = 5
)

func (s *sums) add(id segment.LaneID, st *segment.Stats) {
	for i, signal := range segment.Signals {
		for tenant, a := range st.Accepted {
			if id.Parked > 0 { // they were accepted by the lane that they come from
				break
			}
			k := tenantKey{signal, tenant}
			have := s.accepted[k]
			s.accepted[k] = [2]uint64{have[0] + a.Records[i], have[1] + a.Bytes[i]}
		}
		s.ledger(outKey{id.Destination, signal}, &st.Ledger)
	}
}

// ledger adds what became of records of one signal.
func (s *sums) ledger(k outKey, l *segment.Ledger) {
	i := k.signal.Index()
	out := s.have(k)
	for j, n := range []segment.Counts{l.Delivered, l.Rejected, l.DeadLetter, l.Resent} {
		out[j] += n[i]
	}
	out[handedOverOut] += l.HandedOver[i]
	for cause, n := range l.Lost {
		s.lost[lostKey{k, cause}] += n[i]
	}
}

// adopted adds what was taken over from other owners: as much as became of it.
func (s *sums) adopted(all map[string]segment.Ledger) {
	for name, l := range all {
		for i, signal := range segment.Signals {
			k := outKey{name, signal}
			s.ledger(k, &l)
			s.have(k)[adoptedOut] += l.Out()[i]
		}
	}
}

func (s *sums) have(k outKey) *[6]uint64 {
	if s.out[k] == nil {
		s.out[k] = new([6]uint64)
	}
	return s.out[k]
}

// balance adds what earlier starts found more or less in parked lanes than was moved there.
func (s *sums) balance(destination string, b moveBalance) {
	for i, signal := range segment.Signals {
		k := outKey{destination, signal}
		if b[i] >= 0 {
			s.have(k)[adoptedOut] += uint64(b[i])
		} else {
			s.lost[lostKey{k, segment.LostCorrupt}] += uint64(-b[i])
		}
	}
}

// boundTenants sums all but the first 100 tenants by name under segment.OtherTenants.
func (s *sums) boundTenants() {
	const most = 100
	names := map[string]bool{}
	for k := range s.accepted {
		names[k.tenant] = true
	}
	if len(names) <= most {
		return
	}
	delete(names, segment.OtherTenants)
	sorted := make([]string, 0, len(names))
	for n := range names {
		sorted = append(sorted, n)
	}
	sort.Strings(sorted)
	for _, tenant := range sorted[most:] {
		for _, signal := range segment.Signals {
			k, o := tenantKey{signal, tenant}, tenantKey{signal, segment.OtherTenants}
			s.accepted[o] = [2]uint64{s.accepted[o][0] + s.accepted[k][0], s.accepted[o][1] + s.accepted[k][1]}
			delete(s.accepted, k)
		}
	}
}

func (s *sums) collect(ch chan<- prometheus.Metric) {
	s.boundTenants()
	counter := func(d *prometheus.Desc, n uint64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(n), labels...)
	}
	records := desc("records_accepted_total", "Records made durable.", "signal", "tenant")
	bytes := desc("bytes_accepted_total", "Bytes of bodies made durable.", "signal", "tenant")
	for k, n := range s.accepted {
		counter(records, n[0], k.signal.String(), k.tenant)
		counter(bytes, n[1], k.signal.String(), k.tenant)
	}
	for j, name := range outNames() {
		d := desc(name[0], name[1], "destination", "signal")
		for k, n := range s.out {
			counter(d, n[j], k.destination, k.signal.String())
		}
	}
	lost := desc("records_lost_total", "Records lost, by cause.", "destination", "signal", "cause")
	for k, n := range s.lost {
		counter(lost, n, k.destination, k.signal.String(), string(k.cause))
	}
}
