package archive_test

import (
	"context"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/oklog/ulid/v2"
	"go.uber.org/zap"

	"ingest-agent/objstore"
	"ingest-agent/objstore/memory"
	"ingest-agent/objstore/objtest"
	"ingest-agent/segment"
	"ingest-agent/segment/vfs"
	"ingest-agent/shipper/archive"
)

const (
	testAge       = 30 * time.Second
	testStale     = time.Minute
	testRetention = 24 * time.Hour
	// testRecords is what each frame holds.
	testRecords = 10
)

var laneA = segment.LaneID{Destination: "default"}

// store is the bucket of a node.
type store struct{ *objtest.Faulty }

// away fails every call.
func away(context.Context, objstore.Op, string) error { return objstore.ErrUnknown }

// refused fails writes into the archive only.
func refused(_ context.Context, op objstore.Op, key string) error {
	if op == objstore.OpPut && strings.HasPrefix(key, objstore.ArchivePrefix) {
		return objstore.ErrDenied
	}
	return nil
}

// object is what an archive object holds.
type object struct {
	key    objstore.ArchiveKey
	frames []segment.Frame
}

// archived reads the archive, and checks what every object of it must be.
func (s *store) archived(t *testing.T) (all []object) {
	t.Helper()
	page, err := s.Bucket.List(context.Background(), objstore.ListOptions{Prefix: objstore.ArchivePrefix})
	if err != nil || page.Next != "" {
		t.Fatalf("list archive: %v", err)
	}
	for _, info := range page.Objects {
		k, err := objstore.ParseKey(info.Key)
		if err != nil {
			t.Fatal(err)
		}
		key, ok := k.(objstore.ArchiveKey)
		if !ok {
			t.Fatalf("key %s", k)
		}
		obj, err := s.Bucket.Get(context.Background(), info.Key, objstore.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		data, err := io.ReadAll(obj.Body)
		if err != nil {
			t.Fatal(err)
		}
		lane, err := segment.ParseLaneID(key.Lane)
		if err != nil {
			t.Fatal(err)
		}
		o, err := segment.ReadObject(data, lane, segment.Seq(key.Seq))
		if err != nil || !o.Whole {
			t.Fatalf("object %s is not whole (%v)", key, err)
		}
		first, last := o.Frames[0], o.Frames[len(o.Frames)-1]
		if uint32(first.Position.Entry) != key.First || uint32(last.Position.Entry) != key.Last {
			t.Errorf("object %s holds frames %d to %d", key, first.Position.Entry, last.Position.Entry)
		}
		if got := o.After.Sub(*o.Before).Frames; got != uint64(len(o.Frames)) {
			t.Errorf("object %s: totals tell of %d frames, it holds %d", key, got, len(o.Frames))
		}
		for _, f := range o.Frames {
			if f.Received.Before(key.Hour) || f.Received.Sub(first.Received) > testAge {
				t.Errorf("object %s from %v holds a frame received at %v", key, first.Received.UTC(), f.Received.UTC())
			}
		}
		all = append(all, object{key, o.Frames})
	}
	return all
}

// bodies are those of all frames of the archive, sorted.
func (s *store) bodies(t *testing.T) (all []string) {
	t.Helper()
	for _, o := range s.archived(t) {
		for _, f := range o.frames {
			all = append(all, string(f.Body))
		}
	}
	slices.Sort(all)
	return all
}

// node is a disk with one lane, and a process on it.
type node struct {
	t     *testing.T
	dir   string
	store *store
	space *segment.Space

	owner    string
	lane     *segment.Lane
	source   segment.Source
	archiver *archive.Archiver
	kill     context.CancelFunc
	ended    chan struct{}
	sent     int
}

// bubble runs a test in a bubble, with a bucket and a disk.
func bubble(t *testing.T, test func(t *testing.T, s *store, n *node)) {
	t.Helper()
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		s := &store{objtest.NewFaulty(memory.New())}
		test(t, s, &node{t: t, dir: dir, store: s})
	})
}

