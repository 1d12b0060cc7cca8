package segment

import (
	"cmp"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/oklog/ulid/v2"
)

// OwnerID names the process that appended a frame. Every start makes a new one; an id is appended to by one process, ever.
type OwnerID ulid.ULID

// String is the 26 character text form.
func (o OwnerID) String() string { return ulid.ULID(o).String() }

// IsZero reports whether o was never set.
func (o OwnerID) IsZero() bool { return o == OwnerID{} }

// ParseOwnerID is the inverse of String.
func ParseOwnerID(text string) (OwnerID, error) {
	id, err := ulid.ParseStrict(text)
	if err != nil {
		return OwnerID{}, fmt.Errorf("parse owner id %q: %w", text, err)
	}
	if id.String() != text {
		return OwnerID{}, fmt.Errorf("parse owner id %q: not in its one spelling %s", text, id)
	}
	return OwnerID(id), nil
}

// MarshalText makes an OwnerID its text form in JSON.
func (o OwnerID) MarshalText() ([]byte, error) { return []byte(o.String()), nil }

// UnmarshalText is the inverse of MarshalText.
func (o *OwnerID) UnmarshalText(text []byte) (err error) {
	*o, err = ParseOwnerID(string(text))
	return err
}

// LaneID names a lane: a destination and a shard of it, and, for a lane that frames are parked in, the number of the
// parked lane from 1. Text forms: default.0 and default.0.p1.
type LaneID struct {
	Destination string
	Shard       int
	Parked      int // 0: not a parked lane
}

// MaxShards bounds the shard number, so that it has a bounded text form.
const MaxShards = 1024

// destinationName is the rule for names of destinations (and of tenants in keys).
var destinationName = regexp.MustCompile(`^[a-z0-9][a-z0-9_-]{0,62}$`)

// ValidName reports whether name may name a destination: [a-z0-9][a-z0-9_-]{0,62}.
func ValidName(name string) bool { return destinationName.MatchString(name) }

// String is the text form, the name of the lane's directory.
func (l LaneID) String() string {
	s := l.Destination + "." + strconv.Itoa(l.Shard)
	if l.Parked > 0 {
		s += ".p" + strconv.Itoa(l.Parked)
	}
	return s
}

// Compare orders lanes by destination, shard and parked number.
func (l LaneID) Compare(o LaneID) int {
	return cmp.Or(cmp.Compare(l.Destination, o.Destination), cmp.Compare(l.Shard, o.Shard), cmp.Compare(l.Parked, o.Parked))
}

// ParseLaneID is the inverse of String.
func ParseLaneID(text string) (LaneID, error) {
	parts := strings.Split(text, ".")
	bad := fmt.Errorf("parse lane %q: want <destination>.<shard> or <destination>.<shard>.p<n>", text)
	if len(parts) < 2 || len(parts) > 3 || !ValidName(parts[0]) {
		return LaneID{}, bad
	}
	l := LaneID{Destination: parts[0]}
	var err error
	if l.Shard, err = strconv.Atoi(parts[1]); err != nil || l.Shard < 0 || l.Shard >= MaxShards {
		return LaneID{}, bad
	}
	if len(parts) == 3 {
		n, found := strings.CutPrefix(parts[2], "p")
		if l.Parked, err = strconv.Atoi(n); !found || err != nil || l.Parked < 1 {
			return LaneID{}, bad
		}
	}
	if l.String() != text { // one spelling: no leading zeros or signs
		return LaneID{}, bad
	}
	return l, nil
}

// MarshalText makes a LaneID its text form in JSON.
func (l LaneID) MarshalText() ([]byte, error) { return []byte(l.String()), nil }

// UnmarshalText is the inverse of MarshalText.
func (l *LaneID) UnmarshalText(text []byte) (err error) {
	*l, err = ParseLaneID(string(text))
	return err
}

// Birth is the part of a frame's id that is shared by the frames of one segment: where they were first written.
type Birth struct {
	Owner OwnerID `json:"owner"`
	Lane  LaneID  `json:"lane"`
	Seq   Seq     `json:"seq"`
}

// FrameID identifies a frame for ever: where it was born, and its number there. It does not change when the frame is
// parked, shipped or adopted, so that a receiver can drop duplicates.
type FrameID struct {
	Birth
	Number Entry
}

// String is <owner>/<lane>/<seq>:<number>, the form of a single id in the ingest-agent-frames header.
func (id FrameID) String() string {
	return id.prefix() + ":" + strconv.FormatUint(uint64(id.Number), 10)
}

func (b Birth) prefix() string {
	return b.Owner.String() + "/" + b.Lane.String() + "/" + b.Seq.String()
}

// FrameIDs is the value of the ingest-agent-frames header or metadata for frames in the order of delivery:
// <owner>/<lane>/<seq>:<ranges>[,…], where ranges are joined by "+" and are one of <number>, <first>-<last>, or, for a part of
// a frame, <number>#<first>-<last> with the records that it holds. Parts of one frame never overlap.
func FrameIDs(frames []Frame) string {
	var b strings.Builder
	for i := 0; i < len(frames); {
		f := &frames[i]
		switch {
		case i == 0:
			b.WriteString(f.ID.prefix() + ":")
		case frames[i-1].ID.Birth == f.ID.Birth:
			b.WriteByte('+')
		default:
			b.WriteString("," + f.ID.prefix() + ":")
		}
		i++
		if f.First > 0 {
			fmt.Fprintf(&b, "%d#%d-%d", f.ID.Number, f.First, f.First+max(f.Records, 1)-1)
			continue
		}
		last := f.ID.Number
		for i < len(frames) && frames[i].First == 0 && frames[i].ID.Birth == f.ID.Birth && frames[i].ID.Number == last+1 {
			last++
			i++
		}
		b.WriteString(strconv.FormatUint(uint64(f.ID.Number), 10))
		if last != f.ID.Number {
			b.WriteByte('-')
			b.WriteString(strconv.FormatUint(uint64(last), 10))
		}
	}
	return b.String()
}
