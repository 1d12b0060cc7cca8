package otlpgen

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/collector/pdata/plog"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/pdata/ptrace"

	"ingest-agent/segment"
)

func generator(t *testing.T, seed uint64, records int) *Generator {
	t.Helper()
	g, err := New(seed, records)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// decode asks pdata for the number of records, and for the request in JSON.
func decode(t *testing.T, signal segment.Signal, body []byte) (records int, json []byte) {
	t.Helper()
	var err, jsonErr error
	switch signal {
	case segment.Logs:
		var d plog.Logs
		if d, err = (&plog.ProtoUnmarshaler{}).UnmarshalLogs(body); err == nil {
			records = d.LogRecordCount()
			json, jsonErr = (&plog.JSONMarshaler{}).MarshalLogs(d)
		}
	case segment.Traces:
		var d ptrace.Traces
		if d, err = (&ptrace.ProtoUnmarshaler{}).UnmarshalTraces(body); err == nil {
			records = d.SpanCount()
			json, jsonErr = (&ptrace.JSONMarshaler{}).MarshalTraces(d)
		}
	default:
		var d pmetric.Metrics
		if d, err = (&pmetric.ProtoUnmarshaler{}).UnmarshalMetrics(body); err == nil {
			records = d.DataPointCount()
			json, jsonErr = (&pmetric.JSONMarshaler{}).MarshalMetrics(d)
		}
	}
	if err = errors.Join(err, jsonErr); err != nil {
		t.Fatalf("%s: pdata: %v", signal, err)
	}
	return records, json
}

func numbers(first uint64, n int) []uint64 {
	var all []uint64
	for i := range uint64(n) {
		all = append(all, first+i)
	}
	return all
}

func TestNumbersComeBackFromProtobufAndJSON(t *testing.T) {
	for _, records := range []int{1, 10, 100, 1000} {
		g := generator(t, 1, records)
		for _, signal := range segment.Signals {
			for variant := range Variants {
				if records == 1000 && variant > 0 {
					break // the way through JSON takes long, and shows nothing new
				}
				first := uint64(variant)*1_000_000_007 + 1
				body := g.Append(nil, signal, variant, first)
				n, json := decode(t, signal, body)
				if n != records {
					t.Fatalf("%s of %d: pdata finds %d records", signal, records, n)
				}
				var got, fromJSON []uint64
				if err := Walk(signal, body, func(seq uint64) { got = append(got, seq) }); err != nil {
					t.Fatal(err)
				}
				lines := slices.Concat(json, []byte{'\n'})
				if err := WalkNDJSON(signal, bytes.NewReader(lines), func(seq uint64) { fromJSON = append(fromJSON, seq) }); err != nil {
					t.Fatal(err)
				}
				want := numbers(first, records)
				if !slices.Equal(got, want) || !slices.Equal(fromJSON, want) {
					t.Fatalf("%s of %d, variant %d: %s", signal, records, variant, cmp.Diff(want, got)+cmp.Diff(want, fromJSON))
				}
			}
		}
	}
}

func TestSameSeedSameBytes(t *testing.T) {
	a, b, c := generator(t, 7, 10), generator(t, 7, 10), generator(t, 8, 10)
	for _, signal := range segment.Signals {
		x, y, z := a.Append(nil, signal, 3, 42), b.Append(nil, signal, 3, 42), c.Append(nil, signal, 3, 42)
		if !bytes.Equal(x, y) {
			t.Errorf("%s: two generators of one seed differ", signal)
		}
		if bytes.Equal(x, z) || bytes.Equal(x, a.Append(nil, signal, 4, 42)) {
			t.Errorf("%s: another seed or variant gives the same request", signal)
		}
	}
}

// Concatenation is how an agent merges requests.
func TestMergedRequestsKeepTheirNumbers(t *testing.T) {
	g := generator(t, 2, 3)
	for _, signal := range segment.Signals {
		body := g.Append(nil, signal, 0, 1)
		body = g.Append(body, signal, 1, 100)
		var got []uint64
		if err := Walk(signal, body, func(seq uint64) { got = append(got, seq) }); err != nil {
			t.Fatal(err)
		}
		if want := []uint64{1, 2, 3, 100, 101, 102}; !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", signal, got, want)
		}
	}
}

