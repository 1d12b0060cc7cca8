package config

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// ignoreSet leaves out which keys were written.
var ignoreSet = cmpopts.IgnoreUnexported(Config{}, netip.Prefix{})

func mustParse(t *testing.T, text string, overrides ...Override) Config {
	t.Helper()
	c, err := Parse("f", []byte(text), overrides, env(map[string]string{"TOKEN": "s3cret: [x", "EMPTY": "", "N": "7", "REF": "${env:TOKEN}$$"}))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func mustDefault(t *testing.T) Config {
	t.Helper()
	c, err := Default()
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestDefaultsWithoutFile(t *testing.T) {
	c := mustDefault(t)
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	got := []string{
		c.DataDir, c.Receivers.GRPC.Endpoint, c.Receivers.HTTP.Endpoint, c.Admin.Endpoint, c.Bucket.URL,
		string(c.Destinations["default"].Type), c.Destinations["default"].Endpoint, c.Node,
	}
	want := []string{"./data", "127.0.0.1:4317", "127.0.0.1:4318", "127.0.0.1:8888", "file:./data/bucket", "file", "./data/out", host}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if len(c.Destinations) != 1 {
		t.Errorf("got %d destinations, want 1", len(c.Destinations))
	}
	if keys := Unbuilt(c); len(keys) != 0 {
		t.Errorf("without a file nothing is set, got %v", keys)
	}
}

// TestEmptyFilesMeanDefaults: what is there, but empty, is as if it were absent.
func TestEmptyFilesMeanDefaults(t *testing.T) {
	want := mustDefault(t)
	for _, text := range []string{"", "# nothing\n", "---\n", "wal:\n  # ack: os\ndestinations:\nroutes:\nbucket: {}\ntenants: {}\n", "\ufeffwal: {}\n"} {
		if diff := cmp.Diff(want, mustParse(t, text), ignoreSet); diff != "" {
			t.Errorf("%q: %s", text, diff)
		}
	}
}

func TestListingOfDefaultsMeansDefaults(t *testing.T) {
	var b bytes.Buffer
	if err := WriteDefaults(&b); err != nil {
		t.Fatal(err)
	}
	c := mustParse(t, b.String())
	if diff := cmp.Diff(mustDefault(t), c, ignoreSet); diff != "" {
		t.Error(diff)
	}
	lines := strings.Split(b.String(), "\n")
	for _, key := range allKeys(reflect.TypeFor[Config]()) {
		found := false
		for _, line := range lines {
			text, help, hasHelp := strings.Cut(strings.TrimLeft(line, "# -"), " # ")
			if strings.HasPrefix(text, key+":") {
				found = true
				if !hasHelp || help == "" {
					t.Errorf("no help: %s", line)
				}
			}
		}
		if !found {
			t.Errorf("%s is not listed", key)
		}
	}
	// The examples of entries are in comments; what they show is valid too.
	for _, section := range []string{"routes", "tenants"} {
		before, after, _ := strings.Cut(b.String(), "\n"+section+":")
		example, _, _ := strings.Cut(after, "\n\n")
		_, example, _ = strings.Cut(example, "\n")
		text := before + "\n" + section + ":\n" + strings.ReplaceAll(strings.ReplaceAll(example, "#  ", "  "), "destination: NAME", "destination: default")
		if got := mustParse(t, text); len(got.Routes)+len(got.Tenants) != 1 {
			t.Errorf("the example of %s has no entry:\n%s", section, example)
		}
	}
}

// allKeys lists the names of all keys of a section and those below it.
func allKeys(t reflect.Type) (keys []string) {
	for f := range t.Fields() {
		if f.Tag.Get("key") == "" {
			continue
		}
		keys = append(keys, f.Tag.Get("key"))
		entry := f.Type
		if entry.Kind() == reflect.Map || entry.Kind() == reflect.Slice {
			entry = entry.Elem()
		}
		if entry.Kind() == reflect.Struct {
			keys = append(keys, allKeys(entry)...)
		}
	}
	return keys
}

// TestEveryFieldHasAGoodTag: a field without key would be a setting that nobody can make, a bad limit one that no value meets.
func TestEveryFieldHasAGoodTag(t *testing.T) {
	var walk func(path string, s reflect.Type)
	walk = func(path string, s reflect.Type) {
		for f := range s.Fields() {
			if !f.IsExported() {
				continue
			}
			name := path + "." + f.Name
			if f.Tag.Get("key") == "" || f.Tag.Get("help") == "" {
				t.Errorf("%s has no key or no help", name)
			}
			if byDefault, found := f.Tag.Lookup("default"); found && !parseInto(reflect.New(f.Type).Elem(), byDefault) {
				t.Errorf("%s: default %s is not understood", name, byDefault)
			}
			if low, high, isRange := strings.Cut(f.Tag.Get("rule"), ".."); isRange {
				for _, limit := range []string{low, high} {
					v := reflect.New(f.Type).Elem()
					if f.Type.Kind() == reflect.Slice {
						v = reflect.New(f.Type.Elem()).Elem()
					}
					if limit != "" && !parseInto(v, limit) {
						t.Errorf("%s: limit %s is not understood", name, limit)
					}
				}
			}
			entry := f.Type
			if entry.Kind() == reflect.Map || entry.Kind() == reflect.Slice {
				entry = entry.Elem()
			}
			if entry.Kind() == reflect.Struct && entry != reflect.TypeFor[netip.Prefix]() {
				walk(name, entry)
			}
		}
	}
	walk("Config", reflect.TypeFor[Config]())
}

// fullFile sets every section; %s is a directory with the files that it names.
const fullFile = `
data_dir: /var/lib/ingest-agent
node: web-3
receivers:
  grpc: {endpoint: ":4317", max_request_size: 32MiB, tls: {cert_file: %[1]s/cert.pem, key_file: %[1]s/key.pem, client_ca_file: %[1]s/cert.pem, reload_interval: 1h}}
  http: {endpoint: "[::1]:4318", max_request_size: 1MB, read_timeout: 1m30s}
admin: {endpoint: localhost:0, auth_token_file: %[1]s/token, tls: {cert_file: %[1]s/cert.pem, key_file: %[1]s/key.pem}}
auth: {tokens_file: %[1]s/tokens.yaml, tenant_header: X-Tenant, trusted_proxies: [10.1.2.3/8, "::1"]}
wal: {ack: os, shards: 8, segment_size: 1GiB, segment_age: 1m, max_bytes: 100GiB, min_free_bytes: 0, on_full: drop_oldest,
  tenant_share: 1, full_wait: 0, sync_interval: 50ms, compression: zstd}
destinations:
  default:
    type: otlp_http
    endpoint: https://collector.example:4318/base
    compression: zstd
    headers: {authorization: "Bearer ${env:TOKEN}", x-cost: "$$5 $x"}
    timeout: 3s
    in_flight: ${env:N}
    max_request_size: 2MiB
    retry: {initial_interval: 1s, max_interval: 1s, retry_codes: [500, 408]}
    max_age: 24h
    tls: {insecure_skip_verify: true, ca_file: %[1]s/cert.pem, cert_file: %[1]s/cert.pem, key_file: %[1]s/key.pem, server_name_override: other.example, reload_interval: 5m}
    ordered: false
    frame_ids: false
    park_after: 0
  acme: {type: otlp_grpc, endpoint: "collector.example:4317", tls: {insecure: true}, ordered: true}
  kept: {type: file, endpoint: /srv/kept}
routes:
- {tenant: acme, destination: acme}
- {tenant: 007, destination: "kept"}
tenants:
  Big Corp.: {bytes_per_second: 10MB, share: 0.25, destination: acme}
bucket: {url: "s3://telemetry-wal/prod?region=eu-west-1&endpoint=http://minio:9000&path_style=true"}
shipper: {after: 1s, retry_max_interval: 10s}
archive: {enabled: true, retention: 24h}
recovery: {enabled: false, scan_interval: 1s, heartbeat: 1s, stale_after: 6s, concurrency: 4, boot_wait: 0, tombstone_retention: 24h}
jobs: {workers: 2, poll: 1s, lease: 10s, max_attempts: 5, retention: 1h}
dead_letter: {max_bytes: 1GB}
shutdown: {timeout: 1m}
log: {level: debug, format: console}
`

func TestFullFile(t *testing.T) {
	dir := t.TempDir()
	writePair(t, dir, "cert.pem", "key.pem")
	write(t, dir, "token", "abc\n")
	write(t, dir, "tokens.yaml", "abc: acme\n")
	c := mustParse(t, fmt.Sprintf(fullFile, dir))
	tls := ServerTLS{CertFile: dir + "/cert.pem", KeyFile: dir + "/key.pem"}
	grpcTLS := tls
	grpcTLS.ClientCAFile, grpcTLS.ReloadInterval = dir+"/cert.pem", time.Hour
	acme := mustParse(t, "destinations: {default: {type: otlp_grpc, endpoint: 'collector.example:4317', tls: {insecure: true}}}").Destinations["default"]
	acme.Ordered, acme.InFlight = true, 1
	kept := mustParse(t, "destinations: {default: {type: file, endpoint: /srv/kept}}").Destinations["default"]
	want := Config{
		DataDir: "/var/lib/ingest-agent", Node: "web-3",
		Receivers: Receivers{
			GRPC: GRPCReceiver{Endpoint: ":4317", MaxRequestSizeBytes: 32 << 20, TLS: grpcTLS},
			HTTP: HTTPReceiver{Endpoint: "[::1]:4318", MaxRequestSizeBytes: 1e6, ReadTimeout: 90 * time.Second},
		},
		Admin: Admin{Endpoint: "localhost:0", AuthTokenFile: dir + "/token", TLS: tls},
		Auth: Auth{TokensFile: dir + "/tokens.yaml", TenantHeader: "X-Tenant",
			TrustedProxies: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("::1/128")}},
		WAL: WAL{Ack: AckOS, Shards: 8, SegmentSizeBytes: 1 << 30, SegmentAge: time.Minute, MaxBytes: 100 << 30, OnFull: OnFullDropOldest,
			TenantShare: 1, SyncInterval: 50 * time.Millisecond, Compression: WALZstd},
		Destinations: map[string]Destination{
			"default": {
				Type: OTLPHTTP, Endpoint: "https://collector.example:4318/base", Compression: CompressionZstd,
				Headers: map[string]Secret{"authorization": "Bearer s3cret: [x", "x-cost": "$5 $x"},
				Timeout: 3 * time.Second, InFlight: 7, MaxRequestSizeBytes: 2 << 20,
				Retry:  Retry{InitialInterval: time.Second, MaxInterval: time.Second, RetryCodes: []int{500, 408}},
				MaxAge: 24 * time.Hour,
				TLS: ClientTLS{InsecureSkipVerify: true, CAFile: dir + "/cert.pem", CertFile: dir + "/cert.pem", KeyFile: dir + "/key.pem",
					ServerNameOverride: "other.example", ReloadInterval: 5 * time.Minute},
			},
			"acme": acme,
			"kept": kept,
		},
		Routes:     []Route{{"acme", "acme"}, {"007", "kept"}},
		Tenants:    map[string]Tenant{"Big Corp.": {10e6, 0.25, "acme"}},
		Bucket:     Bucket{"s3://telemetry-wal/prod?region=eu-west-1&endpoint=http://minio:9000&path_style=true"},
		Shipper:    Shipper{time.Second, 10 * time.Second},
		Archive:    Archive{true, 24 * time.Hour},
		Recovery:   Recovery{false, time.Second, time.Second, 6 * time.Second, 4, 0, 24 * time.Hour},
		Jobs:       Jobs{2, time.Second, 10 * time.Second, 5, time.Hour},
		DeadLetter: DeadLetter{1e9},
		Shutdown:   Shutdown{time.Minute},
		Log:        Log{"debug", "console"},
	}
	if !reflect.DeepEqual(want.Destinations["default"].Headers, c.Destinations["default"].Headers) { // cmp shows the secrets redacted
		t.Errorf("headers differ: %q", string(c.Destinations["default"].Headers["authorization"]))
	}
	if diff := cmp.Diff(want, c, cmpopts.IgnoreUnexported(Config{}), cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })); diff != "" {
		t.Error(diff)
	}
	wantUnbuilt := append(unbuilt(), "wal.on_full: drop_oldest")
	got := Unbuilt(c)
	if diff := cmp.Diff(wantUnbuilt, got); diff != "" {
		t.Error(diff)
	}
	for _, shown := range []string{fmt.Sprint(c), fmt.Sprintf("%+v %#v", c, c), toJSON(t, c)} {
		if strings.Contains(shown, "s3cret") {
			t.Errorf("a secret is shown: %s", shown)
		}
	}
}

