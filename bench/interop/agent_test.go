package interop

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.opentelemetry.io/otel"
)

var agentBinary = flag.String("agent", "", "`path` of the agent's binary; empty: built from this tree")

func TestMain(m *testing.M) {
	flag.Parse()
	os.Exit(buildAndRun(m))
}

func buildAndRun(m *testing.M) int {
	// The SDK tells failures of its background work to a global handler only. A lost record fails its test by itself.
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { fmt.Fprintln(os.Stderr, "SDK:", err) }))
	if *agentBinary != "" {
		return m.Run()
	}
	dir, err := os.MkdirTemp("", "interop-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() { _ = os.RemoveAll(dir) }() // in the system's directory for what may stay
	*agentBinary = filepath.Join(dir, "ingest-agent")
	build := exec.CommandContext(context.Background(), "go", "build", "-C", "../..", "-o", *agentBinary, "./cmd/ingest-agent")
	build.Env = append(os.Environ(), "CGO_ENABLED=0") // as it is released
	if out, err := build.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "build the agent: %v\n%s", err, out)
		return 1
	}
	return m.Run()
}

// limit is far above what anything here takes, so that a busy machine does not fail a test.
const limit = 2 * time.Minute

// agent is a running agent.
type agent struct {
	t      *testing.T
	dir    string // of its data
	cmd    *exec.Cmd
	addrs  addresses
	exited chan struct{} // closed when it has ended and its log is read
	once   sync.Once     // of stop

	mu   sync.Mutex
	logs bytes.Buffer
}

// addresses is the line of the agent's log that says where it listens.
type addresses struct {
	Msg, GRPC, HTTP, Admin string
}

// startAgent runs an agent with a new data directory. settings is configuration that is added as it is. The agent is stopped
// when the test ends, if not before.
func startAgent(t *testing.T, settings string) *agent {
	t.Helper()
	return startAgentIn(t, t.TempDir(), settings)
}

// startAgentIn runs an agent whose data is below dir.
func startAgentIn(t *testing.T, dir, settings string) *agent {
	t.Helper()
	file, dir := filepath.Join(dir, "agent.yaml"), filepath.Join(dir, "data")
	text := fmt.Sprintf("data_dir: %q\nadmin: {endpoint: \"127.0.0.1:0\"}\n%s", dir, settings)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	a := &agent{t: t, dir: dir, cmd: exec.Command(*agentBinary, "run", "--config", file), exited: make(chan struct{})}
	for _, v := range os.Environ() { // what the tests are run with must not change the agent
		if !strings.HasPrefix(v, "INGEST_AGENT_") {
			a.cmd.Env = append(a.cmd.Env, v)
		}
	}
	stderr, err := a.cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := a.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	started := make(chan addresses, 1)
	go func() {
		defer close(a.exited)
		a.readLog(stderr, started)
		_ = a.cmd.Wait() // stop looks at the state
	}()
	t.Cleanup(a.stop)
	select {
	case a.addrs = <-started:
	case <-a.exited:
		t.Fatalf("the agent ended:\n%s", a.log())
	case <-time.After(limit):
		t.Fatalf("the agent did not start:\n%s", a.log())
	}
	return a
}

// onePort is the listeners of an agent on free ports, without TLS.
const onePort = "receivers: {grpc: {endpoint: \"127.0.0.1:0\"}, http: {endpoint: \"127.0.0.1:0\"}}\n"

// anyDisk is settings for a disk of which little is free.
const anyDisk = "wal: {min_free_bytes: 0}\n"

func (a *agent) readLog(r io.Reader, started chan<- addresses) {
	lines := bufio.NewReader(r)
	for {
		line, err := lines.ReadString('\n')
		a.mu.Lock()
		a.logs.WriteString(line)
		a.mu.Unlock()
		var at addresses
		if json.Unmarshal([]byte(line), &at) == nil && at.Msg == "started" {
			started <- at // there is one such line
		}
		if err != nil {
			return
		}
	}
}

func (a *agent) log() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.logs.String()
}

// stop ends the agent by a signal. It must then exit with 0.
func (a *agent) stop() { a.once.Do(a.terminate) }

func (a *agent) terminate() {
	_ = a.cmd.Process.Signal(syscall.SIGTERM) // it may have ended
	select {
	case <-a.exited:
	case <-time.After(limit):
		a.t.Error("the agent did not stop")
		_ = a.cmd.Process.Kill() // as above
		<-a.exited
	}
	if code := a.cmd.ProcessState.ExitCode(); code != 0 {
		a.t.Errorf("exit code %d", code)
	}
	if a.t.Failed() {
		a.t.Logf("the agent's log:\n%s", a.log())
	}
}

// retried reports whether a delivery failed and is tried again.
func (a *agent) retried() bool {
	return strings.Contains(a.log(), `"msg":"delivery failed; trying again"`)
}

// addr is where the agent takes OTLP over a transport.
func (a *agent) addr(transport string) string {
	if transport == overGRPC {
		return a.addrs.GRPC
	}
	return a.addrs.HTTP
}

// metric sums the series of ingest_agent_<name> that have a label, as in `tenant="a"`; empty: all.
func (a *agent) metric(name, label string) uint64 {
	a.t.Helper()
	client := http.Client{Timeout: limit, Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Get("http://" + a.addrs.Admin + "/metrics")
	if err != nil {
		a.t.Fatal(err)
	}
	defer resp.Body.Close()
	page, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		a.t.Fatalf("/metrics: %s, %v", resp.Status, err)
	}
	var sum float64
	for line := range strings.Lines(string(page)) {
		series, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		if found, labels, _ := strings.Cut(series, "{"); found != "ingest_agent_"+name || !strings.Contains(labels, label) {
			continue
		}
		n, err := strconv.ParseFloat(value, 64)
		if err != nil {
			a.t.Fatalf("/metrics: %q: %v", line, err)
		}
		sum += n
	}
	return uint64(sum)
}

// allDelivered waits until nothing is pending, and fails the test unless all that was accepted is delivered.
func (a *agent) allDelivered() {
	a.t.Helper()
	a.accountsFor(0, 0)
}

// accountsFor waits until nothing is pending, and fails the test unless of all that was accepted so many were rejected by
// partial success, so many are dead letters, and all others are delivered.
func (a *agent) accountsFor(rejected, dead uint64) {
	a.t.Helper()
	await(a.t, "the agent is drained", func() bool { return a.metric("pending_records", "") == 0 })
	in := a.metric("records_accepted_total", "")
	if in <= rejected+dead {
		a.t.Errorf("%d records were accepted", in)
	}
	for name, want := range map[string]uint64{
		"delivered": in - rejected - dead, "rejected": rejected, "dead_letter": dead, "lost": 0,
	} {
		if n := a.metric("records_"+name+"_total", ""); n != want {
			a.t.Errorf("%d records were accepted, %d are %s, want %d", in, n, name, want)
		}
	}
}

// await waits until cond holds, and fails the test after the limit.
func await(t *testing.T, what string, cond func() bool) {
	t.Helper()
	if !holdsInTime(cond) {
		t.Fatalf("not within %v: %s", limit, what)
	}
}

func holdsInTime(cond func() bool) bool {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(limit); !cond(); <-tick.C {
		if time.Now().After(deadline) {
			return false
		}
	}
	return true
}
