package otlpwire

import (
	"os"
	"path/filepath"
	"testing"

	"go.opentelemetry.io/collector/pdata/plog"
	"go.opentelemetry.io/collector/pdata/plog/plogotlp"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/pdata/pmetric/pmetricotlp"
	"go.opentelemetry.io/collector/pdata/ptrace"
	"go.opentelemetry.io/collector/pdata/ptrace/ptraceotlp"
	logspb "go.opentelemetry.io/proto/otlp/logs/v1"
	metricspb "go.opentelemetry.io/proto/otlp/metrics/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/dynamicpb"

	"ingest-agent/segment"
)

// official returns the official type of a request of that signal. LogsData and its like have the fields of the export
// requests, by the same numbers, and need no gRPC.
func official(signal segment.Signal) proto.Message {
	switch signal {
	case segment.Logs:
		return &logspb.LogsData{}
	case segment.Traces:
		return &tracepb.TracesData{}
	default:
		return &metricspb.MetricsData{}
	}
}

// oracle holds what a body is compared with, besides pdata and the official types: the official schema with the scopes by
// their old number, which it once had and pdata still has, with and without an eye on UTF-8.
type oracle struct {
	strict [segment.NumSignals]protoreflect.MessageDescriptor
	lax    [segment.NumSignals]protoreflect.MessageDescriptor
}

func newOracle(tb testing.TB) *oracle {
	tb.Helper()
	o := &oracle{}
	for _, signal := range segment.Signals {
		o.strict[signal.Index()] = variant(tb, signal, addOldScopes)
		o.lax[signal.Index()] = variant(tb, signal, func(m *descriptorpb.DescriptorProto) {
			addOldScopes(m)
			for _, f := range m.Field {
				if f.GetType() == descriptorpb.FieldDescriptorProto_TYPE_STRING {
					f.Type = descriptorpb.FieldDescriptorProto_TYPE_BYTES.Enum()
				}
			}
		})
	}
	return o
}

// addOldScopes gives m a second field for its scopes if it is one of the three messages that had one.
func addOldScopes(m *descriptorpb.DescriptorProto) {
	if len(m.ReservedRange) == 0 || m.ReservedRange[0].GetStart() != oldScopesNumber {
		return
	}
	m.ReservedRange = nil
	for _, f := range m.Field {
		if f.GetNumber() == 2 {
			old := proto.Clone(f).(*descriptorpb.FieldDescriptorProto)
			old.Name, old.JsonName, old.Number = new("old_scopes"), nil, proto.Int32(oldScopesNumber)
			m.Field = append(m.Field, old)
			return
		}
	}
}

// variant returns the request of that signal from the official schema after edit was called on each of its messages.
func variant(tb testing.TB, signal segment.Signal, edit func(*descriptorpb.DescriptorProto)) protoreflect.MessageDescriptor {
	tb.Helper()
	set := &descriptorpb.FileDescriptorSet{}
	seen := map[string]bool{}
	var add func(protoreflect.FileDescriptor)
	add = func(f protoreflect.FileDescriptor) {
		if seen[f.Path()] {
			return
		}
		seen[f.Path()] = true
		for i := range f.Imports().Len() {
			add(f.Imports().Get(i).FileDescriptor)
		}
		set.File = append(set.File, protodesc.ToFileDescriptorProto(f))
	}
	d := official(signal).ProtoReflect().Descriptor()
	add(d.ParentFile())
	var each func([]*descriptorpb.DescriptorProto)
	each = func(messages []*descriptorpb.DescriptorProto) {
		for _, m := range messages {
			edit(m)
			each(m.NestedType)
		}
	}
	for _, f := range set.File {
		each(f.MessageType)
	}
	files, err := protodesc.NewFiles(set)
	if err != nil {
		tb.Fatal(err)
	}
	found, err := files.FindDescriptorByName(d.FullName())
	if err != nil {
		tb.Fatal(err)
	}
	return found.(protoreflect.MessageDescriptor)
}