func toJSON(t *testing.T, v any) string {
	t.Helper()
	text, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestWhatFollowsDataDir(t *testing.T) {
	dir := Override{Key: "data_dir", Value: "/srv/agent/", Origin: "--data-dir"}
	for _, test := range []struct {
		name, text, bucket, out string
		overrides               []Override
	}{
		{"neither is set", "", "file:/srv/agent/bucket", "/srv/agent/out", []Override{dir}},
		{"data_dir in the file", "data_dir: x", "file:x/bucket", "x/out", nil},
		{"the override wins", "data_dir: x", "file:/srv/agent/bucket", "/srv/agent/out", []Override{dir}},
		{"bucket in the file", "bucket: {url: 'file:b'}", "file:b", "/srv/agent/out", []Override{dir}},
		{"bucket by override", "bucket: {url: 'file:b'}", "file:c", "/srv/agent/out", []Override{dir, {"bucket.url", "file:c", "--bucket"}}},
		{"destination in the file", "destinations: {default: {type: file, endpoint: o}}", "file:/srv/agent/bucket", "o", []Override{dir}},
		{"destination by override", "", "file:/srv/agent/bucket", "o", []Override{dir, {KeyDestination, "file:o", "--destination"}}},
		{"another destination by override", "destinations: {default: {type: file, endpoint: o}}", "file:/srv/agent/bucket", "o",
			[]Override{dir, {KeyDestination, "acme=file:a", "--destination"}}},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := mustParse(t, test.text, test.overrides...)
			if c.Bucket.URL != test.bucket || c.Destinations["default"].Endpoint != test.out {
				t.Errorf("got %s and %s, want %s and %s", c.Bucket.URL, c.Destinations["default"].Endpoint, test.bucket, test.out)
			}
		})
	}
}

