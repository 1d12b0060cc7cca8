package agent_test

import (
	"errors"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"ingest-agent/agent/agenttest"
	"ingest-agent/agent/config"
	"ingest-agent/segment/vfs"
)

// smallVolume mounts a volume of so many MiB. The test is skipped only where the system does not let it.
func smallVolume(t *testing.T, size string) string {
	t.Helper()
	dir := t.TempDir()
	err := unix.Mount("tmpfs", dir, "tmpfs", unix.MS_NODEV|unix.MS_NOSUID, "size="+size)
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) || errors.Is(err, unix.ENODEV) {
		t.Skipf("a volume of its own cannot be mounted here (needs CAP_SYS_ADMIN and tmpfs): %v", err)
	}
	if err != nil {
		t.Fatalf("mount tmpfs: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Errorf("unmount %s: %v", dir, err)
		}
	})
	return dir
}

func freeBytes(t testing.TB, dir string) int64 {
	t.Helper()
	n, err := vfs.FreeBytes(dir)
	if err != nil {
		t.Fatal(err)
	}
	return int64(n)
}

// TestCase23FreeSpaceFloor is the other half of case 23, and case 22 for the whole agent: with a byte limit that the volume
// cannot hold, the floor of free space holds, and the agent comes back by itself.
func TestCase23FreeSpaceFloor(t *testing.T) {
	t.Parallel()
	const floor = 4 << 20
	volume := smallVolume(t, "16m")
	dir := filepath.Join(volume, "data")
	s := agenttest.NewSink(t)
	n := start(t, newConfig(t, dir, s.URL(), func(c *config.Config) {
		c.WAL.MaxBytes, c.WAL.MinFreeBytes, c.WAL.FullWait, c.WAL.SegmentSizeBytes = 1<<30, floor, 0, 1<<20
	}))
	atStart := freeBytes(t, volume)
	least, stop := atStart, make(chan struct{})
	var watch sync.WaitGroup
	watch.Go(func() {
		tick := time.NewTicker(2 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				least = min(least, freeBytes(t, volume))
			case <-stop:
				return
			}
		}
	})
	acked := n.fill(50).Acked()
	next := n.fillUp(acked)
	n.checkRefused(next)
	if got := n.ready(); got != "disk" {
		t.Errorf("ready: %s", got)
	}
	close(stop)
	watch.Wait()
	if least < floor || least > floor+1<<20 {
		t.Errorf("%d bytes were free at least, the floor is %d", least, floor)
	}
	agenttest.Up(t, s)
	n.awaitDrained(20 * time.Second)
	agenttest.Await(t, 2*time.Second, "ready again", func() bool { return n.ready() == "ok" })
	agenttest.Await(t, 5*time.Second, "the space is back", func() bool { return freeBytes(t, volume) >= atStart*9/10 })
	if next += 2; !n.taken(next) {
		t.Error("a request is refused after the drain")
	}
	acked.Add(next)
	n.awaitDrained(10 * time.Second)
	agenttest.Same(t, "delivered", s.Received(), acked)
	n.metrics()
	n.stop()
}

// TestCase28FullAtStart: on a volume without a free byte the agent starts, drains, and says that it takes nothing, until it
// does.
func TestCase28FullAtStart(t *testing.T) {
	t.Parallel()
	volume := smallVolume(t, "8m")
	dir := filepath.Join(volume, "data")
	s := agenttest.NewSink(t)
	set := func(c *config.Config) { c.WAL.FullWait, c.WAL.SegmentSizeBytes = 0, 1<<20 }
	n := start(t, newConfig(t, dir, s.URL(), set))
	acked := n.send(nil, 50, 50)
	n.stop()
	filler, err := os.Create(filepath.Join(volume, "filler"))
	if err != nil {
		t.Fatal(err)
	}
	for err == nil {
		_, err = filler.Write(make([]byte, 4096))
	}
	if !errors.Is(err, syscall.ENOSPC) || filler.Close() != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	n = start(t, newConfig(t, dir, s.URL(), set))
	if took := time.Since(begin); took > 2*time.Second || n.ready() != "disk" {
		t.Errorf("the start took %v, ready: %s", took, n.ready())
	}
	n.checkRefused(1 << 20)
	agenttest.Up(t, s)
	n.awaitDrained(20 * time.Second)
	agenttest.Await(t, 5*time.Second, "ready by itself", func() bool { return n.ready() == "ok" })
	if !n.taken(1 << 21) {
		t.Error("a request is refused after the drain")
	}
	acked.Add(1 << 21)
	n.awaitDrained(10 * time.Second)
	agenttest.Same(t, "delivered", s.Received(), acked)
	n.metrics()
	n.stop()
}
