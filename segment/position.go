package segment

import (
	"fmt"
	"strconv"
)

// Seq numbers the segments of a lane, from 1. A number is never used twice in a data directory.
type Seq uint64

// seqDigits is the fixed width of a Seq in names of files and keys, so that names sort as numbers do.
const seqDigits = 20

// String is the fixed-width text form, the name of the segment's directory.
func (s Seq) String() string { return fmt.Sprintf("%0*d", seqDigits, uint64(s)) }

// ParseSeq is the inverse of String. It accepts only the fixed-width form.
func ParseSeq(text string) (Seq, error) {
	if len(text) != seqDigits {
		return 0, fmt.Errorf("parse segment number %q: want %d digits", text, seqDigits)
	}
	n, err := parseDigits(text)
	if err != nil {
		return 0, fmt.Errorf("parse segment number %q: %w", text, err)
	}
	return Seq(n), nil
}

// Entry numbers the data frames of a segment, from 1.
type Entry uint32

// entryDigits is the fixed width of an Entry in names.
const entryDigits = 10

// String is the fixed-width text form.
func (e Entry) String() string { return fmt.Sprintf("%0*d", entryDigits, uint32(e)) }

// Position names the next frame of a lane: everything before it is done. It has one spelling: the end of a sealed segment
// s is written (s+1, 1), never (s, last+1). Positions are only ever compared by order.
type Position struct {
	Seq   Seq
	Entry Entry
}

// Start is the position before the first frame that a lane can ever have.
var Start = Position{Seq: 1, Entry: 1}

// Compare is negative, zero or positive as p is before, at or after o.
func (p Position) Compare(o Position) int {
	switch {
	case p.Seq != o.Seq:
		if p.Seq < o.Seq {
			return -1
		}
		return 1
	case p.Entry != o.Entry:
		if p.Entry < o.Entry {
			return -1
		}
		return 1
	}
	return 0
}

// Before reports whether p is strictly before o.
func (p Position) Before(o Position) bool { return p.Compare(o) < 0 }

// After is the position behind the frame at p in the same segment.
func (p Position) After() Position { return Position{p.Seq, p.Entry + 1} }

// NextSegment is the position of the first frame of the segment after p's, which is also the end of p's once it is sealed.
func (p Position) NextSegment() Position { return Position{p.Seq + 1, 1} }

// String is the fixed-width text form <seq>.<entry>; it sorts as positions do.
func (p Position) String() string { return p.Seq.String() + "." + p.Entry.String() }

// ParsePosition is the inverse of String.
func ParsePosition(text string) (Position, error) {
	if len(text) != seqDigits+1+entryDigits || text[seqDigits] != '.' {
		return Position{}, fmt.Errorf("parse position %q: want <%d digits>.<%d digits>", text, seqDigits, entryDigits)
	}
	seq, err := ParseSeq(text[:seqDigits])
	if err != nil {
		return Position{}, err
	}
	n, err := parseDigits(text[seqDigits+1:])
	if err != nil || n > 1<<32-1 {
		return Position{}, fmt.Errorf("parse position %q: entry is not a number of 32 bits", text)
	}
	return Position{seq, Entry(n)}, nil
}

// MarshalText and UnmarshalText make a Position its text form in JSON.
func (p Position) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// UnmarshalText is the inverse of MarshalText.
func (p *Position) UnmarshalText(text []byte) (err error) {
	*p, err = ParsePosition(string(text))
	return err
}

// parseDigits reads decimal digits only: no sign, no underscore, which strconv would take.
func parseDigits(text string) (uint64, error) {
	for i := 0; i < len(text); i++ {
		if text[i] < '0' || text[i] > '9' {
			return 0, fmt.Errorf("%q is not a digit", text[i])
		}
	}
	return strconv.ParseUint(text, 10, 64)
}
