package receiver

import (
	"context"
	"errors"
	"io"
	"math"
	"mime"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"
	spb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"ingest-agent/segment"
)

// format is how a message is written on HTTP.
type format uint8

const (
	unknownFormat format = iota
	protobufFormat
	jsonFormat
)

const (
	protobufType = "application/x-protobuf"
	jsonType     = "application/json"
)

// supportedCodings is named to clients that use another one.
const supportedCodings = "gzip, zstd"

type httpHandler struct {
	receiver *Receiver
	buffers  sync.Pool // of *[]byte, up to maxPooledBytes: bodies as sent that are decoded further
}

func (r *Receiver) newHTTPServer() *http.Server {
	errorLog, err := zap.NewStdLogAt(r.opts.Log, zap.DebugLevel)
	if err != nil { // only for an unknown level
		errorLog = zap.NewStdLog(r.opts.Log)
	}
	return &http.Server{
		Handler:           &httpHandler{receiver: r},
		ReadHeaderTimeout: headerTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeaderBytes,
		ErrorLog:          errorLog, // handshakes and broken requests of clients
		TLSConfig:         r.opts.HTTPTLS,
		HTTP2: &http.HTTP2Config{ // what a client may send before it is read is memory, too
			MaxConcurrentStreams:          maxConcurrentStreams,
			MaxReceiveBufferPerConnection: connectionWindowBytes,
			MaxReceiveBufferPerStream:     connectionWindowBytes,
			SendPingTimeout:               keepaliveTime,
			PingTimeout:                   keepaliveTimeout,
			WriteByteTimeout:              answerTimeout,
		},
	}
}

// ServeHTTP answers one request.
func (h *httpHandler) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	r, settings := h.receiver, h.receiver.live.Load()
	control := http.NewResponseController(w)
	// It holds also for what is left of a refused body. The server lifts it when the body has been read to its end. Setting
	// it fails only on a connection that is gone.
	_ = control.SetReadDeadline(time.Now().Add(settings.ReadTimeout))

	signal, known := signalOfPath(req.URL.Path)
	if !known {
		h.answerError(w, req, &refusal{code: codes.Unimplemented, http: http.StatusNotFound, text: "no such path"})
		return
	}
	if !r.inHand.enter() {
		h.answerError(w, req, r.refuse(req.Context(), signal, stopping()))
		return
	}
	defer r.inHand.leave()
	if err := h.handle(req, settings, signal); err != nil {
		h.answerError(w, req, r.refuse(req.Context(), signal, err))
		return
	}
	_ = control.SetWriteDeadline(time.Now().Add(answerTimeout)) // as above
	if formatOf(req.Header.Get("Content-Type")) == jsonFormat {
		writeBody(w, http.StatusOK, jsonType, []byte("{}"))
		return
	}
	writeBody(w, http.StatusOK, protobufType, nil)
}

func signalOfPath(path string) (segment.Signal, bool) {
	name, found := strings.CutPrefix(path, "/v1/")
	if !found {
		return 0, false
	}
	signal, err := segment.ParseSignal(name)
	return signal, err == nil
}

// handle takes one request up to the point where it is durable.
func (h *httpHandler) handle(req *http.Request, settings *live, signal segment.Signal) error {
	if req.Method != http.MethodPost {
		return unsupported(http.StatusMethodNotAllowed, "method must be POST")
	}
	ctx := req.Context()
	tenant, err := settings.tenant(ctx, Caller{Header: req.Header.Values, RemoteAddr: req.RemoteAddr})
	if err != nil {
		return err
	}
	in := formatOf(req.Header.Get("Content-Type"))
	if in == unknownFormat {
		return unsupported(http.StatusUnsupportedMediaType, "content type must be %s or %s", protobufType, jsonType)
	}
	c, err := codingOf(req.Header.Values("Content-Encoding"))
	if err != nil {
		return err
	}
	l := &lease{bodies: settings.bodies}
	defer l.release()
	body, err := h.read(req, settings, signal, in, c, l)
	if err != nil {
		return err
	}
	return h.receiver.ingest(ctx, settings, tenant, signal, body)
}

// read returns the body of a request as protobuf that nobody else holds.
func (h *httpHandler) read(req *http.Request, settings *live,
	signal segment.Signal, in format, c coding, l *lease) ([]byte, error) {
	limit := settings.HTTPMaxRequestSizeBytes
	if in == protobufFormat && c == identity {
		return readBody(req.Body, nil, req.ContentLength, limit, l)
	}
	buffer, _ := h.buffers.Get().(*[]byte)
	if buffer == nil {
		buffer = new([]byte)
	}
	defer func() {
		if cap(*buffer) <= maxPooledBytes {
			h.buffers.Put(buffer)
		}
	}()
	if err := l.grow(cap(*buffer)); err != nil {
		return nil, err
	}
	wire, err := readBody(req.Body, (*buffer)[:0], req.ContentLength, limit, l)
	*buffer = wire
	if err != nil {
		return nil, err
	}
	var body []byte
	take := func(inflated []byte) (err error) {
		body, err = h.take(req.Context(), settings, signal, in, inflated, l)
		return err
	}
	if c == identity {
		err = take(wire)
	} else {
		err = settings.inflater.inflate(req.Context(), c, wire, take)
	}
	l.shrink(cap(wire))
	return body, err
}

