package otlpwire

import (
	"slices"

	"google.golang.org/protobuf/encoding/protowire"

	"ingest-agent/segment"
)

// Split cuts body, an export request of that signal, after its first n records: head has those and tail the others, in
// their order, each under the resource, scope and (data points) metric that it had. Both are requests that Check accepts.
// A resource, scope or metric that the cut goes through is in both, with all its other fields, unknown ones included.
// Resources, scopes and metrics without records are in one of the two, so that nothing is lost.
//
// With n at or below 0 head is empty, with n at or above the number of records tail is. The two may share memory with
// body, but appending to one never writes into another. Neither is longer than body. The error is that of Check.
func Split(signal segment.Signal, body []byte, n int) (head, tail []byte, err error) {
	info, err := Check(signal, body)
	if err != nil {
		return nil, nil, err
	}
	if n <= 0 {
		return nil, slices.Clip(body), nil
	}
	if n >= info.Records {
		return slices.Clip(body), nil, nil
	}
	// Requests merge by concatenation, so a request is cut where it stands; only what the cut goes through is rebuilt. The
	// loop ends before the body does, for n is less than the records in it.
	msg := requestOf(signal)
	for pos := 0; ; {
		e := readElement(body[pos:])
		end := pos + len(e.raw)
		if f := fieldOf(msg, e.number); f.kind == resourceOf {
			records := f.count(e.content)
			if records > n {
				h, t := cut(f.msg, e.content, n)
				head = appendMessage(slices.Clip(body[:pos]), e.number, h)
				tail = append(appendMessage(nil, e.number, t), body[end:]...)
				return head, tail, nil
			}
			if n -= records; n == 0 {
				return slices.Clip(body[:end]), slices.Clip(body[end:]), nil
			}
		}
		pos = end
	}
}

// cut cuts the content of one message after its first n records, of which it must have more. The body was accepted by
// Check, so nothing in it can be malformed.
//
// Fields that hold no records come first in both parts. Their order among each other stays, and between different fields
// protobuf gives order no meaning, but for a metric's data, of which the last is the one; and an empty group, which pdata
// does not take at the end of a message, always has something behind it.
func cut(msg messageID, b []byte, n int) (head, tail []byte) {
	live := liveOffset(msg, b)
	for pos := 0; pos < len(b); {
		e := readElement(b[pos:])
		switch f := fieldOf(msg, e.number); {
		case !f.holdsRecords():
			head = append(head, e.raw...)
			tail = append(tail, e.raw...)
		case !live(f, pos): // pdata drops it, others may read it: once, not twice
			head = append(head, e.raw...)
		}
		pos += len(e.raw)
	}
	for pos := 0; pos < len(b); {
		e := readElement(b[pos:])
		if f := fieldOf(msg, e.number); f.holdsRecords() && live(f, pos) {
			switch records := f.count(e.content); {
			case n == 0:
				tail = append(tail, e.raw...)
			case records <= n:
				head = append(head, e.raw...)
				n -= records
			default:
				h, t := cut(f.msg, e.content, n)
				head = appendMessage(head, e.number, h)
				tail = appendMessage(tail, e.number, t)
				n = 0
			}
		}
		pos += len(e.raw)
	}
	return head, tail
}

// liveOffset returns which of the fields of b that may hold records do so for pdata: of a metric the last data, and of a
// resource the scopes by their old number only if there are none by the new one.
func liveOffset(msg messageID, b []byte) func(f field, pos int) bool {
	lastData, scopes := 0, false
	for pos := 0; pos < len(b); {
		e := readElement(b[pos:])
		switch fieldOf(msg, e.number).kind {
		case data:
			lastData = pos
		case scopeOf:
			scopes = true
		}
		pos += len(e.raw)
	}
	return func(f field, pos int) bool {
		switch f.kind {
		case data:
			return pos == lastData
		case oldScopeOf:
			return !scopes
		}
		return true
	}
}

// holdsRecords says whether f is a record or may have records in it.
func (f field) holdsRecords() bool {
	switch f.kind {
	case record, metric, data, resourceOf, scopeOf, oldScopeOf:
		return true
	}
	return false
}

// count is the number of records in content, a message of field f that was accepted by Check.
func (f field) count(content []byte) int {
	if f.kind == record {
		return 1
	}
	w := newWalker(f.msg)
	w.walk(content, f.msg)
	return w.records()
}

// element is one field as it stands in a message.
type element struct {
	number  protowire.Number
	raw     []byte // tag and value
	content []byte // of a message, string or bytes
}

// readElement reads the field that b begins with. b must be well formed.
func readElement(b []byte) element {
	number, wire, tagBytes := protowire.ConsumeTag(b)
	end := tagBytes + protowire.ConsumeFieldValue(number, wire, b[tagBytes:])
	e := element{number: number, raw: b[:end]}
	if wire == protowire.BytesType {
		e.content, _ = protowire.ConsumeBytes(b[tagBytes:])
	}
	return e
}

func appendMessage(b []byte, number protowire.Number, content []byte) []byte {
	b = protowire.AppendTag(b, number, protowire.BytesType)
	return protowire.AppendBytes(b, content)
}
