package objtest

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"testing"

	"ingest-agent/objstore"
)

// pages bounds how many pages a listing may have: one that does not end is a defect, not a hang.
const pages = 1000

// list is the whole listing, page after page; between is called between two.
func (s suite) list(t *testing.T, o objstore.ListOptions, between func()) (objects []objstore.Info, prefixes []string) {
	t.Helper()
	for range pages {
		page, err := s.bucket.List(callContext(t), o)
		if err != nil {
			t.Fatalf("list %+v: %v", o, err)
		}
		if n := len(page.Objects) + len(page.Prefixes); o.Limit > 0 && n > o.Limit {
			t.Fatalf("list %+v: got %d entries", o, n)
		}
		objects = append(objects, page.Objects...)
		prefixes = append(prefixes, page.Prefixes...)
		if page.Next == "" {
			return objects, prefixes
		}
		o.Token = page.Next
		between()
	}
	t.Fatalf("list %+v: no end after %d pages", o, pages)
	return nil, nil
}

// wantListed fails unless a listing is exactly this, in the order of bytes.
func (s suite) wantListed(t *testing.T, o objstore.ListOptions, keys, prefixes []string) {
	t.Helper()
	objects, gotPrefixes := s.list(t, o, func() {})
	got := make([]string, len(objects))
	for i := range objects {
		got[i] = objects[i].Key
	}
	slices.Sort(keys)
	if !slices.Equal(got, keys) || !slices.Equal(gotPrefixes, prefixes) {
		t.Errorf("list %+v:\n got %.2000q and prefixes %q\nwant %.2000q and prefixes %q", o, got, gotPrefixes, keys, prefixes)
	}
}

func (s suite) wantKeys(t *testing.T, o objstore.ListOptions, keys ...string) {
	t.Helper()
	s.wantListed(t, o, slices.Clone(keys), nil)
}

func testList(t *testing.T, s suite) {
	s.wantKeys(t, objstore.ListOptions{})
	s.wantKeys(t, objstore.ListOptions{Prefix: "nothing/"})
	// By bytes, / is behind - and . and before 0: a walk by directories has another order.
	keys := []string{"a-b/k", "a.json", "a/b-c", "a/b.json", "a/b/x", "a/b/y/z", "a/b0", "a0", "b", "B", "ä"}
	put := map[string]objstore.PutResult{}
	for _, key := range keys {
		put[key] = s.put(t, key, "body of "+key, always())
	}
	s.wantKeys(t, objstore.ListOptions{}, keys...)
	objects, _ := s.list(t, objstore.ListOptions{}, func() {})
	for _, o := range objects {
		if o.Version != put[o.Key].Version || o.SizeBytes != int64(len("body of ")+len(o.Key)) || o.Modified.IsZero() {
			t.Errorf("listed: %+v, put told version %q", o, put[o.Key].Version)
		}
	}
	s.wantKeys(t, objstore.ListOptions{Prefix: "a/"}, "a/b-c", "a/b.json", "a/b/x", "a/b/y/z", "a/b0")
	s.wantKeys(t, objstore.ListOptions{Prefix: "a/b"}, "a/b-c", "a/b.json", "a/b/x", "a/b/y/z", "a/b0")
	s.wantKeys(t, objstore.ListOptions{Prefix: "a/b/"}, "a/b/x", "a/b/y/z")
	s.wantKeys(t, objstore.ListOptions{Prefix: "a/b/y/z"}, "a/b/y/z")
	s.wantKeys(t, objstore.ListOptions{Prefix: "a/b/y/z/"})
	s.wantKeys(t, objstore.ListOptions{Prefix: "b/"})
	for _, after := range append(slices.Clone(keys), "a", "a-", "a/", "a/b", "a/b/", "a/b/y", "a/b/zz", "a/a", "zz", "", "0") {
		behind := slices.DeleteFunc(slices.Clone(keys), func(key string) bool { return key <= after })
		s.wantKeys(t, objstore.ListOptions{After: after}, behind...)
		below := slices.DeleteFunc(behind, func(key string) bool { return len(key) < 4 || key[:4] != "a/b/" })
		s.wantKeys(t, objstore.ListOptions{After: after, Prefix: "a/b/"}, below...)
	}
	s.put(t, "a/b/x", "again", always())
	s.delete(t, "a0")
	s.wantKeys(t, objstore.ListOptions{Prefix: "a"}, "a-b/k", "a.json", "a/b-c", "a/b.json", "a/b/x", "a/b/y/z", "a/b0")
}

