package agent_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"io"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"

	"ingest-agent/agent/agenttest"
	"ingest-agent/agent/config"
	"ingest-agent/agent/tlsfiles/tlstest"
	"ingest-agent/bench/seqset"
	"ingest-agent/bench/wire"
	"ingest-agent/segment"
)

// sender sends requests with a bearer token and headers, over TLS if secure is set.
type sender struct {
	n       *node
	token   string
	headers map[string]string
	secure  *tls.Config
}

// got is what a request was answered, in either protocol's terms.
type got struct {
	http   int
	grpc   codes.Code
	after  bool // both answers have a delay
	before bool // neither has
}

func (s sender) send(t *testing.T, body []byte) got {
	t.Helper()
	status, header := s.get(t, http.MethodPost, s.n.Addrs().HTTP, "/v1/logs", body)
	code, delay := s.call(t, body)
	retry, _ := strconv.Atoi(header.Get("Retry-After"))
	return got{status, code, retry > 0 && delay > 0, header.Get("Retry-After") == "" && delay == 0}
}

// get makes one HTTP request.
func (s sender) get(t *testing.T, method, addr, path string, body []byte) (int, http.Header) {
	t.Helper()
	scheme := "http://"
	if s.secure != nil {
		scheme = "https://"
	}
	req, err := http.NewRequestWithContext(t.Context(), method, scheme+addr+path, bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/x-protobuf")
	if s.token != "" {
		req.Header.Set("Authorization", "Bearer "+s.token)
	}
	for name, value := range s.headers {
		req.Header.Set(name, value)
	}
	client := http.Client{Timeout: 20 * time.Second, Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: s.secure.Clone()}}
	resp, err := client.Do(req)
	if err != nil {
		return 0, nil
	}
	defer resp.Body.Close()
	_, _ = io.Copy(io.Discard, resp.Body) // plain HTTP on a port for TLS: the status is all
	return resp.StatusCode, resp.Header
}

// call makes one gRPC request.
func (s sender) call(t *testing.T, body []byte) (codes.Code, time.Duration) {
	t.Helper()
	creds := insecure.NewCredentials()
	if s.secure != nil {
		creds = credentials.NewTLS(s.secure.Clone())
	}
	conn, err := grpc.NewClient(s.n.Addrs().GRPC, grpc.WithTransportCredentials(creds))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if s.token != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+s.token)
	}
	var headers []string
	for name, value := range s.headers {
		headers = append(headers, name, value)
	}
	ctx = metadata.AppendToOutgoingContext(ctx, headers...)
	answer := status.Convert(conn.Invoke(ctx, wire.GRPCMethod(segment.Logs), &body, new([]byte), grpc.ForceCodecV2(wire.RawCodec{})))
	for _, d := range answer.Details() {
		if r, ok := d.(*errdetails.RetryInfo); ok {
			return answer.Code(), r.GetRetryDelay().AsDuration()
		}
	}
	return answer.Code(), 0
}

// padding is an unknown field of a request with a value of n bytes.
func padding(n int) []byte {
	return protowire.AppendBytes(protowire.AppendTag(nil, 1000, protowire.BytesType), make([]byte, n))
}

