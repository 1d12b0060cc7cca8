// Package otlpgen makes OTLP requests as telemetry of a real service fleet looks, with a sequence number in each record,
// and reads those numbers back from what arrived.
//
// It guarantees that the same seed gives the same bytes, and that a record that was changed on its way is noticed: the
// number stands beside a checksum over it and the whole record. The record is a log record, a span or a metric data
// point; what is around it (resource, scope, a metric's name) is not under the checksum. It assumes that a record's own
// bytes are kept as they were encoded, or are decoded and encoded by pdata, which gives the same bytes again.
package otlpgen

import (
	"fmt"
	"math/rand/v2"

	"ingest-agent/segment"
)

// Variants is how many different requests there are for each signal; the rest of the variety is the sequence numbers.
const Variants = 8

// MaxRecords bounds the records of one request.
const MaxRecords = 10_000

// Generator makes requests of a fixed number of records. It is read-only once made, so it may be shared.
type Generator struct {
	records   int
	templates [segment.NumSignals][Variants]template
}

// template is an encoded request, and where in it the stamps go.
type template struct {
	body   []byte
	stamps []stamp
}

// New prepares the requests that a seed stands for, records (1 to MaxRecords) in each.
func New(seed uint64, records int) (*Generator, error) {
	if records < 1 || records > MaxRecords {
		return nil, fmt.Errorf("make generator: %d records a request, want 1 to %d", records, MaxRecords)
	}
	g := &Generator{records: records}
	for _, signal := range segment.Signals {
		for variant := range Variants {
			c := &content{rand.New(rand.NewPCG(seed, uint64(signal)<<32|uint64(variant)))}
			body, err := c.encode(signal, records)
			if err != nil {
				return nil, fmt.Errorf("make %s request: %w", signal, err)
			}
			t := template{body: body}
			err = walk(signal, body, func(r record) error {
				t.stamps = append(t.stamps, stamp{offset: r.stamp.from, recordCRC: r.crc(body)})
				return nil
			})
			if err != nil {
				return nil, fmt.Errorf("make %s request: %w", signal, err)
			}
			g.templates[signal.Index()][variant] = t
		}
	}
	return g, nil
}

// Records is the number of records in each request.
func (g *Generator) Records() int { return g.records }

// Append adds a request to dst and returns the extended slice. Its records are numbered from first on. Any variant is
// taken; they repeat after Variants.
func (g *Generator) Append(dst []byte, signal segment.Signal, variant int, first uint64) []byte {
	t := &g.templates[signal.Index()][uint(variant)%Variants]
	start := len(dst)
	dst = append(dst, t.body...)
	for i, s := range t.stamps {
		s.write(dst[start:], first+uint64(i))
	}
	return dst
}

func (c *content) encode(signal segment.Signal, records int) ([]byte, error) {
	switch signal {
	case segment.Logs:
		return c.logs(records)
	case segment.Traces:
		return c.traces(records)
	default:
		return c.metrics(records)
	}
}
