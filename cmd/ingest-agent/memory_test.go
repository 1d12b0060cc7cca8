package main

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"ingest-agent/agent/agenttest"
	benchload "ingest-agent/bench/load"
)

// TestMemoryOfADrain: the memory of a drain does not depend on the backlog. It runs the binary as it is built for users, on the
// embedded defaults but for addresses and the destination.
func TestMemoryOfADrain(t *testing.T) {
	if os.Getenv(agenttest.LongEnv) == "" {
		t.Skipf("set %s to make a backlog of 1 GiB", agenttest.LongEnv)
	}
	const backlogBytes, limitBytes = 1 << 30, 200 << 20
	bin := filepath.Join(t.TempDir(), "ingest-agent")
	build := exec.Command("go", "build", "-o", bin, ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	for _, compression := range []string{"none", "gzip", "zstd"} {
		t.Run(compression, func(t *testing.T) { testMemory(t, bin, compression, backlogBytes, limitBytes) })
	}
}

func testMemory(t *testing.T, bin, compression string, backlogBytes, limitBytes int64) {
	dir := t.TempDir()
	s := agenttest.NewSink(t)
	file := writeFile(t, fmt.Sprintf(`
data_dir: %q
receivers: {grpc: {endpoint: "127.0.0.1:0"}, http: {endpoint: "127.0.0.1:0"}}
admin: {endpoint: "127.0.0.1:0"}
destinations:
  default: {type: otlp_http, endpoint: %q, compression: %s}
`, dir, s.URL(), compression))
	begin := func() *process {
		cmd := command("run", "--config", file)
		cmd.Path = bin
		p := spawn(t, cmd)
		p.awaitStarted()
		return p
	}
	p := begin()
	peak := watchRSS(t, p)
	seq := &benchload.Sequence{}
	var records uint64
	for size := int64(0); size < backlogBytes; {
		records += agenttest.Send(t, benchload.Config{
			GRPC: p.started.GRPC, HTTP: p.started.HTTP, Senders: 4, Requests: 500, Records: 200, Seed: 4, Sequence: seq,
		}).Count()
		var err error
		if size, err = agenttest.SegmentBytes(dir); err != nil {
			t.Fatal(err)
		}
	}
	p.signal(syscall.SIGTERM)
	p.signal(syscall.SIGTERM)
	t.Logf("peak of resident memory while the backlog grew: %d MiB", peak()>>20)
	p.code(time.Minute)
	agenttest.Up(t, s)
	p = begin()
	peak = watchRSS(t, p)
	start := time.Now()
	p.awaitDrained(10 * time.Minute)
	most := peak()
	t.Logf("peak of resident memory while 1 GiB drained in %v: %d MiB", time.Since(start), most>>20)
	if most > limitBytes {
		t.Errorf("%d bytes of resident memory, limit %d", most, limitBytes)
	}
	if got := s.Received().Count(); got != records {
		t.Errorf("%d records were delivered, want %d", got, records)
	}
	p.metrics()
	p.signal(syscall.SIGTERM)
	p.code(time.Minute)
}

// watchRSS samples a process's resident memory until the returned function is called, which gives the peak.
func watchRSS(t *testing.T, p *process) (peak func() int64) {
	t.Helper()
	if _, err := residentBytes(p.cmd.Process.Pid); err != nil {
		t.Skipf("resident memory cannot be read here: %v", err)
	}
	stop, done := make(chan struct{}), make(chan int64)
	go func() {
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		var most int64
		for {
			n, err := residentBytes(p.cmd.Process.Pid)
			if err == nil { // else it has ended
				most = max(most, n)
			}
			select {
			case <-tick.C:
			case <-stop:
				done <- most
				return
			}
		}
	}()
	return func() int64 { close(stop); return <-done }
}

func residentBytes(pid int) (int64, error) {
	f, err := os.Open(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		if text, ok := strings.CutPrefix(lines.Text(), "VmRSS:"); ok {
			kib, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(text), " kB"), 10, 64)
			return kib << 10, err
		}
	}
	return 0, fmt.Errorf("no VmRSS in %s", f.Name())
}
