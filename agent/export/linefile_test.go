package export

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"ingest-agent/segment"
	"ingest-agent/segment/vfs"
)

// failOnce is a disk in memory on which the next operation of each kind in next fails with the error there.
func failOnce() (mem *vfs.Mem, faulty vfs.FS, next map[string]error) {
	mem, next = vfs.NewMem(), map[string]error{}
	return mem, vfs.NewFault(mem, func(op vfs.Op) error {
		err := next[op.Kind]
		delete(next, op.Kind)
		return err
	}), next
}

// memLines is the lines of the logs file of /out in mem, split behind each line end.
func memLines(t testing.TB, mem vfs.FS) (data []byte, lines [][]byte) {
	t.Helper()
	data, err := vfs.ReadFile(mem, "/out/logs.ndjson", 1<<30)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	for line := range bytes.Lines(data) {
		lines = append(lines, bytes.TrimSuffix(line, []byte("\n")))
	}
	return data, lines
}

func TestFileFaults(t *testing.T) {
	for name, c := range map[string]struct {
		fail map[string]error
		torn bool // the file has bytes behind the confirmed lines until the next attempt
	}{
		"write":              {fail: map[string]error{vfs.OpWrite: vfs.ShortWrite(unix.ENOSPC, 100)}},
		"sync":               {fail: map[string]error{vfs.OpSync: unix.EIO}},
		"write and truncate": {fail: map[string]error{vfs.OpWrite: vfs.ShortWrite(unix.ENOSPC, 100), vfs.OpTruncate: unix.EIO}, torn: true},
		"sync and truncate":  {fail: map[string]error{vfs.OpSync: unix.EIO, vfs.OpTruncate: unix.EIO}, torn: true},
		"open":               {fail: map[string]error{vfs.OpOpen: unix.EMFILE}},
		"size":               {fail: map[string]error{vfs.OpSize: unix.EIO}},
	} {
		t.Run(name, func(t *testing.T) {
			mem, faulty, next := failOnce()
			sink, err := newFileSink(faulty, "/out", RotationOptions{})
			if err != nil {
				t.Fatal(err)
			}
			var want [][]byte
			good := func(name string) {
				t.Helper()
				r := requestNamed(t, name)
				wantVerdict(t, sink.Deliver(t.Context(), r), segment.Delivered)
				want = append(want, collectorLine(t, r))
			}
			good("first")
			good("second")
			confirmed, _ := memLines(t, mem)
			maps.Copy(next, c.fail)
			never := requestNamed(t, strings.Repeat("never", 100))
			wantVerdict(t, sink.Deliver(t.Context(), never), segment.Retry)
			if len(next) > 0 {
				t.Errorf("not used: %v", next)
			}
			now, _ := memLines(t, mem)
			if !bytes.HasPrefix(now, confirmed) || (len(now) > len(confirmed)) != c.torn {
				t.Errorf("file has %d bytes, %d confirmed", len(now), len(confirmed))
			}
			if c.torn { // the process ends here: the next one cuts or keeps, and loses nothing
				checkImage(t, now, want, [][]byte{collectorLine(t, never)})
			}
			good("third")
			mustClose(t, sink)
			if _, got := memLines(t, mem); !slices.EqualFunc(got, want, bytes.Equal) {
				t.Errorf("got %q", got)
			}
		})
	}
}

