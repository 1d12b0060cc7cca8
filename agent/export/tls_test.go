package export

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"ingest-agent/segment"
)

// authority signs certificates for 127.0.0.1, for servers and clients.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  []byte
}

func newAuthority(t testing.TB, name string) *authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return &authority{cert, key, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})}
}

// issue makes a certificate and its key, both as PEM.
func (a *authority) issue(t testing.TB) (cert, key []byte) {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "leaf"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, k.Public(), a.key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(k)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private})
}

// server is a configuration that shows a certificate of this authority and takes clients with one of it.
func (a *authority) server(t testing.TB, protocols ...string) *tls.Config {
	t.Helper()
	cert, err := tls.X509KeyPair(a.issue(t))
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(a.cert)
	return &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{cert}, ClientCAs: pool,
		ClientAuth: tls.RequireAndVerifyClientCert, NextProtos: protocols}
}

// cutListener can cut all connections that it has accepted.
type cutListener struct {
	net.Listener
	mu    sync.Mutex
	conns []net.Conn
}

func (l *cutListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err == nil {
		l.mu.Lock()
		l.conns = append(l.conns, c)
		l.mu.Unlock()
	}
	return c, err
}

func (l *cutListener) cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range l.conns {
		_ = c.Close()
	}
	l.conns = nil
}

func listenToCut(t testing.TB) *cutListener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return &cutListener{Listener: l}
}

// clientFiles are the three files of a destination.
type clientFiles struct{ ca, cert, key string }

// write replaces the files, each by a rename.
func (f clientFiles) write(t testing.TB, ca, cert, key []byte) {
	t.Helper()
	for path, content := range map[string][]byte{f.ca: ca, f.cert: cert, f.key: key} {
		if err := os.WriteFile(path+".new", content, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(path+".new", path); err != nil {
			t.Fatal(err)
		}
	}
}

// Both ends move to another authority while the sink is in use. Files that are no good in between change nothing and are
// reported.
func TestMutualTLSWithReload(t *testing.T) {
	for _, kind := range []Type{TypeOTLPHTTP, TypeOTLPGRPC} {
		t.Run(string(kind), func(t *testing.T) {
			first, second := newAuthority(t, "first"), newAuthority(t, "second")
			var now held[*tls.Config]
			now.set(first.server(t, "h2"))
			config := &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: []string{"h2"},
				GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return now.get(), nil }}
			l := listenToCut(t)
			var hosts collector[string]
			o := serveTLS(t, kind, l, config, &hosts)

			dir := t.TempDir()
			files := clientFiles{filepath.Join(dir, "ca.pem"), filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")}
			cert, key := first.issue(t)
			files.write(t, first.pem, cert, key)
			var reports collector[error]
			o.TLS = TLSOptions{CAFile: files.ca, CertFile: files.cert, KeyFile: files.key, ReloadInterval: time.Nanosecond, Report: reports.add}
			sink := newTestSink(t, o)
			r := request(t, segment.Logs, 1, 1)
			wantVerdict(t, sink.Deliver(t.Context(), r), segment.Delivered)

			files.write(t, []byte("no PEM"), []byte("nor here"), key)
			l.cut()
			deliverAgain(t, sink, r)
			failed := 0
			for _, err := range reports.get() {
				if err != nil {
					failed++
				}
			}
			if failed == 0 || failed != len(reports.get()) {
				t.Errorf("bad files were reported %d times of %d", failed, len(reports.get()))
			}

			now.set(second.server(t, "h2"))
			l.cut()
			for range 3 {
				wantVerdict(t, sink.Deliver(t.Context(), r), segment.Retry)
			}
			cert, key = second.issue(t)
			files.write(t, second.pem, cert, key)
			deliverAgain(t, sink, r)
			if all := reports.get(); all[len(all)-1] != nil {
				t.Errorf("the good files were not reported: %v", all[len(all)-1])
			}
			for _, host := range hosts.get() {
				if host != l.Addr().String() {
					t.Errorf("request for %s, want %s", host, l.Addr())
				}
			}
		})
	}
}

// serveTLS serves OTLP on l and returns options of a destination there, without those of TLS. The name that each request
// is for goes to hosts.
func serveTLS(t *testing.T, kind Type, l net.Listener, config *tls.Config, hosts *collector[string]) Options {
	t.Helper()
	if kind == TypeOTLPGRPC {
		return grpcOptionsTLS(serveGRPCOn(t, l, func(_ context.Context, c grpcCall) ([]byte, error) {
			hosts.add(c.metadata.Get(":authority")[0])
			return nil, nil
		}, grpc.Creds(credentials.NewTLS(config))))
	}
	srv := &http.Server{ErrorLog: zap.NewStdLog(zap.NewNop()), Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		hosts.add(r.Host)
	})}
	var serving sync.WaitGroup
	serving.Go(func() { _ = srv.Serve(tls.NewListener(l, config)) })
	t.Cleanup(func() { _ = srv.Close(); serving.Wait() })
	return httpOptions("https://" + l.Addr().String())
}

