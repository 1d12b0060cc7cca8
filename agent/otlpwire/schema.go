package otlpwire

import "google.golang.org/protobuf/encoding/protowire"

// kind says what a field's value has to be. The low three bits are the wire type, so that one comparison with a tag
// settles it; the rest tells kinds of one wire type apart and puts them in the order of the three groups below.
type kind uint8

const wireMask = 7

const (
	unknown kind = 0 // not in the schema: any well-formed value

	varint  = 1<<3 | kind(protowire.VarintType)
	fixed64 = 1<<3 | kind(protowire.Fixed64Type)
	fixed32 = 1<<3 | kind(protowire.Fixed32Type)
)

// Values with a length that are no messages.
const (
	opaque       = 2<<3 | kind(protowire.BytesType) // bytes
	text         = 3<<3 | kind(protowire.BytesType) // string, UTF-8 or marked
	traceID      = 4<<3 | kind(protowire.BytesType) // empty or traceIDBytes
	spanID       = 5<<3 | kind(protowire.BytesType) // empty or spanIDBytes
	packed64     = 6<<3 | kind(protowire.BytesType) // repeated fixed64, also one by one
	packedVarint = 7<<3 | kind(protowire.BytesType) // repeated varint, also one by one

	firstWithLength = opaque
)

// Messages.
const (
	value      = 8<<3 | kind(protowire.BytesType)  // KeyValue, AnyValue, ArrayValue, KeyValueList: may nest in itself
	plain      = 9<<3 | kind(protowire.BytesType)  // any other message without a part below
	record     = 10<<3 | kind(protowire.BytesType) // log record, span or data point: what is counted
	metric     = 11<<3 | kind(protowire.BytesType) // Metric: holds at most one data
	data       = 12<<3 | kind(protowire.BytesType) // Gauge, Sum, ...: the last one in a metric is the metric's data
	resourceOf = 13<<3 | kind(protowire.BytesType) // ResourceLogs, ResourceSpans, ResourceMetrics
	resource   = 14<<3 | kind(protowire.BytesType) // Resource
	scopeOf    = 15<<3 | kind(protowire.BytesType) // ScopeLogs, ScopeSpans, ScopeMetrics
	oldScopeOf = 16<<3 | kind(protowire.BytesType) // the same by their number before OTLP 1.0

	firstMessage = value
)

// Lengths of ids other than 0. Source: pdata; the official schema only says it in comments.
const (
	traceIDBytes = 16
	spanIDBytes  = 8
)

// The one field number of the schema that is larger than maxSlot. Clients from before OTLP 1.0 put their scopes there
// (instrumentation_library_logs and its like), and pdata takes those where a resource has no scopes by the new number.
const oldScopesNumber = 1000

const (
	numSlots     = 32 // a power of two above every field number of the schema but oldScopesNumber
	oldScopeSlot = numSlots - 1
	maxSlot      = numSlots - 2
)

// field is one field of a message: its kind and, for messages, which one.
type field struct {
	kind kind
	msg  messageID
}

// messageID is an index of schema.
type messageID uint8

const (
	mLogsRequest messageID = iota // the requests stand in the order of segment.Signals
	mTracesRequest
	mMetricsRequest
	mResourceLogs
	mResourceSpans
	mResourceMetrics
	mScopeLogs
	mScopeSpans
	mScopeMetrics
	mLogRecord
	mSpan
	mEvent
	mLink
	mStatus
	mMetric
	mGauge
	mSum
	mHistogram
	mExpHistogram
	mSummary
	mNumberPoint
	mHistogramPoint
	mExpHistogramPoint
	mBuckets
	mSummaryPoint
	mQuantile
	mExemplar
	mResource
	mEntityRef
	mScope
	mKeyValue
	mAnyValue
	mArrayValue
	mKeyValueList
	numMessages
)