// take copies a body out of a buffer that is used again: as it is, or turned from JSON into protobuf.
func (h *httpHandler) take(ctx context.Context, settings *live, signal segment.Signal, in format, inflated []byte, l *lease) ([]byte, error) {
	if in == protobufFormat {
		if err := l.grow(len(inflated)); err != nil {
			return nil, err
		}
		return append(make([]byte, 0, len(inflated)), inflated...), nil
	}
	body, err := settings.json.decode(ctx, signal, inflated)
	if err != nil {
		return nil, err
	}
	if len(body) > settings.HTTPMaxRequestSizeBytes { // numbers can be shorter in JSON
		return nil, tooLarge(settings.HTTPMaxRequestSizeBytes)
	}
	return body, l.grow(len(body))
}

func formatOf(contentType string) format {
	// The media type is returned also when only a parameter is malformed; parameters change nothing.
	mediaType, _, _ := mime.ParseMediaType(contentType)
	switch mediaType {
	case protobufType:
		return protobufFormat
	case jsonType:
		return jsonFormat
	}
	return unknownFormat
}

func codingOf(values []string) (coding, error) {
	switch name := strings.ToLower(strings.TrimSpace(strings.Join(values, ","))); name {
	case "", "identity":
		return identity, nil
	case "gzip", "x-gzip":
		return gzipCoding, nil
	case "zstd":
		return zstdCoding, nil
	}
	return identity, unsupported(http.StatusUnsupportedMediaType, "content encoding must be one of identity, %s", supportedCodings)
}

// drain reads and drops what is left of the body of a refused request, which was answered by then. A client that waits to be
// asked for the body is not asked, one that was too slow before is not waited for again, and HTTP/2 knows how to end one
// request only.
func drain(w http.ResponseWriter, req *http.Request, refused *refusal) {
	if req.Header.Get("Expect") != "" || req.ProtoMajor > 1 || refused.reason == RefusedTimeout {
		return
	}
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(drainTimeout)) // fails on a connection that is gone
	if _, err := io.CopyN(io.Discard, req.Body, drainBytes); !errors.Is(err, io.EOF) {
		linger(w)
	}
}

// linger makes the server close the connection after the answer, but not before the client had time to read it: closed
// with bytes unread, it would be reset, and the answer lost. The server does so where a body was larger than a
// MaxBytesReader allows, and knows no other way to ask for it.
func linger(w http.ResponseWriter) {
	_, _ = http.MaxBytesReader(w, io.NopCloser(strings.NewReader("x")), 0).Read(make([]byte, 1)) // fails, as it should
}

// answerError writes refused as a google.rpc.Status in the encoding of the request; where that is unknown, as protobuf,
// unless the client says that it takes JSON.
func (h *httpHandler) answerError(w http.ResponseWriter, req *http.Request, refused *refusal) {
	control := http.NewResponseController(w)
	if refused.reason == RefusedTimeout {
		linger(w)
	}
	// The answer goes out at once, for those who read it while they send. Both calls fail only on a connection that is gone.
	_ = control.EnableFullDuplex()
	_ = control.SetWriteDeadline(time.Now().Add(answerTimeout))
	defer drain(w, req, refused)
	defer func() { _ = control.Flush() }()
	header := w.Header()
	if refused.after > 0 {
		header.Set("Retry-After", strconv.FormatInt(int64(math.Ceil(refused.after.Seconds())), 10))
	}
	switch refused.http {
	case http.StatusMethodNotAllowed:
		header.Set("Allow", http.MethodPost)
	case http.StatusUnsupportedMediaType:
		header.Set("Accept-Encoding", supportedCodings) // RFC 9110, 15.5.16
	case http.StatusUnauthorized:
		header.Set("WWW-Authenticate", "Bearer")
	}
	in := formatOf(req.Header.Get("Content-Type"))
	if in == unknownFormat && acceptsJSON(req.Header.Values("Accept")) {
		in = jsonFormat
	}
	message := &spb.Status{Code: int32(refused.code), Message: strings.ToValidUTF8(refused.text, "?")}
	if in == jsonFormat {
		if body, err := protojson.Marshal(message); err == nil {
			writeBody(w, refused.http, jsonType, body)
			return
		}
	}
	body, err := proto.Marshal(message)
	if err != nil {
		body = nil // cannot happen with valid UTF-8; the status line says the rest
	}
	writeBody(w, refused.http, protobufType, body)
}

func acceptsJSON(accept []string) bool {
	for item := range strings.SplitSeq(strings.Join(accept, ","), ",") {
		mediaType, _, _ := strings.Cut(item, ";")
		if strings.EqualFold(strings.TrimSpace(mediaType), jsonType) {
			return true
		}
	}
	return false
}

func writeBody(w http.ResponseWriter, status int, contentType string, body []byte) {
	w.Header().Set("Content-Type", contentType)
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
	_, _ = w.Write(body) // a client that is gone cannot be told
}
