package agent

import (
	"ingest-agent/agent/export"
	"ingest-agent/segment"
)

// dead moves what was a dead letter and is none any more to where it went. The lanes are asked before the dead letters, so
// no more is moved than they have counted: what is on its way still counts as pending.
func (s *sums) dead(all map[string]export.DeadTotals) {
	const delivered, rejected, deadLetter = 0, 1, 2 // in outNames
	for destination, n := range all {
		for i, signal := range segment.Signals {
			k := outKey{destination, signal}
			out := s.out[k]
			if out == nil {
				continue // its lanes are not open, so that their side does not count either
			}
			take := func(n uint64) uint64 {
				n = min(n, out[deadLetter])
				out[deadLetter] -= n
				return n
			}
			out[delivered] += take(n.Delivered[i])
			out[rejected] += take(n.Rejected[i])
			if lost := take(n.Evicted[i]); lost > 0 {
				s.lost[lostKey{k, segment.LostDeadLetterFull}] += lost
			}
		}
	}
}
