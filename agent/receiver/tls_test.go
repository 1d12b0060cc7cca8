package receiver

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	"ingest-agent/agent/tlsfiles"
	"ingest-agent/agent/tlsfiles/tlstest"
	"ingest-agent/segment"
)

// secured is a receiver with TLS on both transports.
type secured struct {
	*running
	dir  string
	ca   *tlstest.Authority
	pair tlstest.Pair
}

// startTLS runs a receiver whose files are looked at for each connection.
func startTLS(t *testing.T, mutual bool, change func(o *Options)) *secured {
	t.Helper()
	s := &secured{dir: t.TempDir()}
	s.ca = tlstest.NewAuthority(t, s.dir, "ca")
	s.pair = s.ca.Issue(t, s.dir, "server")
	files := tlsfiles.Server{CertFile: s.pair.CertFile, KeyFile: s.pair.KeyFile, ReloadInterval: 1}
	if mutual {
		files.ClientCAFile = s.ca.CAFile
	}
	make := func(protocols ...string) *tls.Config {
		files.NextProtos = protocols
		c, err := tlsfiles.ServerConfig(files)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	s.running = start(t, func(o *Options) {
		o.GRPCTLS, o.HTTPTLS = make("h2"), make("h2", "http/1.1")
		if change != nil {
			change(o)
		}
	})
	s.url = strings.Replace(s.url, "http:", "https:", 1)
	return s
}

// client is a configuration that trusts the server, with a certificate of its own if p is not nil.
func (s *secured) client(t *testing.T, p *tlstest.Pair) *tls.Config {
	t.Helper()
	c := &tls.Config{RootCAs: s.ca.Pool}
	if p != nil {
		c.Certificates = []tls.Certificate{p.Load(t)}
	}
	return c
}

// httpClient speaks the version of HTTP.
func httpClient(t *testing.T, c *tls.Config, version int) *http.Client {
	t.Helper()
	transport := &http.Transport{TLSClientConfig: c.Clone(), Protocols: new(http.Protocols)}
	transport.Protocols.SetHTTP1(version == 1)
	transport.Protocols.SetHTTP2(version == 2)
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

// post sends a request and returns the status and the serial number of the server's certificate.
func (s *secured) post(t *testing.T, client *http.Client, body io.Reader) (code int, serial int64, err error) {
	t.Helper()
	req, err := http.NewRequest(http.MethodPost, s.url+"/v1/logs", body)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", protobufType)
	resp, err := client.Do(req)
	if err != nil {
		return 0, 0, err
	}
	defer resp.Body.Close()
	_, err = io.Copy(io.Discard, resp.Body)
	return resp.StatusCode, resp.TLS.PeerCertificates[0].SerialNumber.Int64(), err
}

func (s *secured) dial(t *testing.T, c *tls.Config) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient(s.grpc, grpc.WithTransportCredentials(credentials.NewTLS(c)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func TestTLSOnBothTransports(t *testing.T) {
	s := startTLS(t, false, nil)
	body := logsRequest(t, 0, 1, 10)
	for _, version := range []int{1, 2} {
		client := httpClient(t, s.client(t, nil), version)
		for range 2 {
			if code, serial, err := s.post(t, client, bytes.NewReader(body)); code != 200 || serial != s.pair.Serial || err != nil {
				t.Errorf("HTTP/%d: %d, serial %d, %v", version, code, serial, err)
			}
		}
	}
	if _, err := call(t.Context(), s.dial(t, s.client(t, nil)), segment.Logs, body); err != nil {
		t.Errorf("gRPC: %v", err)
	}
	if n := len(s.keep.requests()); n != 5 {
		t.Errorf("%d requests stored, want 5", n)
	}
	for name, c := range map[string]*tls.Config{
		"TLS 1.1":         {RootCAs: s.ca.Pool, MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS11},
		"other authority": {RootCAs: tlstest.NewAuthority(t, s.dir, "other").Pool},
	} {
		if code, _, err := s.post(t, httpClient(t, c, 1), bytes.NewReader(body)); err == nil {
			t.Errorf("HTTP, %s: %d", name, code)
		}
		if _, err := call(t.Context(), s.dial(t, c), segment.Logs, body); status.Code(err) != codes.Unavailable {
			t.Errorf("gRPC, %s: %v", name, err)
		}
	}
	// Plain text on a port for TLS is not taken. Its answer is often lost with the connection.
	resp, err := http.Post(strings.Replace(s.url, "https:", "http:", 1)+"/v1/logs", protobufType, bytes.NewReader(body))
	if err == nil {
		_ = resp.Body.Close()
		if resp.StatusCode != http.StatusBadRequest {
			t.Errorf("plain HTTP: %d", resp.StatusCode)
		}
	}
	if _, err := call(t.Context(), s.running.client(t), segment.Logs, body); status.Code(err) != codes.Unavailable {
		t.Errorf("plain gRPC: %v", err)
	}
}

func TestMutualTLS(t *testing.T) {
	s := startTLS(t, true, nil)
	mine := s.ca.Issue(t, s.dir, "mine")
	foreign := tlstest.NewAuthority(t, s.dir, "other").Issue(t, s.dir, "foreign")
	body := logsRequest(t, 0, 1, 10)
	for name, p := range map[string]*tlstest.Pair{"mine": &mine, "foreign": &foreign, "none": nil} {
		for _, version := range []int{1, 2} {
			code, _, err := s.post(t, httpClient(t, s.client(t, p), version), bytes.NewReader(body))
			if (code == 200) != (name == "mine") || (err == nil) != (name == "mine") {
				t.Errorf("HTTP/%d, %s: %d, %v", version, name, code, err)
			}
		}
		if _, err := call(t.Context(), s.dial(t, s.client(t, p)), segment.Logs, body); (err == nil) != (name == "mine") {
			t.Errorf("gRPC, %s: %v", name, err)
		}
	}
	if n := len(s.keep.requests()); n != 3 {
		t.Errorf("%d requests stored, want 3", n)
	}
}

// A new certificate is served to new connections. Open ones go on, also through a file that is bad in between.
func TestCertificateReloadDropsNoConnection(t *testing.T) {
	s := startTLS(t, false, nil)
	body := logsRequest(t, 0, 1, 10)
	old := map[int]*http.Client{1: httpClient(t, s.client(t, nil), 1), 2: httpClient(t, s.client(t, nil), 2)}
	conn := s.dial(t, s.client(t, nil))
	check := func(what string, fresh tlstest.Pair) {
		t.Helper()
		for version, client := range old {
			if code, serial, err := s.post(t, client, bytes.NewReader(body)); code != 200 || serial != s.pair.Serial || err != nil {
				t.Errorf("%s: HTTP/%d, open connection: %d, serial %d, %v", what, version, code, serial, err)
			}
			if code, serial, err := s.post(t, httpClient(t, s.client(t, nil), version), bytes.NewReader(body)); code != 200 || serial != fresh.Serial || err != nil {
				t.Errorf("%s: HTTP/%d, new connection: %d, serial %d, %v; want %d", what, version, code, serial, err, fresh.Serial)
			}
		}
		if _, err := call(t.Context(), conn, segment.Logs, body); err != nil {
			t.Errorf("%s: gRPC, open connection: %v", what, err)
		}
		if got := s.grpcSerial(t); got != fresh.Serial {
			t.Errorf("%s: gRPC, new connection: serial %d, want %d", what, got, fresh.Serial)
		}
	}
	check("at first", s.pair)
	tlstest.Write(t, s.pair.CertFile, []byte("rubbish"))
	check("bad file", s.pair)
	check("new file", s.ca.Issue(t, s.dir, "server"))
}

// grpcSerial is the serial number of the certificate that a new gRPC connection is shown.
func (s *secured) grpcSerial(t *testing.T) int64 {
	t.Helper()
	c := s.client(t, nil)
	c.NextProtos = []string{"h2"}
	conn, err := tls.Dial("tcp", s.grpc, c)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	return conn.ConnectionState().PeerCertificates[0].SerialNumber.Int64()
}

// The limits hold on HTTP/2 too.
func TestHTTP2Limits(t *testing.T) {
	s := startTLS(t, false, func(o *Options) { o.Settings.ReadTimeout = 300 * time.Millisecond })
	client := httpClient(t, s.client(t, nil), 2)
	if code, _, err := s.post(t, client, bytes.NewReader(logsOfSize(t, testLimit))); code != 200 || err != nil {
		t.Errorf("at the limit: %d, %v", code, err)
	}
	if code, _, err := s.post(t, client, bytes.NewReader(logsOfSize(t, testLimit+1))); code != 413 || err != nil {
		t.Errorf("above the limit: %d, %v", code, err)
	}
	if code, _, err := s.post(t, client, struct{ io.Reader }{bytes.NewReader(logsOfSize(t, testLimit+1))}); code != 413 || err != nil {
		t.Errorf("above the limit, length unknown: %d, %v", code, err)
	}
	for _, method := range []string{http.MethodGet, http.MethodPut} { // who is refused at once need not send the rest
		endless, end := io.Pipe()
		began := time.Now()
		req, err := http.NewRequest(method, s.url+"/v1/logs", endless)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, resp.Body) // the stream is reset behind the answer
		_, _ = resp.Body.Close(), end.Close()
		if took := time.Since(began); resp.StatusCode != http.StatusMethodNotAllowed || took >= drainTimeout {
			t.Errorf("%s: %d after %s", method, resp.StatusCode, took)
		}
	}
	slow, end := io.Pipe()
	code, _, err := s.post(t, client, slow)
	_ = end.Close()
	if code != 408 || err != nil {
		t.Errorf("slow: %d, %v", code, err)
	}
	if code, _, err := s.post(t, client, bytes.NewReader(logsRequest(t, 0, 1, 10))); code != 200 || err != nil {
		t.Errorf("after them: %d, %v", code, err)
	}
	checkMemoryFree(t, s.running)
}

// A stop finishes what is in hand on TLS, too.
func TestShutdownWithTLS(t *testing.T) {
	store := newHeld()
	s := startTLS(t, false, func(o *Options) { o.Store.(*keep).answer = store.accept })
	body := logsRequest(t, 0, 1, 10)
	answers := make(chan error, 3)
	for _, version := range []int{1, 2} {
		client := httpClient(t, s.client(t, nil), version)
		go func() {
			code, _, err := s.post(t, client, bytes.NewReader(body))
			if code != 200 {
				err = errors.Join(err, fmt.Errorf("HTTP/%d: %d", version, code))
			}
			answers <- err
		}()
	}
	conn := s.dial(t, s.client(t, nil))
	go func() {
		_, err := call(context.Background(), conn, segment.Logs, body)
		answers <- err
	}()
	for range 3 {
		<-store.entered
	}
	stopped := make(chan error, 1)
	go func() { stopped <- s.Shutdown(context.Background()) }()
	<-s.inHand.stopping
	for range 3 {
		store.release <- nil
	}
	for range 3 {
		if err := <-answers; err != nil {
			t.Error(err)
		}
	}
	if err := <-stopped; err != nil {
		t.Error(err)
	}
}

// More connections than there is room for are closed at once; the next one is taken when one is gone.
func TestConnectionsAreBounded(t *testing.T) {
	const most = 2
	run := start(t, nil)
	for _, l := range run.listeners { // before any connection
		l.mu.Lock()
		l.most = most
		l.mu.Unlock()
	}
	for _, addr := range []string{run.grpc, strings.TrimPrefix(run.url, "http://")} {
		dial := func() net.Conn {
			c, err := net.Dial("tcp", addr)
			if err != nil {
				t.Fatal(err)
			}
			return c
		}
		before := accepted(run)
		first, second := dial(), dial()
		waitFor(t, func() bool { return accepted(run) == before+most })
		third := dial()
		if err := third.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
			t.Fatal(err)
		}
		if n, err := third.Read(make([]byte, 1)); n != 0 || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("one too many: %d, %v; want the end", n, err)
		}
		_, _ = third.Close(), first.Close()
		waitFor(t, func() bool { return accepted(run) == before+most-1 })
		fourth := dial()
		waitFor(t, func() bool { return accepted(run) == before+most })
		_, _ = second.Close(), fourth.Close()
		waitFor(t, func() bool { return accepted(run) == before })
	}
}
