package otlpwire

import (
	"math"
	"math/rand/v2"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/reflect/protoreflect"

	"ingest-agent/segment"
)

// generator writes random requests from the official schema: mostly well formed, with the liberties of the wire format
// (any order, repeated single fields, long varints, packed or not, unknown fields), and with faults at the given rate.
type generator struct {
	rand  *rand.Rand
	fault float64 // the chance that a field is malformed
}

// chance is true with probability p.
func (g *generator) chance(p float64) bool { return g.rand.Float64() < p }

func (g *generator) request(signal segment.Signal) []byte {
	return g.message(official(signal).ProtoReflect().Descriptor(), 0)
}

func (g *generator) message(d protoreflect.MessageDescriptor, depth int) []byte {
	var b []byte
	fields := d.Fields()
	for range g.rand.IntN(6) {
		f := fields.Get(g.rand.IntN(fields.Len()))
		if depth > 12 && f.Message() != nil {
			continue
		}
		switch {
		case g.chance(g.fault):
			b = g.malformed(b, f, depth)
		case g.chance(0.05):
			b = g.unknown(b)
		case d.ReservedRanges().Has(oldScopesNumber) && g.chance(0.2):
			f = fields.ByNumber(2)
			b = g.tag(b, oldScopesNumber, protowire.BytesType)
			b = g.bytes(b, g.message(f.Message(), depth+1))
		default:
			b = g.field(b, f, depth)
		}
	}
	return b
}

func (g *generator) field(b []byte, f protoreflect.FieldDescriptor, depth int) []byte {
	if f.IsPacked() && g.chance(0.7) {
		var content []byte
		for range g.rand.IntN(5) {
			content = g.scalar(content, f.Kind())
		}
		return g.bytes(g.tag(b, f.Number(), protowire.BytesType), content)
	}
	switch f.Kind() {
	case protoreflect.MessageKind:
		return g.bytes(g.tag(b, f.Number(), protowire.BytesType), g.message(f.Message(), depth+1))
	case protoreflect.StringKind:
		return g.bytes(g.tag(b, f.Number(), protowire.BytesType), g.text())
	case protoreflect.BytesKind:
		size := g.rand.IntN(40)
		switch f.Name() {
		case "trace_id":
			size = 16 * g.rand.IntN(2)
		case "span_id", "parent_span_id":
			size = 8 * g.rand.IntN(2)
		}
		return g.bytes(g.tag(b, f.Number(), protowire.BytesType), make([]byte, size))
	}
	return g.scalar(g.tag(b, f.Number(), scalarWire(f.Kind())), f.Kind())
}

func scalarWire(k protoreflect.Kind) protowire.Type {
	switch k {
	case protoreflect.Fixed64Kind, protoreflect.Sfixed64Kind, protoreflect.DoubleKind:
		return protowire.Fixed64Type
	case protoreflect.Fixed32Kind:
		return protowire.Fixed32Type
	}
	return protowire.VarintType
}

func (g *generator) scalar(b []byte, k protoreflect.Kind) []byte {
	switch scalarWire(k) {
	case protowire.Fixed64Type:
		return protowire.AppendFixed64(b, g.rand.Uint64())
	case protowire.Fixed32Type:
		return protowire.AppendFixed32(b, g.rand.Uint32())
	}
	return g.varint(b, g.number())
}

func (g *generator) number() uint64 { return g.rand.Uint64() >> g.rand.IntN(64) }

func (g *generator) text() []byte {
	switch {
	case g.chance(0.02):
		return []byte{'a', 0xff}
	case g.chance(0.1):
		return []byte("größer als 127 Bytes, oder nicht? " + string(make([]byte, g.rand.IntN(150))))
	}
	return []byte("abcdefghijklmnopqrstuvwxyz"[:g.rand.IntN(27)])
}

// varint appends v, now and then in more bytes than it needs.
func (g *generator) varint(b []byte, v uint64) []byte {
	if g.chance(0.97) {
		return protowire.AppendVarint(b, v)
	}
	return longVarint(b, v, 2+g.rand.IntN(9))
}

// longVarint appends v as a varint of at least size bytes, which must be at most 10.
func longVarint(b []byte, v uint64, size int) []byte {
	for i := 1; i < size || v >= 0x80; i++ {
		b = append(b, byte(v)|0x80)
		v >>= 7
	}
	return append(b, byte(v))
}

