package main

import (
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"ingest-agent/agent/agenttest"
	benchload "ingest-agent/bench/load"
	"ingest-agent/bench/sink"
	"ingest-agent/segment"
	"ingest-agent/segment/vfs"
)

// directories are data directories in the states that a crash, a disk and people leave them in.
type directories struct {
	good    string // stopped; with a dead letter
	torn    string // killed in the middle of a block that nobody was answered for
	damaged string // good, with a bad page in a segment
	cursor  string // good, with one slot of a cursor overwritten
	dead    string // good, with a byte of the dead letter changed

	damage string // what a report of the damage begins with
	frames int    // in good
}

func makeDirectories(t *testing.T) directories {
	t.Helper()
	parent := t.TempDir()
	in := func(name string) string { return filepath.Join(parent, name) }
	d := directories{good: in("good"), torn: in("torn"), damaged: in("damaged"), cursor: in("cursor"), dead: in("dead")}
	s := agenttest.NewSink(t)
	agenttest.Up(t, s)
	s.Behave(sink.Behavior{Status: http.StatusBadRequest, Requests: 1})
	p := agentStarted(t, configFile(t, d.good, s.URL(), "wal: {shards: 1, segment_size: 64KiB, min_free_bytes: 0}\nshutdown: {timeout: 1s}\n"))
	seq := &benchload.Sequence{}
	send := func(requests int) {
		agenttest.Send(t, benchload.Config{HTTP: p.started.HTTP, Senders: 4, Requests: uint64(requests), Records: 1, Seed: 1, Sequence: seq})
	}
	send(1)
	p.awaitDrained(startLimit)
	if err := s.Down(true); err != nil {
		t.Fatal(err)
	}
	send(150)
	awaitSaved(t, d.good, 151)
	agenttest.Copy(t, d.good, d.torn)
	send(40)
	awaitSaved(t, d.good, 191)
	tear(t, d.good, d.torn)
	p.signal(syscall.SIGTERM)
	if code := p.code(startLimit); code != exitDone {
		t.Fatalf("exit code %d", code)
	}
	for _, to := range []string{d.damaged, d.cursor, d.dead} {
		agenttest.Copy(t, d.good, to)
	}
	rng := rand.New(rand.NewPCG(13, 13))
	frames := agenttest.Frames(t, d.damaged)
	d.frames = len(frames)
	path := agenttest.Segments(t, d.damaged, "default.0")[1]
	agenttest.Damage(t, rng, frames, path, 8<<10, 4<<10)
	d.damage = path + ": bytes "
	agenttest.Damage(t, rng, nil, filepath.Join(d.cursor, "lanes", "default.0", "cursor"), 0, 1000)
	letters, err := filepath.Glob(filepath.Join(d.dead, "dead", "*", "*", "*.seg"))
	if err != nil || len(letters) != 1 {
		t.Fatalf("dead letters %v %v", letters, err)
	}
	agenttest.Damage(t, rng, nil, letters[0], 300, 8)
	return d
}

// awaitSaved waits until the cursor of the lane holds that so many frames came in.
func awaitSaved(t *testing.T, dir string, frames uint64) {
	t.Helper()
	id := segment.LaneID{Destination: "default"}
	agenttest.Await(t, startLimit, "the cursor is saved", func() bool {
		st, _, err := segment.ReadCursor(vfs.OS(), filepath.Join(dir, "lanes", id.String()), id)
		return err == nil && st != nil && st.In.Frames == frames
	})
}

// tear makes the last segment of to what a kill leaves while its next blocks, which are in from, are written: it ends in the
// middle of a frame that is not the first of its block.
func tear(t *testing.T, from, to string) {
	t.Helper()
	segments := agenttest.Segments(t, to, "default.0")
	for _, path := range slices.Backward(segments) {
		old, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		source := strings.Replace(path, to, from, 1)
		frames := agenttest.Frames(t, from)
		for j := 1; j < len(frames); j++ {
			f := frames[j]
			if f.Path != source || f.From < old.Size() || frames[j-1].To != f.From {
				continue
			}
			torn := []byte(read(t, source))[:(f.From+f.To)/2]
			if err := os.WriteFile(path, torn, 0o600); err != nil {
				t.Fatal(err)
			}
			return
		}
	}
	t.Fatal("no block of several frames was written: the test needs more load")
}

func TestVerify(t *testing.T) {
	t.Parallel()
	d := makeDirectories(t)
	for _, test := range []struct {
		name, dir string
		code      int
		says      string
	}{
		{"good", d.good, exitDone, d.good + ": whole: 1 lanes, "},
		{"torn", d.torn, exitFailed, ": torn tail: "},
		{"damaged", d.damaged, exitFailed, d.damage},
		{"cursor", d.cursor, exitFailed, "default.0: cursor: "},
		{"dead letter", d.dead, exitFailed, filepath.Join(d.dead, "dead")},
		{"not there", filepath.Join(d.good, "none"), exitFailed, "not a data directory"},
		{"a bucket", "s3://bucket/prefix", exitUsage, "not built yet"},
	} {
		before := treeOf(t, test.dir)
		code, stdout, stderr := execute(t, "verify", test.dir)
		if code != test.code || !strings.Contains(stdout+stderr, test.says) {
			t.Errorf("%s: code %d\n%s%s", test.name, code, stdout, stderr)
		}
		if (code == exitDone) != (stderr == "") || strings.Count(stderr, "\n") > 1 {
			t.Errorf("%s: stderr %q", test.name, stderr)
		}
		if treeOf(t, test.dir) != before {
			t.Errorf("%s: verify wrote to it", test.name)
		}
	}

	// A torn tail is normal: after the next start all is whole, and nothing is lost.
	s := agenttest.NewSink(t)
	p := agentStarted(t, configFile(t, d.torn, s.URL(), oneLane+"shutdown: {timeout: 1s}\n"))
	if lost := p.metrics().Sum("records_lost_total"); lost > 0 {
		t.Errorf("%d counted as lost", lost)
	}
	p.signal(syscall.SIGTERM)
	p.code(startLimit)
	if code, stdout, stderr := execute(t, "verify", d.torn); code != exitDone {
		t.Errorf("after a start on the torn one: code %d\n%s%s", code, stdout, stderr)
	}
}

