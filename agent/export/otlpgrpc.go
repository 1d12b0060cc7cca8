package export

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"ingest-agent/agent/receiver/grpczip" // registers gzip and zstd, too
	"ingest-agent/segment"
)

const (
	// minReconnectDelay and maxReconnectDelay replace grpc's second and two minutes: the caller paces its attempts itself,
	// and must not find a destination that is back still taken for down.
	minReconnectDelay = 100 * time.Millisecond
	maxReconnectDelay = 5 * time.Second

	// keepaliveAfter is the shortest interval that a server tolerates by default. A connection that went dead is noticed
	// by it, not by the request timeouts, which end the request only.
	keepaliveAfter   = 5 * time.Minute
	keepaliveTimeout = 20 * time.Second
)

// exportMethods are the OTLP services' methods by signal.
var exportMethods = [segment.NumSignals]string{
	"/opentelemetry.proto.collector.logs.v1.LogsService/Export",
	"/opentelemetry.proto.collector.trace.v1.TraceService/Export",
	"/opentelemetry.proto.collector.metrics.v1.MetricsService/Export",
}

// retryableGRPC are the codes that OTLP retries always (OTLP specification, "Failures" of OTLP/gRPC).
func retryableGRPC() []codes.Code {
	return []codes.Code{codes.Canceled, codes.DeadlineExceeded, codes.Aborted, codes.OutOfRange, codes.Unavailable, codes.DataLoss}
}

// grpcSink delivers over OTLP/gRPC.
type grpcSink struct {
	conn     *grpc.ClientConn
	endpoint string
	headers  metadata.MD
	timeout  time.Duration
	retry    []codes.Code
	frameIDs bool
	options  []grpc.CallOption
}

func newGRPCSink(o Options) (*grpcSink, error) {
	if err := o.checkWire(); err != nil {
		return nil, err
	}
	host, port, err := net.SplitHostPort(o.Endpoint)
	if err != nil || host == "" || port == "" || strings.Contains(o.Endpoint, "/") {
		return nil, errors.New("endpoint: want host:port without a scheme")
	}
	s := &grpcSink{endpoint: o.Endpoint, timeout: o.Timeout, frameIDs: o.FrameIDs, retry: retryableGRPC()}
	own, product, err := requestMetadata(o.Headers)
	if err != nil {
		return nil, err
	}
	s.headers = own
	for _, code := range o.RetryCodes {
		if code <= int(codes.OK) || code > int(codes.Unauthenticated) {
			return nil, fmt.Errorf("retry_codes: %d is not a gRPC code from 1 to 16", code)
		}
		s.retry = append(s.retry, codes.Code(code))
	}
	compressed := o.Compression == CompressionGzip || o.Compression == CompressionZstd
	s.options = []grpc.CallOption{grpc.ForceCodecV2(rawCodec{})}
	if compressed {
		s.options = append(s.options, grpc.UseCompressor(string(o.Compression)))
	}
	creds, err := grpcCredentials(&o.TLS, host)
	if err != nil {
		return nil, err
	}
	reconnect := backoff.DefaultConfig
	reconnect.BaseDelay, reconnect.MaxDelay = minReconnectDelay, maxReconnectDelay
	s.conn, err = grpc.NewClient(o.Endpoint,
		grpc.WithTransportCredentials(creds),
		grpc.WithUserAgent(userAgent(product, o.UserAgent)),
		grpc.WithDisableRetry(),
		grpc.WithDisableServiceConfig(), // it could bring a retry policy
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: reconnect, MinConnectTimeout: dialTimeout}),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: keepaliveAfter, Timeout: keepaliveTimeout}))
	if err != nil {
		return nil, fmt.Errorf("make client: %w", err)
	}
	return s, nil
}

func grpcCredentials(o *TLSOptions, host string) (credentials.TransportCredentials, error) {
	if o.Insecure {
		return insecure.NewCredentials(), nil
	}
	c, err := clientTLS(o, host)
	if err != nil {
		return nil, err
	}
	creds := credentials.NewTLS(c)
	if o.ServerNameOverride == "" {
		creds = endpointCredentials{creds}
	}
	return creds, nil
}

// requestMetadata is what all calls have in common, and the configured user agent. grpc would answer a bad name or value
// with an error for each call that looks like a refusal of the destination's.
func requestMetadata(headers map[string]string) (md metadata.MD, product string, err error) {
	md = metadata.MD{}
	for name, value := range headers {
		key := strings.ToLower(name)
		switch {
		case !validMetadata(key, value):
			return nil, "", fmt.Errorf("headers: %q is not a valid name, or its value has a forbidden character", name)
		case isOwnMetadata(key):
			return nil, "", fmt.Errorf("headers: %s is set by the agent", name)
		case key == "user-agent":
			product = value
		default:
			md.Set(key, value)
		}
	}
	return md, product, nil
}

// validMetadata goes by the gRPC specification ("Custom-Metadata"): names of a few characters, values of printable ASCII.
// Those of names that end in -bin may be any bytes, since they are encoded.
func validMetadata(key, value string) bool {
	if key == "" || strings.Trim(key, "abcdefghijklmnopqrstuvwxyz0123456789-_.") != "" {
		return false
	}
	return strings.HasSuffix(key, "-bin") || !strings.ContainsFunc(value, func(c rune) bool { return c < ' ' || c > '~' })
}

