package main

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/oklog/ulid/v2"

	"ingest-agent/agent/agenttest"
	"ingest-agent/bench/otlpgen"
	"ingest-agent/bench/seqset"
	"ingest-agent/bench/sink"
	"ingest-agent/objstore"
	"ingest-agent/objstore/filestore"
	"ingest-agent/objstore/lease"
	"ingest-agent/recovery"
	"ingest-agent/recovery/owner"
	"ingest-agent/segment"
)

// gone is a bucket with what owners have left in it.
type gone struct {
	t    *testing.T
	dir  string
	b    objstore.Bucket
	sent map[string]*seqset.Set // by destination
	next uint64
}

func newGone(t *testing.T) *gone {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "bucket")
	b, err := filestore.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	return &gone{t: t, dir: dir, b: b, sent: map[string]*seqset.Set{}, next: 1}
}

func (g *gone) url() string { return "file:" + g.dir }

const (
	goneFrames  = 5
	goneRecords = 4
)

// owner leaves one lane of a destination, two objects of goneFrames requests, with the register as end leaves it; nil: beating.
func (g *gone) owner(destination string, end lease.Edit) string {
	g.t.Helper()
	ctx := g.t.Context()
	id := segment.OwnerID(ulid.Make())
	lane := segment.LaneID{Destination: destination}
	r := lease.New(lease.Options{
		Bucket: g.b, Key: objstore.OwnerKey{Owner: id.String()}.String(), Holder: id.String(), Node: "web-3", StaleAfter: time.Minute,
	})
	l, err := r.Acquire(ctx, lease.Seen{}, owner.Begin(map[segment.LaneID]owner.Progress{lane: {Exported: segment.Start}}))
	if err != nil {
		g.t.Fatal(err)
	}
	var sum segment.Totals
	pos := segment.Start
	for range 2 {
		sum = g.object(id, lane, pos, sum)
		pos = pos.NextSegment()
	}
	if err := l.Commit(ctx, owner.Ship(map[segment.LaneID]owner.Progress{lane: {Exported: segment.Start, Shipped: pos, Records: sum.Records}})); err != nil {
		g.t.Fatal(err)
	}
	if end != nil {
		if err := l.Release(ctx, end); err != nil {
			g.t.Fatal(err)
		}
	}
	return id.String()
}

func (g *gone) object(id segment.OwnerID, lane segment.LaneID, from segment.Position, before segment.Totals) segment.Totals {
	g.t.Helper()
	gen, err := otlpgen.New(1, goneRecords)
	if err != nil {
		g.t.Fatal(err)
	}
	if g.sent[lane.Destination] == nil {
		g.sent[lane.Destination] = &seqset.Set{}
	}
	b := segment.Batch{
		Header: segment.Header{Birth: segment.Birth{Owner: id, Lane: lane, Seq: from.Seq}, Created: time.Now().UTC()},
		Before: before, After: before, Next: from.NextSegment(),
	}
	for i := range goneFrames {
		pos := segment.Position{Seq: from.Seq, Entry: segment.Entry(i + 1)}
		f := segment.Frame{
			ID: segment.FrameID{Birth: b.Header.Birth, Number: pos.Entry}, Position: pos, Signal: segment.Logs, Tenant: "default",
			Received: time.Now(), Records: goneRecords, Body: gen.Append(nil, segment.Logs, i%otlpgen.Variants, g.next),
		}
		g.sent[lane.Destination].AddRange(g.next, goneRecords)
		g.next += goneRecords
		b.Frames = append(b.Frames, f)
		b.After = b.After.Add(segment.Totals{Frames: 1, Records: segment.Logs.Of(goneRecords), Bytes: uint64(len(f.Body))})
	}
	data, err := segment.EncodeRange(&b)
	if err != nil {
		g.t.Fatal(err)
	}
	key := objstore.SegmentKey{Owner: id.String(), Lane: lane.String(), Seq: uint64(from.Seq), First: uint32(b.First()), Last: uint32(b.Last())}
	if _, err := g.b.Put(context.Background(), key.String(), bytes.NewReader(data), objstore.IfAbsent()); err != nil {
		g.t.Fatal(err)
	}
	return b.After
}

// objects counts what is below a prefix.
func (g *gone) objects(prefix string) int {
	g.t.Helper()
	page, err := g.b.List(g.t.Context(), objstore.ListOptions{Prefix: prefix})
	if err != nil {
		g.t.Fatal(err)
	}
	return len(page.Objects)
}

