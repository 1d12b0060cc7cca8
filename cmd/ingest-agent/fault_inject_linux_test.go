package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"ingest-agent/agent/agenttest"
	"ingest-agent/bench/otlpgen"
	"ingest-agent/bench/seqset"
	"ingest-agent/bench/sink"
	"ingest-agent/bench/wire"
	"ingest-agent/segment"
)

// faultPoint is one run with system calls that fail.
type faultPoint struct {
	// inject is what strace takes after -e inject=: CALL:error=ERRNO:when=WHEN, or CALL:signal=KILL:when=WHEN to die there.
	// Calls are counted by thread, and only those on what lies in the data directory, so that a fault that comes once comes
	// once in each thread that gets so far.
	inject []string
	// start: also the calls on what only a start needs are counted.
	start bool
	// backlog: an earlier life was killed and left some, so that the start has work to do.
	backlog bool
	// up: the sink takes meanwhile, so that segments are removed.
	up bool
	// kill: the life with the faults ends by SIGKILL, else by SIGTERM.
	kill bool
}

func (p *faultPoint) String() string {
	name := strings.Join(p.inject, ",")
	for _, o := range []struct {
		on   bool
		name string
	}{{p.start, "start"}, {p.backlog, "backlog"}, {p.up, "up"}, {p.kill, "kill"}} {
		if o.on {
			name += " " + o.name
		}
	}
	return name
}

// lasting reports whether some call goes on failing for good.
func (p *faultPoint) lasting() bool {
	return slices.ContainsFunc(p.inject, func(s string) bool { return strings.HasSuffix(s, "+") })
}

// dies reports whether the agent is killed at a call.
func (p *faultPoint) dies() bool {
	return slices.ContainsFunc(p.inject, func(s string) bool { return strings.Contains(s, "signal=KILL") })
}

// longEnv asks for the points that take too long for each run.
const longEnv = "INGEST_AGENT_LONG"

const (
	faultRequests = 40
	faultRecords  = 3 // in each request
	faultSenders  = 4
	// faultSegments is how many segments' paths are given to strace, which takes no patterns. A run needs far fewer.
	faultSegments = 120
	faultLimit    = 30 * time.Second
)

// faultStrace finds strace, or skips the test with what keeps it from working here.
func faultStrace(t *testing.T) string {
	t.Helper()
	path, err := exec.LookPath("strace")
	if err != nil {
		t.Skipf("faults cannot be injected without strace: %v", err)
	}
	out, err := exec.Command(path, "-f", "-D", "--seccomp-bpf", "-o", os.DevNull, "-e", "trace=mkdirat",
		"-e", "inject=mkdirat:error=EIO:when=1", "true").CombinedOutput()
	if err != nil {
		t.Skipf("strace does not work here (it needs ptrace, and injection with seccomp, version 5.3): %v: %s", err, out)
	}
	return path
}

// faultCommand is the agent under strace. The process that is started is the agent itself.
func faultCommand(strace, log, dataDir, config string, p *faultPoint) *exec.Cmd {
	cmd := command("run", "--config", config)
	args := []string{strace, "-f", "-D", "-q", "-o", log}
	if !p.dies() { // with the filter the other calls cost nothing, but signals are not sent
		args = append(args, "--seccomp-bpf")
	}
	calls := map[string]bool{}
	for _, i := range p.inject {
		name, _, _ := strings.Cut(i, ":")
		calls[name] = true
		args = append(args, "-e", "inject="+i)
	}
	args = append(args, "-e", "trace="+strings.Join(slices.Sorted(maps.Keys(calls)), ","))
	lanes := filepath.Join(dataDir, "lanes")
	lane := filepath.Join(lanes, "default.0")
	paths := []string{lane}
	if p.start || !calls["openat"] {
		paths = append(paths, filepath.Join(lane, "cursor"))
	}
	if p.start {
		paths = append(paths, dataDir, lanes)
	}
	for _, path := range paths {
		args = append(args, "-P", path)
	}
	for seq := range segment.Seq(faultSegments) {
		dir := filepath.Join(lane, (seq + 1).String())
		args = append(args, "-P", dir, "-P", filepath.Join(dir, segment.Seq(1).String())) // the log's file is its number 1
	}
	cmd.Path, cmd.Args = strace, append(args, cmd.Args...)
	return cmd
}

