package objstore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"
)

const (
	// ProbeAge is how old an object of a probe is, by the bucket's own time, before another probe removes it. No probe takes
	// so long.
	ProbeAge = time.Hour
	// probeSweepPages bounds how much of what older probes left is removed by one.
	probeSweepPages = 4
)

// ProbeResult is what a bucket does with preconditions. It belongs to one bucket URL.
type ProbeResult struct {
	// OK: compare-and-swap is real here. It is what a metric shows.
	OK bool `json:"ok"`
	// Found is what is wrong where OK is false, such as "an object is overwritten although it must be absent".
	Found string `json:"found,omitempty"`
	// Date is the bucket's own time of the probe. Zero where nothing could be written.
	Date time.Time `json:"date,omitzero"`
}

// Require is nil if OK, and else the ErrUnsupported of what needs compare-and-swap, such as "adoption".
func (r ProbeResult) Require(what string) error {
	if r.OK {
		return nil
	}
	return fmt.Errorf("%s needs compare-and-swap, which the bucket has not: %s: %w", what, r.Found, ErrUnsupported)
}

// Probe finds out whether preconditions are honoured: it creates an object of its own, creates it again, replaces it by the
// right and by a wrong version, removes it, and replaces what is not there. id is a new ULID. The object is removed again,
// also after a failure; what probes left that could not do so is removed when it is older than ProbeAge.
//
// An error means that nothing was found out: ErrUnknown that another try may help, ErrDenied that it will not. A store that
// refuses preconditions is no error but a result. A failed sweep is not told: nothing depends on it.
func Probe(ctx context.Context, b Bucket, id string) (ProbeResult, error) {
	key := ProbeKey{ID: id}.String()
	if _, err := ParseKey(key); err != nil {
		return ProbeResult{}, fmt.Errorf("probe bucket: %w: id %q is no ULID", ErrInvalid, id)
	}
	p := &probe{bucket: b, key: key}
	err := p.run(ctx)
	broken := errors.Is(err, errBroken)
	if deleteErr := p.remove(ctx); err == nil {
		err = deleteErr
	}
	if err != nil && !broken {
		return ProbeResult{}, fmt.Errorf("probe bucket: %w", err)
	}
	sweepProbes(ctx, b)
	p.result.OK = !broken
	return p.result, nil
}

// errBroken ends a run that has found something wrong.
var errBroken = errors.New("compare-and-swap is broken")

// probe is one run.
type probe struct {
	bucket Bucket
	key    string
	result ProbeResult
}

// run does the steps until something is wrong.
func (p *probe) run(ctx context.Context) error {
	created, err := p.mustWrite(ctx, "one", IfAbsent(), "an object that is not there is refused as if it were")
	if err != nil {
		return err
	}
	if err := p.mustRefuse(ctx, "two", IfAbsent(), "an object is overwritten although it must be absent"); err != nil {
		return err
	}
	replaced, err := p.mustWrite(ctx, "three", IfVersion(created), "an object is refused although its version is right")
	if err != nil {
		return err
	}
	if replaced == created {
		return p.broken("the version of an object stays the same when its content changes")
	}
	if err := p.mustRefuse(ctx, "four", IfVersion(created), "an object is overwritten although its version is another"); err != nil {
		return err
	}
	if err := p.mustRead(ctx, "three", replaced); err != nil {
		return err
	}
	if err := p.bucket.Delete(ctx, p.key); err != nil {
		return err
	}
	return p.mustRefuse(ctx, "five", IfVersion(replaced), "an object is created although it must have a version")
}

func (p *probe) broken(found string) error {
	p.result.Found = found
	return errBroken
}

func (p *probe) put(ctx context.Context, text string, c Condition) (Version, error) {
	put, err := p.bucket.Put(ctx, p.key, strings.NewReader(text), c)
	switch {
	case err == nil:
		p.result.Date = put.Date
	case errors.Is(err, ErrUnsupported), errors.Is(err, ErrInvalid): // nothing else about this write could be invalid
		return "", p.broken("preconditions are refused: " + err.Error())
	}
	return put.Version, err
}

// mustWrite is a put that has to be done.
func (p *probe) mustWrite(ctx context.Context, text string, c Condition, otherwise string) (Version, error) {
	version, err := p.put(ctx, text, c)
	if errors.Is(err, ErrPrecondition) {
		return "", p.broken(otherwise)
	}
	return version, err
}

// mustRefuse is a put that has to be ErrPrecondition.
func (p *probe) mustRefuse(ctx context.Context, text string, c Condition, otherwise string) error {
	_, err := p.put(ctx, text, c)
	switch {
	case errors.Is(err, ErrPrecondition):
		return nil
	case err == nil:
		return p.broken(otherwise)
	}
	return err
}

// mustRead reads what was written last.
func (p *probe) mustRead(ctx context.Context, text string, version Version) error {
	object, err := p.bucket.Get(ctx, p.key, GetOptions{})
	if errors.Is(err, ErrNotFound) {
		return p.broken("an object is not there when it is read after its write")
	}
	if err != nil {
		return err
	}
	got, err := io.ReadAll(io.LimitReader(object.Body, int64(len(text))+1))
	if err := errors.Join(err, object.Body.Close()); err != nil {
		return err
	}
	if string(got) != text || object.Version != version {
		return p.broken("an object is not what was written last when it is read")
	}
	return nil
}

// remove deletes the object, also when the caller's context has ended.
func (p *probe) remove(ctx context.Context) error {
	ctx, cancel := Cleanup(ctx)
	defer cancel()
	return p.bucket.Delete(ctx, p.key)
}

// sweepProbes removes what older probes left.
func sweepProbes(ctx context.Context, b Bucket) {
	o := ListOptions{Prefix: ProbePrefix}
	for range probeSweepPages {
		page, err := b.List(ctx, o)
		if err != nil {
			return
		}
		for _, info := range page.Objects {
			_, err := ParseKey(info.Key)
			if err != nil || page.Date.Sub(info.Modified) <= ProbeAge { // foreign, or perhaps in use
				continue
			}
			if err := b.Delete(ctx, info.Key); err != nil {
				return
			}
		}
		if page.Next == "" {
			return
		}
		o.Token = page.Next
	}
}
