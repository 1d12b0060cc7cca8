package recovery

import (
	"errors"
	"maps"
	"slices"

	"go.uber.org/zap"

	"ingest-agent/objstore/lease"
	"ingest-agent/segment"
)

// Outcome says how an adoption ended.
type Outcome string

// The outcomes.
const (
	Drained   Outcome = "drained"   // all that was owed is exported
	Released  Outcome = "released"  // given back with what was reached
	Fenced    Outcome = "fenced"    // another has taken it over
	Unsettled Outcome = "unsettled" // not given back: others notice the silence
)

// maxNamed bounds the owners that Stats names.
const maxNamed = 100

// Stats is what metrics and people want to know.
type Stats struct {
	Scanning bool   `json:"scanning"` // this process holds the scan
	Refused  string `json:"refused"`  // why nothing is taken over; "" if that is not known
	Scans    uint64 `json:"scans"`
	Owners   int    `json:"owners"` // registers of the last scan, by this process or another
	// Claimable is how many owners were claimable by the last scan that this process knows of.
	Claimable int      `json:"claimable"`
	Orphans   []string `json:"orphans"` // owners that have objects and no register, at most 100; by this process's last scan
	Foreign   int      `json:"foreign"` // objects and prefixes that are none of ours, likewise
	// Unknown are owners that owe only what is for destinations that are not configured here, with these; at most 100.
	Unknown map[string][]string `json:"unknown"`
	// Adopting are the owners that are adopted now.
	Adopting  []string           `json:"adopting"`
	Adoptions map[Outcome]uint64 `json:"adoptions"`
	Ledger    segment.Ledger     `json:"ledger"`     // what became of records that were taken over
	Conflicts uint64             `json:"conflicts"`  // claims that were lost to another's
	Swept     uint64             `json:"swept"`      // late objects that were deleted
	Buried    uint64             `json:"buried"`     // registers that were deleted
	LastError string             `json:"last_error"` // the last trouble
}

func newStats() Stats { return Stats{Unknown: map[string][]string{}, Adoptions: map[Outcome]uint64{}} }

// Stats returns how things stand.
func (r *Recovery) Stats() Stats {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.stats
	s.Claimable = len(r.board)
	s.Unknown, s.Adoptions = maps.Clone(s.Unknown), maps.Clone(s.Adoptions)
	s.Orphans, s.Adopting = slices.Clone(s.Orphans), slices.Clone(s.Adopting)
	s.Ledger = segment.Ledger{}
	s.Ledger.Add(&r.stats.Ledger)
	return s
}

// update changes the stats.
func (r *Recovery) update(change func(s *Stats)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	change(&r.stats)
}

// trouble notes what failed and is tried again. nil is none.
func (r *Recovery) trouble(err error) {
	if err == nil {
		return
	}
	if errors.Is(err, lease.ErrLost) || errors.Is(err, lease.ErrFenced) {
		r.conflict()
		return
	}
	first := false
	r.update(func(s *Stats) {
		first = s.LastError != err.Error()
		s.LastError = err.Error()
	})
	if first {
		r.o.Log.Warn("recovery has trouble; trying again", zap.Error(err))
	}
}

func (r *Recovery) conflict()       { r.update(func(s *Stats) { s.Conflicts++ }) }
func (r *Recovery) swept(n int)     { r.update(func(s *Stats) { s.Swept += uint64(n) }) }
func (r *Recovery) buried()         { r.update(func(s *Stats) { s.Buried++ }) }
func (r *Recovery) scans(held bool) { r.update(func(s *Stats) { s.Scanning = held }) }

// found notes what a scan has seen, and tells of owners that nothing is known of.
func (r *Recovery) found(f *findings) {
	var fresh []string
	r.update(func(s *Stats) {
		for _, id := range f.orphans {
			if !slices.Contains(s.Orphans, id) {
				fresh = append(fresh, id)
			}
		}
		s.Scans++
		s.Owners, s.Foreign = f.owners, f.foreign
		s.Orphans = slices.Clone(f.orphans[:min(len(f.orphans), maxNamed)])
		s.LastError = ""
	})
	if len(fresh) > 0 {
		r.o.Log.Error("objects of owners that have no register are left there", zap.Strings("owners", fresh[:min(len(fresh), maxNamed)]),
			zap.Int("more", max(0, len(fresh)-maxNamed)))
	}
}

// unknown notes that an owner waits for somebody who knows its destinations, or that it does not.
func (r *Recovery) unknown(id string, v *Verdict) {
	fresh := false
	r.update(func(s *Stats) {
		if v == nil || v.Kind != UnknownDestination {
			delete(s.Unknown, id)
			return
		}
		_, there := s.Unknown[id]
		if fresh = !there; len(s.Unknown) < maxNamed {
			s.Unknown[id] = v.Unknown
		}
	})
	if fresh {
		r.o.Log.Warn("owner waits for a node that knows its destinations", zap.String("owner", id), zap.Strings("destinations", v.Unknown))
	}
}

func (r *Recovery) begun(id string) {
	r.update(func(s *Stats) { s.Adopting = append(s.Adopting, id) })
}

func (r *Recovery) ended(id string, o Outcome) {
	r.update(func(s *Stats) {
		s.Adopting = slices.DeleteFunc(s.Adopting, func(other string) bool { return other == id })
		s.Adoptions[o]++
	})
}

// count counts progress that is committed.
func (r *Recovery) count(owner string, lane segment.LaneID, p *segment.Progress) {
	r.update(func(s *Stats) { s.Ledger.Add(&p.Ledger) })
	if r.o.Adopted != nil {
		r.o.Adopted(owner, lane, *p)
	}
}
