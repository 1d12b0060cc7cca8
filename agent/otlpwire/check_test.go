package otlpwire

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"ingest-agent/segment"
)

// Wire format by hand. A message is the concatenation of its fields.

func msg(number protowire.Number, fields ...[]byte) []byte {
	return appendMessage(nil, number, slices.Concat(fields...))
}

func str(number protowire.Number, s string) []byte { return msg(number, []byte(s)) }

func num(number protowire.Number, v uint64) []byte {
	return protowire.AppendVarint(protowire.AppendTag(nil, number, protowire.VarintType), v)
}

func fix64(number protowire.Number, v uint64) []byte {
	return protowire.AppendFixed64(protowire.AppendTag(nil, number, protowire.Fixed64Type), v)
}

func fix32(number protowire.Number, v uint32) []byte {
	return protowire.AppendFixed32(protowire.AppendTag(nil, number, protowire.Fixed32Type), v)
}

func group(number protowire.Number, fields ...[]byte) []byte {
	b := protowire.AppendTag(nil, number, protowire.StartGroupType)
	return protowire.AppendTag(append(b, slices.Concat(fields...)...), number, protowire.EndGroupType)
}

// inRecord is a request with one record that has those fields; in metrics a data point of a gauge.
func inRecord(signal segment.Signal, fields ...[]byte) []byte {
	r := msg(2, fields...)
	if signal == segment.Metrics {
		r = msg(2, str(1, "m"), msg(5, msg(1, fields...)))
	}
	return msg(1, msg(1), msg(2, r))
}

// attribute is a KeyValue with that AnyValue as the first attribute of a resource.
func attribute(anyValue ...[]byte) []byte {
	return msg(1, msg(1, msg(1, str(1, "k"), msg(2, anyValue...))))
}

// nestedLists is an AnyValue with that many key-value lists in each other, the innermost one empty.
func nestedLists(n int) []byte {
	var b []byte
	for i := range n {
		if i > 0 {
			b = msg(1, msg(2, b))
		}
		b = msg(6, b)
	}
	return b
}

// nestedCommon is a KeyValue of the usual form in that many key-value lists.
func nestedCommon(n int) []byte {
	b := slices.Concat(str(1, "k"), msg(2, num(2, 1)))
	for range n {
		b = slices.Concat(str(1, "k"), msg(2, msg(6, msg(1, b))))
	}
	return b
}

func deepGroup(n int) []byte {
	b := bytes.Repeat(protowire.AppendTag(nil, 20, protowire.StartGroupType), n)
	return append(b, bytes.Repeat(protowire.AppendTag(nil, 20, protowire.EndGroupType), n)...)
}

// handmadeCase is a body with what Check has to say about it. A body that is refused has no records.
type handmadeCase struct {
	name    string
	signal  segment.Signal
	body    []byte
	records int
	invalid bool
	fault   fault
}

// overflow is a varint of 65 bits.
var overflow = []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x02}

func handmade() []handmadeCase {
	return slices.Concat(handmadeWire(), handmadeValues(), handmadeScopes(), handmadeMetrics(), handmadeRecords())
}

