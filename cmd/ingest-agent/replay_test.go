package main

import (
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"ingest-agent/agent/agenttest"
	benchload "ingest-agent/bench/load"
	"ingest-agent/bench/sink"
)

func (p *process) stopped() {
	p.t.Helper()
	p.signal(syscall.SIGTERM)
	if code := p.code(startLimit); code != exitDone {
		p.t.Fatalf("exit code %d", code)
	}
}

func deadFiles(t *testing.T, dir string) []string {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(dir, "dead", "*", "*", "*.seg"))
	if err != nil {
		t.Fatal(err)
	}
	return paths
}

// TestReplay: dead letters stay while they are refused, go when they are delivered, and the balance holds after it.
func TestReplay(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "data")
	s := agenttest.NewSink(t)
	agenttest.Up(t, s)
	s.Behave(sink.Behavior{Status: http.StatusBadRequest})
	file := configFile(t, dir, s.URL(), oneLane)
	if code, _, stderr := execute(t, "replay", "--config", file); code != exitUsage || !strings.Contains(stderr, "--dead") {
		t.Errorf("without --dead: code %d, %s", code, stderr)
	}
	p := agentStarted(t, file)
	sent := agenttest.Send(t, benchload.Config{HTTP: p.started.HTTP, Senders: 1, Requests: 5, Records: 3, Seed: 1, Sequence: &benchload.Sequence{}})
	p.awaitDrained(startLimit)
	if n := p.metrics().Sum("records_dead_letter_total"); n != 15 {
		t.Fatalf("%d records are dead letters", n)
	}
	replay := []string{"replay", "--dead", "--config", file}
	if code, _, stderr := execute(t, replay...); code != exitFailed || !strings.Contains(stderr, "in use by another process") {
		t.Errorf("beside an agent: code %d, %s", code, stderr)
	}
	p.stopped()
	files := len(deadFiles(t, dir))
	code, stdout, stderr := execute(t, replay...)
	if code != exitFailed || !strings.Contains(stdout, "delivered 0;") || !strings.Contains(stderr, "15 records are left: 15 records were refused again") ||
		len(deadFiles(t, dir)) != files {
		t.Errorf("refused: code %d\n%s%s", code, stdout, stderr)
	}
	s.Behave(sink.Behavior{})
	if code, _, stderr := execute(t, append(replay, "--only", "acme")...); code != exitFailed || !strings.Contains(stderr, "not configured") {
		t.Errorf("an unknown destination: code %d, %s", code, stderr)
	}
	code, stdout, stderr = execute(t, append(replay, "--only", "default")...)
	if code != exitDone || !strings.Contains(stdout, "delivered 15 (") || !strings.Contains(stdout, "left 0") || len(deadFiles(t, dir)) != 0 {
		t.Errorf("code %d\n%s%s", code, stdout, stderr)
	}
	agenttest.Same(t, "delivered by the replay", s.Received(), sent)
	p = agentStarted(t, file)
	if m := p.metrics(); m.Sum("records_delivered_total") != 15 || m.Sum("records_dead_letter_total") != 0 {
		t.Errorf("delivered %d, dead letters %d", m.Sum("records_delivered_total"), m.Sum("records_dead_letter_total"))
	}
	p.stopped()
}

// TestDeadLettersBeyondTheirSpaceAreLost: what is deleted for dead_letter.max_bytes counts as lost, not as dead letter, also
// after a restart.
func TestDeadLettersBeyondTheirSpaceAreLost(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "data")
	s := agenttest.NewSink(t)
	agenttest.Up(t, s)
	s.Behave(sink.Behavior{Status: http.StatusBadRequest})
	file := configFile(t, dir, s.URL(), oneLane+"dead_letter: {max_bytes: 64KiB}\n")
	p := agentStarted(t, file)
	agenttest.Send(t, benchload.Config{HTTP: p.started.HTTP, Senders: 1, Requests: 20, Records: 1, Seed: 1, Sequence: &benchload.Sequence{}})
	p.awaitDrained(startLimit)
	for range 2 {
		m := p.metrics()
		if dead, lost := m.Sum("records_dead_letter_total"), m.Sum("records_lost_total", `cause="dead_letter_full"`); dead != 16 || lost != 4 {
			t.Errorf("%d dead letters, %d lost", dead, lost)
		}
		p.stopped()
		p = agentStarted(t, file)
	}
	p.stopped()
}

// TestDrop: the backlog of a lane whose destination is gone is dropped when that is confirmed, and counts as lost.
func TestDrop(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "data")
	s := agenttest.NewSink(t) // down
	acme := fmt.Sprintf("  acme: {type: otlp_http, endpoint: %q}\nroutes: [{tenant: default, destination: acme}]\n", s.URL())
	with := configFile(t, dir, s.URL(), acme+oneLane+"shutdown: {timeout: 1s}\n")
	without := configFile(t, dir, s.URL(), oneLane)
	p := agentStarted(t, with)
	agenttest.Send(t, benchload.Config{HTTP: p.started.HTTP, Senders: 1, Requests: 6, Records: 2, Seed: 1, Sequence: &benchload.Sequence{}})
	drop := []string{"drop", "--config", without, "--lane", "acme.0", "--older-than"}
	if code, _, stderr := execute(t, append(drop, "0s", "--yes")...); code != exitFailed || !strings.Contains(stderr, "in use by another process") {
		t.Errorf("beside an agent: code %d, %s", code, stderr)
	}
	p.stopped()
	const unasked = -1 // no answer comes: another code than done, which one depends on what the test's own input is
	for _, test := range []struct {
		args []string
		code int
		says string
	}{
		{[]string{"drop", "--config", without, "--lane", "acme.0"}, exitUsage, "--older-than is missing"},
		{[]string{"drop", "--config", without, "--lane", "acme", "--older-than", "1h"}, exitUsage, "parse lane"},
		{[]string{"drop", "--config", without, "--lane", "acme.7", "--older-than", "1h"}, exitFailed, "no lane acme.7"},
		{append(drop, "24h"), exitDone, "dropped 0 requests"},
		{append(drop, "0s"), unasked, "would drop 6 requests; records: 12 ("},
		{append(drop, "0s", "--yes"), exitDone, "dropped 6 requests; records: 12 ("},
		{append(drop, "0s", "--yes"), exitDone, "dropped 0 requests"},
	} {
		code, stdout, stderr := execute(t, test.args...)
		if (test.code == unasked && code == exitDone) || (test.code != unasked && code != test.code) || !strings.Contains(stdout+stderr, test.says) {
			t.Errorf("%v: code %d\n%s%s", test.args, code, stdout, stderr)
		}
	}
	p = agentStarted(t, with)
	if m := p.metrics(); m.Sum("records_lost_total", `cause="dropped"`) != 12 || m.Sum("pending_records") != 0 {
		t.Errorf("lost %d, pending %d", m.Sum("records_lost_total"), m.Sum("pending_records"))
	}
	p.stopped()
}
