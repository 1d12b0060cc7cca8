package receiver

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"

	"google.golang.org/grpc/encoding"
	"google.golang.org/protobuf/encoding/protowire"

	"ingest-agent/agent/otlpwire"
	"ingest-agent/agent/receiver/grpczip"
	"ingest-agent/segment"
)

const fuzzLimit = 64 << 10

func fuzzReceiver(tb testing.TB) *Receiver {
	tb.Helper()
	s := testSettings()
	s.HTTPMaxRequestSizeBytes = fuzzLimit
	r, err := New(Options{Settings: s, Store: checking{tb}})
	if err != nil {
		tb.Fatal(err)
	}
	return r
}

// checking is a store that looks at what it gets.
type checking struct{ tb testing.TB }

func (c checking) Accept(_ context.Context, r Request) error {
	info, err := otlpwire.Check(r.Signal, r.Body)
	if err != nil || info.Records == 0 || info.Records != r.Info.Records || len(r.Body) > fuzzLimit {
		c.tb.Errorf("stored a body of %d bytes with %d records (said: %d): %v", len(r.Body), info.Records, r.Info.Records, err)
	}
	return nil
}

var fuzzHeaders = []struct{ contentType, coding string }{
	{protobufType, ""}, {jsonType, ""}, {protobufType, "gzip"}, {jsonType, "gzip"}, {protobufType, "zstd"}, {jsonType, "zstd"},
}

// Whatever is sent gets one of a few answers, and what is stored is whole.
func FuzzHTTP(f *testing.F) {
	for name, signal := range map[string]uint8{"logs.json": 0, "trace.json": 1, "metrics.json": 2} {
		text, err := os.ReadFile(filepath.Join("testdata", name))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(signal, uint8(1), text)
		f.Add(signal, uint8(3), gzipped(f, text))
		f.Add(signal, uint8(5), zstdSized(f, text))
		body, err := transcode(segment.Signals[signal], text)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(signal, uint8(0), body)
		f.Add(signal, uint8(2), gzipped(f, body[:9], body[9:]))
		f.Add(signal, uint8(4), zstdStreamed(f, body[:9], body[9:]))
	}
	f.Add(uint8(0), uint8(4), hugeWindow(f))
	r := fuzzReceiver(f)
	f.Fuzz(func(t *testing.T, signal, headers uint8, body []byte) {
		req := httptest.NewRequest(http.MethodPost, "/v1/"+segment.Signals[int(signal)%segment.NumSignals].String(), bytes.NewReader(body))
		h := fuzzHeaders[int(headers)%len(fuzzHeaders)]
		req.Header.Set("Content-Type", h.contentType)
		req.Header.Set("Content-Encoding", h.coding)
		w := httptest.NewRecorder()
		r.http.Handler.ServeHTTP(w, req)
		got := answer{w.Code, w.Header(), w.Body.Bytes()}
		switch got.status {
		case 200:
		case 400, 413:
			got.rpcStatus(t)
		default:
			t.Fatalf("answer %d %q", got.status, got.body)
		}
		if !r.live.Load().bodies.TryAcquire(bodiesBytes(r.live.Load().Settings)) {
			t.Fatal("memory is not given back")
		}
		r.live.Load().bodies.Release(bodiesBytes(r.live.Load().Settings))
	})
}

// JSON that is taken has been read to its end: no field of the request is lost by its place in the text. The probe is one
// more record, put behind the request's own.
func FuzzJSONIsReadToItsEnd(f *testing.F) {
	for _, text := range []string{oneLogJSON, "{}", `{"resourceLogs":[{}]}`, `{"x":{"":1}}`, `{"resourceLogs":null}`, `{"a":"\"}"}`, `{"resourceLogs":[{"scopeLogs":[{"logRecords":[{"body":{"":1}}]}]}]}`} {
		f.Add([]byte(text))
	}
	decoder := newJSONDecoder(fuzzLimit)
	f.Fuzz(func(t *testing.T, text []byte) {
		body, err := decoder.decode(t.Context(), segment.Logs, text)
		if err != nil {
			return
		}
		end := bytes.LastIndexByte(text, '}')
		probe := `"resourceLogs":[{"schemaUrl":"the probe"}]}`
		if len(bytes.TrimSpace(text[:end])) > 1 {
			probe = "," + probe
		}
		more, err := decoder.decode(t.Context(), segment.Logs, append(append([]byte(nil), text[:end]...), probe...))
		if err != nil {
			return // one object too many
		}
		want := protowire.AppendString(protowire.AppendTag(nil, 3, protowire.BytesType), "the probe")
		if !bytes.HasPrefix(more, body) || !bytes.Contains(more[len(body):], want) {
			t.Fatalf("%q gives %x; with a record more %x", text, body, more)
		}
	})
}

// A compressed body means the same on both transports: the same bytes, too large, or damaged.
func FuzzInflate(f *testing.F) {
	text := bytes.Repeat([]byte("telemetry "), 100)
	for _, body := range [][]byte{
		{}, text, gzipped(f, text), gzipped(f, text[:9], text[9:]), gzipped(f, text)[:40], append(gzipped(f, text), "rubbish"...),
		gzipped(f, make([]byte, fuzzLimit)), gzipped(f, make([]byte, fuzzLimit+1)), zstdSized(f, text), zstdStreamed(f, text[:9], text[9:]),
		zstdSized(f, text)[:20], append(zstdSized(f, text), "rubbish"...), zstdStreamed(f, make([]byte, fuzzLimit+1)), hugeWindow(f),
	} {
		f.Add(true, body)
		f.Add(false, body)
	}
	inflater, err := newInflater(fuzzLimit)
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, isGzip bool, body []byte) {
		c, name := zstdCoding, "zstd"
		if isGzip {
			c, name = gzipCoding, "gzip"
		}
		overHTTP, reason := []byte(nil), ""
		err := inflater.inflate(t.Context(), c, body, func(b []byte) error {
			overHTTP = bytes.Clone(b)
			return nil
		})
		if refused, is := errors.AsType[*refusal](err); is {
			reason = refused.reason
		} else if err != nil {
			t.Fatal(err)
		}
		stream, err := encoding.GetCompressor(name).Decompress(bytes.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		overGRPC, err := io.ReadAll(io.LimitReader(stream, fuzzLimit+1)) // as the library does
		if err != nil {
			t.Fatal(err)
		}
		if err := stream.(io.Closer).Close(); err != nil {
			t.Fatal(err)
		}
		switch {
		case len(overGRPC) > fuzzLimit: // it may be damaged behind the limit
			if reason == "" {
				t.Fatalf("%s: %d bytes over HTTP, too large over gRPC", name, len(overHTTP))
			}
		case grpczip.Damaged(overGRPC):
			if reason == "" {
				t.Fatalf("%s: %d bytes over HTTP, damaged over gRPC", name, len(overHTTP))
			}
		case reason != "" || !bytes.Equal(overHTTP, overGRPC):
			t.Fatalf("%s: %q and %d bytes over HTTP, %d bytes over gRPC", name, reason, len(overHTTP), len(overGRPC))
		}
	})
}
