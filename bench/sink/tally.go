package sink

import (
	"fmt"
	"sort"
	"sync"
	"time"

	"ingest-agent/bench/otlpgen"
	"ingest-agent/bench/seqset"
	"ingest-agent/segment"
)

// maxNotes bounds the texts kept about bad requests.
const maxNotes = 10

// Stats are counts since the sink was made.
type Stats struct {
	Requests   uint64   `json:"requests"`   // taken
	Refused    uint64   `json:"refused"`    // answered with an error as told, or hung up on
	Bad        uint64   `json:"bad"`        // not made by otlpgen, or changed on the way
	Records    uint64   `json:"records"`    // taken, duplicates included
	Distinct   uint64   `json:"distinct"`   // taken, each number once
	Duplicates uint64   `json:"duplicates"` // Records - Distinct
	Largest    uint64   `json:"largest"`    // largest number taken
	Notes      []string `json:"notes,omitempty"`
}

// Duplicate is a record that arrived again; times are of the sink's clock, to the millisecond.
type Duplicate struct {
	Seq       uint64
	Last, Now time.Duration // of the arrival before this one, and of this one
}

// tally counts what arrives.
type tally struct {
	start       time.Time
	onDuplicate func(Duplicate)
	received    seqset.Set
	numbers     sync.Pool // of *[]uint64, for one request each

	mu         sync.Mutex
	stats      Stats
	last       []uint32   // by number: millisecond of the last arrival; only kept for onDuplicate
	deliveries []delivery // one for each millisecond in which something arrived
}

type delivery struct {
	ms      uint32
	records uint32
}

func newTally(onDuplicate func(Duplicate)) *tally {
	return &tally{start: time.Now(), onDuplicate: onDuplicate}
}

func (t *tally) now() time.Duration { return time.Since(t.start) }

// take counts all records of a request, or none if it is bad.
func (t *tally) take(signal segment.Signal, body []byte) error {
	numbers, ok := t.numbers.Get().(*[]uint64)
	if !ok {
		numbers = new([]uint64)
	}
	defer t.numbers.Put(numbers)
	seqs := (*numbers)[:0]
	err := otlpgen.Walk(signal, body, func(seq uint64) { seqs = append(seqs, seq) })
	*numbers = seqs
	for _, seq := range seqs {
		if err == nil && !seqset.Valid(seq) {
			err = fmt.Errorf("read record: number %d is not one that is given out", seq)
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if err != nil {
		t.stats.Bad++
		t.note(err)
		return err
	}
	now := t.now()
	t.stats.Requests++
	for _, seq := range seqs {
		t.record(seq, now)
	}
	ms := uint32(now.Milliseconds())
	if n := len(t.deliveries); n > 0 && t.deliveries[n-1].ms == ms {
		t.deliveries[n-1].records += uint32(len(seqs))
	} else {
		t.deliveries = append(t.deliveries, delivery{ms, uint32(len(seqs))})
	}
	return nil
}

func (t *tally) record(seq uint64, now time.Duration) {
	t.stats.Records++
	t.stats.Largest = max(t.stats.Largest, seq)
	fresh := t.received.Add(seq)
	if fresh {
		t.stats.Distinct++
	} else {
		t.stats.Duplicates++
	}
	if t.onDuplicate == nil {
		return
	}
	if seq >= uint64(len(t.last)) {
		grown := make([]uint32, max(seq+1, 2*uint64(len(t.last))))
		copy(grown, t.last)
		t.last = grown
	}
	ms := uint32(now.Milliseconds())
	if !fresh {
		t.onDuplicate(Duplicate{seq, time.Duration(t.last[seq]) * time.Millisecond, time.Duration(ms) * time.Millisecond})
	}
	t.last[seq] = ms
}

func (t *tally) refused() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.stats.Refused++
}

// bad counts a request that could not even be read.
func (t *tally) bad(err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.stats.Bad++
	t.note(err)
}

func (t *tally) note(err error) {
	if len(t.stats.Notes) < maxNotes {
		t.stats.Notes = append(t.stats.Notes, err.Error())
	}
}

func (t *tally) snapshot() Stats {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.stats
	s.Notes = append([]string(nil), s.Notes...)
	return s
}

func (t *tally) between(from, to time.Duration) (records uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	first := sort.Search(len(t.deliveries), func(i int) bool {
		return int64(t.deliveries[i].ms) >= from.Milliseconds()
	})
	for _, d := range t.deliveries[first:] {
		if int64(d.ms) > to.Milliseconds() {
			break
		}
		records += uint64(d.records)
	}
	return records
}
