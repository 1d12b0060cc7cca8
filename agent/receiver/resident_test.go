package receiver

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"ingest-agent/segment"
)

// TestBombsResident: 50 bombs in parallel, on the binary as users run it, with the default limit of 16 MiB. Each is refused
// for good, and the resident memory grows by at most the limit and 64 MiB. The tests beside it look at what is held; this
// one at what the process takes, garbage included. It is a process of its own, since the race detector takes memory too.
func TestBombsResident(t *testing.T) {
	const limit = 16 << 20
	if _, err := os.Stat("/proc/self/status"); err != nil {
		t.Skipf("resident memory cannot be read here: %v", err)
	}
	bin := filepath.Join(t.TempDir(), "ingest-agent")
	build := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-o", bin, "ingest-agent/cmd/ingest-agent") // as make build, for its cache
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	zero := make([]byte, 100<<20)
	for coding, b := range map[string][]byte{"gzip": gzipped(t, zero), "zstd": zstdStreamed(t, zero)} {
		for _, transport := range []string{"http", "grpc"} {
			p := spawnAgent(t, bin)
			run := &running{url: "http://" + p.HTTP, grpc: p.GRPC}
			conn := run.encodedClient(t, coding)
			before := p.status(t, "VmRSS")
			var all sync.WaitGroup
			for range bombs {
				all.Go(func() {
					if transport == "grpc" {
						if _, err := call(t.Context(), conn, segment.Logs, b); status.Code(err) != codes.ResourceExhausted || retryDelay(err) != 0 {
							t.Errorf("%s: %v", coding, err)
						}
						return
					}
					postBomb(t, run.url, coding, b)
				})
			}
			all.Wait()
			grew := p.status(t, "VmHWM") - before
			t.Logf("%s over %s: resident memory grew from %d MiB by %d MiB at most", coding, transport, before>>20, grew>>20)
			if grew > limit+64<<20 {
				t.Errorf("%s over %s: resident memory grew by %d MiB", coding, transport, grew>>20)
			}
			p.end(t)
		}
	}
}

// agentProcess is a running binary.
type agentProcess struct {
	Msg, GRPC, HTTP string // from its log
	cmd             *exec.Cmd
	logRead         sync.WaitGroup
}

func spawnAgent(t *testing.T, bin string) *agentProcess {
	t.Helper()
	p := &agentProcess{cmd: exec.Command(bin, "run", "--data-dir", t.TempDir(),
		"--grpc", "127.0.0.1:0", "--http", "127.0.0.1:0", "--admin", "127.0.0.1:0")}
	log, err := p.cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.cmd.Process.Kill() })
	started := make(chan bool, 1)
	p.logRead.Go(func() {
		for lines := bufio.NewScanner(log); lines.Scan(); {
			if p.Msg != "started" && json.Unmarshal(lines.Bytes(), p) == nil && p.Msg == "started" {
				started <- true
			}
		}
		close(started)
	})
	if !<-started {
		t.Fatal("the agent did not start")
	}
	return p
}

// status is a size of the process, in bytes: VmRSS now, VmHWM at most so far.
func (p *agentProcess) status(t *testing.T, name string) int64 {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), name+":")
	line, _, _ := strings.Cut(rest, " kB")
	kib, err := strconv.ParseInt(strings.TrimSpace(line), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return kib << 10
}

func (p *agentProcess) end(t *testing.T) {
	t.Helper()
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	p.logRead.Wait()
	if err := p.cmd.Wait(); err != nil {
		t.Errorf("the agent: %v", err)
	}
}
