package config

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"
	"time"

	"ingest-agent/agent/reload"
)

func write(t *testing.T, dir, name, text string) string {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// writePair writes a self-signed certificate and its key.
func writePair(t *testing.T, dir, certName, keyName string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	write(t, dir, certName, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert})))
	write(t, dir, keyName, string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})))
}

func TestCertificatesMustFit(t *testing.T) {
	dir := t.TempDir()
	writePair(t, dir, "a.pem", "a.key")
	writePair(t, dir, "b.pem", "b.key")
	for text, want := range map[string]string{
		"receivers: {grpc: {tls: {cert_file: D/a.pem, key_file: D/a.key}}}":                                                 "",
		"receivers: {grpc: {tls: {cert_file: D/a.pem, key_file: D/b.key}}}":                                                 "f:1: receivers.grpc.tls.cert_file: cannot be used with key_file: tls: private key does not match public key",
		"receivers: {http: {tls: {client_ca_file: D/a.pem}}}":                                                               "f:1: receivers.http.tls.client_ca_file: is set without cert_file",
		"receivers: {http: {tls: {client_ca_file: D/a.key}}}":                                                               "f:1: receivers.http.tls.client_ca_file: holds no certificate",
		"destinations: {default: {type: otlp_grpc, endpoint: 'h:1', tls: {cert_file: D/a.pem}}}":                            "f:1: destinations.default.tls.cert_file: is set without key_file",
		"destinations: {default: {type: otlp_http, endpoint: 'http://h', tls: {ca_file: D/a.pem}}}":                         "f:1: destinations.default.tls: has certificates, but the connection is not encrypted",
		"destinations: {default: {type: otlp_grpc, endpoint: 'h:1', tls: {insecure: true, ca_file: D/a.pem}}}":              "f:1: destinations.default.tls: has certificates, but the connection is not encrypted",
		"destinations: {default: {type: otlp_grpc, endpoint: 'h:1', tls: {cert_file: D/a.pem, key_file: D/a.key}}}":         "",
		"destinations: {default: {type: otlp_http, endpoint: 'HTTPS://h', tls: {cert_file: D/a.pem, key_file: D/missing}}}": "f:1: destinations.default.tls.key_file: cannot be read",
	} {
		_, err := Parse("f", []byte(strings.ReplaceAll(text, "D/", dir+"/")), nil, noEnv)
		if want == "" && err != nil || want != "" && (err == nil || !strings.HasPrefix(err.Error(), want)) {
			t.Errorf("%s:\ngot  %v\nwant %s", text, err, want)
		}
	}
}

func TestParseTokens(t *testing.T) {
	got, err := ParseTokens([]byte("# tokens\nabc: acme\n\"0123\": Big Corp.\n17: acme\n"))
	if want := map[string]string{"abc": "acme", "0123": "Big Corp.", "17": "acme"}; err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %v %v", got, err)
	}
	for name, test := range map[string]struct{ text, want string }{
		"empty":  {"", "read tokens: not one YAML map"},
		"list":   {"- hush\n", "read tokens: not one YAML map"},
		"broken": {"hush: [\n", "read tokens: not one YAML map"},
		"twice":  {"hush: a\nx: b\nhush: c\n", "read tokens: line 3: a token is there twice"},
		"space":  {"\"hush hush\": a\n", "read tokens: line 1: the token is not printable ASCII without spaces"},
		"null":   {"hush:\n", "read tokens: line 1: the tenant is no name of 1 to 255 bytes"},
		"two":    {"a: b\n---\nhush: c\n", "read tokens: more than one YAML document"},
		"escape": {"hush: \"a\\nb\"\n", "read tokens: line 1: the tenant is no name of 1 to 255 bytes"},
		"alias":  {"x: &hush b\nhush: *hush\n", "read tokens: line 2: the tenant is no name of 1 to 255 bytes"},
		"map":    {"hush: {a: b}\n", "read tokens: line 1: the tenant is no name of 1 to 255 bytes"},
	} {
		if _, err := ParseTokens([]byte(test.text)); err == nil || err.Error() != test.want {
			t.Errorf("%s: got %v, want %s", name, err, test.want)
		}
	}
}

// TestFilesThatWouldBlock: a pipe that nobody writes to must not hang the check.
func TestFilesThatWouldBlock(t *testing.T) {
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{pipe, "/dev/zero"} {
		if _, err := reload.ReadFile(path); err == nil || reason(err) != "not a regular file" {
			t.Errorf("%s: got %v", path, err)
		}
	}
}
