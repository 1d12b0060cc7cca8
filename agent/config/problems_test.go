package config

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"ingest-agent/agent/reload"
)

// noEnv is an environment without variables.
func noEnv(string) (string, bool) { return "", false }

// env is an environment of these variables.
func env(variables map[string]string) Env {
	return func(name string) (string, bool) {
		value, found := variables[name]
		return value, found
	}
}

// badFiles are configurations with one mistake each. want holds the whole problem; "f:" is the file.
var badFiles = []struct{ name, text, want string }{
	{"unknown key", "wal:\n  shard: 2\n", "f:2: wal.shard: unknown key; did you mean shards? allowed: ack, shards, segment_size, segment_age, max_bytes, min_free_bytes, on_full, tenant_share, full_wait, sync_interval, compression"},
	{"unknown key, nothing near", "log:\n  colour: blue\n", "f:2: log.colour: unknown key; allowed: level, format"},
	{"unknown section", "recievers: {}\n", "f:1: recievers: unknown key; did you mean receivers? allowed: data_dir, node, receivers, admin, auth, wal, destinations, routes, tenants, bucket, shipper, archive, recovery, jobs, dead_letter, shutdown, log"},
	{"key twice", "log:\n  level: info\n  format: json\n  level: warn\n", "f:4: log.level: is there twice, first in line 2; keep one"},
	{"section twice", "log: {level: info}\nnode: a\nlog: {level: warn}\n", "f:3: log: is there twice, first in line 1; keep one"},
	{"merge key", "log: &l {level: info}\njobs:\n  <<: *l\n", "f:3: jobs.<<: unknown key; allowed: workers, poll, lease, max_attempts, retention"},
	{"section is a value", "wal: 3\n", "f:1: wal: is a single value; want a section with keys"},
	{"section is a list", "wal:\n- ack: disk\n", "f:1: wal: is a list; want a section with keys"},
	{"value is a section", "wal:\n  ack: {disk: true}\n", "f:2: wal.ack: is a section; want text in UTF-8 without control characters"},
	{"list is a value", "routes: none\n", "f:1: routes: is a single value; want a list"},
	{"list item is a value", "routes:\n- a\n", "f:2: routes[0]: is a single value; want a section with keys"},
	{"key is a list", "log:\n  ? [a]\n  : b\n", "f:1: log: line 2 has a key that is a list; want a plain name"},
	{"top is a list", "- a\n", "f: is a list; want a section with keys"},
	{"no value", "wal:\n  ack:\n", "f:2: wal.ack: has no value; give one or remove the key"},
	{"tag", "node: !!binary aGk=\n", "f:1: node: has the YAML tag \"!!binary\"; want text in UTF-8 without control characters without a tag"},
	{"not YAML", "wal:\n\tack: disk\n", "f:2: not YAML: found character that cannot start any token; want YAML"},
	{"two documents", "node: a\n---\nnode: b\n", "f:2: a second YAML document; want one"},

	{"number is text", "wal: {shards: two}\n", "f:1: wal.shards: \"two\" is not understood; want a whole number"},
	{"number is quoted", "wal: {shards: \"2\"}\n", "f:1: wal.shards: is quoted text; want a whole number"},
	{"number is a fraction", "wal: {shards: 2.5}\n", "f:1: wal.shards: \"2.5\" is not understood; want a whole number"},
	{"number too small", "wal: {shards: 0}\n", "f:1: wal.shards: \"0\" is out of range; want 1 to 64"},
	{"number too large", "wal: {shards: 65}\n", "f:1: wal.shards: \"65\" is out of range; want 1 to 64"},
	{"bool is a word", "archive: {enabled: yes}\n", "f:1: archive.enabled: \"yes\" is not understood; want true or false"},
	{"fraction of zero", "wal: {tenant_share: 0}\n", "f:1: wal.tenant_share: \"0\" is out of range; want a fraction above 0 and up to 1"},
	{"fraction above one", "wal: {tenant_share: 1.01}\n", "f:1: wal.tenant_share: \"1.01\" is out of range; want a fraction above 0 and up to 1"},
	{"fraction is no number", "wal: {tenant_share: NaN}\n", "f:1: wal.tenant_share: \"NaN\" is out of range; want a fraction above 0 and up to 1"},
	{"size with a wrong unit", "wal: {segment_size: 8M}\n", "f:1: wal.segment_size: \"8M\" is not understood; want a size such as 512KiB, 8MiB, 1GiB, 1GB or a plain number of bytes"},
	{"size below zero", "wal: {min_free_bytes: -1}\n", "f:1: wal.min_free_bytes: \"-1\" is not understood; want a size such as 512KiB, 8MiB, 1GiB, 1GB or a plain number of bytes"},
	{"size too small", "wal: {max_bytes: 1KiB}\n", "f:1: wal.max_bytes: \"1KiB\" is out of range; want at least 64KiB"},
	{"request too large", "receivers:\n  http:\n    max_request_size: 65MiB\n", "f:3: receivers.http.max_request_size: \"65MiB\" is out of range; want 1KiB to 64MiB"},
	{"duration without unit", "wal: {segment_age: 30}\n", "f:1: wal.segment_age: \"30\" is not understood; want a duration such as 200ms, 30s, 5m, 168h or 0"},
	{"duration below zero", "wal: {full_wait: -1s}\n", "f:1: wal.full_wait: \"-1s\" is out of range; want 0 to 1m"},
	{"no time to stop", "shutdown: {timeout: 0}\n", "f:1: shutdown.timeout: \"0\" is out of range; want 100ms to 24h"},
	{"one of", "wal: {ack: disc}\n", "f:1: wal.ack: \"disc\" is not known; did you mean disk? allowed: disk, bucket, os"},
	{"compression of lanes", "wal: {compression: gzip}\n", "f:1: wal.compression: \"gzip\" is not known; allowed: none, zstd"},
	{"control character", "node: \"a\\nb\"\n", "f:1: node: \"a\\nb\" is not understood; want text in UTF-8 without control characters"},
	{"node with a space", "node: a b\n", "f:1: node: \"a b\" is no name of a node; want up to 253 printable ASCII characters without spaces"},
	{"network", "auth: {trusted_proxies: [10.0.0.0/33]}\n", "f:1: auth.trusted_proxies[0]: \"10.0.0.0/33\" is not understood; want an address such as 10.0.0.7 or a network such as 10.0.0.0/8"},
	{"header of the tenant", "auth: {tenant_header: \"X Y\"}\n", "f:1: auth.tenant_header: \"X Y\" is no name of a header; want letters, digits and -"},

	{"listen without port", "admin: {endpoint: localhost}\n", "f:1: admin.endpoint: \"localhost\" is no address to listen on; want host:port such as 127.0.0.1:4317, or :4317 for all addresses"},
	{"listen with a large port", "admin: {endpoint: \"localhost:65536\"}\n", "f:1: admin.endpoint: \"localhost:65536\" is no address to listen on; want host:port such as 127.0.0.1:4317, or :4317 for all addresses"},
	{"listen nowhere", "admin: {endpoint: \"\"}\n", "f:1: admin.endpoint: is empty; want host:port"},
	{"listen twice", "receivers:\n  http:\n    endpoint: 127.0.0.1:4317\n", "f:3: receivers.http.endpoint: is also the one of receivers.grpc; want a free one"},
	{"segment larger than all", "wal:\n  max_bytes: 1MiB\n  segment_size: 2MiB\n", "f:3: wal.segment_size: a segment of 2MiB does not fit into max_bytes 1MiB; want segment_size up to max_bytes"},
	{"less than a segment", "wal:\n  max_bytes: 1MiB\n", "f:2: wal.max_bytes: a segment of 8MiB does not fit into max_bytes 1MiB; want segment_size up to max_bytes"},
	{"data_dir is empty", "data_dir: \"\"\n", "f:1: data_dir: is empty; want a directory"},
	{"ack by a bucket inside", "wal:\n  ack: bucket\n", "f:2: wal.ack: bucket promises nothing while the bucket is inside data_dir; set bucket.url to one outside of it, or ack: disk"},
	{"bucket is data_dir", "data_dir: x\nbucket:\n  url: file:./x/\n", "f:3: bucket.url: is the data directory itself; want another directory"},
	{"bucket is empty", "bucket: {url: \"\"}\n", "f:1: bucket.url: is empty; give one, or remove the key for a directory in data_dir"},
	{"bucket of a wrong kind", "bucket: {url: \"gs://a\"}\n", "f:1: bucket.url: is no bucket that is known; want file:DIR or s3://BUCKET/PREFIX?region=R&endpoint=URL&path_style=true"},
	{"bucket with slashes", "bucket: {url: \"file:///tmp/x\"}\n", "f:1: bucket.url: names no directory; want file:DIR, without //"},
	{"bucket with an option", "bucket: {url: \"s3://abc/p?regoin=x\"}\n", "f:1: bucket.url: has an unknown option \"regoin\"; did you mean region? allowed: region, endpoint, path_style"},
	{"bucket with a secret", "bucket: {url: \"s3://key:hush@abc/p\"}\n", "f:1: bucket.url: holds credentials; give them by AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY or another source of the SDK"},
	{"bucket with a bad style", "bucket: {url: \"s3://abc/p?path_style=1\"}\n", "f:1: bucket.url: has a path_style that is not known; want true or false"},
	{"bucket with a bad endpoint", "bucket: {url: \"s3://abc/p?endpoint=minio:9000\"}\n", "f:1: bucket.url: has an endpoint that is no http:// or https:// URL; want endpoint=https://host:port"},
	{"heartbeat too slow", "recovery:\n  heartbeat: 11s\n", "f:2: recovery.heartbeat: is too long for a stale_after of 1m; want at most a sixth of it, 10s"},

	{"no default", "destinations:\n  acme: {type: file, endpoint: a}\n", "f:1: destinations: has no \"default\", where data goes that no route matches; name one of them default"},
	{"name of a destination", "destinations:\n  default: {type: file, endpoint: a}\n  Acme: {type: file, endpoint: b}\n", "f:3: destinations.Acme: is no name of a destination; want [a-z0-9][a-z0-9_-]{0,62}"},
	{"destination twice", "destinations:\n  default: {type: file, endpoint: a}\n  default: {type: file, endpoint: b}\n", "f:3: destinations.default: is there twice, first in line 2; keep one"},
	{"one directory twice", "destinations:\n  default: {type: file, endpoint: a}\n  other: {type: file, endpoint: ./a/}\n", "f:3: destinations.other.endpoint: is also the directory of destination default; want one directory for each"},
	{"route to nowhere", "routes:\n- tenant: acme\n  destination: defualt\n", "f:3: routes[0].destination: \"defualt\" is no destination; did you mean default? allowed: default"},
	{"route without tenant", "routes:\n- destination: default\n", "f:2: routes[0].tenant: is missing; name of the tenant"},
	{"route that never matches", "routes:\n- {tenant: a, destination: default}\n- {tenant: a, destination: default}\n", "f:3: routes[1].tenant: never matches: routes[0] has the same tenant and comes first; remove one"},
	{"tenant to nowhere", "tenants:\n  acme:\n    destination: acme\n", "f:3: tenants.acme.destination: \"acme\" is no destination; allowed: default"},
	{"tenant without name", "tenants:\n  \"\": {share: 0.1}\n", "f:2: tenants.: is no name of a tenant; want 1 to 255 bytes of printable UTF-8, no space at an end"},
	{"share of a tenant", "tenants:\n  a: {share: 2}\n", "f:2: tenants.a.share: \"2\" is out of range; want a fraction above 0 and up to 1"},

	{"variable is not set", "node: a\nbucket: {url: \"file:${env:WHERE}\"}\n", "f:2: bucket.url: environment variable WHERE is not set; want ${env:NAME} or ${env:NAME:-default}, and $$ for a plain $"},
	{"reference without scheme", "node: ${NAME}\n", "f:1: node: has a reference that is not understood; want ${env:NAME} or ${env:NAME:-default}, and $$ for a plain $"},
	{"reference that is open", "node: a${env:NAME\n", "f:1: node: has a reference that is not understood; want ${env:NAME} or ${env:NAME:-default}, and $$ for a plain $"},

	{"no tokens", "auth:\n  tokens_file: /nonexistent/tokens\n", "f:2: auth.tokens_file: cannot be read: no such file or directory; want a file that the agent may read"},
	{"no admin token", "admin:\n  auth_token_file: /nonexistent/token\n", "f:2: admin.auth_token_file: cannot be read: no such file or directory; want a file that the agent may read"},
	{"certificate without key", "admin:\n  tls:\n    cert_file: problem.go\n", "f:3: admin.tls.cert_file: is set without key_file; set both or none"},
	{"key without certificate", "admin:\n  tls:\n    key_file: problem.go\n", "f:3: admin.tls.key_file: is set without cert_file; set both or none"},
	{"no certificate", "receivers:\n  grpc:\n    tls: {cert_file: /nonexistent/c, key_file: problem.go}\n", "f:3: receivers.grpc.tls.cert_file: cannot be read: no such file or directory; want a file that the agent may read"},
	{"certificate is none", "receivers:\n  grpc:\n    tls: {cert_file: problem.go, key_file: problem.go}\n", "f:3: receivers.grpc.tls.cert_file: cannot be used with key_file: tls: failed to find any PEM data in certificate input; want a certificate and its key, both in PEM"},
	{"certificate is a directory", "receivers:\n  grpc:\n    tls: {cert_file: ., key_file: problem.go}\n", "f:3: receivers.grpc.tls.cert_file: cannot be read: not a regular file; want a file that the agent may read"},
	{"data_dir is a file", "data_dir: problem.go\n", "f:1: data_dir: is no directory; want a directory, or a name that is free"},
	{"data_dir below a file", "data_dir: problem.go/x\n", "f:1: data_dir: cannot be used: not a directory; want a directory"},
}

