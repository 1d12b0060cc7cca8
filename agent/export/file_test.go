package export

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"go.opentelemetry.io/collector/pdata/plog"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/pdata/ptrace"
	"golang.org/x/sys/unix"

	"ingest-agent/segment"
	"ingest-agent/segment/vfs"
)

// readLines is the lines of all files of a signal in dir, oldest file first. Each must be whole.
func readLines(t testing.TB, dir string, signal segment.Signal) [][]byte {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(dir, signal.String()+"-*.ndjson"))
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(paths)
	var lines [][]byte
	for _, p := range append(paths, filepath.Join(dir, signal.String()+".ndjson")) {
		data, err := os.ReadFile(p)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		if len(data) > 0 && data[len(data)-1] != '\n' {
			t.Fatalf("%s ends within a line", p)
		}
		for line := range bytes.Lines(data) {
			lines = append(lines, bytes.TrimSuffix(line, []byte("\n")))
		}
	}
	return lines
}

// collectorLine is what the Collector's file exporter writes: pdata from the whole request, marshalled as JSON.
func collectorLine(t testing.TB, r *segment.Request) []byte {
	t.Helper()
	var line []byte
	var err, decodeErr error
	switch r.Signal {
	case segment.Logs:
		var d plog.Logs
		d, decodeErr = (&plog.ProtoUnmarshaler{}).UnmarshalLogs(merged(r))
		line, err = (&plog.JSONMarshaler{}).MarshalLogs(d)
	case segment.Traces:
		var d ptrace.Traces
		d, decodeErr = (&ptrace.ProtoUnmarshaler{}).UnmarshalTraces(merged(r))
		line, err = (&ptrace.JSONMarshaler{}).MarshalTraces(d)
	case segment.Metrics:
		var d pmetric.Metrics
		d, decodeErr = (&pmetric.ProtoUnmarshaler{}).UnmarshalMetrics(merged(r))
		line, err = (&pmetric.JSONMarshaler{}).MarshalMetrics(d)
	}
	if err := errors.Join(err, decodeErr); err != nil {
		t.Fatal(err)
	}
	return line
}

func fileOptions(dir string) Options { return Options{Type: TypeFile, Directory: dir} }

func TestFileWritesWhatTheCollectorWrites(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "b")
	sink := newTestSink(t, fileOptions(dir))
	for _, signal := range segment.Signals {
		var want [][]byte
		for _, frames := range []int{1, 3} {
			r := request(t, signal, frames, 2)
			out := sink.Deliver(t.Context(), r)
			if wantVerdict(t, out, segment.Delivered); out.Err != nil {
				t.Fatal(out.Err)
			}
			want = append(want, collectorLine(t, r))
			if n := checkLine(t, signal, want[len(want)-1]); n != 2*frames {
				t.Errorf("%v: %d records", signal, n)
			}
		}
		if got := readLines(t, dir, signal); !slices.EqualFunc(got, want, bytes.Equal) {
			t.Errorf("%v: got %q\nwant %q", signal, got, want)
		}
	}
	for path, perm := range map[string]os.FileMode{dir: dirPerm, filepath.Dir(dir): dirPerm, filepath.Join(dir, "logs.ndjson"): filePerm} {
		info, err := os.Stat(path)
		if err != nil || info.Mode().Perm() != perm {
			t.Errorf("%s: %v, %v", path, info.Mode(), err)
		}
	}
}

// A string that is not UTF-8 is written as the Collector writes it, and can be read back.
func TestFileTakesInvalidUTF8(t *testing.T) {
	dir := t.TempDir()
	b := bytes.Replace(body(t, segment.Logs, "name", 1), []byte("name"), []byte("n\xff\xc3e"), 1)
	r := &segment.Request{Signal: segment.Logs, Frames: []segment.Frame{frame(segment.Logs, 1, b, 1)}}
	wantVerdict(t, newTestSink(t, fileOptions(dir)).Deliver(t.Context(), r), segment.Delivered)
	lines := readLines(t, dir, segment.Logs)
	if len(lines) != 1 || !bytes.Equal(lines[0], collectorLine(t, r)) {
		t.Fatalf("%q", lines)
	}
	if d, err := (&plog.JSONUnmarshaler{}).UnmarshalLogs(lines[0]); err != nil || d.LogRecordCount() != 1 {
		t.Error(err)
	}
}

