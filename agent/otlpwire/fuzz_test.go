package otlpwire

import (
	"math/rand/v2"
	"testing"

	"ingest-agent/segment"
)

// maxFuzzBytes keeps one input cheap: what it is compared with takes time by the square of its length.
const maxFuzzBytes = 1 << 12

func FuzzCheckLogs(f *testing.F)    { fuzzCheck(f, segment.Logs) }
func FuzzCheckTraces(f *testing.F)  { fuzzCheck(f, segment.Traces) }
func FuzzCheckMetrics(f *testing.F) { fuzzCheck(f, segment.Metrics) }

func fuzzCheck(f *testing.F, signal segment.Signal) {
	for _, b := range seeds(f, signal) {
		f.Add(b)
	}
	o := newOracle(f)
	f.Fuzz(func(t *testing.T, body []byte) {
		if len(body) <= maxFuzzBytes {
			_, _ = o.compareCheck(t, signal, body)
		}
	})
}

func FuzzConcat(f *testing.F) {
	for _, signal := range segment.Signals {
		all := seeds(f, signal)
		for i, b := range all {
			f.Add(uint8(signal), b, all[(i+1)%len(all)])
		}
	}
	f.Fuzz(func(t *testing.T, signal uint8, a, b []byte) {
		if s := segment.Signal(signal); s.Valid() && len(a)+len(b) <= maxFuzzBytes {
			compareConcat(t, s, a, b)
		}
	})
}

func FuzzSplit(f *testing.F) {
	for _, signal := range segment.Signals {
		for i, b := range seeds(f, signal) {
			f.Add(uint8(signal), b, i%4)
		}
	}
	o := newOracle(f)
	f.Fuzz(func(t *testing.T, signal uint8, body []byte, n int) {
		if s := segment.Signal(signal); s.Valid() && len(body) <= maxFuzzBytes {
			o.compareSplit(t, s, body, n)
		}
	})
}

// FuzzGenerated tries everything on requests made from the schema, which get much deeper than bytes at random.
func FuzzGenerated(f *testing.F) {
	const seedRuns = 300
	for seed := range uint64(seedRuns) {
		f.Add(seed)
	}
	o := newOracle(f)
	f.Fuzz(func(t *testing.T, seed uint64) {
		for _, signal := range segment.Signals {
			g := &generator{rand: rand.New(rand.NewPCG(seed, uint64(signal)))}
			g.fault = []float64{0, 0.005, 0.05}[g.rand.IntN(3)]
			a, b := g.request(signal), g.request(signal)
			info, err := o.compareCheck(t, signal, a)
			if _, errB := o.compareCheck(t, signal, b); err != nil || errB != nil {
				continue
			}
			compareConcat(t, signal, a, b)
			for n := range info.Records + 2 {
				o.compareSplit(t, signal, a, n)
			}
		}
	})
}

// seeds returns the examples of the OTLP repository and the bodies made by hand.
func seeds(tb testing.TB, signal segment.Signal) [][]byte {
	bodies := examples(tb, signal)
	for _, c := range handmade() {
		if c.signal == signal {
			bodies = append(bodies, c.body)
		}
	}
	return bodies
}
