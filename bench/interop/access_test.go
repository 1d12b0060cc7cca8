package interop

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	sdklog "go.opentelemetry.io/otel/sdk/log"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
)

// authority signs certificates, which are files.
type authority struct {
	t    *testing.T
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	file string
}

// identity is a certificate and its key.
type identity struct{ certFile, keyFile string }

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{t: t}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "authority"}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	}
	var der []byte
	der, a.key = a.sign(template)
	a.file = a.write("CERTIFICATE", der)
	var err error
	if a.cert, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	return a
}

// sign makes a key and its certificate; the authority's own is the first.
func (a *authority) sign(template *x509.Certificate) ([]byte, *ecdsa.PrivateKey) {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	parent, signer := a.cert, a.key
	if parent == nil {
		parent, signer = template, key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
	if err != nil {
		a.t.Fatal(err)
	}
	return der, key
}

// issue makes an identity that is good for a server on loopback and for a client.
func (a *authority) issue() identity {
	a.t.Helper()
	der, key := a.sign(&x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "leaf"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	})
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		a.t.Fatal(err)
	}
	return identity{a.write("CERTIFICATE", der), a.write("PRIVATE KEY", secret)}
}

func (a *authority) write(kind string, der []byte) string {
	a.t.Helper()
	path := filepath.Join(a.t.TempDir(), "pem")
	if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		a.t.Fatal(err)
	}
	return path
}

// clientTLS trusts the authority and shows an identity.
func (a *authority) clientTLS(id identity) *tls.Config {
	a.t.Helper()
	pool := x509.NewCertPool()
	pool.AddCert(a.cert)
	cert, err := tls.LoadX509KeyPair(id.certFile, id.keyFile)
	if err != nil {
		a.t.Fatal(err)
	}
	return &tls.Config{RootCAs: pool, Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12}
}

// securePorts is the listeners of an agent on free ports that show an identity and want one of the clients' authority.
func securePorts(id identity, clients *authority) string {
	secure := fmt.Sprintf("tls: {cert_file: %q, key_file: %q, client_ca_file: %q}", id.certFile, id.keyFile, clients.file)
	return fmt.Sprintf("receivers: {grpc: {endpoint: \"127.0.0.1:0\", %s}, http: {endpoint: \"127.0.0.1:0\", %s}}\n", secure, secure)
}

// secureExport are the keys of an exporter that trusts the authority and shows an identity.
func secureExport(transport, addr string, ca *authority, id identity, more keys) keys {
	k := exportTo(transport, addr, more)
	if transport == overHTTP {
		k["endpoint"] = "https://" + addr
	}
	k["tls"] = keys{"ca_file": ca.file, "cert_file": id.certFile, "key_file": id.keyFile}
	return k
}

// TestCollectorInFrontWithMutualTLS: a Collector and an SDK with a certificate deliver, one with a stranger's does not.
func TestCollectorInFrontWithMutualTLS(t *testing.T) {
	overBoth(t, func(t *testing.T, transport string) {
		ca := newAuthority(t)
		s, reference := startSink(t), startSink(t)
		a := startAgent(t, securePorts(ca.issue(), ca)+anyDisk+destination(overHTTP, s.http, ""))
		collectorWith := func(id identity, more keys) (ports, *collector) {
			at := freePorts(t)
			return at, startCollector(t, pipeline{
				protocols: onPorts(at, nil, nil), transport: transport,
				exporter: secureExport(transport, a.addr(transport), ca, id, more),
			})
		}
		at, stranger := collectorWith(newAuthority(t).issue(), keys{"retry_on_failure": keys{"enabled": false}})
		newApp(t, client{transport: overGRPC, addr: at.grpc}, startSink(t)).work(1, 100)
		await(t, "the stranger gives up three signals", func() bool { return len(stranger.said(saysReject))+len(stranger.said(saysDrop)) >= 3 })

		at, friend := collectorWith(ca.issue(), nil)
		newApp(t, client{transport: overGRPC, addr: at.grpc}, reference).work(20, 100)
		newApp(t, client{transport: transport, addr: a.addr(transport), gzip: true, secure: ca.clientTLS(ca.issue())}, reference).work(20, 100)
		equal(t, s, reference, decoded)
		friend.lostNothing()
		a.allDelivered()
	})
}

