package objstore

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/oklog/ulid/v2"
)

// MaxElementBytes bounds what stands between two slashes of a key: a file's name is no longer on the file systems there are,
// and two stores keep objects as files.
const MaxElementBytes = 255

// CheckKey returns ErrInvalid unless a bucket takes the key; the rules are those of Bucket.
func CheckKey(key string) error {
	bad := func(why string) error { return fmt.Errorf("key %q %s: %w", key, why, ErrInvalid) }
	switch {
	case key == "":
		return bad("is empty")
	case len(key) > MaxKeyBytes:
		return bad(fmt.Sprintf("is longer than %d bytes", MaxKeyBytes))
	case !utf8.ValidString(key):
		return bad("is not UTF-8")
	case strings.ContainsFunc(key, unicode.IsControl):
		return bad("has a control character")
	}
	for element := range strings.SplitSeq(key, "/") {
		switch {
		case element == "":
			return bad("begins or ends with a slash, or has two in a row")
		case element == "." || element == "..":
			return bad("has an element of dots")
		case len(element) > MaxElementBytes:
			return bad(fmt.Sprintf("has an element longer than %d bytes", MaxElementBytes))
		}
	}
	return nil
}

// ErrForeign is the error of ParseKey for a key that is none of ours. An object of such a key is reported and never touched.
var ErrForeign = errors.New("foreign object")

// The first elements of keys. Each is a prefix to list by, too.
const (
	OwnersPrefix   = "owners/"
	SegmentsPrefix = "segments/"
	ArchivePrefix  = "archive/"
	DeadPrefix     = "dead/"
	JobsPrefix     = "jobs/"
	PlansPrefix    = "plans/"
	RunsPrefix     = "runs/"
	InboxPrefix    = "inbox/"
	FleetPrefix    = "fleet/"
	ProbePrefix    = "probe/"
)

// Key is one of the keys below. String is the key's text in the bucket; ParseKey(k.String()) is k again if k's fields are as
// they should be, and ErrForeign otherwise. Numbers have a fixed width, so that keys are listed in the order of numbers; ids
// are ULIDs, so that they are listed in the order of time.
type Key interface {
	String() string
	key() // no other package has keys
}

// OwnerKey is the register of an owner of lanes.
type OwnerKey struct{ Owner string } // a ULID

// SegmentKey is the object that holds frames First to Last of segment Seq, all from 1.
type SegmentKey struct {
	Owner       string // a ULID
	Lane        string // <destination>.<shard> or <destination>.<shard>.p<n>
	Seq         uint64
	First, Last uint32
}

// ArchiveKey is the kept copy of an exported segment object.
type ArchiveKey struct {
	Hour time.Time // UTC, a whole hour
	SegmentKey
}

// DeadKey is the object that holds what a destination refused of frame Entry: the part that begins with its record number
// Record, from 0.
type DeadKey struct {
	Owner  string // a ULID
	Lane   string // as in SegmentKey
	Seq    uint64
	Entry  uint32
	Record uint32
}

// JobKey is the register of a bulk job.
type JobKey struct{ Job string } // a ULID

// PlanKey is piece N of the frozen input list of a job.
type PlanKey struct {
	Job string // a ULID
	N   uint32
}

// RunKey is a part that a run of a job wrote.
type RunKey struct {
	Job   string // a ULID
	Epoch uint64
	Part  uint32
	Name  string // what the part is, for people: logs.ndjson; [a-z0-9][a-z0-9._-]{0,62}
}

// InboxKey is an input file for a job that submits. Its path is the user's.
type InboxKey struct{ Path string } // as CheckKey says

// FleetKey is the register of a fleet task.
type FleetKey struct{ Task string } // [a-z0-9][a-z0-9_-]{0,62}

// ProbeKey is what a probe of the bucket writes and removes.
type ProbeKey struct{ ID string } // a ULID

const (
	jsonSuffix    = ".json"
	segmentSuffix = ".seg"
	// hourLayout is the part of an archive key that tells its hour.
	hourLayout = "2006/01/02/15"
)

