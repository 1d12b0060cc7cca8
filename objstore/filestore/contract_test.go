package filestore

import (
	"testing"

	"ingest-agent/objstore"
	"ingest-agent/objstore/objtest"
)

func open(t *testing.T, dir string) *Store {
	t.Helper()
	s, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func TestContract(t *testing.T) {
	objtest.Run(t, func(t *testing.T) objstore.Bucket { return open(t, t.TempDir()) }, objtest.Limits{LargeBytes: 4 << 20})
}

func TestContractPrefixed(t *testing.T) {
	objtest.Run(t, func(t *testing.T) objstore.Bucket {
		return objstore.Prefixed(open(t, t.TempDir()), "/some/prefix/")
	}, objtest.Limits{LargeBytes: 1 << 20})
}