// badDestinations are mistakes in one destination that is good otherwise; each stands in line 4.
var badDestinations = []struct{ name, kind, endpoint, line, want string }{
	{"no TLS", "otlp_http", "http://h", "tls: {ca_file: problem.go}", "tls.ca_file: holds no certificate; want certificates in PEM"},
	{"in flight", "otlp_http", "http://h", "in_flight: 257", "in_flight: \"257\" is out of range; want 1 to 256"},
	{"in flight and in order", "otlp_http", "http://h", "in_flight: 2, ordered: true", "in_flight: is more than one with ordered: true; want in_flight: 1, or ordered: false"},
	{"retry", "otlp_http", "http://h", "retry: {initial_interval: 31s}", "retry.initial_interval: is longer than max_interval 30s; want at most that"},
	{"HTTP code", "otlp_http", "http://h", "retry: {retry_codes: [429, 302]}", "retry.retry_codes[1]: 302 is no code of a failure for otlp_http; want 400 to 599"},
	{"gRPC code", "otlp_grpc", "h:1", "retry: {retry_codes: [17]}", "retry.retry_codes[0]: 17 is no code of a failure for otlp_grpc; want 1 to 16"},
	{"header twice", "otlp_http", "http://h", "headers: {a: x, A: y}", "headers.a: is there twice: names of headers differ in more than case; keep one"},
	{"own header", "otlp_http", "http://h", "headers: {Content-Type: x}", "headers.Content-Type: is a header that cannot be set; not allowed: connection, content-encoding, content-length, content-type, host, ingest-agent-frames, te, transfer-encoding, upgrade, grpc-*, *-bin"},
	{"name of a header", "otlp_http", "http://h", "headers: {\"a b\": x}", "headers.a b: is no name of a header; want letters, digits and -"},
	{"header with a line end", "otlp_http", "http://h", "headers: {a: \"hush\\r\\nb: c\"}", "headers.a: the value is not understood; want text in UTF-8 without control characters"},
	{"header is a list", "otlp_http", "http://h", "headers: {a: [x]}", "headers.a: is a list; want text in UTF-8 without control characters"},
	{"unknown key", "otlp_http", "http://h", "tiemout: 1s", "tiemout: unknown key; did you mean timeout? allowed: type, endpoint, compression, headers, timeout, in_flight, max_request_size, retry, max_age, tls, ordered, frame_ids, park_after"},
}