func handmadeWire() []handmadeCase {
	const l = segment.Logs
	tag := func(n uint64, t protowire.Type) []byte { return protowire.AppendVarint(nil, n<<3|uint64(t)) }
	return []handmadeCase{
		{name: "empty request", signal: l},
		{name: "empty resource", signal: l, body: msg(1)},
		{name: "unknown field of each type", signal: l,
			body: slices.Concat(num(9, 1), fix32(9, 1), fix64(9, 1), str(9, "x"), inRecord(l, num(4, 3))), records: 1},
		{name: "largest field number", signal: l, body: num(protowire.MaxValidNumber, 1)},
		{name: "field number 0", signal: l, body: []byte{0, 1}, fault: badNumber},
		{name: "field number over the largest", signal: l, body: append(tag(1<<29, 0), 1), fault: badNumber},
		{name: "field number modulo 2^32", signal: l, body: append(tag(1<<32+1, 2), 0), fault: badNumber},
		{name: "field number of 64 bits", signal: l, body: append(overflow[:9:9], 1, 1), fault: badNumber},
		{name: "tag in three bytes", signal: l, body: []byte{0x8a, 0x80, 0x00, 0x00}},
		{name: "tag over 64 bits", signal: l, body: append(overflow[:10:10], 1), fault: badVarint},
		{name: "tag cut off", signal: l, body: []byte{0x8a}, fault: badVarint},
		{name: "length missing", signal: l, body: []byte{0x0a}, fault: badVarint},
		{name: "length in ten bytes", signal: l, body: longVarint([]byte{0x0a}, 0, 10)},
		{name: "length in eleven bytes", signal: l, body: append(bytes.Repeat([]byte{0x80}, 10), 0), fault: badVarint},
		{name: "length over 64 bits", signal: l, body: append([]byte{0x0a}, overflow...), fault: badVarint},
		{name: "length of 63 bits and more", signal: l, body: append([]byte{0x0a}, overflow[:9]...), fault: badVarint},
		{name: "negative length", signal: l, body: append(append([]byte{0x0a}, overflow[:9]...), 1), fault: badLength},
		{name: "length over the body", signal: l, body: []byte{0x0a, 1}, fault: badLength},
		{name: "length over the message, not the body", signal: l,
			body: slices.Concat(msg(1, []byte{0x1a, 2, 'a'}), str(9, "abc")), fault: badLength},
		{name: "length over the message in two bytes", signal: l,
			body: slices.Concat(msg(1, []byte{0x1a, 0x82, 0, 'a'}), str(9, "abc")), fault: badLength},
		{name: "varint field ends with message", signal: l,
			body: slices.Concat(msg(1, []byte{9 << 3}), str(9, "abc")), fault: badUnknown},
		{name: "known varint ends with message", signal: l,
			body: slices.Concat(inRecord(l, []byte{2 << 3}), str(9, "abc")), fault: badVarint},
		{name: "known varint over 64 bits", signal: l, body: inRecord(l, append([]byte{2 << 3}, overflow...)), fault: badVarint},
		{name: "unknown varint over 64 bits", signal: l, body: append([]byte{9 << 3}, overflow...), fault: badUnknown},
		{name: "unknown fixed32 cut off", signal: l, body: fix32(9, 1)[:4], fault: badUnknown},
		{name: "unknown fixed64 cut off", signal: l, body: fix64(9, 1)[:8], fault: badUnknown},
		{name: "unknown bytes cut off", signal: l, body: str(9, "abc")[:4], fault: badUnknown},
		{name: "wire type 6", signal: l, body: tag(9, 6), fault: badUnknown},
		{name: "wire type 7 of a known field", signal: l, body: tag(1, 7), fault: badWireType},
		{name: "known field as varint", signal: l, body: num(1, 1), fault: badWireType},
		{name: "known field as group", signal: l, body: append(group(1), 0x0a, 0), fault: badWireType},

		{name: "group left open", signal: l, body: append(tag(9, 3), num(9, 1)...), fault: badUnknown},
		{name: "group left open at the end", signal: l, body: tag(9, 3), fault: badUnknown},
		{name: "group closed that was never open", signal: l, body: append(tag(9, 4), num(9, 1)...), fault: badEndOfHere},
		{name: "group closed by another number", signal: l, body: slices.Concat(tag(9, 3), tag(8, 4), num(9, 1)), fault: badUnknown},
		{name: "group with a field", signal: l, body: append(group(9, num(9, 1)), num(9, 1)...), fault: badGroup},
		{name: "empty group at the end", signal: l, body: group(9), fault: badGroup},
		{name: "empty group at the end of a message", signal: l, body: append(msg(1, group(9)), num(9, 1)...), fault: badGroup},
		{name: "empty group", signal: l, body: append(group(9), num(9, 1)...)},
		{name: "groups in a group", signal: l, body: append(group(9, group(1), group(2, group(3))), num(9, 1)...)},
		{name: "10001 groups in each other", signal: l, body: append(deepGroup(10001), num(9, 1)...)},
		{name: "10002 groups in each other", signal: l, body: append(deepGroup(10002), num(9, 1)...), fault: badUnknown},
	}
}

