package objstore_test

import (
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/oklog/ulid/v2"

	"ingest-agent/objstore"
	"ingest-agent/objstore/memory"
)

// odd is a bucket in which one thing is wrong: change alters a put, failAt is the number of the put that fails.
type odd struct {
	objstore.Bucket

	change func(n int, c objstore.Condition) objstore.Condition
	same   bool // the version of each put is that of the first
	reread func() (string, error)
	first  objstore.Version
	failAt int
	failBy error
	puts   int
}

func (o *odd) Put(ctx context.Context, key string, body io.ReadSeeker, c objstore.Condition) (objstore.PutResult, error) {
	o.puts++
	if o.change != nil {
		c = o.change(o.puts, c)
	}
	result, err := o.Bucket.Put(ctx, key, body, c)
	if o.puts == o.failAt { // as the worst case has it: it was done
		return objstore.PutResult{}, o.failBy
	}
	if o.first == "" {
		o.first = result.Version
	}
	if o.same && err == nil {
		result.Version = o.first
	}
	return result, err
}

func (o *odd) Get(ctx context.Context, key string, opts objstore.GetOptions) (*objstore.Object, error) {
	object, err := o.Bucket.Get(ctx, key, opts)
	if err != nil || o.reread == nil {
		return object, err
	}
	text, err := o.reread()
	if err != nil {
		return nil, errors.Join(err, object.Body.Close())
	}
	object.Body = io.NopCloser(strings.NewReader(text))
	return object, nil
}

func probeKeys(t *testing.T, b objstore.Bucket) (keys []string) {
	t.Helper()
	page, err := b.List(context.Background(), objstore.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, info := range page.Objects {
		keys = append(keys, info.Key)
	}
	return keys
}

// TestProbeFinds lets each step of a probe go wrong.
func TestProbeFinds(t *testing.T) {
	none := objstore.Condition{}
	at := func(step int) func(int, objstore.Condition) objstore.Condition {
		return func(n int, c objstore.Condition) objstore.Condition {
			if n == step {
				return none
			}
			return c
		}
	}
	for _, test := range []struct {
		name  string
		b     odd
		found string // "": the error is failBy, or none
	}{
		{"right", odd{}, ""},
		{"create again is taken", odd{change: at(2)}, "although it must be absent"},
		{"wrong version is taken", odd{change: at(4)}, "although its version is another"},
		{"version of nothing is taken", odd{change: at(5)}, "although it must have a version"},
		{"version stays the same", odd{same: true}, "stays the same"},
		{"what was written is gone", odd{reread: func() (string, error) { return "", objstore.ErrNotFound }}, "not there when it is read"},
		{"an old body is read", odd{reread: func() (string, error) { return "one", nil }}, "not what was written last"},
		{"create is refused", odd{failAt: 1, failBy: objstore.ErrPrecondition}, "not there is refused"},
		{"right version is refused", odd{failAt: 3, failBy: objstore.ErrPrecondition}, "although its version is right"},
		{"unsupported", odd{failAt: 1, failBy: objstore.ErrUnsupported}, "preconditions are refused"},
		{"invalid", odd{failAt: 3, failBy: objstore.ErrInvalid}, "preconditions are refused"},
		{"unknown", odd{failAt: 3, failBy: objstore.ErrUnknown}, ""},
		{"denied", odd{failAt: 1, failBy: objstore.ErrDenied}, ""},
		{"cancelled at the end", odd{failAt: 5, failBy: context.Canceled}, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			test.b.Bucket = memory.New()
			result, err := objstore.Probe(context.Background(), &test.b, ulid.Make().String())
			switch {
			case test.found != "":
				if err != nil || result.OK || !strings.Contains(result.Found, test.found) || !errors.Is(result.Require("adoption"), objstore.ErrUnsupported) {
					t.Errorf("got %+v, %v, want %q", result, err, test.found)
				}
			case !errors.Is(err, test.b.failBy) || result.OK != (test.b.failBy == nil):
				t.Errorf("got %+v, %v, want error %v", result, err, test.b.failBy)
			}
			if keys := probeKeys(t, test.b.Bucket); len(keys) != 0 {
				t.Errorf("left: %q", keys)
			}
		})
	}
}

// TestProbeSweeps removes what old probes left, and nothing else; age is by the bucket's own clock.
func TestProbeSweeps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := memory.New()
		b.SetSkew(-1000 * time.Hour)
		put := func(key string) string {
			if _, err := b.Put(context.Background(), key, strings.NewReader("x"), objstore.Condition{}); err != nil {
				t.Fatal(err)
			}
			return key
		}
		put(objstore.ProbePrefix + ulid.Make().String())
		foreign := put(objstore.ProbePrefix + "theirs")
		owner := put(objstore.OwnerKey{Owner: ulid.Make().String()}.String())
		time.Sleep(objstore.ProbeAge + time.Second)
		young := put(objstore.ProbePrefix + ulid.Make().String())
		time.Sleep(objstore.ProbeAge)
		result, err := objstore.Probe(context.Background(), b, ulid.Make().String())
		if err != nil || !result.OK {
			t.Errorf("got %+v, %v", result, err)
		}
		want := []string{foreign, owner, young}
		slices.Sort(want)
		if keys := probeKeys(t, b); !slices.Equal(keys, want) {
			t.Errorf("left: %q, want %q", keys, want)
		}
	})
}

// TestProbeRequire names what is refused, and why; an id that is none is refused.
func TestProbeRequire(t *testing.T) {
	if err := (objstore.ProbeResult{OK: true}).Require("adoption"); err != nil {
		t.Error(err)
	}
	err := objstore.ProbeResult{Found: "all is overwritten"}.Require("adoption")
	if !errors.Is(err, objstore.ErrUnsupported) || !strings.Contains(err.Error(), "adoption needs") || !strings.Contains(err.Error(), "all is overwritten") {
		t.Errorf("got error %v", err)
	}
	if _, err := objstore.Probe(context.Background(), memory.New(), "x"); !errors.Is(err, objstore.ErrInvalid) {
		t.Errorf("got error %v", err)
	}
}
