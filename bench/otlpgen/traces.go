package otlpgen

import (
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/ptrace"
)

// spansPerTrace is how many spans of a request share a trace.
const spansPerTrace = 6

// traces is a request of spans: server and client spans of HTTP requests, some with events and links.
func (c *content) traces(records int) ([]byte, error) {
	data := ptrace.NewTraces()
	var scope ptrace.ScopeSpans
	var resource ptrace.ResourceSpans
	var from service
	var trace pcommon.TraceID
	var parent pcommon.SpanID
	for i := range records {
		if i%recordsPerResource == 0 {
			resource = data.ResourceSpans().AppendEmpty()
			from = c.resource(resource.Resource())
		}
		if i%recordsPerScope == 0 {
			scope = resource.ScopeSpans().AppendEmpty()
			scope.Scope().SetName(from.scope)
			scope.Scope().SetVersion("0.49.0")
		}
		if i%spansPerTrace == 0 {
			trace, parent = c.traceID(), pcommon.SpanID{}
		}
		s := scope.Spans().AppendEmpty()
		s.SetTraceID(trace)
		s.SetParentSpanID(parent)
		parent = c.spanID()
		s.SetSpanID(parent)
		c.span(s, i)
	}
	return (&ptrace.ProtoMarshaler{}).MarshalTraces(data)
}

func (c *content) span(s ptrace.Span, i int) {
	s.SetStartTimestamp(c.time(i))
	s.SetEndTimestamp(s.StartTimestamp() + pcommon.Timestamp(1+c.rng.IntN(400_000_000)))
	s.SetName(pick(c, methods) + " " + pick(c, routes))
	s.SetKind(pick(c, []ptrace.SpanKind{ptrace.SpanKindServer, ptrace.SpanKindClient, ptrace.SpanKindInternal}))
	status := c.request(s.Attributes())
	s.Attributes().PutStr(SeqKey, blank)
	if status >= 500 {
		s.Status().SetCode(ptrace.StatusCodeError)
		s.Status().SetMessage(c.sentence(4))
		e := s.Events().AppendEmpty()
		e.SetName("exception")
		e.SetTimestamp(s.EndTimestamp())
		e.Attributes().PutStr("exception.message", c.sentence(6))
		e.Attributes().PutStr("exception.stacktrace", c.stackTrace())
	}
	if c.chance(10) {
		link := s.Links().AppendEmpty()
		link.SetTraceID(c.traceID())
		link.SetSpanID(c.spanID())
		link.TraceState().FromRaw("shop=1")
	}
}
