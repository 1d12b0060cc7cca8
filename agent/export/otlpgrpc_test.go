package export

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"

	"ingest-agent/segment"
)

// bytesCodec is the server's side of rawCodec.
type bytesCodec struct{ rawCodec }

func (bytesCodec) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(v.([]byte))}, nil
}

type grpcCall struct {
	method   string
	body     []byte
	metadata metadata.MD
}

// serveGRPC answers every method with answer.
func serveGRPC(t *testing.T, answer func(context.Context, grpcCall) ([]byte, error), opts ...grpc.ServerOption) (addr string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return serveGRPCOn(t, l, answer, opts...)
}

func serveGRPCOn(t *testing.T, l net.Listener, answer func(context.Context, grpcCall) ([]byte, error), opts ...grpc.ServerOption) (addr string) {
	t.Helper()
	handle := func(_ any, s grpc.ServerStream) error {
		var call grpcCall
		if err := s.RecvMsg(&call.body); err != nil {
			return err
		}
		call.method, _ = grpc.MethodFromServerStream(s)
		call.metadata, _ = metadata.FromIncomingContext(s.Context())
		b, err := answer(s.Context(), call)
		if err != nil {
			return err
		}
		return s.SendMsg(b)
	}
	srv := grpc.NewServer(append(opts, grpc.ForceServerCodecV2(bytesCodec{}), grpc.UnknownServiceHandler(handle))...)
	var wg sync.WaitGroup
	wg.Go(func() { _ = srv.Serve(l) })
	t.Cleanup(func() { srv.Stop(); wg.Wait() })
	return l.Addr().String()
}

func grpcOptions(addr string) Options {
	return Options{Type: TypeOTLPGRPC, Endpoint: addr, Timeout: time.Minute, InFlight: 4, FrameIDs: true,
		UserAgent: "ingest-agent/test", TLS: TLSOptions{Insecure: true}}
}

func TestCase49PartialSuccessGRPC(t *testing.T) {
	for _, signal := range segment.Signals {
		answers := [][]byte{partialSuccess(t, signal, false, 3, "too old"), partialSuccess(t, signal, false, 0, "mind the gap"), nil, {0xff}}
		addr := serveGRPC(t, func(context.Context, grpcCall) ([]byte, error) {
			a := answers[0]
			answers = answers[1:]
			return a, nil
		})
		sink := newTestSink(t, grpcOptions(addr))
		for _, want := range []struct {
			rejected uint64
			err      string
		}{{3, "3 of 10 records rejected: too old"}, {0, "mind the gap"}, {0, ""}, {0, "parse success answer"}} {
			out := sink.Deliver(t.Context(), request(t, signal, 2, 5))
			wantVerdict(t, out, segment.Delivered)
			if out.Rejected != want.rejected || (out.Err == nil) != (want.err == "") || (out.Err != nil && !strings.Contains(out.Err.Error(), want.err)) {
				t.Errorf("%v: rejected %d, %v; want %+v", signal, out.Rejected, out.Err, want)
			}
		}
	}
}

func TestCase64BytesUnchangedGRPC(t *testing.T) {
	methods := map[segment.Signal]string{segment.Logs: "logs.v1.LogsService", segment.Traces: "trace.v1.TraceService", segment.Metrics: "metrics.v1.MetricsService"}
	for _, compression := range []Compression{CompressionNone, CompressionGzip, CompressionZstd} {
		var calls collector[grpcCall]
		addr := serveGRPC(t, func(_ context.Context, c grpcCall) ([]byte, error) { calls.add(c); return nil, nil })
		o := grpcOptions(addr)
		o.Compression = compression
		o.Headers = map[string]string{"X-Token": "secret"}
		sink := newTestSink(t, o)
		for _, signal := range segment.Signals {
			r := request(t, signal, 3, 2)
			r.Frames[1].Body = append(r.Frames[1].Body, unknownField...)
			want := merged(r)
			before := len(calls.get())
			var wg sync.WaitGroup
			for range 10 {
				wg.Go(func() {
					if out := sink.Deliver(context.Background(), r); out.Verdict != segment.Delivered {
						t.Error(out.Err)
					}
				})
			}
			wg.Wait()
			if !bytes.Equal(merged(r), want) {
				t.Error("frames changed")
			}
			for _, c := range calls.get()[before:] {
				if !bytes.Equal(c.body, want) {
					t.Fatalf("%s, %v: bytes differ", compression, signal)
				}
				if got := fmt.Sprint(c.method, c.metadata.Get(FrameIDsHeader), c.metadata.Get("x-token")); got !=
					"/opentelemetry.proto.collector."+methods[signal]+"/Export["+segment.FrameIDs(r.Frames)+"] [secret]" {
					t.Errorf("got %s", got)
				}
				if agent := c.metadata.Get("user-agent")[0]; !strings.HasPrefix(agent, "ingest-agent/test") {
					t.Errorf("user agent %s", agent)
				}
			}
			if n := len(calls.get()) - before; n != 10 {
				t.Errorf("%d calls", n)
			}
		}
	}
}

