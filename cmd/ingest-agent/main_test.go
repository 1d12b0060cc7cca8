package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"ingest-agent/agent/config"
)

// execute runs a command line in this process.
func execute(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	code = run(context.Background(), args, &out, &errs)
	return code, out.String(), errs.String()
}

func writeFile(t testing.TB, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "agent.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestUsageErrors(t *testing.T) {
	for _, test := range []struct{ line, want string }{
		{"", "ingest-agent: no command given; see ingest-agent --help\n"},
		{"confg", "ingest-agent: unknown command \"confg\"; did you mean config?\n"},
		{"xyzzy now", "ingest-agent: unknown command \"xyzzy\"; see ingest-agent --help\n"},
		{"config", "ingest-agent: no command given; see ingest-agent config --help\n"},
		{"config chek", "ingest-agent: unknown command \"chek\"; did you mean check?\n"},
		{"config check", "ingest-agent: accepts 1 arg(s), received 0; usage: ingest-agent config check FILE [flags]\n"},
		{"config check a b", "ingest-agent: accepts 1 arg(s), received 2; usage: ingest-agent config check FILE [flags]\n"},
		{"config defaults x", "ingest-agent: accepts 0 arg(s), received 1; usage: ingest-agent config defaults [flags]\n"},
		{"version --json", "ingest-agent: unknown flag: --json; see ingest-agent version --help\n"},
	} {
		code, stdout, stderr := execute(t, strings.Fields(test.line)...)
		if code != exitUsage || stderr != test.want || stdout != "" {
			t.Errorf("%s: code %d, stdout %q, stderr %q", test.line, code, stdout, stderr)
		}
	}
}

func TestHelp(t *testing.T) {
	code, stdout, stderr := execute(t, "--help")
	if code != exitDone || stderr != "" || !strings.Contains(stdout, "config") || !strings.Contains(stdout, "version") {
		t.Errorf("code %d, stdout %q, stderr %q", code, stdout, stderr)
	}
}

func TestExitCodes(t *testing.T) {
	plain := errors.New("x")
	for _, test := range []struct {
		err  error
		want int
	}{{plain, exitFailed}, {usageError(plain), exitUsage}, {fmt.Errorf("around: %w", withCode(exitLeft, plain)), exitLeft}} {
		got := exitFailed
		if e, ok := errors.AsType[*exitError](test.err); ok {
			got = e.code
		}
		if got != test.want || !errors.Is(test.err, plain) {
			t.Errorf("%v: code %d, want %d", test.err, got, test.want)
		}
	}
	if usageError(nil) != nil {
		t.Error("no error became one")
	}
}

// TestFailedOutputIsFailure: a listing that could not be written is no success.
func TestFailedOutputIsFailure(t *testing.T) {
	for _, line := range []string{"config defaults", "version"} {
		var errs bytes.Buffer
		if code := run(context.Background(), strings.Fields(line), fullDisk{}, &errs); code != exitFailed || !strings.Contains(errs.String(), "no space") {
			t.Errorf("%s: code %d, %q", line, code, errs.String())
		}
	}
}

type fullDisk struct{}

func (fullDisk) Write([]byte) (int, error) { return 0, errors.New("no space") }

func TestConfigCheck(t *testing.T) {
	good := writeFile(t, "wal: {shards: 3}\njobs: {workers: 1}\n")
	code, stdout, stderr := execute(t, "config", "check", good)
	if want := good + ": good\n" + good + ": jobs has no effect yet\n"; code != exitDone || stdout != want || stderr != "" {
		t.Errorf("code %d, stdout %q, stderr %q", code, stdout, stderr)
	}
	bad := writeFile(t, "wal: {shards: 0}\nlog: {levl: info}\n")
	code, stdout, stderr = execute(t, "config", "check", bad)
	want := "ingest-agent: " + bad + ":1: wal.shards: \"0\" is out of range; want 1 to 64\n" +
		"ingest-agent: " + bad + ":2: log.levl: unknown key; did you mean level? allowed: level, format\n"
	if code != exitUsage || stdout != "" || stderr != want {
		t.Errorf("code %d, stdout %q, stderr %q", code, stdout, stderr)
	}
	code, _, stderr = execute(t, "config", "check", bad+".absent")
	if code != exitUsage || strings.Count(stderr, "\n") != 1 || !strings.Contains(stderr, "no such file") {
		t.Errorf("code %d, stderr %q", code, stderr)
	}
}

