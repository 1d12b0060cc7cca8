package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"ingest-agent/agent/agenttest"
	benchload "ingest-agent/bench/load"
	"ingest-agent/bench/sink"
	"ingest-agent/segment"
	"ingest-agent/segment/vfs"
)

// runEnv makes the test binary the agent's own: the same main, under the race detector where the tests are.
const runEnv = "INGEST_AGENT_TEST_RUN"

func TestMain(m *testing.M) {
	if os.Getenv(runEnv) != "" {
		os.Exit(run(context.Background(), os.Args[1:], os.Stdout, os.Stderr))
	}
	os.Exit(m.Run())
}

// process is a run of the binary.
type process struct {
	t        testing.TB
	cmd      *exec.Cmd
	started  started // from its log
	logs     bytes.Buffer
	mu       sync.Mutex
	startedC chan struct{} // closed when it has started
	exited   chan struct{} // closed when it has ended and its log is read
}

// started is the line of the log that says where it listens.
type started struct {
	Msg, GRPC, HTTP, Admin string
}

// command is the agent with these arguments.
func command(args ...string) *exec.Cmd {
	cmd := exec.Command(os.Args[0], args...)
	for _, v := range os.Environ() { // what this process is run with must not change the agent
		if !strings.HasPrefix(v, "INGEST_AGENT_") {
			cmd.Env = append(cmd.Env, v)
		}
	}
	cmd.Env = append(cmd.Env, runEnv+"=1", "GORACE=atexit_sleep_ms=0") // by default the race detector sleeps at the end
	return cmd
}

// spawn runs a command, which is killed at the latest when the test ends.
func spawn(t testing.TB, cmd *exec.Cmd) *process {
	t.Helper()
	p := &process{t: t, cmd: cmd, startedC: make(chan struct{}), exited: make(chan struct{})}
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(p.exited)
		p.readLog(stderr)
		_ = cmd.Wait() // the tests look at the state
	}()
	t.Cleanup(func() {
		p.kill()
		if strings.Contains(p.log(), "DATA RACE") || strings.Contains(p.log(), "panic:") {
			t.Errorf("the agent failed:\n%s", p.log())
		}
	})
	return p
}

func (p *process) readLog(r io.Reader) {
	lines := bufio.NewReader(r)
	for {
		line, err := lines.ReadString('\n')
		p.mu.Lock()
		p.logs.WriteString(line)
		p.mu.Unlock()
		var s started
		if json.Unmarshal([]byte(line), &s) == nil && s.Msg == "started" {
			p.started = s
			close(p.startedC)
		}
		if err != nil {
			return
		}
	}
}

func (p *process) log() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.logs.String()
}

// startLimit is far above what a start takes, so that a busy machine does not fail a test that is not about it.
const startLimit = 30 * time.Second

func (p *process) awaitStarted() {
	p.t.Helper()
	select {
	case <-p.startedC:
	case <-p.exited:
		p.t.Fatalf("the agent ended:\n%s", p.log())
	case <-time.After(startLimit):
		p.t.Fatalf("the agent did not start:\n%s", p.log())
	}
}

// agentStarted runs an agent with a configuration file and waits for its start.
func agentStarted(t testing.TB, config string) *process {
	t.Helper()
	p := spawn(t, command("run", "--config", config))
	p.awaitStarted()
	return p
}

func (p *process) signal(s os.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		p.t.Fatalf("signal %v: %v\n%s", s, err, p.log())
	}
}

// kill ends the process as a crash does.
func (p *process) kill() {
	_ = p.cmd.Process.Kill() // it may have ended
	<-p.exited
}

// code waits for the end and returns the exit code.
func (p *process) code(limit time.Duration) int {
	p.t.Helper()
	select {
	case <-p.exited: // also with a limit of 0
	default:
		select {
		case <-p.exited:
		case <-time.After(limit):
			p.t.Fatalf("the agent did not end within %v:\n%s", limit, p.log())
		}
	}
	return p.cmd.ProcessState.ExitCode()
}

// metrics reads the metrics and checks their balance.
func (p *process) metrics() agenttest.Metrics {
	p.t.Helper()
	m := agenttest.Scrape(p.t, p.started.Admin)
	m.Balance(p.t)
	return m
}

func (p *process) awaitDrained(limit time.Duration) {
	p.t.Helper()
	agenttest.Await(p.t, limit, "drained", func() bool {
		return agenttest.Scrape(p.t, p.started.Admin).Sum("pending_records") == 0
	})
}

