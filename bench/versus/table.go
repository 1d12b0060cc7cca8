package versus

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
)

// column is one figure of a row.
type column struct {
	name   string
	format string // of its median and extremes
	value  func(*Row) float64
	sum    bool // all rounds together, such as losses, instead of the median
}

const mib = 1 << 20

// Values of rows that goals are about.
var (
	deliveredPerSecond   = column{name: "delivered records/s", format: "%.0f", value: func(r *Row) float64 { return perSecond(r.Acked-r.Lost, r.Delivering) }}
	cpuPerMillion        = column{name: "CPU s per million", format: "%.2f", value: func(r *Row) float64 { return perMillion(r.CPU, r.Acked) }}
	p50                  = column{name: "p50 ms", format: "%.2f", value: func(r *Row) float64 { return inMS(r.Latency.Quantile(0.5)) }}
	p99                  = column{name: "p99 ms", format: "%.2f", value: func(r *Row) float64 { return inMS(r.Latency.Quantile(0.99)) }}
	deliveredMBPerSecond = column{name: "delivered MB/s", format: "%.1f", value: func(r *Row) float64 { return perSecond(r.Bytes, r.Delivering) / 1e6 }}
	peakMiB              = column{name: "peak memory MiB", format: "%.0f", value: func(r *Row) float64 { return float64(r.PeakBytes) / mib }}
)

var columns = []column{
	{name: "acknowledged records/s", format: "%.0f", value: func(r *Row) float64 { return perSecond(r.Acked, r.Sending) }},
	deliveredPerSecond,
	{name: "acknowledged MB/s", format: "%.1f", value: func(r *Row) float64 { return perSecond(r.Bytes, r.Sending) / 1e6 }},
	deliveredMBPerSecond,
	cpuPerMillion,
	{name: "harness CPU s per million", format: "%.2f", value: func(r *Row) float64 { return perMillion(r.HarnessCPU, r.Acked) }},
	p50, p99, peakMiB,
	{name: "second start ms", format: "%.0f", value: func(r *Row) float64 { return inMS(r.Starting) }},
	{name: "written per byte", format: "%.2f", value: func(r *Row) float64 { return float64(r.Written) / float64(max(r.Bytes, 1)) }},
	{name: "refused", format: "%.0f", value: func(r *Row) float64 { return float64(r.Refused) }, sum: true},
	{name: "lost", format: "%.0f", value: func(r *Row) float64 { return float64(r.Lost) }, sum: true},
	{name: "twice", format: "%.0f", value: func(r *Row) float64 { return float64(r.Duplicates) }, sum: true},
}

func perSecond(n uint64, d time.Duration) float64 {
	if d == 0 {
		return 0
	}
	return float64(n) / d.Seconds()
}

func perMillion(d time.Duration, records uint64) float64 {
	return d.Seconds() / (float64(max(records, 1)) / 1e6)
}

func inMS(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// Table writes a line for each figure and a column for each subject: the median of the rounds, and their extremes.
func Table(w io.Writer, rows []Row) error {
	names := subjects(rows)
	lines := [][]string{append([]string{""}, names...), slices.Repeat([]string{"---"}, 1+len(names))}
	for _, c := range columns {
		line := []string{c.name}
		for _, name := range names {
			line = append(line, c.show(values(rows, name, c)))
		}
		lines = append(lines, line)
	}
	for _, line := range lines {
		if _, err := fmt.Fprintf(w, "| %s |\n", strings.Join(line, " | ")); err != nil {
			return fmt.Errorf("write table: %w", err)
		}
	}
	return nil
}

func (c *column) show(all []float64) string {
	if c.sum {
		total := 0.0
		for _, v := range all {
			total += v
		}
		return fmt.Sprintf(c.format, total)
	}
	median := fmt.Sprintf(c.format, median(all))
	if len(all) == 1 {
		return median
	}
	return fmt.Sprintf("%s ("+c.format+" to "+c.format+")", median, slices.Min(all), slices.Max(all))
}

// subjects are the names in rows, in order of first appearance.
func subjects(rows []Row) (names []string) {
	for i := range rows {
		if !slices.Contains(names, rows[i].Subject) {
			names = append(names, rows[i].Subject)
		}
	}
	return names
}

// values of a subject's rounds.
func values(rows []Row, subject string, c column) (all []float64) {
	for i := range rows {
		if rows[i].Subject == subject {
			all = append(all, c.value(&rows[i]))
		}
	}
	return all
}

// ratios are, round by round, what of has for each one of what to has: what slowed both down in a round goes out.
func ratios(rows []Row, of, to string, c column) (all []float64) {
	a, b := values(rows, of, c), values(rows, to, c)
	for i := range min(len(a), len(b)) {
		if b[i] != 0 {
			all = append(all, a[i]/b[i])
		}
	}
	return all
}

// median is 0 of nothing.
func median(all []float64) float64 {
	if len(all) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(all))
	n := len(sorted)
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}