func TestConfigDefaultsPassesItsOwnCheck(t *testing.T) {
	code, stdout, stderr := execute(t, "config", "defaults")
	if code != exitDone || stderr != "" {
		t.Fatalf("code %d, stderr %q", code, stderr)
	}
	if code, _, stderr := execute(t, "config", "check", writeFile(t, stdout)); code != exitDone {
		t.Errorf("code %d, stderr %q", code, stderr)
	}
}

func TestVersion(t *testing.T) {
	code, stdout, _ := execute(t, "version")
	if code != exitDone || !strings.HasPrefix(stdout, "ingest-agent ") || !strings.HasSuffix(stdout, " "+runtime.Version()+"\n") {
		t.Errorf("code %d, stdout %q", code, stdout)
	}
	if _, flag, _ := execute(t, "--version"); flag != stdout {
		t.Errorf("--version says %q, version %q", flag, stdout)
	}
	recorded := &debug.BuildInfo{Main: debug.Module{Version: "v1.2.3"}, Settings: []debug.BuildSetting{{Key: "vcs.revision", Value: "abc"}}}
	for _, test := range []struct {
		version, commit string
		info            *debug.BuildInfo
		want            string
	}{
		{"v9", "def", recorded, "v9 def"}, {"", "", recorded, "v1.2.3 abc"}, {"v9", "", nil, "v9 unknown"},
		{"", "", &debug.BuildInfo{Main: debug.Module{Version: "(devel)"}}, "devel unknown"}, {"", "", nil, "devel unknown"},
	} {
		if v, c := build(test.version, test.commit, test.info); v+" "+c != test.want {
			t.Errorf("got %s %s, want %s", v, c, test.want)
		}
	}
}

// load runs loadConfig as run does.
func load(t *testing.T, args ...string) (config.Config, error) {
	t.Helper()
	var c config.Config
	cmd := &cobra.Command{Use: "run", SilenceErrors: true, SilenceUsage: true, RunE: func(cmd *cobra.Command, _ []string) (err error) {
		c, err = loadConfig(cmd)
		return err
	}}
	addConfigFlags(cmd)
	cmd.SetArgs(args)
	return c, errors.Join(cmd.Execute())
}

// withoutEnv makes sure that the environment of the test run does not decide.
func withoutEnv(t *testing.T) {
	t.Helper()
	t.Setenv(envName(flagConfig), "")
	for _, f := range overrideFlags() {
		t.Setenv(envName(f.name), "")
	}
}

// TestPrecedence: flag, then environment, then file, then default; for every flag.
func TestPrecedence(t *testing.T) {
	file := writeFile(t, `
data_dir: in-file
bucket: {url: "file:bucket-in-file"}
receivers: {grpc: {endpoint: "in-file:1"}, http: {endpoint: "in-file:2"}}
admin: {endpoint: "in-file:3"}
destinations: {default: {type: file, endpoint: in-file}}
log: {level: warn, format: console}
`)
	values := func(c config.Config) map[string]string {
		return map[string]string{
			"data-dir": c.DataDir, "bucket": c.Bucket.URL, "grpc": c.Receivers.GRPC.Endpoint, "http": c.Receivers.HTTP.Endpoint,
			"admin": c.Admin.Endpoint, "destination": c.Destinations["default"].Endpoint, "log-level": string(c.Log.Level), "log-format": string(c.Log.Format),
		}
	}
	for _, test := range []struct{ flag, byDefault, inFile, inEnv, asEnv, inFlag, asFlag string }{
		{"data-dir", "./data", "in-file", "e", "e", "f", "f"},
		{"bucket", "file:./data/bucket", "file:bucket-in-file", "file:e", "file:e", "s3://flag/p", "s3://flag/p"},
		{"grpc", "127.0.0.1:4317", "in-file:1", "e:1", "e:1", ":0", ":0"},
		{"http", "127.0.0.1:4318", "in-file:2", "e:1", "e:1", ":0", ":0"},
		{"admin", "127.0.0.1:8888", "in-file:3", "e:1", "e:1", ":0", ":0"},
		{"destination", "./data/out", "in-file", "otlp-http:http://e", "http://e", "default=otlp-grpc:f:1", "f:1"},
		{"log-level", "info", "warn", "debug", "debug", "error", "error"},
		{"log-format", "json", "console", "json", "json", "console", "console"},
	} {
		t.Run(test.flag, func(t *testing.T) {
			withoutEnv(t)
			want := func(what, want string, args ...string) {
				t.Helper()
				c, err := load(t, args...)
				if err != nil {
					t.Fatal(err)
				}
				if got := values(c)[test.flag]; got != want {
					t.Errorf("%s: got %s, want %s", what, got, want)
				}
			}
			want("default", test.byDefault)
			want("file", test.inFile, "--config", file)
			t.Setenv(envName(test.flag), test.inEnv)
			want("env", test.asEnv, "--config", file)
			want("flag", test.asFlag, "--config", file, "--"+test.flag, test.inFlag)
			want("last flag", test.asFlag, "--"+test.flag, test.inEnv, "--"+test.flag+"="+test.inFlag)
		})
	}
	if flags := overrideFlags(); len(flags) != 8 {
		t.Errorf("%d flags, but 8 are tested", len(flags))
	}
}

