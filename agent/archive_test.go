package agent_test

import (
	"io"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/zap"

	"ingest-agent/agent"
	"ingest-agent/agent/agenttest"
	"ingest-agent/agent/config"
	"ingest-agent/bench/load"
	"ingest-agent/bench/otlpgen"
	"ingest-agent/bench/seqset"
	"ingest-agent/objstore"
	"ingest-agent/objstore/stores"
	"ingest-agent/segment"
)

func archived(c *config.Config) { c.Archive.Enabled, c.WAL.MaxBytes = true, 64<<20 }

// list returns what a bucket in a directory holds below a prefix.
func list(t *testing.T, b objstore.Bucket, prefix string) []objstore.Info {
	t.Helper()
	page, err := b.List(t.Context(), objstore.ListOptions{Prefix: prefix})
	if err != nil || page.Next != "" {
		t.Fatalf("list %s: %v", prefix, err)
	}
	return page.Objects
}

func openStore(t *testing.T, url string) objstore.Bucket {
	t.Helper()
	b, err := stores.Open(t.Context(), url, stores.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
	return b
}

// readArchive returns the records of an archive, how many frames are in it more than once, and the owners' ids.
func readArchive(t *testing.T, b objstore.Bucket) (seqs *seqset.Set, twice int, owners map[string]bool) {
	t.Helper()
	seqs, owners = &seqset.Set{}, map[string]bool{}
	ids := map[segment.FrameID]bool{}
	for _, info := range list(t, b, objstore.ArchivePrefix) {
		k, err := objstore.ParseKey(info.Key)
		key, ok := k.(objstore.ArchiveKey)
		if err != nil || !ok {
			t.Fatalf("key %s: %v", info.Key, err)
		}
		if age := time.Since(key.Hour); age < 0 || age > 2*time.Hour {
			t.Errorf("hour of %s", key)
		}
		obj, err := b.Get(t.Context(), info.Key, objstore.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		data, err := io.ReadAll(obj.Body)
		if err != nil || obj.Body.Close() != nil {
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
		owners[key.Owner] = true
		for i := range o.Frames {
			f := &o.Frames[i]
			if ids[f.ID] {
				twice++
			}
			ids[f.ID] = true
			if err := otlpgen.Walk(f.Signal, f.Body, func(seq uint64) { seqs.Add(seq) }); err != nil {
				t.Fatal(err)
			}
		}
	}
	return seqs, twice, owners
}

// TestArchiveInTheDataDirectory: the default bucket, to which nothing is shipped, keeps all that was delivered.
func TestArchiveInTheDataDirectory(t *testing.T) {
	t.Parallel()
	s := agenttest.NewSink(t)
	agenttest.Up(t, s)
	c := newConfig(t, t.TempDir(), s.URL(), archived, segmentSize(16<<10))
	n := start(t, c)
	acked := n.send(nil, 100, 20)
	n.awaitDrained(20 * time.Second)
	agenttest.Await(t, 10*time.Second, "something is archived while the agent runs", func() bool { return n.metrics().Sum("archived_bytes_total") > 0 })
	m := n.metrics()
	if _, there := m["ingest_agent_archive_missed_records_total"]; !there || m.Sum("archive_missed_records_total") > 0 {
		t.Error("missed records")
	}
	n.stop()
	b := openStore(t, "file:"+filepath.Join(c.DataDir, "bucket"))
	seqs, twice, owners := readArchive(t, b)
	agenttest.Same(t, "archived", seqs, acked)
	if twice > 0 || len(owners) != 1 {
		t.Errorf("%d frames twice, owners %v", twice, owners)
	}
	if left := agenttest.Frames(t, c.DataDir); len(left) > 0 {
		t.Errorf("%d frames are left on the disk", len(left))
	}
	objects := len(list(t, b, ""))
	start(t, c).stop()
	if now := len(list(t, b, "")); now != objects {
		t.Errorf("%d objects are %d after a start with nothing to archive", objects, now)
	}
}

// TestArchiveOfWhatIsRecovered: what a node shipped and another delivers is archived by that one, below the first one's id; what the
// first one had delivered of it is archived too.
func TestArchiveOfWhatIsRecovered(t *testing.T) {
	t.Parallel()
	s := agenttest.NewSink(t)
	url := "file:" + t.TempDir()
	shared := func(c *config.Config) {
		c.Bucket.URL, c.Shutdown.Timeout = url, 5*time.Second
		c.Recovery.Enabled = false
	}
	agenttest.Up(t, s)
	first := start(t, newConfig(t, t.TempDir(), s.URL(), archived, shared, segmentSize(16<<10)))
	var seq load.Sequence
	first.send(&seq, 40, 20)
	first.awaitDrained(20 * time.Second)
	if err := s.Down(true); err != nil {
		t.Fatal(err)
	}
	first.send(&seq, 40, 20)
	acked := &seqset.Set{}
	acked.AddRange(1, int(seq.Last()))
	first.stop()
	b := openStore(t, url)
	if len(list(t, b, objstore.SegmentsPrefix)) == 0 {
		t.Fatal("nothing was shipped")
	}
	agenttest.Up(t, s)
	r, err := agent.Recover(t.Context(), agent.RecoverOptions{
		Config: newConfig(t, t.TempDir(), s.URL(), archived, shared), Log: zap.NewNop(), Version: "test",
	})
	if err != nil || len(r.Left) > 0 {
		t.Fatalf("recover: %v, %+v", err, r)
	}
	if left := list(t, b, objstore.SegmentsPrefix); len(left) > 0 {
		t.Errorf("%d objects are left", len(left))
	}
	agenttest.Same(t, "delivered", s.Received(), acked)
	seqs, _, owners := readArchive(t, b)
	agenttest.Same(t, "archived", seqs, acked)
	if len(owners) != 1 {
		t.Errorf("archived below %v", owners)
	}
}
