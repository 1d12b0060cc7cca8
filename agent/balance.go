package agent

import "ingest-agent/segment"

// laneKey is what a lane and its parked lanes have in common.
type laneKey struct {
	destination string
	shard       int
}

func keyOf(id segment.LaneID) laneKey { return laneKey{id.Destination, id.Shard} }

// moveBalance is, by signal, how many records came into the parked lanes of a lane more than it has counted as moved there.
type moveBalance [segment.NumSignals]int64

// balances sums the moves of each lane.
func balances(lanes []laneStats) map[laneKey]moveBalance {
	all := map[laneKey]moveBalance{}
	for i := range lanes {
		st := &lanes[i]
		b := all[keyOf(st.id)]
		for j := range b {
			b[j] -= int64(st.Ledger.Moved[j])
			if st.id.Parked > 0 {
				b[j] += int64(st.In.Records[j])
			}
		}
		all[keyOf(st.id)] = b
	}
	return all
}

// laneStats is a lane's state for the ledger.
type laneStats struct {
	segment.Stats
	id      segment.LaneID
	pending segment.Totals
}

// stats returns the state of all lanes, such that each record is counted once: while a move is on its way its records are in
// two lanes. What a crash in the middle of a move left in both is as many records more, and was found by the start.
func (s *laneSet) stats() []laneStats {
	lanes := s.lanes()
	all := make([]laneStats, 0, len(lanes))
	for _, parked := range []bool{true, false} { // in this order: what is seen in a parked lane is then seen in the other too
		for _, l := range lanes {
			if (l.ID().Parked > 0) == parked {
				st := l.Stats()
				all = append(all, laneStats{st, l.ID(), st.Pending()})
			}
		}
	}
	if s.moves == nil {
		return all
	}
	now := balances(all)
	for i := range all {
		st := &all[i]
		if st.id.Parked > 0 {
			continue
		}
		for j := range st.pending.Records {
			twice := now[keyOf(st.id)][j] - s.moves[keyOf(st.id)][j]
			st.pending.Records[j] = uint64(max(int64(st.pending.Records[j])-twice, 0))
		}
	}
	return all
}
