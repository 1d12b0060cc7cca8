// Package agenttest is what tests of the whole agent share, in one process or on the real binary: load with sequence numbers,
// a look at the metrics, and data directories that are copied, damaged and compared.
//
// It assumes that all records are made by otlpgen, so that each frame on disk can be found by its bytes.
package agenttest

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/oklog/ulid/v2"
	"go.uber.org/zap"

	"ingest-agent/bench/load"
	"ingest-agent/bench/otlpgen"
	"ingest-agent/bench/seqset"
	"ingest-agent/bench/sink"
	"ingest-agent/segment"
	"ingest-agent/segment/vfs"
)

// NewSink makes a sink that is down and that goes down for good with the test.
func NewSink(t testing.TB) *sink.Sink {
	t.Helper()
	s, err := sink.New(sink.Config{})
	if err != nil {
		t.Fatalf("make sink: %v", err)
	}
	t.Cleanup(func() {
		if err := s.Down(true); err != nil {
			t.Errorf("sink down: %v", err)
		}
	})
	return s
}

// Up starts a sink.
func Up(t testing.TB, s *sink.Sink) {
	t.Helper()
	if err := s.Up(); err != nil {
		t.Fatalf("sink up: %v", err)
	}
}

// SendTimeout is far above what a request takes, so that a busy machine does not fail a test.
const SendTimeout = time.Minute

// Send sends a load to its end and fails the test if a request was not acknowledged. It returns the numbers.
func Send(t testing.TB, cfg load.Config) *seqset.Set {
	t.Helper()
	cfg.Timeout = SendTimeout
	l, err := load.New(cfg)
	if err != nil {
		t.Fatalf("make load: %v", err)
	}
	res, err := l.Run(t.Context())
	if err != nil || res.Failed() > 0 {
		t.Fatalf("load: %v, failures %v", err, res.Failures)
	}
	return l.Acked()
}

// Await waits until cond holds, looking every few milliseconds, and fails the test after limit.
func Await(t testing.TB, limit time.Duration, what string, cond func() bool) {
	t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(limit); !cond(); <-tick.C {
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %s", limit, what)
		}
	}
}

// Same fails the test unless two sets are equal, and says what differs.
func Same(t testing.TB, what string, got, want *seqset.Set) {
	t.Helper()
	if n, ranges := want.Minus(got, 10); n > 0 {
		t.Errorf("%s: %d are missing: %v", what, n, ranges)
	}
	if n, ranges := got.Minus(want, 10); n > 0 {
		t.Errorf("%s: %d too many: %v", what, n, ranges)
	}
}

// Get returns status and body of a GET on host:port.
func Get(t testing.TB, addr, path string) (int, string) {
	t.Helper()
	client := http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+addr+path, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := client.Do(req)
	if err != nil {
		return 0, err.Error()
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, err.Error()
	}
	return resp.StatusCode, strings.TrimSpace(string(text))
}

// Metrics are the series of a /metrics page, by their text such as name{label="value"}.
type Metrics map[string]float64

// Scrape reads /metrics.
func Scrape(t testing.TB, admin string) Metrics {
	t.Helper()
	code, text := Get(t, admin, "/metrics")
	if code != http.StatusOK {
		t.Fatalf("/metrics: %d %s", code, text)
	}
	m := Metrics{}
	for line := range strings.Lines(text) {
		at := strings.LastIndexByte(strings.TrimSpace(line), ' ')
		if at < 0 || strings.HasPrefix(line, "#") {
			continue
		}
		v, err := strconv.ParseFloat(strings.TrimSpace(line[at:]), 64)
		if err != nil {
			t.Fatalf("/metrics: %q: %v", line, err)
		}
		m[line[:at]] = v
	}
	return m
}

// Sum adds up the series of ingest_agent_<name> that have all of the labels, given as name="value".
func (m Metrics) Sum(name string, labels ...string) uint64 {
	var sum float64
	for series, v := range m {
		ok := series == "ingest_agent_"+name || strings.HasPrefix(series, "ingest_agent_"+name+"{")
		for _, l := range labels {
			ok = ok && strings.Contains(series, l)
		}
		if ok {
			sum += v
		}
	}
	return uint64(sum)
}

