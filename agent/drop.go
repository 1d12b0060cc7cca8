package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"github.com/oklog/ulid/v2"
	"go.uber.org/zap"

	"ingest-agent/agent/config"
	"ingest-agent/segment"
	"ingest-agent/segment/vfs"
	"ingest-agent/shipper/archive"
)

// DropOptions say what is dropped.
type DropOptions struct {
	Config    config.Config
	Log       *zap.Logger
	Lane      segment.LaneID // also one whose destination is not configured
	OlderThan time.Duration
	// Confirm is shown what would go, unless that is nothing. Nothing is dropped where it returns an error, which Drop returns.
	Confirm func(*segment.Drop) error
}

// Drop drops the oldest part of a lane's backlog: up to the first frame that was received less than OlderThan ago. It needs
// the data directory for itself. What was dropped counts as lost, with cause dropped. It is dropped for good when Drop
// returns nil.
func Drop(ctx context.Context, o DropOptions) (d *segment.Drop, err error) {
	dir := o.Config.DataDir
	lock, err := lockData(dir)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, lock.Close()) }()
	at := LayoutOf(dir)
	found, _, err := segment.ListLanes(vfs.OS(), at.Lanes)
	if err != nil {
		return nil, err
	}
	if !slices.Contains(found, o.Lane) {
		return nil, fmt.Errorf("drop: no lane %s in %s; there are %v", o.Lane, dir, found)
	}
	l, err := segment.OpenLane(segment.LaneOptions{
		FS: vfs.OS(), Dir: at.Lanes, ID: o.Lane, Owner: segment.OwnerID(ulid.Make()), Log: o.Log, DrainOnly: true,
		Space:      segment.NewSpace(spaceOptions(&o.Config)),
		Quarantine: segment.NewQuarantine(vfs.OS(), at.Quarantine, segment.DefaultQuarantineBytes),
		Settings:   laneSettings(&o.Config, len(found)),
		// What waits for the archive stays, also of what is dropped: the next start archives it.
		KeepExported: o.Config.Archive.Enabled && archive.Keeps(o.Lane),
	})
	if err != nil {
		return nil, err
	}
	defer func() {
		if cerr := l.Close(); cerr != nil {
			err = errors.Join(err, fmt.Errorf("close lane %s: %w", o.Lane, cerr))
		}
	}()
	d, err = segment.FindDrop(ctx, l, time.Now().Add(-o.OlderThan))
	if err != nil || d.Frames == 0 {
		return d, err
	}
	if err := o.Confirm(d); err != nil {
		return nil, err
	}
	if ctx.Err() != nil { // a signal while the question stood
		return nil, fmt.Errorf("drop: nothing was dropped: %w", context.Cause(ctx))
	}
	d.Do()
	return d, nil
}

// lockData locks a data directory, which exists.
func lockData(dir string) (io.Closer, error) {
	if info, err := os.Stat(dir); err != nil {
		return nil, fmt.Errorf("open data directory: %w", err)
	} else if !info.IsDir() {
		return nil, fmt.Errorf("open data directory: %s is not a directory", dir)
	}
	lock, err := vfs.Lock(LayoutOf(dir).Lock)
	if errors.Is(err, vfs.ErrLocked) {
		return nil, fmt.Errorf("data directory %s is in use by another process; stop it or choose another data_dir: %w", dir, err)
	}
	if err != nil {
		return nil, fmt.Errorf("lock data directory: %w", err)
	}
	return lock, nil
}
