package filestore

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// lockFiles is how many there are. It is part of the format: processes that share a store must agree on it.
	lockFiles = 64
	// The pause between two tries to take a lock file of which another process has the lock. A lock is held for a rename and
	// the syncs of a few directories.
	minLockPause = time.Millisecond
	maxLockPause = 16 * time.Millisecond
)

// held is a lock on the keys of one lock file.
type held struct {
	file *os.File
	turn chan struct{}
}

// lock takes the lock of a key: first among the goroutines of this process, then among processes. It waits until ctx ends:
// the kernel's own queue would wait on for a process that is stopped.
func (s *Store) lock(ctx context.Context, key string) (*held, error) {
	n := crc32.Checksum([]byte(key), castagnoli) % lockFiles
	turn := s.locks[n]
	select {
	case turn <- struct{}{}:
	case <-ctx.Done():
		return nil, fmt.Errorf("wait for other writers: %w", ended(ctx))
	}
	f, err := s.lockFile(ctx, filepath.Join(s.dir, reservedDir, locksDir, fmt.Sprintf("%02d", n)))
	if err != nil {
		<-turn
		return nil, kindOfWrite(fmt.Errorf("lock key: %w", err))
	}
	return &held{f, turn}, nil
}

func (s *Store) lockFile(ctx context.Context, name string) (*os.File, error) {
	if err := s.before("lock", name); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, filePerm)
	if err != nil {
		return nil, err
	}
	for pause := minLockPause; ; pause = min(2*pause, maxLockPause) {
		locked, err := tryLock(f)
		if locked {
			return f, nil
		}
		if err == nil {
			err = sleep(ctx, pause/2+rand.N(pause/2)) // so that processes do not wait in step
		}
		if err != nil {
			return nil, errors.Join(err, f.Close())
		}
	}
}

func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ended(ctx)
	}
}

// Close ends the lock. The file stays: were it removed, two processes could lock two files of one name.
func (h *held) Close() error {
	err := h.file.Close()
	<-h.turn
	return err
}

// tryLock takes the lock on a file, unless somebody has it.
func tryLock(f *os.File) (bool, error) {
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		switch {
		case err == nil:
			return true, nil
		case errors.Is(err, unix.EWOULDBLOCK):
			return false, nil
		case !errors.Is(err, unix.EINTR):
			return false, err
		}
	}
}
