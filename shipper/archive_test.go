package shipper_test

import (
	"strings"
	"sync"
	"testing"
	"time"

	"ingest-agent/objstore"
	"ingest-agent/recovery/owner"
	"ingest-agent/shipper"
)

// copier is an archive that has what it is told to have.
type copier struct {
	mu    sync.Mutex
	asked map[objstore.SegmentKey]int
	has   bool
}

func (c *copier) archived(key objstore.SegmentKey) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.asked[key]++
	return c.has
}

func (c *copier) set(has bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.has = has
}

func (c *copier) count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.asked)
}

// TestASpilledObjectIsArchivedFirst: it stays, with its register, until the archive has it; what is delivered goes on, and so does
// what is shipped.
func TestASpilledObjectIsArchivedFirst(t *testing.T) {
	bubble(t, func(t *testing.T, s *store, n *node) {
		c := &copier{asked: map[objstore.SegmentKey]int{}}
		n.withArchive(c)
		bodies := spilled(t, s, n)
		n.mustDrain(laneA, 0, bodies...)
		pass(2 * testStale)
		left := len(s.keys(t, "segments/"))
		if asked := c.count(); left == 0 || asked != left {
			t.Errorf("%d objects left, the archive was asked for %d", left, asked)
		}
		wantState(t, s, n.id, owner.Live, false)
		n.add(laneB, "1")
		pass(2 * testAfter)
		wantState(t, s, n.id, owner.Live, true)
		if st := n.ship.Stats(); st.Down || st.LastError != "" {
			t.Errorf("an archive that does not come up is trouble: %+v", st)
		}
		n.mustDrain(laneB, 0, "1")
		c.set(true)
		pass(2 * testStale)
		if keys := s.keys(t, "segments/"); len(keys) > 0 {
			t.Errorf("left: %q", keys)
		}
		wantState(t, s, n.id, owner.Idle, false)
		n.crash()
	})
}

// TestWhatIsOnTheDiskIsArchivedFromThere: the archive is not asked about objects of segments that were never spilled.
func TestWhatIsOnTheDiskIsArchivedFromThere(t *testing.T) {
	bubble(t, func(t *testing.T, s *store, n *node) {
		c := &copier{asked: map[objstore.SegmentKey]int{}}
		n.withArchive(c)
		n.start()
		n.add(laneA, "0", "1")
		pass(2 * testAfter)
		n.mustDrain(laneA, 0, "0", "1")
		pass(2 * testStale)
		if keys := s.keys(t, "segments/"); len(keys) > 0 || c.count() > 0 {
			t.Errorf("left: %q; the archive was asked for %d", keys, c.count())
		}
		n.crash()
	})
}

// TestStopWaitsForTheArchive a little, so that a clean drain leaves nothing; otherwise what is left is found by others.
func TestStopWaitsForTheArchive(t *testing.T) {
	for _, late := range []bool{false, true} {
		bubble(t, func(t *testing.T, s *store, n *node) {
			c := &copier{asked: map[objstore.SegmentKey]int{}}
			n.withArchive(c)
			bodies := spilled(t, s, n)
			n.mustDrain(laneA, 0, bodies...)
			if !late {
				time.AfterFunc(time.Second, func() {
					c.set(true)
					n.ship.Wake()
				})
			}
			begin := time.Now()
			if err := n.stop(time.Minute); err != nil {
				t.Error(err)
			}
			if took := time.Since(begin); took > 10*time.Second {
				t.Errorf("stop took %v", took)
			}
			keys := s.keys(t, "segments/")
			state := owner.Idle
			if late {
				state = owner.Retired
			}
			if (len(keys) > 0) != late {
				t.Errorf("left: %q", strings.Join(keys, " "))
			}
			wantState(t, s, n.id, state, false)
		})
	}
}

// withArchive gives an archive to all processes of the node.
func (n *node) withArchive(c *copier) {
	n.sets = append(n.sets, func(o *shipper.Options) { o.Archived = c.archived })
}
