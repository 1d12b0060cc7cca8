package export

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"ingest-agent/segment"
	"ingest-agent/segment/vfs"
)

const deadExt = ".seg"

// deadPart tells the parts of one frame apart: the first half of a SHA-256 over the body is more than enough for the few
// parts that a frame can be split into.
type deadPart [16]byte

// deadFile is one dead letter. It is kept small: there is one in memory for each file.
type deadFile struct {
	lane    *deadLane
	bytes   int64 // on disk, in whole blocks
	seq     segment.Seq
	number  segment.Entry
	records uint32
	part    deadPart
	signal  segment.Signal
}

func newDeadFile(lane *deadLane, f *segment.Frame) deadFile {
	digest := sha256.Sum256(f.Body)
	return deadFile{lane: lane, seq: f.ID.Seq, number: f.ID.Number, records: f.Records,
		part: deadPart(digest[:len(deadPart{})]), signal: f.Signal}
}

func (f *deadFile) path() string {
	return filepath.Join(f.lane.dir, fmt.Sprintf("%v-%v-%x.%v.%d%s", f.seq, f.number, f.part[:], f.signal, f.records, deadExt))
}

// parseDeadFile is the inverse of path, for the name of a file in lane.
func parseDeadFile(lane *deadLane, name string) (deadFile, error) {
	f := deadFile{lane: lane}
	bad := fmt.Errorf("parse name of dead letter %q", name)
	fields := strings.Split(strings.TrimSuffix(name, deadExt), ".")
	if len(fields) != 3 {
		return f, bad
	}
	id := strings.Split(fields[0], "-")
	if len(id) != 3 {
		return f, bad
	}
	// Width and spelling of each field are checked below, by the way back.
	seq, seqErr := strconv.ParseUint(id[0], 10, 64)
	number, numberErr := strconv.ParseUint(id[1], 10, 32)
	part, partErr := hex.DecodeString(id[2])
	signal, signalErr := segment.ParseSignal(fields[1])
	records, recordsErr := strconv.ParseUint(fields[2], 10, 32)
	if errors.Join(seqErr, numberErr, partErr, signalErr, recordsErr) != nil || len(part) != len(f.part) {
		return f, bad
	}
	f.seq, f.number, f.part = segment.Seq(seq), segment.Entry(number), deadPart(part)
	f.signal, f.records = signal, uint32(records)
	if filepath.Base(f.path()) != name {
		return f, bad
	}
	return f, nil
}

// load fills the index from the names in the directory. They sort by birth: ids of owners by time, and within an owner no
// two segments have the same number. Temporary files are what a crash left of frames that were never confirmed. Other names
// are not ours and are left alone.
func (d *DeadLetters) load() error {
	var found []deadFile
	owners, err := d.list(d.opts.Directory)
	if err != nil {
		return err
	}
	for _, owner := range owners {
		if _, err := segment.ParseOwnerID(owner.Name); err != nil || !owner.Dir {
			continue
		}
		lanes, err := d.list(filepath.Join(d.opts.Directory, owner.Name))
		if err != nil {
			return err
		}
		for _, lane := range lanes {
			id, err := segment.ParseLaneID(lane.Name)
			if err != nil || !lane.Dir {
				continue
			}
			files, err := d.loadLane(d.lane(owner.Name, id))
			if err != nil {
				return err
			}
			found = append(found, files...)
		}
	}
	slices.SortStableFunc(found, func(a, b deadFile) int {
		return cmp.Or(cmp.Compare(a.lane.owner, b.lane.owner), cmp.Compare(a.seq, b.seq), cmp.Compare(a.number, b.number))
	})
	for _, f := range found {
		d.add(f)
	}
	return nil
}

func (d *DeadLetters) loadLane(lane *deadLane) ([]deadFile, error) {
	entries, err := d.list(lane.dir)
	if err != nil {
		return nil, err
	}
	var found []deadFile
	for _, e := range entries {
		if strings.HasSuffix(e.Name, deadExt+vfs.TempSuffix) {
			if err := d.opts.FS.Remove(filepath.Join(lane.dir, e.Name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return nil, err
			}
			continue
		}
		if file, err := parseDeadFile(lane, e.Name); err == nil {
			file.bytes = diskBytes(e.SizeBytes)
			found = append(found, file)
		}
	}
	return found, nil
}

// list is what is in a directory, nothing if it is not there.
func (d *DeadLetters) list(dir string) ([]vfs.Info, error) {
	entries, err := d.opts.FS.List(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return entries, err
}
