// Package objtest is the contract of objstore.Bucket as tests, run on every implementation, and the gate that injects faults
// and schedules.
package objtest

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"ingest-agent/objstore"
)

// Limits is what a store needs to be spared of. The zero value asks for everything.
type Limits struct {
	// LargeBytes is the size of the largest body. 0: 20 MiB, so that it does not fit in one part of an upload.
	LargeBytes int64
}

const (
	largeBytes = 20 << 20
	// callTimeout ends a call that hangs. Far above what any takes.
	callTimeout = time.Minute
)

// suite is the contract on one empty bucket.
type suite struct {
	bucket objstore.Bucket
	limits Limits
}

// Run tests that what open returns keeps the contract of objstore.Bucket. open returns an empty bucket of its own at each
// call, and closes it by t.Cleanup.
func Run(t *testing.T, open func(t *testing.T) objstore.Bucket, limits ...Limits) {
	t.Helper()
	var l Limits
	if len(limits) > 0 {
		l = limits[0]
	}
	if l.LargeBytes == 0 {
		l.LargeBytes = largeBytes
	}
	for _, test := range []struct {
		name string
		run  func(t *testing.T, s suite)
	}{
		{"PutGet", testPutGet},
		{"PutReadsFromStart", testPutReadsFromStart},
		{"Large", testLarge},
		{"Range", testRange},
		{"RangeBeyond", testRangeBeyond},
		{"Unless", testUnless},
		{"IfAbsent", testIfAbsent},
		{"IfVersion", testIfVersion},
		{"Delete", testDelete},
		{"DirectoryEnds", testDirectoryEnds},
		{"OddKeys", testOddKeys},
		{"BadKeys", testBadKeys},
		{"Cancelled", testCancelled},
		{"Date", testDate},
		{"List", testList},
		{"ListPages", testListPages},
		{"ListDelimiter", testListDelimiter},
		{"ListBad", testListBad},
		{"ListWhileDeleting", testListWhileDeleting},
		{"ListWhileReplacing", testListWhileReplacing},
		{"RaceCreate", testRaceCreate},
		{"RaceCount", testRaceCount},
		{"RaceDelete", testRaceDelete},
		{"RaceDirectory", testRaceDirectory},
		{"RaceWhole", testRaceWhole},
	} {
		t.Run(test.name, func(t *testing.T) { test.run(t, suite{open(t), l}) })
	}
}

// always is the condition that holds always.
func always() objstore.Condition { return objstore.Condition{} }

func callContext(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	t.Cleanup(cancel)
	return ctx
}

func (s suite) put(t *testing.T, key, body string, c objstore.Condition) objstore.PutResult {
	t.Helper()
	result, err := s.bucket.Put(callContext(t), key, strings.NewReader(body), c)
	if err != nil {
		t.Fatalf("put %q: %v", key, err)
	}
	if result.Version == "" {
		t.Fatalf("put %q: no version", key)
	}
	return result
}

func (s suite) get(t *testing.T, key string, o objstore.GetOptions) (objstore.Info, string) {
	t.Helper()
	obj, err := s.bucket.Get(callContext(t), key, o)
	if err != nil {
		t.Fatalf("get %q %+v: %v", key, o, err)
	}
	body, err := io.ReadAll(obj.Body)
	if err := errors.Join(err, obj.Body.Close()); err != nil {
		t.Fatalf("read %q %+v: %v", key, o, err)
	}
	return obj.Info, string(body)
}

func (s suite) wantBody(t *testing.T, key, want string) objstore.Info {
	t.Helper()
	info, body := s.get(t, key, objstore.GetOptions{})
	if body != want || info.SizeBytes != int64(len(want)) || info.Key != key {
		t.Fatalf("get %q: got %.100q of %d bytes and key %q, want %.100q of %d", key, body, info.SizeBytes, info.Key, want, len(want))
	}
	return info
}

func (s suite) delete(t *testing.T, key string) {
	t.Helper()
	if err := s.bucket.Delete(callContext(t), key); err != nil {
		t.Fatalf("delete %q: %v", key, err)
	}
}

// wantKind fails unless err is of the kind, and of no other.
func wantKind(t *testing.T, what string, err, kind error) {
	t.Helper()
	for _, k := range []error{
		objstore.ErrNotFound, objstore.ErrPrecondition, objstore.ErrNotModified, objstore.ErrUnknown, objstore.ErrDenied,
		objstore.ErrUnsupported, objstore.ErrInvalid,
	} {
		if is, want := errors.Is(err, k), errors.Is(k, kind); is != want {
			t.Errorf("%s: got error %v, want one of the kind %q only", what, err, kind)
			return
		}
	}
}

// getError is the error of a Get of the whole object, or of a part of it.
func (s suite) getError(t *testing.T, key string, o objstore.GetOptions) error {
	t.Helper()
	obj, err := s.bucket.Get(callContext(t), key, o)
	if err == nil {
		err = obj.Body.Close()
		t.Errorf("get %q %+v: got an object, want an error", key, o)
	}
	return err
}