// isOwnMetadata is what isOwnHeader is for gRPC.
func isOwnMetadata(key string) bool {
	return strings.HasPrefix(key, "grpc-") || key == "host" || isOwnHeader(http.CanonicalHeaderKey(key))
}

// Deliver implements segment.Sink with one call.
func (s *grpcSink) Deliver(ctx context.Context, r *segment.Request) segment.Outcome {
	if !r.Signal.Valid() {
		return refused(fmt.Errorf("send request: %v is not a signal", r.Signal))
	}
	md := s.headers
	if s.frameIDs {
		md = md.Copy()
		md.Set(FrameIDsHeader, segment.FrameIDs(r.Frames))
	}
	ctx, cancel := context.WithTimeoutCause(ctx, s.timeout, errNoAnswer)
	defer cancel()
	var answer []byte
	var header metadata.MD
	err := s.conn.Invoke(metadata.NewOutgoingContext(ctx, md), exportMethods[r.Signal.Index()], r, &answer,
		append([]grpc.CallOption{grpc.Header(&header)}, s.options...)...)
	if err == nil && grpczip.Damaged(answer) { // the status says that the request was taken
		return segment.Outcome{Verdict: segment.Delivered, Err: errors.New("inflate success answer: it is damaged")}
	}
	if err == nil {
		return delivered(r, contentProtobuf, answer)
	}
	if ctx.Err() != nil {
		return retry(fmt.Errorf("send request to %s: %w", s.endpoint, context.Cause(ctx)))
	}
	return s.judge(err, header != nil)
}

// judge turns an error into an outcome. RESOURCE_EXHAUSTED can recover only if the destination says when
// (OTLP specification, "Failures"); without that, servers use it for a message over their size limit. answered says that an
// answer had begun: grpc has the same words for one that is too large for us.
func (s *grpcSink) judge(err error, answered bool) segment.Outcome {
	st := status.Convert(err)
	why := fmt.Errorf("destination answered gRPC %v: %s", st.Code(), clean(st.Message()))
	delay, hasDelay := retryInfo(st)
	tooLarge := saysTooLarge(st) && !hasDelay
	switch {
	case tooLarge && !answered:
		return segment.Outcome{Verdict: segment.TooLarge, Err: why}
	case tooLarge, saysCut(st), slices.Contains(s.retry, st.Code()), st.Code() == codes.ResourceExhausted && hasDelay:
		out := retry(why)
		out.RetryAfter = delay
		return out
	}
	return refused(why)
}

// saysCut knows the words of grpc for a call that ended without a status: the connection or a proxy gave it up. Their codes,
// which come from an error number of HTTP/2, would be taken for a refusal.
func saysCut(st *status.Status) bool {
	return strings.HasPrefix(st.Message(), "stream terminated by RST_STREAM") ||
		strings.HasPrefix(st.Message(), "server closed the stream without sending trailers")
}

// saysTooLarge knows the words of servers for a message over their limit. There is no code for it: without this, a merged
// request would be refused in whole, or sent again for ever.
func saysTooLarge(st *status.Status) bool {
	has := func(words ...string) bool {
		message := strings.ToLower(st.Message())
		return slices.ContainsFunc(words, func(part string) bool { return strings.Contains(message, part) })
	}
	switch st.Code() {
	case codes.ResourceExhausted: // Go and C++, Java, .NET, this agent
		return has("larger than max", "exceeds maximum size", "exceeds the maximum", "request is larger than")
	case codes.OutOfRange: // Rust
		return has("message length too large")
	case codes.Unknown: // grpc itself, for a proxy that answers in HTTP
		return has("status code received from server: 413")
	default:
		return false
	}
}

func retryInfo(st *status.Status) (time.Duration, bool) {
	for _, detail := range st.Details() {
		if info, ok := detail.(*errdetails.RetryInfo); ok {
			return max(info.GetRetryDelay().AsDuration(), 0), true
		}
	}
	return 0, false
}

// Close closes the connection.
func (s *grpcSink) Close() error {
	if err := s.conn.Close(); err != nil {
		return fmt.Errorf("close connection: %w", err)
	}
	return nil
}

// rawCodec sends the frames' bodies as they are and hands out the answer's bytes. The transport may hold on to what it sends
// after a call has ended: bodies are never written again (segment.Frame), so that no copy is needed.
type rawCodec struct{}

var _ encoding.CodecV2 = rawCodec{}

// Marshal takes a *segment.Request.
func (rawCodec) Marshal(v any) (mem.BufferSlice, error) {
	r, ok := v.(*segment.Request)
	if !ok {
		return nil, fmt.Errorf("encode %T: not a request", v)
	}
	buffers := make(mem.BufferSlice, len(r.Frames))
	for i := range r.Frames {
		buffers[i] = mem.SliceBuffer(r.Frames[i].Body)
	}
	return buffers, nil
}

// Unmarshal takes a *[]byte.
func (rawCodec) Unmarshal(data mem.BufferSlice, v any) error {
	answer, ok := v.(*[]byte)
	if !ok {
		return fmt.Errorf("decode into %T: not bytes", v)
	}
	*answer = data.Materialize()
	return nil
}

// Name is that of the content: the bytes are protobuf.
func (rawCodec) Name() string { return "proto" }
