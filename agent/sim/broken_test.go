package sim

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"time"

	"ingest-agent/objstore"
	"ingest-agent/objstore/lease"
	"ingest-agent/objstore/objtest"
	"ingest-agent/recovery/owner"
	"ingest-agent/segment"
)

// variants are the protocol, broken in ways that are easily written, each by a layer between the real code and the bucket, or
// by what a start does. A checker that does not see them is blind. Seeds are within how many it must be seen.
func variants() []variant {
	return []variant{
		{name: "no precondition", seeds: 4, bucket: func(b registers) objstore.Bucket { return noPrecondition{b} }},
		{name: "unknown taken for success", seeds: 8, bucket: func(b registers) objstore.Bucket { return unknownIsSuccess{b} }},
		{name: "delete before commit", seeds: 4, bucket: func(b registers) objstore.Bucket { return deleteFirst{b} }},
		{name: "marker removed on partial failure", seeds: 8, bucket: func(b registers) objstore.Bucket { return removedMarker{b} }},
		{name: "start without the hand-over", seeds: 8, noNote: true},
		{name: "id kept over a cloned directory", seeds: 8, keepID: true},
		{name: "segment numbers reused", seeds: 8, reuse: true},
		{name: "taken reset by a second adopter", seeds: 40, bucket: func(b registers) objstore.Bucket { return takenReset{b} }},
		{name: "raised after sign-off", seeds: 40, bucket: func(b registers) objstore.Bucket { return raisedLate{b} }},
		{name: "sign-off after acting", seeds: 200, bucket: func(b registers) objstore.Bucket { return signsOffLate{b} }},
		{name: "late objects not swept", seeds: 20, bucket: func(b registers) objstore.Bucket { return seesNoLate{b} }},
		{name: "register deleted when idle", seeds: 4, bucket: func(b registers) objstore.Bucket { return deletedIdle{b} }},
	}
}

// registers is the bucket of a process, as the broken layers use it.
type registers struct {
	objstore.Bucket
	w    *world
	p    *objtest.Process
	life context.Context // of the process
}

// register decodes what is to be put, if it is an owner's register.
func (b registers) register(key string, body io.ReadSeeker) (id string, r *lease.Record, o *owner.Body) {
	k, err := objstore.ParseKey(key)
	owned, is := k.(objstore.OwnerKey)
	if err != nil || !is {
		return "", nil, nil
	}
	r = &lease.Record{}
	if _, err := body.Seek(0, io.SeekStart); err != nil {
		return "", nil, nil
	}
	if err := json.NewDecoder(body).Decode(r); err != nil {
		return "", nil, nil
	}
	if o, err = owner.Read(r); err != nil {
		return "", nil, nil
	}
	return owned.Owner, r, o
}

// put puts a register that was changed.
func (b registers) put(ctx context.Context, key string, r *lease.Record, o *owner.Body, c objstore.Condition) (objstore.PutResult, error) {
	if err := r.SetBody(o); err != nil {
		return objstore.PutResult{}, err
	}
	text, err := json.Marshal(r)
	if err != nil {
		return objstore.PutResult{}, err
	}
	return b.Bucket.Put(ctx, key, bytes.NewReader(text), c)
}

type noPrecondition struct{ registers }

func (b noPrecondition) Put(ctx context.Context, key string, body io.ReadSeeker, _ objstore.Condition) (objstore.PutResult, error) {
	return b.Bucket.Put(ctx, key, body, objstore.Condition{})
}

type unknownIsSuccess struct{ registers }

func (b unknownIsSuccess) Put(ctx context.Context, key string, body io.ReadSeeker, c objstore.Condition) (objstore.PutResult, error) {
	result, err := b.Bucket.Put(ctx, key, body, c)
	if errors.Is(err, objstore.ErrUnknown) && ctx.Err() == nil {
		return objstore.PutResult{Version: "hoped-for"}, nil
	}
	return result, err
}

// deleteFirst deletes what a commit is about to cover.
type deleteFirst struct{ registers }

