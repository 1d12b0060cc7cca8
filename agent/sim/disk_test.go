package sim

import (
	"errors"
	"fmt"

	"ingest-agent/objstore/objtest"
	"ingest-agent/segment"
	"ingest-agent/segment/vfs"
	"ingest-agent/shipper/shippertest"
)

// notePath is the shipper's note on a disk.
const notePath = "/shipped.json"

// disk is what of a node outlives its processes: a copy of a data directory.
type disk struct {
	copy  int
	lanes map[segment.LaneID]*shippertest.LaneDisk
	files *vfs.Mem
	// owner is the id of the last process. Only a broken variant looks at it.
	owner segment.OwnerID
}

func newDisk(number int, ids []segment.LaneID) *disk {
	d := &disk{copy: number, files: vfs.NewMem(), lanes: map[segment.LaneID]*shippertest.LaneDisk{}}
	for _, id := range ids {
		d.lanes[id] = shippertest.NewLaneDisk(id)
	}
	return d
}

// clone is what a copy that is made at this moment holds.
func (d *disk) clone(number int) *disk {
	c := &disk{copy: number, files: d.files.CrashStrict(), lanes: map[segment.LaneID]*shippertest.LaneDisk{}, owner: d.owner}
	for id, l := range d.lanes {
		c.lanes[id] = l.Clone()
	}
	return c
}

// crash leaves what the death of a process leaves: of the files what was synced, of the lanes all that was answered.
func (d *disk) crash() { d.files = d.files.CrashStrict() }

func (d *disk) localBytes() (n int64) {
	for _, l := range d.lanes {
		n += l.LocalBytes()
	}
	return n
}

// collect adds to a set what the disk holds at or behind the saved cursors.
func (d *disk) collect(held map[segment.FrameID]bool) {
	for _, l := range d.lanes {
		for _, f := range l.Pending() {
			held[f.ID] = true
		}
	}
}

var errDead = errors.New("process was killed")

// fs is the disk's files as one process sees them: once it was killed, it changes nothing.
func (d *disk) fs(p *objtest.Process) vfs.FS {
	return vfs.NewFault(d.files, func(vfs.Op) error {
		if !p.Alive() {
			return fmt.Errorf("use disk: %w", errDead)
		}
		return nil
	})
}