// configFile is a configuration with one lane on free ports and a destination at url. more is added as it is.
func configFile(t testing.TB, dir, url, more string) string {
	t.Helper()
	return writeFile(t, fmt.Sprintf(`
data_dir: %q
receivers: {grpc: {endpoint: "127.0.0.1:0"}, http: {endpoint: "127.0.0.1:0"}}
admin: {endpoint: "127.0.0.1:0"}
destinations:
  default: {type: otlp_http, endpoint: %q, compression: none, in_flight: 1, max_request_size: 1KiB, retry: {initial_interval: 10ms, max_interval: 50ms}}
%s
`, dir, url, more))
}

const oneLane = "wal: {shards: 1, min_free_bytes: 0}\n"

// TestCase16KilledAfterTheAnswer: what was answered is there after a kill in the same moment, and after one a while later.
func TestCase16KilledAfterTheAnswer(t *testing.T) {
	t.Parallel()
	for _, wait := range []time.Duration{0, time.Second} {
		t.Run(wait.String(), func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			s := agenttest.NewSink(t)
			file := configFile(t, dir, s.URL(), "wal: {shards: 2, segment_age: 300ms, min_free_bytes: 0}\n")
			p := agentStarted(t, file)
			var left sync.WaitGroup
			left.Add(200)
			go func() { // the kill does not wait for the senders
				left.Wait()
				if wait > 0 {
					<-time.After(wait)
				}
				_ = p.cmd.Process.Kill()
			}()
			acked := agenttest.Send(t, benchload.Config{
				GRPC: p.started.GRPC, HTTP: p.started.HTTP, Senders: 4, Requests: 200, Records: 5, Seed: 16,
				OnAck: func(uint64, int) { left.Done() },
			})
			p.code(startLimit)
			agenttest.Up(t, s)
			p = agentStarted(t, file)
			p.awaitDrained(30 * time.Second)
			if acked.Count() != 1000 {
				t.Errorf("%d were acknowledged", acked.Count())
			}
			agenttest.Same(t, "delivered", s.Received(), acked)
			p.metrics()
			p.signal(syscall.SIGTERM)
			if code := p.code(startLimit); code != exitDone {
				t.Errorf("exit code %d", code)
			}
		})
	}
}

// TestCase17SignalAfterDamage: a damaged lane makes no busy loop, and signals work.
func TestCase17SignalAfterDamage(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := agenttest.NewSink(t)
	file := configFile(t, dir, s.URL(), "wal: {shards: 1, segment_size: 64KiB, min_free_bytes: 0}\nshutdown: {timeout: 2s}\n")
	p := agentStarted(t, file)
	acked := agenttest.Send(t, benchload.Config{HTTP: p.started.HTTP, Senders: 4, Requests: 200, Records: 2, Seed: 17})
	p.signal(syscall.SIGTERM)
	p.code(startLimit)
	frames := agenttest.Frames(t, dir)
	paths := agenttest.Segments(t, dir, "default.0")
	hit := agenttest.Damage(t, rand.New(rand.NewPCG(17, 17)), frames, paths[len(paths)/2], 16<<10, 4096)
	lost := agenttest.Numbers(hit, func(*agenttest.FrameAt) bool { return true })

	p = agentStarted(t, file) // the sink is down: the drain waits
	before := cpuTime(t, p.cmd.Process.Pid)
	const idle = time.Second
	<-time.After(idle)
	if used := cpuTime(t, p.cmd.Process.Pid) - before; used > idle/5 {
		t.Errorf("%v of CPU in %v of waiting", used, idle)
	}
	begin := time.Now()
	p.signal(syscall.SIGTERM)
	if code := p.code(startLimit); code != exitDone {
		t.Errorf("exit code %d:\n%s", code, p.log())
	}
	if took := time.Since(begin); took > 2*time.Second {
		t.Errorf("the stop took %v of 2s:\n%s", took, p.log())
	}
	agenttest.Up(t, s)
	p = agentStarted(t, file)
	p.awaitDrained(30 * time.Second)
	if got := p.metrics().Sum("records_lost_total"); got != lost.Count() || got == 0 || s.Received().Count() != acked.Count()-got {
		t.Errorf("%d counted as lost, %d delivered, want %d of %d lost", got, s.Received().Count(), lost.Count(), acked.Count())
	}
}

