package kill

import (
	"fmt"
	"sort"
	"sync"
	"time"

	"ingest-agent/bench/sink"
)

// cursorInterval is how often an agent writes its cursor. What was delivered in that time before a crash comes again.
const cursorInterval = 100 * time.Millisecond

// end is how one life of the agent ended, in terms of the sink's clock.
type end struct {
	from time.Duration // the signal was sent
	to   time.Duration // the process was gone, and all that it had sent was counted
	// flip is when the sink went down or up in that life; negative: it did not. While one request waits to be sent again,
	// later ones may have been delivered, and the cursor must not pass the one that waits. So what was delivered since
	// about then may come again, too.
	flip  time.Duration
	clean bool // it had stopped by itself, when asked
}

// judge decides on each duplicate, when it arrives, which end of a life is the cause, and whether that excuses it.
type judge struct {
	window time.Duration

	mu         sync.Mutex
	ends       []end
	duplicates []duplicates // by end
	unexcused  uint64
	examples   []string
}

// duplicates counts those that one end caused.
type duplicates struct {
	all    uint64
	recent uint64 // of those, delivered within cursorInterval before the signal
}

const maxExamples = 5

func (j *judge) ended(e end) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.ends = append(j.ends, e)
	j.duplicates = append(j.duplicates, duplicates{})
}

// duplicate is called by the sink.
func (j *judge) duplicate(d sink.Duplicate) {
	j.mu.Lock()
	defer j.mu.Unlock()
	// The cause is the first end after the earlier arrival: nobody else could forget that it was delivered.
	i := sort.Search(len(j.ends), func(i int) bool { return j.ends[i].to >= d.Last })
	if i == len(j.ends) {
		j.blame("record %d came at %v and again at %v, with no crash between", d)
		return
	}
	e := j.ends[i]
	j.duplicates[i].all++
	if d.Last >= e.from-cursorInterval {
		j.duplicates[i].recent++
	}
	if d.Last < e.excusedFrom(j.window) {
		kind := "a crash"
		if e.clean {
			kind = "a clean stop"
		}
		j.blame(fmt.Sprintf("record %%d came at %%v and again at %%v; %s at %v does not excuse that", kind, e.from), d)
	}
}

// excusedFrom is the moment since which what was delivered may come again.
func (e end) excusedFrom(window time.Duration) time.Duration {
	from := e.from - window
	if e.clean {
		from = e.to + 1 // a clean stop writes the cursor
	}
	if e.flip >= 0 {
		from = min(from, e.flip-window)
	}
	return from
}

func (j *judge) blame(format string, d sink.Duplicate) {
	j.unexcused++
	if len(j.examples) < maxExamples {
		j.examples = append(j.examples, fmt.Sprintf(format, d.Seq, d.Last, d.Now))
	}
}

// of returns the duplicates that end i caused so far.
func (j *judge) of(i int) duplicates {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.duplicates[i]
}

func (j *judge) verdict() (unexcused uint64, examples []string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.unexcused, append([]string(nil), j.examples...)
}
