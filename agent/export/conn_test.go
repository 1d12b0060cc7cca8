package export

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/peer"

	"ingest-agent/segment"
)

// serveH2C starts a server that speaks HTTP/2 without TLS, and returns its host:port.
func serveH2C(t *testing.T, h http.HandlerFunc) (addr string) {
	t.Helper()
	srv := httptest.NewUnstartedServer(h)
	srv.Config.Protocols = new(http.Protocols)
	srv.Config.Protocols.SetUnencryptedHTTP2(true)
	srv.Start()
	t.Cleanup(srv.Close)
	return strings.TrimPrefix(srv.URL, "http://")
}

// recovery is far above what it takes to deliver again, and below the longest delay between two attempts of a drain, so
// that a connection's own pause never adds to it.
const recovery = 30 * time.Second

// deliverAgain repeats one attempt as a drain does until it is Delivered. Until then, only Retry will do. It returns how
// many attempts it took.
func deliverAgain(t testing.TB, sink Sink, r *segment.Request) (attempts int) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(recovery); time.Now().Before(deadline); <-tick.C {
		attempts++
		switch out := sink.Deliver(t.Context(), r); out.Verdict {
		case segment.Delivered:
			return attempts
		case segment.Retry:
		default:
			t.Fatalf("verdict %d: %v", out.Verdict, out.Err)
		}
	}
	t.Fatalf("not delivered within %v", recovery)
	return attempts
}

// cutServer hands the first connection to cut, and answers each request on the others with 200.
type cutServer struct {
	url      string
	requests collector[string] // paths of those that came in whole, also to cut
}

func newCutServer(t *testing.T, cut func(c *net.TCPConn, in *bufio.Reader, whole func(*http.Request))) *cutServer {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &cutServer{url: "http://" + l.Addr().String()}
	whole := func(r *http.Request) {
		if _, err := io.Copy(io.Discard, r.Body); err == nil {
			s.requests.add(r.URL.Path)
		}
	}
	var serving sync.WaitGroup
	t.Cleanup(func() { _ = l.Close(); serving.Wait() })
	serving.Go(func() {
		for first := true; ; first = false {
			c, err := l.Accept()
			if err != nil {
				return
			}
			serving.Go(func() {
				defer c.Close()
				in := bufio.NewReader(c)
				if first {
					cut(c.(*net.TCPConn), in, whole)
					return
				}
				for {
					r, err := http.ReadRequest(in)
					if err != nil {
						return
					}
					whole(r)
					_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
				}
			})
		}
	})
	return s
}

// However a connection ends, the attempt is one to be repeated, it was sent once, and the next one arrives.
func TestHTTPConnectionsThatEnd(t *testing.T) {
	big := request(t, segment.Logs, 1, 1)
	big.Frames[0].Body = append(big.Frames[0].Body, make([]byte, 8<<20)...)
	small := request(t, segment.Logs, 1, 1)
	reset := func(c *net.TCPConn) { _ = c.SetLinger(0) } // Close sends RST
	for name, test := range map[string]struct {
		request *segment.Request
		whole   int // requests that came in whole at the first connection
		cut     func(c *net.TCPConn, in *bufio.Reader, whole func(*http.Request))
	}{
		"closed before the request": {small, 0, func(*net.TCPConn, *bufio.Reader, func(*http.Request)) {}},
		"reset before the request":  {small, 0, func(c *net.TCPConn, _ *bufio.Reader, _ func(*http.Request)) { reset(c) }},
		"reset after the header": {small, 0, func(c *net.TCPConn, in *bufio.Reader, _ func(*http.Request)) {
			_, _ = http.ReadRequest(in)
			reset(c)
		}},
		"reset in the body": {big, 0, func(c *net.TCPConn, in *bufio.Reader, _ func(*http.Request)) {
			if r, err := http.ReadRequest(in); err == nil {
				_, _ = io.CopyN(io.Discard, r.Body, 1<<20)
			}
			reset(c)
		}},
		"closed in the body": {big, 0, func(_ *net.TCPConn, in *bufio.Reader, _ func(*http.Request)) {
			if r, err := http.ReadRequest(in); err == nil {
				_, _ = io.CopyN(io.Discard, r.Body, 1<<20)
			}
		}},
		"half-closed in place of the answer": {small, 1, func(c *net.TCPConn, in *bufio.Reader, whole func(*http.Request)) {
			r, _ := http.ReadRequest(in)
			whole(r)
			_ = c.CloseWrite()
			_, _ = in.ReadByte() // until the client has closed, too
		}},
		"half-closed in the body": {big, 0, func(c *net.TCPConn, in *bufio.Reader, _ func(*http.Request)) {
			_, _ = http.ReadRequest(in)
			_ = c.CloseWrite()
			_, _ = in.ReadByte()
		}},
		"reset in the answer": {small, 1, func(c *net.TCPConn, in *bufio.Reader, whole func(*http.Request)) {
			r, _ := http.ReadRequest(in)
			whole(r)
			_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Type: application/x-protobuf\r\nContent-Length: 9\r\n\r\n123")
			reset(c)
		}},
		"closed behind the status line": {small, 1, func(c *net.TCPConn, in *bufio.Reader, whole func(*http.Request)) {
			r, _ := http.ReadRequest(in)
			whole(r)
			_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\n")
		}},
		"closed after 100 Continue": {small, 1, func(c *net.TCPConn, in *bufio.Reader, whole func(*http.Request)) {
			r, _ := http.ReadRequest(in)
			_, _ = io.WriteString(c, "HTTP/1.1 100 Continue\r\n\r\n")
			whole(r)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			srv := newCutServer(t, test.cut)
			sink := newTestSink(t, httpOptions(srv.url))
			wantVerdict(t, sink.Deliver(t.Context(), test.request), segment.Retry)
			wantVerdict(t, sink.Deliver(t.Context(), test.request), segment.Delivered)
			if n := len(srv.requests.get()); n != test.whole+1 {
				t.Errorf("%d whole requests, want %d", n, test.whole+1)
			}
		})
	}
}

