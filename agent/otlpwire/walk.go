package otlpwire

import (
	"encoding/binary"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"
)

const (
	// maxValueNesting is how many KeyValue, AnyValue, ArrayValue and KeyValueList messages may stand in each other.
	// Source: the recursion limit of pdata. The official runtime allows far more.
	maxValueNesting = 100

	// maxOtherNesting is the longest way from a request down to the first such message, both ends not counted twice:
	// request, ResourceMetrics, ScopeMetrics, Metric, data, data point, exemplar.
	maxOtherNesting = 7

	maxNesting = maxOtherNesting + maxValueNesting
)

// fault says what is wrong with a body; empty is nothing.
type fault string

const (
	badVarint    fault = "varint is cut off or longer than 64 bits"
	badNumber    fault = "field number out of range"
	badLength    fault = "value is longer than what is left of its message"
	badWireType  fault = "wrong wire type for the field"
	badTraceID   fault = "trace id is not 16 bytes long"
	badSpanID    fault = "span id is not 8 bytes long"
	badPacked    fault = "packed field does not divide into values"
	badNesting   fault = "attribute values are nested too deeply"
	badUnknown   fault = "unknown field is malformed"
	badGroup     fault = "group holds a field, or ends its message"
	badEndOfHere fault = "group ends that was never opened"
)

// Tags of the fields that commonAttribute knows.
const (
	keyTag    = 1<<3 | byte(protowire.BytesType) // KeyValue.key
	valueTag  = 2<<3 | byte(protowire.BytesType) // KeyValue.value
	stringTag = 1<<3 | byte(protowire.BytesType) // AnyValue.string_value
	boolTag   = 2<<3 | byte(protowire.VarintType)
	intTag    = 3<<3 | byte(protowire.VarintType)
	doubleTag = 4<<3 | byte(protowire.Fixed64Type)
)

// frame is one open message.
type frame struct {
	end    int       // where it ends in the body
	msg    messageID // which message it is
	nested uint8     // how many value messages are open, this one included
}

// walker is what one walk has found so far.
type walker struct {
	total   int    // records of the resources that are finished
	counts  [2]int // records of the present resource: in its scopes, and in its scopes by the old number
	old     int    // which of the two counts the walk is in
	scopes  bool   // the present resource has scopes by the new number, so the others do not count
	base    int    // the count before the present metric
	invalid bool   // a string is not UTF-8

	first []byte // the first Resource message
}

// newWalker returns a walker for a message that stands at or below msg in a request.
func newWalker(msg messageID) walker {
	return walker{scopes: msg > mResourceMetrics}
}

// records is the number of records in what was walked.
func (w *walker) records() int {
	if w.scopes {
		return w.total + w.counts[0]
	}
	return w.total + w.counts[1]
}

// walk goes through body, one message of type msg. It returns the offset at which it stopped and what was wrong there.
//
// It is one loop with its own stack, not recursion: that is faster, and the stack is the bound on depth. Tags of one byte
// and values of the expected wire type, which is nearly all of them, take the short way; readTag does the rest.
//
//nolint:cyclop // split into functions that are not inlined it is a third slower
func (w *walker) walk(body []byte, msg messageID) (int, fault) {
	var stack [maxNesting]frame
	depth, pos := 0, 0
	cur := frame{end: len(body), msg: msg}
	for {
		if pos == cur.end {
			if depth == 0 {
				return pos, ""
			}
			depth--
			cur = stack[depth] //nolint:gosec // depth was above 0
			continue
		}
		start, tag := pos, body[pos]
		pos++
		f := schema[cur.msg][tag>>3&(numSlots-1)]
		var wrong fault
		if tag >= 0x80 || f.kind&wireMask != kind(tag&wireMask) || f.kind == unknown {
			if f, pos, wrong = readTag(body[:cur.end], start, cur.msg); wrong != "" {
				return start, wrong
			}
			if f.kind == unknown {
				continue
			}
		}
		if f.kind < firstWithLength {
			if pos, wrong = skipScalar(body[:cur.end], pos, f.kind); wrong != "" {
				return start, wrong
			}
			continue
		}
		var size int
		if pos < cur.end && body[pos] < 0x80 {
			size = int(body[pos])
			pos++
		} else if size, pos, wrong = readLength(body[:cur.end], pos); wrong != "" {
			return start, wrong
		}
		if size > cur.end-pos {
			return start, badLength
		}
		next := frame{end: pos + size, msg: f.msg}
		switch {
		case f.kind < firstMessage:
			if wrong = w.leaf(f.kind, body[pos:next.end]); wrong != "" {
				return start, wrong
			}
			pos = next.end
			continue
		case f.kind != value:
			w.enter(f.kind, body[pos:next.end:next.end])
		case f.msg == mKeyValue && cur.nested+2 <= maxValueNesting && commonAttribute(body[pos:next.end]):
			pos = next.end
			continue
		case cur.nested == maxValueNesting:
			return start, badNesting
		default:
			next.nested = cur.nested + 1
		}
		stack[depth] = cur
		depth++
		cur = next
	}
}

// skipScalar passes over the value of kind varint, fixed32 or fixed64 at pos in a message that ends with b.
func skipScalar(b []byte, pos int, k kind) (int, fault) {
	switch k {
	case fixed64:
		pos += 8
	case fixed32:
		pos += 4
	default:
		if pos < len(b) && b[pos] < 0x80 {
			return pos + 1, ""
		}
		_, n := protowire.ConsumeVarint(b[pos:])
		if n < 0 {
			return pos, badVarint
		}
		return pos + n, ""
	}
	if pos > len(b) {
		return pos, badLength
	}
	return pos, ""
}

