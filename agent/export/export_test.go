package export

import (
	"bytes"
	"encoding/json"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/oklog/ulid/v2"
	"go.opentelemetry.io/collector/pdata/plog"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/pdata/ptrace"

	"ingest-agent/segment"
)

// unknownField is a field 500 with a number in it, which no OTLP version knows. What decodes and encodes again loses it.
var unknownField = []byte{0xa0, 0x1f, 0x07}

// body is an OTLP request of one resource with records records, the first called name.
func body(t testing.TB, signal segment.Signal, name string, records int) []byte {
	t.Helper()
	var out []byte
	var err error
	switch signal {
	case segment.Logs:
		d := plog.NewLogs()
		rs := d.ResourceLogs().AppendEmpty()
		rs.Resource().Attributes().PutStr("service.name", name)
		sl := rs.ScopeLogs().AppendEmpty()
		for i := range records {
			sl.LogRecords().AppendEmpty().Body().SetStr(fmt.Sprintf("%s %d line\nbreak \x00 \u2028 end", name, i))
		}
		out, err = (&plog.ProtoMarshaler{}).MarshalLogs(d)
	case segment.Traces:
		d := ptrace.NewTraces()
		rs := d.ResourceSpans().AppendEmpty()
		rs.Resource().Attributes().PutStr("service.name", name)
		ss := rs.ScopeSpans().AppendEmpty()
		for i := range records {
			span := ss.Spans().AppendEmpty()
			span.SetName(fmt.Sprintf("%s %d", name, i))
			span.SetTraceID([16]byte{1, 2, byte(i)})
		}
		out, err = (&ptrace.ProtoMarshaler{}).MarshalTraces(d)
	case segment.Metrics:
		d := pmetric.NewMetrics()
		rm := d.ResourceMetrics().AppendEmpty()
		rm.Resource().Attributes().PutStr("service.name", name)
		m := rm.ScopeMetrics().AppendEmpty().Metrics().AppendEmpty()
		m.SetName(name)
		m.SetEmptyGauge()
		for i := range records {
			m.Gauge().DataPoints().AppendEmpty().SetIntValue(int64(i))
		}
		out, err = (&pmetric.ProtoMarshaler{}).MarshalMetrics(d)
	}
	if err != nil {
		t.Fatal(err)
	}
	return out
}

var testOwner = segment.OwnerID(ulid.MustParse("01JZ0000000000000000000001"))

func frame(signal segment.Signal, number int, body []byte, records int) segment.Frame {
	id := segment.FrameID{
		Birth:  segment.Birth{Owner: testOwner, Lane: segment.LaneID{Destination: "default", Shard: 1}, Seq: 7},
		Number: segment.Entry(number),
	}
	return segment.Frame{ID: id, Position: segment.Position{Seq: 7, Entry: segment.Entry(number)}, Signal: signal,
		Tenant: "default", Received: time.Unix(1700000000, 0), Records: uint32(records), Body: body}
}

// request is one of n frames with records records each.
func request(t testing.TB, signal segment.Signal, n, records int) *segment.Request {
	t.Helper()
	r := &segment.Request{Tenant: "default", Signal: signal}
	for i := 1; i <= n; i++ {
		r.Frames = append(r.Frames, frame(signal, i, body(t, signal, fmt.Sprintf("f%d", i), records), records))
	}
	return r
}

func merged(r *segment.Request) []byte {
	var all [][]byte
	for i := range r.Frames {
		all = append(all, r.Frames[i].Body)
	}
	return bytes.Join(all, nil)
}

// wantVerdict fails unless out has the verdict, and an error exactly if something is not as hoped.
func wantVerdict(t testing.TB, out segment.Outcome, want segment.Verdict) {
	t.Helper()
	if out.Verdict != want {
		t.Fatalf("verdict %d, want %d (err: %v)", out.Verdict, want, out.Err)
	}
	if want != segment.Delivered && out.Err == nil {
		t.Fatal("no error says why")
	}
}

func mustClose(t testing.TB, s Sink) {
	t.Helper()
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// collector collects values from handlers.
type collector[T any] struct {
	mu  sync.Mutex
	all []T
}

func (c *collector[T]) add(v T) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.all = append(c.all, v)
}

func (c *collector[T]) get() []T {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]T(nil), c.all...)
}

// checkLine fails unless the line is JSON and decodes as OTLP of the signal; it returns the number of records.
func checkLine(t testing.TB, signal segment.Signal, line []byte) int {
	t.Helper()
	if !json.Valid(line) {
		t.Fatalf("line is not JSON: %.100q", line)
	}
	switch signal {
	case segment.Logs:
		d, err := (&plog.JSONUnmarshaler{}).UnmarshalLogs(line)
		if err != nil {
			t.Fatalf("line is no OTLP: %v", err)
		}
		return d.LogRecordCount()
	case segment.Traces:
		d, err := (&ptrace.JSONUnmarshaler{}).UnmarshalTraces(line)
		if err != nil {
			t.Fatalf("line is no OTLP: %v", err)
		}
		return d.SpanCount()
	}
	d, err := (&pmetric.JSONUnmarshaler{}).UnmarshalMetrics(line)
	if err != nil {
		t.Fatalf("line is no OTLP: %v", err)
	}
	return d.DataPointCount()
}
