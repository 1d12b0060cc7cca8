// Package kill ends an agent with SIGKILL at random moments under load, over and over on one data directory, and judges
// what came out at the other side.
//
// It guarantees that a run with the same seed plans the same rounds, ends by itself, and leaves no process. What it
// requires of an agent: every acknowledged record arrives, whole and as it was sent; nothing arrives that was not sent;
// what arrives twice had been delivered within Window before a crash, or before a change of the sink in that life; the
// agent's own ledger agrees at the end; SIGTERM ends it with code 0.
//
// SIGKILL leaves the page cache alone: this shows nothing about power loss.
package kill

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"sync/atomic"
	"time"

	"ingest-agent/bench/child"
	"ingest-agent/bench/freeport"
	"ingest-agent/bench/load"
	"ingest-agent/bench/seqset"
	"ingest-agent/bench/sink"
)

// Defaults of Config.
const (
	DefaultMaxDelay     = 1500 * time.Millisecond
	DefaultWindow       = time.Second
	DefaultRate         = 400
	DefaultReadyTimeout = 20 * time.Second
	DefaultDrainTimeout = 2 * time.Minute
	DefaultStopTimeout  = 40 * time.Second // longer than the agent's own shutdown.timeout
)

const (
	sendersPerEndpoint = 3
	requestTimeout     = 5 * time.Second
	ackTimeout         = time.Second // for the acknowledgement that a kill waits for
	deathTimeout       = 10 * time.Second
)

// Config of a run.
type Config struct {
	Bin    string   // path of the agent
	Env    []string // beside that of this process
	Dir    string   // an existing directory for data and logs; its data are gone through all rounds
	Seed   uint64
	Rounds int

	MaxDelay     time.Duration // longest time under load
	Window       time.Duration // how long before a crash a record that arrives again may have been delivered; see judge
	Rate         float64       // requests a second over all senders
	ReadyTimeout time.Duration
	DrainTimeout time.Duration
	StopTimeout  time.Duration
	Progress     io.Writer // when set, gets a line for each round
}

func (c *Config) setDefaults() {
	for _, d := range []struct {
		value    *time.Duration
		fallback time.Duration
	}{
		{&c.MaxDelay, DefaultMaxDelay},
		{&c.Window, DefaultWindow},
		{&c.ReadyTimeout, DefaultReadyTimeout},
		{&c.DrainTimeout, DefaultDrainTimeout},
		{&c.StopTimeout, DefaultStopTimeout},
	} {
		if *d.value == 0 {
			*d.value = d.fallback
		}
	}
	c.MaxDelay = max(c.MaxDelay, minDelay)
	if c.Rate == 0 {
		c.Rate = DefaultRate
	}
}

// harness is one run.
type harness struct {
	cfg              Config
	sink             *sink.Sink
	judge            *judge
	admin            *admin
	grpc, http, addr string // of the agent; addr is admin's
	sequence         load.Sequence
	acked            seqset.Set
	report           *Report
}

// Run does all rounds and the final drain. The report says whether the agent is sound. An error means that the run itself
// did not work, or ctx ended; then there is no verdict.
func Run(ctx context.Context, cfg Config) (*Report, error) {
	cfg.setDefaults()
	// The agent's working directory is Dir, so that a path that it makes up itself stays in there, too.
	var dirErr, binErr error
	cfg.Dir, dirErr = filepath.Abs(cfg.Dir)
	cfg.Bin, binErr = filepath.Abs(cfg.Bin)
	ports, err := freeport.Pick(3)
	if err := errors.Join(dirErr, binErr, err); err != nil {
		return nil, fmt.Errorf("start run: %w", err)
	}
	h := &harness{cfg: cfg, judge: &judge{window: cfg.Window}, grpc: ports[0], http: ports[1], addr: ports[2],
		report: &Report{Seed: cfg.Seed}}
	h.admin = newAdmin(h.addr)
	if h.sink, err = sink.New(sink.Config{OnDuplicate: h.judge.duplicate}); err != nil {
		return nil, fmt.Errorf("start run: %w", err)
	}
	if err := os.MkdirAll(filepath.Join(cfg.Dir, "logs"), 0o755); err != nil {
		return nil, fmt.Errorf("start run: %w", err)
	}
	if err := errors.Join(h.run(ctx), h.sink.Down(true)); err != nil {
		return nil, err
	}
	h.report.finish(h)
	return h.report, nil
}

