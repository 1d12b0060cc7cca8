package export

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"golang.org/x/net/http/httpguts"

	"ingest-agent/segment"
)

const (
	// maxAnswerBytes bounds what is read of an answer's body, and of its header.
	maxAnswerBytes = 64 << 10

	dialTimeout         = 10 * time.Second
	tlsHandshakeTimeout = 10 * time.Second
	tcpKeepAlive        = 30 * time.Second
	idleConnTimeout     = 90 * time.Second

	// An HTTP/2 connection that went dead would else take one request after the other into its timeout.
	http2PingAfter   = 15 * time.Second
	http2PingTimeout = 15 * time.Second
)

var errNoAnswer = errors.New("no answer within the timeout")

// isOwnHeader reports whether a header can not be configured: it is set for each request from what is in it, or belongs to
// the connection (RFC 9110, 7.6.1), where the transport would refuse it with each request.
func isOwnHeader(canonical string) bool {
	switch canonical {
	case "Content-Type", "Content-Encoding", "Content-Length", "Transfer-Encoding", "Connection", "Proxy-Connection",
		"Keep-Alive", "Te", "Trailer", "Upgrade", "Expect", http.CanonicalHeaderKey(FrameIDsHeader):
		return true
	}
	return false
}

// httpSink delivers over OTLP/HTTP in protobuf encoding.
type httpSink struct {
	transport *http.Transport // used without http.Client, which follows redirects
	urls      [segment.NumSignals]*url.URL
	host      string // from the configured headers, "" if none
	header    http.Header
	payloads  payloads
	timeout   time.Duration
	retry     []int
	frameIDs  bool
}

func newHTTPSink(o Options) (*httpSink, error) {
	if err := o.checkWire(); err != nil {
		return nil, err
	}
	s := &httpSink{payloads: payloads{compression: o.Compression}, timeout: o.Timeout, frameIDs: o.FrameIDs}
	var err error
	if s.urls, err = signalURLs(o.Endpoint); err != nil {
		return nil, err
	}
	if s.header, s.host, err = requestHeader(&o, s.urls[0].User); err != nil {
		return nil, err
	}
	for _, code := range o.RetryCodes {
		if code < 300 || code > 599 || code == http.StatusRequestEntityTooLarge {
			return nil, fmt.Errorf("retry_codes: %d is not an HTTP status from 300 to 599 other than 413", code)
		}
	}
	s.retry = append([]int{http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable,
		http.StatusGatewayTimeout}, o.RetryCodes...)
	tlsConfig, err := clientTLS(&o.TLS, s.urls[0].Hostname())
	if err != nil {
		return nil, err
	}
	dialer := net.Dialer{Timeout: dialTimeout, KeepAlive: tcpKeepAlive}
	s.transport = &http.Transport{
		Proxy:                  http.ProxyFromEnvironment,
		DialContext:            dialer.DialContext,
		TLSClientConfig:        tlsConfig,
		TLSHandshakeTimeout:    tlsHandshakeTimeout,
		ForceAttemptHTTP2:      true,
		HTTP2:                  &http.HTTP2Config{SendPingTimeout: http2PingAfter, PingTimeout: http2PingTimeout},
		MaxIdleConns:           o.InFlight,
		MaxIdleConnsPerHost:    o.InFlight,
		IdleConnTimeout:        idleConnTimeout,
		DisableCompression:     true, // answers are small, and their bound is easier to keep
		MaxResponseHeaderBytes: maxAnswerBytes,
	}
	return s, nil
}

// signalURLs appends /v1/<signal> to the path of the endpoint as the Collector does; a query is kept.
func signalURLs(endpoint string) (urls [segment.NumSignals]*url.URL, err error) {
	u, err := url.Parse(endpoint)
	if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Hostname() == "" || strings.Contains(endpoint, "#") {
		// The endpoint may hold a password, so it is not shown.
		return urls, errors.New("endpoint: want http://host[:port][/path] or https://…")
	}
	base, query, hasQuery := strings.Cut(endpoint, "?")
	for _, signal := range segment.Signals {
		text := strings.TrimSuffix(base, "/") + "/v1/" + signal.String()
		if hasQuery {
			text += "?" + query
		}
		if urls[signal.Index()], err = url.Parse(text); err != nil {
			return urls, errors.New("endpoint: can not be extended by a path")
		}
	}
	return urls, nil
}

