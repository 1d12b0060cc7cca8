package kill

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"ingest-agent/bench/seqset"
	"ingest-agent/bench/sink"
)

// maxRanges bounds how many ranges of numbers a violation lists.
const maxRanges = 8

// Round is what happened in one life of the agent.
type Round struct {
	Number           int
	Ready            time.Duration // from exec to ready; 0 if it was killed during start
	Requests, Failed uint64        // attempts of the load
	Acked            uint64        // records
	Duplicates       uint64        // records that came again for the end of this life
	Recent           uint64        // of those, delivered within 100 ms before the kill
	Bound            uint64        // records that may come again: delivered within Window before the kill, or around a change of the sink
	Delivered        uint64        // records delivered within 100 ms before the kill

	plan        plan
	end         end
	first, last uint64 // numbers given out
	failures    map[string]uint64
}

// Report is the outcome of a run.
type Report struct {
	Seed       uint64
	Rounds     []*Round
	Sent       uint64 // records, some of which never reached the agent
	Acked      uint64 // records
	Sink       sink.Stats
	Missing    uint64 // acknowledged and not arrived
	Invented   uint64 // arrived and never sent
	Unexcused  uint64 // duplicates that no crash explains
	Violations []string

	ledger ledger
}

// ledger is what the agent's own metrics say at the end; a metric that is not there is -1.
type ledger struct{ delivered, lost, deadLetter float64 }

func (r *Report) readLedger(page string) {
	read := func(name string) float64 {
		if sum, found := sumMetric(page, name); found {
			return sum
		}
		return -1
	}
	r.ledger = ledger{
		delivered:  read("ingest_agent_records_delivered_total"),
		lost:       read("ingest_agent_records_lost_total"),
		deadLetter: read("ingest_agent_records_dead_letter_total"),
	}
}

// Failed reports whether the agent did something wrong.
func (r *Report) Failed() bool { return len(r.Violations) > 0 }

// finish compares what was sent with what arrived.
func (r *Report) finish(h *harness) {
	r.Sent, r.Acked, r.Sink = h.sequence.Last(), h.acked.Count(), h.sink.Stats()
	begin := time.Duration(0) // of the life, or earlier, but after the last delivery of the life before
	for i, round := range r.Rounds {
		d := h.judge.of(i)
		round.Duplicates, round.Recent = d.all, d.recent
		e := round.end
		round.Delivered = h.sink.DeliveredBetween(max(begin, e.from-cursorInterval), e.to)
		round.Bound = h.sink.DeliveredBetween(max(begin, e.excusedFrom(h.judge.window)), e.to)
		begin = e.to + time.Millisecond // the resolution of the sink
	}
	var sent seqset.Set
	sent.AddRange(1, int(r.Sent))
	var missing, invented []seqset.Range
	r.Missing, missing = h.acked.Minus(h.sink.Received(), maxRanges)
	r.Invented, invented = h.sink.Received().Minus(&sent, maxRanges)
	var examples []string
	r.Unexcused, examples = h.judge.verdict()

	if r.Missing > 0 {
		h.violation("%d acknowledged records never arrived, first %s", r.Missing, r.place(missing))
	}
	if r.Invented > 0 {
		h.violation("%d records arrived that were never sent, first %v", r.Invented, invented)
	}
	if r.Sink.Bad > 0 {
		h.violation("%d requests to the sink were not what was sent: %s", r.Sink.Bad, strings.Join(r.Sink.Notes, "; "))
	}
	if r.Unexcused > 0 {
		h.violation("%d records arrived again without excuse: %s", r.Unexcused, strings.Join(examples, "; "))
	}
	if l := r.ledger; l.delivered != float64(r.Sink.Distinct) {
		h.violation("ingest_agent_records_delivered_total is %v (-1: absent), and %d different records arrived",
			l.delivered, r.Sink.Distinct)
	} else if l.lost > 0 || l.deadLetter > 0 {
		h.violation("the agent counts %v records as lost and %v as dead letters, want 0", l.lost, l.deadLetter)
	}
	if r.Acked == 0 && len(r.Rounds) > 0 {
		h.violation("nothing was acknowledged in any round, so nothing was shown")
	}
}

// place says in which rounds numbers were sent.
func (r *Report) place(ranges []seqset.Range) string {
	var texts []string
	for _, numbers := range ranges {
		var text strings.Builder
		text.WriteString(numbers.String())
		for _, round := range r.Rounds {
			if round.first <= numbers.First && numbers.First <= round.last {
				fmt.Fprintf(&text, " (round %d)", round.Number)
			}
		}
		texts = append(texts, text.String())
	}
	return strings.Join(texts, ", ")
}

// Print writes the table of rounds, the totals, the seed and the verdict.
func (r *Report) Print(out io.Writer) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "round\tkill\tafter ms\tsink\tready ms\trequests\tfailed\tacked\tlast 100ms\tdup\tof last 100ms\tdup bound\t")
	for _, round := range r.Rounds {
		kill := string(round.plan.moment)
		if round.end.clean {
			kill += ", clean"
		}
		fmt.Fprintf(w, "%d\t%s\t%d\t%s\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t\n", round.Number, kill, round.plan.delay.Milliseconds(),
			round.plan.sink(), round.Ready.Milliseconds(), round.Requests, round.Failed, round.Acked,
			round.Delivered, round.Duplicates, round.Recent, round.Bound)
	}
	if err := w.Flush(); err != nil {
		return fmt.Errorf("print report: %w", err)
	}
	failures := map[string]uint64{}
	var bound uint64
	for _, round := range r.Rounds {
		bound += round.Bound
		for cause, n := range round.failures {
			failures[cause] += n
		}
	}
	fmt.Fprintf(out, "\nsent %d, acknowledged %d, arrived %d (different: %d)\n", r.Sent, r.Acked, r.Sink.Records, r.Sink.Distinct)
	for _, cause := range slices.Sorted(maps.Keys(failures)) {
		fmt.Fprintf(out, "  not acknowledged: %d requests, %s\n", failures[cause], cause)
	}
	crashes := max(len(r.Rounds), 1)
	fmt.Fprintf(out, "missing %d, invented %d, bad requests %d\n", r.Missing, r.Invented, r.Sink.Bad)
	fmt.Fprintf(out, "duplicates %d, %.1f a crash (bound: %d, %.1f a crash), without excuse %d\n", r.Sink.Duplicates,
		float64(r.Sink.Duplicates)/float64(crashes), bound, float64(bound)/float64(crashes), r.Unexcused)
	fmt.Fprintf(out, "the agent's books: delivered %v, lost %v, dead letter %v (-1: no such metric)\n",
		r.ledger.delivered, r.ledger.lost, r.ledger.deadLetter)
	for _, v := range r.Violations {
		fmt.Fprintln(out, "VIOLATION:", v)
	}
	verdict := "PASS"
	if r.Failed() {
		verdict = "FAIL"
	}
	_, err := fmt.Fprintf(out, "%s: %d rounds, seed %d\n", verdict, len(r.Rounds), r.Seed)
	if err != nil {
		return fmt.Errorf("print report: %w", err)
	}
	return nil
}