// Every operation of a run with two rotations fails once, or is the last before a power cut. Confirmed lines are all there,
// and what is there is whole lines that were sent.
func TestFileFaultAtEveryOperation(t *testing.T) {
	const seed = 5
	t.Logf("seed %d", seed)
	requests := make([]*segment.Request, 6)
	for i := range requests {
		requests[i] = requestNamed(t, fmt.Sprintf("%d %s", i, strings.Repeat("x", 300*i)))
	}
	rotation := RotationOptions{MaxFileBytes: 1500}
	run := func(fsys vfs.FS) (confirmed [][]byte) {
		sink, err := newFileSink(fsys, "/data/out", rotation)
		if err != nil {
			t.Fatal(err)
		}
		defer mustClose(t, sink)
		for _, r := range requests {
			if out := sink.Deliver(context.Background(), r); out.Verdict == segment.Delivered {
				confirmed = append(confirmed, collectorLine(t, r))
			}
		}
		return confirmed
	}
	check := func(name string, fsys vfs.FS, confirmed [][]byte) {
		t.Helper()
		confirmed = append(confirmed, run(fsys)...) // the next process repairs and goes on
		there := map[string]int{}
		entries, err := fsys.List("/data/out")
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			data, err := vfs.ReadFile(fsys, "/data/out/"+e.Name, 1<<20)
			if err != nil {
				t.Fatal(err)
			}
			if filepath.Ext(e.Name) == tornExt {
				continue
			}
			for line := range bytes.Lines(data) {
				if !bytes.HasSuffix(line, []byte("\n")) {
					t.Fatalf("%s: %s ends within a line", name, e.Name)
				}
				checkLine(t, segment.Logs, line)
				there[string(bytes.TrimSuffix(line, []byte("\n")))]++
			}
		}
		for _, line := range confirmed {
			if there[string(line)]--; there[string(line)] < 0 {
				t.Fatalf("%s: a confirmed line is missing: %.200s", name, line)
			}
		}
	}
	whole := vfs.NewFault(vfs.NewMem(), nil)
	if n := len(run(whole)); n != len(requests) {
		t.Fatalf("%d confirmed", n)
	}
	random := rand.New(rand.NewPCG(seed, 0))
	for n := 1; n <= whole.Ops(); n++ {
		mem := vfs.NewMem()
		cut := vfs.NewFault(mem, nil)
		cut.StopAfter(n)
		confirmed := run(cut)
		check(fmt.Sprint("power cut at ", n), mem.CrashStrict(), confirmed)
		check(fmt.Sprint("power cut by chance at ", n), mem.Crash(random), confirmed)
		for kind, fault := range map[string]error{"error": unix.EIO, "error after effect": vfs.AfterEffect(unix.EIO), "short write": vfs.ShortWrite(unix.ENOSPC, 99)} {
			mem := vfs.NewMem()
			confirmed := run(vfs.NewFault(mem, func(op vfs.Op) error {
				if op.N == n && (kind != "short write" || op.Kind == vfs.OpWrite) {
					return fault
				}
				return nil
			}))
			check(fmt.Sprint(kind, " at ", n), mem.CrashStrict(), confirmed)
		}
	}
}

// The first line of a file failed, and somebody deleted the empty file: the one that is made then must be durable too.
func TestFileMadeAgainIsDurable(t *testing.T) {
	mem, faulty, next := failOnce()
	sink, err := newFileSink(faulty, "/out", RotationOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer mustClose(t, sink)
	next[vfs.OpWrite] = unix.EIO
	wantVerdict(t, sink.Deliver(t.Context(), requestNamed(t, "a")), segment.Retry)
	if err := mem.Remove("/out/logs.ndjson"); err != nil {
		t.Fatal(err)
	}
	wantVerdict(t, sink.Deliver(t.Context(), requestNamed(t, "a")), segment.Delivered)
	if _, lines := memLines(t, mem.CrashStrict()); len(lines) != 1 {
		t.Errorf("%q after a power cut", lines)
	}
}

// A file that can not be repaired stops no start, and is tried again by each attempt.
func TestFileThatCanNotBeRepaired(t *testing.T) {
	mem, faulty, next := failOnce()
	write(t, mem, "/out/logs.ndjson", "{}\ntorn")
	next[vfs.OpTruncate] = unix.EIO
	sink, err := newFileSink(faulty, "/out", RotationOptions{})
	if err != nil {
		t.Fatal(err)
	}
	next[vfs.OpTruncate] = unix.EIO
	wantVerdict(t, sink.Deliver(t.Context(), requestNamed(t, "a")), segment.Retry)
	wantVerdict(t, sink.Deliver(t.Context(), requestNamed(t, "a")), segment.Delivered)
	mustClose(t, sink)
	if _, lines := memLines(t, mem); len(lines) != 2 || string(lines[0]) != "{}" {
		t.Errorf("%q", lines)
	}
}

func write(t testing.TB, fsys vfs.FS, path, text string) {
	t.Helper()
	if err := vfs.MkdirAll(fsys, filepath.Dir(path), 0o750); err != nil {
		t.Fatal(err)
	}
	if err := vfs.WriteFileAtomic(fsys, path, []byte(text), 0o640); err != nil {
		t.Fatal(err)
	}
}

func appendFile(t testing.TB, path, text string) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	_, err = f.WriteString(text)
	if err := errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
}

