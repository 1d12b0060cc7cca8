// Package sink is an OTLP destination for tests: it takes requests over HTTP and gRPC, counts the sequence numbers that
// otlpgen put into their records, and can be told to fail.
//
// It guarantees that a number is counted before its request is answered with success, and never for a request that was
// answered otherwise. It counts in memory only. It assumes that all of its traffic is made by otlpgen; what is not is
// answered as bad data and counted as such.
package sink

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"

	"google.golang.org/grpc"

	"ingest-agent/bench/freeport"
	"ingest-agent/bench/seqset"
)

// finishTimeout bounds how long Down waits for answers in hand, and for connections that never brought a request.
const finishTimeout = 2 * time.Second

// maxBodyBytes bounds a request, packed and unpacked.
const maxBodyBytes = 64 << 20

// Config of a sink.
type Config struct {
	HTTP string // host:port; empty: a free port of loopback
	GRPC string // host:port; empty: no gRPC; "auto": a free port of loopback
	// OnDuplicate, when set, is called for each number that arrives again, one at a time. To know when it came before costs four
	// bytes for each number.
	OnDuplicate func(Duplicate)
}

// Sink is a destination that can be down and up again on the same addresses. Its counts live as long as it does.
type Sink struct {
	http, grpc string
	tally      *tally
	script     script
	conns      connCount

	mu   sync.Mutex // held over Up and Down, which exclude each other
	life *life      // nil: down
}

// life is what exists between Up and Down.
type life struct {
	http    *http.Server
	grpc    *grpc.Server // nil: no gRPC
	release context.CancelFunc
	serving sync.WaitGroup
}

// New makes a sink, which is down.
func New(cfg Config) (*Sink, error) {
	free, err := freeport.Pick(2)
	if err != nil {
		return nil, fmt.Errorf("make sink: %w", err)
	}
	s := &Sink{http: cfg.HTTP, grpc: cfg.GRPC, tally: newTally(cfg.OnDuplicate)}
	if s.http == "" {
		s.http = free[0]
	}
	if s.grpc == "auto" {
		s.grpc = free[1]
	}
	s.conns.changed = make(chan struct{})
	return s, nil
}

// URL is the base URL of OTLP/HTTP, to which clients add /v1/<signal>.
func (s *Sink) URL() string { return "http://" + s.http }

// GRPCAddr is the host:port of OTLP/gRPC; empty if there is none.
func (s *Sink) GRPCAddr() string { return s.grpc }

// Up starts listening. It does nothing if the sink is up.
func (s *Sink) Up() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.life != nil {
		return nil
	}
	httpListener, err := net.Listen("tcp", s.http)
	if err != nil {
		return fmt.Errorf("start sink: %w", err)
	}
	ctx, release := context.WithCancel(context.Background())
	l := &life{release: release, http: &http.Server{
		Handler:           s.handler(),
		ReadHeaderTimeout: finishTimeout,
		BaseContext:       func(net.Listener) context.Context { return ctx },
		ConnState:         s.conns.track,
	}}
	if s.grpc != "" {
		grpcListener, err := net.Listen("tcp", s.grpc)
		if err != nil {
			release()
			return errors.Join(fmt.Errorf("start sink: %w", err), httpListener.Close())
		}
		l.grpc = s.grpcServer(ctx)
		// Serve only ends by Down, and its error then says just that.
		l.serving.Go(func() { _ = l.grpc.Serve(grpcListener) })
	}
	l.serving.Go(func() { _ = l.http.Serve(httpListener) })
	s.life = l
	return nil
}

// Down stops listening, and returns when no request is in hand. Requests in hand are answered first, or, with cut, lose
// their connection: they may have been counted all the same. Requests that hang or are delayed are cut always,
// uncounted.
func (s *Sink) Down(cut bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.life
	if l == nil {
		return nil
	}
	s.life = nil
	l.release()
	ctx, cancel := context.WithTimeout(context.Background(), finishTimeout)
	defer cancel()
	var err error
	if !cut {
		err = l.http.Shutdown(ctx)
	}
	if cut || errors.Is(err, context.DeadlineExceeded) {
		err = l.http.Close()
	}
	if l.grpc != nil {
		stopGRPC(ctx, l.grpc, cut)
	}
	l.serving.Wait()
	if err != nil {
		return fmt.Errorf("stop sink: %w", err)
	}
	return s.conns.waitNone(ctx)
}

func stopGRPC(ctx context.Context, server *grpc.Server, cut bool) {
	if !cut {
		forget := context.AfterFunc(ctx, server.Stop)
		server.GracefulStop()
		forget()
	}
	server.Stop()
}

// Quiesce returns once everything that a client had sent over HTTP before it died is counted: no connection is waiting
// to be accepted and none is open. It must be called only when all clients are gone.
func (s *Sink) Quiesce(ctx context.Context) error {
	s.mu.Lock()
	up := s.life != nil
	s.mu.Unlock()
	if up {
		// Connections are accepted in order: when this one has been, so have all that came before it.
		var d net.Dialer
		c, err := d.DialContext(ctx, "tcp", s.http)
		if err != nil {
			return fmt.Errorf("quiesce sink: %w", err)
		}
		accepted := s.conns.waitAddr(ctx, c.LocalAddr().String())
		if err := errors.Join(accepted, c.Close()); err != nil {
			return fmt.Errorf("quiesce sink: %w", err)
		}
	}
	return s.conns.waitNone(ctx)
}

// Behave sets how requests are answered from now on.
func (s *Sink) Behave(b Behavior) { s.script.set(b) }

// Stats are the counts so far.
func (s *Sink) Stats() Stats { return s.tally.snapshot() }

// Received is the set of numbers that arrived. It grows on.
func (s *Sink) Received() *seqset.Set { return &s.tally.received }

// Now is the sink's clock, which starts when the sink is made: that of Duplicate and DeliveredBetween.
func (s *Sink) Now() time.Duration { return s.tally.now() }

// DeliveredBetween is how many records arrived from one moment of the sink's clock to another, at a resolution of 1 ms.
func (s *Sink) DeliveredBetween(from, to time.Duration) uint64 { return s.tally.between(from, to) }

// connCount follows the connections of the HTTP server.
type connCount struct {
	mu      sync.Mutex
	open    map[string]bool // by remote address
	changed chan struct{}   // closed at each change
}

func (c *connCount) track(conn net.Conn, state http.ConnState) {
	addr := conn.RemoteAddr().String()
	c.mu.Lock()
	defer c.mu.Unlock()
	switch state {
	case http.StateNew:
		if c.open == nil {
			c.open = map[string]bool{}
		}
		c.open[addr] = true
	case http.StateClosed, http.StateHijacked:
		delete(c.open, addr)
	default:
		return
	}
	close(c.changed)
	c.changed = make(chan struct{})
}

func (c *connCount) waitNone(ctx context.Context) error {
	return c.wait(ctx, func() bool { return len(c.open) == 0 })
}

func (c *connCount) waitAddr(ctx context.Context, addr string) error {
	return c.wait(ctx, func() bool { return c.open[addr] })
}

func (c *connCount) wait(ctx context.Context, done func() bool) error {
	for {
		c.mu.Lock()
		ok, changed := done(), c.changed
		c.mu.Unlock()
		if ok {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("wait for connections: %w", ctx.Err())
		}
	}
}
