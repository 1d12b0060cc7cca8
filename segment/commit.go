package segment

import (
	"fmt"
	"slices"
	"time"

	"go.uber.org/zap"
)

// commitLoop is the committer: it takes everything that waits, appends it as one block, syncs once, answers all. While it
// syncs the next batch gathers, so that no timer is needed for throughput.
func (l *Lane) commitLoop() {
	defer l.done.Done()
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		batch, stop := l.takeBatch()
		switch {
		case len(batch) > 0:
			l.commit(batch)
			continue
		case stop:
			l.rotate()
			l.mu.Lock()
			l.committerDone = true
			l.mu.Unlock()
			wake(l.keepWake)
			return
		}
		left := l.untilSeal()
		if left <= 0 {
			l.rotate()
			l.enc = nil // a lane that is idle, or whose segments end by age, needs little memory
			continue
		}
		timer.Reset(left)
		select {
		case <-l.commitWake:
		case <-timer.C:
		}
	}
}

// takeBatch returns the frames of the next commit, and whether there will be no more.
func (l *Lane) takeBatch() (batch []*pending, stop bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var size int64
	n := 0
	for n < len(l.waiting) && n < maxBatchFrames && (n == 0 || size+l.waiting[n].reserved <= maxBatchBytes) {
		size += l.waiting[n].reserved
		n++
	}
	batch = l.waiting[:n:n]
	if l.waiting = l.waiting[n:]; len(l.waiting) == 0 {
		l.waiting = nil
	}
	l.waitingBytes -= size
	return batch, l.stopping && n == 0
}

// untilSeal is the time until the active segment is due.
func (l *Lane) untilSeal() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.active == nil || l.active.frames == 0 {
		return time.Hour // only a wake-up counts
	}
	if l.endActive || l.cur.Out == l.in && l.o.Space.pressed() {
		return 0 // nothing in it is needed and others wait for its space, or its sync failed
	}
	return l.settings.SegmentAge - time.Since(l.since)
}

// commit stores a batch and answers it. A failed write or sync ends the segment; the batch then gets one more try in the
// next one.
func (l *Lane) commit(batch []*pending) {
	frames := l.frames[:0]
	for _, p := range batch {
		frames = append(frames, p.frame)
	}
	l.frames = frames
	defer clear(frames) // hold no request's body longer than its commit
	var err error
	for range 2 {
		if err = l.settleTrouble(); err != nil {
			break
		}
		if err = l.writable(); err != nil {
			break
		}
		end := l.active.written
		if err = l.appendSynced(frames); err == nil {
			l.publish(batch, frames, l.active.written-end)
			return
		}
		l.errs.Error("write", "segment ended by a failed write", zap.Stringer("segment", l.active.hdr.Seq), zap.Error(err))
		l.endFailed(end)
	}
	l.refuse(batch, err)
}

// appendSynced appends one block and makes it as durable as promised.
func (l *Lane) appendSynced(frames []storedFrame) error {
	l.mu.Lock()
	before, ack := l.in, l.settings.Ack
	l.mu.Unlock()
	if err := l.active.append(l.enc, frames, before); err != nil {
		return err
	}
	if ack == AckOS {
		return nil
	}
	return l.syncActive()
}

func (l *Lane) syncActive() error {
	start := time.Now()
	err := l.active.sync()
	if l.o.Observe.Synced != nil {
		l.o.Observe.Synced(time.Since(start))
	}
	return err
}

// publish makes a stored batch visible and answers it.
func (l *Lane) publish(batch []*pending, frames []storedFrame, written int64) {
	var added Totals
	for i := range frames {
		f := &frames[i]
		added = added.Add(Totals{1, f.signal.Of(uint64(f.records)), uint64(len(f.body))})
	}
	w := l.active
	l.mu.Lock()
	if w.frames == uint32(len(frames)) {
		l.since = time.Now()
	}
	if l.recent.on {
		l.recent.add(recentBlock{
			seq: w.hdr.Seq, off: w.written - written, end: w.written, codec: l.enc.codec, before: w.before, frames: slices.Clone(frames),
		})
	}
	l.in = l.in.Add(added)
	for i := range frames {
		f := &frames[i]
		l.cur.accept(f.tenant, f.signal.Of(uint64(f.records)), f.signal.Of(uint64(len(f.body))))
	}
	l.changed = true
	l.tail = Position{w.hdr.Seq, w.last + 1}
	seg := l.segs[len(l.segs)-1]
	seg.end, seg.last = w.written, w.last
	l.chargeBatch(seg, batch, frames, written)
	l.trouble = nil
	l.signalMoved()
	wake(l.keepWake)
	full := w.written >= l.settings.SegmentSizeBytes || w.last >= maxEntries
	l.mu.Unlock()
	for i, p := range batch {
		p.at = Position{w.hdr.Seq, frames[i].entry}
		p.done <- nil
	}
	if l.o.Observe.Batch != nil {
		l.o.Observe.Batch(len(frames))
	}
	if full {
		l.rotate()
	}
}