// TestRecoverUsage: what has a default in an agent has to be said, and nothing is touched before.
func TestRecoverUsage(t *testing.T) {
	t.Parallel()
	g := newGone(t)
	data := filepath.Join(t.TempDir(), "data")
	for _, test := range []struct {
		args []string
		code int
		says string
	}{
		{nil, exitUsage, "no bucket; give --bucket"},
		{[]string{"--dry-run"}, exitUsage, "no bucket; give --bucket"},
		{[]string{"--bucket", g.url()}, exitUsage, "no destination; give --destination"},
		{[]string{"--bucket", "ftp://x", "--dry-run"}, exitUsage, "bucket.url"},
		{[]string{"--bucket", g.url(), "--dry-run", "--owner", "7"}, exitUsage, `parse owner id "7"`},
		{[]string{"--bucket", g.url(), "--dry-run", "--owner", ulid.Make().String()}, exitFailed, "no owner"},
		{[]string{"--bucket", g.url(), "--destination", "acme=http://x"}, exitUsage, "--destination"},
		{[]string{"--bucket", g.url(), "--dry-run", "x"}, exitUsage, "usage:"},
	} {
		code, stdout, stderr := execute(t, append([]string{"recover", "--data-dir", data}, test.args...)...)
		if code != test.code || !strings.Contains(stderr, test.says) || stdout != "" {
			t.Errorf("%v: code %d\n%s%s", test.args, code, stdout, stderr)
		}
	}
	for _, dir := range []string{data, g.dir} {
		if _, err := os.Stat(dir); !os.IsNotExist(err) {
			t.Errorf("%s was made: %v", dir, err)
		}
	}
}

// TestRecoverDryRun: the table and the JSON say what is there, and nothing is written anywhere.
func TestRecoverDryRun(t *testing.T) {
	t.Parallel()
	g := newGone(t)
	data := filepath.Join(t.TempDir(), "data")
	code, stdout, stderr := execute(t, "recover", "--dry-run", "--bucket", g.url(), "--data-dir", data)
	if code != exitDone || !strings.Contains(stdout, "a run would do nothing") || !strings.Contains(stdout, "total: owners 0") {
		t.Errorf("an empty bucket: code %d\n%s%s", code, stdout, stderr)
	}
	retired, elsewhere, beating := g.owner("default", owner.Retire(nil)), g.owner("acme", owner.Retire(nil)), g.owner("default", nil)
	lost := g.owner("default", owner.Retire(nil))
	page, err := g.b.List(t.Context(), objstore.ListOptions{Prefix: objstore.OwnerPrefix(lost)})
	if err != nil || len(page.Objects) != 2 {
		t.Fatal(page, err)
	}
	if err := g.b.Delete(t.Context(), page.Objects[1].Key); err != nil {
		t.Fatal(err)
	}
	g.object(segment.OwnerID(ulid.Make()), segment.LaneID{Destination: "default"}, segment.Start, segment.Totals{}) // an orphan
	tree := agenttest.Tree(t, g.dir)

	args := []string{"recover", "--dry-run", "--bucket", g.url(), "--data-dir", data}
	code, stdout, stderr = execute(t, append(args, "--destination", "default=otlp-http:http://x.invalid")...)
	if code != exitDone || stderr != "" {
		t.Errorf("code %d, %s", code, stderr)
	}
	lines := strings.Split(stdout, "\n")
	for _, want := range [][]string{
		{"OWNER", "NODE", "STATE", "AGE", "LANES", "OBJECTS", "BYTES", "RECORDS OWED", "VERDICT"},
		{retired, "web-3", "retired", "40", "claimable: retired"},
		{elsewhere, "not: unknown destination acme"},
		{beating, "live", "40", "not: beating"},
		{lost, "claimable: retired"},
		{"orphans: 1 objects", "has no register"},
		{"damage: owner " + lost, "lane default.0", "no object holds them"},
		{"1. would adopt " + retired + " and deliver 40 records from 2 objects"},
		{"2. would adopt " + lost + " and deliver 40 records from 1 objects"},
		{"total: owners 4, owing 4, claimable 2, of unknown destinations 1; objects 7", "records owed 160 (logs 160)", "orphan objects 1"},
	} {
		if !hasLine(lines, want) {
			t.Errorf("no line with %q in:\n%s", want, stdout)
		}
	}
	code, stdout, stderr = execute(t, append(args, "--json")...) // no destination: none is unknown
	var report recovery.DryRunReport
	if err := json.Unmarshal([]byte(stdout), &report); err != nil || code != exitDone {
		t.Fatalf("code %d, %v: %s%s", code, err, stdout, stderr)
	}
	if report.Totals.Claimable != 3 || report.Totals.Unknown != 0 || len(report.Owners) != 4 || report.Totals.Damage != 1 {
		t.Errorf("%+v", report)
	}
	code, stdout, _ = execute(t, append(args, "--owner", elsewhere)...)
	if code != exitDone || strings.Contains(stdout, retired) || !strings.Contains(stdout, elsewhere) {
		t.Errorf("one owner: code %d\n%s", code, stdout)
	}
	if agenttest.Tree(t, g.dir) != tree {
		t.Error("the bucket was written to")
	}
	if _, err := os.Stat(data); !os.IsNotExist(err) {
		t.Errorf("the data directory was made: %v", err)
	}
}