func TestGRPCHangingDestination(t *testing.T) {
	arrived := make(chan struct{}, 2)
	addr := serveGRPC(t, func(ctx context.Context, _ grpcCall) ([]byte, error) {
		arrived <- struct{}{}
		<-ctx.Done()
		return nil, ctx.Err()
	})
	sink := newTestSink(t, grpcOptions(addr))
	ctx, cancel := context.WithCancelCause(t.Context())
	stop := errors.New("the agent stops")
	go func() {
		<-arrived
		cancel(stop)
	}()
	out := sink.Deliver(ctx, request(t, segment.Logs, 1, 1))
	wantVerdict(t, out, segment.Retry)
	if !errors.Is(out.Err, stop) {
		t.Errorf("error %v", out.Err)
	}
}

// A copy of each body for the transport was a tenth of the agent's work, and most of its memory.
func TestGRPCCodecCopiesNoBodies(t *testing.T) {
	r := request(t, segment.Logs, 2, 1)
	buffers, err := rawCodec{}.Marshal(r)
	if err != nil || len(buffers) != len(r.Frames) {
		t.Fatalf("%d buffers, %v", len(buffers), err)
	}
	for i := range r.Frames {
		if got := buffers[i].ReadOnlyData(); &got[0] != &r.Frames[i].Body[0] || len(got) != len(r.Frames[i].Body) {
			t.Errorf("body %d is not the frame's own", i)
		}
	}
	if got := buffers.Materialize(); !bytes.Equal(got, merged(r)) {
		t.Error("the message is not the bodies, one after the other")
	}
}

// downListener closes what it accepts until it is up.
type downListener struct {
	net.Listener
	up atomic.Bool
}

func (l *downListener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil || l.up.Load() {
			return c, err
		}
		_ = c.Close()
	}
}

func TestGRPCDestinationIsDownAndComesBack(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	down := &downListener{Listener: l}
	addr := serveGRPCOn(t, down, func(context.Context, grpcCall) ([]byte, error) { return nil, nil })
	sink, err := newGRPCSink(grpcOptions(addr))
	if err != nil {
		t.Fatal(err)
	}
	defer mustClose(t, sink)
	for range 5 {
		wantVerdict(t, sink.Deliver(t.Context(), request(t, segment.Logs, 1, 1)), segment.Retry)
	}
	down.up.Store(true)
	ctx, cancel := context.WithTimeout(t.Context(), 4*maxReconnectDelay)
	defer cancel()
	for state := sink.conn.GetState(); state != connectivity.Ready; state = sink.conn.GetState() {
		if state == connectivity.Idle {
			sink.conn.Connect()
		}
		if !sink.conn.WaitForStateChange(ctx, state) {
			t.Fatalf("still %v", state)
		}
	}
	wantVerdict(t, sink.Deliver(t.Context(), request(t, segment.Logs, 1, 1)), segment.Delivered)
}