// TestDestinationByOverrideIsNew: nothing of the file's destination, least of all a header, goes to another endpoint.
func TestDestinationByOverrideIsNew(t *testing.T) {
	text := "destinations:\n  default: {type: otlp_http, endpoint: 'https://a', headers: {authorization: hush}, in_flight: 9}\n  b: {type: file, endpoint: b}\n"
	c := mustParse(t, text, Override{KeyDestination, "otlp-http:http://other:4318", "--destination"})
	d := c.Destinations["default"]
	if d.Endpoint != "http://other:4318" || len(d.Headers) != 0 || d.InFlight != 4 || len(c.Destinations) != 2 {
		t.Errorf("got %+v of %d", d, len(c.Destinations))
	}
}

func TestBadOverrides(t *testing.T) {
	for _, test := range []struct{ key, value, want string }{
		{"admin.endpoint", "x", `--flag: admin.endpoint: "x" is no address`},
		{"admin.endpoint", "", "--flag: admin.endpoint: is empty"},
		{"bucket.url", "", "--flag: bucket.url: is empty"},
		{"log.level", "loud", `--flag: log.level: "loud" is not known`},
		{KeyDestination, "", "--flag: destinations: is empty"},
		{KeyDestination, "otlp:h", "--flag: destinations: the type is not known; want [NAME=]file:DIR"},
		{KeyDestination, "otlp-http:h", "--flag: destinations.default.endpoint: is no http"},
		{KeyDestination, "otlp-grpc:https://h", "--flag: destinations.default.endpoint: is no host:port"},
		{KeyDestination, "a=file:x", `defaults: destinations: has no "default"`},
		{KeyDestination, "file:problem.go", "--flag: destinations.default.endpoint: is no directory"},
	} {
		_, err := Parse("", nil, []Override{{test.key, test.value, "--flag"}}, noEnv)
		if err == nil || !strings.HasPrefix(err.Error(), test.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s=%s: got %v, want %s...", test.key, test.value, err, test.want)
		}
	}
}

