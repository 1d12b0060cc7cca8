package objtest

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"ingest-agent/objstore"
)

func testOddKeys(t *testing.T, s suite) {
	keys := []string{
		"odd/with space", "odd/ lead", "odd/trail ", "odd/per%20cent", "odd/per cent", "odd/plus+plus", "odd/a&b=c?d#e", "odd/ümläut-日本",
		"odd/\u00e9", "odd/e\u0301", "odd/quote'\"`", "odd/back\\slash", "odd/<tag>", "odd/star*", "odd/colon:", "odd/.hidden", "odd/..two",
		"odd/dots...", "odd/-dash", "odd/~", "odd/" + strings.Repeat("n", objstore.MaxElementBytes), "x",
	}
	for _, key := range keys {
		s.put(t, key, "body of "+key, objstore.IfAbsent())
	}
	for _, key := range keys {
		s.wantBody(t, key, "body of "+key)
	}
	s.wantKeys(t, objstore.ListOptions{}, keys...)
	s.wantKeys(t, objstore.ListOptions{Prefix: "odd/per "}, "odd/per cent")
	s.wantKeys(t, objstore.ListOptions{Prefix: "odd/plus+"}, "odd/plus+plus")
	for _, key := range keys {
		s.wantKeys(t, objstore.ListOptions{Prefix: key}, key)
		s.delete(t, key)
	}
	s.wantKeys(t, objstore.ListOptions{})
}

func testBadKeys(t *testing.T, s suite) {
	long := strings.Repeat("n", objstore.MaxElementBytes)
	for _, key := range []string{
		"", "/", "/a", "a/", "a//b", ".", "..", "a/.", "./a", "a/../b", "../a", "a\x00b", "a\nb", "a\x7f", "\xff", "a/\xc3",
		long + "n", "a/" + long + "n/b", strings.Repeat(long+"/", objstore.MaxKeyBytes/len(long)+1) + "z",
	} {
		what := "key " + key[:min(len(key), 20)]
		wantKind(t, "get, "+what, s.getError(t, key, objstore.GetOptions{}), objstore.ErrInvalid)
		wantKind(t, "put, "+what, s.putError(t, key, "x", always()), objstore.ErrInvalid)
		wantKind(t, "delete, "+what, s.bucket.Delete(callContext(t), key), objstore.ErrInvalid)
	}
	s.wantKeys(t, objstore.ListOptions{})
}

func testCancelled(t *testing.T, s suite) {
	s.put(t, "k", "one", always())
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, getErr := s.bucket.Get(ctx, "k", objstore.GetOptions{})
	_, putErr := s.bucket.Put(ctx, "k", strings.NewReader("two"), always())
	_, listErr := s.bucket.List(ctx, objstore.ListOptions{})
	for what, err := range map[string]error{"get": getErr, "put": putErr, "delete": s.bucket.Delete(ctx, "k"), "list": listErr} {
		if wantKind(t, what, err, objstore.ErrUnknown); !errors.Is(err, context.Canceled) {
			t.Errorf("%s: got error %v, want one that is context.Canceled too", what, err)
		}
	}
	s.wantBody(t, "k", "one")
}

// testDate takes the bucket's time from every answer: it does not run back, and Modified is one of its times. Stores have
// whole seconds, and may round them.
func testDate(t *testing.T, s suite) {
	const slack = 2 * time.Second
	var last time.Time
	tick := func(what string, now time.Time) {
		t.Helper()
		if now.IsZero() || now.Before(last.Add(-slack)) {
			t.Errorf("%s: the bucket's time is %s after it was %s", what, now, last)
		}
		last = now
	}
	put := s.put(t, "k", "one", always())
	tick("put", put.Date)
	obj, err := s.bucket.Get(callContext(t), "k", objstore.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := obj.Body.Close(); err != nil {
		t.Error(err)
	}
	tick("get", obj.Date)
	page, err := s.bucket.List(callContext(t), objstore.ListOptions{})
	if err != nil || len(page.Objects) != 1 {
		t.Fatalf("list: got %+v, %v, want one object", page, err)
	}
	tick("list", page.Date)
	for _, modified := range []time.Time{obj.Modified, page.Objects[0].Modified} {
		if age := put.Date.Sub(modified).Abs(); age > slack {
			t.Errorf("modified at %s, by a put that was answered at %s", modified, put.Date)
		}
	}
}