// checkImage opens a directory whose logs file is image. All of must is there first, then only lines of may in order, and
// a line that is appended arrives, also after another reopen.
func checkImage(t *testing.T, image []byte, must, may [][]byte) {
	t.Helper()
	mem := vfs.NewMem()
	write(t, mem, "/out/logs.ndjson", string(image))
	last := requestNamed(t, "appended after the crash")
	for i := range 2 {
		sink, err := newFileSink(mem, "/out", RotationOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			wantVerdict(t, sink.Deliver(t.Context(), last), segment.Delivered)
		}
		mustClose(t, sink)
	}
	_, got := memLines(t, mem)
	n := len(got) - 1
	var torn []string
	entries, err := mem.List("/out")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if filepath.Ext(e.Name) == tornExt {
			torn = append(torn, "/out/"+e.Name)
		}
	}
	kept := image[min(bytes.LastIndexByte(image[:firstZero(image)], '\n')+1, len(image)):]
	if want := bytes.IndexByte(kept, '\n') >= 0; want != (len(torn) == 1) || len(torn) > 1 {
		t.Fatalf("kept aside: %v, wanted: %v", torn, want)
	} else if want {
		if data, err := vfs.ReadFile(mem, torn[0], 1<<30); err != nil || !bytes.Equal(data, kept) {
			t.Fatalf("kept aside %d bytes of %d (%v)", len(data), len(kept), err)
		}
	}
	if n < len(must) || n > len(must)+len(may) || !slices.EqualFunc(got[:n], append(slices.Clone(must), may...)[:n], bytes.Equal) ||
		!bytes.Equal(got[n], collectorLine(t, last)) {
		t.Fatalf("%d confirmed, %d not: got %d lines\n%q", len(must), len(may), len(got), got)
	}
}

func firstZero(b []byte) int {
	if i := bytes.IndexByte(b, 0); i >= 0 {
		return i
	}
	return len(b)
}

// What a crash can leave: the synced prefix and any subset of the 512-byte blocks behind it, the file as long as the last
// of them or longer. Blocks that are missing read as zeros.
func TestFileCrashImages(t *testing.T) {
	const seed = 7
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	const block = 512
	for round := range 400 {
		var must, may [][]byte
		var confirmed, file []byte
		for i := range 6 {
			line := collectorLine(t, requestNamed(t, fmt.Sprintf("%d %s", i, strings.Repeat("x", random.IntN(1500)))))
			file = append(append(file, line...), '\n')
			if i < 3 {
				must, confirmed = append(must, line), slices.Clone(file)
			} else {
				may = append(may, line)
			}
		}
		size := len(confirmed) + random.IntN(len(file)-len(confirmed)+1)
		image := make([]byte, size)
		copy(image, confirmed)
		for at := len(confirmed) / block * block; at < size; at += block {
			if random.IntN(3) > 0 {
				from, to := max(at, len(confirmed)), min(at+block, size)
				copy(image[from:to], file[from:to])
			}
		}
		t.Run(fmt.Sprint(round), func(t *testing.T) { checkImage(t, image, must, may) })
	}
}

// Every cut of the last line.
func TestFileTornLine(t *testing.T) {
	whole := collectorLine(t, requestNamed(t, "whole"))
	torn := collectorLine(t, requestNamed(t, "torn"))
	file := append(append(slices.Clone(whole), '\n'), torn...)
	for size := len(whole) + 1; size <= len(file); size += 3 {
		checkImage(t, file[:size], [][]byte{whole}, nil)
	}
	checkImage(t, nil, nil, nil)
	checkImage(t, torn, nil, nil)
	checkImage(t, make([]byte, 10_000), nil, nil)
}

// The scan goes on from chunk to chunk and starts at the line end before what a batch can have left.
func TestWholeLines(t *testing.T) {
	const c = repairChunkBytes
	text := func(parts ...string) string { return strings.Join(parts, "") }
	fill := func(n int) string { return strings.Repeat("x", n) }
	for i, test := range []struct {
		file string
		from int64
		want int64
	}{
		{text(fill(c-1), "\n", fill(c), "\n", "torn"), 0, 2*c + 1},
		{text(fill(c), "\n", fill(3*c)), 0, c + 1},
		{text(fill(c), "\n", fill(c), "\x00", "\n"), 0, c + 1},
		{text(fill(10), "\n", fill(10)), 10, 11},
		{text(fill(10), "\n", fill(10)), 11, -1},
		{fill(3 * c), 0, 0},
	} {
		got, err := wholeLines(strings.NewReader(test.file), test.from, int64(len(test.file)))
		if (err != nil) != (test.want < 0) || (err == nil && got != test.want) {
			t.Errorf("%d: %d, %v; want %d", i, got, err, test.want)
		}
	}
}

