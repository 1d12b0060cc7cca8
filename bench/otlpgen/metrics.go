package otlpgen

import (
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"
)

// pointsPerMetric is how many data points (attribute sets) a metric has at most.
const pointsPerMetric = 5

// metrics is a request of data points of all five kinds of metric.
func (c *content) metrics(records int) ([]byte, error) {
	data := pmetric.NewMetrics()
	var scope pmetric.ScopeMetrics
	var resource pmetric.ResourceMetrics
	var from service
	for i := 0; i < records; {
		if i%recordsPerResource == 0 {
			resource = data.ResourceMetrics().AppendEmpty()
			from = c.resource(resource.Resource())
		}
		if i%recordsPerScope == 0 {
			scope = resource.ScopeMetrics().AppendEmpty()
			scope.Scope().SetName(from.scope)
		}
		points := min(pointsPerMetric, records-i)
		c.metric(scope.Metrics().AppendEmpty(), (i/pointsPerMetric)%5, points)
		i += points
	}
	return (&pmetric.ProtoMarshaler{}).MarshalMetrics(data)
}

func (c *content) metric(m pmetric.Metric, kind, points int) {
	m.SetDescription(c.sentence(8))
	switch kind {
	case 0:
		m.SetName("process.memory.usage")
		m.SetUnit("By")
		gauge := m.SetEmptyGauge()
		for i := range points {
			p := gauge.DataPoints().AppendEmpty()
			p.SetIntValue(c.rng.Int64N(1 << 34))
			c.point(p, i)
		}
	case 1:
		m.SetName("http.server.request.count")
		m.SetUnit("{request}")
		sum := m.SetEmptySum()
		sum.SetIsMonotonic(true)
		sum.SetAggregationTemporality(pmetric.AggregationTemporalityCumulative)
		for i := range points {
			p := sum.DataPoints().AppendEmpty()
			p.SetDoubleValue(c.rng.Float64() * 1e6)
			c.point(p, i)
		}
	case 2:
		m.SetName("http.server.request.duration")
		m.SetUnit("s")
		h := m.SetEmptyHistogram()
		h.SetAggregationTemporality(pmetric.AggregationTemporalityDelta)
		for i := range points {
			c.histogram(h.DataPoints().AppendEmpty(), i)
		}
	case 3:
		m.SetName("db.client.operation.duration")
		m.SetUnit("s")
		h := m.SetEmptyExponentialHistogram()
		h.SetAggregationTemporality(pmetric.AggregationTemporalityCumulative)
		for i := range points {
			c.exponential(h.DataPoints().AppendEmpty(), i)
		}
	default:
		m.SetName("rpc.server.latency")
		m.SetUnit("ms")
		summary := m.SetEmptySummary()
		for i := range points {
			p := summary.DataPoints().AppendEmpty()
			p.SetCount(1 + c.rng.Uint64N(10_000))
			p.SetSum(c.rng.Float64() * 1e5)
			for _, q := range []float64{0.5, 0.9, 0.99} {
				v := p.QuantileValues().AppendEmpty()
				v.SetQuantile(q)
				v.SetValue(q * c.rng.Float64() * 1000)
			}
			c.point(p, i)
		}
	}
}

func (c *content) histogram(p pmetric.HistogramDataPoint, i int) {
	bounds := []float64{0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10}
	p.ExplicitBounds().FromRaw(bounds)
	count := uint64(0)
	for range len(bounds) + 1 {
		n := c.rng.Uint64N(500)
		p.BucketCounts().Append(n)
		count += n
	}
	p.SetCount(count)
	p.SetSum(float64(count) * c.rng.Float64())
	p.SetMin(0.001)
	p.SetMax(10 * c.rng.Float64())
	e := p.Exemplars().AppendEmpty()
	e.SetTimestamp(c.time(i))
	e.SetDoubleValue(c.rng.Float64())
	e.SetTraceID(c.traceID())
	e.SetSpanID(c.spanID())
	c.point(p, i)
}

func (c *content) exponential(p pmetric.ExponentialHistogramDataPoint, i int) {
	p.SetScale(int32(c.rng.IntN(9)) - 2)
	p.SetZeroCount(c.rng.Uint64N(10))
	p.Positive().SetOffset(int32(c.rng.IntN(100)) - 50)
	count := p.ZeroCount()
	for range 20 + c.rng.IntN(100) {
		n := c.rng.Uint64N(50)
		p.Positive().BucketCounts().Append(n)
		count += n
	}
	p.SetCount(count)
	p.SetSum(float64(count) * c.rng.Float64())
	c.point(p, i)
}

// point fills in what data points of all kinds have.
func (c *content) point(p interface {
	Attributes() pcommon.Map
	SetStartTimestamp(pcommon.Timestamp)
	SetTimestamp(pcommon.Timestamp)
}, i int) {
	p.SetStartTimestamp(pcommon.NewTimestampFromTime(start))
	p.SetTimestamp(c.time(i))
	c.request(p.Attributes())
	p.Attributes().PutStr(SeqKey, blank)
}