// badEndpoints are endpoints that a type of destination does not take.
var badEndpoints = []struct{ kind, endpoint, want string }{
	{"otlp_http", "collector:4318", "is no http:// or https:// URL; "},
	{"otlp_http", "https://", "names no host, or a bad one; "},
	{"otlp_http", "https://h:", "names no host, or a bad one; "},
	{"otlp_http", "https://h:99999", "names no host, or a bad one; "},
	{"otlp_http", "https://u:hush@h", "holds credentials; "},
	{"otlp_http", "https://h/x?a=b", "has a query or fragment; "},
	{"otlp_http", "https://h/%zz", "is no http:// or https:// URL; "},
	{"otlp_grpc", "https://h:4317", "is no host:port; "},
	{"otlp_grpc", "h", "is no host:port; "},
	{"otlp_grpc", ":4317", "is no host:port; "},
	{"otlp_grpc", "h:0", "is no host:port; "},
	{"file", "problem.go", "is no directory; "},
	{"file", "", "is empty; "},
	{"otlp_http", "", "is empty; "},
}

func TestOneProblem(t *testing.T) {
	for _, bad := range badFiles {
		t.Run(bad.name, func(t *testing.T) { wantProblem(t, bad.text, bad.want) })
	}
	for _, bad := range badDestinations {
		t.Run("destination/"+bad.name, func(t *testing.T) {
			text := fmt.Sprintf("destinations:\n  default:\n    {type: %s, endpoint: %q,\n    %s}\n", bad.kind, bad.endpoint, bad.line)
			wantProblem(t, text, "f:4: destinations.default."+bad.want)
		})
	}
	for _, bad := range badEndpoints {
		t.Run("endpoint/"+bad.kind+"/"+bad.endpoint, func(t *testing.T) {
			text := fmt.Sprintf("destinations:\n  default:\n    type: %s\n    endpoint: '%s'\n", bad.kind, bad.endpoint)
			_, err := Parse("f", []byte(text), nil, noEnv)
			if want := "f:4: destinations.default.endpoint: " + bad.want; err == nil || !strings.HasPrefix(err.Error(), want) {
				t.Errorf("got  %v\nwant %s...", err, want)
			}
			if err != nil && strings.Contains(err.Error(), "hush") {
				t.Errorf("the problem shows a secret: %v", err)
			}
		})
	}
}

