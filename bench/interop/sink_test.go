package interop

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// The two transports, as part of test names.
const (
	overGRPC = "grpc"
	overHTTP = "http"
)

// transports are both.
func transports() []string { return []string{overGRPC, overHTTP} }

const (
	protobufType = "application/x-protobuf"
	framesHeader = "ingest-agent-frames"
)

// signal is one of logs, traces, metrics: as in the paths of OTLP/HTTP.
type signal string

func signals() []signal { return []signal{"logs", "traces", "metrics"} }

// method is the gRPC method that takes a signal.
func (s signal) method() string {
	service := map[signal]string{"logs": "logs.v1.LogsService", "traces": "trace.v1.TraceService", "metrics": "metrics.v1.MetricsService"}
	return "/opentelemetry.proto.collector." + service[s] + "/Export"
}

// request is what the sink has taken: the protobuf bytes, inflated.
type request struct {
	signal signal
	body   []byte
	coding string // as it was sent over HTTP
	frames string // the agent's frame ids
}

// sink is a destination that keeps each request. It can be held, which leaves requests without an answer, and can be told
// what to answer.
type sink struct {
	http, grpc string // host:port

	mu     sync.Mutex
	taken  []request
	open   chan struct{} // closed: not held
	late   bool          // while it is held, requests are taken and their answers held
	answer answer
}

// answer makes the bytes of an answer to r, or the status of a refusal; what is refused is not taken. It is called by one
// goroutine at a time.
type answer func(r request) ([]byte, error)

func takeAll(request) ([]byte, error) { return nil, nil }

func startSink(t *testing.T) *sink { return startSinkWith(t, takeAll) }

func startSinkWith(t *testing.T, answer answer) *sink {
	t.Helper()
	s := &sink{open: make(chan struct{}), answer: answer}
	close(s.open)
	listen := func() net.Listener {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	httpListener, grpcListener := listen(), listen()
	s.http, s.grpc = httpListener.Addr().String(), grpcListener.Addr().String()
	httpServer := &http.Server{Handler: http.HandlerFunc(s.serveHTTP)}
	grpcServer := grpc.NewServer(grpc.ForceServerCodec(rawCodec{}), grpc.MaxRecvMsgSize(maxBodyBytes), grpc.WaitForHandlers(true),
		grpc.UnknownServiceHandler(s.serveGRPC))
	var serving sync.WaitGroup
	serving.Go(func() { _ = httpServer.Serve(httpListener) }) // it ends when it is closed, and says so
	serving.Go(func() { _ = grpcServer.Serve(grpcListener) }) // likewise
	t.Cleanup(func() {
		grpcServer.Stop()
		if err := httpServer.Close(); err != nil {
			t.Errorf("close sink: %v", err)
		}
		serving.Wait()
	})
	return s
}

const maxBodyBytes = 64 << 20

// addr is where the sink takes OTLP over a transport.
func (s *sink) addr(transport string) string {
	if transport == overGRPC {
		return s.grpc
	}
	return s.http
}

// hold leaves requests from now on without an answer, until release. Those whose client goes away before are not taken.
func (s *sink) hold() { s.holdWith(false) }

// holdAnswers is hold, but requests are taken.
func (s *sink) holdAnswers() { s.holdWith(true) }

func (s *sink) holdWith(late bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open, s.late = make(chan struct{}), late
}

func (s *sink) release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.open)
	s.late = false
}

func (s *sink) requests() []request {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]request(nil), s.taken...)
}

// awaitMore waits until some more requests are taken.
func (s *sink) awaitMore(t *testing.T) {
	t.Helper()
	const some = 10
	before := len(s.requests())
	await(t, "more arrives", func() bool { return len(s.requests()) >= before+some })
}

// take keeps r, unless it is refused, and returns when it is to be answered.
func (s *sink) take(ctx context.Context, r request) ([]byte, error) {
	s.mu.Lock()
	open, late := s.open, s.late
	if late {
		s.taken = append(s.taken, r)
	}
	s.mu.Unlock()
	select {
	case <-open:
	case <-ctx.Done():
		return nil, status.FromContextError(ctx.Err()).Err()
	}
	if late {
		return nil, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	body, err := s.answer(r)
	if err == nil {
		s.taken = append(s.taken, r)
	}
	return body, err
}

func (s *sink) serveHTTP(w http.ResponseWriter, r *http.Request) {
	name := signal(strings.TrimPrefix(r.URL.Path, "/v1/"))
	coding := r.Header.Get("Content-Encoding")
	body, err := inflate(coding, r.Body)
	if err != nil || r.Header.Get("Content-Type") != protobufType {
		http.Error(w, fmt.Sprint("bad request: ", err), http.StatusBadRequest)
		return
	}
	w.Header().Set("Content-Type", protobufType)
	out, err := s.take(r.Context(), request{name, body, coding, r.Header.Get(framesHeader)})
	switch status.Code(err) {
	case codes.OK:
		_, _ = w.Write(out) // if the client is gone, it sends again
	case codes.InvalidArgument:
		w.WriteHeader(http.StatusBadRequest)
	default:
		w.WriteHeader(http.StatusTooManyRequests)
	}
}

// inflate reads the whole body in a coding of HTTP.
func inflate(coding string, r io.Reader) ([]byte, error) {
	switch coding {
	case "":
	case "gzip":
		z, err := gzip.NewReader(r)
		if err != nil {
			return nil, err
		}
		r = z
	case "zstd":
		z, err := zstd.NewReader(r)
		if err != nil {
			return nil, err
		}
		defer z.Close()
		r = z
	default:
		return nil, fmt.Errorf("unknown coding %q", coding)
	}
	return io.ReadAll(r)
}

func (s *sink) serveGRPC(_ any, stream grpc.ServerStream) error {
	method, _ := grpc.MethodFromServerStream(stream)
	for _, sig := range signals() {
		if sig.method() != method {
			continue
		}
		var body []byte
		if err := stream.RecvMsg(&body); err != nil {
			return err
		}
		r := request{signal: sig, body: body}
		if frames := metadata.ValueFromIncomingContext(stream.Context(), framesHeader); len(frames) == 1 {
			r.frames = frames[0]
		}
		out, err := s.take(stream.Context(), r)
		if err != nil {
			return err
		}
		return stream.SendMsg(&out)
	}
	return status.Error(codes.Unimplemented, method)
}

// rawCodec passes the bytes of gRPC messages as they are, by *[]byte.
type rawCodec struct{}

func (rawCodec) Name() string { return "proto" }

func (rawCodec) Marshal(v any) ([]byte, error) { return *v.(*[]byte), nil }

func (rawCodec) Unmarshal(data []byte, v any) error {
	*v.(*[]byte) = append([]byte(nil), data...) // the library uses its buffer again
	return nil
}