func TestConfigFromEnvironment(t *testing.T) {
	withoutEnv(t)
	t.Setenv("INGEST_AGENT_CONFIG", writeFile(t, "data_dir: one\n"))
	if c, err := load(t); err != nil || c.DataDir != "one" {
		t.Errorf("got %s %v", c.DataDir, err)
	}
	if c, err := load(t, "--config", writeFile(t, "data_dir: two\n")); err != nil || c.DataDir != "two" {
		t.Errorf("got %s %v", c.DataDir, err)
	}
}

func TestSeveralDestinations(t *testing.T) {
	withoutEnv(t)
	t.Setenv("INGEST_AGENT_DESTINATION", "file:unused")
	c, err := load(t, "--destination", "file:a,b", "--destination", "acme=otlp-http:http://h:1")
	if err != nil || len(c.Destinations) != 2 || c.Destinations["default"].Endpoint != "a,b" || c.Destinations["acme"].Endpoint != "http://h:1" {
		t.Errorf("got %+v %v", c.Destinations, err)
	}
}

func TestBadSettingsNameTheirOrigin(t *testing.T) {
	withoutEnv(t)
	t.Setenv("INGEST_AGENT_ADMIN", "nowhere")
	_, err := load(t, "--grpc", "x", "--bucket", "")
	want := "--bucket: bucket.url: is empty; give a value or leave it out\n" +
		"--grpc: receivers.grpc.endpoint: \"x\" is no address to listen on; want host:port such as 127.0.0.1:4317, or :4317 for all addresses\n" +
		"INGEST_AGENT_ADMIN: admin.endpoint: \"nowhere\" is no address to listen on; want host:port such as 127.0.0.1:4317, or :4317 for all addresses"
	var e *exitError
	if err == nil || err.Error() != want || !errors.As(err, &e) || e.code != exitUsage {
		t.Errorf("got %v", err)
	}
	if _, err := load(t, "--config", ""); err == nil || err.Error() != "--config is empty; want a file" {
		t.Errorf("got %v", err)
	}
}

// TestLoadingTouchesNothing is case 20: a bad configuration ends the start before any data is touched, and so does a check.
func TestLoadingTouchesNothing(t *testing.T) {
	withoutEnv(t)
	t.Chdir(t.TempDir())
	for _, args := range [][]string{nil, {"--data-dir", "new"}, {"--config", writeFile(t, "wol: {}\n")}, {"--config", writeFile(t, "admin: {tls: {cert_file: a, key_file: b}}\n")}} {
		if _, err := load(t, args...); (err != nil) != (len(args) > 0 && args[0] == "--config") {
			t.Errorf("%v: %v", args, err)
		}
	}
	entries, err := os.ReadDir(".")
	if err != nil || len(entries) != 0 {
		t.Errorf("found %v %v", entries, err)
	}
}
