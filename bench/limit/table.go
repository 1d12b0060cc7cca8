package limit

import (
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
)

// Summary of one side at one batch size. Rates are in bytes a second.
type Summary struct {
	Side             string
	Median, Min, Max float64
	// Ratio is the median, over the rounds, of this side's rate to that of the first side in the same round: what both
	// suffered from in a round goes out. RatioMin and RatioMax are the extremes.
	Ratio, RatioMin, RatioMax float64
}

// Summaries are by side.
func (c Comparison) Summaries() []Summary {
	var all []Summary
	for side, samples := range c.Samples {
		var rates, ratios []float64
		for round, s := range samples {
			rate := s.BytesPerSecond(c.SizeBytes)
			rates = append(rates, rate)
			ratios = append(ratios, rate/c.Samples[0][round].BytesPerSecond(c.SizeBytes))
		}
		all = append(all, Summary{
			Side:   c.Sides[side],
			Median: median(rates), Min: slices.Min(rates), Max: slices.Max(rates),
			Ratio: median(ratios), RatioMin: slices.Min(ratios), RatioMax: slices.Max(ratios),
		})
	}
	return all
}

// median of a list that is not empty.
func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	n := len(sorted)
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}

// goalSizeBytes and goal are what the append path should reach of the bare loop at which size of batches.
const (
	goalSizeBytes = 1 << 20
	goal          = 0.75
)

// Print writes one table with a line for each batch size and side.
func Print(out io.Writer, all []Comparison) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "batch KiB\tside\tMB/s median\tmin\tmax\tbatches/s\tof first\tmin\tmax\trounds\tbatches\t")
	for _, c := range all {
		for side, s := range c.Summaries() {
			fmt.Fprintf(w, "%d\t%s\t%.1f\t%.1f\t%.1f\t%.0f\t%.0f %%\t%.0f\t%.0f\t%d\t%d\t\n", c.SizeBytes>>10, s.Side,
				s.Median/1e6, s.Min/1e6, s.Max/1e6, s.Median/float64(c.SizeBytes),
				100*s.Ratio, 100*s.RatioMin, 100*s.RatioMax, len(c.Samples[side]), c.Samples[side][0].Batches)
		}
	}
	if err := w.Flush(); err != nil {
		return fmt.Errorf("print comparison: %w", err)
	}
	for _, c := range all {
		for _, s := range c.Summaries()[1:] {
			if c.SizeBytes != goalSizeBytes {
				continue
			}
			met := "met"
			if s.Ratio < goal {
				met = "not met"
			}
			fmt.Fprintf(out, "goal: %s at least %.0f %% of %s with batches of %d KiB: %.0f %%, %s\n",
				s.Side, 100*goal, c.Sides[0], goalSizeBytes>>10, 100*s.Ratio, met)
		}
	}
	return nil
}