func (k OwnerKey) String() string { return OwnersPrefix + k.Owner + jsonSuffix }
func (k SegmentKey) String() string {
	return SegmentsPrefix + k.path()
}
func (k ArchiveKey) String() string {
	return ArchivePrefix + k.Hour.UTC().Format(hourLayout) + "/" + k.path()
}
func (k DeadKey) String() string {
	return DeadPrefix + k.Owner + "/" + k.Lane + "/" + wide(k.Seq) + "-" + narrow(k.Entry) + "-" + narrow(k.Record) + segmentSuffix
}
func (k JobKey) String() string { return JobsPrefix + k.Job + jsonSuffix }
func (k PlanKey) String() string {
	return PlansPrefix + k.Job + "/" + narrow(k.N) + jsonSuffix
}
func (k RunKey) String() string {
	return RunPrefix(k.Job, k.Epoch) + narrow(k.Part) + "-" + k.Name
}
func (k InboxKey) String() string { return InboxPrefix + k.Path }
func (k FleetKey) String() string { return FleetPrefix + k.Task + jsonSuffix }
func (k ProbeKey) String() string { return ProbePrefix + k.ID }

// path is what segments and their archived copies share.
func (k SegmentKey) path() string {
	return k.Owner + "/" + k.Lane + "/" + wide(k.Seq) + "-" + narrow(k.First) + "-" + narrow(k.Last) + segmentSuffix
}

func (OwnerKey) key()   {}
func (SegmentKey) key() {}
func (ArchiveKey) key() {}
func (DeadKey) key()    {}
func (JobKey) key()     {}
func (PlanKey) key()    {}
func (RunKey) key()     {}
func (InboxKey) key()   {}
func (FleetKey) key()   {}
func (ProbeKey) key()   {}

// OwnerPrefix is the prefix of all segment objects of an owner.
func OwnerPrefix(owner string) string { return SegmentsPrefix + owner + "/" }

// LanePrefix is the prefix of all segment objects of an owner's lane.
func LanePrefix(owner, lane string) string { return OwnerPrefix(owner) + lane + "/" }

// HourPrefix is the prefix of all archived copies of the hour that holds t.
func HourPrefix(t time.Time) string { return ArchivePrefix + t.UTC().Format(hourLayout) + "/" }

// PlanPrefix is the prefix of the frozen input list of a job.
func PlanPrefix(job string) string { return PlansPrefix + job + "/" }

// JobRunsPrefix is the prefix of all that the runs of a job wrote.
func JobRunsPrefix(job string) string { return RunsPrefix + job + "/" }

// RunPrefix is the prefix of all that one run of a job wrote.
func RunPrefix(job string, epoch uint64) string { return JobRunsPrefix(job) + wide(epoch) + "/" }

// ParseOwnerPrefix is the inverse of OwnerPrefix: it reads what a listing of SegmentsPrefix by the delimiter "/" rolls up.
func ParseOwnerPrefix(prefix string) (owner string, err error) {
	owner, isSegments := strings.CutPrefix(prefix, SegmentsPrefix)
	owner, whole := strings.CutSuffix(owner, "/")
	if !isSegments || !whole || !isULID(owner) {
		return "", fmt.Errorf("parse owner prefix %q: %w", prefix, ErrForeign)
	}
	return owner, nil
}

// ParseKey reads the text of a key. Its error is ErrForeign for all that String of a sound Key cannot return.
func ParseKey(text string) (Key, error) {
	// Reading is lenient where the comparison with the one spelling then is strict.
	if k := readKey(text); k != nil && k.String() == text && CheckKey(text) == nil {
		return k, nil
	}
	return nil, fmt.Errorf("parse key %q: %w", text, ErrForeign)
}

