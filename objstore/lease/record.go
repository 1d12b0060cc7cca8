package lease

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"ingest-agent/objstore"
)

// What a caller acts on. Errors of the bucket are wrapped beside, among them objstore.ErrUnknown: the change may be in
// force, now or later. Beside ErrFenced and ErrLost that is over: it has been in force, or it never will be, and the body
// that others have gone on from can tell which (Lease.Last, Register.Observe). Without ErrUnknown, nothing was done.
var (
	// ErrFenced: the register is another's, or nobody's. For good: the lease is over.
	ErrFenced = errors.New("fenced")
	// ErrLapsed: no beat was confirmed for half of StaleAfter, or an outcome was left unknown. The holder must not act until
	// a Renew has succeeded.
	ErrLapsed = errors.New("lease lapsed")
	// ErrLost: the register is not of the version that was judged any more. Observe it again.
	ErrLost = errors.New("lost to another change")
	// ErrFormat: what is in the bucket is no register, or one of a later version of the program.
	ErrFormat = errors.New("unknown register format")
	// ErrTooLarge: the body is over MaxBodyBytes. Nothing was written.
	ErrTooLarge = errors.New("register too large")
)

const (
	// format is the version of Record's text form.
	format = 1
	// MaxBodyBytes bounds a body, so that a commit stays one small request.
	MaxBodyBytes = 256 << 10
	// maxRecordBytes bounds what is read: a body, and generous names around it.
	maxRecordBytes = MaxBodyBytes + 8<<10
	// maxEpoch is the last that every reader of JSON keeps exact. Nobody gets there: a higher one is damage.
	maxEpoch = 1 << 53
)

// Epoch counts the take-overs of a register. The first is 1.
type Epoch uint64

// Record is the content of a register.
type Record struct {
	Format  int             `json:"format"`
	Epoch   Epoch           `json:"epoch"`
	Holder  string          `json:"holder"` // the process that holds it; "" for none
	Node    string          `json:"node"`   // where the last holder runs, for people
	WriteID string          `json:"write_id"`
	Beat    uint64          `json:"beat"` // the holder's writes of this epoch
	State   string          `json:"state"`
	Body    json.RawMessage `json:"body"`
}

// Edit sets State and Body of the record that it is given; what else it sets is ignored. It is called again, with what is
// there by then, where others amend the register meanwhile: so it sets values and never adds to them, and does nothing
// else. Its error ends the change, with nothing written by it.
type Edit func(*Record) error

// Body is the body of r as a T. An empty body is a zero T.
func Body[T any](r *Record) (T, error) {
	var v T
	if len(r.Body) == 0 {
		return v, nil
	}
	if err := json.Unmarshal(r.Body, &v); err != nil {
		return v, fmt.Errorf("decode register body: %w: %w", ErrFormat, err)
	}
	return v, nil
}

// SetBody makes v the body of r.
func (r *Record) SetBody(v any) error {
	body, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encode register body: %w", err)
	}
	r.Body = body
	return nil
}

func (r *Record) encode() ([]byte, error) {
	if len(r.Body) > MaxBodyBytes {
		return nil, fmt.Errorf("encode register: body of %d bytes is over %d: %w", len(r.Body), MaxBodyBytes, ErrTooLarge)
	}
	if err := r.check(); err != nil {
		return nil, fmt.Errorf("encode register: %w", err)
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false) // it would make a body longer
	if err := e.Encode(r); err != nil {
		return nil, fmt.Errorf("encode register: %w", err)
	}
	if b.Len() > maxRecordBytes {
		return nil, fmt.Errorf("encode register: %d bytes are over %d: %w", b.Len(), maxRecordBytes, ErrTooLarge)
	}
	return b.Bytes(), nil
}

func decode(from io.Reader) (Record, error) {
	data, err := io.ReadAll(io.LimitReader(from, maxRecordBytes+1))
	if err != nil {
		return Record{}, fmt.Errorf("read register: %w", err)
	}
	if len(data) > maxRecordBytes {
		return Record{}, fmt.Errorf("more than %d bytes: %w", maxRecordBytes, ErrFormat)
	}
	// The format first: of a later one nothing else is known.
	var head struct {
		Format int `json:"format"`
	}
	if err := json.Unmarshal(data, &head); err != nil {
		return Record{}, fmt.Errorf("%w: %w", ErrFormat, err)
	}
	if head.Format != format {
		return Record{}, fmt.Errorf("format %d, this program knows %d: %w", head.Format, format, ErrFormat)
	}
	var r Record
	if err := json.Unmarshal(data, &r); err != nil {
		return Record{}, fmt.Errorf("%w: %w", ErrFormat, err)
	}
	err = r.check()
	return r, err
}

func (r *Record) check() error {
	if r.Epoch == 0 || r.Epoch > maxEpoch || r.WriteID == "" {
		return fmt.Errorf("epoch %d, write id %q: %w", r.Epoch, r.WriteID, ErrFormat)
	}
	return nil
}

// Seen is what one look at a register found. A scan may set Date from a listing that shows the same Version.
type Seen struct {
	Record
	Version  objstore.Version // "": there is no register
	Modified time.Time        // by the bucket's clock; the zero time if not known
	Date     time.Time        // the bucket's time at the last look that told it
	Since    time.Time        // by this process's clock: when the beat of this epoch was first seen
}

// secondCut is how much older than it is a beat can seem, by two times of the bucket that are cut to whole seconds.
const secondCut = time.Second

// silent says whether no beat was written for staleAfter. To the bucket's time what others amend is a beat too.
func (s *Seen) silent(now time.Time, staleAfter time.Duration) bool {
	byBucket := !s.Modified.IsZero() && s.Date.Sub(s.Modified)-secondCut >= staleAfter
	return byBucket || now.Sub(s.Since) >= staleAfter
}

func (s *Seen) String() string {
	if s.Version == "" {
		return "there is none"
	}
	return fmt.Sprintf("epoch %d, holder %q on node %q, state %q", s.Epoch, s.Holder, s.Node, s.State)
}