// faultClient sends numbered records and books the answers.
type faultClient struct {
	t         *testing.T
	generator *otlpgen.Generator
	http      http.Client
	mayDie    bool // an agent that does not answer is none of its failures

	mu      sync.Mutex
	next    uint64 // first number of the next request
	sent    seqset.Set
	acked   seqset.Set
	refused seqset.Set
	codes   map[int]int // answers by status; 0: none
}

func newFaultClient(t *testing.T) *faultClient {
	g, err := otlpgen.New(1, faultRecords)
	if err != nil {
		t.Fatal(err)
	}
	c := &faultClient{t: t, generator: g, next: 1, codes: map[int]int{}}
	c.http = http.Client{Timeout: faultLimit, Transport: &http.Transport{DisableKeepAlives: true}}
	return c
}

// send sends one request and reports whether it was acknowledged. A refusal must be one that asks to come again.
func (c *faultClient) send(addr string) bool {
	c.mu.Lock()
	first := c.next
	c.next += faultRecords
	c.mu.Unlock()
	c.sent.AddRange(first, faultRecords)
	signal := segment.Signals[int(first)%len(segment.Signals)]
	body := c.generator.Append(nil, signal, int(first), first)
	resp, err := c.http.Post("http://"+addr+wire.HTTPPath(signal), "application/x-protobuf", bytes.NewReader(body))
	var text []byte
	if err == nil {
		text, err = io.ReadAll(resp.Body)
		err = errors.Join(err, resp.Body.Close())
	}
	if err != nil {
		if !c.mayDie {
			c.t.Errorf("request %d: no answer: %v", first, err)
		}
		c.mu.Lock()
		c.codes[0]++
		c.mu.Unlock()
		return false
	}
	c.mu.Lock()
	c.codes[resp.StatusCode]++
	c.mu.Unlock()
	switch resp.StatusCode {
	case http.StatusOK:
		c.acked.AddRange(first, faultRecords)
		return true
	case http.StatusServiceUnavailable, http.StatusTooManyRequests:
		if s, err := strconv.Atoi(resp.Header.Get("Retry-After")); err != nil || s < 1 {
			c.t.Errorf("request %d: %d with Retry-After %q", first, resp.StatusCode, resp.Header.Get("Retry-After"))
		}
	default:
		c.t.Errorf("request %d: %d %q: neither taken nor to be sent again", first, resp.StatusCode, text)
	}
	if bytes.Contains(text, []byte("/")) || bytes.Contains(text, []byte("error")) {
		c.t.Errorf("request %d: the answer tells too much: %q", first, text)
	}
	c.refused.AddRange(first, faultRecords)
	return false
}

// load sends n requests from several senders.
func (c *faultClient) load(addr string, n int) {
	var wg sync.WaitGroup
	for range faultSenders {
		wg.Go(func() {
			for range n / faultSenders {
				c.send(addr)
			}
		})
	}
	wg.Wait()
}

// faultRun is one point, from the first life to the last.
type faultRun struct {
	*faultPoint
	t            *testing.T
	strace, data string
	config       string
	sink         *sink.Sink
	client       *faultClient
	started      bool // the life with the faults
	injected     int  // how often a call was made to fail, or to be the last one
}

func (r *faultRun) run() {
	if r.backlog {
		p := agentStarted(r.t, r.config)
		r.client.load(p.started.HTTP, faultRequests/2)
		p.kill()
	}
	if r.up {
		agenttest.Up(r.t, r.sink)
	}
	r.faulty()
	agenttest.Up(r.t, r.sink)
	p := agentStarted(r.t, r.config)
	p.awaitDrained(faultLimit)
	m := p.metrics()
	if n := m.Sum("records_lost_total") + m.Sum("records_dead_letter_total") + m.Sum("records_rejected_total"); n != 0 {
		r.t.Errorf("%d records are counted as lost, rejected or dead", n)
	}
	if !p.ready() {
		r.t.Error("not ready without faults")
	}
	p.signal(syscall.SIGTERM)
	if code := p.code(faultLimit); code != exitDone {
		r.t.Errorf("exit code %d without faults:\n%s", code, p.log())
	}
	r.judge()
}

