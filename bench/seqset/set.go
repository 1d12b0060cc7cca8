// Package seqset holds sets of the sequence numbers that test records carry, so that a judge can compare what was
// acknowledged with what arrived.
//
// It guarantees that a Set is exact and safe for concurrent use. It assumes that numbers are given out densely from 1: a
// set costs one bit for each number up to its largest, and Max bounds that.
package seqset

import (
	"fmt"
	"math/bits"
	"sync"
)

// Max is the largest number a set takes, 256 MiB of bits. A number beyond it was never given out, so that an invented
// one cannot cost memory.
const Max = 1<<31 - 1

// Set is a set of numbers from 1 to Max. The zero value is empty and ready to use.
type Set struct {
	mu    sync.Mutex
	words []uint64
	count uint64
}

// Valid reports whether seq can be in a set.
func Valid(seq uint64) bool { return seq >= 1 && seq <= Max }

// Add puts seq into the set and reports whether it was new. A number that is not Valid is not added and not new.
func (s *Set) Add(seq uint64) bool {
	if !Valid(seq) {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.add(seq)
}

// AddRange puts n numbers from first on into the set.
func (s *Set) AddRange(first uint64, n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range uint64(n) {
		if Valid(first + i) {
			s.add(first + i)
		}
	}
}

func (s *Set) add(seq uint64) bool {
	word, bit := seq/64, uint64(1)<<(seq%64)
	if word >= uint64(len(s.words)) {
		// Doubling keeps the cost of growth constant for each number.
		grown := make([]uint64, max(word+1, 2*uint64(len(s.words))))
		copy(grown, s.words)
		s.words = grown
	}
	if s.words[word]&bit != 0 {
		return false
	}
	s.words[word] |= bit
	s.count++
	return true
}

// Has reports whether seq is in the set.
func (s *Set) Has(seq uint64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	word := seq / 64
	return word < uint64(len(s.words)) && s.words[word]&(1<<(seq%64)) != 0
}

// Count is how many numbers are in the set.
func (s *Set) Count() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.count
}

// Range is a run of numbers, both ends included.
type Range struct{ First, Last uint64 }

// String is first-last, or the number alone.
func (r Range) String() string {
	if r.First == r.Last {
		return fmt.Sprint(r.First)
	}
	return fmt.Sprintf("%d-%d", r.First, r.Last)
}

// Minus counts the numbers that are in s and not in other, and lists the first limit runs of them in ascending order.
func (s *Set) Minus(other *Set, limit int) (count uint64, ranges []Range) {
	mine, theirs := s.snapshot(), other.snapshot()
	var open Range // the run that is growing; First 0: none
	for i, word := range mine {
		if i < len(theirs) {
			word &^= theirs[i]
		}
		count += uint64(bits.OnesCount64(word))
		for ; word != 0; word &= word - 1 {
			seq := uint64(i*64 + bits.TrailingZeros64(word))
			if open.First != 0 && seq == open.Last+1 {
				open.Last = seq
				continue
			}
			if open.First != 0 && len(ranges) < limit {
				ranges = append(ranges, open)
			}
			open = Range{seq, seq}
		}
	}
	if open.First != 0 && len(ranges) < limit {
		ranges = append(ranges, open)
	}
	return count, ranges
}

func (s *Set) snapshot() []uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]uint64(nil), s.words...)
}
