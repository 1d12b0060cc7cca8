package segment

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"ingest-agent/segment/vfs"
)

// tmpfsVolume is a small volume that really runs full: a tmpfs of its own. It is at most as large as it says, counts in
// pages of 4 KiB, and ends a write that does not fit in the middle.
type tmpfsVolume struct {
	t         *testing.T
	dir       string
	sizeBytes int64
}

// tmpfsMount mounts a volume for one test. The test is skipped only where the system does not let it mount.
func tmpfsMount(t *testing.T, sizeBytes int64) *tmpfsVolume {
	t.Helper()
	dir := t.TempDir()
	err := unix.Mount("tmpfs", dir, "tmpfs", unix.MS_NODEV|unix.MS_NOSUID, fmt.Sprintf("size=%d,huge=never", sizeBytes))
	if errors.Is(err, unix.EINVAL) { // a kernel without huge pages does not know that word
		err = unix.Mount("tmpfs", dir, "tmpfs", unix.MS_NODEV|unix.MS_NOSUID, fmt.Sprintf("size=%d", sizeBytes))
	}
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) || errors.Is(err, unix.ENODEV) {
		t.Skipf("a volume of its own cannot be mounted here (needs CAP_SYS_ADMIN and tmpfs): %v", err)
	}
	if err != nil {
		t.Fatalf("mount tmpfs: %v", err)
	}
	t.Cleanup(func() {
		// A test that failed may have left files open: those keep the volume alive, but not in the tree.
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Errorf("unmount %s: %v", dir, err)
		}
	})
	return &tmpfsVolume{t: t, dir: dir, sizeBytes: sizeBytes}
}

// free is the free space of the volume.
func (v *tmpfsVolume) free() int64 {
	v.t.Helper()
	n, err := vfs.FreeBytes(v.dir)
	if err != nil {
		v.t.Fatal(err)
	}
	return int64(n)
}

func (v *tmpfsVolume) filler() string { return filepath.Join(v.dir, "filler") }

// fill takes all but leaveBytes, which are rounded down to a page, with a file that is no business of the lane.
func (v *tmpfsVolume) fill(leaveBytes int64) {
	v.t.Helper()
	f, err := os.OpenFile(v.filler(), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		v.t.Fatal(err)
	}
	defer f.Close()
	for n := v.free() - leaveBytes; n > 0; n = v.free() - leaveBytes {
		if _, err := f.Write(make([]byte, min(n, 64<<10))); err != nil {
			if errors.Is(err, syscall.ENOSPC) && leaveBytes == 0 {
				return
			}
			v.t.Fatal(err)
		}
	}
}

// unfill gives back what fill took.
func (v *tmpfsVolume) unfill() {
	v.t.Helper()
	if err := os.Remove(v.filler()); err != nil {
		v.t.Fatal(err)
	}
}

// tmpfsSegmentBytes sums the lengths of the segment files of the lane that newLane opens in dir.
func tmpfsSegmentBytes(t testing.TB, dir string) (sum int64) {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(dir, "lanes", "*", "*", logFile))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		switch stat, err := os.Stat(name); {
		case err == nil:
			sum += stat.Size()
		case !errors.Is(err, os.ErrNotExist): // removed since it was listed
			t.Fatal(err)
		}
	}
	return sum
}

// tmpfsGauges requires that the lane's gauge and the space's account come to what the files on disk take.
func tmpfsGauges(t *testing.T, l *Lane, dir, when string) {
	t.Helper()
	var gauge, account, files int64
	defer func() {
		if t.Failed() {
			t.Logf("%s: gauge %d, account %d, files %d bytes", when, gauge, account, files)
		}
	}()
	eventually(t, "gauges to be those of the files: "+when, func() bool {
		gauge, account, files = l.Stats().DiskBytes, l.o.Space.Used(), tmpfsSegmentBytes(t, dir)
		return gauge == files && account == files
	})
}