// requestHeader is what all requests have in common. The transport would refuse a bad name or value with each request,
// and the lane would wait for ever.
func requestHeader(o *Options, user *url.Userinfo) (http.Header, string, error) {
	header, host := http.Header{}, ""
	if user != nil {
		password, _ := user.Password()
		header.Set("Authorization", "Basic "+base64.StdEncoding.EncodeToString([]byte(user.Username()+":"+password)))
	}
	header.Set("User-Agent", o.UserAgent)
	for name, value := range o.Headers {
		switch {
		case !httpguts.ValidHeaderFieldName(name) || !httpguts.ValidHeaderFieldValue(value):
			return nil, "", fmt.Errorf("headers: %q is not a valid name, or its value has a forbidden character", name)
		case isOwnHeader(http.CanonicalHeaderKey(name)):
			return nil, "", fmt.Errorf("headers: %s is set by the agent", name)
		case http.CanonicalHeaderKey(name) == "Host":
			host = value
		case http.CanonicalHeaderKey(name) == "User-Agent":
			header.Set(name, userAgent(value, o.UserAgent))
		default:
			header.Set(name, value)
		}
	}
	header.Set("Content-Type", contentProtobuf)
	if o.Compression == CompressionGzip || o.Compression == CompressionZstd {
		header.Set("Content-Encoding", string(o.Compression))
	}
	return header, host, nil
}

// userAgent names a product before our own name (OTLP specification, "User Agent").
func userAgent(product, own string) string { return strings.TrimSpace(product + " " + own) }

// Deliver implements segment.Sink with one POST.
//
// Retry are the statuses 429, 502, 503 and 504 (OTLP specification, "Retryable Response Codes"), those of retry_codes, and
// each attempt that ended without a whole answer. 413 is TooLarge. All else is Refused, also a redirect: it is not
// followed, since that would send the data where nobody configured it, or turn the POST into a GET which succeeds and
// delivers nothing.
func (s *httpSink) Deliver(ctx context.Context, r *segment.Request) segment.Outcome {
	if !r.Signal.Valid() {
		return refused(fmt.Errorf("send request: %v is not a signal", r.Signal))
	}
	header := s.header.Clone()
	if s.frameIDs {
		header.Set(FrameIDsHeader, segment.FrameIDs(r.Frames))
	}
	ctx, cancel := context.WithTimeoutCause(ctx, s.timeout, errNoAnswer)
	defer cancel()
	body, err := s.payloads.make(r)
	if err != nil {
		return retry(fmt.Errorf("encode request: %w", err))
	}
	defer s.payloads.release(body)

	u := s.urls[r.Signal.Index()]
	request := (&http.Request{
		Method: http.MethodPost, URL: u, Host: s.host, Header: header,
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		ContentLength: int64(body.size()),
		// There is no GetBody: the transport could use it to send a request again that the destination already has.
		Body: body,
	}).WithContext(ctx)
	if request.ContentLength == 0 {
		request.Body = http.NoBody // a length of 0 with a body would mean that it is not known
	}
	response, err := s.transport.RoundTrip(request)
	if err != nil {
		return retry(fmt.Errorf("send request to %s: %w", u.Host, because(ctx, err)))
	}
	defer response.Body.Close()
	answer, err := readAnswer(response)
	if err != nil {
		err = because(ctx, err)
	}
	return s.judge(r, response, answer, body, err)
}

// judge turns an answer into an outcome. answerErr says that not all of the answer's body could be read.
func (s *httpSink) judge(r *segment.Request, response *http.Response, answer []byte, body *payload, answerErr error) segment.Outcome {
	status := response.StatusCode
	switch {
	case status >= 200 && status <= 299:
		if answerErr != nil {
			return retry(fmt.Errorf("read answer with HTTP %d: %w", status, answerErr))
		}
		if body.size() > 0 {
			return retry(fmt.Errorf("HTTP %d before the whole request was sent: it can not be about all of it", status))
		}
		return delivered(r, response.Header.Get("Content-Type"), answer)
	case status == http.StatusSwitchingProtocols:
		return retry(errors.New("HTTP 101 without being asked for: the request is not answered"))
	case status == http.StatusRequestEntityTooLarge:
		return segment.Outcome{Verdict: segment.TooLarge, Err: statusError(response, answer)}
	case slices.Contains(s.retry, status):
		out := retry(statusError(response, answer))
		out.RetryAfter = retryAfter(response.Header, time.Now())
		return out
	}
	return refused(statusError(response, answer))
}

// readAnswer reads at most maxAnswerBytes. What is longer is left, and its connection is given up with it.
func readAnswer(response *http.Response) ([]byte, error) {
	if response.StatusCode == http.StatusSwitchingProtocols {
		return nil, nil // what follows is no body but the connection itself, which ends with no timeout
	}
	answer, err := io.ReadAll(io.LimitReader(response.Body, maxAnswerBytes+1))
	if len(answer) > maxAnswerBytes {
		return nil, nil
	}
	return answer, err
}

// because puts the reason for the end of ctx in the place of a plain "context deadline exceeded".
func because(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// Close gives back the idle connections.
func (s *httpSink) Close() error {
	s.transport.CloseIdleConnections()
	return nil
}
