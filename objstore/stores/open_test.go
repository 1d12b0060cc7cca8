package stores

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"ingest-agent/objstore"
	"ingest-agent/objstore/filestore"
)

func TestOpen(t *testing.T) {
	t.Chdir(t.TempDir())
	abs := filepath.Join(t.TempDir(), "with space%20", "b")
	for url, path := range map[string]string{"file:bucket/below": "bucket/below", "file:./x": "x", "file:" + abs: abs} {
		b, err := Open(context.Background(), url, Options{})
		if err != nil {
			t.Fatal(err)
		}
		if _, isFile := b.(*filestore.Store); !isFile {
			t.Errorf("%s: got a %T", url, b)
		}
		if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: open made something: %v", url, err)
		}
		if _, err := b.Put(context.Background(), "k", strings.NewReader("x"), objstore.IfAbsent()); err != nil {
			t.Error(err)
		}
		if _, err := os.Stat(filepath.Join(path, "k")); err != nil {
			t.Error(err)
		}
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	}
	b, err := Open(context.Background(), "s3://bucket/prefix?region=eu-west-1", Options{})
	if err != nil {
		t.Fatal(err)
	}
	if _, isFile := b.(*filestore.Store); isFile {
		t.Error("s3: got a directory")
	}
	if err := b.Close(); err != nil {
		t.Error(err)
	}
}

func TestOpenBad(t *testing.T) {
	name, err := os.Executable() // a file that is there
	if err != nil {
		t.Fatal(err)
	}
	for _, url := range []string{"", "file:", "file://dir", "file:///dir", "/dir", "dir", "memory:", "gs://bucket", "s3:", "s3://", "FILE:x", "file:" + name} {
		if b, err := Open(context.Background(), url, Options{}); !errors.Is(err, objstore.ErrInvalid) {
			t.Errorf("open %q: got %v, %v, want ErrInvalid", url, b, err)
		}
	}
}
