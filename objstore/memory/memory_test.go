package memory_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"ingest-agent/objstore"
	"ingest-agent/objstore/memory"
	"ingest-agent/objstore/objtest"
)

func TestContract(t *testing.T) {
	t.Parallel()
	objtest.Run(t, func(*testing.T) objstore.Bucket { return memory.New() })
}

// A clone of an object store's clock: whole seconds, cut off, wherever the process's own clock stands.
func TestClock(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := memory.New()
		b.SetSkew(-time.Hour)
		time.Sleep(2*time.Second - time.Nanosecond)
		start := time.Now().UTC().Add(-time.Hour).Truncate(time.Second)
		put, err := b.Put(context.Background(), "k", strings.NewReader("x"), objstore.Condition{})
		if err != nil || !put.Date.Equal(start) {
			t.Errorf("put at the end of a second: got %s, %v, want %s", put.Date, err, start)
		}
		time.Sleep(time.Nanosecond)
		obj, err := b.Get(context.Background(), "k", objstore.GetOptions{})
		if err != nil || !obj.Modified.Equal(start) || !obj.Date.Equal(start.Add(time.Second)) {
			t.Errorf("get a nanosecond later: got %+v, %v, want modified %s and a second more", obj, err, start)
		}
	})
}

// No store keeps a and a/b apart for sure, so the reference takes none of it.
func TestDirectoryOfAnother(t *testing.T) {
	t.Parallel()
	b := memory.New()
	put := func(key string) error {
		_, err := b.Put(context.Background(), key, strings.NewReader("x"), objstore.Condition{})
		return err
	}
	if err := put("a/b/c"); err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"a", "a/b", "a/b/c/d", "a/b/c/d/e"} {
		if err := put(key); !errors.Is(err, objstore.ErrInvalid) {
			t.Errorf("put %s beside a/b/c: got %v, want invalid", key, err)
		}
	}
	if err := b.Delete(context.Background(), "a/b/c"); err != nil {
		t.Fatal(err)
	}
	if err := put("a/b"); err != nil {
		t.Errorf("put a/b when nothing is below: %v", err)
	}
}