func readKey(text string) Key {
	first, rest, _ := strings.Cut(text, "/")
	e := strings.Split(rest, "/")
	switch first + "/" {
	case OwnersPrefix:
		if owner := strings.TrimSuffix(rest, jsonSuffix); isULID(owner) {
			return OwnerKey{owner}
		}
	case SegmentsPrefix:
		if k, ok := readSegment(e); ok {
			return k
		}
	case ArchivePrefix:
		return readArchive(rest, e)
	case DeadPrefix:
		return readDead(e)
	case JobsPrefix:
		if job := strings.TrimSuffix(rest, jsonSuffix); isULID(job) {
			return JobKey{job}
		}
	case PlansPrefix:
		if len(e) == 2 && isULID(e[0]) {
			n, err := strconv.ParseUint(strings.TrimSuffix(e[1], jsonSuffix), 10, 32)
			return orNil(PlanKey{e[0], uint32(n)}, err == nil)
		}
	case RunsPrefix:
		return readRun(e)
	case InboxPrefix:
		return InboxKey{rest}
	case FleetPrefix:
		task := strings.TrimSuffix(rest, jsonSuffix)
		return orNil(FleetKey{task}, isName(task))
	case ProbePrefix:
		return orNil(ProbeKey{rest}, isULID(rest))
	}
	return nil
}

func orNil(k Key, ok bool) Key {
	if !ok {
		return nil
	}
	return k
}

// readSegment reads <owner>/<lane>/<seq>-<first>-<last>.seg.
func readSegment(e []string) (k SegmentKey, ok bool) {
	if len(e) != 3 || !isULID(e[0]) || !isLane(e[1]) {
		return k, false
	}
	seq, first, last, ok := readNumbers(e[2])
	return SegmentKey{e[0], e[1], seq, first, last}, ok && seq > 0 && first > 0 && first <= last
}

func readArchive(rest string, e []string) Key {
	if len(rest) < len(hourLayout) || len(e) != 7 {
		return nil
	}
	hour, err := time.Parse(hourLayout, rest[:len(hourLayout)])
	k, ok := readSegment(e[4:])
	return orNil(ArchiveKey{hour, k}, err == nil && ok)
}

func readDead(e []string) Key {
	if len(e) != 3 || !isULID(e[0]) || !isLane(e[1]) {
		return nil
	}
	seq, entry, record, ok := readNumbers(e[2])
	return orNil(DeadKey{e[0], e[1], seq, entry, record}, ok && seq > 0 && entry > 0)
}

func readRun(e []string) Key {
	if len(e) != 3 || !isULID(e[0]) {
		return nil
	}
	epoch, err := strconv.ParseUint(e[1], 10, 64)
	part, name, _ := strings.Cut(e[2], "-")
	n, partErr := strconv.ParseUint(part, 10, 32)
	return orNil(RunKey{e[0], epoch, uint32(n), name}, err == nil && partErr == nil && isPartName(name))
}

// readNumbers reads <seq>-<number>-<number>.seg.
func readNumbers(name string) (seq uint64, a, b uint32, ok bool) {
	parts := strings.Split(strings.TrimSuffix(name, segmentSuffix), "-")
	if len(parts) != 3 {
		return 0, 0, 0, false
	}
	seq, err := strconv.ParseUint(parts[0], 10, 64)
	a64, aErr := strconv.ParseUint(parts[1], 10, 32)
	b64, bErr := strconv.ParseUint(parts[2], 10, 32)
	return seq, uint32(a64), uint32(b64), err == nil && aErr == nil && bErr == nil
}

// wide and narrow are the fixed-width forms of numbers of 64 and of 32 bits.
func wide(n uint64) string   { return fmt.Sprintf("%020d", n) }
func narrow(n uint32) string { return fmt.Sprintf("%010d", n) }

func isULID(text string) bool {
	id, err := ulid.ParseStrict(text)
	return err == nil && id.String() == text // one spelling: ULIDs may be read in lower case
}

// maxShards and the pattern are those of segment.LaneID, which this package does not know; ParseLaneID has the last word.
const maxShards = 1024

var lanePattern = regexp.MustCompile(`^[a-z0-9][a-z0-9_-]{0,62}\.(0|[1-9][0-9]{0,3})(\.p[1-9][0-9]{0,17})?$`)

func isLane(text string) bool {
	m := lanePattern.FindStringSubmatch(text)
	if m == nil {
		return false
	}
	shard, err := strconv.Atoi(m[1])
	return err == nil && shard < maxShards
}

var (
	namePattern     = regexp.MustCompile(`^[a-z0-9][a-z0-9_-]{0,62}$`)
	partNamePattern = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]{0,62}$`)
)

func isName(text string) bool     { return namePattern.MatchString(text) }
func isPartName(text string) bool { return partNamePattern.MatchString(text) }