// wantProblem parses text and wants exactly one problem.
func wantProblem(t *testing.T, text, want string) {
	t.Helper()
	c, err := Parse("f", []byte(text), nil, noEnv)
	if err == nil {
		t.Fatalf("no problem was found, want %s", want)
	}
	if err.Error() != want {
		t.Errorf("got  %v\nwant %s", err, want)
	}
	if strings.Contains(err.Error(), "hush") {
		t.Error("the problem shows a secret")
	}
	if c.DataDir != "" {
		t.Error("a configuration came with the problem")
	}
}

func TestAllProblemsAtOnceInTheOrderOfTheFile(t *testing.T) {
	text := "wal:\n  ack: disc\n  shards: 0\nrouts: []\nlog: {level: loud}\nbucket: {url: nfs}\n"
	_, err := Parse("f", []byte(text), []Override{{Key: "admin.endpoint", Value: "x", Origin: "--admin"}}, noEnv)
	var problems Problems
	if !errors.As(err, &problems) {
		t.Fatalf("got %v, want Problems", err)
	}
	var got []string
	for _, p := range problems {
		got = append(got, fmt.Sprintf("%s %s", p.Where, p.Key))
	}
	want := "--admin admin.endpoint, f:2 wal.ack, f:3 wal.shards, f:4 routs, f:5 log.level, f:6 bucket.url"
	if strings.Join(got, ", ") != want {
		t.Errorf("got  %s\nwant %s", strings.Join(got, ", "), want)
	}
}