// flatten reads body with pdata and returns one string for each record, with all that it stands under, and one for each
// resource, scope and metric that holds none; in their order. records is pdata's own count.
func flatten(tb testing.TB, signal segment.Signal, body []byte) (flat []string, records int, err error) {
	tb.Helper()
	add := func(b []byte, err error) {
		if err != nil {
			tb.Fatal(err)
		}
		flat = append(flat, string(b))
	}
	switch signal {
	case segment.Logs:
		r := plogotlp.NewExportRequest()
		if err := r.UnmarshalProto(body); err != nil {
			return nil, 0, err
		}
		flattenLogs(r.Logs(), func(l plog.Logs) { add(plogotlp.NewExportRequestFromLogs(l).MarshalProto()) })
		return flat, r.Logs().LogRecordCount(), nil
	case segment.Traces:
		r := ptraceotlp.NewExportRequest()
		if err := r.UnmarshalProto(body); err != nil {
			return nil, 0, err
		}
		flattenTraces(r.Traces(), func(l ptrace.Traces) { add(ptraceotlp.NewExportRequestFromTraces(l).MarshalProto()) })
		return flat, r.Traces().SpanCount(), nil
	default:
		r := pmetricotlp.NewExportRequest()
		if err := r.UnmarshalProto(body); err != nil {
			return nil, 0, err
		}
		flattenMetrics(r.Metrics(), func(l pmetric.Metrics) { add(pmetricotlp.NewExportRequestFromMetrics(l).MarshalProto()) })
		return flat, r.Metrics().DataPointCount(), nil
	}
}

func flattenLogs(in plog.Logs, emit func(plog.Logs)) {
	for _, rl := range in.ResourceLogs().All() {
		out := plog.NewLogs()
		orl := out.ResourceLogs().AppendEmpty()
		rl.Resource().CopyTo(orl.Resource())
		orl.SetSchemaUrl(rl.SchemaUrl())
		if rl.ScopeLogs().Len() == 0 {
			emit(out)
		}
		for _, sl := range rl.ScopeLogs().All() {
			orl.ScopeLogs().RemoveIf(func(plog.ScopeLogs) bool { return true })
			osl := orl.ScopeLogs().AppendEmpty()
			sl.Scope().CopyTo(osl.Scope())
			osl.SetSchemaUrl(sl.SchemaUrl())
			if sl.LogRecords().Len() == 0 {
				emit(out)
			}
			for _, r := range sl.LogRecords().All() {
				osl.LogRecords().RemoveIf(func(plog.LogRecord) bool { return true })
				r.CopyTo(osl.LogRecords().AppendEmpty())
				emit(out)
			}
		}
	}
}

func flattenTraces(in ptrace.Traces, emit func(ptrace.Traces)) {
	for _, rs := range in.ResourceSpans().All() {
		out := ptrace.NewTraces()
		ors := out.ResourceSpans().AppendEmpty()
		rs.Resource().CopyTo(ors.Resource())
		ors.SetSchemaUrl(rs.SchemaUrl())
		if rs.ScopeSpans().Len() == 0 {
			emit(out)
		}
		for _, ss := range rs.ScopeSpans().All() {
			ors.ScopeSpans().RemoveIf(func(ptrace.ScopeSpans) bool { return true })
			oss := ors.ScopeSpans().AppendEmpty()
			ss.Scope().CopyTo(oss.Scope())
			oss.SetSchemaUrl(ss.SchemaUrl())
			if ss.Spans().Len() == 0 {
				emit(out)
			}
			for _, s := range ss.Spans().All() {
				oss.Spans().RemoveIf(func(ptrace.Span) bool { return true })
				s.CopyTo(oss.Spans().AppendEmpty())
				emit(out)
			}
		}
	}
}