// Goal is one figure beside what it should be.
type Goal struct {
	What    string
	Want    string
	Reached string
	Met     bool
}

// Goals writes goals as a table.
func Goals(w io.Writer, goals []Goal) error {
	if _, err := fmt.Fprint(w, "| goal | want | reached | |\n| --- | --- | --- | --- |\n"); err != nil {
		return fmt.Errorf("write goals: %w", err)
	}
	for _, g := range goals {
		met := "met"
		if !g.Met {
			met = "not met"
		}
		if _, err := fmt.Fprintf(w, "| %s | %s | %s | %s |\n", g.What, g.Want, g.Reached, met); err != nil {
			return fmt.Errorf("write goals: %w", err)
		}
	}
	return nil
}

// atLeast and atMost compare the median of all with a bound.
func atLeast(what string, all []float64, bound float64, unit string) Goal {
	return Goal{what, fmt.Sprintf("at least %g%s", bound, unit), reached(all, unit), len(all) > 0 && median(all) >= bound}
}

func atMost(what string, all []float64, bound float64, unit string) Goal {
	return Goal{what, fmt.Sprintf("at most %.3g%s", bound, unit), reached(all, unit), len(all) > 0 && median(all) <= bound}
}

func reached(all []float64, unit string) string {
	if len(all) == 0 {
		return "nothing"
	}
	return fmt.Sprintf("%.3g%s (%.3g to %.3g)", median(all), unit, slices.Min(all), slices.Max(all))
}

// LoadGoals are those of many senders.
func LoadGoals(rows []Row, agent, other string) []Goal {
	return []Goal{
		atLeast("delivered records/s against "+other, ratios(rows, agent, other, deliveredPerSecond), 15, " times"),
		atMost("CPU per record against "+other, ratios(rows, agent, other, cpuPerMillion), 1.0/12, ""),
		atMost("p99 of the answer against "+other, ratios(rows, agent, other, p99), 1.0/8, ""),
	}
}

// AnswerGoals are those of one sender.
func AnswerGoals(rows []Row, agent string) []Goal {
	return []Goal{atMost("p50 of the answer to one sender against "+BareName, ratios(rows, agent, BareName, p50), 1.2, "")}
}

// BacklogGoals are those of a sink that was down. Memory must not grow from the first half of the backlog to the whole by
// more than what the heap varies by itself.
func BacklogGoals(rows []Row, agent string) []Goal {
	var growth []float64
	for i := range rows {
		if parts := rows[i].PeakByParts; rows[i].Subject == agent && len(parts) == 4 {
			growth = append(growth, float64(parts[3]-parts[1])/mib)
		}
	}
	return []Goal{
		atMost("peak memory with a backlog", values(rows, agent, peakMiB), 200, " MiB"),
		atMost("growth of it from half of the backlog to all", growth, 10, " MiB"),
	}
}

// StartGoals are those of a start on a backlog.
func StartGoals(rows []Row, agent string) []Goal {
	var starts []float64
	for i := range rows {
		if rows[i].Subject == agent {
			starts = append(starts, rows[i].Starting.Seconds())
		}
	}
	return []Goal{atMost("start to ready with that backlog, after kill -9", starts, 1, " s")}
}

// AdoptGoals compare the delivery of what another left in the bucket with that of a backlog of one's own.
func AdoptGoals(adopted, own []Row, agent string) []Goal {
	all := values(adopted, agent, deliveredMBPerSecond)
	base := median(values(own, agent, deliveredMBPerSecond))
	for i := range all {
		all[i] /= max(base, 1e-9)
	}
	return []Goal{atLeast("delivery of another's backlog from the bucket against that of one's own", all, 0.5, " times")}
}

// Whole reports whether no row has a loss or a duplicate.
func Whole(rows []Row) bool {
	return !slices.ContainsFunc(rows, func(r Row) bool { return r.Lost > 0 || r.Duplicates > 0 })
}