func TestFileRefusesWhatIsNoOTLP(t *testing.T) {
	dir := t.TempDir()
	sink := newTestSink(t, fileOptions(dir))
	for _, signal := range segment.Signals {
		r := request(t, signal, 3, 1)
		r.Frames[1].Body = []byte("\x0a\xff")
		out := sink.Deliver(t.Context(), r)
		wantVerdict(t, out, segment.Refused)
		if !strings.Contains(out.Err.Error(), r.Frames[1].ID.String()) {
			t.Errorf("the error does not name the frame: %v", out.Err)
		}
		if lines := readLines(t, dir, signal); len(lines) > 0 {
			t.Errorf("%q", lines)
		}
	}
	wantVerdict(t, sink.Deliver(t.Context(), &segment.Request{Signal: 9}), segment.Refused)
}

func TestFileDirectoryHasOneWriter(t *testing.T) {
	dir := t.TempDir()
	first, err := New("a", fileOptions(dir))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := New("b", fileOptions(dir+"/.")); err == nil || !strings.Contains(err.Error(), "another file destination") {
		t.Errorf("second sink: %v", err)
	}
	mustClose(t, first)
	wantVerdict(t, first.Deliver(t.Context(), request(t, segment.Logs, 1, 1)), segment.Retry)
	second, err := New("b", fileOptions(dir))
	if err != nil {
		t.Fatal(err)
	}
	mustClose(t, second)
	for _, o := range []Options{{Type: TypeFile}, {Type: TypeFile, Directory: dir, Rotation: RotationOptions{MaxFileBytes: -1}},
		fileOptions(os.Args[0])} {
		if _, err := New("c", o); err == nil {
			t.Errorf("%+v was taken", o)
		}
	}
}

func TestFileConcurrentDelivers(t *testing.T) {
	dir := t.TempDir()
	o := fileOptions(dir)
	o.Rotation.MaxFileBytes = 20_000
	sink := newTestSink(t, o)
	const writers, each = 8, 40
	want := map[string]int{}
	var wg sync.WaitGroup
	for w := range writers {
		for i := range each {
			r := requestNamed(t, fmt.Sprintf("w%d-%d", w, i))
			want[string(collectorLine(t, r))]++
		}
		wg.Go(func() {
			for i := range each {
				if out := sink.Deliver(context.Background(), requestNamed(t, fmt.Sprintf("w%d-%d", w, i))); out.Verdict != segment.Delivered {
					t.Error(out.Err)
				}
			}
		})
	}
	wg.Wait()
	for _, line := range readLines(t, dir, segment.Logs) {
		checkLine(t, segment.Logs, line)
		want[string(line)]--
	}
	for line, n := range want {
		if n != 0 {
			t.Errorf("%+d times missing: %s", n, line)
		}
	}
}

func requestNamed(t testing.TB, name string) *segment.Request {
	t.Helper()
	return &segment.Request{Signal: segment.Logs, Frames: []segment.Frame{frame(segment.Logs, 1, body(t, segment.Logs, name, 1), 1)}}
}

// heldSyncs is a disk in memory whose file syncs each send a channel and wait for it to be closed.
func heldSyncs() (mem *vfs.Mem, held vfs.FS, syncs chan chan struct{}) {
	mem, syncs = vfs.NewMem(), make(chan chan struct{})
	return mem, vfs.NewFault(mem, func(op vfs.Op) error {
		if op.Kind == vfs.OpSync {
			let := make(chan struct{})
			syncs <- let
			<-let
		}
		return nil
	}), syncs
}

func TestFileSyncsOnceForAllThatWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, held, syncs := heldSyncs()
		sink, err := newFileSink(held, "/out", RotationOptions{})
		if err != nil {
			t.Fatal(err)
		}
		var answered collector[int]
		deliver := func(i int) {
			if out := sink.Deliver(t.Context(), requestNamed(t, fmt.Sprint(i))); out.Verdict == segment.Delivered {
				answered.add(i)
			}
		}
		go deliver(0)
		first := <-syncs
		for i := 1; i <= 10; i++ {
			go deliver(i)
		}
		synctest.Wait()
		if n := len(answered.get()); n > 0 {
			t.Errorf("%d answered before the sync", n)
		}
		close(first)
		second := <-syncs
		synctest.Wait()
		if n := len(answered.get()); n != 1 {
			t.Errorf("%d answered after the first sync", n)
		}
		close(second)
		synctest.Wait()
		if n := len(answered.get()); n != 11 {
			t.Errorf("%d answered after the second sync", n)
		}
		if err := sink.Close(); err != nil {
			t.Error(err)
		}
	})
}

// A disk that hangs must not hold a caller whose time is over.
func TestFileHungDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem, held, syncs := heldSyncs()
		sink, err := newFileSink(held, "/out", RotationOptions{})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var outs collector[segment.Outcome]
		deliver := func() { outs.add(sink.Deliver(ctx, requestNamed(t, "x"))) }
		go deliver()
		let := <-syncs // one is in hand, two more wait for the goroutine
		go deliver()
		go deliver()
		synctest.Wait()
		cancel()
		synctest.Wait()
		for _, out := range outs.get() {
			if out.Verdict != segment.Retry || !errors.Is(out.Err, context.Canceled) {
				t.Errorf("%+v", out)
			}
		}
		if len(outs.get()) != 3 {
			t.Errorf("%d returned", len(outs.get()))
		}
		close(let)
		if err := sink.Close(); err != nil {
			t.Error(err)
		}
		if data, err := vfs.ReadFile(mem, "/out/logs.ndjson", 1<<20); err != nil || bytes.Count(data, []byte("\n")) != 1 {
			t.Errorf("want the line in hand, got %q (%v)", data, err)
		}
	})
}

func TestFileFullVolume(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=64k"); err != nil {
		t.Skipf("needs the right to mount a small tmpfs: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	ballast := filepath.Join(dir, "ballast")
	if err := os.WriteFile(ballast, make([]byte, 48<<10), 0o600); err != nil {
		t.Fatal(err)
	}
	sink, err := New("default", fileOptions(dir))
	if err != nil {
		t.Fatal(err)
	}
	defer mustClose(t, sink)
	delivered := 0
	r := request(t, segment.Logs, 4, 10)
	for {
		out := sink.Deliver(t.Context(), r)
		if out.Verdict != segment.Delivered {
			wantVerdict(t, out, segment.Retry)
			if !errors.Is(out.Err, unix.ENOSPC) {
				t.Fatal(out.Err)
			}
			break
		}
		delivered++
	}
	for range 3 {
		wantVerdict(t, sink.Deliver(t.Context(), r), segment.Retry)
	}
	if n := len(readLines(t, dir, segment.Logs)); n != delivered {
		t.Errorf("%d lines, %d delivered", n, delivered)
	}
	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		wantVerdict(t, sink.Deliver(t.Context(), r), segment.Delivered)
	}
	lines := readLines(t, dir, segment.Logs)
	if len(lines) != delivered+2 || delivered == 0 {
		t.Errorf("%d lines, %d delivered", len(lines), delivered+2)
	}
	for _, line := range lines {
		checkLine(t, segment.Logs, line)
	}
}