// A server that closes a connection after its answer without saying so meets the next request on its way. Each attempt comes
// to one request at most, and none is taken for a refusal.
func TestHTTPKeepAliveClosedUnderRequests(t *testing.T) {
	var requests held[map[string]int]
	requests.set(map[string]int{})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var serving sync.WaitGroup
	t.Cleanup(func() { _ = l.Close(); serving.Wait() })
	serving.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			serving.Go(func() {
				defer c.Close()
				r, err := http.ReadRequest(bufio.NewReader(c))
				if err != nil {
					return
				}
				body, err := io.ReadAll(r.Body)
				if err != nil {
					return
				}
				requests.mu.Lock()
				requests.now[string(body)]++
				requests.mu.Unlock()
				_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
			})
		}
	})
	o := httpOptions("http://" + l.Addr().String())
	o.Headers = map[string]string{"Idempotency-Key": "k"} // by which the transport would hold them for repeatable
	sink := newTestSink(t, o)
	const attempts = 300
	delivered := 0
	for i := range attempts {
		r := requestNamed(t, fmt.Sprint(i))
		switch out := sink.Deliver(t.Context(), r); out.Verdict {
		case segment.Delivered:
			delivered++
		case segment.Retry:
		default:
			t.Fatalf("verdict %d: %v", out.Verdict, out.Err)
		}
	}
	got := requests.get()
	for body, n := range got {
		if n > 1 {
			t.Errorf("%d requests for one attempt: %q", n, body)
		}
	}
	if delivered == 0 || len(got) < delivered {
		t.Errorf("%d delivered, %d arrived", delivered, len(got))
	}
}