func hasLine(lines, parts []string) bool {
	for _, line := range lines {
		all := true
		for _, p := range parts {
			all = all && strings.Contains(line, p)
		}
		if all {
			return true
		}
	}
	return false
}

// TestRecoverPass: one pass delivers what is owed for the destinations that it is given, names what it must leave, and the next
// one, with the rest of the destinations, delivers that.
func TestRecoverPass(t *testing.T) {
	t.Parallel()
	g := newGone(t)
	data := filepath.Join(t.TempDir(), "data")
	g.owner("default", owner.Retire(nil))
	elsewhere, beating := g.owner("acme", owner.Retire(nil)), g.owner("other", nil)
	s := agenttest.NewSink(t)
	agenttest.Up(t, s)
	args := []string{"recover", "--bucket", g.url(), "--data-dir", data, "--log-level", "error", "--destination"}
	code, stdout, stderr := execute(t, append(args, "otlp-http:"+s.URL())...)
	if code != exitLeft || !strings.Contains(stderr, "left: owner "+elsewhere+" (node web-3, 40 records)") ||
		!strings.Contains(stderr, "unknown destination acme") || strings.Contains(stderr, beating) {
		t.Errorf("code %d\n%s%s", code, stdout, stderr)
	}
	if !strings.Contains(stdout, "adoptions: drained 1;") || !strings.Contains(stdout, "delivered 40 (logs 40)") {
		t.Errorf("%s", stdout)
	}
	agenttest.Same(t, "delivered by the first pass", s.Received(), g.sent["default"])

	acme := agenttest.NewSink(t)
	agenttest.Up(t, acme)
	code, stdout, stderr = execute(t, append(args, "acme=otlp-http:"+acme.URL(), "--json")...)
	var report recovered
	if err := json.Unmarshal([]byte(stdout), &report); err != nil || code != exitDone || stderr != "" {
		t.Fatalf("code %d, %v: %s%s", code, err, stdout, stderr)
	}
	if report.Adoptions[recovery.Drained] != 1 || report.Records.Delivered.Sum() != 40 || report.Owners != 3 || len(report.Left) != 0 {
		t.Errorf("%+v", report)
	}
	agenttest.Same(t, "delivered by the second pass", acme.Received(), g.sent["acme"])
	if n := g.objects(objstore.SegmentsPrefix); n != 2 || g.objects(objstore.OwnerPrefix(beating)) != 2 {
		t.Errorf("%d objects are left, want the 2 of the owner that beats", n)
	}
	if n := g.objects(objstore.ProbePrefix); n != 0 {
		t.Errorf("%d objects of probes are left", n)
	}
}

// TestRecoverStopped: a signal in the middle gives back what was adopted, at once claimable, and the exit code says so.
func TestRecoverStopped(t *testing.T) {
	t.Parallel()
	g := newGone(t)
	id := g.owner("default", owner.Retire(nil))
	s := agenttest.NewSink(t)
	agenttest.Up(t, s)
	s.Behave(sink.Behavior{Status: http.StatusServiceUnavailable})
	ctx, stop := context.WithCancel(t.Context())
	var out, errs bytes.Buffer
	code := make(chan int, 1)
	go func() {
		code <- run(ctx, []string{"recover", "--bucket", g.url(), "--data-dir", filepath.Join(t.TempDir(), "data"), "--log-level", "error",
			"--destination", "otlp-http:" + s.URL()}, &out, &errs)
	}()
	agenttest.Await(t, startLimit, "a request", func() bool { return s.Stats().Refused > 0 })
	stop()
	if c := <-code; c != exitLeft || !strings.Contains(errs.String(), "run it again") || !strings.Contains(out.String(), "adoptions: released 1;") {
		t.Errorf("code %d\n%s%s", c, out.String(), errs.String())
	}
	c, stdout, _ := execute(t, "recover", "--dry-run", "--bucket", g.url(), "--owner", id)
	if c != exitDone || !strings.Contains(stdout, "claimable: released") || !strings.Contains(stdout, "deliver 40 records from 2 objects") {
		t.Errorf("code %d\n%s", c, stdout)
	}
}

// TestRecoverNeedsItsDirectory: beside an agent on the same data directory nothing is begun.
func TestRecoverNeedsItsDirectory(t *testing.T) {
	t.Parallel()
	g := newGone(t)
	g.owner("default", owner.Retire(nil))
	dir := filepath.Join(t.TempDir(), "data")
	p := agentStarted(t, configFile(t, dir, "http://x.invalid", oneLane))
	tree := agenttest.Tree(t, g.dir)
	code, _, stderr := execute(t, "recover", "--bucket", g.url(), "--data-dir", dir, "--destination", "otlp-http:http://x.invalid")
	if code != exitFailed || !strings.Contains(stderr, "in use by another process") || agenttest.Tree(t, g.dir) != tree {
		t.Errorf("code %d, %s", code, stderr)
	}
	p.stopped()
}
