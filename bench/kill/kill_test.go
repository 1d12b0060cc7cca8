package kill

import (
	"cmp"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"ingest-agent/bench/sink"
)

// seed of all rounds in these tests.
const seed = 20250303

// runFakeRounds lets the harness loose on a fake agent.
func runFakeRounds(t *testing.T, f fault, cfg Config) *Report {
	t.Helper()
	bin, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cfg.Bin, cfg.Dir, cfg.Seed = bin, t.TempDir(), seed
	cfg.Env = []string{faultVariable + "=" + string(f)}
	cfg.Rounds = cmp.Or(cfg.Rounds, 5)
	cfg.MaxDelay = cmp.Or(cfg.MaxDelay, 200*time.Millisecond)
	cfg.Rate = cmp.Or(cfg.Rate, 200)
	report, err := Run(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	return report
}

func text(t *testing.T, r *Report) string {
	t.Helper()
	var b strings.Builder
	if err := r.Print(&b); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestSoundAgentPasses(t *testing.T) {
	// The window is wide: this fake shares two processors with the tests of other packages.
	r := runFakeRounds(t, sound, Config{Rounds: 8, Window: 10 * time.Second})
	out := text(t, r)
	if r.Failed() || r.Missing+r.Invented+r.Unexcused != 0 {
		t.Errorf("found fault with an agent that has none:\n%s", out)
	}
	if r.Acked == 0 || len(r.Rounds) != 8 || !strings.Contains(out, "PASS: 8 rounds, seed 20250303") {
		t.Errorf("shows nothing:\n%s", out)
	}
}

func TestEachFaultIsFound(t *testing.T) {
	for _, c := range []struct {
		fault fault
		cfg   Config
		want  string
	}{
		{lossy, Config{}, "never arrived"},
		{forgetful, Config{Window: time.Millisecond}, "again without excuse"},
		{inventive, Config{}, "never sent"},
		{changing, Config{}, "not what was sent"},
		{repeating, Config{}, "with no crash between"},
		{crashing, Config{}, "ended by itself"},
		{deaf, Config{ReadyTimeout: 200 * time.Millisecond}, "/readyz"},
		{stubborn, Config{StopTimeout: 200 * time.Millisecond}, "still alive"},
		{angry, Config{Rounds: 1}, "want exit code 0"},
		{miscounts, Config{}, "different records arrived"},
	} {
		t.Run(string(c.fault), func(t *testing.T) {
			t.Parallel()
			r := runFakeRounds(t, c.fault, c.cfg)
			if out := text(t, r); !r.Failed() || !strings.Contains(strings.Join(r.Violations, "\n"), c.want) {
				t.Errorf("no violation %q:\n%s", c.want, out)
			}
		})
	}
}

// TestAgentSurvivesKills is the harness on the real thing: few rounds; many come through make.
func TestAgentSurvivesKills(t *testing.T) {
	if testing.Short() {
		t.Skip("builds the agent and runs it for some seconds")
	}
	bin := filepath.Join(t.TempDir(), "ingest-agent")
	if out, err := exec.Command("go", "build", "-o", bin, "ingest-agent/cmd/ingest-agent").CombinedOutput(); err != nil {
		t.Fatalf("build agent: %v\n%s", err, out)
	}
	r, err := Run(t.Context(), Config{Bin: bin, Dir: t.TempDir(), Seed: seed, Rounds: 3})
	if err != nil {
		t.Fatal(err)
	}
	if out := text(t, r); r.Failed() {
		t.Error("\n" + out)
	}
}

func TestPlanDependsOnSeedAndRoundOnly(t *testing.T) {
	moments, sinks := map[moment]int{}, map[bool]int{}
	for round := range 400 {
		p := planRound(1, round, time.Second)
		if !reflect.DeepEqual(p, planRound(1, round, time.Second)) {
			t.Fatalf("round %d is planned in two ways", round)
		}
		if p.delay < 0 || p.delay > time.Second || p.flipAt > time.Second || (p.moment != duringStart && p.delay < minDelay) {
			t.Errorf("round %d: %+v", round, p)
		}
		moments[p.moment]++
		sinks[p.sinkUp]++
	}
	if reflect.DeepEqual(planRound(1, 1, time.Second), planRound(2, 1, time.Second)) {
		t.Error("two seeds, one plan")
	}
	if len(moments) != 4 || len(sinks) != 2 {
		t.Errorf("not all kinds of rounds are planned: %v, sink up %v", moments, sinks)
	}
}

func TestJudgeOfDuplicates(t *testing.T) {
	const ms = time.Millisecond
	for _, c := range []struct {
		name    string
		ends    []end
		last    time.Duration
		excused bool
		recent  uint64 // of the first end
	}{
		{"just before a crash", []end{{from: 1000 * ms, to: 1010 * ms, flip: -1}}, 950 * ms, true, 1},
		{"while it was dying", []end{{from: 1000 * ms, to: 1010 * ms, flip: -1}}, 1005 * ms, true, 1},
		{"a while before a crash", []end{{from: 1000 * ms, to: 1010 * ms, flip: -1}}, 850 * ms, true, 0},
		{"long before a crash", []end{{from: 1000 * ms, to: 1010 * ms, flip: -1}}, 790 * ms, false, 0},
		{"long before, but as the sink changed", []end{{from: 1000 * ms, to: 1010 * ms, flip: 500 * ms}}, 350 * ms, true, 0},
		{"long before the sink changed", []end{{from: 1000 * ms, to: 1010 * ms, flip: 500 * ms}}, 290 * ms, false, 0},
		{"no crash", nil, 950 * ms, false, 0},
		{"no crash since", []end{{from: 100 * ms, to: 110 * ms, flip: -1}}, 950 * ms, false, 0},
		{"before a clean stop", []end{{from: 1000 * ms, to: 1010 * ms, flip: -1, clean: true}}, 990 * ms, false, 1},
		{"before a clean stop, sink changed", []end{{from: 1000 * ms, to: 1010 * ms, flip: 900 * ms, clean: true}}, 990 * ms, true, 1},
		{"only the first crash counts", []end{{from: 1000 * ms, to: 1010 * ms, flip: -1}, {from: 1100 * ms, to: 1110 * ms, flip: -1}}, 500 * ms, false, 0},
		{"of the second crash", []end{{from: 100 * ms, to: 110 * ms, flip: -1}, {from: 1100 * ms, to: 1110 * ms, flip: -1}}, 1000 * ms, true, 0},
	} {
		j := &judge{window: 200 * ms}
		for _, e := range c.ends {
			j.ended(e)
		}
		j.duplicate(sink.Duplicate{Seq: 1, Last: c.last, Now: 2000 * ms})
		unexcused, examples := j.verdict()
		if (unexcused == 0) != c.excused || len(examples) != int(unexcused) {
			t.Errorf("%s: excused: %v, want %v (%v)", c.name, unexcused == 0, c.excused, examples)
		}
		if len(c.ends) > 0 && j.of(0).recent != c.recent {
			t.Errorf("%s: %d recent, want %d", c.name, j.of(0).recent, c.recent)
		}
	}
}

func TestSumMetric(t *testing.T) {
	page := `# HELP pending text
# TYPE pending gauge
pending{lane="a.0"} 3
pending{lane="odd } 7"} 4 1700000000000
pending_bytes{lane="a.0"} 1000
plain 1.5e+03
nothing{lane="a"}
`
	for _, c := range []struct {
		name  string
		sum   float64
		found bool
	}{{"pending", 7, true}, {"plain", 1500, true}, {"absent", 0, false}, {"nothing", 0, false}, {"pend", 0, false}} {
		if sum, found := sumMetric(page, c.name); sum != c.sum || found != c.found {
			t.Errorf("%s: %v, %v; want %v, %v", c.name, sum, found, c.sum, c.found)
		}
	}
}

func TestLastWords(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	long := strings.Repeat("x", 2*lastWordsBytes)
	for _, c := range []struct{ log, starts, ends string }{
		{"panic: first\n\ngoroutine 1\n" + long, "panic: first |  | goroutine 1", "x"},
		{long + "\npanic: later\nmore\n", "panic: later | more", "more"},
		{long + "\nsays panic: is not one\nlast line\n", "x", "last line"},
		{"", "", ""},
	} {
		if err := os.WriteFile(path, []byte(c.log), 0o644); err != nil {
			t.Fatal(err)
		}
		got := lastWords(path)
		if !strings.HasPrefix(got, c.starts) || !strings.HasSuffix(got, c.ends) || len(got) > 2*lastWordsBytes {
			t.Errorf("%q, want %q … %q", got, c.starts, c.ends)
		}
	}
}
