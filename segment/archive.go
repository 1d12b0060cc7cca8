package segment

// Archived says that the exported frames before a position are archived, or are not to be. It removes the segments before it
// that may go (LaneOptions.KeepExported), so that their space is back when it returns. It never goes back.
func (l *Lane) Archived(to Position) {
	l.mu.Lock()
	if !l.archived.Before(to) {
		l.mu.Unlock()
		return
	}
	l.archived = to
	l.mu.Unlock()
	if !l.removeExported() {
		wake(l.keepWake) // it tries again
	}
}

// Taken is the part of MaxBytes that is in use, and at least 1 while the volume has no more room for our writes. Unlike
// Pressure it does not know of refusals, which may have other reasons: a tenant's share.
func (s *Space) Taken() float64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := float64(s.used+s.room) / float64(max(s.o.MaxBytes-s.o.MoveReserveBytes, 1))
	if s.o.Free != nil {
		s.look()
		if s.free-s.room-smallRequestBytes < s.o.MinFreeBytes {
			t = max(t, 1)
		}
	}
	return t
}

// Spare says whether the volume has room for others' writes, beside what ours may still take by MaxBytes and leave by
// MinFreeBytes.
func (s *Space) Spare() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.o.Free == nil {
		return true
	}
	s.look()
	return s.free-s.o.MinFreeBytes > s.o.MaxBytes-s.used
}
