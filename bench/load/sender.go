package load

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"

	"ingest-agent/bench/wire"
	"ingest-agent/segment"
)

// How gRPC connects again.
const (
	maxReconnectDelay = 200 * time.Millisecond
	minConnectTimeout = time.Second
)

// maxAnswerBytes bounds what is read of an answer.
const maxAnswerBytes = 1 << 20

// Failures that have no code of their own. Others are "http <status>" and "grpc <code>".
const (
	FailureConnection = "connection"      // refused, cut, or no answer in time, over HTTP
	FailurePartial    = "partial success" // answered with success, but records were rejected
	FailureAnswer     = "bad answer"      // not what OTLP says an answer is
)

// sender is one client.
type sender interface {
	// send makes one attempt. It returns why the request was not acknowledged, or "" if it was, and after when to try again,
	// if the answer says so.
	send(ctx context.Context, signal segment.Signal, body []byte) (failure string, after time.Duration)
	close() error
}

type grpcSender struct {
	conn    *grpc.ClientConn
	options []grpc.CallOption
}

func newGRPCSender(address, coding string) (*grpcSender, error) {
	// passthrough: the address is one, and proxies of the environment are not for tests of one machine.
	conn, err := grpc.NewClient("passthrough:///"+address,
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithNoProxy(),
		// The other side is started again on purpose: what gRPC waits by default, up to minutes, is for servers in trouble.
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: failurePause, Multiplier: 1.6, Jitter: 0.2, MaxDelay: maxReconnectDelay},
			MinConnectTimeout: minConnectTimeout,
		}))
	if err != nil {
		return nil, err
	}
	s := &grpcSender{conn: conn, options: []grpc.CallOption{grpc.ForceCodecV2(wire.RawCodec{})}}
	if coding != wire.None {
		s.options = append(s.options, grpc.UseCompressor(coding))
	}
	return s, nil
}

func (s *grpcSender) send(ctx context.Context, signal segment.Signal, body []byte) (failure string, after time.Duration) {
	var answer []byte
	if err := s.conn.Invoke(ctx, wire.GRPCMethod(signal), &body, &answer, s.options...); err != nil {
		for _, detail := range status.Convert(err).Details() {
			if info, ok := detail.(*errdetails.RetryInfo); ok {
				after = info.GetRetryDelay().AsDuration()
			}
		}
		return "grpc " + status.Code(err).String(), after
	}
	return checkAnswer(answer), 0
}

func (s *grpcSender) close() error { return s.conn.Close() }

type httpSender struct {
	client     *http.Client
	base       string
	coding     string
	compressor *wire.Compressor
}

func newHTTPSender(address, coding string) (*httpSender, error) {
	c, err := wire.NewCompressor(coding)
	if err != nil {
		return nil, err
	}
	return &httpSender{
		client:     &http.Client{Transport: &http.Transport{}}, // its own, without a proxy
		base:       "http://" + address,
		coding:     coding,
		compressor: c,
	}, nil
}

func (s *httpSender) send(ctx context.Context, signal segment.Signal, body []byte) (failure string, after time.Duration) {
	packed, err := s.compressor.Compress(body)
	if err != nil {
		return err.Error(), 0
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, s.base+wire.HTTPPath(signal), bytes.NewReader(packed))
	if err != nil {
		return err.Error(), 0
	}
	r.Header.Set("Content-Type", "application/x-protobuf")
	if s.coding != wire.None {
		r.Header.Set("Content-Encoding", s.coding)
	}
	resp, err := s.client.Do(r)
	if err != nil {
		return FailureConnection, 0
	}
	answer, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswerBytes))
	if err = errors.Join(err, resp.Body.Close()); err != nil {
		return FailureConnection, 0
	}
	if resp.StatusCode != http.StatusOK {
		if seconds, err := strconv.ParseUint(resp.Header.Get("Retry-After"), 10, 16); err == nil {
			after = time.Duration(seconds) * time.Second
		}
		return fmt.Sprintf("http %d", resp.StatusCode), after
	}
	return checkAnswer(answer), 0
}

func (s *httpSender) close() error {
	s.client.CloseIdleConnections()
	return nil
}

// Fields of an OTLP answer, alike for all signals.
const (
	fieldPartialSuccess = 1 // ExportXServiceResponse.partial_success
	fieldRejected       = 1 // ExportXPartialSuccess.rejected_x
)

// checkAnswer reads an answer of success.
func checkAnswer(answer []byte) (failure string) {
	rejected := false
	ok := eachField(answer, func(num protowire.Number, kind protowire.Type, value []byte) bool {
		if num != fieldPartialSuccess || kind != protowire.BytesType {
			return true
		}
		partial, n := protowire.ConsumeBytes(value)
		return n >= 0 && eachField(partial, func(num protowire.Number, kind protowire.Type, value []byte) bool {
			if num == fieldRejected && kind == protowire.VarintType {
				count, _ := protowire.ConsumeVarint(value)
				rejected = rejected || count != 0
			}
			return true
		})
	})
	switch {
	case !ok:
		return FailureAnswer
	case rejected:
		return FailurePartial
	}
	return ""
}

// eachField is false if the message is not protobuf or visit returned false.
func eachField(message []byte, visit func(protowire.Number, protowire.Type, []byte) bool) bool {
	for len(message) > 0 {
		num, kind, n := protowire.ConsumeTag(message)
		if n < 0 {
			return false
		}
		m := protowire.ConsumeFieldValue(num, kind, message[n:])
		if m < 0 || !visit(num, kind, message[n:n+m]) {
			return false
		}
		message = message[n+m:]
	}
	return true
}