// readLength reads a length of any size at pos in a message that ends with b.
func readLength(b []byte, pos int) (size, next int, wrong fault) {
	v, n := protowire.ConsumeVarint(b[pos:])
	switch {
	case n < 0:
		return 0, pos, badVarint
	case v > uint64(len(b)):
		return 0, pos, badLength
	}
	return int(v), pos + n, ""
}

// leaf checks a value that is no message and has a length.
func (w *walker) leaf(k kind, b []byte) fault {
	switch k {
	case text:
		if !w.invalid && !ascii(b) && !utf8.Valid(b) {
			w.invalid = true
		}
	case traceID:
		if len(b) != 0 && len(b) != traceIDBytes {
			return badTraceID
		}
	case spanID:
		if len(b) != 0 && len(b) != spanIDBytes {
			return badSpanID
		}
	case packed64:
		if len(b)%8 != 0 {
			return badPacked
		}
	case packedVarint:
		for len(b) > 0 {
			_, n := protowire.ConsumeVarint(b)
			if n < 0 {
				return badPacked
			}
			b = b[n:]
		}
	}
	return ""
}

// commonAttribute says whether b is a KeyValue of the usual form: a key and a scalar in either order, lengths of one byte,
// ASCII. What it does not know is left to the walk. Most of what a request holds are such attributes.
func commonAttribute(b []byte) bool {
	if len(b) < 4 || b[1] >= 0x80 {
		return false
	}
	second := 2 + int(b[1])
	if second+2 > len(b) || b[second+1] >= 0x80 || second+2+int(b[second+1]) != len(b) {
		return false
	}
	key, v := b[2:second], b[second+2:]
	switch {
	case b[0] == keyTag && b[second] == valueTag: // as the SDKs write it
	case b[0] == valueTag && b[second] == keyTag: // as pdata writes it
		key, v = v, key
	default:
		return false
	}
	if len(v) < 2 {
		return false
	}
	switch v[0] {
	case stringTag:
		return int(v[1]) == len(v)-2 && ascii(b)
	case boolTag, intTag:
		return len(v) == 2 && ascii(b)
	case doubleTag:
		return len(v) == 9 && ascii(key)
	}
	return false
}

// ascii says whether no byte of b has its highest bit set. The last bytes are read together with some that were read
// before, so that no loop over single bytes is left: most strings are short.
func ascii(b []byte) bool {
	const high = 0x8080808080808080
	n := len(b)
	if n < 8 {
		var or byte
		for _, c := range b {
			or |= c
		}
		return or < 0x80
	}
	or := binary.LittleEndian.Uint64(b[n-8:])
	for ; len(b) > 8; b = b[8:] {
		or |= binary.LittleEndian.Uint64(b)
	}
	return or&high == 0
}

// enter notes that a message of kind k begins, with content b.
func (w *walker) enter(k kind, b []byte) {
	switch k {
	case record:
		w.counts[w.old]++
	case metric:
		w.base = w.counts[w.old]
	case data: // pdata replaces a metric's earlier data, also of the same type
		w.counts[w.old] = w.base
	case resourceOf:
		w.total, w.counts, w.scopes = w.records(), [2]int{}, false
	case resource:
		if w.first == nil {
			w.first = b
		}
	case scopeOf:
		w.old, w.scopes = 0, true
	case oldScopeOf:
		w.old = 1
	}
}

// readTag reads the tag at pos in a message that ends with b, where it is not the plain case: a tag of several bytes, an
// unknown field, which it skips, a packed field given one by one, or a fault.
func readTag(b []byte, pos int, msg messageID) (field, int, fault) {
	tag, n := protowire.ConsumeVarint(b[pos:])
	if n < 0 {
		return field{}, pos, badVarint
	}
	pos += n
	if tag>>3 < uint64(protowire.MinValidNumber) || tag>>3 > uint64(protowire.MaxValidNumber) {
		return field{}, pos, badNumber
	}
	number, wire := protowire.Number(tag>>3), kind(tag&wireMask)
	switch f := fieldOf(msg, number); {
	case f.kind == unknown:
		end, wrong := skip(b, pos, number, protowire.Type(wire))
		return field{}, end, wrong
	case f.kind&wireMask == wire:
		return f, pos, ""
	case f.kind == packed64 && wire == fixed64&wireMask:
		return field{kind: fixed64}, pos, ""
	case f.kind == packedVarint && wire == varint&wireMask:
		return field{kind: varint}, pos, ""
	}
	return field{}, pos, badWireType
}

// skip passes over the value of an unknown field. Of groups it takes what pdata takes of the well-formed ones: those that
// hold nothing but groups and do not end their message.
func skip(b []byte, pos int, number protowire.Number, wire protowire.Type) (int, fault) {
	if wire == protowire.EndGroupType {
		return pos, badEndOfHere
	}
	n := protowire.ConsumeFieldValue(number, wire, b[pos:])
	if n < 0 {
		return pos, badUnknown
	}
	end := pos + n
	if wire != protowire.StartGroupType {
		return end, ""
	}
	if end == len(b) {
		return pos, badGroup
	}
	for pos < end {
		tag, m := protowire.ConsumeVarint(b[pos:end])
		if t := protowire.Type(tag & wireMask); t != protowire.StartGroupType && t != protowire.EndGroupType {
			return pos, badGroup
		}
		pos += m
	}
	return end, ""
}