func (s suite) putError(t *testing.T, key, body string, c objstore.Condition) error {
	t.Helper()
	_, err := s.bucket.Put(callContext(t), key, strings.NewReader(body), c)
	return err
}

func testPutGet(t *testing.T, s suite) {
	wantKind(t, "get of nothing", s.getError(t, "a/b", objstore.GetOptions{}), objstore.ErrNotFound)
	first := s.put(t, "a/b", "one", always())
	if info := s.wantBody(t, "a/b", "one"); info.Version != first.Version {
		t.Errorf("get: got version %q, put told %q", info.Version, first.Version)
	}
	second := s.put(t, "a/b", "other, longer", always())
	if second.Version == first.Version {
		t.Errorf("other content, same version %q", second.Version)
	}
	if info := s.wantBody(t, "a/b", "other, longer"); info.Version != second.Version {
		t.Errorf("get: got version %q, put told %q", info.Version, second.Version)
	}
	s.put(t, "a/b", "", always())
	s.wantBody(t, "a/b", "")
	s.put(t, "a/c", "beside", always())
	s.wantBody(t, "a/b", "")
	wantKind(t, "get of a directory", s.getError(t, "a", objstore.GetOptions{}), objstore.ErrNotFound)
	wantKind(t, "get below an object", s.getError(t, "a/c/d", objstore.GetOptions{}), objstore.ErrNotFound)
}

func testPutReadsFromStart(t *testing.T, s suite) {
	body := strings.NewReader("whole")
	if _, err := body.Seek(3, io.SeekStart); err != nil {
		t.Fatal(err)
	}
	if _, err := s.bucket.Put(callContext(t), "k", body, always()); err != nil {
		t.Fatal(err)
	}
	s.wantBody(t, "k", "whole")
}