func (h *harness) run(ctx context.Context) error {
	for number := 1; number <= h.cfg.Rounds; number++ {
		round, err := h.round(ctx, number)
		if err != nil {
			return fmt.Errorf("round %d: %w", number, err)
		}
		h.report.Rounds = append(h.report.Rounds, round)
		if h.cfg.Progress != nil {
			fmt.Fprintf(h.cfg.Progress, "round %d/%d: %s, %d acknowledged\n", number, h.cfg.Rounds, round.plan.moment, round.Acked)
		}
		if len(h.report.Violations) > 0 {
			break // one is enough; the drain still tells what is missing
		}
	}
	if err := h.drain(ctx); err != nil {
		return fmt.Errorf("final drain: %w", err)
	}
	return nil
}

// start begins a life of the agent.
func (h *harness) start(name string) (*child.Process, error) {
	cmd := exec.Command(h.cfg.Bin, "run",
		"--data-dir", filepath.Join(h.cfg.Dir, "data"),
		"--grpc", h.grpc, "--http", h.http, "--admin", h.addr,
		"--destination", "otlp-http:"+h.sink.URL())
	cmd.Dir = h.cfg.Dir
	cmd.Env = append(os.Environ(), h.cfg.Env...)
	return child.Start(cmd, h.logPath(name))
}

func (h *harness) logPath(name string) string { return filepath.Join(h.cfg.Dir, "logs", name+".log") }

// round is one life of the agent and its end. An error is one of the harness; what the agent does wrong is a violation.
func (h *harness) round(ctx context.Context, number int) (r *Round, err error) {
	r = &Round{Number: number, plan: planRound(h.cfg.Seed, number, h.cfg.MaxDelay), first: h.sequence.Last() + 1}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if err := h.setSink(r.plan.sinkUp, r.plan.cut); err != nil {
		return nil, err
	}
	h.sink.Behave(sink.Behavior{Delay: r.plan.slowness})
	name := fmt.Sprintf("round-%04d", number)
	begin := time.Now()
	p, err := h.start(name)
	if err != nil {
		return nil, err
	}
	e := end{flip: -1}
	if r.plan.moment == duringStart {
		p.Wait(r.plan.delay)
	} else {
		readyErr := h.ready(ctx, p)
		r.Ready = time.Since(begin)
		if readyErr != nil {
			h.violation("round %d: %v; see %s", number, readyErr, h.logPath(name))
		} else if err := h.underLoad(ctx, r, p, &e); err != nil {
			p.Kill()
			<-p.Exited()
			return nil, err
		}
	}
	if e.from == 0 { // not yet killed under load
		e.from = h.sink.Now()
		p.Kill()
	}
	if !p.Wait(deathTimeout) {
		return nil, fmt.Errorf("the agent lives %v after SIGKILL", deathTimeout)
	}
	h.checkEnd(r, p, &e, h.logPath(name))
	quiet, cancel := context.WithTimeout(context.WithoutCancel(ctx), deathTimeout)
	defer cancel()
	if err := h.sink.Quiesce(quiet); err != nil {
		return nil, err
	}
	e.to = h.sink.Now()
	h.judge.ended(e)
	r.end, r.last = e, h.sequence.Last()
	return r, nil
}

// checkEnd requires that the process ended by the signals that it was sent, and by nothing else.
func (h *harness) checkEnd(r *Round, p *child.Process, e *end, log string) {
	switch {
	case p.Killed():
	case r.plan.moment == duringStop && p.Err() == nil:
		e.clean = true
	default:
		h.violation("round %d: %v: %v; it says: %s; see %s", r.Number, errExited, p.Err(), lastWords(log), log)
	}
}

func (h *harness) setSink(up, cut bool) error {
	if up {
		return h.sink.Up()
	}
	return h.sink.Down(cut)
}

func (h *harness) ready(ctx context.Context, p *child.Process) error {
	return h.admin.poll(ctx, p, h.cfg.ReadyTimeout, "/readyz", func(code int, _ string) bool { return code == http.StatusOK })
}