func TestManyProblemsAreBounded(t *testing.T) {
	_, err := Parse("f", []byte(manyKeys(10*maxProblems)), nil, noEnv)
	var problems Problems
	if !errors.As(err, &problems) || len(problems) != maxProblems {
		t.Errorf("got %d problems, want %d", len(problems), maxProblems)
	}
}

func TestManyDestinationsAreBounded(t *testing.T) {
	var b strings.Builder
	b.WriteString("destinations:\n  default: &d {type: otlp_http, endpoint: 'http://h'}\n")
	for i := range maxDestinations - 1 {
		fmt.Fprintf(&b, "  d%d: *d\n", i)
	}
	if _, err := Parse("f", []byte(b.String()), nil, noEnv); err != nil {
		t.Errorf("at the limit: %v", err)
	}
	wantProblem(t, b.String()+"  one-more: *d\n", "f:1: destinations: 257 destinations; want at most 256")
}

func manyKeys(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "key%d: 1\n", i)
	}
	return b.String()
}

// TestAliasesAreBounded: a small file that means many values.
func TestAliasesAreBounded(t *testing.T) {
	var b strings.Builder
	b.WriteString("destinations:\n  default: &d\n    type: file\n    endpoint: a\n    headers: &h {")
	for i := range 1000 {
		fmt.Fprintf(&b, "h%d: x, ", i)
	}
	b.WriteString("}\n")
	for i := range 200 {
		fmt.Fprintf(&b, "  d%d: {type: otlp_http, endpoint: 'http://h', headers: *h}\n", i)
	}
	_, err := Parse("f", []byte(b.String()), nil, noEnv)
	if err == nil || !strings.HasPrefix(err.Error(), "f: the file holds too many values, at the latest in destinations.d") {
		t.Errorf("got %.300v", err)
	}
}

