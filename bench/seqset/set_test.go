package seqset

import (
	"math/rand/v2"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestAddReportsNewNumbersOnly(t *testing.T) {
	var s Set
	for _, seq := range []uint64{1, 63, 64, 65, 100_000, Max} {
		if !s.Add(seq) || s.Add(seq) || !s.Has(seq) {
			t.Errorf("%d: want new once, then not, then present", seq)
		}
	}
	for _, seq := range []uint64{0, Max + 1, 1 << 63} {
		if s.Add(seq) || s.Has(seq) {
			t.Errorf("%d is outside of what a set takes, yet it was taken", seq)
		}
	}
	if s.Count() != 6 {
		t.Errorf("count %d, want 6", s.Count())
	}
}

func TestMinusAgainstModel(t *testing.T) {
	for seed := range uint64(50) {
		rng := rand.New(rand.NewPCG(seed, 0))
		var a, b Set
		inA, inB := map[uint64]bool{}, map[uint64]bool{}
		for range 300 {
			first, n := rng.Uint64N(500)+1, rng.IntN(5)
			a.AddRange(first, n)
			for i := range n {
				inA[first+uint64(i)] = true
			}
			seq := rng.Uint64N(400) + 1
			b.Add(seq)
			inB[seq] = true
		}
		var want []Range
		var count uint64
		for seq := uint64(1); seq < 600; seq++ {
			if !inA[seq] || inB[seq] {
				continue
			}
			count++
			if k := len(want); k > 0 && want[k-1].Last == seq-1 {
				want[k-1].Last = seq
			} else {
				want = append(want, Range{seq, seq})
			}
		}
		got, ranges := a.Minus(&b, 1000)
		if got != count || !cmp.Equal(ranges, want) {
			t.Fatalf("seed %d: %d missing in %v, want %d in %v", seed, got, ranges, count, want)
		}
		if _, few := a.Minus(&b, 2); len(want) >= 2 && !cmp.Equal(few, want[:2]) {
			t.Fatalf("seed %d: limited to 2: %v, want %v", seed, few, want[:2])
		}
	}
}
