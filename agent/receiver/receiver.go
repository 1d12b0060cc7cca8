// Package receiver takes OTLP in over gRPC and HTTP and hands each request to a store.
//
// What it guarantees:
//   - A success answer is sent only after Store.Accept returned nil, which is the commit point. A request without records is
//     answered with success and not stored.
//   - The store gets the protobuf bytes as the client sent them (inflated), unknown fields included. JSON is turned into
//     protobuf by pdata. A request is handed over whole, after it was read and checked to the end, or not at all.
//   - The answers are those of the OTLP specification. A delay (RetryInfo, Retry-After) is always given where a retry
//     helps and never where it cannot. No answer holds a path, a host name or a stack.
//   - Memory is bounded (limits.go) for any number of clients and whatever they send, before a tenant is even known.
//   - After Shutdown no goroutine of the package is left, unless the store keeps one beyond the deadline, which is said.
//
// What it assumes: the store keeps the contract of Store; the tenant resolver does not block.
package receiver

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	"google.golang.org/grpc"
)

// Options are what a receiver is built from. They do not change while it runs, but for Settings.
type Options struct {
	GRPCEndpoint string      // host:port; empty: no gRPC
	HTTPEndpoint string      // host:port; empty: no HTTP
	GRPCTLS      *tls.Config // nil: plain
	HTTPTLS      *tls.Config // nil: plain; its NextProtos say whether HTTP/2 is spoken
	Settings     Settings

	Store    Store
	Observer Observer     // may be nil
	Ready    func() error // nil if a request would now be made durable; answers the gRPC health service; may be nil
	Log      *zap.Logger  // may be nil
}

// Settings can be replaced while the receiver runs. A request keeps those that it began with.
type Settings struct {
	// GRPCMaxRequestSizeBytes bounds a gRPC message, as sent and inflated. The server is built with the first value, so
	// that a later one takes effect up to that size only.
	GRPCMaxRequestSizeBytes int
	// HTTPMaxRequestSizeBytes bounds an HTTP body, as sent, inflated, and as protobuf.
	HTTPMaxRequestSizeBytes int
	// ReadTimeout is how long a client may take to send one request, on either transport.
	ReadTimeout time.Duration
	// Tenant says whose a request is. nil: everything belongs to DefaultTenant.
	Tenant TenantFunc
	// TenantBytesPerSecond bounds what is accepted of a tenant, in bytes of protobuf. Who is not in it has no bound.
	TenantBytesPerSecond map[string]int64
}

// Addrs are the addresses that are listened on; nil for a transport that is off.
type Addrs struct {
	GRPC net.Addr
	HTTP net.Addr
}

// Receiver serves OTLP. Its methods may be called from any goroutine, Start and Shutdown once each.
type Receiver struct {
	opts      Options
	live      atomic.Pointer[live]
	inHand    *inHand
	log       *quietLog
	grpc      *grpc.Server
	http      *http.Server
	listeners []*conns // set by Start
	fatal     chan error
	serving   sync.WaitGroup
}

// New builds a receiver that does not listen yet.
func New(opts Options) (*Receiver, error) {
	if opts.Store == nil {
		return nil, errors.New("build receiver: no store")
	}
	if opts.Observer == nil {
		opts.Observer = nobody{}
	}
	if opts.Ready == nil {
		opts.Ready = func() error { return nil }
	}
	if opts.Log == nil {
		opts.Log = zap.NewNop()
	}
	r := &Receiver{opts: opts, inHand: newInHand(), log: newQuietLog(opts.Log), fatal: make(chan error, 2)}
	if err := r.Apply(opts.Settings); err != nil {
		return nil, err
	}
	r.grpc = r.newGRPCServer()
	r.http = r.newHTTPServer()
	return r, nil
}

// Apply replaces the settings for requests that begin from now on. On an error the old ones stay.
func (r *Receiver) Apply(s Settings) error {
	l, err := newLive(s)
	if err != nil {
		return fmt.Errorf("apply receiver settings: %w", err)
	}
	r.live.Store(l)
	return nil
}

