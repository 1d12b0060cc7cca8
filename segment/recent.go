package segment

// maxRecentBytes bounds the frames of a lane that are kept for its drain after their commit. A drain that falls further behind
// reads the disk until it has come to the end.
const maxRecentBytes = 8 << 20

// recentBlock is a block that was just made as durable as the lane's Ack says, as the disk has it.
type recentBlock struct {
	seq    Seq
	off    int64 // where its log entry begins in the segment's file
	end    int64 // and ends
	codec  Codec
	before Totals
	frames []storedFrame
}

// recentBlocks spare the drain of a lane the way over the disk: the frames that it will read next, in order and up to the durable
// end, while it keeps up. Only what was committed comes in, so what is read from here would be read from the disk. The zero
// value keeps nothing.
type recentBlocks struct {
	on     bool // the drain has come to the end of the lane and has not been left behind since
	blocks []recentBlock
	bytes  int64
}

// start is called when the drain has read all there is.
func (r *recentBlocks) start() { r.on = true }

// stop forgets all: the disk has it.
func (r *recentBlocks) stop() { *r = recentBlocks{} }

// add takes a block, or stops if the drain is too far behind.
func (r *recentBlocks) add(b recentBlock) {
	if !r.on {
		return
	}
	size := recentBytes(b.frames)
	if r.bytes+size > maxRecentBytes {
		r.stop()
		return
	}
	r.blocks, r.bytes = append(r.blocks, b), r.bytes+size
}

// first is the first block at or behind an offset of a segment; what lies before is forgotten, since it was read from the disk.
func (r *recentBlocks) first(seq Seq, off int64) *recentBlock {
	for len(r.blocks) > 0 {
		b := &r.blocks[0]
		if b.seq > seq || b.seq == seq && b.off >= off {
			return b
		}
		r.pop()
	}
	return nil
}

func (r *recentBlocks) pop() {
	r.bytes -= recentBytes(r.blocks[0].frames)
	r.blocks[0] = recentBlock{} // the array lives on, and must not hold the frames
	if r.blocks = r.blocks[1:]; len(r.blocks) == 0 {
		r.blocks = nil
	}
}

func recentBytes(frames []storedFrame) (n int64) {
	for i := range frames {
		n += int64(len(frames[i].body)) + slotBytes
	}
	return n
}

// recent is the next frame of the segment that is being read, if it is still in memory. The scan goes on behind its block.
func (s *laneSource) recent() (item, bool) {
	if len(s.block.frames) == 0 && !s.takeRecent() {
		return item{}, false
	}
	b := &s.block
	it := item{kind: itemFrame, offset: b.off, end: b.end, frame: b.frames[0]}
	if s.blockStart {
		before := b.before
		it.before, s.blockStart = &before, false
	}
	if b.frames = b.frames[1:]; len(b.frames) == 0 {
		s.block = recentBlock{}
	}
	return it, true
}

// takeRecent makes the block at the scan's place the current one.
func (s *laneSource) takeRecent() bool {
	if s.stored != nil || s.sc.hdr == nil || !s.sc.between() {
		return false
	}
	s.l.mu.Lock()
	defer s.l.mu.Unlock()
	b := s.l.recent.first(s.seg.seq, s.sc.off)
	if b == nil || b.seq != s.seg.seq || b.off != s.sc.off {
		return false
	}
	s.block, s.blockStart = *b, true
	s.l.recent.pop()
	s.sc.pass(&s.block)
	return true
}