// TestDefaultThatIsNotUsedIsNotChecked: a file named ./data is no problem for who keeps data elsewhere.
func TestDefaultThatIsNotUsedIsNotChecked(t *testing.T) {
	t.Chdir(t.TempDir())
	write(t, ".", "data", "")
	if _, err := Parse("", nil, nil, noEnv); err == nil {
		t.Error("./data is a file, but the default was taken")
	}
	mustParse(t, "data_dir: other")
	mustParse(t, "", Override{"data_dir", "other", "--data-dir"})
}

func TestParseDestination(t *testing.T) {
	for _, test := range []struct{ text, name, kind, endpoint string }{
		{"file:DIR", "default", "file", "DIR"},
		{"file:/a=b", "default", "file", "/a=b"},
		{"otlp-http:https://h:1/x?a=b", "default", "otlp_http", "https://h:1/x?a=b"},
		{"otlp-grpc:h:4317", "default", "otlp_grpc", "h:4317"},
		{"acme=otlp-grpc:[::1]:4317", "acme", "otlp_grpc", "[::1]:4317"},
		{"a=file:b=c", "a", "file", "b=c"},
		{text: ""}, {text: "file"}, {text: "file:"}, {text: "=file:x"}, {text: "A=file:x"}, {text: "otlp_http:http://h"}, {text: "a=b=file:x"},
	} {
		name, d, err := ParseDestination(test.text)
		if (err == nil) != (test.name != "") || name != test.name || string(d.Type) != test.kind || d.Endpoint != test.endpoint {
			t.Errorf("%q: got %q %q %q %v", test.text, name, d.Type, d.Endpoint, err)
		}
	}
}

