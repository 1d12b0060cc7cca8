// Package memory is the bucket in memory: the reference that the others are held against, and the ground of simulations.
//
// It guarantees what objstore.Bucket says, and is as harsh as the contract allows: times are cut to whole seconds as on S3,
// a version never comes again, also after a Delete, and no key may be the directory of another. Commit point: the one
// step under its lock; nothing outlives the process.
//
// Its clock is the process's, shifted by SetSkew. It works inside a testing/synctest bubble, where that clock is the
// bubble's.
package memory

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"ingest-agent/objstore"
)

// pageEntries is the most that a page has, as on S3.
const pageEntries = 1000

// Bucket is an objstore.Bucket in memory.
type Bucket struct {
	mu      sync.Mutex // held for one step, never while a body is read
	objects map[string]object
	below   map[string]int // directory with its slash -> objects in it, at any depth
	writes  uint64
	skew    time.Duration
}

var _ objstore.Bucket = (*Bucket)(nil)

type object struct {
	body     []byte // never changed
	version  objstore.Version
	modified time.Time
}

// New returns an empty bucket.
func New() *Bucket {
	return &Bucket{objects: map[string]object{}, below: map[string]int{}}
}

// SetSkew sets how far the bucket's clock is ahead of the process's.
func (b *Bucket) SetSkew(skew time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.skew = skew
}

// now is the bucket's time. Whole seconds, cut off. b.mu is held.
func (b *Bucket) now() time.Time { return time.Now().Add(b.skew).UTC().Truncate(time.Second) }

// Get reads an object or a part of it.
func (b *Bucket) Get(ctx context.Context, key string, o objstore.GetOptions) (*objstore.Object, error) {
	obj, err := b.get(ctx, key, o)
	if err != nil {
		return nil, fmt.Errorf("get object %s: %w", key, err)
	}
	return obj, nil
}

func (b *Bucket) get(ctx context.Context, key string, o objstore.GetOptions) (*objstore.Object, error) {
	if err := check(ctx, key); err != nil {
		return nil, err
	}
	b.mu.Lock()
	obj, found := b.objects[key]
	date := b.now()
	b.mu.Unlock()
	switch {
	case !found:
		return nil, objstore.ErrNotFound
	case o.Unless != "" && o.Unless == obj.version:
		return nil, objstore.ErrNotModified
	}
	from := o.Offset
	if from < 0 {
		from = max(0, int64(len(obj.body))+o.Offset)
	}
	if o.Length < 0 || from > 0 && from >= int64(len(obj.body)) {
		return nil, fmt.Errorf("%d bytes at %d of %d: %w", o.Length, o.Offset, len(obj.body), objstore.ErrInvalid)
	}
	body := obj.body[from:]
	if o.Length > 0 {
		body = body[:min(o.Length, int64(len(body)))]
	}
	return &objstore.Object{Info: obj.info(key), Body: io.NopCloser(bytes.NewReader(body)), Date: date}, nil
}

func (o object) info(key string) objstore.Info {
	return objstore.Info{Key: key, SizeBytes: int64(len(o.body)), Version: o.version, Modified: o.modified}
}

// Put writes an object.
func (b *Bucket) Put(ctx context.Context, key string, body io.ReadSeeker, c objstore.Condition) (objstore.PutResult, error) {
	result, err := b.put(ctx, key, body, c)
	if err != nil {
		return objstore.PutResult{}, fmt.Errorf("put object %s: %w", key, err)
	}
	return result, nil
}

