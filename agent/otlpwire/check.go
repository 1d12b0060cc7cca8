// Package otlpwire walks OTLP protobuf without building objects: it checks an export request of any of the three signals
// at full depth, counts its records, finds the first resource and cuts a request in two.
//
// What it accepts is what both pdata (the Collector's library) and the official protobuf runtime with the OTLP schema
// accept; where one of them refuses, so does Check. A string that is not UTF-8 is the one exception: it is taken as pdata
// takes it, and marked. docs/format.md lists where the two differ.
//
// It guarantees, for accepted requests a and b:
//   - Records is what pdata counts;
//   - the concatenation of a and b is accepted, and holds a's records, then b's: requests merge by concatenation;
//   - the two parts that Split makes hold the same records under the same resources, scopes and metrics.
//
// Work is linear in the length of the body, memory is constant. It assumes that the body does not change meanwhile.
package otlpwire

import (
	"fmt"

	"ingest-agent/segment"
)

// Info is what Check learns about a request.
type Info struct {
	// Records counts log records, spans or data points, as pdata counts them (LogRecordCount, SpanCount,
	// DataPointCount).
	Records int
	// FirstResource is the content of the first Resource message: a part of the body, not a copy. It is nil if there is
	// none, and empty but not nil if the first one is empty.
	FirstResource []byte
	// InvalidUTF8 is set if some string is not UTF-8. pdata takes such a request, the official runtime does not.
	InvalidUTF8 bool
}

// Check walks body, an export request of that signal, and accepts it if both pdata and the official protobuf runtime
// accept it (package comment). It allocates nothing unless it returns an error, which says what is wrong at which offset.
func Check(signal segment.Signal, body []byte) (Info, error) {
	if !signal.Valid() {
		return Info{}, fmt.Errorf("check request: no such signal: %s", signal)
	}
	msg := requestOf(signal)
	w := newWalker(msg)
	if pos, wrong := w.walk(body, msg); wrong != "" {
		return Info{}, fmt.Errorf("check %s request: byte %d of %d: %s", signal, pos, len(body), string(wrong))
	}
	return Info{Records: w.records(), FirstResource: w.first, InvalidUTF8: w.invalid}, nil
}

// requestOf is the export request of a valid signal.
func requestOf(signal segment.Signal) messageID { return mLogsRequest + messageID(signal.Index()) }