func TestFileRotation(t *testing.T) {
	dir := t.TempDir()
	small := requestNamed(t, "small")
	lineBytes := int64(len(collectorLine(t, small)) + 1)
	o := fileOptions(dir)
	o.Rotation.MaxFileBytes = 3 * lineBytes
	sink := newTestSink(t, o)
	for range 7 {
		wantVerdict(t, sink.Deliver(t.Context(), small), segment.Delivered)
	}
	big := requestNamed(t, strings.Repeat("big", int(o.Rotation.MaxFileBytes)))
	wantVerdict(t, sink.Deliver(t.Context(), big), segment.Delivered)
	wantVerdict(t, sink.Deliver(t.Context(), small), segment.Delivered)
	var sizes []int
	for _, path := range backups(t, dir) {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		stamp := strings.TrimSuffix(strings.TrimPrefix(filepath.Base(path), "logs-"), ".ndjson")
		if at, err := time.Parse(backupTime, stamp); err != nil || time.Since(at).Abs() > time.Hour {
			t.Errorf("%s: %v", path, err)
		}
		sizes = append(sizes, bytes.Count(data, []byte("\n")))
	}
	if !slices.Equal(sizes, []int{3, 3, 1, 1}) || len(readLines(t, dir, segment.Logs)) != 9 {
		t.Errorf("rotated files of %v lines", sizes)
	}
}

func backups(t *testing.T, dir string) []string {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(dir, "logs-*"))
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(paths)
	return paths
}

func TestFileBackupsAreKeptUnlessLimited(t *testing.T) {
	for _, limit := range []int{0, 2} {
		dir := t.TempDir()
		foreign := filepath.Join(dir, "logs-of-mine.ndjson")
		appendFile(t, foreign, "not ours\n")
		o := fileOptions(dir)
		o.Rotation = RotationOptions{MaxFileBytes: 1, MaxBackups: limit}
		sink := newTestSink(t, o)
		for i := range 6 {
			wantVerdict(t, sink.Deliver(t.Context(), requestNamed(t, fmt.Sprint(i))), segment.Delivered)
		}
		left := backups(t, dir)
		want := 6
		if limit > 0 {
			want = limit + 1
		}
		if len(left) != want || !slices.Contains(left, foreign) {
			t.Errorf("limit %d: %v", limit, left)
		}
		lines := readLines(t, dir, segment.Logs)
		if newest := collectorLine(t, requestNamed(t, "5")); !bytes.Equal(lines[len(lines)-1], newest) {
			t.Error("the newest line is gone")
		}
	}
}

// Files are moved, deleted and emptied by operators and logrotate. What is answered as delivered must be in the file of
// that name.
func TestFileChangedByOthers(t *testing.T) {
	for name, change := range map[string]func(path string) error{
		"moved":   func(path string) error { return os.Rename(path, path+".1") },
		"deleted": os.Remove,
		"emptied": func(path string) error { return os.Truncate(path, 0) },
		"replaced": func(path string) error {
			return errors.Join(os.Remove(path), os.WriteFile(path, []byte("{}\n"), 0o600))
		},
		"cut":          func(path string) error { return os.Truncate(path, 10) },
		"appended to":  func(path string) error { return os.WriteFile(path, []byte("{}\n{}\n"), 0o600) },
		"no directory": func(path string) error { return os.RemoveAll(filepath.Dir(path)) },
	} {
		dir := filepath.Join(t.TempDir(), "out")
		sink := newTestSink(t, fileOptions(dir))
		wantVerdict(t, sink.Deliver(t.Context(), requestNamed(t, "before")), segment.Delivered)
		path := filepath.Join(dir, "logs.ndjson")
		if err := change(path); err != nil {
			t.Fatal(err)
		}
		after := requestNamed(t, "after")
		wantVerdict(t, sink.Deliver(t.Context(), after), segment.Delivered)
		lines := readLines(t, dir, segment.Logs)
		if len(lines) == 0 || !bytes.Equal(lines[len(lines)-1], collectorLine(t, after)) {
			t.Errorf("%s: got %q", name, lines)
		}
		for _, line := range lines {
			checkLine(t, segment.Logs, line)
		}
	}
}

func TestFileIsCreatedWithItsFirstLine(t *testing.T) {
	dir := t.TempDir()
	newTestSink(t, fileOptions(dir))
	if _, err := os.Stat(filepath.Join(dir, "logs.ndjson")); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
}
