package versus

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"ingest-agent/bench/wire"
)

// relayEnv makes the test binary a subject that answers first and delivers then, with a fault.
const relayEnv = "VERSUS_TEST_RELAY"

func TestMain(m *testing.M) {
	if fault := os.Getenv(relayEnv); fault != "" {
		if err := relay(fault, os.Args[len(os.Args)-1]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	os.Exit(m.Run())
}

const (
	faultNone  = "none"
	faultLose  = "lose"  // every tenth request
	faultTwice = "twice" // likewise
)

func relay(fault, file string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	var p Ports
	if err := json.Unmarshal(text, &p); err != nil {
		return err
	}
	if _, err := net.Listen("tcp", p.GRPC); err != nil { // only looked for
		return err
	}
	var n atomic.Int64
	return http.ListenAndServe(p.HTTP, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		times := 1
		if n.Add(1)%10 == 0 {
			times = map[string]int{faultNone: 1, faultLose: 0, faultTwice: 2}[fault]
		}
		for range times {
			answer, err := http.Post(p.Sink+r.URL.Path, r.Header.Get("Content-Type"), bytes.NewReader(body))
			if err != nil || answer.StatusCode != http.StatusOK || answer.Body.Close() != nil {
				w.WriteHeader(http.StatusServiceUnavailable)
				return
			}
		}
	}))
}

func relaySubject(t *testing.T, fault string) Subject {
	t.Helper()
	t.Setenv(relayEnv, fault)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return Subject{
		Name: fault, Binary: self,
		configure: func(_ Config, _ string, p Ports) any { return p },
		arguments: func(file string) []string { return []string{file} },
	}
}

func TestRowsSayWhatWasDelivered(t *testing.T) {
	cfg := Config{Dir: t.TempDir(), Transport: HTTP, Compression: wire.None, Senders: 2, Records: 5, Length: 300 * time.Millisecond, Rounds: 2, Seed: 1}
	for _, fault := range []string{faultNone, faultTwice} {
		rows, err := Run(t.Context(), cfg, relaySubject(t, fault))
		if err != nil {
			t.Fatal(err)
		}
		if len(rows) != 2 {
			t.Fatalf("%d rows", len(rows))
		}
		for _, r := range rows {
			if r.Subject != fault || r.Acked < 100 || r.Bytes == 0 || r.Lost != 0 || (r.Duplicates > 0) != (fault == faultTwice) ||
				r.PeakBytes == 0 || r.HarnessCPU == 0 || r.Sending < cfg.Length/2 || r.Delivering < r.Sending/2 || r.Latency.Count()*5 != r.Acked {
				t.Errorf("%s: %+v", fault, r)
			}
		}
		if Whole(rows) != (fault == faultNone) {
			t.Errorf("%s: Whole is wrong", fault)
		}
	}
	left, err := os.ReadDir(cfg.Dir)
	if err != nil || len(left) != 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

func TestLossIsARowAndNoEnd(t *testing.T) {
	cfg := Config{
		Dir: t.TempDir(), Transport: HTTP, Compression: wire.None, Senders: 2, Records: 5, Length: 300 * time.Millisecond, Rounds: 1, Seed: 1,
		DeliverIn: 200 * time.Millisecond,
	}
	rows, err := Run(t.Context(), cfg, relaySubject(t, faultLose))
	if err != nil || len(rows) != 1 || rows[0].Lost == 0 || Whole(rows) {
		t.Errorf("%v, %+v", err, rows)
	}
}

func TestSubjectThatDoesNotStartIsTold(t *testing.T) {
	s := relaySubject(t, faultNone)
	s.arguments = func(string) []string { return []string{"/nowhere"} }
	cfg := Config{Dir: t.TempDir(), Transport: HTTP, Compression: wire.None, Senders: 1, Records: 1, Length: time.Second, Rounds: 1}
	_, err := Run(t.Context(), cfg, s)
	if err == nil || !strings.Contains(err.Error(), "it ended") || !strings.Contains(err.Error(), "data and log are in") {
		t.Errorf("%v", err)
	}
}

func TestBareSyncsEachRequest(t *testing.T) {
	row, err := Bare(t.Context(), Config{Dir: t.TempDir(), Records: 10, Length: 50 * time.Millisecond, Seed: 1})
	if err != nil || row.Acked == 0 || row.Acked != 10*row.Latency.Count() || row.Latency.Quantile(0.5) == 0 || row.Subject != BareName {
		t.Errorf("%v, %+v", err, row)
	}
}

func TestTableAndGoals(t *testing.T) {
	row := func(subject string, acked uint64, cpu, answer time.Duration, peakMiB int64, parts ...int64) Row {
		r := Row{Subject: subject, Acked: acked, Bytes: 100 * acked, Sending: time.Second, Delivering: 2 * time.Second, CPU: cpu, PeakBytes: peakMiB * mib, PeakByParts: parts}
		r.Latency.Add(answer)
		return r
	}
	rows := []Row{
		row("a", 3_000_000, 3*time.Second, time.Millisecond, 100, 0, 90*mib, 0, 95*mib),
		row("b", 100_000, 2*time.Second, 16*time.Millisecond, 300),
		row("a", 1_000_000, time.Second, 2*time.Millisecond, 120, 0, 90*mib, 0, 95*mib),
		row("b", 100_000, 2*time.Second, 16*time.Millisecond, 300),
		row(BareName, 1, 0, time.Millisecond, 0),
	}
	rows[3].Lost = 7
	var out strings.Builder
	if err := Table(&out, rows); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"|  | a | b | " + BareName + " |",
		"| delivered records/s | 1000000 (500000 to 1500000) | 49998 (49996 to 50000) | ",
		"| CPU s per million | 1.00 (1.00 to 1.00) | 20.00 (20.00 to 20.00) | ",
		"| lost | 0 | 7 | 0 |",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}
	goals := append(append(LoadGoals(rows, "a", "b"), AnswerGoals(rows, "a")...), BacklogGoals(rows, "a")...)
	want := []bool{true, true, true, true, true, true} // 20 times, 1/20, 3/32, 1, 110 MiB, 5 MiB
	for i, g := range goals {
		if g.Met != want[i] {
			t.Errorf("%+v", g)
		}
	}
	for _, g := range append(append(LoadGoals(rows, "b", "a"), AnswerGoals(rows, "b")...), BacklogGoals(rows, "b")...) {
		if g.Met {
			t.Errorf("of the other: %+v", g)
		}
	}
	late := row("a", 1_500_000, 0, time.Millisecond, 1)
	late.Starting = 2 * time.Second
	adopted := []Row{row("a", 200_000, 0, time.Millisecond, 1)} // a tenth of the rate of rows[0] and rows[2] together
	for _, g := range append(StartGoals([]Row{late}, "a"), AdoptGoals(adopted, rows, "a")...) {
		if g.Met {
			t.Errorf("of one that is late: %+v", g)
		}
	}
	for _, g := range append(StartGoals(rows, "a"), AdoptGoals([]Row{late}, rows, "a")...) {
		if !g.Met {
			t.Errorf("%+v", g)
		}
	}
	out.Reset()
	if err := Goals(&out, goals[:1]); err != nil || !strings.Contains(out.String(), "| at least 15 times | 20 times (10 to 30) | met |") {
		t.Errorf("%v: %s", err, out.String())
	}
}