// treeOf is agenttest.Tree for what may not be there.
func treeOf(t *testing.T, dir string) string {
	if _, err := os.Stat(dir); err != nil {
		return ""
	}
	return agenttest.Tree(t, dir)
}

func TestI13InspectWritesNothing(t *testing.T) {
	t.Parallel()
	d := makeDirectories(t)
	for _, dir := range []string{d.good, d.torn, d.damaged, d.cursor, d.dead} {
		before := agenttest.Tree(t, dir)
		for _, args := range [][]string{{}, {"--json"}, {"--frames"}, {"--json", "--frames"}} {
			args = append([]string{"inspect", dir}, args...)
			code, stdout, stderr := execute(t, args...)
			if code != exitDone || stderr != "" {
				t.Errorf("%v: code %d, %s", args, code, stderr)
			}
			if _, again, _ := execute(t, args...); again != stdout {
				t.Errorf("%v: two runs differ:\n%s\n%s", args, stdout, again)
			}
		}
		if agenttest.Tree(t, dir) != before {
			t.Errorf("inspect wrote to %s", dir)
		}
	}
	if code, _, stderr := execute(t, "inspect", filepath.Join(d.good, "none")); code != exitFailed || !strings.Contains(stderr, "not a data directory") {
		t.Errorf("code %d, %s", code, stderr)
	}
	_, stdout, _ := execute(t, "inspect", d.damaged)
	var from, to int
	if _, rest, found := strings.Cut(stdout, d.damage); !found {
		t.Errorf("the damage is not named:\n%s", stdout)
	} else if _, err := fmt.Sscanf(rest, "%d to %d:", &from, &to); err != nil || from > 8<<10 || from < 4<<10 || to < 12<<10 || to > 16<<10 {
		t.Errorf("the range is not that of the damage, 8192 to 12288: %v\n%s", err, stdout)
	}
}

// TestInspectJSON holds the names that scripts rely on.
func TestInspectJSON(t *testing.T) {
	t.Parallel()
	d := makeDirectories(t)
	_, stdout, _ := execute(t, "inspect", "--json", "--frames", d.good)
	dec := json.NewDecoder(strings.NewReader(stdout))
	pending, frames := 0, 0
	for range d.frames + 1 { // and the dead letter
		var f struct {
			ID, Position, Signal, Tenant string
			Received                     time.Time
			Records                      int
			SizeBytes                    int `json:"size_bytes"`
			Pending                      *bool
		}
		if err := dec.Decode(&f); err != nil {
			t.Fatal(err)
		}
		if f.ID == "" || f.Signal == "" || f.Tenant != "default" || f.Received.IsZero() || f.Records != 1 || f.SizeBytes == 0 || f.Pending == nil {
			t.Fatalf("frame %+v", f)
		}
		frames++
		if *f.Pending {
			pending++
		}
	}
	var report map[string]any
	if err := dec.Decode(&report); err != nil {
		t.Fatal(err)
	}
	if err := dec.Decode(&report); err != io.EOF {
		t.Errorf("there is more: %v", err)
	}
	if frames != d.frames+1 || pending != 190 {
		t.Errorf("%d frames, %d pending", frames, pending)
	}
	for path, want := range map[string]any{
		"path":                        d.good,
		"lanes.0.lane":                "default.0",
		"lanes.0.cursor.lane":         "default.0",
		"lanes.0.segments.0.sealed":   true,
		"lanes.0.segments.0.first":    1.0,
		"lanes.0.pending.frames":      190.0,
		"lanes.0.missing.frames":      0.0,
		"dead_letters.0.sealed":       true,
		"dead_letters.0.totals.bytes": nil, // any
		"quarantine.files":            0.0,
		"quarantine.size_bytes":       0.0,
	} {
		got, found := at(report, strings.Split(path, "."))
		if !found || want != nil && got != want {
			t.Errorf("%s: %v, want %v", path, got, want)
		}
	}
}

// at follows a path through decoded JSON.
func at(v any, path []string) (any, bool) {
	for _, name := range path {
		switch x := v.(type) {
		case map[string]any:
			var found bool
			if v, found = x[name]; !found {
				return nil, false
			}
		case []any:
			i := int(name[0] - '0')
			if i >= len(x) {
				return nil, false
			}
			v = x[i]
		default:
			return nil, false
		}
	}
	return v, true
}
