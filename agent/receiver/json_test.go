package receiver

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/collector/pdata/plog/plogotlp"
	"google.golang.org/protobuf/encoding/protowire"
)

func TestHTTPExamplesOfTheSpecification(t *testing.T) {
	const dir = "testdata/"
	run := start(t, nil)
	for name, path := range map[string]string{"logs.json": "/v1/logs", "trace.json": "/v1/traces", "metrics.json": "/v1/metrics"} {
		text, err := os.ReadFile(dir + name)
		if err != nil {
			t.Fatal(err)
		}
		if got := run.send(t, "POST", path, bytes.NewReader(gzipped(t, text)), asJSON, "Content-Encoding: gzip"); got.status != 200 {
			t.Errorf("%s: %d %q", name, got.status, got.body)
		}
	}
	if n := run.keep.records(); n == 0 {
		t.Error("nothing stored")
	}
}

func TestCase62IDsAndNumbersInJSON(t *testing.T) {
	run := start(t, nil)
	const record = `{"resourceLogs":[{"scopeLogs":[{"logRecords":[{%s}]}]}]}`
	const id = `"traceId":"%s"`
	for _, c := range []struct {
		name, fields string
		status       int
	}{
		{"hex", fmt.Sprintf(id, "5b8efff798038103d269b633813fc60c"), 200},
		{"upper-case hex", fmt.Sprintf(id, "5B8EFFF798038103D269B633813FC60C"), 200},
		{"base64", fmt.Sprintf(id, "W47/95gDgQPSabYzgT/GDA=="), 400},
		{"15 bytes", fmt.Sprintf(id, "5b8efff798038103d269b633813fc6"), 400},
		{"no id", fmt.Sprintf(id, ""), 200},
		{"unknown field", `"unknown":{"a":[1,{"b":null}],"c":"}"},"severityText":"WARN"`, 200},
		{"int64 as string", `"timeUnixNano":"1544712660300000000"`, 200},
		{"int64 as number", `"timeUnixNano":1544712660300000000`, 200},
		{"int64 as text", `"timeUnixNano":"soon"`, 400},
		{"enum as number", `"severityNumber":13`, 200},
		{"enum of the future", `"severityNumber":99`, 200},
	} {
		t.Run(c.name, func(t *testing.T) {
			before := len(run.keep.requests())
			got := run.send(t, "POST", "/v1/logs", strings.NewReader(fmt.Sprintf(record, c.fields)), asJSON)
			if got.status != c.status {
				t.Fatalf("%d %q, want %d", got.status, got.body, c.status)
			}
			stored := run.keep.requests()[before:]
			if c.status != 200 {
				if len(stored) != 0 {
					t.Error("a refused request is stored")
				}
				if text := got.rpcStatus(t).GetMessage(); strings.Contains(text, "resourceLogs") {
					t.Errorf("text %q repeats the body", text)
				}
				return
			}
			request := plogotlp.NewExportRequest()
			if err := request.UnmarshalProto(stored[0].Body); err != nil {
				t.Fatal(err)
			}
			lr := request.Logs().ResourceLogs().At(0).ScopeLogs().At(0).LogRecords().At(0)
			type record struct {
				ID, Severity string
				Time         uint64
				Number       int
			}
			got2 := record{lr.TraceID().String(), lr.SeverityText(), uint64(lr.Timestamp()), int(lr.SeverityNumber())}
			want := map[string]record{
				"hex": {ID: "5b8efff798038103d269b633813fc60c"}, "upper-case hex": {ID: "5b8efff798038103d269b633813fc60c"},
				"unknown field": {Severity: "WARN"}, "int64 as string": {Time: 1544712660300000000},
				"int64 as number": {Time: 1544712660300000000}, "enum as number": {Number: 13}, "enum of the future": {Number: 99},
			}[c.name]
			if diff := cmp.Diff(want, got2); diff != "" {
				t.Error(diff)
			}
		})
	}
	// Ids of other lengths in protobuf: 16 bytes and none are right.
	for size, status := range map[int]int{0: 200, 8: 400, 15: 400, 16: 200, 17: 400} {
		before := len(run.keep.requests())
		got := run.send(t, "POST", "/v1/logs", bytes.NewReader(logWithID(size)), asProtobuf)
		if n := len(run.keep.requests()) - before; got.status != status || (n == 1) != (status == 200) {
			t.Errorf("%d-byte id in protobuf: %d, %d stored", size, got.status, n)
		}
	}
}

// logWithID is a request of one record with a trace id of that many bytes.
func logWithID(size int) []byte {
	b := protowire.AppendTag(nil, 9, protowire.BytesType) // LogRecord.trace_id
	b = protowire.AppendBytes(b, bytes.Repeat([]byte{7}, size))
	for _, field := range []protowire.Number{2, 2, 1} { // log_records, scope_logs, resource_logs
		b = append(protowire.AppendTag(nil, field, protowire.BytesType), protowire.AppendBytes(nil, b)...)
	}
	return b
}

func TestJSONBombs(t *testing.T) {
	run := start(t, nil)
	nested := func(n int) string {
		return `{"resourceLogs":[{"scopeLogs":[{"logRecords":[{"body":` + strings.Repeat(`{"arrayValue":{"values":[`, n) +
			`{"intValue":"1"}` + strings.Repeat(`]}}`, n) + `}]}]}]}`
	}
	most := testLimit / jsonBytesPerObject
	for _, c := range []struct {
		name, body string
		status     int
	}{
		{"nested as deep as protobuf may be", nested(45), 200},
		{"nested deeper", nested(1000), 400},
		{"nested very deep, unknown", `{"x":` + strings.Repeat("[", 9000) + strings.Repeat("]", 9000) + `}`, 400},
		{"many objects", `{"resourceLogs":[` + strings.Repeat("{},", most-2) + `{}]}`, 200},
		{"too many objects", `{"resourceLogs":[` + strings.Repeat("{},", most-1) + `{}]}`, 413},
		{"quotes and braces in strings", `{"resourceLogs":[{"schemaUrl":"` + strings.Repeat(`{\"[\\`, 2000) + `"}]}`, 200},
		{"longer as protobuf", `{"resourceMetrics":[{"scopeMetrics":[{"metrics":[{"histogram":{"dataPoints":[{"bucketCounts":[` +
			strings.Repeat("1,", testLimit/3) + `1]}]}}]}]}]}`, 413},
	} {
		path := "/v1/logs"
		if strings.Contains(c.body, "resourceMetrics") {
			path = "/v1/metrics"
		}
		if got := run.send(t, "POST", path, strings.NewReader(c.body), asJSON); got.status != c.status {
			t.Errorf("%s: %d %.200q, want %d", c.name, got.status, got.body, c.status)
		}
	}
}