func TestAliasOfItself(t *testing.T) {
	_, err := Parse("f", []byte("destinations: &d\n  default: *d\n"), nil, noEnv)
	if err == nil || !strings.Contains(err.Error(), "destinations.default.default: unknown key") {
		t.Errorf("got %v", err)
	}
}

func TestValuesFromTheEnvironmentAreNotShown(t *testing.T) {
	text := "node: ${env:S}\nwal: {shards: \"${env:S}\", ack: \"${env:S}\"}\nlog: {level: \"${env:S}\"}\nadmin: {endpoint: \"${env:S}\", auth_token_file: \"${env:S}\"}\n" +
		"auth: {tokens_file: \"${env:S}\"}\nbucket: {url: \"${env:S}\"}\n" +
		"destinations: {default: {type: otlp_http, endpoint: \"${env:S}\", headers: {a: \"${env:S}\"}, tls: {cert_file: \"${env:S}\"}}}\n" +
		"routes: [{tenant: a, destination: \"${env:D}\"}]\n"
	_, err := Parse("f", []byte(text), nil, env(map[string]string{"S": "hush hush\n", "D": "hush"}))
	if err == nil {
		t.Fatal("no problem was found")
	}
	if strings.Contains(err.Error(), "hush") {
		t.Errorf("a value is shown:\n%v", err)
	}
	problems, _ := errors.AsType[Problems](err)
	if got := len(problems); got != 12 {
		t.Errorf("got %d problems, want 12:\n%v", got, err)
	}
}

func TestFileThatCannotBeRead(t *testing.T) {
	dir := t.TempDir()
	large := filepath.Join(dir, "large")
	if err := os.WriteFile(large, make([]byte, reload.MaxFileBytes+1), 0o600); err != nil {
		t.Fatal(err)
	}
	for file, want := range map[string]string{
		filepath.Join(dir, "absent"): "no such file or directory",
		dir:                          "is a directory",
		large:                        "larger than 4MiB",
	} {
		_, err := Load(file, nil, noEnv)
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), file) {
			t.Errorf("got %v, want %s and the path", err, want)
		}
	}
}