// testLarge writes and reads a body of which no two KiB are alike, conditionally too: that may go another way.
func testLarge(t *testing.T, s suite) {
	const stampBytes = 1 << 10
	body := make([]byte, s.limits.LargeBytes)
	for at := 0; at+stampBytes <= len(body); at += stampBytes {
		binary.BigEndian.PutUint32(body[at+at/stampBytes%512:], uint32(at))
	}
	ctx := callContext(t)
	got := make([]byte, len(body)+1) // no io.ReadAll: under the race detector its copies take seconds
	check := func() objstore.Version {
		obj, err := s.bucket.Get(ctx, "large", objstore.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		n, err := io.ReadFull(obj.Body, got)
		if closeErr := obj.Body.Close(); !errors.Is(err, io.ErrUnexpectedEOF) || closeErr != nil {
			t.Fatalf("read %d bytes: %v, %v", n, err, closeErr)
		}
		if !bytes.Equal(got[:n], body) || obj.SizeBytes != int64(len(body)) {
			t.Fatalf("got %d bytes, announced %d, want the %d that were put", n, obj.SizeBytes, len(body))
		}
		return obj.Version
	}
	created, err := s.bucket.Put(ctx, "large", bytes.NewReader(body), objstore.IfAbsent())
	if err != nil {
		t.Fatal(err)
	}
	if v := check(); v != created.Version {
		t.Errorf("got version %q, put told %q", v, created.Version)
	}
	_, err = s.bucket.Put(ctx, "large", bytes.NewReader(body[1:]), objstore.IfAbsent())
	wantKind(t, "second create", err, objstore.ErrPrecondition)
	body[0] ^= 1
	if _, err = s.bucket.Put(ctx, "large", bytes.NewReader(body), objstore.IfVersion(created.Version)); err != nil {
		t.Fatal(err)
	}
	check()
	_, err = s.bucket.Put(ctx, "large", bytes.NewReader(body[1:]), objstore.IfVersion(created.Version))
	wantKind(t, "replace of a version that is not known", s.putError(t, "d/k", "x", objstore.IfVersion("")), objstore.ErrPrecondition)
	wantKind(t, "replace of a version that is gone", err, objstore.ErrPrecondition)
	check()
	const tail = 1000
	if _, end := s.get(t, "large", objstore.GetOptions{Offset: -tail}); end != string(body[len(body)-tail:]) {
		t.Errorf("the last %d bytes are not those that were put", tail)
	}
}

func testRange(t *testing.T, s suite) {
	const body = "0123456789"
	s.put(t, "k", body, always())
	for _, test := range []struct {
		offset, length int64
		want           string
	}{
		{0, 0, body},
		{0, 1, "0"},
		{0, 10, body},
		{0, 11, body},
		{3, 0, "3456789"},
		{3, 4, "3456"},
		{9, 0, "9"},
		{9, 1 << 40, "9"},
		{-1, 0, "9"},
		{-4, 0, "6789"},
		{-4, 2, "67"},
		{-4, 9, "6789"},
		{-10, 0, body},
		{-11, 0, body},
		{-1 << 40, 0, body},
		{-1 << 40, 3, "012"},
	} {
		o := objstore.GetOptions{Offset: test.offset, Length: test.length}
		info, got := s.get(t, "k", o)
		if got != test.want || info.SizeBytes != int64(len(body)) {
			t.Errorf("get %+v: got %q of %d bytes, want %q of %d", o, got, info.SizeBytes, test.want, len(body))
		}
	}
}

func testRangeBeyond(t *testing.T, s suite) {
	s.put(t, "k", "0123456789", always())
	for _, o := range []objstore.GetOptions{{Offset: 10}, {Offset: 10, Length: 1}, {Offset: 1 << 40}, {Length: -1}, {Offset: 2, Length: -1}} {
		wantKind(t, "range beyond the object", s.getError(t, "k", o), objstore.ErrInvalid)
	}
	wantKind(t, "range of nothing", s.getError(t, "absent", objstore.GetOptions{Offset: 1}), objstore.ErrNotFound)
}

func testUnless(t *testing.T, s suite) {
	first := s.put(t, "k", "one", always())
	wantKind(t, "same version", s.getError(t, "k", objstore.GetOptions{Unless: first.Version}), objstore.ErrNotModified)
	second := s.put(t, "k", "two", always())
	info, body := s.get(t, "k", objstore.GetOptions{Unless: first.Version})
	if body != "two" || info.Version != second.Version {
		t.Errorf("got %q of version %q, want two of %q", body, info.Version, second.Version)
	}
	s.delete(t, "k")
	wantKind(t, "deleted", s.getError(t, "k", objstore.GetOptions{Unless: second.Version}), objstore.ErrNotFound)
}

func testIfAbsent(t *testing.T, s suite) {
	created := s.put(t, "d/k", "one", objstore.IfAbsent())
	wantKind(t, "create again", s.putError(t, "d/k", "two", objstore.IfAbsent()), objstore.ErrPrecondition)
	wantKind(t, "create again, same content", s.putError(t, "d/k", "one", objstore.IfAbsent()), objstore.ErrPrecondition)
	if info := s.wantBody(t, "d/k", "one"); info.Version != created.Version {
		t.Errorf("a refused create changed the version from %q to %q", created.Version, info.Version)
	}
	s.delete(t, "d/k")
	s.put(t, "d/k", "three", objstore.IfAbsent())
	s.wantBody(t, "d/k", "three")
}

func testIfVersion(t *testing.T, s suite) {
	wantKind(t, "replace of nothing", s.putError(t, "d/k", "x", objstore.IfVersion("never-there")), objstore.ErrPrecondition)
	wantKind(t, "and nothing is there", s.getError(t, "d/k", objstore.GetOptions{}), objstore.ErrNotFound)
	first := s.put(t, "d/k", "one", always())
	second := s.put(t, "d/k", "two", objstore.IfVersion(first.Version))
	wantKind(t, "replace of a version that is gone", s.putError(t, "d/k", "x", objstore.IfVersion(first.Version)), objstore.ErrPrecondition)
	s.wantBody(t, "d/k", "two")
	s.delete(t, "d/k")
	wantKind(t, "replace of a deleted object", s.putError(t, "d/k", "x", objstore.IfVersion(second.Version)), objstore.ErrPrecondition)
	wantKind(t, "and nothing is there", s.getError(t, "d/k", objstore.GetOptions{}), objstore.ErrNotFound)
	s.put(t, "d/k", "three", objstore.IfAbsent())
	wantKind(t, "replace of the one before", s.putError(t, "d/k", "x", objstore.IfVersion(second.Version)), objstore.ErrPrecondition)
	s.wantBody(t, "d/k", "three")
}

func testDelete(t *testing.T, s suite) {
	s.delete(t, "never/there")
	s.put(t, "d/a", "a", always())
	s.put(t, "d/b", "b", always())
	s.delete(t, "d/a")
	s.delete(t, "d/a")
	wantKind(t, "deleted", s.getError(t, "d/a", objstore.GetOptions{}), objstore.ErrNotFound)
	s.delete(t, "d") // no object: the directory of one
	s.wantBody(t, "d/b", "b")
	s.wantKeys(t, objstore.ListOptions{}, "d/b")
}

// testDirectoryEnds deletes the last object below a key, which may then be an object itself.
func testDirectoryEnds(t *testing.T, s suite) {
	s.put(t, "a/b/c/d", "deep", always())
	s.delete(t, "a/b/c/d")
	s.put(t, "a/b", "flat", always())
	s.wantBody(t, "a/b", "flat")
	s.delete(t, "a/b")
	s.put(t, "a/b/c", "deeper", always())
	s.wantBody(t, "a/b/c", "deeper")
}