func tokensFile(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "tokens.yaml")
	if err := os.WriteFile(path, []byte("token-a: acme\ntoken-b: initech\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

var taken = got{http: http.StatusOK, before: true}

// TestTenantsAndSecrets: a request belongs to the tenant of its token or of its proxy's header, from the answer to the
// metrics, and no token is in the log.
func TestTenantsAndSecrets(t *testing.T) {
	t.Parallel()
	s := agenttest.NewSink(t)
	agenttest.Up(t, s)
	n := start(t, newConfig(t, t.TempDir(), s.URL(), func(c *config.Config) {
		c.Auth.TokensFile, c.Auth.TrustedProxies = tokensFile(t), []netip.Prefix{netip.MustParsePrefix("127.0.0.1/32")}
	}))
	for _, c := range []struct {
		name   string
		sender sender
		want   got
	}{
		{"token", sender{token: "token-a"}, taken},
		{"wrong token", sender{token: "token-x"}, got{401, codes.Unauthenticated, false, true}},
		{"nothing", sender{}, got{401, codes.Unauthenticated, false, true}},
		{"proxy", sender{headers: map[string]string{"X-Scope-OrgID": "hooli"}}, taken},
		{"proxy and another tenant's token", sender{token: "token-a", headers: map[string]string{"X-Scope-OrgID": "hooli"}}, got{403, codes.PermissionDenied, false, true}},
		{"no name of a tenant", sender{headers: map[string]string{"X-Scope-OrgID": "a,b"}}, got{400, codes.InvalidArgument, false, true}},
	} {
		c.sender.n = n
		if got := c.sender.send(t, body(t, 1)); got != c.want {
			t.Errorf("%s: %+v, want %+v", c.name, got, c.want)
		}
	}
	n.awaitDrained(10 * time.Second)
	m := n.metrics()
	for label, want := range map[string]uint64{`tenant="acme"`: 2, `tenant="hooli"`: 2, `tenant="default"`: 0, `signal="logs"`: 4} {
		if got := m.Sum("records_accepted_total", label); got != want {
			t.Errorf("%s: %d records, want %d", label, got, want)
		}
	}
	if got := m.Sum("requests_refused_total", `reason="unauthenticated"`); got != 4 {
		t.Errorf("%d requests are counted as unauthenticated, want 4", got)
	}
	n.stop()
	if strings.Contains(n.logText(), "token-") {
		t.Errorf("a token is in the log:\n%s", n.logText())
	}
}

// TestTLSEverywhere: TLS with clients' certificates on both receivers, TLS and a token on the admin endpoint; a file that goes
// bad is counted and changes nothing.
func TestTLSEverywhere(t *testing.T) {
	t.Parallel()
	s := agenttest.NewSink(t)
	agenttest.Up(t, s)
	dir := t.TempDir()
	ca := tlstest.NewAuthority(t, dir, "ca")
	pair, mine := ca.Issue(t, dir, "server"), ca.Issue(t, dir, "client")
	adminToken := filepath.Join(dir, "admin.token")
	tlstest.Write(t, adminToken, []byte("hush\n"))
	files := config.ServerTLS{CertFile: pair.CertFile, KeyFile: pair.KeyFile, ReloadInterval: time.Nanosecond}
	n := start(t, newConfig(t, t.TempDir(), s.URL(), func(c *config.Config) {
		c.Admin.TLS, c.Admin.AuthTokenFile = files, adminToken
		files.ClientCAFile = ca.CAFile
		c.Receivers.GRPC.TLS, c.Receivers.HTTP.TLS = files, files
	}))
	stranger := sender{n: n, secure: &tls.Config{RootCAs: ca.Pool}}
	client := sender{n: n, secure: &tls.Config{RootCAs: ca.Pool, Certificates: []tls.Certificate{mine.Load(t)}}}
	for name, c := range map[string]struct {
		sender sender
		want   got
	}{
		"client": {client, taken}, "stranger": {stranger, got{0, codes.Unavailable, false, true}},
	} {
		if got := c.sender.send(t, body(t, 1)); got != c.want {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
	operator := stranger
	operator.token = "hush"
	for path, want := range map[string][2]int{"/livez": {200, 200}, "/readyz": {200, 200}, "/metrics": {401, 200}, "/api/v1/state": {401, 200}, "/other": {401, 404}} {
		without, header := stranger.get(t, http.MethodGet, n.Addrs().Admin, path, nil)
		with, _ := operator.get(t, http.MethodGet, n.Addrs().Admin, path, nil)
		if without != want[0] || with != want[1] || (header.Get("WWW-Authenticate") != "") != (without == 401) {
			t.Errorf("%s: %d without the token, %d with it; want %v", path, without, with, want)
		}
	}
	tlstest.Write(t, pair.CertFile, []byte("rubbish"))
	if got := client.send(t, body(t, 2)); got != taken {
		t.Errorf("with a bad file: %+v", got)
	}
	bad := n.logs.FilterMessage("changed files cannot be used; the old ones stay in use").FilterField(zap.String("key", "receivers.grpc.tls"))
	if bad.Len() != 1 {
		t.Errorf("a bad file is logged %d times, want once:\n%s", bad.Len(), n.logText())
	}
	n.stop()
	if strings.Contains(n.logText(), "hush") {
		t.Errorf("the token is in the log:\n%s", n.logText())
	}
}

// TestBackpressureOfOneTenant: who sends too much, or something too large, is refused with the right code; others are not.
// What is refused for want of space or by the disk is in the tests of the limits.
func TestBackpressureOfOneTenant(t *testing.T) {
	t.Parallel()
	const maxBytes = 4 << 20
	later := got{http.StatusTooManyRequests, codes.ResourceExhausted, true, false}
	never := got{http.StatusRequestEntityTooLarge, codes.ResourceExhausted, false, true}
	for name, c := range map[string]struct {
		change func(c *config.Config)
		times  int // requests until the one that is judged
		size   int
		want   got
		reason string
	}{
		"share": {func(*config.Config) {}, 12, 256 << 10, later, "tenant_share"},
		"rate": {func(c *config.Config) {
			c.Tenants = map[string]config.Tenant{"acme": {BytesPerSecond: 1}}
		}, 1, 1 << 10, later, "tenant_rate"},
		"can never fit": {func(*config.Config) {}, 0, maxBytes + 1, never, "too_large"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := start(t, newConfig(t, t.TempDir(), agenttest.NewSink(t).URL(), func(conf *config.Config) {
				conf.Auth.TokensFile = tokensFile(t)
				conf.WAL.MaxBytes, conf.WAL.FullWait, conf.WAL.TenantShare = maxBytes, 0, 0.5
				c.change(conf)
			}))
			acme, initech := sender{n: n, token: "token-a"}, sender{n: n, token: "token-b"}
			if got := initech.send(t, body(t, 1)); got != taken { // so that there is more than one
				t.Fatalf("the other tenant: %+v", got)
			}
			request := append(body(t, 2), padding(c.size)...)
			for range c.times {
				acme.get(t, http.MethodPost, n.Addrs().HTTP, "/v1/logs", request)
			}
			before := n.metrics().Sum("requests_refused_total", `reason="`+c.reason+`"`)
			if got := acme.send(t, request); got != c.want {
				t.Errorf("%+v, want %+v", got, c.want)
			}
			if got := n.metrics().Sum("requests_refused_total", `reason="`+c.reason+`"`) - before; got != 2 {
				t.Errorf("%d are counted as %s, want 2", got, c.reason)
			}
			if got := initech.send(t, body(t, 3)); got != taken {
				t.Errorf("the other tenant: %+v", got)
			}
			n.stop()
		})
	}
}

// TestCase65HealthFollowsIngest: live, ready and detail are three things. A destination that is down makes a node neither
// dead nor unready, and is seen in the detail; a request that would be refused makes it unready, and the metrics agree.
func TestCase65HealthFollowsIngest(t *testing.T) {
	t.Parallel()
	n := start(t, newConfig(t, t.TempDir(), agenttest.NewSink(t).URL(), func(c *config.Config) { c.WAL.MaxBytes, c.WAL.FullWait = 1<<20, 0 }))
	live := func(when string) {
		t.Helper()
		if code, text := agenttest.Get(t, n.Addrs().Admin, "/livez"); code != http.StatusOK {
			t.Errorf("%s: /livez: %d %s", when, code, text)
		}
	}
	if !n.taken(1) {
		t.Fatal("the first request is refused")
	}
	live("destination down")
	if got := n.ready(); got != "ok" {
		t.Errorf("destination down: ready: %s", got)
	}
	if st := n.State(); !st.Ready || n.pending().Records.Sum() != 1 || n.metrics().Sum("pending_records") != 1 {
		t.Errorf("destination down: %+v", st)
	}
	big := append(body(t, 2), padding(100<<10)...)
	for code := http.StatusOK; code == http.StatusOK; {
		code, _ = n.post(big)
	}
	n.fillUp(&seqset.Set{})
	if got := n.ready(); got != "full" {
		t.Errorf("full: ready: %s", got)
	}
	live("full")
	if st := n.State(); st.Ready || !strings.Contains(st.Cause, "full") || n.metrics().Sum("requests_refused_total", `reason="full"`) == 0 {
		t.Errorf("full: ready %v, cause %q", st.Ready, st.Cause)
	}
	n.stop()
}