// Load balancers end connections after a time; a grpc server says GOAWAY and cuts what is not done after a grace. The
// attempts beside and behind that are not disturbed.
func TestGRPCConnectionAge(t *testing.T) {
	const age, connections = 30 * time.Millisecond, 6
	var mu sync.Mutex
	calls, peers := map[string]int{}, map[string]bool{}
	addr := serveGRPC(t, func(ctx context.Context, c grpcCall) ([]byte, error) {
		from, _ := peer.FromContext(ctx)
		mu.Lock()
		defer mu.Unlock()
		calls[string(c.body)]++
		peers[from.Addr.String()] = true
		if len(calls) == 3 { // is cut
			mu.Unlock()
			<-ctx.Done()
			mu.Lock()
		}
		return nil, nil
	}, grpc.KeepaliveParams(keepalive.ServerParameters{MaxConnectionAge: age, MaxConnectionAgeGrace: age}))
	sink := newTestSink(t, grpcOptions(addr))
	seen := func() int { mu.Lock(); defer mu.Unlock(); return len(peers) }
	var outcomes collector[segment.Verdict]
	var senders sync.WaitGroup
	deadline := time.Now().Add(recovery)
	for sender := range 4 {
		senders.Go(func() {
			for i := 0; i == 0 || (seen() < connections && time.Now().Before(deadline)); i++ {
				out := sink.Deliver(context.Background(), requestNamed(t, fmt.Sprintf("%d-%d", sender, i)))
				if out.Verdict != segment.Delivered && out.Verdict != segment.Retry {
					t.Errorf("verdict %d: %v", out.Verdict, out.Err)
				}
				outcomes.add(out.Verdict)
			}
		})
	}
	senders.Wait()
	mu.Lock()
	defer mu.Unlock()
	retries := 0
	for _, v := range outcomes.get() {
		if v == segment.Retry {
			retries++
		}
	}
	if len(calls) > len(outcomes.get()) || retries == 0 || retries > connections || len(peers) < connections {
		t.Errorf("%d attempts, %d of them to be repeated, %d different calls, %d connections", len(outcomes.get()), retries, len(calls), len(peers))
	}
	for _, n := range calls {
		if n > 1 {
			t.Errorf("%d calls for one attempt", n)
		}
	}
}

func TestDestinationRestartsOnItsPort(t *testing.T) {
	serveHTTP := func(t *testing.T, l net.Listener) func() {
		srv := &http.Server{Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) })}
		var serving sync.WaitGroup
		serving.Go(func() { _ = srv.Serve(l) })
		return func() { _ = srv.Close(); serving.Wait() }
	}
	serveGRPC := func(t *testing.T, l net.Listener) func() {
		handle := func(_ any, s grpc.ServerStream) error {
			var body []byte
			if err := s.RecvMsg(&body); err != nil {
				return err
			}
			return s.SendMsg([]byte(nil))
		}
		srv := grpc.NewServer(grpc.ForceServerCodecV2(bytesCodec{}), grpc.UnknownServiceHandler(handle))
		var serving sync.WaitGroup
		serving.Go(func() { _ = srv.Serve(l) })
		return func() { srv.Stop(); serving.Wait() }
	}
	for name, start := range map[string]func(*testing.T, net.Listener) func(){"HTTP": serveHTTP, "gRPC": serveGRPC} {
		t.Run(name, func(t *testing.T) {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			addr := l.Addr().String()
			o := httpOptions("http://" + addr)
			if name == "gRPC" {
				o = grpcOptions(addr)
			}
			sink := newTestSink(t, o)
			for range 3 {
				stop := start(t, l)
				deliverAgain(t, sink, request(t, segment.Logs, 1, 1))
				stop()
				for range 20 { // the pauses of a transport get longer with each failure
					wantVerdict(t, sink.Deliver(t.Context(), request(t, segment.Logs, 1, 1)), segment.Retry)
				}
				if l, err = net.Listen("tcp", addr); err != nil {
					t.Skipf("somebody took the port in the meantime: %v", err)
				}
			}
			_ = l.Close()
		})
	}
}

// A name can have an address where nothing answers, in any place.
func TestNameWithADeadAddress(t *testing.T) {
	srv := serve(t, func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) })
	_, port, err := net.SplitHostPort(srv.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	addr := serveGRPC(t, func(context.Context, grpcCall) ([]byte, error) { return nil, nil })
	_, grpcPort, err := net.SplitHostPort(addr)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"127-0-0-2.127-0-0-1.test", "127-0-0-1.127-0-0-2.test"} {
		for _, o := range []Options{httpOptions("http://" + net.JoinHostPort(name, port)), grpcOptions(net.JoinHostPort(name, grpcPort))} {
			wantVerdict(t, newTestSink(t, o).Deliver(t.Context(), request(t, segment.Logs, 1, 1)), segment.Delivered)
		}
	}
	for _, o := range []Options{httpOptions("http://absent.example:" + port), grpcOptions("absent.example:" + grpcPort)} {
		out := newTestSink(t, o).Deliver(t.Context(), request(t, segment.Logs, 1, 1))
		wantVerdict(t, out, segment.Retry)
		if errors.Is(out.Err, errNoAnswer) {
			t.Errorf("%s: waited for an answer: %v", o.Type, out.Err)
		}
	}
}