// Start listens and serves in the background. On an error nothing is left open.
func (r *Receiver) Start() (Addrs, error) {
	grpcListener, err := listen("gRPC", r.opts.GRPCEndpoint)
	if err != nil {
		return Addrs{}, err
	}
	httpListener, err := listen("HTTP", r.opts.HTTPEndpoint)
	if err != nil {
		if grpcListener != nil {
			_ = grpcListener.Close() // never served
		}
		return Addrs{}, err
	}
	serveHTTP := r.http.Serve
	if r.opts.HTTPTLS != nil {
		serveHTTP = func(l net.Listener) error { return r.http.ServeTLS(l, "", "") }
	}
	return Addrs{
		GRPC: r.serve("gRPC", grpcListener, r.grpc.Serve),
		HTTP: r.serve("HTTP", httpListener, serveHTTP),
	}, nil
}

// listen returns nil for an empty endpoint.
func listen(name, endpoint string) (net.Listener, error) {
	if endpoint == "" {
		return nil, nil
	}
	l, err := new(net.ListenConfig).Listen(context.Background(), "tcp", endpoint) // nothing to wait for
	if err != nil {
		return nil, fmt.Errorf("listen for %s: %w", name, err)
	}
	return l, nil
}

// serve runs a server on l, if there is one, until it is stopped or fails.
func (r *Receiver) serve(name string, l net.Listener, serve func(net.Listener) error) net.Addr {
	if l == nil {
		return nil
	}
	listener := newConns(l, func() { r.log.connectionClosed(name) })
	r.listeners = append(r.listeners, listener)
	r.serving.Go(func() {
		err := serve(listener)
		if err == nil || errors.Is(err, http.ErrServerClosed) || errors.Is(err, grpc.ErrServerStopped) {
			return
		}
		r.fatal <- fmt.Errorf("serve %s: %w", name, err) // never blocks: one value per listener, room for both
	})
	return l.Addr()
}

// Fatal yields an error when a listener fails while the receiver should be serving. The caller should then shut it down.
func (r *Receiver) Fatal() <-chan error { return r.fatal }

// Shutdown stops listening, refuses requests that begin from now on, waits for those in hand, and joins every goroutine.
// When ctx ends first, connections are cut, and the requests in hand get forcedWait to notice. An error says that some
// were cut off or are still with the store: what they came to then is the store's business, no answer was sent.
func (r *Receiver) Shutdown(ctx context.Context) error {
	r.inHand.stop()
	for _, l := range r.listeners {
		l.closeUnused()
	}
	graceful := make(chan struct{})
	go func() { // joined below
		defer close(graceful)
		var stops sync.WaitGroup
		stops.Go(func() { _ = r.http.Shutdown(ctx) }) // its only error is that of ctx, which is looked at below
		stops.Go(r.grpc.GracefulStop)
		stops.Wait()
	}()
	cut := 0
	select {
	case <-graceful:
	case <-ctx.Done():
		cut = r.inHand.count()
		if err := r.force(ctx); err != nil {
			return err
		}
		<-graceful
	}
	<-r.inHand.idle
	r.serving.Wait()
	if cut > 0 {
		return fmt.Errorf("shut down receiver: %d requests were cut off: %w", cut, ctx.Err())
	}
	return nil
}

// force cuts all connections and waits a little for the requests in hand.
func (r *Receiver) force(ctx context.Context) error {
	for _, l := range r.listeners {
		l.closeAll()
	}
	_ = r.http.Close() // closing what is given up
	r.grpc.Stop()      // waits for connections only, not for requests
	timer := time.NewTimer(forcedWait)
	defer timer.Stop()
	select {
	case <-r.inHand.idle:
		return nil
	case <-timer.C:
		return fmt.Errorf("shut down receiver: %d requests are still with the store: %w", r.inHand.count(), ctx.Err())
	}
}
