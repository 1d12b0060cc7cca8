//go:build unix

package s3test_test

import (
	"context"
	"io"
	"strings"
	"testing"

	"ingest-agent/objstore"
	"ingest-agent/objstore/s3"
	"ingest-agent/objstore/s3/s3test"
)

// TestServer keeps what it has over a kill, and opens by URL and environment alone.
func TestServer(t *testing.T) {
	ctx, server := context.Background(), s3test.Start(t)
	if _, err := server.Open(t, "a", s3.Options{}).Put(ctx, "k", strings.NewReader("kept"), objstore.IfAbsent()); err != nil {
		t.Fatal(err)
	}
	server.Kill9()
	if _, err := server.Open(t, "a", s3.Options{}).List(ctx, objstore.ListOptions{}); err == nil {
		t.Error("a killed server answers")
	}
	server.Restart()
	for _, variable := range server.Env() {
		if name, value, _ := strings.Cut(variable, "="); strings.HasPrefix(name, "AWS_") {
			t.Setenv(name, value)
		}
	}
	b, err := s3.Open(ctx, server.URL(""), s3.Options{})
	if err != nil {
		t.Fatal(err)
	}
	object, err := b.Get(ctx, "a/k", objstore.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if body, err := io.ReadAll(object.Body); string(body) != "kept" || err != nil {
		t.Errorf("got %q, %v", body, err)
	}
	if err := object.Body.Close(); err != nil {
		t.Error(err)
	}
	if err := b.Close(); err != nil {
		t.Error(err)
	}
}