func handmadeValues() []handmadeCase {
	const l = segment.Logs
	longKey := strings.Repeat("k", 200)
	return []handmadeCase{
		{name: "each scalar", signal: l, body: slices.Concat(attribute(str(1, "v")), attribute(num(2, 1)), attribute(num(3, 1<<63)),
			attribute(fix64(4, 1<<63)), attribute(str(7, "\xff")), attribute(num(8, 1)), attribute())},
		{name: "several values", signal: l, body: attribute(str(1, "v"), num(2, 1), msg(5, msg(1)), msg(6), msg(5))},
		{name: "long key", signal: l, body: msg(1, msg(1, msg(1, str(1, longKey), msg(2, str(1, longKey)))))},
		{name: "value before key", signal: l, body: msg(1, msg(1, msg(1, msg(2, num(2, 1)), str(1, "k"))))},
		{name: "two keys", signal: l, body: msg(1, msg(1, msg(1, str(1, "k"), str(1, "\x08\x01"))))},
		{name: "two values", signal: l, body: msg(1, msg(1, msg(1, msg(2, num(2, 1)), msg(2, num(2, 1)))))},
		{name: "int with a length", signal: l, body: attribute(str(3, "1")), fault: badWireType},
		{name: "string of varint type", signal: l, body: attribute(num(1, 1)), fault: badWireType},
		{name: "bool without a value", signal: l, body: attribute([]byte{2 << 3}), fault: badVarint},
		{name: "bool cut off", signal: l, body: attribute([]byte{2 << 3, 0x80}), fault: badVarint},
		{name: "double cut off", signal: l, body: attribute(fix64(4, 1)[:8]), fault: badLength},
		{name: "string cut off", signal: l, body: attribute([]byte{1<<3 | 2, 2, 'a'}), fault: badLength},
		{name: "string that ends early", signal: l, body: attribute([]byte{1<<3 | 2, 0, 'a'}), fault: badUnknown},
		{name: "bool with more behind", signal: l, body: attribute(num(2, 1), []byte{0}), fault: badNumber},
		{name: "key index as bytes", signal: l, body: msg(1, msg(1, msg(1, msg(2, num(2, 1)), str(3, "k")))), fault: badWireType},
		{name: "long key that looks like a short one", signal: l, fault: badWireType,
			body: msg(1, msg(1, msg(1, str(1, longKey[:132]+"\x12"), []byte{0x09, 0x21}, []byte("12345678"))))},
		{name: "key not UTF-8 of a double", signal: l, body: msg(1, msg(1, msg(1, str(1, "\xff"), msg(2, fix64(4, 1))))), invalid: true},
		{name: "usual attribute in 32 lists", signal: l, body: msg(1, msg(1, msg(1, nestedCommon(32))))},
		{name: "usual attribute in 33 lists", signal: l, body: msg(1, msg(1, msg(1, nestedCommon(33)))), fault: badNesting},
		{name: "key index", signal: l, body: msg(1, msg(1, msg(1, num(3, 7), msg(2, num(8, 1)))))},
		{name: "key not UTF-8", signal: l, body: msg(1, msg(1, msg(1, str(1, "\xff"), msg(2, num(2, 1))))), invalid: true},
		{name: "value not UTF-8", signal: l, body: attribute(str(1, "a\xff")), invalid: true},
		{name: "long value not UTF-8", signal: l, body: attribute(str(1, longKey+"\xff")), invalid: true},
		{name: "UTF-8 beyond ASCII", signal: l, body: attribute(str(1, "größer als €, 数"))},
		{name: "surrogate", signal: l, body: attribute(str(1, "\xed\xa0\x80")), invalid: true},
		{name: "unknown field not UTF-8", signal: l, body: attribute(str(9, "\xff"))},
		{name: "not UTF-8 in an entity", signal: l, body: msg(1, msg(1, msg(3, str(1, "u"), str(2, "t"), str(3, "a"), str(4, "\xff")))),
			invalid: true},
		{name: "49 arrays in each other", signal: l, body: msg(1, msg(1, msg(1, msg(2, nestedArrays(49)))))},
		{name: "50 arrays in each other", signal: l, body: msg(1, msg(1, msg(1, msg(2, nestedArrays(50))))), fault: badNesting},
		{name: "50 arrays in a body", signal: l, body: inRecord(l, msg(5, nestedArrays(50))), records: 1},
		{name: "51 arrays in a body", signal: l, body: inRecord(l, msg(5, nestedArrays(51))), fault: badNesting},
		{name: "33 lists in each other", signal: l, body: inRecord(l, msg(5, nestedLists(33))), records: 1},
		{name: "34 lists in each other", signal: l, body: inRecord(l, msg(5, nestedLists(34))), fault: badNesting},
		{name: "deepest value in deepest message", signal: segment.Metrics, records: 1,
			body: inRecord(segment.Metrics, msg(5, msg(7, msg(2, nestedArrays(49)))))},
	}
}

