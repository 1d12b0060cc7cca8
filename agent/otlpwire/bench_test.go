package otlpwire

import (
	"fmt"
	"testing"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/plog"
	"go.opentelemetry.io/collector/pdata/plog/plogotlp"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/pdata/pmetric/pmetricotlp"
	"go.opentelemetry.io/collector/pdata/ptrace"
	"go.opentelemetry.io/collector/pdata/ptrace/ptraceotlp"

	"ingest-agent/segment"
)

// benchRecords is how many records the bodies of the benchmarks hold.
const benchRecords = 100

const benchTime = pcommon.Timestamp(1700000000000000000)

func fillResource(r pcommon.Resource, s pcommon.InstrumentationScope) {
	for k, v := range map[string]string{
		"service.name": "checkout", "service.namespace": "shop", "service.version": "2.31.4",
		"k8s.namespace.name": "shop-prod", "k8s.pod.name": "checkout-6f7c9d5b8-x2x7k", "k8s.node.name": "node-17",
		"k8s.deployment.name": "checkout", "host.name": "ip-10-3-44-17.eu-central-1.compute.internal",
		"cloud.region": "eu-central-1", "telemetry.sdk.language": "go",
	} {
		r.Attributes().PutStr(k, v)
	}
	s.SetName("go.opentelemetry.io/contrib/instrumentation/net/http/otelhttp")
	s.SetVersion("0.58.0")
}

func fillRequestAttributes(m pcommon.Map, i int) {
	m.PutStr("http.request.method", "POST")
	m.PutStr("url.path", fmt.Sprintf("/api/v1/carts/%d/items", i))
	m.PutInt("http.response.status_code", 200)
	m.PutStr("client.address", fmt.Sprintf("10.12.%d.%d", i, i+3))
	m.PutStr("user_agent.original", "Mozilla/5.0 (X11; Linux x86_64; rv:128.0) Gecko/20100101 Firefox/128.0")
	m.PutDouble("duration_ms", 12.75*float64(i))
	m.PutBool("cache.hit", i%2 == 0)
	m.PutInt("thread.id", int64(1000+i))
}

func benchLogs(tb testing.TB) []byte {
	l := plog.NewLogs()
	rl := l.ResourceLogs().AppendEmpty()
	sl := rl.ScopeLogs().AppendEmpty()
	fillResource(rl.Resource(), sl.Scope())
	for i := range benchRecords {
		r := sl.LogRecords().AppendEmpty()
		r.SetTimestamp(benchTime)
		r.SetObservedTimestamp(benchTime + 1)
		r.SetSeverityNumber(plog.SeverityNumberInfo)
		r.SetSeverityText("INFO")
		r.Body().SetStr(fmt.Sprintf("added item %d to cart of customer 48213, new total is 129.90 EUR in 3 positions", i))
		r.SetTraceID(pcommon.TraceID{1, byte(i)})
		r.SetSpanID(pcommon.SpanID{2, byte(i)})
		fillRequestAttributes(r.Attributes(), i)
	}
	b, err := plogotlp.NewExportRequestFromLogs(l).MarshalProto()
	if err != nil {
		tb.Fatal(err)
	}
	return b
}

func benchTraces(tb testing.TB) []byte {
	l := ptrace.NewTraces()
	rs := l.ResourceSpans().AppendEmpty()
	ss := rs.ScopeSpans().AppendEmpty()
	fillResource(rs.Resource(), ss.Scope())
	for i := range benchRecords {
		s := ss.Spans().AppendEmpty()
		s.SetTraceID(pcommon.TraceID{1, byte(i)})
		s.SetSpanID(pcommon.SpanID{2, byte(i)})
		s.SetParentSpanID(pcommon.SpanID{3, byte(i)})
		s.SetName("POST /api/v1/carts/{id}/items")
		s.SetKind(ptrace.SpanKindServer)
		s.SetStartTimestamp(benchTime)
		s.SetEndTimestamp(benchTime + 1e6)
		s.SetFlags(1)
		fillRequestAttributes(s.Attributes(), i)
		e := s.Events().AppendEmpty()
		e.SetName("retry")
		e.SetTimestamp(benchTime)
		e.Attributes().PutInt("attempt", 2)
		s.Status().SetCode(ptrace.StatusCodeOk)
	}
	b, err := ptraceotlp.NewExportRequestFromTraces(l).MarshalProto()
	if err != nil {
		tb.Fatal(err)
	}
	return b
}