func testListPages(t *testing.T, s suite) {
	var keys []string
	for i := range 23 {
		keys = append(keys, fmt.Sprintf("p/%d/%d-%d", i%3, i, i*i), fmt.Sprintf("q%d", i))
	}
	for _, key := range keys {
		s.put(t, key, "", always())
	}
	for _, limit := range []int{1, 2, 7, len(keys) - 1, len(keys), len(keys) + 1, 5000} {
		s.wantKeys(t, objstore.ListOptions{Limit: limit}, keys...)
	}
	below := slices.DeleteFunc(slices.Clone(keys), func(key string) bool { return key[0] != 'p' || key <= "p/1/4" })
	s.wantKeys(t, objstore.ListOptions{Limit: 2, Prefix: "p/", After: "p/1/4"}, below...)
}

func testListDelimiter(t *testing.T, s suite) {
	for _, key := range []string{"l/a", "l/b/1", "l/b/2", "l/b-/1", "l/b.json", "l/b0", "l/c/d/e", "l/c/d/f", "l/z", "m"} {
		s.put(t, key, "", always())
	}
	for _, limit := range []int{0, 1, 2, 3} {
		list := func(prefix string) objstore.ListOptions {
			return objstore.ListOptions{Prefix: prefix, Delimiter: "/", Limit: limit}
		}
		s.wantListed(t, list(""), []string{"m"}, []string{"l/"})
		s.wantListed(t, list("l"), nil, []string{"l/"})
		s.wantListed(t, list("l/"), []string{"l/a", "l/b.json", "l/b0", "l/z"}, []string{"l/b-/", "l/b/", "l/c/"})
		s.wantListed(t, list("l/b"), []string{"l/b.json", "l/b0"}, []string{"l/b-/", "l/b/"})
		s.wantListed(t, list("l/b/"), []string{"l/b/1", "l/b/2"}, nil)
		s.wantListed(t, list("l/c/"), nil, []string{"l/c/d/"})
		s.wantListed(t, list("l/c/d"), nil, []string{"l/c/d/"})
		s.wantListed(t, list("n"), nil, nil)
		after := list("l/")
		after.After = "l/b0"
		s.wantListed(t, after, []string{"l/z"}, []string{"l/c/"})
	}
}

func testListBad(t *testing.T, s suite) {
	for _, o := range []objstore.ListOptions{{Delimiter: "-"}, {Delimiter: "//"}, {Limit: -1}} {
		_, err := s.bucket.List(callContext(t), o)
		wantKind(t, fmt.Sprintf("list %+v", o), err, objstore.ErrInvalid)
	}
	s.put(t, "k", "", always())
	for _, prefix := range []string{"/", "../", "./", "k/../", "//", "a/.."} { // no key begins so
		s.wantKeys(t, objstore.ListOptions{Prefix: prefix})
	}
}

// testListWhileDeleting deletes what was listed and some of what was not, between two pages: what stays is listed once.
func testListWhileDeleting(t *testing.T, s suite) {
	const count, limit = 30, 4
	stays := map[string]bool{}
	for i := range count {
		key := fmt.Sprintf("d/%d/%02d", i/10, i)
		s.put(t, key, strconv.Itoa(i), always())
		stays[key] = true
	}
	next := 0
	objects, _ := s.list(t, objstore.ListOptions{Limit: limit}, func() {
		for _, i := range []int{next, next + 1, next + 3, count - 1 - next} {
			key := fmt.Sprintf("d/%d/%02d", i/10, i)
			s.delete(t, key)
			delete(stays, key)
		}
		next += limit
	})
	listed := map[string]bool{}
	for _, o := range objects {
		if listed[o.Key] {
			t.Errorf("%s is listed twice", o.Key)
		}
		listed[o.Key] = true
	}
	for _, key := range slices.Sorted(maps.Keys(stays)) {
		if !listed[key] {
			t.Errorf("%s is not listed", key)
		}
	}
}
