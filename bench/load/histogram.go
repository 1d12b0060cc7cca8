package load

import (
	"math/bits"
	"time"
)

// Each power of two of nanoseconds is divided into subBuckets, so a quantile is at most 1/16 too high.
const (
	subBits    = 4
	subBuckets = 1 << subBits
	numBuckets = (64 - subBits) * subBuckets
)

// Histogram counts durations. The zero value is empty. A copy is a snapshot.
type Histogram struct {
	counts [numBuckets]uint64
	total  uint64
	max    time.Duration
}

// Add counts d; a negative one counts as 0.
func (h *Histogram) Add(d time.Duration) {
	d = max(d, 0)
	h.counts[bucketOf(uint64(d))]++
	h.total++
	h.max = max(h.max, d)
}

// Count is how many durations were added.
func (h *Histogram) Count() uint64 { return h.total }

// Max is the longest duration, exactly.
func (h *Histogram) Max() time.Duration { return h.max }

// Quantile is a duration that a part q (0 to 1) of all durations is not longer than; 0 if there are none.
func (h *Histogram) Quantile(q float64) time.Duration {
	var seen uint64
	for i, n := range &h.counts {
		seen += n
		if n > 0 && float64(seen) >= q*float64(h.total) {
			return min(time.Duration(bucketEnd(i)), h.max)
		}
	}
	return h.max
}

// bucketOf is linear up to subBuckets, then logarithmic.
func bucketOf(n uint64) int {
	if n < subBuckets {
		return int(n)
	}
	shift := bits.Len64(n) - subBits - 1
	return (shift+1)<<subBits | int(n>>shift)&(subBuckets-1)
}

// bucketEnd is the largest number of bucket i.
func bucketEnd(i int) uint64 {
	if i < subBuckets {
		return uint64(i)
	}
	shift := i>>subBits - 1
	return uint64(i&(subBuckets-1)|subBuckets)<<shift + 1<<shift - 1
}
