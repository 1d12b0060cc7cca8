package objstore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"
)

// fixed is a bucket that takes a second for each call and each read, and answers with err.
type fixed struct {
	err  error
	body string
}

func (f fixed) Get(context.Context, string, GetOptions) (*Object, error) {
	time.Sleep(time.Second)
	if f.err != nil {
		return nil, f.err
	}
	return &Object{Body: io.NopCloser(iotest.OneByteReader(slow{strings.NewReader(f.body)}))}, nil
}

func (f fixed) Put(context.Context, string, io.ReadSeeker, Condition) (PutResult, error) {
	time.Sleep(time.Second)
	return PutResult{}, f.err
}

func (f fixed) Delete(context.Context, string) error {
	time.Sleep(time.Second)
	return f.err
}

func (f fixed) List(context.Context, ListOptions) (*Page, error) {
	time.Sleep(time.Second)
	return &Page{}, f.err
}

func (f fixed) Close() error { return f.err }

type slow struct{ io.Reader }

func (s slow) Read(p []byte) (int, error) {
	time.Sleep(time.Second)
	n, err := s.Reader.Read(p)
	if n > 0 && p[0] == '!' {
		return 0, fmt.Errorf("cut: %w", ErrUnknown)
	}
	return n, err
}

func TestObserve(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var got []string
		observe := func(f fixed) Bucket {
			return Observe(f, func(op Op, outcome string, took time.Duration, bytes int64) {
				got = append(got, fmt.Sprint(op, " ", outcome, " ", took, " ", bytes))
			})
		}
		ctx := t.Context()
		put := func(err error) {
			if _, got := observe(fixed{err: err}).Put(ctx, "k", strings.NewReader("12345"), Condition{}); !errors.Is(got, err) {
				t.Errorf("put: got error %v, want %v", got, err)
			}
		}
		put(nil)
		for _, err := range []error{ErrPrecondition, ErrNotFound, ErrUnknown, ErrDenied, ErrUnsupported, ErrInvalid, errors.New("no kind")} {
			put(fmt.Errorf("put: %w", err))
		}
		put(fmt.Errorf("put: %w: %w", ErrUnknown, ErrClockSkew))
		if _, err := observe(fixed{err: ErrNotModified}).Get(ctx, "k", GetOptions{}); !errors.Is(err, ErrNotModified) {
			t.Errorf("get: got error %v", err)
		}
		for _, body := range []string{"", "123", "12!"} {
			obj, err := observe(fixed{body: body}).Get(ctx, "k", GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := io.ReadAll(obj.Body); (err != nil) != strings.Contains(body, "!") {
				t.Errorf("read %q: got error %v", body, err)
			}
			time.Sleep(time.Hour) // what the caller does with it is not the bucket's time
			if err := errors.Join(obj.Body.Close(), obj.Body.Close()); err != nil {
				t.Error(err)
			}
		}
		if err := observe(fixed{}).Delete(ctx, "k"); err != nil {
			t.Error(err)
		}
		if _, err := observe(fixed{}).List(ctx, ListOptions{}); err != nil {
			t.Error(err)
		}
		if err := observe(fixed{err: ErrDenied}).Close(); !errors.Is(err, ErrDenied) {
			t.Errorf("close: got error %v", err)
		}
		want := []string{
			"put done 1s 5", "put lost 1s 0", "put not_found 1s 0", "put unknown 1s 0", "put denied 1s 0", "put unsupported 1s 0", "put invalid 1s 0",
			"put unknown 1s 0", "put clock_skew 1s 0", "get not_modified 1s 0", "get done 2s 0", "get done 5s 3", "get unknown 4s 2", "delete done 1s 0",
			"list done 1s 0",
		}
		if !slices.Equal(got, want) {
			t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	})
}