func TestGRPCTooLarge(t *testing.T) {
	addr := serveGRPC(t, func(context.Context, grpcCall) ([]byte, error) { return nil, nil }, grpc.MaxRecvMsgSize(1000))
	for _, compression := range []Compression{CompressionNone, CompressionGzip, CompressionZstd} {
		o := grpcOptions(addr)
		o.Compression = compression
		sink := newTestSink(t, o)
		wantVerdict(t, sink.Deliver(t.Context(), request(t, segment.Logs, 1, 100)), segment.TooLarge)
		wantVerdict(t, sink.Deliver(t.Context(), request(t, segment.Logs, 1, 1)), segment.Delivered)
	}
}

func TestGRPCOptionsAreChecked(t *testing.T) {
	for _, c := range []struct {
		want   string
		change func(*Options)
	}{
		{"host:port", func(o *Options) { o.Endpoint = "http://h:1" }},
		{"host:port", func(o *Options) { o.Endpoint = "h" }},
		{"compression", func(o *Options) { o.Compression = "snappy" }},
		{"retry_codes", func(o *Options) { o.RetryCodes = []int{503} }},
		{"set by the agent", func(o *Options) { o.Headers = map[string]string{"Grpc-Timeout": "hunter2"} }},
		{"forbidden", func(o *Options) { o.Headers = map[string]string{"a": "hunter2\r"} }},
		{"/absent", func(o *Options) { o.TLS = TLSOptions{CAFile: "/absent"} }},
	} {
		o := grpcOptions("127.0.0.1:1")
		c.change(&o)
		if _, err := New("acme", o); err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("want an error about %q, got %v", c.want, err)
		}
	}
}

func TestGRPCWithTLS(t *testing.T) {
	web := httptest.NewUnstartedServer(nil) // for its certificate
	web.StartTLS()
	defer web.Close()
	addr := serveGRPC(t, func(context.Context, grpcCall) ([]byte, error) { return nil, nil },
		grpc.Creds(credentials.NewServerTLSFromCert(&web.TLS.Certificates[0])))
	o := grpcOptions(addr)
	o.TLS = TLSOptions{InsecureSkipVerify: true}
	wantVerdict(t, newTestSink(t, o).Deliver(t.Context(), request(t, segment.Logs, 1, 1)), segment.Delivered)
	o.TLS = TLSOptions{}
	wantVerdict(t, newTestSink(t, o).Deliver(t.Context(), request(t, segment.Logs, 1, 1)), segment.Retry)
}

func TestGRPCCompressesIntoOneMember(t *testing.T) {
	want := bytes.Repeat([]byte("telemetry "), 50_000)
	for name, unpack := range map[string]func([]byte) ([]byte, error){"gzip": strictGunzip, "zstd": strictUnzstd} {
		for range 3 { // with what the pools have
			var wire bytes.Buffer
			w, err := encoding.GetCompressor(name).Compress(&wire)
			if err != nil {
				t.Fatal(err)
			}
			for part := range slices.Chunk(want, 1000) { // as the transport writes one frame's body after the other
				if _, err := w.Write(part); err != nil {
					t.Fatal(err)
				}
			}
			if err := w.Close(); err != nil {
				t.Fatal(err)
			}
			if got, err := unpack(wire.Bytes()); err != nil || !bytes.Equal(got, want) {
				t.Errorf("%s: not one member (%v)", name, err)
			}
		}
	}
}

// The status says that the request was taken: what the answer's body says is then lost, and the request is not sent again.
func TestDamagedAnswerGRPC(t *testing.T) {
	addr := serveH2C(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "application/grpc")
		w.Header().Set("Grpc-Encoding", "gzip")
		w.Header().Set("Trailer", "Grpc-Status")
		_, _ = w.Write([]byte{1, 0, 0, 0, 4, 0x1f, 0x8b, 8, 0}) // one message, compressed, of four bytes
		w.Header().Set("Grpc-Status", "0")
	})
	out := newTestSink(t, grpcOptions(addr)).Deliver(t.Context(), request(t, segment.Logs, 1, 5))
	wantVerdict(t, out, segment.Delivered)
	if out.Rejected != 0 || out.Err == nil || !strings.Contains(out.Err.Error(), "damaged") {
		t.Errorf("rejected %d, %v", out.Rejected, out.Err)
	}
}
