package s3

import (
	"context"
	"io"
	"net"
	"net/http"
	"time"
)

const (
	// DefaultRequestTimeout is how long a request may take beside the time for its bytes.
	DefaultRequestTimeout = 30 * time.Second
	// minBytesPerSecond is the lowest speed at which bodies are waited for: 16 MiB in 128 s.
	minBytesPerSecond = 128 << 10
	// maxConnections bounds the connections to one bucket; calls beyond it wait for one.
	maxConnections = 64
	dialTimeout    = 10 * time.Second
	keepAlive      = 15 * time.Second
	// idleTimeout is below what load balancers keep idle connections for, so that they are seldom closed under a request.
	idleTimeout = 50 * time.Second
)

// errTooSlow ends a request that stands still, or is slower than minBytesPerSecond.
var errTooSlow = &timeoutError{}

// timeoutError says to the SDK that another try may help.
type timeoutError struct{}

func (*timeoutError) Error() string { return "request timed out" }
func (*timeoutError) Timeout() bool { return true }

// pool bounds and keeps connections.
func pool(t *http.Transport) {
	t.DialContext = (&net.Dialer{Timeout: dialTimeout, KeepAlive: keepAlive}).DialContext
	t.TLSHandshakeTimeout = dialTimeout
	t.MaxConnsPerHost = maxConnections
	t.MaxIdleConnsPerHost = maxConnections
	t.MaxIdleConns = maxConnections
	t.IdleConnTimeout = idleTimeout
	t.ResponseHeaderTimeout = 0 // the budget of client.Do says it
	t.DisableCompression = true // a range of a body is a range of its bytes as stored
	// With HTTP/2 all requests would share one connection, and stand still together.
	t.ForceAttemptHTTP2 = false
	t.Protocols = new(http.Protocols)
	t.Protocols.SetHTTP1(true)
}

// client sends requests with a deadline each.
type client struct {
	http    *http.Client
	timeout time.Duration
}

func newClient(transport http.RoundTripper, timeout time.Duration) *client {
	return &client{timeout: timeout, http: &http.Client{
		Transport: transport,
		// A redirect is a wrong region, and what would be sent to another host is not signed for it.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

// budget is how long it may take to move so many bytes. An unknown length counts as none.
func (c *client) budget(sizeBytes int64) time.Duration {
	return c.timeout + time.Duration(max(0, sizeBytes))*time.Second/minBytesPerSecond
}

// Do sends a request. It and every answer have to keep within budget; the time that the caller takes between reads of the
// answer does not count.
func (c *client) Do(req *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancelCause(req.Context())
	timer := time.AfterFunc(c.budget(req.ContentLength), func() { cancel(errTooSlow) })
	req = req.WithContext(ctx)
	if req.Body != nil && req.Body != http.NoBody {
		// The SDK closes the body once there is an answer. Its WriteTo then fails, on which net/http, if it is slower than the
		// store, closes the connection under the answer. Its Read does not.
		req.Body = struct{ io.ReadCloser }{req.Body}
	}
	resp, err := c.http.Do(req) //nolint:gosec // to the endpoint that the operator has named
	timer.Stop()
	if err != nil {
		cancel(nil)
		return nil, err //nolint:wrapcheck // explain says what failed
	}
	resp.Body = &timedBody{ReadCloser: resp.Body, ctx: ctx, cancel: cancel, timer: timer, client: c}
	return resp, nil
}

// timedBody is an answer's body that fails with errTooSlow when one has waited too long for its bytes.
type timedBody struct {
	io.ReadCloser
	ctx     context.Context //nolint:containedctx // that of the request, which ends with the body
	cancel  context.CancelCauseFunc
	timer   *time.Timer
	client  *client
	waited  time.Duration
	gotSize int64
}

func (b *timedBody) Read(p []byte) (int, error) {
	start := time.Now()
	b.timer.Reset(b.client.budget(b.gotSize) - b.waited)
	n, err := b.ReadCloser.Read(p)
	b.timer.Stop()
	b.waited += time.Since(start)
	b.gotSize += int64(n)
	return n, err //nolint:wrapcheck // io.EOF must stay what it is
}

func (b *timedBody) Close() error {
	err := b.ReadCloser.Close()
	b.timer.Stop()
	b.cancel(nil)
	return err //nolint:wrapcheck // nothing to add
}