// Balance fails the test unless accepted + adopted = delivered + rejected + dead letter + lost + handed over + pending.
func (m Metrics) Balance(t testing.TB) {
	t.Helper()
	in := m.Sum("records_accepted_total") + m.Sum("records_adopted_total")
	var out uint64
	terms := map[string]uint64{}
	for _, name := range []string{
		"records_delivered_total", "records_rejected_total", "records_dead_letter_total", "records_lost_total",
		"records_handed_over_total", "pending_records",
	} {
		terms[name] = m.Sum(name)
		out += terms[name]
	}
	if in != out {
		t.Errorf("%d records were accepted or adopted, but the terms make %d: %v", in, out, terms)
	}
}

// FrameAt is a data frame and where its bytes are.
type FrameAt struct {
	Path     string
	From, To int64
	Seqs     []uint64 // its records
	Pending  bool     // at or behind the cursor
}

// Frames finds the data frames of all lanes in a data directory. Blocks must not be compressed.
func Frames(t testing.TB, dataDir string) []FrameAt {
	t.Helper()
	lanes := filepath.Join(dataDir, "lanes")
	ids, _, err := segment.ListLanes(vfs.OS(), lanes)
	if err != nil {
		t.Fatal(err)
	}
	var found []FrameAt
	files := map[string][]byte{}
	for _, id := range ids {
		_, err := segment.InspectLane(vfs.OS(), lanes, id, func(f *segment.Frame, pending bool) {
			path := segmentPath(t, filepath.Join(lanes, id.String(), f.Position.Seq.String()))
			if files[path] == nil {
				files[path] = read(t, path)
			}
			at := bytes.Index(files[path], f.Body)
			from := at - len(f.Tenant) - frameHeaderBytes
			if at < 0 || !bytes.HasPrefix(files[path][from:], []byte("\xf1IAF")) {
				t.Fatalf("frame %s is not in %s as it should", f.ID, path)
			}
			one := FrameAt{Path: path, From: int64(from), To: int64(at + len(f.Body)), Pending: pending}
			if err := otlpgen.Walk(f.Signal, f.Body, func(seq uint64) { one.Seqs = append(one.Seqs, seq) }); err != nil {
				t.Fatal(err)
			}
			found = append(found, one)
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return found
}

// frameHeaderBytes is the fixed part of a frame before tenant and body, as docs/format.md says.
const frameHeaderBytes = 48

func read(t testing.TB, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// segmentPath is the only file in a segment's directory.
func segmentPath(t testing.TB, dir string) string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 1 {
		t.Fatalf("segment %s: %v %v", dir, entries, err)
	}
	return filepath.Join(dir, entries[0].Name())
}

// Segments returns the segment files of a lane, rising.
func Segments(t testing.TB, dataDir, lane string) (paths []string) {
	t.Helper()
	dir := filepath.Join(dataDir, "lanes", lane)
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if e.IsDir() {
			paths = append(paths, segmentPath(t, filepath.Join(dir, e.Name())))
		}
	}
	return paths
}

// Damage overwrites bytes of a file with random ones, growing it if need be, and returns the frames of all that lost a byte
// by it.
func Damage(t testing.TB, rng *rand.Rand, frames []FrameAt, path string, from int64, n int) (hit []FrameAt) {
	t.Helper()
	old := read(t, path)
	b := bytes.Clone(old)
	if grow := int(from) + n - len(b); grow > 0 {
		b = append(b, make([]byte, grow)...)
	}
	for i := range b[from : from+int64(n)] {
		b[int(from)+i] = byte(rng.Uint32())
	}
	if err := os.WriteFile(path, b, 0o640); err != nil {
		t.Fatal(err)
	}
	for _, f := range frames {
		if f.Path == path && !bytes.Equal(old[f.From:f.To], b[f.From:f.To]) {
			hit = append(hit, f)
		}
	}
	return hit
}

// Numbers returns the records of those frames that take says.
func Numbers(frames []FrameAt, take func(f *FrameAt) bool) *seqset.Set {
	s := &seqset.Set{}
	for i := range frames {
		if take(&frames[i]) {
			for _, seq := range frames[i].Seqs {
				s.Add(seq)
			}
		}
	}
	return s
}

// Copy copies a directory as it is, without what it holds that is no file.
func Copy(t testing.TB, from, to string) {
	t.Helper()
	if err := os.CopyFS(to, os.DirFS(from)); err != nil {
		t.Fatalf("copy %s: %v", from, err)
	}
}

// FastDir is a temporary directory in memory where the machine has such, for tests that make many data directories and cut no
// power.
func FastDir(t testing.TB) string {
	t.Helper()
	const inMemory = "/dev/shm"
	if _, err := os.Stat(inMemory); err != nil {
		return t.TempDir()
	}
	dir, err := os.MkdirTemp(inMemory, "ingest-agent-test-") //nolint:usetesting // t.TempDir is on disk
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Errorf("remove test directory: %v", err)
		}
	})
	return dir
}