// faulty is the life in which calls fail.
func (r *faultRun) faulty() {
	log := filepath.Join(r.t.TempDir(), "strace")
	p := spawn(r.t, faultCommand(r.strace, log, r.data, r.config, r.faultPoint))
	defer func() {
		p.kill()
		text, err := os.ReadFile(log)
		if err != nil {
			r.t.Error(err)
		}
		r.injected = bytes.Count(text, []byte("(INJECTED)"))
		if r.dies() && (!r.started || r.client.codes[0] > 0) {
			r.injected++
		}
		if r.t.Failed() {
			r.t.Logf("injected:\n%s\nthe agent says:\n%s", faultLines(text), p.log())
		}
	}()
	select {
	case <-p.startedC:
	case <-p.exited: // a disk that fails at the start may end it, in words
		if code := p.code(faultLimit); !r.dies() && (code != exitFailed || !strings.Contains(p.log(), "ingest-agent: start: ")) {
			r.t.Errorf("the start ended with code %d", code)
		}
		return
	case <-time.After(faultLimit):
		r.t.Fatalf("no start:\n%s", p.log())
	}
	r.started = true
	r.client.load(p.started.HTTP, faultRequests)
	if r.dies() {
		return
	}
	if r.lasting() {
		if code, text := agenttest.Get(r.t, p.started.Admin, "/livez"); code != http.StatusOK {
			r.t.Errorf("/livez: %d %s", code, text)
		}
	} else {
		// Each new thread may meet the fault once more; it comes to an end all the same.
		agenttest.Await(r.t, faultLimit, "ready, and a request is taken", func() bool { return p.ready() && r.client.send(p.started.HTTP) })
	}
	p.metrics() // the balance holds also now
	if r.kill {
		return
	}
	p.signal(syscall.SIGTERM)
	if code := p.code(faultLimit); code != exitDone {
		r.t.Errorf("exit code %d after SIGTERM", code)
	}
}

func (p *process) ready() bool {
	code, _ := agenttest.Get(p.t, p.started.Admin, "/readyz")
	return code == http.StatusOK
}

// faultLines are the lines of a trace in which a call was made to fail.
func faultLines(trace []byte) string {
	return strings.Join(regexp.MustCompile(`(?m)^.*\(INJECTED\)$`).FindAllString(string(trace), 50), "\n")
}

// judge compares what was answered with what arrived.
func (r *faultRun) judge() {
	got := r.sink.Received()
	if n, ranges := r.client.acked.Minus(got, 10); n > 0 {
		r.t.Errorf("%d acknowledged records did not arrive: %v", n, ranges)
	}
	if n, ranges := got.Minus(&r.client.sent, 10); n > 0 {
		r.t.Errorf("%d records arrived that were never sent: %v", n, ranges)
	}
	st := r.sink.Stats()
	if st.Bad > 0 {
		r.t.Errorf("%d requests arrived changed: %v", st.Bad, st.Notes)
	}
	if st.Duplicates > 0 && !r.up {
		r.t.Errorf("%d records arrived twice from a sink that was down", st.Duplicates)
	}
	missing, _ := r.client.refused.Minus(got, 0)
	if came := r.client.refused.Count() - missing; came > 0 {
		r.t.Errorf("%d refused records arrived", came)
	}
}

