package lease

import (
	"errors"
	"fmt"
	"time"

	"ingest-agent/objstore"
)

// kind is what a change does to epoch and holder.
type kind uint8

const (
	take    kind = iota // next epoch, held by this process
	fence               // next epoch, held by nobody
	vacate              // held by nobody
	amend               // neither
	beat                // neither; by the holder
	commit              // the same, of a lease that is held
	release             // held by nobody; by the holder
)

// byHolder says whether the change goes on from what is read, as long as epoch and holder are the same. Others judged one
// version, and start again from Observe.
func (k kind) byHolder() bool { return k >= beat }

// change is a change on its way. It holds what is known, and its methods are the steps: they take what happened and return
// what to do next, call nothing but the edit and the source of ids, and ask no clock.
type change struct {
	kind   kind
	edit   Edit
	holder string // of this process
	node   string
	newID  func() string
	retry  backoff

	base    Seen // last read or written: what the next write replaces
	write   Record
	bytes   []byte
	first   time.Time // when write was first sent; zero: not yet
	done    time.Time // when the write that is in force was sent; zero: none
	doubt   doubt
	trouble error // the last that a call ended with
	lost    error // how the register is not ours any more, or not of the version that was judged; nil: it may be
}

// doubt is why a write of the change may be in force, or may still come into force, without our knowing.
type doubt uint8

const (
	sure       doubt = iota // none is
	refused                 // it was refused, which may be the echo of its success
	unanswered              // its outcome was unknown
)

// effect is what to do next: after delay, a put of change.bytes on change.base, or a get; or to end with err.
type effect struct {
	do    action
	delay time.Duration
	err   error
}

type action uint8

const (
	end action = iota
	put
	get
)

// start composes the write on top of base. It is start again where base has moved.
func (c *change) start() effect {
	next := c.base.Record
	next.Format, next.WriteID = format, c.newID()
	if c.kind != amend { // others must not make a dead holder look alive
		next.Beat++
	}
	switch {
	case c.kind == take:
		next.Epoch, next.Holder, next.Node, next.Beat = next.Epoch+1, c.holder, c.node, 0
	case c.kind == fence || c.base.Version == "":
		next.Epoch, next.Holder, next.Beat = next.Epoch+1, "", 0
	case c.kind == vacate || c.kind == release:
		next.Holder = ""
	}
	if c.edit != nil {
		draft := next
		if err := c.edit(&draft); err != nil {
			return c.failed(fmt.Errorf("edit record: %w", err))
		}
		next.State, next.Body = draft.State, draft.Body
	}
	encoded, err := next.encode()
	if err != nil {
		return c.failed(err)
	}
	c.write, c.bytes, c.first = next, encoded, time.Time{}
	return effect{do: put}
}

// condition is that of the put.
func (c *change) condition() objstore.Condition {
	if c.base.Version == "" {
		return objstore.IfAbsent()
	}
	return objstore.IfVersion(c.base.Version)
}

// sending is the step before a put.
func (c *change) sending(now time.Time) {
	if c.first.IsZero() {
		c.first = now
	}
}

// putEnded is the step after a put that was sent at sent and ended at now.
func (c *change) putEnded(result objstore.PutResult, err error, sent, now time.Time) effect {
	c.trouble = err
	switch {
	case err == nil:
		// An earlier try of the same write has not landed, or this one would have been refused.
		return c.inForce(Seen{Record: c.write, Version: result.Version, Date: result.Date, Since: now}, sent)
	case errors.Is(err, objstore.ErrClockSkew): // nothing was done, and a read would fail too
		return effect{do: put, delay: c.retry.next()}
	case errors.Is(err, objstore.ErrPrecondition):
		c.doubt = max(c.doubt, refused)
		return effect{do: get}
	case objstore.Outcome(err) == objstore.Outcome(objstore.ErrUnknown): // also an error of no kind
		c.doubt = unanswered
		return effect{do: get}
	}
	return c.failed(err) // nothing was done by this try
}

// getEnded is the step after a read-back.
func (c *change) getEnded(seen Seen, err error) effect {
	if err != nil {
		c.trouble = err
	}
	switch {
	case errors.Is(err, objstore.ErrUnknown):
		return effect{do: get, delay: c.retry.next()}
	case err != nil && !errors.Is(err, ErrFormat):
		return c.failed(err)
	case err == nil && seen.Version != "" && seen.WriteID == c.write.WriteID:
		// Which of the tries it was is not known, so the first counts.
		return c.inForce(seen, c.first)
	case err == nil && seen.Version == c.base.Version:
		return effect{do: put, delay: c.retry.next()}
	case err == nil && c.kind.byHolder() && seen.Epoch == c.base.Epoch && seen.Holder == c.holder:
		c.base = seen
		return c.start()
	}
	if err == nil {
		c.base, err = seen, fmt.Errorf("now %s", &seen)
	}
	if c.lost = err; c.doubt == unanswered { // it may have been in force before that
		err = fmt.Errorf("%w: %w", objstore.ErrUnknown, err)
	}
	return effect{err: err}
}

// inForce ends the change with success.
func (c *change) inForce(seen Seen, sent time.Time) effect {
	c.base, c.done, c.doubt, c.trouble = seen, sent, sure, nil
	return effect{}
}

// failed ends the change as it stands.
func (c *change) failed(err error) effect {
	if c.doubt != sure {
		err = fmt.Errorf("%w: %w", objstore.ErrUnknown, err)
	}
	return effect{err: err}
}

// givenUp is failed, for a cause that is not the trouble's.
func (c *change) givenUp(cause error) effect {
	if c.trouble != nil {
		cause = fmt.Errorf("%w: %w", cause, c.trouble)
	}
	return c.failed(cause)
}

// backoff doubles from first to most.
type backoff struct{ first, most, last time.Duration }

func (b *backoff) next() time.Duration {
	b.last = min(b.most, max(b.first, 2*b.last))
	return b.last
}