func (b deleteFirst) Put(ctx context.Context, key string, body io.ReadSeeker, c objstore.Condition) (objstore.PutResult, error) {
	if id, r, o := b.register(key, body); r != nil {
		page, err := b.List(ctx, objstore.ListOptions{Prefix: objstore.OwnerPrefix(id)})
		if err != nil {
			return objstore.PutResult{}, err
		}
		for _, info := range page.Objects {
			parsed, err := objstore.ParseKey(info.Key)
			k, is := parsed.(objstore.SegmentKey)
			if err != nil || !is {
				continue
			}
			lane, err := segment.ParseLaneID(k.Lane)
			last := segment.Position{Seq: segment.Seq(k.Seq), Entry: segment.Entry(k.Last)}
			if l := o.Lanes[lane]; err == nil && l != nil && last.Before(l.Exported) {
				if err := b.Delete(ctx, info.Key); err != nil {
					return objstore.PutResult{}, err
				}
			}
		}
	}
	return b.Bucket.Put(ctx, key, body, c)
}

// removedMarker removes the register of an owner that was not drained to the end.
type removedMarker struct{ registers }

func (b removedMarker) Put(ctx context.Context, key string, body io.ReadSeeker, c objstore.Condition) (objstore.PutResult, error) {
	result, err := b.Bucket.Put(ctx, key, body, c)
	if _, r, _ := b.register(key, body); err == nil && r != nil && r.State == owner.Adopted && r.Holder == "" && r.Beat > 0 {
		err = b.Delete(ctx, key)
	}
	return result, err
}

// takenReset begins each adoption with what the owner has named.
type takenReset struct{ registers }

func (b takenReset) Put(ctx context.Context, key string, body io.ReadSeeker, c objstore.Condition) (objstore.PutResult, error) {
	_, r, o := b.register(key, body)
	if r == nil || r.State != owner.Adopted || r.Beat > 0 || r.Holder == "" {
		return b.Bucket.Put(ctx, key, body, c)
	}
	for _, l := range o.Lanes {
		at := l.Shipped
		l.Taken = &at
	}
	return b.put(ctx, key, r, o, c)
}

// raisedLate hides the sign-off from who reads, and keeps it in what is written.
type raisedLate struct{ registers }

func (b raisedLate) Get(ctx context.Context, key string, o objstore.GetOptions) (*objstore.Object, error) {
	obj, err := b.Bucket.Get(ctx, key, o)
	if err != nil || !strings.HasPrefix(key, objstore.OwnersPrefix) {
		return obj, err
	}
	text, err := io.ReadAll(obj.Body)
	if err != nil {
		return nil, err
	}
	obj.Body = io.NopCloser(bytes.NewReader(bytes.ReplaceAll(text, []byte(`,"signed_off":true`), nil)))
	return obj, nil
}

func (b raisedLate) Put(ctx context.Context, key string, body io.ReadSeeker, c objstore.Condition) (objstore.PutResult, error) {
	id, r, o := b.register(key, body)
	if r == nil || !b.w.judge.SignedOff(id) {
		return b.Bucket.Put(ctx, key, body, c)
	}
	o.SignedOff = true
	return b.put(ctx, key, r, o, c)
}

// signsOffLate lets a process act on what it has read of the register that another has adopted, and only then sign off: here
// so late that it does not happen.
type signsOffLate struct{ registers }

func (b signsOffLate) Put(ctx context.Context, key string, body io.ReadSeeker, c objstore.Condition) (objstore.PutResult, error) {
	id, r, o := b.register(key, body)
	if r == nil || !o.SignedOff || r.Beat == 0 && r.Holder == "" || b.w.judge.SignedOff(id) {
		return b.Bucket.Put(ctx, key, body, c)
	}
	return objstore.PutResult{Version: "later"}, nil
}

// seesNoLate does not see the objects of owners that owe nothing.
type seesNoLate struct{ registers }

func (b seesNoLate) List(ctx context.Context, o objstore.ListOptions) (*objstore.Page, error) {
	id, err := objstore.ParseOwnerPrefix(o.Prefix)
	state := b.w.judge.State(id)
	if o.Delimiter != "" || err == nil && (state == owner.Idle || state == owner.Drained) {
		return &objstore.Page{Date: time.Now()}, nil
	}
	return b.Bucket.List(ctx, o)
}

type deletedIdle struct{ registers }

func (b deletedIdle) Put(ctx context.Context, key string, body io.ReadSeeker, c objstore.Condition) (objstore.PutResult, error) {
	result, err := b.Bucket.Put(ctx, key, body, c)
	if _, r, _ := b.register(key, body); err == nil && r != nil && r.State == owner.Idle {
		err = b.Delete(ctx, key)
	}
	return result, err
}
