package vfs

import (
	"bytes"
	"maps"
	"math/rand/v2"
	"slices"
)

// CrashStrict is the file system that a power cut leaves when nothing reached the medium but what was synced. m goes on
// unharmed; what its open files do from now on is not seen by the copy.
func (m *Mem) CrashStrict() *Mem { return m.crash(nil) }

// Crash is the file system that a power cut leaves when chance decided what of the unsynced had reached the medium:
//   - of each directory any first part of its changes, in order, since a journal keeps them so;
//   - of each file any of the lengths it had since its last Sync; a write grows a file block by block;
//   - of each block that differs from the medium the old content, the new or, behind the least of those lengths, zeros.
//
// The same calls and the same rng give the same copy. m goes on unharmed.
func (m *Mem) Crash(rng *rand.Rand) *Mem { return m.crash(rng) }

// crash is a strict one when rng is nil.
func (m *Mem) crash(rng *rand.Rand) *Mem {
	m.mu.Lock()
	defer m.mu.Unlock()
	cut := make(map[*node]int)
	if rng != nil {
		cut = randomCut(m.log, rng)
	}
	after := &Mem{limitBytes: m.limitBytes}
	c := crashCopy{to: after, rng: rng, extra: make(map[*node][]dirChange)}
	for i, happened := range reached(m.log, cut) {
		if happened {
			for _, change := range m.log[i] {
				c.extra[change.dir] = append(c.extra[change.dir], change)
			}
		}
	}
	after.root = c.node(m.root)
	return after
}

// randomCut chooses for each directory how many of its changes in log happened: those before the index it maps to.
func randomCut(log []dirOp, rng *rand.Rand) map[*node]int {
	var dirs []*node // in order of appearance: the order of a map would not repeat
	at := make(map[*node][]int)
	for i, op := range log {
		for _, c := range op {
			if at[c.dir] == nil {
				dirs = append(dirs, c.dir)
			}
			at[c.dir] = append(at[c.dir], i)
		}
	}
	cut := make(map[*node]int)
	for _, d := range dirs {
		if n := rng.IntN(len(at[d]) + 1); n > 0 {
			cut[d] = at[d][n-1] + 1
		}
	}
	return cut
}

// reached says which changes of log are on the medium when of each directory those before index cut[dir] are. A rename
// between two directories that happened for one happened for both, and so did all that came before it in either.
func reached(log []dirOp, cut map[*node]int) []bool {
	happened := make([]bool, len(log))
	for i := len(log) - 1; i >= 0; i-- {
		for _, c := range log[i] {
			happened[i] = happened[i] || i < cut[c.dir]
		}
		if happened[i] {
			for _, c := range log[i] {
				cut[c.dir] = max(cut[c.dir], i+1)
			}
		}
	}
	return happened
}

// crashCopy copies what is on the medium, with the changes in extra, to another file system.
type crashCopy struct {
	to    *Mem
	rng   *rand.Rand
	extra map[*node][]dirChange
}

func (c *crashCopy) node(n *node) *node {
	if n.file != nil {
		d := newMemData(n.file.afterCrash(c.rng))
		c.to.usedBytes += int64(len(d.held)) * blockBytes
		return &node{file: d}
	}
	was := maps.Clone(n.durable)
	for _, change := range c.extra[n] {
		change.apply(was)
	}
	dir := newDir()
	for _, name := range slices.Sorted(maps.Keys(was)) {
		dir.entries[name] = c.node(was[name])
	}
	dir.durable = maps.Clone(dir.entries)
	return dir
}

// afterCrash is what a power cut makes of a file.
func (d *memData) afterCrash(rng *rand.Rand) []byte {
	if rng == nil {
		return d.synced
	}
	content := make([]byte, d.sizeAfterCrash(rng))
	for from := 0; from < len(content); from += blockBytes {
		block := content[from:min(from+blockBytes, len(content))]
		before, now := make([]byte, len(block)), make([]byte, len(block))
		copy(before, d.synced[min(from, len(d.synced)):])
		copy(now, d.data[min(from, len(d.data)):])
		copy(block, before)
		cutAt := int(d.lowBytes) - from // where zeros may begin in this block
		if cutAt >= len(block) && bytes.Equal(before, now) {
			continue
		}
		switch rng.IntN(3) {
		case 0: // as on the medium
		case 1:
			copy(block, now)
		case 2:
			clear(block[min(max(0, cutAt), len(block)):])
		}
	}
	return content
}

// sizeAfterCrash is as often the length on the medium and the newest one as all in between, which are many for a long write.
func (d *memData) sizeAfterCrash(rng *rand.Rand) int64 {
	if len(d.sizes) == 0 {
		return int64(len(d.synced))
	}
	switch rng.IntN(3) {
	case 0:
		return int64(len(d.synced))
	case 1:
		return int64(len(d.data))
	}
	return d.sizes[rng.IntN(len(d.sizes))]
}
