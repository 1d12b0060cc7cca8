package otlpgen

import (
	"go.opentelemetry.io/collector/pdata/plog"
)

var severities = []struct {
	number plog.SeverityNumber
	text   string
}{
	{plog.SeverityNumberDebug, "DEBUG"},
	{plog.SeverityNumberInfo, "INFO"},
	{plog.SeverityNumberInfo, "INFO"},
	{plog.SeverityNumberInfo, "INFO"},
	{plog.SeverityNumberWarn, "WARN"},
}

// logs is a request of log records: mostly short lines, some structured bodies, some errors with a stack trace.
func (c *content) logs(records int) ([]byte, error) {
	data := plog.NewLogs()
	var scope plog.ScopeLogs
	var resource plog.ResourceLogs
	var from service
	for i := range records {
		if i%recordsPerResource == 0 {
			resource = data.ResourceLogs().AppendEmpty()
			resource.SetSchemaUrl("https://opentelemetry.io/schemas/1.27.0")
			from = c.resource(resource.Resource())
		}
		if i%recordsPerScope == 0 {
			scope = resource.ScopeLogs().AppendEmpty()
			scope.Scope().SetName(from.scope)
		}
		c.logRecord(scope.LogRecords().AppendEmpty(), i)
	}
	return (&plog.ProtoMarshaler{}).MarshalLogs(data)
}

func (c *content) logRecord(r plog.LogRecord, i int) {
	r.SetTimestamp(c.time(i))
	r.SetObservedTimestamp(r.Timestamp() + 1_000_000)
	a := r.Attributes()
	switch {
	case c.chance(12):
		r.SetSeverityNumber(plog.SeverityNumberError)
		r.SetSeverityText("ERROR")
		r.Body().SetStr(c.sentence(8))
		a.PutStr("exception.type", "java.lang.IllegalStateException")
		a.PutStr("exception.stacktrace", c.stackTrace())
	case c.chance(4):
		severity := pick(c, severities)
		r.SetSeverityNumber(severity.number)
		r.SetSeverityText(severity.text)
		body := r.Body().SetEmptyMap()
		body.PutStr("msg", c.sentence(5))
		body.PutDouble("took_ms", float64(c.rng.IntN(1_000_000))/1000)
		body.PutEmptyBytes("digest").FromRaw([]byte{byte(i), 0, 0xff, byte(c.rng.Uint32())})
		list := body.PutEmptySlice("tags")
		for range c.rng.IntN(4) {
			list.AppendEmpty().SetStr(pick(c, words))
		}
	default:
		severity := pick(c, severities)
		r.SetSeverityNumber(severity.number)
		r.SetSeverityText(severity.text)
		r.Body().SetStr(c.sentence(5 + c.rng.IntN(20)))
		c.request(a)
	}
	a.PutStr(SeqKey, blank)
	if c.chance(2) {
		r.SetTraceID(c.traceID())
		r.SetSpanID(c.spanID())
		r.SetFlags(plog.DefaultLogRecordFlags.WithIsSampled(true))
	}
}