// TestCollectorBehindWithMutualTLS: the agent's own certificate opens a Collector that wants one.
func TestCollectorBehindWithMutualTLS(t *testing.T) {
	overBoth(t, func(t *testing.T, transport string) {
		ca := newAuthority(t)
		s, reference, at := startSink(t), startSink(t), freePorts(t)
		server, own := ca.issue(), ca.issue()
		kind, endpoint := "otlp_grpc", at.grpc
		if transport == overHTTP {
			kind, endpoint = "otlp_http", "https://"+at.http
		}
		a := startAgent(t, onePort+anyDisk+fmt.Sprintf("destinations: {default: {type: %s, endpoint: %q%s, "+
			"tls: {ca_file: %q, cert_file: %q, key_file: %q}}}\n", kind, endpoint, quick, ca.file, own.certFile, own.keyFile))
		secure := keys{"tls": keys{"cert_file": server.certFile, "key_file": server.keyFile, "client_ca_file": ca.file}}
		c := startCollector(t, pipeline{
			protocols: onPorts(at, secure, secure), transport: overGRPC, exporter: exportTo(overGRPC, s.grpc, noQueue()),
		})
		newApp(t, client{transport: overGRPC, addr: a.addrs.GRPC, gzip: true}, reference).work(20, 100)
		equal(t, s, reference, decoded)
		c.lostNothing()
		a.allDelivered()
	})
}

// TestBearerToken: an SDK and a Collector with a token deliver, for its tenant. Those without one are told at once: the SDK
// returns an error, the Collector gives the data up.
func TestBearerToken(t *testing.T) {
	overBoth(t, func(t *testing.T, transport string) {
		s, reference, dir := startSink(t), startSink(t), t.TempDir()
		tokens := filepath.Join(dir, "tokens.yaml")
		if err := os.WriteFile(tokens, []byte("good: acme\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		a := startAgentIn(t, dir, onePort+anyDisk+fmt.Sprintf("auth: {tokens_file: %q}\n", tokens)+destination(transport, s.addr(transport), ""))
		with := func(token string) client {
			return client{transport: transport, addr: a.addr(transport), headers: map[string]string{"authorization": "Bearer " + token}}
		}
		refusal := map[string]string{overGRPC: "Unauthenticated", overHTTP: "401"}[transport]
		bad := with("bad").connect(t)
		for sig, err := range map[signal]error{
			"logs":    bad.logs.Export(t.Context(), make([]sdklog.Record, 1)),
			"traces":  bad.traces.ExportSpans(t.Context(), tracetest.SpanStubs{{Name: "span"}}.Snapshots()),
			"metrics": bad.metrics.Export(t.Context(), &metricdata.ResourceMetrics{}),
		} {
			if err == nil || !strings.Contains(err.Error(), refusal) {
				t.Errorf("%s with a bad token: %v", sig, err)
			}
		}
		if err := errors.Join(bad.logs.Shutdown(t.Context()), bad.traces.Shutdown(t.Context()), bad.metrics.Shutdown(t.Context())); err != nil {
			t.Error(err)
		}
		at := freePorts(t)
		c := startCollector(t, pipeline{
			protocols: onPorts(at, nil, nil), transport: transport, exporter: exportTo(transport, a.addr(transport), nil),
		})
		newApp(t, client{transport: overGRPC, addr: at.grpc}, startSink(t)).work(1, 100)
		await(t, "the collector gives up three signals", func() bool { return len(c.said(saysDrop)) >= 3 })
		if n := c.retries(0); n > 0 {
			t.Errorf("the collector tried %d times again", n)
		}
		if n := a.metric("requests_refused_total", ""); n != 6 || len(s.requests()) > 0 {
			t.Errorf("%d requests were refused, %d arrived", n, len(s.requests()))
		}

		at = freePorts(t)
		c = startCollector(t, pipeline{
			protocols: onPorts(at, nil, nil), transport: transport,
			exporter: exportTo(transport, a.addr(transport), keys{"headers": keys{"authorization": "Bearer good"}}),
		})
		newApp(t, client{transport: overGRPC, addr: at.grpc}, reference).work(20, 100)
		newApp(t, with("good"), reference).work(20, 100)
		equal(t, s, reference, decoded)
		c.lostNothing()
		a.allDelivered()
		if n := a.metric("records_accepted_total", `tenant="acme"`); n != a.metric("records_accepted_total", "") {
			t.Errorf("%d records are the tenant's", n)
		}
	})
}