func handmadeScopes() []handmadeCase {
	const l = segment.Logs
	log, old := msg(2, msg(2), msg(2)), msg(oldScopesNumber, msg(2))
	return []handmadeCase{
		{name: "scopes by the old number", signal: l, body: msg(1, old, old), records: 2},
		{name: "scopes by both numbers", signal: l, body: msg(1, old, log, old), records: 2},
		{name: "empty scope by the new number", signal: l, body: msg(1, old, msg(2), old)},
		{name: "one resource by each number", signal: l, body: slices.Concat(msg(1, old), msg(1, log, old), msg(1, old)), records: 4},
		{name: "old number as varint", signal: l, body: msg(1, num(oldScopesNumber, 1)), fault: badWireType},
		{name: "old number elsewhere", signal: l, body: num(oldScopesNumber, 1)},
		{name: "malformed scope by the old number", signal: l, body: msg(1, msg(oldScopesNumber, num(2, 1)), log), fault: badWireType},
		{name: "group left open by the old number", signal: l,
			body: msg(1, msg(oldScopesNumber, protowire.AppendTag(nil, 9, protowire.StartGroupType), num(9, 1))), fault: badUnknown},
		{name: "not UTF-8 by the old number", signal: l, body: msg(1, msg(oldScopesNumber, str(3, "\xff")), log), records: 2, invalid: true},
		{name: "spans by the old number", signal: segment.Traces, body: msg(1, old), records: 1},
		{name: "metrics by the old number", signal: segment.Metrics,
			body: msg(1, msg(oldScopesNumber, msg(2, msg(5, msg(1)), msg(7, msg(1), msg(1))))), records: 2},
		{name: "metrics by both numbers", signal: segment.Metrics, records: 1,
			body: msg(1, msg(2, msg(2, msg(5, msg(1)))), msg(oldScopesNumber, msg(2, msg(5, msg(1)), msg(7, msg(1), msg(1)))))},
		{name: "resource in two parts", signal: l, body: msg(1, msg(1, num(2, 1)), log, msg(1, num(2, 2)), str(3, "u")), records: 2},
		{name: "schema url not UTF-8", signal: l, body: msg(1, log, str(3, "\xff")), records: 2, invalid: true},
		{name: "scope with all fields", signal: l, records: 1,
			body: msg(1, msg(2, msg(1, str(1, "n"), str(2, "v"), msg(3, str(1, "k")), num(4, 1)), msg(2), str(3, "u")))},
	}
}