// A change of any one byte of a record is noticed; the request has one record, all but its resource and scope.
func TestChangedRecordIsNoticed(t *testing.T) {
	g := generator(t, 3, 1)
	for _, signal := range segment.Signals {
		body := g.Append(nil, signal, 0, 9)
		var whole span
		if err := walk(signal, body, func(r record) error { whole = r.whole; return nil }); err != nil {
			t.Fatal(err)
		}
		for at := whole.from; at < whole.to; at++ {
			bad := slices.Clone(body)
			bad[at] ^= 1 << (at % 8)
			if err := Walk(signal, bad, func(uint64) {}); err == nil {
				t.Fatalf("%s: byte %d changed and not noticed", signal, at)
			}
		}
		if err := Walk(signal, body[:len(body)-1], func(uint64) {}); err == nil {
			t.Errorf("%s: cut request not noticed", signal)
		}
	}
}

func TestWrongSignalIsNotRead(t *testing.T) {
	g := generator(t, 4, 10)
	body := g.Append(nil, segment.Logs, 0, 1)
	for _, signal := range []segment.Signal{segment.Traces, segment.Metrics} {
		read := 0
		if err := Walk(signal, body, func(uint64) { read++ }); err == nil && read > 0 {
			t.Errorf("%d log records were read as %s", read, signal)
		}
	}
}

func TestNDJSONDamage(t *testing.T) {
	_, json := decode(t, segment.Logs, generator(t, 5, 2).Append(nil, segment.Logs, 0, 1))
	line := string(json) + "\n"
	for name, c := range map[string]struct {
		text string
		read int
		err  string
	}{
		"torn last line":    {line + line[:len(line)/2], 2, ErrTornLine.Error()},
		"damaged in middle": {line + line[:len(line)/2] + "\n" + line, 2, "read line 2"},
		"not ours":          {`{"resourceLogs":[{"scopeLogs":[{"logRecords":[{"body":{"stringValue":"x"}}]}]}]}` + "\n", 0, "0 attributes"},
		"changed":           {line + strings.Replace(line, `"timeUnixNano":"1`, `"timeUnixNano":"2`, 1), 2, "was changed"},
	} {
		read := 0
		err := WalkNDJSON(segment.Logs, strings.NewReader(c.text), func(uint64) { read++ })
		if err == nil || !strings.Contains(err.Error(), c.err) || read != c.read {
			t.Errorf("%s: %d read, error %v; want %d and %q", name, read, err, c.read, c.err)
		}
	}
}

func TestBadRecordNumbersRefused(t *testing.T) {
	for _, records := range []int{0, -1, MaxRecords + 1} {
		if _, err := New(1, records); err == nil {
			t.Errorf("%d records a request were taken", records)
		}
	}
}

func FuzzWalk(f *testing.F) {
	g, err := New(6, 2)
	if err != nil {
		f.Fatal(err)
	}
	for _, signal := range segment.Signals {
		f.Add(uint8(signal), g.Append(nil, signal, 0, 1))
	}
	f.Fuzz(func(t *testing.T, signal uint8, body []byte) {
		s := segment.Signal(signal%segment.NumSignals + 1)
		var got []uint64
		if Walk(s, body, func(seq uint64) { got = append(got, seq) }) != nil {
			return
		}
		// What is read is really there, as text.
		for _, seq := range got {
			var digits [seqDigits]byte
			putHex(digits[:], seq)
			if !bytes.Contains(body, digits[:]) {
				t.Fatalf("record %d was made up", seq)
			}
		}
	})
}

func BenchmarkAppend(b *testing.B) {
	g, err := New(1, 100)
	if err != nil {
		b.Fatal(err)
	}
	var body []byte
	rng := rand.New(rand.NewPCG(1, 1))
	for b.Loop() {
		body = g.Append(body[:0], segment.Signals[rng.IntN(3)], rng.IntN(Variants), 1)
		b.SetBytes(int64(len(body)))
	}
}

func BenchmarkWalk(b *testing.B) {
	g, err := New(1, 100)
	if err != nil {
		b.Fatal(err)
	}
	body := g.Append(nil, segment.Logs, 0, 1)
	b.SetBytes(int64(len(body)))
	for b.Loop() {
		if err := Walk(segment.Logs, body, func(uint64) {}); err != nil {
			b.Fatal(err)
		}
	}
}
