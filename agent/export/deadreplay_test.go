package export

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"ingest-agent/segment"
	"ingest-agent/segment/vfs"
)

// openObjects opens dead letters that are stored as the agent stores them.
func openObjects(fsys vfs.FS, dir string, maxBytes int64) (*DeadLetters, error) {
	return OpenDeadLetters(DeadLetterOptions{FS: fsys, Directory: dir, MaxBytes: maxBytes,
		Encode: func(f segment.Frame, cause string) ([]byte, error) {
			return segment.EncodeObject([]segment.Frame{f}, cause, time.Unix(0, 0))
		}})
}

// sinkFunc answers requests as a destination would.
type sinkFunc func(r *segment.Request) segment.Outcome

func (s sinkFunc) Deliver(_ context.Context, r *segment.Request) segment.Outcome { return s(r) }

// halves splits a body of as many bytes as it has records.
func halves(f *segment.Frame, n int) (head, tail []byte, err error) {
	return f.Body[:n], f.Body[n:], nil
}

func replay(d *DeadLetters, destination string, sink sinkFunc) (DeadReplayCounts, error) {
	ctx, end := context.WithCancel(context.Background())
	defer end()
	r := d.Replay(destination, end)
	segment.DrainOptions{
		Source: r, Cursor: r, Dead: r, Sink: func() segment.Sink { return sink }, Split: halves, Log: zap.NewNop(),
		Limits: func() segment.Limits {
			return segment.Limits{InFlight: 1, MaxRequestBytes: 1 << 20, WindowBytes: 1 << 20, RetryInitial: time.Millisecond, RetryMax: time.Millisecond}
		},
	}.Run(ctx)
	return r.Counts()
}

// refuseX refuses requests with an x in them.
func refuseX(delivered *[]string) sinkFunc {
	return func(r *segment.Request) segment.Outcome {
		for i := range r.Frames {
			if bytes.ContainsRune(r.Frames[i].Body, 'x') {
				return segment.Outcome{Verdict: segment.Refused, Err: errors.New("HTTP 400")}
			}
		}
		for i := range r.Frames {
			*delivered = append(*delivered, string(r.Frames[i].Body))
		}
		return segment.Outcome{Verdict: segment.Delivered}
	}
}

// TestDeadReplay: what is taken goes, what is refused again stays, down to its records; others' dead letters and files that
// cannot be read stay.
func TestDeadReplay(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "dead")
	d, err := openObjects(vfs.OS(), dir, math.MaxInt64)
	if err != nil {
		t.Fatal(err)
	}
	for i, body := range []string{"aaa", "x", "bbxb", "broken"} {
		mustSetAside(t, d, deadFrame("acme", segment.Logs, i+1, len(body), body))
	}
	mustSetAside(t, d, deadFrame("other", segment.Logs, 9, 1, "o"))
	broken := d.queue[3].path()
	if err := os.WriteFile(broken, []byte("no object"), 0o600); err != nil {
		t.Fatal(err)
	}
	var delivered []string
	got, err := replay(d, "acme", refuseX(&delivered))
	if err != nil || got.Delivered != segment.Logs.Of(6) || got.Refused != segment.Logs.Of(2) || len(got.Damaged) != 1 || !strings.HasPrefix(got.Damaged[0], broken) {
		t.Errorf("%+v, %v", got, err)
	}
	if text := strings.Join(delivered, ""); strings.Count(text, "a") != 3 || strings.Count(text, "b") != 3 || len(text) != 6 {
		t.Errorf("delivered %q", delivered)
	}
	for range 2 { // and after a restart
		if c := counts(d); c["acme logs"].Records != 8 || c["acme logs"].Frames != 3 || c["other logs"].Records != 1 {
			t.Errorf("left %v", c)
		}
		if n := d.Totals()["acme"]; n != (DeadTotals{Delivered: segment.Logs.Of(6)}) {
			t.Errorf("totals %+v", n)
		}
		if d, err = openObjects(vfs.OS(), dir, math.MaxInt64); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := replay(d, "nobody", refuseX(&delivered)); err != nil || got.Delivered != (segment.Counts{}) {
		t.Errorf("%+v, %v", got, err)
	}
}

