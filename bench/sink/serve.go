package sink

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"strconv"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"ingest-agent/bench/wire"
	"ingest-agent/segment"
)

// windowBytes is what a client may send of a request before it is read.
const windowBytes = 4 << 20

const protobufType = "application/x-protobuf"

// handler serves OTLP/HTTP in protobuf. A success answer is an empty message, so it has no bytes.
func (s *Sink) handler() http.Handler {
	bodies := &sync.Pool{New: func() any { return new(bytes.Buffer) }}
	mux := http.NewServeMux()
	for _, signal := range segment.Signals {
		mux.HandleFunc("POST "+wire.HTTPPath(signal), func(w http.ResponseWriter, r *http.Request) {
			body := bodies.Get().(*bytes.Buffer)
			defer bodies.Put(body)
			s.serveHTTP(w, r, signal, body)
		})
	}
	return mux
}

func (s *Sink) serveHTTP(w http.ResponseWriter, r *http.Request, signal segment.Signal, body *bytes.Buffer) {
	if kind := r.Header.Get("Content-Type"); kind != protobufType {
		err := fmt.Errorf("read request: content type %q is not %s", kind, protobufType)
		s.tally.bad(err)
		answer(w, http.StatusUnsupportedMediaType, status.New(codes.InvalidArgument, err.Error()))
		return
	}
	if gone, err := readBody(body, r); err != nil {
		if !gone {
			s.tally.bad(err)
		}
		answer(w, http.StatusBadRequest, status.New(codes.InvalidArgument, err.Error()))
		return
	}
	b := s.script.next()
	// The request's context ends with the client and with the sink: the server's base context is the sink's.
	if !b.wait(r.Context(), r.Context()) {
		s.tally.refused()
		panic(http.ErrAbortHandler)
	}
	if b.refuses() {
		s.tally.refused()
		if b.RetryAfter > 0 {
			w.Header().Set("Retry-After", strconv.Itoa(int(math.Ceil(b.RetryAfter.Seconds()))))
		}
		answer(w, b.Status, status.Convert(b.err()))
		return
	}
	if err := s.tally.take(signal, body.Bytes()); err != nil {
		answer(w, http.StatusBadRequest, status.New(codes.InvalidArgument, err.Error()))
		return
	}
	if b.LoseAnswer {
		panic(http.ErrAbortHandler)
	}
	w.Header().Set("Content-Type", protobufType)
	w.WriteHeader(http.StatusOK)
}

// readBody unpacks the body of r. On error, gone says whether it was the client that stopped sending, as one does that is
// killed; else the body itself is bad.
func readBody(body *bytes.Buffer, r *http.Request) (gone bool, err error) {
	packed := &received{r: io.LimitReader(r.Body, maxBodyBytes)}
	unpacked, err := wire.Decompressor(r.Header.Get("Content-Encoding"), packed)
	if err != nil {
		return packed.failed, err
	}
	body.Reset()
	n, err := body.ReadFrom(io.LimitReader(unpacked, maxBodyBytes+1))
	if err = errors.Join(err, unpacked.Close()); err != nil {
		return packed.failed, fmt.Errorf("read body: %w", err)
	}
	if n > maxBodyBytes {
		return false, fmt.Errorf("read body: over %d bytes", maxBodyBytes)
	}
	return false, nil
}

// received remembers whether reading from the network failed.
type received struct {
	r      io.Reader
	failed bool
}

func (r *received) Read(p []byte) (int, error) {
	n, err := r.r.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		r.failed = true
	}
	return n, err
}

func answer(w http.ResponseWriter, code int, s *status.Status) {
	text, err := proto.Marshal(s.Proto())
	if err != nil {
		text = nil // the code says enough
	}
	w.Header().Set("Content-Type", protobufType)
	w.WriteHeader(code)
	_, _ = w.Write(text) // an error is the client's, who is gone
}

// grpcServer serves the three services without their descriptions: methods are known by name, messages are bytes.
func (s *Sink) grpcServer(sinkUp context.Context) *grpc.Server {
	bodies := &sync.Pool{New: func() any { return new([]byte) }}
	return grpc.NewServer(
		grpc.ForceServerCodecV2(wire.RawCodec{}),
		grpc.MaxRecvMsgSize(maxBodyBytes),
		// Large requests come without waiting for the window: the sink is not what is measured.
		grpc.StaticStreamWindowSize(windowBytes),
		grpc.StaticConnWindowSize(4*windowBytes),
		grpc.WaitForHandlers(true),
		grpc.UnknownServiceHandler(func(_ any, stream grpc.ServerStream) error {
			method, _ := grpc.MethodFromServerStream(stream)
			for _, signal := range segment.Signals {
				if wire.GRPCMethod(signal) == method {
					body := bodies.Get().(*[]byte)
					err := s.serveGRPC(sinkUp, stream, signal, body)
					bodies.Put(body)
					return err
				}
			}
			return status.Error(codes.Unimplemented, method)
		}),
	)
}

func (s *Sink) serveGRPC(sinkUp context.Context, stream grpc.ServerStream, signal segment.Signal, body *[]byte) error {
	if err := stream.RecvMsg(body); err != nil {
		return err
	}
	b := s.script.next()
	if !b.wait(stream.Context(), sinkUp) {
		s.tally.refused()
		return status.Error(codes.Unavailable, "the sink goes down")
	}
	if b.refuses() {
		s.tally.refused()
		return b.err()
	}
	if err := s.tally.take(signal, *body); err != nil {
		return status.Error(codes.InvalidArgument, err.Error())
	}
	if b.LoseAnswer {
		// One stream cannot be cut alone; to the client this is the same as an answer lost by a proxy.
		return status.Error(codes.Unavailable, "the answer is lost")
	}
	return stream.SendMsg(&[]byte{})
}