// schema is OTLP as both pdata and the official schema know it (they know the same fields, oldScopesNumber apart),
// indexed by message and field number. It is never written to. One message is one cache line.
var schema = [numMessages][numSlots]field{
	mLogsRequest:    {1: {resourceOf, mResourceLogs}},
	mTracesRequest:  {1: {resourceOf, mResourceSpans}},
	mMetricsRequest: {1: {resourceOf, mResourceMetrics}},

	mResourceLogs: {
		1: {resource, mResource}, 2: {scopeOf, mScopeLogs}, 3: {kind: text}, oldScopeSlot: {oldScopeOf, mScopeLogs},
	},
	mResourceSpans: {
		1: {resource, mResource}, 2: {scopeOf, mScopeSpans}, 3: {kind: text}, oldScopeSlot: {oldScopeOf, mScopeSpans},
	},
	mResourceMetrics: {
		1: {resource, mResource}, 2: {scopeOf, mScopeMetrics}, 3: {kind: text}, oldScopeSlot: {oldScopeOf, mScopeMetrics},
	},
	mScopeLogs:    {1: {plain, mScope}, 2: {record, mLogRecord}, 3: {kind: text}},
	mScopeSpans:   {1: {plain, mScope}, 2: {record, mSpan}, 3: {kind: text}},
	mScopeMetrics: {1: {plain, mScope}, 2: {metric, mMetric}, 3: {kind: text}},

	mLogRecord: {
		1: {kind: fixed64}, 2: {kind: varint}, 3: {kind: text}, 5: {value, mAnyValue}, 6: {value, mKeyValue},
		7: {kind: varint}, 8: {kind: fixed32}, 9: {kind: traceID}, 10: {kind: spanID}, 11: {kind: fixed64},
		12: {kind: text},
	},

	mSpan: {
		1: {kind: traceID}, 2: {kind: spanID}, 3: {kind: text}, 4: {kind: spanID}, 5: {kind: text}, 6: {kind: varint},
		7: {kind: fixed64}, 8: {kind: fixed64}, 9: {value, mKeyValue}, 10: {kind: varint}, 11: {plain, mEvent},
		12: {kind: varint}, 13: {plain, mLink}, 14: {kind: varint}, 15: {plain, mStatus}, 16: {kind: fixed32},
	},
	mEvent: {1: {kind: fixed64}, 2: {kind: text}, 3: {value, mKeyValue}, 4: {kind: varint}},
	mLink: {
		1: {kind: traceID}, 2: {kind: spanID}, 3: {kind: text}, 4: {value, mKeyValue}, 5: {kind: varint},
		6: {kind: fixed32},
	},
	mStatus: {2: {kind: text}, 3: {kind: varint}},

	mMetric: {
		1: {kind: text}, 2: {kind: text}, 3: {kind: text}, 5: {data, mGauge}, 7: {data, mSum}, 9: {data, mHistogram},
		10: {data, mExpHistogram}, 11: {data, mSummary}, 12: {value, mKeyValue},
	},
	mGauge:        {1: {record, mNumberPoint}},
	mSum:          {1: {record, mNumberPoint}, 2: {kind: varint}, 3: {kind: varint}},
	mHistogram:    {1: {record, mHistogramPoint}, 2: {kind: varint}},
	mExpHistogram: {1: {record, mExpHistogramPoint}, 2: {kind: varint}},
	mSummary:      {1: {record, mSummaryPoint}},
	mNumberPoint: {
		2: {kind: fixed64}, 3: {kind: fixed64}, 4: {kind: fixed64}, 5: {plain, mExemplar}, 6: {kind: fixed64},
		7: {value, mKeyValue}, 8: {kind: varint},
	},
	mHistogramPoint: {
		2: {kind: fixed64}, 3: {kind: fixed64}, 4: {kind: fixed64}, 5: {kind: fixed64}, 6: {kind: packed64},
		7: {kind: packed64}, 8: {plain, mExemplar}, 9: {value, mKeyValue}, 10: {kind: varint}, 11: {kind: fixed64},
		12: {kind: fixed64},
	},
	mExpHistogramPoint: {
		1: {value, mKeyValue}, 2: {kind: fixed64}, 3: {kind: fixed64}, 4: {kind: fixed64}, 5: {kind: fixed64},
		6: {kind: varint}, 7: {kind: fixed64}, 8: {plain, mBuckets}, 9: {plain, mBuckets}, 10: {kind: varint},
		11: {plain, mExemplar}, 12: {kind: fixed64}, 13: {kind: fixed64}, 14: {kind: fixed64},
	},
	mBuckets: {1: {kind: varint}, 2: {kind: packedVarint}},
	mSummaryPoint: {
		2: {kind: fixed64}, 3: {kind: fixed64}, 4: {kind: fixed64}, 5: {kind: fixed64}, 6: {plain, mQuantile},
		7: {value, mKeyValue}, 8: {kind: varint},
	},
	mQuantile: {1: {kind: fixed64}, 2: {kind: fixed64}},
	mExemplar: {
		2: {kind: fixed64}, 3: {kind: fixed64}, 4: {kind: spanID}, 5: {kind: traceID}, 6: {kind: fixed64},
		7: {value, mKeyValue},
	},

	mResource:     {1: {value, mKeyValue}, 2: {kind: varint}, 3: {plain, mEntityRef}},
	mEntityRef:    {1: {kind: text}, 2: {kind: text}, 3: {kind: text}, 4: {kind: text}},
	mScope:        {1: {kind: text}, 2: {kind: text}, 3: {value, mKeyValue}, 4: {kind: varint}},
	mKeyValue:     {1: {kind: text}, 2: {value, mAnyValue}, 3: {kind: varint}},
	mArrayValue:   {1: {value, mAnyValue}},
	mKeyValueList: {1: {value, mKeyValue}},
	mAnyValue: {
		1: {kind: text}, 2: {kind: varint}, 3: {kind: varint}, 4: {kind: fixed64}, 5: {value, mArrayValue},
		6: {value, mKeyValueList}, 7: {kind: opaque}, 8: {kind: varint},
	},
}

// fieldOf is the field of msg with that number, of kind unknown where the schema has none.
func fieldOf(msg messageID, number protowire.Number) field {
	switch {
	case number <= maxSlot:
		return schema[msg][number]
	case number == oldScopesNumber:
		return schema[msg][oldScopeSlot]
	}
	return field{}
}