// A replay of four dead letters is cut short at every operation: each is then either kept or counted as delivered, and was
// taken by the sink before it is gone.
func TestDeadReplayFaultAtEveryOperation(t *testing.T) {
	const seed, letters = 17, 4
	t.Logf("seed %d", seed)
	seeded := func() *vfs.Mem {
		mem := vfs.NewMem()
		d, err := openObjects(mem, "/data/dead", math.MaxInt64)
		if err != nil {
			t.Fatal(err)
		}
		for i := range letters {
			mustSetAside(t, d, deadFrame(fmt.Sprintf("d%d", i%2), segment.Logs, i+1, 1, fmt.Sprint(i)))
		}
		return mem
	}
	run := func(fsys vfs.FS) (delivered []string) {
		d, err := openObjects(fsys, "/data/dead", math.MaxInt64)
		if err != nil {
			return nil
		}
		for _, destination := range []string{"d0", "d1"} {
			if _, err := replay(d, destination, refuseX(&delivered)); err != nil {
				return delivered
			}
		}
		return delivered
	}
	check := func(name string, fsys vfs.FS, delivered []string) {
		t.Helper()
		d, err := openObjects(fsys, "/data/dead", math.MaxInt64)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		n := 0
		for _, totals := range d.Totals() {
			n += int(totals.Delivered.Sum())
		}
		if len(d.queue)+n != letters || n > len(delivered) {
			t.Fatalf("%s: %d kept, %d counted, %d delivered of %d", name, len(d.queue), n, len(delivered), letters)
		}
	}
	whole := vfs.NewFault(seeded(), nil)
	if got := run(whole); len(got) != letters {
		t.Fatalf("delivered %q", got)
	}
	random := rand.New(rand.NewPCG(seed, 0))
	for n := 1; n <= whole.Ops(); n++ {
		for kind, fault := range map[string]error{"error": unix.EIO, "error after effect": vfs.AfterEffect(unix.EIO)} {
			mem := seeded()
			delivered := run(vfs.NewFault(mem, func(op vfs.Op) error {
				if op.N >= n { // from here on nothing works any more: the process may as well have been killed
					return fault
				}
				return nil
			}))
			check(fmt.Sprint(kind, " from ", n), mem.CrashStrict(), delivered)
			check(fmt.Sprint(kind, " by chance from ", n), mem.Crash(random), delivered)
		}
	}
}

// A dead letter that was deleted and comes again is not taken for what the ledger says is to be removed. A ledger that
// cannot be read keeps nobody from starting.
func TestDeadLedgerAtTheNextStart(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "dead")
	open := func() *DeadLetters {
		d, err := openObjects(vfs.OS(), dir, diskBlockBytes)
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	d := open()
	first, second := deadFrame("acme", segment.Logs, 1, 1, "a"), deadFrame("acme", segment.Logs, 2, 2, "b")
	mustSetAside(t, d, first)
	mustSetAside(t, d, second) // deletes the first
	if err := os.Remove(d.queue[0].path()); err != nil {
		t.Fatal(err)
	}
	mustSetAside(t, d, first)
	d = open()
	if c, n := counts(d)["acme logs"], d.Totals()["acme"]; c.Records != 1 || n != (DeadTotals{Evicted: segment.Logs.Of(1)}) {
		t.Errorf("kept %+v, totals %+v", c, n)
	}
	if err := os.WriteFile(filepath.Join(dir, deadLedgerName), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if d = open(); len(d.Totals()) != 0 || len(d.Counts()) != 1 {
		t.Errorf("kept %v, totals %v", d.Counts(), d.Totals())
	}
	if _, err := os.Stat(filepath.Join(dir, deadLedgerDamaged)); err != nil {
		t.Error(err)
	}
}