// Tree describes everything in a directory: names, modes, times of change and contents. Two that are equal mean that
// nothing was written between.
func Tree(t testing.TB, dir string) string {
	t.Helper()
	var b strings.Builder
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		fmt.Fprintf(&b, "%s %v %d %d", path, info.Mode(), info.Size(), info.ModTime().UnixNano())
		if d.Type().IsRegular() {
			fmt.Fprintf(&b, " %x", sha256.Sum256(read(t, path)))
		}
		b.WriteByte('\n')
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// DiskUse is the largest number of bytes that the segments of a data directory had while it was watched.
type DiskUse struct {
	Max  int64
	Err  error
	stop context.CancelFunc
	done sync.WaitGroup
}

// WatchDisk begins to add up the sizes of all segment files, over and over. End must be called before the result is read.
func WatchDisk(dataDir string) *DiskUse {
	ctx, cancel := context.WithCancel(context.Background())
	w := &DiskUse{stop: cancel}
	w.done.Go(func() {
		tick := time.NewTicker(2 * time.Millisecond) // a block is there for longer
		defer tick.Stop()
		for ; ctx.Err() == nil; <-tick.C {
			n, err := SegmentBytes(dataDir)
			w.Max = max(w.Max, n)
			if err != nil {
				w.Err = err
			}
		}
	})
	return w
}

// End ends the watch.
func (w *DiskUse) End() { w.stop(); w.done.Wait() }

// SegmentBytes is the size of all segment files of a data directory. Cursor files are not part of it: they have a fixed size.
func SegmentBytes(dataDir string) (n int64, err error) {
	files, err := filepath.Glob(filepath.Join(dataDir, "lanes", "*", "*", "*"))
	for _, path := range files {
		if info, err := os.Stat(path); err == nil { // else it is gone by now
			n += info.Size()
		}
	}
	return n, err
}

// LongEnv is the environment variable that, when set, makes tests run at full size that else would take too long for each
// change.
const LongEnv = "INGEST_AGENT_LONG"

// ManySegments fills lane default.0 of a data directory with n sealed segments of one small request each and returns its
// records.
func ManySegments(t testing.TB, dataDir string, n int) *seqset.Set {
	t.Helper()
	gen, err := otlpgen.New(5, 1)
	if err != nil {
		t.Fatal(err)
	}
	l, err := segment.OpenLane(segment.LaneOptions{
		FS: vfs.OS(), Dir: filepath.Join(dataDir, "lanes"), ID: segment.LaneID{Destination: "default"}, Owner: segment.OwnerID(ulid.Make()),
		Space: segment.NewSpace(segment.SpaceOptions{MaxBytes: 1 << 40}), Log: zap.NewNop(),
		Quarantine: segment.NewQuarantine(vfs.OS(), filepath.Join(dataDir, "quarantine"), segment.DefaultQuarantineBytes),
		Settings: segment.Settings{ // each commit fills a segment
			Ack: segment.AckOS, SegmentSizeBytes: 1, SegmentAge: time.Hour, SyncInterval: time.Hour,
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	acked := &seqset.Set{}
	for seq := uint64(1); seq <= uint64(n); seq++ {
		f := segment.Frame{
			Signal: segment.Logs, Tenant: "default", Received: time.Now(), Records: 1, Body: gen.Append(nil, segment.Logs, 0, seq),
		}
		if err := l.Append(t.Context(), &f); err != nil {
			t.Fatal(err)
		}
		acked.Add(seq)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	return acked
}
