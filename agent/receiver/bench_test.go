package receiver

import (
	"bytes"
	"context"
	"fmt"
	"testing"

	"google.golang.org/grpc"

	"ingest-agent/segment"
)

// taker is a store that takes everything at once.
type taker struct{}

func (taker) Accept(context.Context, Request) error { return nil }

// Between transport and store a request costs no allocation.
func TestIngestAllocatesNothing(t *testing.T) {
	r, settings, body := ingester(t)
	if n := testing.AllocsPerRun(100, func() {
		if err := r.ingest(t.Context(), settings, DefaultTenant, segment.Logs, body); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("%v allocations a request", n)
	}
}

// BenchmarkIngest is what the receiver does with a request of 100 records of 400 bytes between transport and store.
func BenchmarkIngest(b *testing.B) {
	r, settings, body := ingester(b)
	ctx := b.Context()
	b.SetBytes(int64(len(body)))
	b.ReportAllocs()
	for b.Loop() {
		if err := r.ingest(ctx, settings, DefaultTenant, segment.Logs, body); err != nil {
			b.Fatal(err)
		}
	}
}

func ingester(tb testing.TB) (r *Receiver, settings *live, body []byte) {
	tb.Helper()
	r, err := New(Options{GRPCEndpoint: "127.0.0.1:0", HTTPEndpoint: "127.0.0.1:0", Settings: testSettings(), Store: taker{}})
	if err != nil {
		tb.Fatal(err)
	}
	return r, r.live.Load(), logsRequest(tb, 0, 100, 400)
}

// BenchmarkRequest is one request of 100 records of 400 bytes over loopback, the client's part included, into a store that takes
// everything at once.
func BenchmarkRequest(b *testing.B) {
	body := logsRequest(b, 0, 100, 400)
	for _, coding := range []string{"identity", "gzip", "zstd"} {
		b.Run(fmt.Sprintf("grpc/%s", coding), func(b *testing.B) {
			conn := start(b, func(o *Options) { o.Store = taker{} }).client(b)
			b.SetBytes(int64(len(body)))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := call(b.Context(), conn, segment.Logs, body, grpc.UseCompressor(coding)); err != nil {
					b.Fatal(err)
				}
			}
		})
		packed := map[string][]byte{"identity": body, "gzip": gzipped(b, body), "zstd": zstdSized(b, body)}[coding]
		b.Run(fmt.Sprintf("http/%s", coding), func(b *testing.B) {
			run := start(b, func(o *Options) { o.Store = taker{} })
			b.SetBytes(int64(len(body)))
			b.ReportAllocs()
			for b.Loop() {
				if got := run.send(b, "POST", "/v1/logs", bytes.NewReader(packed), asProtobuf, "Content-Encoding: "+coding); got.status != 200 {
					b.Fatal(got.status)
				}
			}
		})
	}
}