func handmadeMetrics() []handmadeCase {
	const m = segment.Metrics
	inMetric := func(fields ...[]byte) []byte { return msg(1, msg(2, msg(2, fields...))) }
	histogram := func(fields ...[]byte) []byte { return inMetric(msg(9, msg(1, fields...), num(2, 1))) }
	exponential := func(fields ...[]byte) []byte { return inMetric(msg(10, msg(1, fields...), num(2, 1))) }
	eight := "12345678"
	return []handmadeCase{
		{name: "metric without data", signal: m, body: inMetric(str(1, "n"), str(2, "d"), str(3, "u"), msg(12, str(1, "k")))},
		{name: "gauge without points", signal: m, body: inMetric(msg(5))},
		{name: "gauge", signal: m, body: inMetric(msg(5, msg(1, fix64(4, 1)), msg(1, fix64(6, 1)))), records: 2},
		{name: "sum", signal: m, body: inMetric(msg(7, msg(1), num(2, 1), num(3, 1))), records: 1},
		{name: "summary", signal: m, body: inMetric(msg(11, msg(1, msg(6, fix64(1, 1), fix64(2, 1))))), records: 1},
		{name: "gauge after sum", signal: m, body: inMetric(msg(7, msg(1), msg(1)), msg(5, msg(1))), records: 1},
		{name: "gauge after gauge", signal: m, body: inMetric(msg(5, msg(1), msg(1)), str(1, "n"), msg(5, msg(1))), records: 1},
		{name: "empty gauge after gauge", signal: m, body: inMetric(msg(5, msg(1), msg(1)), msg(5))},
		{name: "histogram, packed", signal: m, body: histogram(str(6, eight), str(7, eight+eight), fix64(11, 1)), records: 1},
		{name: "histogram, one by one", signal: m, body: histogram(fix64(6, 1), fix64(7, 1), fix64(7, 1)), records: 1},
		{name: "histogram, packed to 12 bytes", signal: m, body: histogram(str(6, eight+"1234")), fault: badPacked},
		{name: "histogram, varint bucket", signal: m, body: histogram(num(6, 1)), fault: badWireType},
		{name: "histogram, bucket cut off", signal: m, body: histogram(fix64(6, 1)[:8]), fault: badLength},
		{name: "exponential, packed", signal: m, body: exponential(msg(8, num(1, 3), str(2, "\x01\x80\x01"))), records: 1},
		{name: "exponential, one by one", signal: m, body: exponential(msg(9, num(2, 1), num(2, 300))), records: 1},
		{name: "exponential, packed and cut off", signal: m, body: exponential(msg(8, str(2, "\x01\x80"))), fault: badPacked},
		{name: "exponential, packed over 64 bits", signal: m, body: exponential(msg(8, msg(2, overflow))), fault: badPacked},
		{name: "exponential, fixed bucket", signal: m, body: exponential(msg(8, fix64(2, 1))), fault: badWireType},
		{name: "exponential, all fields", signal: m, records: 1, body: exponential(msg(1, str(1, "k")), fix64(2, 1), fix64(3, 1),
			fix64(4, 1), fix64(5, 1), num(6, 1), fix64(7, 1), num(10, 1), msg(11), fix64(12, 1), fix64(13, 1), fix64(14, 1))},
		{name: "exemplar", signal: m, records: 1, body: inRecord(m, msg(5, fix64(2, 1), fix64(3, 1), str(4, eight), str(5, eight+eight),
			fix64(6, 1), msg(7, str(1, "k")))),
		},
		{name: "exemplar with ids swapped", signal: m, body: inRecord(m, msg(5, str(4, eight+eight))), fault: badSpanID},
		{name: "point with scope's type", signal: m, body: inRecord(m, num(7, 1)), fault: badWireType},
	}
}

