package sim

import (
	"flag"
	"fmt"
	"hash/fnv"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"
)

var (
	simSeeds = flag.Int("sim.seeds", 40, "seeds of the simulation")
	simFirst = flag.Uint64("sim.first", 1, "the first of them")
	simTrace = flag.Int("sim.trace", 200, "lines of the trace that are told of a seed that fails")
)

// result is what became of a seed.
type result struct {
	hash    uint64
	err     error
	happens map[string]int
}

// each runs seeds side by side, and returns what became of them in their order.
func each(t *testing.T, first uint64, n int, v variant) []result {
	results := make([]result, n)
	next := make(chan int)
	var all sync.WaitGroup
	for range 2 * runtime.GOMAXPROCS(0) { // each often waits for its own goroutines to be parked
		all.Go(func() {
			for i := range next {
				results[i] = simulate(t, first+uint64(i), v)
			}
		})
	}
	for i := range n {
		next <- i
	}
	close(next)
	all.Wait()
	return results
}

// The real shippers and recoveries of five nodes, under kills, disks that are lost, cloned and restored, pauses, cuts, lost
// answers, late writes and clocks that run apart: nothing that is promised is lost, and at the end nothing is left.
func TestSimulation(t *testing.T) {
	began := time.Now()
	happens := map[string]int{}
	all := fnv.New64a()
	for i, r := range each(t, *simFirst, *simSeeds, variant{}) {
		if r.err != nil {
			t.Errorf("%v\nrun it again: make sim SEEDS=1 SEED=%d", r.err, *simFirst+uint64(i))
		}
		fmt.Fprintf(all, "%016x", r.hash)
		for what, n := range r.happens {
			happens[what] += n
		}
	}
	took := time.Since(began)
	t.Logf("%d seeds from %d in %s (%.1f a second), GOMAXPROCS=%d, hash of all %016x: %v", *simSeeds, *simFirst, took.Round(time.Millisecond),
		float64(*simSeeds)/took.Seconds(), runtime.GOMAXPROCS(0), all.Sum64(), happens)
}

// The same seed is the same run, or a seed that fails could not be looked at.
func TestSimulationRepeats(t *testing.T) {
	const seeds = 12
	var once []result
	for _, processors := range []int{1, 8} {
		before := runtime.GOMAXPROCS(processors)
		results := each(t, 1, seeds, variant{})
		runtime.GOMAXPROCS(before)
		for i := range results {
			if results[i].err != nil {
				t.Fatal(results[i].err)
			}
			if len(once) > i && once[i].hash != results[i].hash {
				t.Errorf("seed %d: the hash of the trace is %x on one processor, %x on eight", i+1, once[i].hash, results[i].hash)
			}
		}
		once = results
	}
}

// Each way to break the protocol is seen, or the judge is blind.
func TestSimulationOfBrokenNodes(t *testing.T) {
	for _, v := range variants() {
		t.Run(v.name, func(t *testing.T) {
			for seed := uint64(1); seed <= v.seeds; seed += uint64(runtime.GOMAXPROCS(0)) {
				for _, r := range each(t, seed, runtime.GOMAXPROCS(0), v) {
					if r.err != nil {
						what, _, _ := strings.Cut(r.err.Error(), "; the trace")
						t.Logf("caught: %s", what)
						return
					}
				}
			}
			t.Errorf("%d seeds did not catch it", v.seeds)
		})
	}
}
