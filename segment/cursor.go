package segment

import (
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"time"

	"ingest-agent/segment/vfs"
)

// Cause says why records were lost, in the ledger and as a label of ingest_agent_records_lost_total.
type Cause string

// Causes of loss.
const (
	LostCorrupt        Cause = "corrupt"          // the bytes on disk were damaged
	LostDropped        Cause = "dropped"          // an operator dropped them
	LostDropOldest     Cause = "drop_oldest"      // wal.on_full: drop_oldest
	LostMaxAge         Cause = "max_age"          // older than the destination's max_age
	LostDeadLetterFull Cause = "dead_letter_full" // dead_letter.max_bytes
	LostMissing        Cause = "missing"          // an object that was in the bucket is not there any more
)

// Ledger says what became of the records of a lane. It is kept with the cursor in one atomic write, so that at every
// moment and after every restart what came in is what went out plus what is pending.
type Ledger struct {
	Delivered  Counts           `json:"delivered"`
	Rejected   Counts           `json:"rejected"` // by partial success
	DeadLetter Counts           `json:"dead_letter"`
	HandedOver Counts           `json:"handed_over"` // taken over by another owner
	Moved      Counts           `json:"moved"`       // to a parked lane
	Lost       map[Cause]Counts `json:"lost,omitempty"`
	// Resent counts records that were sent more than once. It is no term of the balance.
	Resent Counts `json:"resent"`
}

// Add adds o to l.
func (l *Ledger) Add(o *Ledger) {
	l.Delivered = l.Delivered.Add(o.Delivered)
	l.Rejected = l.Rejected.Add(o.Rejected)
	l.DeadLetter = l.DeadLetter.Add(o.DeadLetter)
	l.HandedOver = l.HandedOver.Add(o.HandedOver)
	l.Moved = l.Moved.Add(o.Moved)
	l.Resent = l.Resent.Add(o.Resent)
	for c, n := range o.Lost {
		l.lose(c, n)
	}
}

func (l *Ledger) lose(c Cause, n Counts) {
	if l.Lost == nil {
		l.Lost = map[Cause]Counts{}
	}
	l.Lost[c] = l.Lost[c].Add(n)
}

// Out is the sum of everything that left the lane.
func (l *Ledger) Out() Counts {
	sum := l.Delivered.Add(l.Rejected).Add(l.DeadLetter).Add(l.HandedOver).Add(l.Moved)
	for _, n := range l.Lost {
		sum = sum.Add(n)
	}
	return sum
}

func (l *Ledger) clone() Ledger {
	c := *l
	c.Lost = nil
	for cause, n := range l.Lost {
		c.lose(cause, n)
	}
	return c
}

// CursorState is what a lane's cursor file holds.
type CursorState struct {
	Lane       LaneID    `json:"lane"`
	Generation uint64    `json:"generation"`
	Saved      time.Time `json:"saved"`
	// Exported names the next frame that is still to be exported.
	Exported Position `json:"exported"`
	// Out are the totals of all frames before Exported; Ledger says what became of their records.
	Out    Totals `json:"out"`
	Ledger Ledger `json:"ledger"`
	// In are the totals of all frames that were durable when this was written.
	In Totals `json:"in"`
	// Accepted shares In out by tenant: at most maxTenants names, then OtherTenants.
	Accepted map[string]Accepted `json:"accepted,omitempty"`
	// NextSeq is not below any segment number ever used + 1.
	NextSeq Seq `json:"next_seq"`
	// Spilled: a segment before it that is not on the disk is in the bucket.
	Spilled Position `json:"spilled,omitzero"`
	// Open are the headers of segments that may be without a footer, in case the first bytes of one are damaged.
	Open []OpenSegment `json:"open,omitempty"`
	// Limits end segments whose file could not be cut after a failed write or sync.
	Limits map[Seq]int64 `json:"limits,omitempty"`
}

// Accepted is what a tenant brought into a lane.
type Accepted struct {
	Records Counts `json:"records"`
	Bytes   Counts `json:"bytes"` // of bodies
}

const (
	// maxTenants bounds the tenants that are counted by name.
	maxTenants = 100
	// OtherTenants is the name under which the others are counted.
	OtherTenants = "other"
)

// accept counts a frame for its tenant.
func (s *CursorState) accept(tenant string, records, bytes Counts) {
	if s.Accepted == nil {
		s.Accepted = map[string]Accepted{}
	}
	if _, known := s.Accepted[tenant]; !known && len(s.Accepted) >= maxTenants {
		tenant = OtherTenants
	}
	a := s.Accepted[tenant]
	s.Accepted[tenant] = Accepted{a.Records.Add(records), a.Bytes.Add(bytes)}
}