// A line is OTLP JSON: ids in hex, 64 bit integers as text, enums as numbers, bytes in base64, numbers that JSON lacks as
// text (OTLP specification, "JSON Protobuf Encoding").
func TestFileLineIsOTLPJSON(t *testing.T) {
	logs := plog.NewLogs()
	record := logs.ResourceLogs().AppendEmpty().ScopeLogs().AppendEmpty().LogRecords().AppendEmpty()
	record.SetTimestamp(math.MaxUint64)
	record.SetSeverityNumber(plog.SeverityNumberError)
	record.SetTraceID([16]byte{0xAB, 15: 1})
	record.SetSpanID([8]byte{0xCD, 7: 2})
	record.SetFlags(1)
	record.Body().SetEmptyBytes().FromRaw([]byte{0xfb, 0xff})
	record.Attributes().PutInt("i", math.MinInt64)
	record.Attributes().PutDouble("d", math.NaN())
	record.Attributes().PutStr("s", "</>\u2028\x00\"")
	record.Attributes().PutEmptySlice("a").AppendEmpty().SetBool(true)

	traces := ptrace.NewTraces()
	span := traces.ResourceSpans().AppendEmpty().ScopeSpans().AppendEmpty().Spans().AppendEmpty()
	span.SetTraceID([16]byte{1})
	span.SetParentSpanID([8]byte{2})
	span.SetKind(ptrace.SpanKindServer)
	span.Status().SetCode(ptrace.StatusCodeError)
	span.SetEndTimestamp(1)

	metrics := pmetric.NewMetrics()
	all := metrics.ResourceMetrics().AppendEmpty().ScopeMetrics().AppendEmpty().Metrics()
	sum := all.AppendEmpty().SetEmptySum()
	sum.SetAggregationTemporality(pmetric.AggregationTemporalityDelta)
	sum.DataPoints().AppendEmpty().SetIntValue(math.MaxInt64)
	gauge := all.AppendEmpty().SetEmptyGauge().DataPoints()
	gauge.AppendEmpty().SetDoubleValue(math.Inf(-1))
	gauge.AppendEmpty().SetDoubleValue(1e300)
	histogram := all.AppendEmpty().SetEmptyHistogram().DataPoints().AppendEmpty()
	histogram.SetCount(math.MaxUint64)
	histogram.BucketCounts().Append(1, math.MaxUint64)
	histogram.ExplicitBounds().Append(0.5, math.Inf(1))

	for _, c := range []struct {
		signal segment.Signal
		body   func() ([]byte, error)
		want   []string
	}{
		{segment.Logs, func() ([]byte, error) { return (&plog.ProtoMarshaler{}).MarshalLogs(logs) }, []string{
			`"timeUnixNano":"18446744073709551615"`, `"severityNumber":17`, `"traceId":"ab000000000000000000000000000001"`,
			`"spanId":"cd00000000000002"`, `"flags":1`, `"bytesValue":"+/8="`, `"intValue":"-9223372036854775808"`, `"doubleValue":"NaN"`,
			`"arrayValue":{"values":[{"boolValue":true}]}`,
		}},
		{segment.Traces, func() ([]byte, error) { return (&ptrace.ProtoMarshaler{}).MarshalTraces(traces) }, []string{
			`"traceId":"01000000000000000000000000000000"`, `"parentSpanId":"0200000000000000"`, `"kind":2`, `"code":2`, `"endTimeUnixNano":"1"`,
		}},
		{segment.Metrics, func() ([]byte, error) { return (&pmetric.ProtoMarshaler{}).MarshalMetrics(metrics) }, []string{
			`"aggregationTemporality":1`, `"asInt":"9223372036854775807"`, `"asDouble":"-Infinity"`, `1e+300`,
			`"count":"18446744073709551615"`, `"bucketCounts":["1","18446744073709551615"]`, `"explicitBounds":[0.5,"Infinity"]`,
		}},
	} {
		b, err := c.body()
		if err != nil {
			t.Fatal(err)
		}
		line, err := encodeLine(&segment.Request{Signal: c.signal, Frames: []segment.Frame{frame(c.signal, 1, b, 1)}})
		if err != nil {
			t.Fatal(err)
		}
		checkLine(t, c.signal, bytes.TrimSuffix(line, []byte("\n")))
		if bytes.Count(line, []byte("\n")) != 1 || bytes.IndexByte(line, 0) >= 0 {
			t.Errorf("%v: more than a line, or zero bytes: %q", c.signal, line)
		}
		for _, part := range c.want {
			if !bytes.Contains(line, []byte(part)) {
				t.Errorf("%v: no %s in %s", c.signal, part, line)
			}
		}
	}
}