// cpuTime is what a process has used so far.
func cpuTime(t *testing.T, pid int) time.Duration {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Skipf("CPU time cannot be read here: %v", err)
	}
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	var ticks int
	for _, f := range fields[11:13] { // utime, stime
		n, err := strconv.Atoi(f)
		if err != nil {
			t.Fatal(err)
		}
		ticks += n
	}
	const ticksPerSecond = 100 // USER_HZ of every Linux that Go runs on
	return time.Duration(ticks) * time.Second / ticksPerSecond
}

// TestCase20BadConfiguration: a start with a bad configuration ends with code 2 and touches nothing.
func TestCase20BadConfiguration(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := agenttest.NewSink(t)
	p := agentStarted(t, configFile(t, dir, s.URL(), oneLane))
	agenttest.Send(t, benchload.Config{GRPC: p.started.GRPC, Senders: 1, Requests: 10, Records: 1, Seed: 20})
	p.kill() // a start would have a tail to close
	garbage := writeFile(t, "no certificate\n")
	before := agenttest.Tree(t, dir)
	for name, file := range map[string]string{
		"unknown key":           configFile(t, dir, s.URL(), "wol: {}\n"),
		"no file":               filepath.Join(t.TempDir(), "none.yaml"),
		"bad receiver TLS":      strings.Replace(read(t, configFile(t, dir, s.URL(), oneLane)), `grpc: {`, fmt.Sprintf(`grpc: {tls: {cert_file: %q, key_file: %[1]q}, `, garbage), 1),
		"bad destination TLS":   strings.Replace(read(t, configFile(t, dir, s.URL(), oneLane)), `compression: none`, fmt.Sprintf(`tls: {ca_file: %q}`, garbage), 1),
		"TLS file not there":    strings.Replace(read(t, configFile(t, dir, s.URL(), oneLane)), `compression: none`, `tls: {ca_file: /nowhere/ca.pem}`, 1),
		"a value out of bounds": configFile(t, dir, s.URL(), "wal: {shards: 0}\n"),
		"a promise not built":   configFile(t, dir, s.URL(), "wal: {shards: 1, ack: bucket}\nbucket: {url: \"s3://b/p\"}\n"),
	} {
		if strings.Contains(file, "\n") {
			file = writeFile(t, file)
		}
		p := spawn(t, command("run", "--config", file))
		if code := p.code(startLimit); code != exitUsage {
			t.Errorf("%s: exit code %d", name, code)
		}
		if log := p.log(); !strings.HasPrefix(log, "ingest-agent: ") {
			t.Errorf("%s: it says %q", name, log)
		}
		if after := agenttest.Tree(t, dir); after != before {
			t.Fatalf("%s: the data directory changed from\n%s\nto\n%s", name, before, after)
		}
	}
}