// acceptRest counts what no tenant is known for: the last moments before a crash, since the file was written.
func (s *CursorState) acceptRest(in Totals) {
	var known Accepted
	for _, a := range s.Accepted {
		known = Accepted{known.Records.Add(a.Records), known.Bytes.Add(a.Bytes)}
	}
	if rest := in.Records.Sub(known.Records); rest != (Counts{}) {
		s.accept(OtherTenants, rest, Counts{})
	}
}

// errCursorSize says that a state does not fit its slot.
var errCursorSize = errors.New("too large")

// shrinkOpen is how many second copies of headers a state keeps that would not fit otherwise.
const shrinkOpen = 16

// shrink drops what a state can do without.
func (s *CursorState) shrink() {
	var all Accepted
	for _, a := range s.Accepted {
		all = Accepted{all.Records.Add(a.Records), all.Bytes.Add(a.Bytes)}
	}
	s.Accepted = map[string]Accepted{OtherTenants: all}
	if n := len(s.Open); n > shrinkOpen {
		s.Open = s.Open[n-shrinkOpen:]
	}
}

// OpenSegment is the second copy of a segment's header.
type OpenSegment struct {
	Header
	Salt uint64 `json:"salt"`
}

// header returns the second copy of a segment's header, or nil.
func (s *CursorState) header(seq Seq) *Header {
	for i := range s.Open {
		if s.Open[i].Seq == seq {
			h := s.Open[i].Header
			h.salt = s.Open[i].Salt
			return &h
		}
	}
	return nil
}

const (
	cursorFile = "cursor"

	// cursorSlotBytes is the size of each of the two slots. They lie further apart than the 4 or 8 KiB that one bad page or
	// one torn write can hit.
	cursorSlotBytes  = 32 << 10
	cursorHeadBytes  = 28
	maxCursorPayload = cursorSlotBytes - cursorHeadBytes
)

var cursorMagic = [4]byte{0xF1, 'I', 'A', 'C'}

// cursorStore keeps a CursorState in a file of two slots that are written in turn, in place.
//
// Commit point: save returns nil. A write that is torn or damaged leaves the other slot, which is at most one save older:
// duplicates, never a skip. The file has its full size from the start, so that progress needs no new space on a full disk;
// where a full disk had none for a new lane's, the first save after there is space again takes it.
type cursorStore struct {
	fs   vfs.FS
	dir  string // the lane's
	file vfs.File
	full bool // the file has its full size
	slot int  // where the next save goes
	gens [2]uint64
	seqs [2]Seq // NextSeq in each slot
	gone [2]Seq // that of Spilled in each slot
}

// openCursor reads the state of a lane, or returns a fresh one where there is none. damage names what was not readable; a
// missing file of a lane that has segments is damage too, which the caller judges.
func openCursor(fs vfs.FS, laneDir string, lane LaneID) (c *cursorStore, st *CursorState, damage []error, err error) {
	name := filepath.Join(laneDir, cursorFile)
	f, err := fs.OpenFile(name, os.O_RDWR|os.O_CREATE, filePerm)
	if err != nil {
		return nil, nil, nil, fmt.Errorf("open cursor: %w", err)
	}
	c = &cursorStore{fs: fs, dir: laneDir, file: f}
	st, damage, err = c.load(lane)
	if err == nil {
		err = c.allocate()
	}
	if err != nil && !noSpace(err) {
		_ = f.Close()
		return nil, nil, nil, err
	}
	return c, st, damage, nil
}

// load reads both slots. st is nil where neither holds a state.
func (c *cursorStore) load(lane LaneID) (st *CursorState, damage []error, err error) {
	for slot := range 2 {
		s, err := readCursorSlot(c.file, slot, lane)
		switch {
		case err == nil && s == nil: // never written
		case err == nil:
			c.gens[slot], c.seqs[slot], c.gone[slot] = s.Generation, s.NextSeq, s.Spilled.Seq
			if st == nil || s.Generation > st.Generation {
				st, c.slot = s, 1-slot
			}
		case isDamaged(err):
			damage = append(damage, err)
			if st == nil {
				c.slot = slot
			}
		default:
			return nil, nil, err
		}
	}
	return st, damage, nil
}

// allocate gives the file its full size in written bytes, so that no later save needs space.
func (c *cursorStore) allocate() error {
	size, err := c.file.Size()
	if err != nil {
		return fmt.Errorf("size cursor: %w", err)
	}
	if size >= 2*cursorSlotBytes {
		c.full = true
		return nil
	}
	if _, err := c.file.WriteAt(make([]byte, 2*cursorSlotBytes-size), size); err != nil {
		return fmt.Errorf("allocate cursor: %w", err)
	}
	if err := c.file.Sync(); err != nil {
		return fmt.Errorf("sync cursor: %w", err)
	}
	if err := c.fs.SyncDir(c.dir); err != nil {
		return fmt.Errorf("sync cursor directory: %w", err)
	}
	c.full = true
	return nil
}