// underLoad sends to the agent until it is killed as planned, and then lets the senders come to their end.
func (h *harness) underLoad(ctx context.Context, r *Round, p *child.Process, e *end) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	k := &killer{process: p, now: h.sink.Now, done: make(chan struct{})}
	l, err := load.New(load.Config{
		GRPC: h.grpc, HTTP: h.http, Senders: sendersPerEndpoint, Records: r.plan.records, Compression: r.plan.compression,
		Rate: h.cfg.Rate, Timeout: requestTimeout, Seed: h.cfg.Seed, Sequence: &h.sequence, Acked: &h.acked,
		OnAck: func(uint64, int) { k.onAck() },
	})
	if err != nil {
		return err
	}
	type outcome struct {
		result load.Result
		err    error
	}
	loaded := make(chan outcome, 1)
	go func() {
		result, err := l.Run(ctx)
		loaded <- outcome{result, err}
	}()
	flipErr := h.play(ctx, r.plan, p, k, e)
	if !k.strike() { // it was struck before: at an acknowledgement
		<-k.done
	}
	e.from = k.at
	p.Wait(deathTimeout)
	stop()
	o := <-loaded
	r.Acked, r.Requests, r.Failed = o.result.AckedRecords, o.result.Requests, o.result.Failed()
	r.failures = o.result.Failures
	return errors.Join(flipErr, o.err)
}

// play goes through the plan of a round up to the moment of the kill.
func (h *harness) play(ctx context.Context, plan plan, p *child.Process, k *killer, e *end) error {
	begin := time.Now()
	sleep := func(until time.Duration) bool {
		timer := time.NewTimer(until - time.Since(begin))
		defer timer.Stop()
		select {
		case <-timer.C:
			return true
		case <-p.Exited():
		case <-ctx.Done():
		}
		return false
	}
	if plan.flip {
		if !sleep(plan.flipAt) {
			return ctx.Err()
		}
		e.flip = h.sink.Now()
		if err := h.setSink(!plan.sinkUp, plan.cut); err != nil {
			return err
		}
	}
	if !sleep(plan.delay) {
		return ctx.Err()
	}
	switch plan.moment {
	case onAck:
		k.armed.Store(true)
		sleep(plan.delay + ackTimeout)
	case duringStop:
		k.at = h.sink.Now() // what is sent from here on may be cut short, too
		p.Terminate()
		sleep(plan.delay + plan.stopDelay)
	}
	return ctx.Err()
}

// killer kills a process once, from whichever goroutine comes first.
type killer struct {
	process *child.Process
	now     func() time.Duration
	armed   atomic.Bool // kill at the next acknowledgement
	struck  atomic.Bool
	at      time.Duration // of the first signal; read only after done
	done    chan struct{}
}

// onAck is called by senders.
func (k *killer) onAck() {
	if k.armed.Load() {
		k.strike()
	}
}

// strike is false if another did it.
func (k *killer) strike() bool {
	if !k.struck.CompareAndSwap(false, true) {
		return false
	}
	if k.at == 0 {
		k.at = k.now()
	}
	k.process.Kill()
	close(k.done)
	return true
}

// drain lets the agent deliver what it has, stops it, and asks what its own books say.
func (h *harness) drain(ctx context.Context) error {
	h.sink.Behave(sink.Behavior{})
	if err := h.sink.Up(); err != nil {
		return err
	}
	p, err := h.start("final")
	if err != nil {
		return err
	}
	defer func() {
		p.Kill()
		<-p.Exited()
	}()
	log := h.logPath("final")
	if err := h.ready(ctx, p); err != nil {
		h.violation("final start: %v; see %s", err, log)
		return ctx.Err()
	}
	page := ""
	err = h.admin.poll(ctx, p, h.cfg.DrainTimeout, "/metrics", func(code int, body string) bool {
		pending, found := sumMetric(body, "ingest_agent_pending_records")
		page = body
		return code == http.StatusOK && found && pending == 0
	})
	if err != nil {
		pending, found := sumMetric(page, "ingest_agent_pending_records")
		h.violation("final drain: ingest_agent_pending_records is %v (present: %v) after %v, want 0; see %s",
			pending, found, h.cfg.DrainTimeout, log)
	}
	h.report.readLedger(page)
	p.Terminate()
	switch {
	case !p.Wait(h.cfg.StopTimeout):
		h.violation("final stop: still alive %v after SIGTERM; see %s", h.cfg.StopTimeout, log)
	case p.Err() != nil:
		h.violation("final stop: %v after SIGTERM, want exit code 0; see %s", p.Err(), log)
	}
	return ctx.Err()
}

func (h *harness) violation(format string, args ...any) {
	h.report.Violations = append(h.report.Violations, fmt.Sprintf(format, args...))
}