func read(t testing.TB, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// TestCase41KilledInTheDrain: each life gets further than the one before, and what comes twice was delivered just before a
// kill.
func TestCase41KilledInTheDrain(t *testing.T) {
	t.Parallel()
	const lives, window = 4, time.Second
	dir := t.TempDir()
	s := agenttest.NewSink(t)
	file := configFile(t, dir, s.URL(), oneLane)
	p := agentStarted(t, file)
	acked := agenttest.Send(t, benchload.Config{GRPC: p.started.GRPC, Senders: 4, Requests: 300, Records: 1, Seed: 41})
	p.kill()
	agenttest.Up(t, s)
	s.Behave(sink.Behavior{Delay: 20 * time.Millisecond})
	at, duplicates, excused := segment.Start, uint64(0), uint64(0)
	for life := range lives {
		before := s.Received().Count()
		p := agentStarted(t, file)
		agenttest.Await(t, startLimit, "some more are delivered", func() bool { return s.Received().Count() >= before+30 })
		p.kill()
		if err := s.Quiesce(t.Context()); err != nil {
			t.Fatal(err)
		}
		now := s.Stats().Duplicates
		if now-duplicates > excused {
			t.Errorf("life %d: %d came again, of which %d were delivered within %v before a kill", life, now-duplicates, excused, window)
		}
		duplicates, excused = now, s.DeliveredBetween(s.Now()-window, s.Now())
		id := segment.LaneID{Destination: "default"}
		st, _, err := segment.ReadCursor(vfs.OS(), filepath.Join(dir, "lanes", id.String()), id)
		if err != nil || st == nil || !at.Before(st.Exported) {
			t.Fatalf("life %d: the cursor is %+v (%v), it was at %v", life, st, err, at)
		}
		at = st.Exported
	}
	s.Behave(sink.Behavior{})
	p = agentStarted(t, file)
	p.awaitDrained(30 * time.Second)
	agenttest.Same(t, "delivered", s.Received(), acked)
	p.metrics()
}

// TestSecondSignalSkipsTheDrain: the first signal waits for the drain, the second does not, and the code is 0.
func TestSecondSignalSkipsTheDrain(t *testing.T) {
	t.Parallel()
	s := agenttest.NewSink(t)
	p := agentStarted(t, configFile(t, t.TempDir(), s.URL(), oneLane+"shutdown: {timeout: 1h}\n"))
	agenttest.Send(t, benchload.Config{HTTP: p.started.HTTP, Senders: 1, Requests: 3, Records: 1, Seed: 2})
	p.signal(syscall.SIGTERM)
	agenttest.Await(t, startLimit, "it stops", func() bool {
		_, text := agenttest.Get(t, p.started.Admin, "/readyz")
		return text == "stopping"
	})
	p.signal(syscall.SIGINT)
	if code := p.code(startLimit); code != exitDone {
		t.Errorf("exit code %d:\n%s", code, p.log())
	}
	if !strings.Contains(p.log(), `"left_records":3`) {
		t.Errorf("what is left is not named:\n%s", p.log())
	}
}

// TestStartErrorsAreOneLine: what keeps an agent from starting is said in one line that names it.
func TestStartErrorsAreOneLine(t *testing.T) {
	t.Parallel()
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	dir := t.TempDir()
	s := agenttest.NewSink(t)
	agentStarted(t, configFile(t, dir, s.URL(), oneLane))
	for want, args := range map[string][]string{
		taken.Addr().String(): {"--config", configFile(t, t.TempDir(), s.URL(), oneLane), "--grpc", taken.Addr().String(), "--log-level", "error"},
		dir:                   {"--config", configFile(t, dir, s.URL(), oneLane), "--log-level", "error"},
	} {
		p := spawn(t, command(append([]string{"run"}, args...)...))
		if code := p.code(startLimit); code != exitFailed {
			t.Errorf("exit code %d", code)
		}
		if log := p.log(); !strings.HasPrefix(log, "ingest-agent: start: ") || strings.Count(log, "\n") != 1 || !strings.Contains(log, want) {
			t.Errorf("it says %q", log)
		}
	}
}

// TestCase37FewFilesAreOpened counts the files that a start opens, as the kernel sees them.
func TestCase37FewFilesAreOpened(t *testing.T) {
	t.Parallel()
	strace, err := exec.LookPath("strace")
	if err != nil {
		t.Skipf("system calls cannot be counted here: %v", err)
	}
	if out, err := exec.Command(strace, "-o", os.DevNull, os.Args[0], "-test.run=^$").CombinedOutput(); err != nil {
		t.Skipf("system calls may not be counted here: %v: %s", err, out)
	}
	segments := 500
	if os.Getenv(agenttest.LongEnv) != "" {
		segments = 10_000
	}
	dir := agenttest.FastDir(t)
	agenttest.ManySegments(t, dir, segments)
	trace := filepath.Join(t.TempDir(), "trace")
	agent := command("run", "--config", configFile(t, dir, agenttest.NewSink(t).URL(), oneLane))
	cmd := exec.Command(strace, append([]string{"-f", "-qq", "-o", trace, "-e", "trace=openat,write", "-s", "256", agent.Path}, agent.Args[1:]...)...)
	cmd.Env = agent.Env
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	p := spawn(t, cmd)
	t.Cleanup(func() { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }) // strace's child would outlive it
	p.awaitStarted()
	text := read(t, trace)
	before, _, found := strings.Cut(text, `\"msg\":\"started\"`)
	opened := 0
	for line := range strings.Lines(before) {
		if strings.Contains(line, "openat(") && strings.Contains(line, dir) {
			opened++
		}
	}
	t.Logf("%d files of the data directory were opened before it was ready, with %d segments", opened, segments)
	if !found || opened == 0 || opened >= 200 {
		t.Errorf("%d files were opened (the start seen: %v)", opened, found)
	}
}
