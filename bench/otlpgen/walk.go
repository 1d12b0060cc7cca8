package otlpgen

import (
	"errors"
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"

	"ingest-agent/segment"
)

// Walk calls visit for the number of each record of an OTLP protobuf request, in order. It ends with an error on bytes
// that are not such a request, and on a record without a number or with a wrong checksum; visit may have been called
// for earlier records then.
func Walk(signal segment.Signal, body []byte, visit func(seq uint64)) error {
	return walk(signal, body, func(r record) error {
		seq, err := r.check(body)
		if err != nil {
			return err
		}
		visit(seq)
		return nil
	})
}

// span is a part of a body.
type span struct{ from, to int }

// Field numbers of OTLP (opentelemetry/proto). Resource and scope level are alike in all signals.
const (
	fieldResource   = 1 // ExportXServiceRequest.resource_x
	fieldScope      = 2 // ResourceX.scope_x
	fieldItem       = 2 // ScopeX.log_records, spans, metrics
	fieldDataPoints = 1 // Gauge, Sum, Histogram, ExponentialHistogram, Summary
	fieldKey        = 1 // KeyValue.key
	fieldValue      = 2 // KeyValue.value
	fieldString     = 1 // AnyValue.string_value

	logAttributes  = 6
	spanAttributes = 9
)

// pointAttributes is, for each kind of metric (its field in Metric), the field of the attributes in a data point.
func pointAttributes(kind protowire.Number) (protowire.Number, bool) {
	switch kind {
	case 5, 7, 11: // gauge, sum, summary
		return 7, true
	case 9: // histogram
		return 9, true
	case 10: // exponential histogram
		return 1, true
	}
	return 0, false
}

func walk(signal segment.Signal, body []byte, visit func(record) error) error {
	return messages(body, span{0, len(body)}, fieldResource, func(resource span) error {
		return messages(body, resource, fieldScope, func(scope span) error {
			return messages(body, scope, fieldItem, func(item span) error {
				switch signal {
				case segment.Logs:
					return visitRecord(body, item, logAttributes, visit)
				case segment.Traces:
					return visitRecord(body, item, spanAttributes, visit)
				default:
					return walkMetric(body, item, visit)
				}
			})
		})
	})
}

func walkMetric(body []byte, metric span, visit func(record) error) error {
	return fields(body, metric, func(kind protowire.Number, data span) error {
		attributes, ok := pointAttributes(kind)
		if !ok {
			return nil
		}
		return messages(body, data, fieldDataPoints, func(point span) error {
			return visitRecord(body, point, attributes, visit)
		})
	})
}

// visitRecord finds the stamp among the attributes of a record.
func visitRecord(body []byte, whole span, attributes protowire.Number, visit func(record) error) error {
	found := 0
	r := record{whole: whole}
	err := messages(body, whole, attributes, func(attribute span) error {
		if isOther(body[attribute.from:attribute.to]) {
			return nil
		}
		var isSeq bool
		var text span
		// Key and value come in either order.
		err := fields(body, attribute, func(num protowire.Number, s span) error {
			switch num {
			case fieldKey:
				isSeq = string(body[s.from:s.to]) == SeqKey
			case fieldValue:
				return messages(body, s, fieldString, func(s span) error {
					text = s
					return nil
				})
			}
			return nil
		})
		if isSeq {
			r.stamp = text
			found++
		}
		return err
	})
	switch {
	case err != nil:
		return err
	case found != 1:
		return fmt.Errorf("read record: %d attributes %s, want 1", found, SeqKey)
	case r.stamp.to-r.stamp.from != stampLen:
		return fmt.Errorf("read record: attribute %s has %d digits, want %d", SeqKey, r.stamp.to-r.stamp.from, stampLen)
	}
	return visit(r)
}

// isOther reports whether an attribute begins with a short key that is not SeqKey, as nearly all do.
func isOther(attribute []byte) bool {
	const keyTag = fieldKey<<3 | byte(protowire.BytesType)
	if len(attribute) < 2 || attribute[0] != keyTag || attribute[1] >= 0x80 || len(attribute)-2 < int(attribute[1]) {
		return false
	}
	return string(attribute[2:2+attribute[1]]) != SeqKey
}

// messages calls visit for each field num that has a length.
func messages(body []byte, in span, num protowire.Number, visit func(span) error) error {
	return fields(body, in, func(n protowire.Number, s span) error {
		if n != num {
			return nil
		}
		return visit(s)
	})
}

// errWire is for bytes that are not protobuf.
var errWire = errors.New("read request: not protobuf")

// fields calls visit for each field that has a length, and steps over the others.
func fields(body []byte, in span, visit func(protowire.Number, span) error) error {
	for at := in.from; at < in.to; {
		if body[at] < 0x80 && body[at]>>3 != 0 && body[at]&7 == byte(protowire.BytesType) && at+1 < in.to && body[at+1] < 0x80 {
			from, to := at+2, at+2+int(body[at+1]) // nearly all fields: small number, short value
			if to > in.to {
				return errWire
			}
			if err := visit(protowire.Number(body[at]>>3), span{from, to}); err != nil {
				return err
			}
			at = to
			continue
		}
		num, kind, n := protowire.ConsumeTag(body[at:in.to])
		if n < 0 {
			return errWire
		}
		at += n
		if kind != protowire.BytesType {
			if n = protowire.ConsumeFieldValue(num, kind, body[at:in.to]); n < 0 {
				return errWire
			}
			at += n
			continue
		}
		value, n := protowire.ConsumeBytes(body[at:in.to])
		if n < 0 {
			return errWire
		}
		at += n
		if err := visit(num, span{at - len(value), at}); err != nil {
			return err
		}
	}
	return nil
}