func handmadeRecords() []handmadeCase {
	const l, s = segment.Logs, segment.Traces
	span, trace := "12345678", "1234567812345678"
	return []handmadeCase{
		{name: "log with all fields", signal: l, records: 1, body: inRecord(l, fix64(1, 1), num(2, 9), str(3, "INFO"),
			msg(5, str(1, "b")), msg(6, str(1, "k")), num(7, 1), fix32(8, 1), str(9, trace), str(10, span), fix64(11, 1), str(12, "e"))},
		{name: "log with empty ids", signal: l, body: inRecord(l, str(9, ""), str(10, "")), records: 1},
		{name: "log with trace id of 15 bytes", signal: l, body: inRecord(l, str(9, trace[:15])), fault: badTraceID},
		{name: "log with trace id of 17 bytes", signal: l, body: inRecord(l, str(9, trace+"9")), fault: badTraceID},
		{name: "log with span id of 16 bytes", signal: l, body: inRecord(l, str(10, trace)), fault: badSpanID},
		{name: "log with severity of 64 bits", signal: l, body: inRecord(l, num(2, 1<<63)), records: 1},
		{name: "log with flags as varint", signal: l, body: inRecord(l, num(8, 1)), fault: badWireType},
		{name: "log with flags cut off", signal: l, body: inRecord(l, fix32(8, 1)[:4]), fault: badLength},
		{name: "log with time as varint", signal: l, body: inRecord(l, num(1, 1)), fault: badWireType},
		{name: "log with two bodies", signal: l, body: inRecord(l, msg(5, num(2, 1)), msg(5, str(1, "x"))), records: 1},
		{name: "span with all fields", signal: s, records: 1, body: inRecord(s, str(1, trace), str(2, span), str(3, "a=b"), str(4, span),
			str(5, "n"), num(6, 1), fix64(7, 1), fix64(8, 1), msg(9, str(1, "k")), num(10, 1),
			msg(11, fix64(1, 1), str(2, "e"), msg(3, str(1, "k")), num(4, 1)), num(12, 1),
			msg(13, str(1, trace), str(2, span), str(3, "a=b"), msg(4), num(5, 1), fix32(6, 1)), num(14, 1),
			msg(15, str(2, "m"), num(3, 1)), fix32(16, 1))},
		{name: "span with flags as varint", signal: s, body: inRecord(s, num(16, 1)), fault: badWireType},
		{name: "span with parent id of 7 bytes", signal: s, body: inRecord(s, str(4, span[:7])), fault: badSpanID},
		{name: "link with trace id of 8 bytes", signal: s, body: inRecord(s, msg(13, str(1, span))), fault: badTraceID},
		{name: "status by the old number", signal: s, body: inRecord(s, msg(15, num(1, 1))), records: 1},
		{name: "event not UTF-8", signal: s, body: inRecord(s, msg(11, str(2, "\xff"))), records: 1, invalid: true},
	}
}

func TestCheck(t *testing.T) {
	o := newOracle(t)
	for _, c := range handmade() {
		t.Run(c.name, func(t *testing.T) {
			info, err := o.compareCheck(t, c.signal, c.body)
			if c.fault == "" && err != nil || c.fault != "" && (err == nil || !strings.Contains(err.Error(), string(c.fault))) {
				t.Fatalf("got %v, want %q", err, c.fault)
			}
			if info.Records != c.records || info.InvalidUTF8 != c.invalid {
				t.Fatalf("got %+v, want %d records, invalid %t", info, c.records, c.invalid)
			}
		})
	}
}

// TestConcat tries every pair of the bodies that are accepted.
func TestConcat(t *testing.T) {
	for _, signal := range segment.Signals {
		all := seeds(t, signal)
		for _, a := range all {
			for _, b := range all {
				compareConcat(t, signal, a, b)
			}
		}
	}
}

func TestCheckExamples(t *testing.T) {
	o := newOracle(t)
	for signal, records := range map[segment.Signal]int{segment.Logs: 1, segment.Traces: 1, segment.Metrics: 4} {
		for _, body := range examples(t, signal) {
			info, err := o.compareCheck(t, signal, body)
			if err != nil || info.Records < records {
				t.Errorf("%s: %+v, %v", signal, info, err)
			}
		}
	}
}