func flattenMetrics(in pmetric.Metrics, emit func(pmetric.Metrics)) {
	for _, rm := range in.ResourceMetrics().All() {
		out := pmetric.NewMetrics()
		orm := out.ResourceMetrics().AppendEmpty()
		rm.Resource().CopyTo(orm.Resource())
		orm.SetSchemaUrl(rm.SchemaUrl())
		if rm.ScopeMetrics().Len() == 0 {
			emit(out)
		}
		for _, sm := range rm.ScopeMetrics().All() {
			orm.ScopeMetrics().RemoveIf(func(pmetric.ScopeMetrics) bool { return true })
			osm := orm.ScopeMetrics().AppendEmpty()
			sm.Scope().CopyTo(osm.Scope())
			osm.SetSchemaUrl(sm.SchemaUrl())
			if sm.Metrics().Len() == 0 {
				emit(out)
			}
			for _, m := range sm.Metrics().All() {
				for i := range max(1, points(m)) {
					osm.Metrics().RemoveIf(func(pmetric.Metric) bool { return true })
					om := osm.Metrics().AppendEmpty()
					m.CopyTo(om)
					keepPoint(om, i)
					emit(out)
				}
			}
		}
	}
}

func points(m pmetric.Metric) int {
	switch m.Type() {
	case pmetric.MetricTypeGauge:
		return m.Gauge().DataPoints().Len()
	case pmetric.MetricTypeSum:
		return m.Sum().DataPoints().Len()
	case pmetric.MetricTypeHistogram:
		return m.Histogram().DataPoints().Len()
	case pmetric.MetricTypeExponentialHistogram:
		return m.ExponentialHistogram().DataPoints().Len()
	case pmetric.MetricTypeSummary:
		return m.Summary().DataPoints().Len()
	}
	return 0
}

// keepPoint removes all data points of m but the one with index i.
func keepPoint(m pmetric.Metric, i int) {
	at := -1
	other := func() bool { at++; return at != i }
	switch m.Type() {
	case pmetric.MetricTypeGauge:
		m.Gauge().DataPoints().RemoveIf(func(pmetric.NumberDataPoint) bool { return other() })
	case pmetric.MetricTypeSum:
		m.Sum().DataPoints().RemoveIf(func(pmetric.NumberDataPoint) bool { return other() })
	case pmetric.MetricTypeHistogram:
		m.Histogram().DataPoints().RemoveIf(func(pmetric.HistogramDataPoint) bool { return other() })
	case pmetric.MetricTypeExponentialHistogram:
		m.ExponentialHistogram().DataPoints().RemoveIf(func(pmetric.ExponentialHistogramDataPoint) bool { return other() })
	case pmetric.MetricTypeSummary:
		m.Summary().DataPoints().RemoveIf(func(pmetric.SummaryDataPoint) bool { return other() })
	}
}

// examples returns the examples of the OTLP repository in protobuf, by signal.
func examples(tb testing.TB, signal segment.Signal) [][]byte {
	tb.Helper()
	read := func(name string) []byte {
		b, err := os.ReadFile(filepath.Join("testdata", name))
		if err != nil {
			tb.Fatal(err)
		}
		return b
	}
	var bodies [][]byte
	add := func(r interface {
		UnmarshalJSON([]byte) error
		MarshalProto() ([]byte, error)
	}, name string) {
		if err := r.UnmarshalJSON(read(name)); err != nil {
			tb.Fatal(err)
		}
		b, err := r.MarshalProto()
		if err != nil {
			tb.Fatal(err)
		}
		// pdata writes fields from the last to the first; SDKs write them in order.
		m := official(signal)
		if err := proto.Unmarshal(b, m); err != nil {
			tb.Fatal(err)
		}
		inOrder, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
		if err != nil {
			tb.Fatal(err)
		}
		bodies = append(bodies, b, inOrder)
	}
	switch signal {
	case segment.Logs:
		add(plogotlp.NewExportRequest(), "logs.json")
		add(plogotlp.NewExportRequest(), "events.json")
	case segment.Traces:
		add(ptraceotlp.NewExportRequest(), "trace.json")
	case segment.Metrics:
		add(pmetricotlp.NewExportRequest(), "metrics.json")
	}
	return bodies
}

// accepts says whether the official runtime accepts body as a message of type d.
func accepts(d protoreflect.MessageDescriptor, body []byte) bool {
	return proto.Unmarshal(body, dynamicpb.NewMessage(d)) == nil
}
