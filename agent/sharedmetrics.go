package agent

import (
	"github.com/prometheus/client_golang/prometheus"

	"ingest-agent/recovery"
	"ingest-agent/recovery/owner"
)

// sharedMetrics collects what shipper and recovery know.
type sharedMetrics struct{ a *Agent }

// Describe sends nothing: without a bucket outside of the data directory there is nothing to collect.
func (sharedMetrics) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (c sharedMetrics) Collect(ch chan<- prometheus.Metric) {
	s := c.a.shared
	if s == nil {
		return
	}
	number := func(kind prometheus.ValueType, name, help string, v float64) {
		ch <- prometheus.MustNewConstMetric(desc(name, help), kind, v)
	}
	st := s.shipper.Stats()
	number(prometheus.CounterValue, "shipped_bytes_total", "Bytes of objects that were copied to the bucket.", float64(st.ShippedBytes))
	number(prometheus.CounterValue, "shipped_objects_total", "Objects that were copied to the bucket.", float64(st.ShippedObjects))
	number(prometheus.CounterValue, "spilled_bytes_total", "Bytes of segments that went from the disk since they are in the bucket.", float64(st.SpilledBytes))
	number(prometheus.GaugeValue, "shipped_objects", "Objects in the bucket that hold what this node owes.", float64(st.Objects))
	number(prometheus.GaugeValue, "ship_lag_seconds", "For how long the oldest record has waited that is due to be in the bucket and is not.", st.Lag.Seconds())
	number(prometheus.GaugeValue, "bucket_down", "1 while the bucket is known to be out of reach.", one(st.Down))
	if r := s.bucket.known(); r != nil {
		number(prometheus.GaugeValue, "bucket_preconditions", "1 if the bucket honours preconditions, which taking over needs.", one(r.OK))
	}
	state := desc("owner_state", "1 for the state of this process's register.", "state")
	for _, name := range []string{owner.Live, owner.Idle, owner.Retired, owner.Adopted} {
		ch <- prometheus.MustNewConstMetric(state, prometheus.GaugeValue, one(st.State == name), name)
	}
	fenced, conflicts := st.Fenced, st.Conflicts
	if s.recovery != nil {
		rs := s.recovery.Stats()
		c.recovery(ch, &rs)
		fenced += rs.Adoptions[recovery.Fenced]
		conflicts += rs.Conflicts
	}
	number(prometheus.CounterValue, "fenced_total", "Registers that another process took over while this one held them.", float64(fenced))
	number(prometheus.CounterValue, "register_conflicts_total", "Changes of a register that were lost to another's.", float64(conflicts))
}

func (c sharedMetrics) recovery(ch chan<- prometheus.Metric, rs *recovery.Stats) {
	adoptions := desc("adoptions_total", "Owners taken over, by how that ended.", "outcome")
	for _, o := range []recovery.Outcome{recovery.Drained, recovery.Released, recovery.Fenced, recovery.Unsettled} {
		ch <- prometheus.MustNewConstMetric(adoptions, prometheus.CounterValue, float64(rs.Adoptions[o]), string(o))
	}
	ch <- prometheus.MustNewConstMetric(desc("recovered_records_total", "Records of other owners that were brought to an end."),
		prometheus.CounterValue, float64(rs.Ledger.Out().Sum()))
	ch <- prometheus.MustNewConstMetric(desc("owners_claimable", "Owners that were claimable by the last scan."), prometheus.GaugeValue, float64(rs.Claimable))
	ch <- prometheus.MustNewConstMetric(desc("owners_orphaned", "Owners that have objects and no register, by this node's last scan."),
		prometheus.GaugeValue, float64(len(rs.Orphans)))
}

func one(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