func TestCheckPrefixes(t *testing.T) {
	o := newOracle(t)
	for _, signal := range segment.Signals {
		for _, body := range examples(t, signal) {
			for end := range body {
				_, _ = o.compareCheck(t, signal, body[:end])
			}
		}
	}
}

func TestCheckUnknownSignal(t *testing.T) {
	for _, signal := range []segment.Signal{0, 4, 255} {
		if _, err := Check(signal, nil); err == nil {
			t.Errorf("signal %d was accepted", signal)
		}
		if _, _, err := Split(signal, nil, 1); err == nil {
			t.Errorf("signal %d was split", signal)
		}
	}
}

func TestFirstResourceIsPartOfBody(t *testing.T) {
	body := slices.Concat(msg(1), msg(1, msg(2, msg(2)), msg(1, num(2, 7)), msg(1, num(2, 8))))
	info, err := Check(segment.Logs, body)
	if err != nil {
		t.Fatal(err)
	}
	at := bytes.Index(body, num(2, 7))
	if len(info.FirstResource) != 2 || &info.FirstResource[0] != &body[at] || cap(info.FirstResource) != 2 {
		t.Errorf("first resource %x (capacity %d) of body %x", info.FirstResource, cap(info.FirstResource), body)
	}
	empty, err := Check(segment.Logs, msg(1, msg(1)))
	if err != nil || empty.FirstResource == nil || len(empty.FirstResource) != 0 {
		t.Errorf("empty resource: %#v, %v", empty.FirstResource, err)
	}
}

func TestCheckDoesNotAllocate(t *testing.T) {
	for _, signal := range segment.Signals {
		bodies := append(examples(t, signal), benchBodies(t)[signal.Index()])
		for _, c := range handmade() {
			if c.signal == signal && c.fault == "" {
				bodies = append(bodies, c.body)
			}
		}
		for _, body := range bodies {
			if n := testing.AllocsPerRun(10, func() {
				if _, err := Check(signal, body); err != nil {
					t.Fatal(err)
				}
			}); n != 0 {
				t.Errorf("%s: %v allocations for %x", signal, n, body)
			}
		}
	}
}

func TestASCII(t *testing.T) {
	for size := range 40 {
		b := bytes.Repeat([]byte{0x7f}, size)
		if !ascii(b) {
			t.Errorf("%d bytes of ASCII", size)
		}
		for i := range b {
			b[i] = 0x80
			if ascii(b) {
				t.Errorf("byte %d of %d", i, size)
			}
			b[i] = 0x7f
		}
	}
}

// TestSchemaIsComplete holds the table against the official schema, so that a new field cannot be missed.
func TestSchemaIsComplete(t *testing.T) {
	for _, signal := range segment.Signals {
		compareSchema(t, official(signal), requestOf(signal))
	}
}

func compareSchema(t *testing.T, m proto.Message, root messageID) {
	t.Helper()
	done := map[messageID]bool{}
	type pair struct {
		d   protoreflect.MessageDescriptor
		msg messageID
	}
	queue := []pair{{m.ProtoReflect().Descriptor(), root}}
	for len(queue) > 0 {
		p := queue[0]
		queue = queue[1:]
		if done[p.msg] {
			continue
		}
		done[p.msg] = true
		for number := range protowire.Number(numSlots) {
			f, official := schema[p.msg][number], p.d.Fields().ByNumber(number)
			if number != oldScopeSlot && (f.kind == unknown) != (official == nil) {
				t.Errorf("%s: field %d: kind %d, official %v", p.d.FullName(), number, f.kind, official)
			}
			if official == nil {
				continue
			}
			if isMessage := official.Message() != nil; isMessage != (f.kind >= firstMessage) {
				t.Errorf("%s: kind %d", official.FullName(), f.kind)
			}
			if official.Message() != nil {
				queue = append(queue, pair{official.Message(), f.msg})
			}
		}
		if largest := p.d.Fields().Len(); largest > maxSlot {
			t.Errorf("%s has %d fields", p.d.FullName(), largest)
		}
	}
}