func (b *Bucket) put(ctx context.Context, key string, body io.ReadSeeker, c objstore.Condition) (objstore.PutResult, error) {
	if err := check(ctx, key); err != nil {
		return objstore.PutResult{}, err
	}
	if _, err := body.Seek(0, io.SeekStart); err != nil {
		return objstore.PutResult{}, fmt.Errorf("seek body: %w: %w", objstore.ErrInvalid, err)
	}
	data, err := io.ReadAll(body)
	if err != nil {
		return objstore.PutResult{}, fmt.Errorf("read body: %w: %w", objstore.ErrUnknown, err)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	old, found := b.objects[key]
	if c.Absent() && found || c.Version() != "" && old.version != c.Version() {
		return objstore.PutResult{}, objstore.ErrPrecondition
	}
	if b.below[key+"/"] > 0 {
		return objstore.PutResult{}, fmt.Errorf("it is the directory of another: %w", objstore.ErrInvalid)
	}
	for dir := range directories(key) {
		if _, found := b.objects[strings.TrimSuffix(dir, "/")]; found {
			return objstore.PutResult{}, fmt.Errorf("%s is an object: %w", dir, objstore.ErrInvalid)
		}
	}
	if !found {
		b.count(key, 1)
	}
	b.writes++
	now := b.now()
	obj := object{body: data, version: objstore.Version(fmt.Sprintf("v%d", b.writes)), modified: now}
	b.objects[key] = obj
	return objstore.PutResult{Version: obj.version, Date: now}, nil
}

// Delete removes an object.
func (b *Bucket) Delete(ctx context.Context, key string) error {
	if err := check(ctx, key); err != nil {
		return fmt.Errorf("delete object %s: %w", key, err)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if _, found := b.objects[key]; found {
		delete(b.objects, key)
		b.count(key, -1)
	}
	return nil
}

// Close has nothing to give back.
func (b *Bucket) Close() error { return nil }

// count adds to the directories of key. b.mu is held.
func (b *Bucket) count(key string, n int) {
	for dir := range directories(key) {
		if b.below[dir] += n; b.below[dir] == 0 {
			delete(b.below, dir)
		}
	}
}

// directories are those that key is in, each with its slash.
func directories(key string) func(yield func(string) bool) {
	return func(yield func(string) bool) {
		for i := range len(key) {
			if key[i] == '/' && !yield(key[:i+1]) {
				return
			}
		}
	}
}

// List returns one page of the objects there are.
func (b *Bucket) List(ctx context.Context, o objstore.ListOptions) (*objstore.Page, error) {
	if o.Delimiter != "" && o.Delimiter != "/" || o.Limit < 0 {
		return nil, fmt.Errorf("list objects by delimiter %q, %d a page: %w", o.Delimiter, o.Limit, objstore.ErrInvalid)
	}
	if err := ended(ctx); err != nil {
		return nil, fmt.Errorf("list objects: %w", err)
	}
	limit := pageEntries
	if o.Limit > 0 {
		limit = min(limit, o.Limit)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	page := &objstore.Page{Date: b.now()}
	last := o.Token // the entry that was listed last: a key, or a prefix, which ends in a slash as no key does
	for _, key := range b.behind(o) {
		entry := key
		if o.Delimiter != "" {
			if name, _, rolled := strings.Cut(key[len(o.Prefix):], o.Delimiter); rolled {
				entry = key[:len(o.Prefix)+len(name)+1]
			}
		}
		if entry <= last || strings.HasSuffix(last, "/") && strings.HasPrefix(key, last) {
			continue
		}
		if len(page.Objects)+len(page.Prefixes) == limit {
			page.Next = last
			break
		}
		if last = entry; entry == key {
			page.Objects = append(page.Objects, b.objects[key].info(key))
		} else {
			page.Prefixes = append(page.Prefixes, entry)
		}
	}
	return page, nil
}

// behind is the keys that o asks for, in order, without regard to pages. b.mu is held.
func (b *Bucket) behind(o objstore.ListOptions) []string {
	var keys []string
	for key := range b.objects {
		if strings.HasPrefix(key, o.Prefix) && key > o.After {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	return keys
}

func check(ctx context.Context, key string) error {
	if err := objstore.CheckKey(key); err != nil {
		return err
	}
	return ended(ctx)
}

// ended returns the error of a context that has ended, as one of a Bucket.
func ended(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("%w: %w", objstore.ErrUnknown, err)
	}
	return nil
}