func (n *node) options() archive.Options {
	owner := n.owner
	return archive.Options{
		Bucket: n.store, Owner: func() string { return owner }, SegmentAge: testAge, RetryMax: 30 * time.Second, Log: zap.NewNop(),
		Taken: n.space.Taken, Holder: ulid.Make().String(), Node: "test", StaleAfter: testStale, Retention: testRetention,
		Jitter: func() float64 { return 0.5 },
	}
}

// start starts a process: segments of about four frames of add.
func (n *node) start(change ...func(*segment.LaneOptions)) {
	n.t.Helper()
	n.space = segment.NewSpace(segment.SpaceOptions{MaxBytes: 100 << 10})
	n.owner = ulid.Make().String()
	owner, err := segment.ParseOwnerID(n.owner)
	if err != nil {
		n.t.Fatal(err)
	}
	o := segment.LaneOptions{
		FS: vfs.OS(), Dir: filepath.Join(n.dir, "lanes"), ID: laneA, Owner: owner, Space: n.space, KeepExported: true,
		Quarantine: segment.NewQuarantine(vfs.OS(), filepath.Join(n.dir, "quarantine"), segment.DefaultQuarantineBytes),
		Log:        zap.NewNop(),
		Settings:   segment.Settings{Ack: segment.AckDisk, SegmentSizeBytes: 4 << 10, SegmentAge: testAge},
	}
	for _, c := range change {
		c(&o)
	}
	if n.lane, err = segment.OpenLane(o); err != nil {
		n.t.Fatal(err)
	}
	n.source = n.lane.Source()
}

// run starts the archiver.
func (n *node) run(change ...func(*archive.Options)) {
	o := n.options()
	for _, c := range change {
		c(&o)
	}
	n.archiver = archive.New(o)
	n.archiver.Add(n.lane)
	ctx, cancel := context.WithCancel(context.Background())
	n.kill, n.ended = cancel, make(chan struct{})
	go func() {
		defer close(n.ended)
		n.archiver.Run(ctx)
	}()
}

// end ends the process: the archiver at once, the lane in order.
func (n *node) end() {
	n.t.Helper()
	if n.kill != nil {
		n.kill()
		<-n.ended
		n.kill = nil
	}
	if err := n.source.Close(); err != nil {
		n.t.Error(err)
	}
	if err := n.lane.Close(); err != nil {
		n.t.Error(err)
	}
}

// add appends frames, and returns their bodies.
func (n *node) add(frames int) (bodies []string) {
	n.t.Helper()
	for range frames {
		body := fmt.Sprintf("%06d %0900d", n.sent, 0)
		n.sent++
		f := &segment.Frame{Signal: segment.Logs, Tenant: "t", Received: time.Now(), Records: testRecords, Body: []byte(body)}
		if err := n.lane.Append(context.Background(), f); err != nil {
			n.t.Fatal(err)
		}
		bodies = append(bodies, body)
	}
	return bodies
}

// export moves the cursor over so many frames, as a drain does.
func (n *node) export(frames int) {
	n.t.Helper()
	for frames > 0 {
		it, err := n.source.Next(n.t.Context())
		if err != nil {
			n.t.Fatal(err)
		}
		p := segment.Progress{To: it.Next}
		if it.Frame != nil {
			p.Out = segment.Totals{Frames: 1, Records: segment.Logs.Of(testRecords), Bytes: uint64(len(it.Frame.Body))}
			p.Ledger.Delivered = p.Out.Records
			frames--
		}
		if it.HandedOver != (segment.Totals{}) {
			p.Out, p.Ledger.HandedOver = it.HandedOver, it.HandedOver.Records
			frames -= int(it.HandedOver.Frames)
		}
		n.lane.Advance(&p)
	}
}

// segments is how many there are on the disk, without the one that is prepared.
func (n *node) segments() int { return n.lane.Stats().Segments }

func same(t *testing.T, what string, got, want []string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s: %d, want %d: %.40q, want %.40q", what, len(got), len(want), got, want)
	}
}

// pass lets time go by.
func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}
