package config

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// Size is a number of bytes, never negative.
type Size int64

// units are the suffixes of a size. Where a size has two spellings of equal length, the one that comes first here is used.
var units = [...]struct {
	suffix string
	bytes  int64
}{
	{"PiB", 1 << 50}, {"TiB", 1 << 40}, {"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10},
	{"PB", 1e15}, {"TB", 1e12}, {"GB", 1e9}, {"MB", 1e6}, {"KB", 1e3}, {"kB", 1e3}, {"B", 1}, {"", 1},
}

// sizeForm says how a size is written.
const sizeForm = "a size such as 512KiB, 8MiB, 1GiB, 1GB or a plain number of bytes"

// ParseSize reads a whole number of bytes with or without a unit: B, KiB, MiB, GiB, TiB, PiB (powers of 1024) or KB, MB,
// GB, TB, PB (powers of 1000).
func ParseSize(text string) (Size, error) {
	digits := strings.TrimRight(text, "BKMGTPik")
	for _, u := range units {
		if text[len(digits):] != u.suffix {
			continue
		}
		n, err := strconv.ParseUint(digits, 10, 63)
		if err != nil || n > uint64(math.MaxInt64/u.bytes) {
			break
		}
		return Size(int64(n) * u.bytes), nil
	}
	return 0, fmt.Errorf("parse size: want %s, below 8192PiB", sizeForm)
}

// String is the shortest form that ParseSize reads as s.
func (s Size) String() string {
	best := strconv.FormatInt(int64(s), 10)
	digits := len(best)
	for _, u := range units {
		if s == 0 || int64(s)%u.bytes != 0 {
			continue
		}
		if n := strconv.FormatInt(int64(s)/u.bytes, 10); len(n) < digits {
			best, digits = n+u.suffix, len(n)
		}
	}
	return best
}

// durationForm says how a duration is written.
const durationForm = "a duration such as 200ms, 30s, 5m, 168h or 0"

// FormatDuration is the form of d that one would write: 168h, not 168h0m0s, and 0, not 0s.
func FormatDuration(d time.Duration) string {
	if d == 0 {
		return "0"
	}
	text := d.String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}

// Secret is text that is never shown: every way to print it gives Redacted. string(s) is the text itself.
type Secret string

// Redacted stands for a secret wherever one is printed.
const Redacted = "[redacted]"

// String is Redacted.
func (s Secret) String() string { return Redacted }

// GoString is Redacted, for %#v.
func (s Secret) GoString() string { return Redacted }

// MarshalText is Redacted, for JSON and logs.
func (s Secret) MarshalText() ([]byte, error) { return []byte(Redacted), nil }