func TestIsSet(t *testing.T) {
	c := mustParse(t, "wal: {ack: disk}\nroutes: [{tenant: a, destination: default}]\njobs:\n", Override{"log.level", "info", "--log-level"})
	for key, want := range map[string]bool{
		"wal": true, "wal.ack": true, "wal.shards": false, "routes": true, "jobs": true, "log": true, "log.level": true,
		"log.format": false, "destinations": false, "bucket": false, "node": false,
	} {
		if c.IsSet(key) != want {
			t.Errorf("IsSet(%s) is %t", key, !want)
		}
	}
}

func TestAckByABucketOutside(t *testing.T) {
	dir := t.TempDir()
	c := mustParse(t, "wal: {ack: bucket}\nbucket: {url: 's3://abc'}\n")
	if keys := Unbuilt(c); len(keys) > 0 {
		t.Errorf("got %v", keys)
	}
	if err := os.MkdirAll(filepath.Join(dir, "data", "in"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Join(dir, "data"), filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	for bucket, want := range map[string]bool{
		"data/bucket": true, "data/in": true, "link/new/deep": true, "data/../data/x": true, "data/..x": true,
		"bucket": false, "data2": false, "data/../x": false, "": false,
	} {
		c.DataDir, c.Bucket.URL = filepath.Join(dir, "data"), "file:"+dir+"/"+bucket
		if got := c.BucketInsideDataDir(); got != want {
			t.Errorf("%s: inside is %t", bucket, got)
		}
	}
}

func TestLive(t *testing.T) {
	l := NewLive(Log{Level: "info"})
	if l.Load().Level != "info" {
		t.Error("the first value is lost")
	}
	var group sync.WaitGroup
	for i := range 4 {
		group.Go(func() {
			for range 100 {
				l.Store(Log{Level: LogLevel(fmt.Sprint(i)), Format: LogFormat(fmt.Sprint(i))})
				if got := l.Load(); string(got.Level) != string(got.Format) {
					t.Errorf("half a value: %v", got)
				}
			}
		})
	}
	group.Wait()
}

// TestPortZeroIsNoConflict: port 0 is a free port of the kernel's choice, another one for each listener.
func TestPortZeroIsNoConflict(t *testing.T) {
	mustParse(t, "receivers: {grpc: {endpoint: '127.0.0.1:0'}, http: {endpoint: '127.0.0.1:0'}}\nadmin: {endpoint: '127.0.0.1:0'}\n")
}