func grpcOptionsTLS(addr string) Options {
	o := grpcOptions(addr)
	o.TLS = TLSOptions{}
	return o
}

// A reload must not take the check of the name with it: that is not part of what the library leaves to it.
func TestReloadedAuthorityVerifiesTheName(t *testing.T) {
	a := newAuthority(t, "a")
	dir := t.TempDir()
	files := clientFiles{filepath.Join(dir, "ca.pem"), filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")}
	cert, key := a.issue(t)
	files.write(t, a.pem, cert, key)
	for _, kind := range []Type{TypeOTLPHTTP, TypeOTLPGRPC} {
		for name, want := range map[string]segment.Verdict{"": segment.Delivered, "127.0.0.1": segment.Delivered, "127.0.0.2": segment.Retry, "other.test": segment.Retry} {
			var hosts collector[string]
			o := serveTLS(t, kind, listenToCut(t), a.server(t, "h2"), &hosts)
			o.TLS = TLSOptions{CAFile: files.ca, CertFile: files.cert, KeyFile: files.key, ServerNameOverride: name, ReloadInterval: time.Hour}
			if out := newTestSink(t, o).Deliver(t.Context(), request(t, segment.Logs, 1, 1)); out.Verdict != want {
				t.Errorf("%s, name %q: verdict %d, want %d (%v)", kind, name, out.Verdict, want, out.Err)
			}
		}
	}
}

// goAway serves one HTTP/2 connection on c: it answers requests with 200 until it has answered so many, and meets the next
// one, once it is there in whole, with GOAWAY: it was not processed, or it may have been.
func goAway(c net.Conn, answers int, processed bool, requests *collector[uint32]) error {
	defer c.Close()
	preface := make([]byte, len(http2.ClientPreface))
	if _, err := io.ReadFull(c, preface); err != nil {
		return err
	}
	framer := http2.NewFramer(c, c)
	if err := framer.WriteSettings(); err != nil {
		return err
	}
	var block strings.Builder
	encoder := hpack.NewEncoder(&block)
	for {
		f, err := framer.ReadFrame()
		if err != nil {
			return err
		}
		ended := false
		switch f := f.(type) {
		case *http2.DataFrame:
			ended = f.StreamEnded()
		case *http2.HeadersFrame:
			ended = f.StreamEnded()
		}
		if !ended {
			continue
		}
		id := f.Header().StreamID
		requests.add(id)
		if answers == 0 {
			last := id
			if !processed {
				last = 0
			}
			return framer.WriteGoAway(last, http2.ErrCodeNo, nil)
		}
		answers--
		block.Reset()
		if err := encoder.WriteField(hpack.HeaderField{Name: ":status", Value: "200"}); err != nil {
			return err
		}
		err = framer.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: []byte(block.String()), EndHeaders: true, EndStream: true})
		if err != nil {
			return err
		}
	}
}

// GOAWAY in the place of an answer ends the attempt, which was sent once; the next one goes over another connection.
func TestHTTP2GoAway(t *testing.T) {
	for _, processed := range []bool{false, true} {
		a := newAuthority(t, "a")
		l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{MinVersion: tls.VersionTLS12, Certificates: a.server(t).Certificates, NextProtos: []string{"h2"}})
		if err != nil {
			t.Fatal(err)
		}
		var requests collector[uint32]
		var serving sync.WaitGroup
		t.Cleanup(func() { _ = l.Close(); serving.Wait() })
		serving.Go(func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				serving.Go(func() { _ = goAway(c, 2, processed, &requests) })
			}
		})
		o := httpOptions("https://" + l.Addr().String())
		o.TLS.CAFile = filepath.Join(t.TempDir(), "ca.pem")
		if err := os.WriteFile(o.TLS.CAFile, a.pem, 0o600); err != nil {
			t.Fatal(err)
		}
		sink := newTestSink(t, o)
		for i := range 9 {
			want := segment.Delivered
			if i%3 == 2 {
				want = segment.Retry
			}
			wantVerdict(t, sink.Deliver(t.Context(), request(t, segment.Logs, 1, 1)), want)
		}
		if n := len(requests.get()); n != 9 {
			t.Errorf("processed %v: %d requests for 9 attempts", processed, n)
		}
	}
}