// chargeBatch turns reservations into what the block takes on disk. A compressed block is shared out by size before
// compression.
func (l *Lane) chargeBatch(seg *segInfo, batch []*pending, frames []storedFrame, written int64) {
	var raw, left int64
	for i := range frames {
		raw += int64(frames[i].size())
	}
	left = written
	var tenant string // of the frames that are settled next, in one go where a batch is of one tenant
	var reserved, charged int64
	for i, p := range batch {
		n := written * int64(frames[i].size()) / raw
		if i == len(batch)-1 {
			n = left
		}
		left -= n
		if frames[i].tenant != tenant {
			l.settle(seg, tenant, reserved, charged)
			tenant, reserved, charged = frames[i].tenant, 0, 0
		}
		reserved += p.reserved
		charged += n
	}
	l.settle(seg, tenant, reserved, charged)
}

// settle turns a tenant's reservation into what it takes of a segment.
func (l *Lane) settle(seg *segInfo, tenant string, reserved, charged int64) {
	if reserved == 0 {
		return
	}
	if seg.size[tenant] == 0 {
		room := tenantRoomBytes(tenant)
		l.active.room += room
		l.o.Space.addRoom(room)
	}
	seg.charge(tenant, charged)
	l.o.Space.settle(tenant, reserved, charged)
}

func (l *Lane) refuse(batch []*pending, err error) {
	r := refusal(err)
	l.mu.Lock()
	l.trouble = err
	l.mu.Unlock()
	for _, p := range batch {
		l.o.Space.settle(p.frame.tenant, p.reserved, 0)
		p.done <- r
	}
	wake(l.keepWake) // it tries again by itself, so that readiness comes back without a request
}

// writable makes sure that there is an active segment: the spare one, or else a new one.
func (l *Lane) writable() error {
	if l.active != nil {
		return nil
	}
	l.mu.Lock()
	codec := l.settings.Codec
	l.mu.Unlock()
	if l.enc == nil || l.enc.codec != codec {
		enc, err := newBlockEncoder(codec)
		if err != nil {
			return err
		}
		l.enc = enc
	}
	w, err := l.takeSpare()
	if err != nil {
		return err
	}
	l.active = w
	l.mu.Lock()
	l.segs = append(l.segs, &segInfo{seq: w.hdr.Seq, end: w.written, open: true, counted: true, size: map[string]int64{"": w.written}})
	l.tail = Position{w.hdr.Seq, 1}
	l.activeFile = w.file
	l.mu.Unlock()
	wake(l.keepWake) // prepare the next
	return nil
}

// takeSpare returns the prepared segment, or makes one. It waits for a preparation that is under way: that segment has the
// lower number and must be used first.
func (l *Lane) takeSpare() (*writer, error) {
	l.createMu.Lock()
	defer l.createMu.Unlock()
	l.mu.Lock()
	w := l.spare
	l.spare = nil
	l.mu.Unlock()
	if w != nil {
		return w, nil
	}
	return l.create()
}

// create makes a segment of the next number; l.createMu is held. Before it is answered from, the cursor file has the second copy of its header.
func (l *Lane) create() (*writer, error) {
	if err := l.o.Space.hold(segmentRoomBytes, l.o.ID.Parked > 0); err != nil {
		return nil, fmt.Errorf("create segment: %w", err)
	}
	l.mu.Lock()
	seq := l.cur.NextSeq
	l.cur.NextSeq++
	l.mu.Unlock()
	hdr := Header{Birth: Birth{l.o.Owner, l.o.ID, seq}, Created: time.Now().UTC(), salt: newSalt()}
	w, err := createSegment(l.o.FS, l.dir, hdr, l.trace(seq))
	if err != nil {
		l.o.Space.addRoom(-segmentRoomBytes)
		return nil, fmt.Errorf("create segment %s: %w", seq, err)
	}
	l.o.Space.charge("", w.written)
	l.o.Space.addRoom(-w.written)
	w.room = segmentRoomBytes - w.written
	l.mu.Lock()
	l.cur.Open = append(l.cur.Open, OpenSegment{hdr, hdr.salt})
	if n := len(l.cur.Open); n > maxOpen {
		l.cur.Open = l.cur.Open[n-maxOpen:]
	}
	l.changed = true
	l.mu.Unlock()
	if err := l.save(); err != nil {
		l.discard(w)
		return nil, err
	}
	return w, nil
}