// ReadCursor reads the newest state in the cursor file of a lane without changing it. It returns nil where there is none.
func ReadCursor(fs vfs.FS, laneDir string, lane LaneID) (*CursorState, []error, error) {
	f, err := fs.OpenFile(filepath.Join(laneDir, cursorFile), os.O_RDONLY, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("open cursor: %w", err)
	}
	defer func() { _ = f.Close() }()
	c := cursorStore{file: f}
	return c.load(lane)
}

func readCursorSlot(f vfs.File, slot int, lane LaneID) (*CursorState, error) {
	size, err := f.Size()
	if err != nil {
		return nil, fmt.Errorf("size cursor: %w", err)
	}
	at := int64(slot) * cursorSlotBytes
	n := min(cursorSlotBytes, size-at)
	if n <= 0 {
		return nil, nil
	}
	b := make([]byte, n)
	if _, err := f.ReadAt(b, at); err != nil {
		return nil, fmt.Errorf("read cursor: %w", err)
	}
	if allZero(b) {
		return nil, nil
	}
	return parseCursorSlot(b, lane)
}

func parseCursorSlot(b []byte, lane LaneID) (*CursorState, error) {
	if len(b) < cursorHeadBytes || [4]byte(b[:4]) != cursorMagic {
		return nil, damaged("cursor without its magic")
	}
	n := order.Uint32(b[8:])
	if n > maxCursorPayload || int(n) > len(b)-cursorHeadBytes {
		return nil, damaged("cursor of %d bytes", n)
	}
	sum := crc32.Checksum(b[:24], castagnoli)
	if crc32.Update(sum, castagnoli, b[cursorHeadBytes:cursorHeadBytes+n]) != order.Uint32(b[24:]) {
		return nil, damaged("cursor checksum")
	}
	if b[4] != formatVersion || b[5]|b[6]|b[7] != 0 {
		return nil, fmt.Errorf("cursor version %d: %w", b[4], ErrVersion)
	}
	st := &CursorState{}
	if err := json.Unmarshal(b[cursorHeadBytes:cursorHeadBytes+n], st); err != nil {
		return nil, damaged("cursor: %v", err)
	}
	if st.Lane != lane {
		return nil, damaged("cursor of lane %s in lane %s", st.Lane, lane)
	}
	if st.Generation != order.Uint64(b[12:]) {
		return nil, damaged("cursor generation")
	}
	return st, nil
}

// encodeCursorSlot returns the bytes of a slot that holds st.
func encodeCursorSlot(st *CursorState) ([]byte, error) {
	payload, err := json.Marshal(st)
	if err != nil {
		return nil, fmt.Errorf("encode cursor: %w", err)
	}
	if len(payload) > maxCursorPayload {
		return nil, fmt.Errorf("encode cursor: %w: %d bytes, at most %d fit", errCursorSize, len(payload), maxCursorPayload)
	}
	dst := append(make([]byte, 0, cursorHeadBytes+len(payload)), cursorMagic[:]...)
	dst = append(dst, formatVersion, 0, 0, 0)
	dst = order.AppendUint32(dst, uint32(len(payload)))
	dst = order.AppendUint64(dst, st.Generation)
	dst = order.AppendUint32(dst, 0)
	sum := crc32.Checksum(dst, castagnoli)
	dst = order.AppendUint32(dst, crc32.Update(sum, castagnoli, payload))
	return append(dst, payload...), nil
}

// save makes st durable as the newest state.
func (c *cursorStore) save(st *CursorState) error {
	st.Generation = max(c.gens[0], c.gens[1]) + 1
	b, err := encodeCursorSlot(st)
	if errors.Is(err, errCursorSize) { // long names of many tenants: progress matters more than who brought what
		st.shrink()
		b, err = encodeCursorSlot(st)
	}
	if err != nil {
		return err
	}
	if !c.full {
		if err := c.allocate(); err != nil {
			return err
		}
	}
	if _, err := c.file.WriteAt(b, int64(c.slot)*cursorSlotBytes); err != nil {
		return fmt.Errorf("write cursor: %w", err)
	}
	if err := c.file.Sync(); err != nil {
		return fmt.Errorf("sync cursor: %w", err)
	}
	c.gens[c.slot], c.seqs[c.slot], c.gone[c.slot] = st.Generation, st.NextSeq, st.Spilled.Seq
	c.slot = 1 - c.slot
	return nil
}

// covers reports whether both slots say that seq is used, so that the segment may be removed even if one slot is lost.
func (c *cursorStore) covers(seq Seq) bool { return c.seqs[0] > seq && c.seqs[1] > seq }

// coversSpill reports whether both slots say that seq may be in the bucket.
func (c *cursorStore) coversSpill(seq Seq) bool { return c.gone[0] > seq && c.gone[1] > seq }

func (c *cursorStore) close() error { return c.file.Close() }

func allZero(b []byte) bool {
	for _, c := range b {
		if c != 0 {
			return false
		}
	}
	return true
}