func (g *generator) tag(b []byte, n protowire.Number, t protowire.Type) []byte {
	return g.varint(b, protowire.EncodeTag(n, t))
}

func (g *generator) bytes(b, content []byte) []byte {
	return append(g.varint(b, uint64(len(content))), content...)
}

// unknown appends a well-formed field that OTLP does not have. Of the groups only some are taken.
func (g *generator) unknown(b []byte) []byte {
	number := []protowire.Number{17, 31, 32, 99, 999, 1001, protowire.MaxValidNumber}[g.rand.IntN(7)]
	switch g.rand.IntN(6) {
	case 0:
		return g.varint(g.tag(b, number, protowire.VarintType), g.number())
	case 1:
		return protowire.AppendFixed32(g.tag(b, number, protowire.Fixed32Type), 1)
	case 2:
		return protowire.AppendFixed64(g.tag(b, number, protowire.Fixed64Type), 1)
	case 3:
		return g.group(b, number, 3)
	}
	return g.bytes(g.tag(b, number, protowire.BytesType), make([]byte, g.rand.IntN(20)))
}

func (g *generator) group(b []byte, number protowire.Number, depth int) []byte {
	b = g.tag(b, number, protowire.StartGroupType)
	for depth > 0 && g.chance(0.3) {
		if g.chance(0.1) {
			b = g.varint(g.tag(b, 1, protowire.VarintType), g.number())
		} else {
			b = g.group(b, 1+protowire.Number(g.rand.IntN(20)), depth-1)
		}
	}
	return g.tag(b, number, protowire.EndGroupType)
}

// malformed appends something that one of the two libraries, or both, might refuse.
func (g *generator) malformed(b []byte, f protoreflect.FieldDescriptor, depth int) []byte {
	any := protowire.Type(g.rand.IntN(8))
	switch g.rand.IntN(12) {
	case 0: // any wire type for a known field
		return g.value(g.tag(b, f.Number(), any), any)
	case 1: // the number of no field, or of one modulo 2^32
		number := []uint64{0, 1 << 29, 1<<31 - 1, 1 << 31, 1 << 32, 1<<32 + 1, math.MaxUint64 >> 3}[g.rand.IntN(7)]
		return g.value(protowire.AppendVarint(b, number<<3|uint64(any)), any)
	case 2: // a varint of more than 64 bits
		b = g.tag(b, f.Number(), scalarWire(f.Kind()))
		return append(b, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, byte(g.rand.IntN(0x100)))
	case 3: // longer than its message
		b = g.tag(b, f.Number(), protowire.BytesType)
		return g.varint(b, g.number())
	case 4:
		return g.tag(b, 100, protowire.StartGroupType)
	case 5:
		return g.tag(b, 100, protowire.EndGroupType)
	case 6: // a group that ends by another number
		return g.tag(g.tag(b, 100, protowire.StartGroupType), 101, protowire.EndGroupType)
	case 7: // an id or a packed field of a wrong length
		return g.bytes(g.tag(b, f.Number(), protowire.BytesType), make([]byte, g.rand.IntN(20)))
	case 8: // cut off
		b = g.field(b, f, depth)
		return b[:len(b)-min(len(b), g.rand.IntN(4))]
	case 9: // scopes by the old number, of a wrong kind
		return g.value(g.tag(b, oldScopesNumber, any), any)
	case 10:
		return g.bytes(g.tag(b, f.Number(), protowire.BytesType), nestedArrays(45+g.rand.IntN(8)))
	}
	return append(b, byte(g.rand.IntN(0x100)))
}

func (g *generator) value(b []byte, t protowire.Type) []byte {
	switch t {
	case protowire.VarintType:
		return g.varint(b, g.number())
	case protowire.Fixed32Type:
		return protowire.AppendFixed32(b, 1)
	case protowire.Fixed64Type:
		return protowire.AppendFixed64(b, 1)
	case protowire.BytesType:
		return g.bytes(b, make([]byte, g.rand.IntN(20)))
	}
	return b
}

// nestedArrays returns an AnyValue with that many arrays in each other, the innermost one empty.
func nestedArrays(n int) []byte {
	var b []byte
	for i := range n {
		if i > 0 {
			b = appendMessage(nil, 1, b)
		}
		b = appendMessage(nil, 5, b)
	}
	return b
}