func TestFaultSystemCalls(t *testing.T) {
	strace := faultStrace(t)
	points := faultPoints()
	hit := map[string]int{}
	var mu sync.Mutex
	t.Run("points", func(t *testing.T) {
		for i := range points {
			p := &points[i]
			t.Run(fmt.Sprintf("%03d %s", i, p), func(t *testing.T) {
				t.Parallel()
				data := filepath.Join(agenttest.FastDir(t), "data")
				s := agenttest.NewSink(t)
				c := newFaultClient(t)
				c.mayDie = p.dies()
				r := &faultRun{faultPoint: p, t: t, strace: strace, data: data, sink: s, client: c, config: configFile(t, data, s.URL(),
					"wal: {shards: 1, min_free_bytes: 0, segment_size: 4KiB, segment_age: 200ms}\nshutdown: {timeout: 600ms}\n")}
				r.run()
				t.Logf("%d injected, started %v, answers %v", r.injected, r.started, c.codes)
				if !r.started {
					return
				}
				mu.Lock()
				defer mu.Unlock()
				for _, in := range p.inject {
					call, _, _ := strings.Cut(in, ":")
					hit[call] += r.injected
				}
			})
		}
	})
	for call, n := range hit {
		if n == 0 {
			t.Errorf("no %s was made to fail after the start", call)
		}
	}
}

// faultPoints are the runs of TestFaultSystemCalls: a stride through calls, errors and moments, or with longEnv all of them.
func faultPoints() (points []faultPoint) {
	add := func(p faultPoint) {
		n := len(points)
		p.kill, p.backlog, p.up = n%2 == 0, n%3 == 1, p.up || n%4 == 3
		points = append(points, p)
	}
	type moments struct {
		fail []string
		die  []int
	}
	errnos := []string{"EIO", "ENOSPC"}
	usual := moments{[]string{"1", "4", "3..5", "5+"}, []int{2, 5}}
	calls := []struct {
		name string
		moments
	}{
		{"write", usual}, {"pwrite64", usual}, {"fdatasync", usual},
		{"fsync", moments{[]string{"4", "9", "6..8", "8+"}, []int{5, 8}}}, // what comes before belongs to the start
		{"openat", moments{[]string{"6", "9", "8..10", "9+"}, []int{7, 10}}},
		{"mkdirat", moments{[]string{"3", "5", "4..6", "5+"}, []int{3, 5}}},
		{"unlinkat", usual},
	}
	starts := []string{"2", "7"}
	long := os.Getenv(longEnv) != ""
	if long {
		var all moments
		for n := 1; n <= 24; n++ {
			all.fail = append(all.fail, fmt.Sprint(n), fmt.Sprintf("%d..%d", n, n+2), fmt.Sprintf("%d+", n))
			all.die = append(all.die, n)
			starts = append(starts, fmt.Sprint(n))
		}
		for i := range calls {
			calls[i].moments = all
		}
	}
	turn := 0 // of the errors, where the short list has one for each moment
	for _, call := range calls {
		removes := call.name == "unlinkat"
		for _, when := range call.fail {
			for i, errno := range errnos {
				if long || i == turn%2 {
					add(faultPoint{inject: []string{call.name + ":error=" + errno + ":when=" + when}, up: removes})
				}
			}
			turn++
		}
		for _, n := range call.die {
			add(faultPoint{inject: []string{fmt.Sprintf("%s:signal=KILL:when=%d", call.name, n)}, up: removes})
		}
		turn++
	}
	for _, call := range []string{"openat", "mkdirat", "fsync", "fdatasync", "pwrite64"} {
		for _, when := range starts {
			add(faultPoint{inject: []string{call + ":error=" + errnos[turn%2] + ":when=" + when}, start: true})
			turn++
		}
	}
	// What was not synced or written can not be cut either, and then the limit that says so can not be saved.
	for _, first := range []string{"fdatasync:error=EIO:when=4", "write:error=ENOSPC:when=3..5"} {
		for _, cut := range []string{"1", "1+"} {
			add(faultPoint{inject: []string{first, "ftruncate:error=EIO:when=" + cut}})
		}
		add(faultPoint{inject: []string{first, "ftruncate:error=EIO:when=1+", "pwrite64:error=EIO:when=4..8"}})
	}
	return points
}
