package fleet

import (
	"fmt"
	"io"
	"text/tabwriter"
	"time"
)

// Report is what a run has shown.
type Report struct {
	Seed   uint64
	Rounds []*Round
}

// Round is what one round has shown.
type Round struct {
	Number     int
	Bucket     string
	plan       plan
	Acked      uint64 // records
	Arrived    uint64 // each once
	Unowed     uint64 // acknowledged, not arrived, and not promised
	Duplicates int
	Took       time.Duration
	Violations []string
}

// finish counts, and requires that nothing was invented or came twice without an excuse.
func (r *round) finish() {
	s := r.sink.Stats()
	r.outcome.Acked, r.outcome.Arrived = r.acked.Count(), s.Distinct
	r.outcome.Unowed, _ = r.acked.Minus(r.sink.Received(), 0)
	if s.Bad > 0 || s.Largest > r.sequence.Last() {
		r.violation("invented: %d bad requests, largest number %d of %d: %v", s.Bad, s.Largest, r.sequence.Last(), s.Notes)
	}
	r.judge.mu.Lock()
	defer r.judge.mu.Unlock()
	r.outcome.Duplicates = r.judge.excused + r.judge.unexcused
	if r.judge.unexcused > 0 {
		r.violation("%d duplicates that no end explains: %v", r.judge.unexcused, r.judge.examples)
	}
}

// String is the round in one line.
func (r *Round) String() string {
	verdict := "ok"
	if len(r.Violations) > 0 {
		verdict = fmt.Sprintf("FAILED %v", r.Violations)
	}
	return fmt.Sprintf("round %d, %s, %v: %d acknowledged, %d arrived, %d twice, %.1f s: %s",
		r.Number, r.Bucket, r.plan, r.Acked, r.Arrived, r.Duplicates, r.Took.Seconds(), verdict)
}

// Failed reports whether a round has.
func (r *Report) Failed() bool {
	for _, round := range r.Rounds {
		if len(round.Violations) > 0 {
			return true
		}
	}
	return false
}

// Print writes a table of all rounds, and what was wrong.
func (r *Report) Print(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(t, "round\tbucket\tplan\tacked\tarrived\tnot owed\ttwice\ttook")
	for _, o := range r.Rounds {
		_, _ = fmt.Fprintf(t, "%d\t%s\t%v\t%d\t%d\t%d\t%d\t%.1f s\n", o.Number, o.Bucket, o.plan, o.Acked, o.Arrived, o.Unowed, o.Duplicates, o.Took.Seconds())
	}
	_, _ = fmt.Fprintf(t, "seed %d\n", r.Seed)
	for _, o := range r.Rounds {
		for _, v := range o.Violations {
			_, _ = fmt.Fprintf(t, "round %d: %s\n", o.Number, v)
		}
	}
	if err := t.Flush(); err != nil { // it keeps the first error of the writer
		return fmt.Errorf("print report: %w", err)
	}
	return nil
}
