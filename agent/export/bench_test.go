package export

import (
	"fmt"
	"io"
	"testing"

	"ingest-agent/segment"
)

// BenchmarkPayload makes and reads the body of a request of ten frames of 100 log records.
func BenchmarkPayload(b *testing.B) {
	r := request(b, segment.Logs, 10, 100)
	for _, c := range []Compression{CompressionNone, CompressionGzip, CompressionZstd} {
		b.Run(fmt.Sprint(c), func(b *testing.B) {
			p := payloads{compression: c}
			b.SetBytes(int64(r.Size()))
			b.ReportAllocs()
			for b.Loop() {
				body, err := p.make(r)
				if err != nil {
					b.Fatal(err)
				}
				if _, err := io.Copy(io.Discard, body); err != nil {
					b.Fatal(err)
				}
				p.release(body)
			}
		})
	}
}