// discard removes a segment from which nobody was answered.
func (l *Lane) discard(w *writer) {
	size := w.written
	w.drop()
	l.giveBackRoom(w)
	l.mu.Lock()
	l.forget(w.hdr.Seq)
	l.mu.Unlock()
	if err := l.removeSegment(w.hdr.Seq); err != nil {
		l.logger().Warn("unused segment not removed", zap.Stringer("segment", w.hdr.Seq), zap.Error(err))
		return
	}
	l.o.Space.charge("", -size)
}

// giveBackRoom is called when a segment has its footer or will never get one.
func (l *Lane) giveBackRoom(w *writer) {
	l.o.Space.addRoom(-w.room)
	w.room = 0
}

// forget drops what the cursor file holds about one segment. l.mu is held.
func (l *Lane) forget(seq Seq) {
	l.cur.Open = slices.DeleteFunc(slices.Clone(l.cur.Open), func(o OpenSegment) bool { return o.Seq == seq })
	delete(l.cur.Limits, seq)
	l.changed = true
}

// rotate ends the active segment and leaves its sealing to the keeper.
func (l *Lane) rotate() {
	w := l.active
	if w == nil {
		return
	}
	l.active = nil
	l.mu.Lock()
	defer l.mu.Unlock()
	seg := l.segs[len(l.segs)-1]
	l.end(seg)
	l.sealing = append(l.sealing, sealJob{w, seg})
	wake(l.keepWake)
}

// end closes a segment to appends and gives its end the one spelling. l.mu is held.
func (l *Lane) end(seg *segInfo) {
	in := l.in
	l.activeFile, l.endActive = nil, false
	seg.open, seg.totals = false, &in
	at := Position{seg.seq, seg.last + 1}
	l.tail = at.NextSegment()
	if l.cur.Exported == at || l.cur.Out == l.in {
		l.cur.Exported = l.tail
		l.changed = true
	}
	l.signalMoved()
}

// endFailed ends the active segment at offset, its last answered frame: nothing behind it is answered, read or shipped from
// it. Where the file cannot be cut, the limit must be in the cursor file before the lane answers again.
func (l *Lane) endFailed(offset int64) {
	w := l.active
	l.active = nil
	l.mu.Lock()
	seg := l.segs[len(l.segs)-1]
	seg.cutting = true // the keeper leaves it alone meanwhile
	l.end(seg)
	l.mu.Unlock()
	// Nobody was answered from one without frames; on a full disk each refusal would leave one more.
	empty := l.cutAt(w, offset) && seg.last == 0
	w.drop()
	l.giveBackRoom(w)
	l.mu.Lock()
	seg.cutting = false
	if empty {
		l.segs = slices.DeleteFunc(l.segs, func(s *segInfo) bool { return s == seg })
	}
	l.mu.Unlock()
	if empty {
		l.discard(w)
	}
}

// cutAt cuts the file of an ended segment, or else notes the limit.
func (l *Lane) cutAt(w *writer, offset int64) (cut bool) {
	err := w.cut(offset)
	if err == nil {
		return true
	}
	l.errs.Error("cut", "segment not cut; noting its limit beside the cursor", zap.Stringer("segment", w.hdr.Seq), zap.Int64("offset", offset), zap.Error(err))
	l.mu.Lock()
	if l.cur.Limits == nil {
		l.cur.Limits = map[Seq]int64{}
	}
	l.cur.Limits[w.hdr.Seq] = offset
	l.changed, l.limitUnsaved = true, true
	l.mu.Unlock()
	return false
}

// settleTrouble saves a limit that is not saved yet. Until it is, the lane refuses.
func (l *Lane) settleTrouble() error {
	l.mu.Lock()
	unsaved := l.limitUnsaved
	l.mu.Unlock()
	if !unsaved {
		return nil
	}
	return l.save()
}