func benchMetrics(tb testing.TB) []byte {
	l := pmetric.NewMetrics()
	rm := l.ResourceMetrics().AppendEmpty()
	sm := rm.ScopeMetrics().AppendEmpty()
	fillResource(rm.Resource(), sm.Scope())
	for i := range benchRecords / 10 {
		m := sm.Metrics().AppendEmpty()
		m.SetName(fmt.Sprintf("http.server.request.duration.%d", i))
		m.SetDescription("Duration of HTTP server requests.")
		m.SetUnit("s")
		if i%2 == 0 {
			sum := m.SetEmptySum()
			sum.SetAggregationTemporality(pmetric.AggregationTemporalityCumulative)
			for j := range 10 {
				p := sum.DataPoints().AppendEmpty()
				p.SetStartTimestamp(benchTime)
				p.SetTimestamp(benchTime + 1)
				p.SetIntValue(int64(j))
				fillPointAttributes(p.Attributes(), j)
			}
			continue
		}
		h := m.SetEmptyHistogram()
		h.SetAggregationTemporality(pmetric.AggregationTemporalityCumulative)
		for j := range 10 {
			p := h.DataPoints().AppendEmpty()
			p.SetStartTimestamp(benchTime)
			p.SetTimestamp(benchTime + 1)
			p.SetCount(uint64(j))
			p.SetSum(float64(j))
			p.ExplicitBounds().FromRaw([]float64{.005, .01, .025, .05, .075, .1, .25, .5, .75, 1, 2.5, 5, 7.5, 10})
			p.BucketCounts().FromRaw(make([]uint64, 15))
			fillPointAttributes(p.Attributes(), j)
		}
	}
	b, err := pmetricotlp.NewExportRequestFromMetrics(l).MarshalProto()
	if err != nil {
		tb.Fatal(err)
	}
	return b
}

func fillPointAttributes(m pcommon.Map, i int) {
	m.PutStr("http.request.method", "POST")
	m.PutStr("http.route", fmt.Sprintf("/api/v1/carts/%d", i))
	m.PutInt("http.response.status_code", 200)
	m.PutStr("server.address", "checkout.shop.example")
	m.PutStr("network.protocol.version", "1.1")
}

func benchBodies(tb testing.TB) [segment.NumSignals][]byte {
	return [segment.NumSignals][]byte{benchLogs(tb), benchTraces(tb), benchMetrics(tb)}
}

// BenchmarkCheck and BenchmarkPdata are to be compared: the walk should be at least eight times faster.
func BenchmarkCheck(b *testing.B) {
	bodies := benchBodies(b)
	for _, signal := range segment.Signals {
		body := bodies[signal.Index()]
		b.Run(signal.String(), func(b *testing.B) {
			b.SetBytes(int64(len(body)))
			b.ReportAllocs()
			for b.Loop() {
				if info, err := Check(signal, body); err != nil || info.Records != benchRecords {
					b.Fatal(info, err)
				}
			}
		})
	}
}

func BenchmarkPdata(b *testing.B) {
	bodies := benchBodies(b)
	for _, signal := range segment.Signals {
		body := bodies[signal.Index()]
		b.Run(signal.String(), func(b *testing.B) {
			b.SetBytes(int64(len(body)))
			b.ReportAllocs()
			for b.Loop() {
				var err error
				switch signal {
				case segment.Logs:
					err = plogotlp.NewExportRequest().UnmarshalProto(body)
				case segment.Traces:
					err = ptraceotlp.NewExportRequest().UnmarshalProto(body)
				case segment.Metrics:
					err = pmetricotlp.NewExportRequest().UnmarshalProto(body)
				}
				if err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
