package otlpwire

import (
	"bytes"
	"slices"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"

	"ingest-agent/segment"
)

// TestSplitEverywhere splits every body at every record, and at the numbers beyond both ends.
func TestSplitEverywhere(t *testing.T) {
	o := newOracle(t)
	for _, signal := range segment.Signals {
		for _, body := range seeds(t, signal) {
			info, err := Check(signal, body)
			if err != nil {
				o.compareSplit(t, signal, body, 1)
				continue
			}
			for n := -1; n <= info.Records+1; n++ {
				o.compareSplit(t, signal, body, n)
			}
		}
	}
}

// TestSplit gives both parts to the byte. Wrapping comes first in a message that the cut goes through.
func TestSplit(t *testing.T) {
	r := func(v uint64) []byte { return msg(2, num(2, v)) }   // a log record
	p := func(v uint64) []byte { return msg(1, fix64(6, v)) } // a data point
	unknown, open := num(77, 7), group(78)
	for _, c := range []struct {
		name             string
		signal           segment.Signal
		n                int
		body, head, tail []byte
	}{
		{
			name: "between resources", signal: segment.Logs, n: 2,
			body: slices.Concat(msg(1, msg(2, r(1), r(2))), unknown, msg(1, msg(2, r(3)))),
			head: msg(1, msg(2, r(1), r(2))),
			tail: slices.Concat(unknown, msg(1, msg(2, r(3)))),
		},
		{
			name: "between scopes", signal: segment.Logs, n: 2,
			body: msg(1, msg(2, r(1), r(2)), str(3, "u"), msg(2, str(3, "v"), r(3)), msg(1, num(2, 9))),
			head: msg(1, str(3, "u"), msg(1, num(2, 9)), msg(2, r(1), r(2))),
			tail: msg(1, str(3, "u"), msg(1, num(2, 9)), msg(2, str(3, "v"), r(3))),
		},
		{
			name: "within a scope, unknown fields at each level", signal: segment.Logs, n: 2,
			body: slices.Concat(unknown, msg(1, msg(1, unknown), msg(2, r(1)), unknown, msg(2, r(2), r(3), unknown, msg(1, unknown))), unknown),
			head: slices.Concat(unknown, msg(1, msg(1, unknown), unknown, msg(2, r(1)), msg(2, unknown, msg(1, unknown), r(2)))),
			tail: slices.Concat(msg(1, msg(1, unknown), unknown, msg(2, unknown, msg(1, unknown), r(3))), unknown),
		},
		{
			name: "empty group between records", signal: segment.Logs, n: 1,
			body: msg(1, msg(2, r(1), open, r(2))),
			head: msg(1, msg(2, open, r(1))),
			tail: msg(1, msg(2, open, r(2))),
		},
		{
			name: "empty scopes and resources", signal: segment.Logs, n: 1,
			body: slices.Concat(msg(1), msg(1, msg(2, str(3, "a")), msg(2, r(1)), msg(2, str(3, "b")), msg(2, r(2))), msg(1, msg(1))),
			head: slices.Concat(msg(1), msg(1, msg(2, str(3, "a")), msg(2, r(1)))),
			tail: slices.Concat(msg(1, msg(2, str(3, "b")), msg(2, r(2))), msg(1, msg(1))),
		},
		{
			name: "scopes by the old number", signal: segment.Logs, n: 1,
			body: msg(1, msg(oldScopesNumber, r(1), r(2))),
			head: msg(1, msg(oldScopesNumber, r(1))),
			tail: msg(1, msg(oldScopesNumber, r(2))),
		},
		{
			name: "scopes by the old number that do not count", signal: segment.Logs, n: 1,
			body: msg(1, msg(2, r(1)), msg(oldScopesNumber, r(8)), msg(2, r(2))),
			head: msg(1, msg(oldScopesNumber, r(8)), msg(2, r(1))),
			tail: msg(1, msg(2, r(2))),
		},
		{
			name: "within a metric", signal: segment.Metrics, n: 2,
			body: msg(1, msg(2, msg(2, str(1, "m"), msg(7, num(2, 2), p(1), p(2), p(3), num(3, 1)), str(3, "s")))),
			head: msg(1, msg(2, msg(2, str(1, "m"), str(3, "s"), msg(7, num(2, 2), num(3, 1), p(1), p(2))))),
			tail: msg(1, msg(2, msg(2, str(1, "m"), str(3, "s"), msg(7, num(2, 2), num(3, 1), p(3))))),
		},
		{
			name: "between metrics, with one that has no points", signal: segment.Metrics, n: 1,
			body: msg(1, msg(2, msg(2, msg(5, p(1))), msg(2, str(1, "none"), msg(5)), msg(2, msg(5, p(2))))),
			head: msg(1, msg(2, msg(2, msg(5, p(1))))),
			tail: msg(1, msg(2, msg(2, str(1, "none"), msg(5)), msg(2, msg(5, p(2))))),
		},
		{
			name: "within a metric with data that was replaced", signal: segment.Metrics, n: 1,
			body: msg(1, msg(2, msg(2, msg(7, p(8)), msg(5, p(9)), msg(5, p(1), p(2)), str(1, "m")))),
			head: msg(1, msg(2, msg(2, msg(7, p(8)), msg(5, p(9)), str(1, "m"), msg(5, p(1))))),
			tail: msg(1, msg(2, msg(2, str(1, "m"), msg(5, p(2))))),
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			head, tail, err := Split(c.signal, c.body, c.n)
			if err != nil || !bytes.Equal(head, c.head) || !bytes.Equal(tail, c.tail) {
				t.Errorf("%v\nhead %x\nwant %x\ntail %x\nwant %x", err, head, c.head, tail, c.tail)
			}
			newOracle(t).compareSplit(t, c.signal, c.body, c.n)
		})
	}
}

// TestSplitToSingleRecords does what isolating one refused record does: halve until each part has one.
func TestSplitToSingleRecords(t *testing.T) {
	bodies := benchBodies(t)
	for _, signal := range segment.Signals {
		body := bodies[signal.Index()]
		parts := [][]byte{body}
		for {
			var next [][]byte
			for _, part := range parts {
				info, err := Check(signal, part)
				if err != nil {
					t.Fatal(err)
				}
				if info.Records <= 1 {
					next = append(next, part)
					continue
				}
				head, tail, err := Split(signal, part, info.Records/2)
				if err != nil {
					t.Fatal(err)
				}
				next = append(next, head, tail)
			}
			if len(next) == len(parts) {
				break
			}
			parts = next
		}
		if len(parts) != benchRecords {
			t.Errorf("%s: %d parts of %d records", signal, len(parts), benchRecords)
		}
		compareParts(t, signal, body, slices.Concat(parts...), nil)
	}
}

func TestSplitRefusesWhatCheckRefuses(t *testing.T) {
	body := append(inRecord(segment.Logs), protowire.AppendTag(nil, 9, protowire.StartGroupType)...)
	if head, tail, err := Split(segment.Logs, body, 0); err == nil || head != nil || tail != nil {
		t.Errorf("%x, %x, %v", head, tail, err)
	}
}
