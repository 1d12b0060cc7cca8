package export

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/oklog/ulid/v2"
	"golang.org/x/sys/unix"

	"ingest-agent/segment"
	"ingest-agent/segment/vfs"
)

// deadDir is a dead letter directory whose objects are the cause and the body in plain text.
type deadDir struct {
	dir     string
	evicted collector[DeadCount]
	encode  func(segment.Frame, string) ([]byte, error)
}

func newDeadDir(t *testing.T) *deadDir {
	return &deadDir{
		dir: filepath.Join(t.TempDir(), "data", "dead"),
		encode: func(f segment.Frame, cause string) ([]byte, error) {
			return append([]byte(cause+": "), f.Body...), nil
		},
	}
}

func (d *deadDir) open(t *testing.T, maxBytes int64) *DeadLetters {
	t.Helper()
	dl, err := OpenDeadLetters(DeadLetterOptions{FS: vfs.OS(), Directory: d.dir, MaxBytes: maxBytes, OnEvict: d.evicted.add, Encode: d.encode})
	if err != nil {
		t.Fatal(err)
	}
	return dl
}

// files are the paths below the directory, sorted.
func (d *deadDir) files(t *testing.T) []string {
	t.Helper()
	var all []string
	err := filepath.WalkDir(d.dir, func(path string, e fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err == nil && !e.IsDir() && e.Name() != deadLedgerName {
			rel, _ := filepath.Rel(d.dir, path)
			all = append(all, rel)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func counts(d *DeadLetters) map[string]DeadCount {
	all := map[string]DeadCount{}
	for _, c := range d.Counts() {
		all[c.Destination+" "+c.Signal.String()] = c
	}
	return all
}

func deadFrame(destination string, signal segment.Signal, number, records int, body string) *segment.Frame {
	f := frame(signal, number, []byte(body), records)
	f.ID.Lane = segment.LaneID{Destination: destination, Shard: 0}
	return &f
}

func mustSetAside(t testing.TB, d *DeadLetters, f *segment.Frame) {
	t.Helper()
	if err := d.SetAside(context.Background(), f, "HTTP 400"); err != nil {
		t.Fatal(err)
	}
}

func TestDeadLetterIsKeptOnceAndCounted(t *testing.T) {
	d := newDeadDir(t)
	dl := d.open(t, 1<<20)
	if len(d.files(t)) > 0 || len(dl.Counts()) > 0 {
		t.Fatal("not empty")
	}
	whole := deadFrame("acme", segment.Logs, 3, 5, "whole frame")
	mustSetAside(t, dl, whole)
	mustSetAside(t, dl, whole)
	mustSetAside(t, dl, deadFrame("acme", segment.Logs, 3, 2, "a part of it"))
	mustSetAside(t, dl, deadFrame("acme", segment.Logs, 4, 1, "whole frame"))
	mustSetAside(t, dl, deadFrame("acme", segment.Traces, 5, 1, strings.Repeat("x", diskBlockBytes)))
	mustSetAside(t, dl, deadFrame("beta", segment.Metrics, 6, 9, "metrics"))
	want := map[string]DeadCount{
		"acme logs":    {"acme", segment.Logs, 3, 8, 3 * diskBlockBytes},
		"acme traces":  {"acme", segment.Traces, 1, 1, 2 * diskBlockBytes},
		"beta metrics": {"beta", segment.Metrics, 1, 9, diskBlockBytes},
	}
	for _, now := range []*DeadLetters{dl, d.open(t, 1<<20)} { // and after a restart
		if got := counts(now); fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("got %v\nwant %v", got, want)
		}
		mustSetAside(t, now, whole)
	}
	files := d.files(t)
	if len(files) != 5 {
		t.Fatalf("%q", files)
	}
	i := slices.IndexFunc(files, func(path string) bool { return strings.HasSuffix(path, ".logs.5.seg") })
	if want := testOwner.String() + "/acme.0/00000000000000000007-0000000003-"; i < 0 || !strings.HasPrefix(files[i], want) {
		t.Fatalf("%q", files)
	}
	path := filepath.Join(d.dir, files[i])
	if data, err := os.ReadFile(path); err != nil || string(data) != "HTTP 400: whole frame" {
		t.Errorf("%q, %v", data, err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != filePerm {
		t.Errorf("%v, %v", info.Mode(), err)
	}
}

func TestDeadLetterEvictsTheOldest(t *testing.T) {
	d := newDeadDir(t)
	dl := d.open(t, 3*diskBlockBytes)
	for i := 1; i <= 3; i++ {
		mustSetAside(t, dl, deadFrame(fmt.Sprintf("d%d", 9-i), segment.Logs, i, i, "x")) // by name the last comes first
	}
	mustSetAside(t, dl, deadFrame("new", segment.Traces, 4, 40, "x"))
	dl = d.open(t, 3*diskBlockBytes)
	mustSetAside(t, dl, deadFrame("new", segment.Traces, 5, 50, strings.Repeat("x", diskBlockBytes+1)))
	want := []DeadCount{
		{"d8", segment.Logs, 1, 1, diskBlockBytes},
		{"d7", segment.Logs, 1, 2, diskBlockBytes},
		{"d6", segment.Logs, 1, 3, diskBlockBytes},
	}
	if got := d.evicted.get(); !slices.Equal(got, want) {
		t.Errorf("evicted %v", got)
	}
	if got := counts(dl); len(got) != 1 || got["new traces"] != (DeadCount{"new", segment.Traces, 2, 90, 3 * diskBlockBytes}) {
		t.Errorf("%v", got)
	}
	if _, err := os.Stat(filepath.Join(d.dir, testOwner.String(), "d8.0")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("an empty directory is left: %v", err)
	}
	mustSetAside(t, dl, deadFrame("d8", segment.Logs, 6, 1, "x")) // its directory is made again
	if n := len(d.files(t)); n != 2 {
		t.Errorf("%d files", n)
	}
}

// The only file of a lane goes to make room for another of the same lane.
func TestDeadLetterEvictsItsOwnLane(t *testing.T) {
	d := newDeadDir(t)
	dl := d.open(t, diskBlockBytes)
	for i := 1; i <= 5; i++ {
		mustSetAside(t, dl, deadFrame("acme", segment.Logs, i, 1, "x"))
	}
	if files, evicted := d.files(t), d.evicted.get(); len(files) != 1 || len(evicted) != 4 {
		t.Errorf("%d files, %d evicted", len(files), len(evicted))
	}
}

func TestDeadLetterThatCanNeverFit(t *testing.T) {
	d := newDeadDir(t)
	for _, limit := range []int64{0, diskBlockBytes} {
		d.evicted = collector[DeadCount]{}
		dl := d.open(t, limit)
		mustSetAside(t, dl, deadFrame("acme", segment.Logs, 1, 7, strings.Repeat("x", diskBlockBytes)))
		want := []DeadCount{{"acme", segment.Logs, 1, 7, 2 * diskBlockBytes}}
		if got := d.evicted.get(); !slices.Equal(got, want) || len(d.files(t)) > 0 || len(dl.Counts()) > 0 {
			t.Errorf("limit %d: evicted %v", limit, got)
		}
	}
}

// Files that an operator or a replay took out are not lost, and make room.
func TestDeadLettersTakenOut(t *testing.T) {
	d := newDeadDir(t)
	dl := d.open(t, 2*diskBlockBytes)
	mustSetAside(t, dl, deadFrame("acme", segment.Logs, 1, 1, "x"))
	mustSetAside(t, dl, deadFrame("acme", segment.Logs, 2, 1, "x"))
	if err := os.RemoveAll(d.dir); err != nil {
		t.Fatal(err)
	}
	next := deadFrame("acme", segment.Logs, 3, 1, "x")
	if err := dl.SetAside(t.Context(), next, "HTTP 400"); err == nil && len(d.files(t)) == 0 {
		t.Fatal("success without a file")
	}
	mustSetAside(t, dl, next)
	if files, evicted := d.files(t), d.evicted.get(); len(files) != 1 || len(evicted) > 0 {
		t.Errorf("files %q, evicted %v", files, evicted)
	}
}

func TestDeadLetterStartTidiesAndLeavesOthersAlone(t *testing.T) {
	d := newDeadDir(t)
	dl := d.open(t, 1<<20)
	mustSetAside(t, dl, deadFrame("acme", segment.Logs, 1, 1, "x"))
	lane := filepath.Join(d.dir, testOwner.String(), "acme.0")
	ours := d.files(t)
	foreign := []string{
		filepath.Join(d.dir, "README"),
		filepath.Join(d.dir, "x.seg.tmp"),
		filepath.Join(lane, "x.tmp"),
		filepath.Join(lane, "README"),
		filepath.Join(lane, "7-3-00112233445566778899aabbccddeeff.logs.1.seg"),
		filepath.Join(lane, "00000000000000000007-0000000003-00112233445566778899AABBCCDDEEFF.logs.1.seg"),
		filepath.Join(lane, "00000000000000000007-0000000003-00112233445566778899aabbccddeeff.logs.+1.seg"),
		filepath.Join(lane, "00000000000000000007-0000000003-0011.logs.1.seg"),
	}
	for _, path := range append(foreign, filepath.Join(d.dir, ours[0])+".tmp") {
		if err := os.WriteFile(path, []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if got := counts(d.open(t, 1<<20)); len(got) != 1 || got["acme logs"].Frames != 1 {
		t.Errorf("%v", got)
	}
	if got := d.files(t); len(got) != len(foreign)+1 || slices.Contains(got, ours[0]+".tmp") {
		t.Errorf("%q", got)
	}
}

func TestDeadLetterErrors(t *testing.T) {
	d := newDeadDir(t)
	encode := d.encode
	broken := errors.New("broken")
	d.encode = func(segment.Frame, string) ([]byte, error) { return nil, broken }
	dl := d.open(t, 1<<20)
	f := deadFrame("acme", segment.Logs, 1, 1, "x")
	if err := dl.SetAside(t.Context(), f, ""); !errors.Is(err, broken) || !strings.Contains(err.Error(), f.ID.String()) {
		t.Error(err)
	}
	// A file where a directory should be.
	d.encode = encode
	owner := filepath.Join(d.dir, testOwner.String())
	if err := errors.Join(os.MkdirAll(d.dir, 0o750), os.WriteFile(owner, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	dl = d.open(t, 1<<20)
	if err := dl.SetAside(t.Context(), f, ""); err == nil || len(dl.Counts()) > 0 {
		t.Errorf("%v, %v", err, dl.Counts())
	}
	if err := os.Remove(owner); err != nil {
		t.Fatal(err)
	}
	mustSetAside(t, dl, f)
	if _, err := OpenDeadLetters(DeadLetterOptions{FS: vfs.OS(), Directory: filepath.Join(d.dir, d.files(t)[0])}); err == nil {
		t.Error("a file was taken for the directory")
	}
}

func TestDeadLetterWaitsWithContext(t *testing.T) {
	d := newDeadDir(t)
	entered, leave := make(chan struct{}), make(chan struct{})
	encode := d.encode
	d.encode = func(f segment.Frame, cause string) ([]byte, error) {
		close(entered)
		<-leave
		return encode(f, cause)
	}
	dl := d.open(t, 1<<20)
	done := make(chan error)
	go func() { done <- dl.SetAside(context.Background(), deadFrame("acme", segment.Logs, 1, 1, "x"), "") }()
	<-entered
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := dl.SetAside(ctx, deadFrame("acme", segment.Logs, 2, 1, "x"), ""); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if len(dl.Counts()) != 0 { // does not wait for the disk
		t.Error("counted before it is kept")
	}
	close(leave)
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestDeadLettersConcurrently(t *testing.T) {
	d := newDeadDir(t)
	dl := d.open(t, 20*diskBlockBytes)
	var wg sync.WaitGroup
	for w := range 4 {
		wg.Go(func() {
			for i := range 15 {
				f := deadFrame(fmt.Sprintf("d%d", w), segment.Logs, i+1, 2, "x")
				if err := dl.SetAside(context.Background(), f, "HTTP 400"); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	var frames, records uint64
	for _, c := range append(dl.Counts(), d.evicted.get()...) {
		frames += c.Frames
		records += c.Records
	}
	if len(d.files(t)) != 20 || frames != 60 || records != 120 {
		t.Errorf("%d files, %d frames and %d records kept or evicted", len(d.files(t)), frames, records)
	}
}

func TestDeadFileName(t *testing.T) {
	lane := &deadLane{dir: "/dead/x/y"}
	f := frame(segment.Metrics, 4_000_000_000, []byte("x"), 4_000_000_000)
	f.ID.Owner, f.ID.Seq = segment.OwnerID(ulid.Make()), 1<<64-1
	want := newDeadFile(lane, &f)
	got, err := parseDeadFile(lane, filepath.Base(want.path()))
	if err != nil || got != want {
		t.Errorf("%+v, %v; want %+v", got, err, want)
	}
	if !bytes.Equal(want.part[:4], []byte{0x2d, 0x71, 0x16, 0x42}) { // sha256("x"): names must not change between versions
		t.Errorf("part %x", want.part)
	}
}

// Every operation of two starts with evictions fails once, by an error or by a power cut, with all that was not synced gone
// or chance choosing what is left. What was confirmed is kept or was reported as evicted, and the next start can go on.
func TestDeadLetterFaultAtEveryOperation(t *testing.T) {
	const seed = 11
	t.Logf("seed %d", seed)
	const limit = 3 * diskBlockBytes
	frames := make([]*segment.Frame, 6)
	for i := range frames {
		frames[i] = deadFrame(fmt.Sprintf("d%d", i%2), segment.Logs, i+1, 1, fmt.Sprint("body ", i))
	}
	// run sets frames aside on fsys and returns those confirmed.
	run := func(fsys vfs.FS, evicted *int) (confirmed []*segment.Frame, dl *DeadLetters) {
		dl, err := OpenDeadLetters(DeadLetterOptions{FS: fsys, Directory: "/data/dead", MaxBytes: limit,
			OnEvict: func(DeadCount) { *evicted++ },
			Encode:  func(f segment.Frame, _ string) ([]byte, error) { return f.Body, nil }})
		if err != nil {
			return nil, nil
		}
		for _, f := range frames {
			for range 2 { // the caller tries again
				if err := dl.SetAside(context.Background(), f, ""); err == nil {
					confirmed = append(confirmed, f)
					break
				}
			}
		}
		return confirmed, dl
	}
	check := func(name string, fsys vfs.FS, confirmed []*segment.Frame, evicted int) {
		t.Helper()
		dl, err := OpenDeadLetters(DeadLetterOptions{FS: fsys, Directory: "/data/dead", MaxBytes: limit})
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		kept, settled := 0, 0 // the next start may end what this one began
		for _, n := range dl.Totals() {
			settled += int(n.Evicted.Sum())
		}
		if settled < evicted {
			t.Fatalf("%s: %d evicted, %d counted", name, evicted, settled)
		}
		for _, f := range confirmed {
			file := newDeadFile(dl.lane(f.ID.Owner.String(), f.ID.Lane), f)
			data, err := vfs.ReadFile(fsys, file.path(), 1<<20)
			switch {
			case err == nil && bytes.Equal(data, f.Body):
				kept++
			case !errors.Is(err, fs.ErrNotExist):
				t.Fatalf("%s: %q, %v", name, data, err)
			}
		}
		if all := len(dl.queue) + settled; all > len(frames) {
			t.Fatalf("%s: %d kept or evicted of %d", name, all, len(frames))
		}
		if kept+settled < len(confirmed) {
			t.Fatalf("%s: %d confirmed, %d of them kept, %d evicted", name, len(confirmed), kept, settled)
		}
	}
	whole := vfs.NewFault(vfs.NewMem(), nil)
	all := 0
	if confirmed, _ := run(whole, &all); len(confirmed) != len(frames) || all != len(frames)-3 {
		t.Fatalf("%d confirmed, %d evicted", len(confirmed), all)
	}
	random := rand.New(rand.NewPCG(seed, 0))
	for n := 1; n <= whole.Ops(); n++ {
		mem, evicted := vfs.NewMem(), 0
		cut := vfs.NewFault(mem, nil)
		cut.StopAfter(n)
		confirmed, _ := run(cut, &evicted)
		check(fmt.Sprint("power cut at ", n), mem.CrashStrict(), confirmed, evicted)
		check(fmt.Sprint("power cut by chance at ", n), mem.Crash(random), confirmed, evicted)
		for kind, fault := range map[string]error{"error": unix.EIO, "error after effect": vfs.AfterEffect(unix.EIO)} {
			mem, evicted := vfs.NewMem(), 0
			confirmed, dl := run(vfs.NewFault(mem, func(op vfs.Op) error {
				if op.N == n {
					return fault
				}
				return nil
			}), &evicted)
			check(fmt.Sprint(kind, " at ", n), mem.CrashStrict(), confirmed, evicted)
			if dl == nil {
				continue
			}
			frames, records := uint64(0), uint64(0)
			for _, c := range dl.Counts() {
				frames, records = frames+c.Frames, records+c.Records
			}
			if on := countSegs(t, mem); on != int(frames) || frames != records {
				t.Fatalf("%s at %d: %d files, %d counted", kind, n, on, frames)
			}
		}
	}
}

// countSegs counts the dead letters in fsys.
func countSegs(t *testing.T, fsys vfs.FS) int {
	t.Helper()
	dl, err := OpenDeadLetters(DeadLetterOptions{FS: fsys, Directory: "/data/dead"})
	if err != nil {
		t.Fatal(err)
	}
	return len(dl.queue)
}
