package vfs_test

import (
	"testing"

	"ingest-agent/segment/vfs"
	"ingest-agent/segment/vfs/vfstest"
)

func TestContract(t *testing.T) {
	mem := func(t *testing.T) *vfs.Mem {
		m := vfs.NewMem()
		if err := m.Mkdir("/root", 0o700); err != nil {
			t.Fatal(err)
		}
		return m
	}
	t.Run("OS", func(t *testing.T) {
		vfstest.Run(t, func(t *testing.T) (vfs.FS, string) { return vfs.OS(), t.TempDir() })
	})
	t.Run("Mem", func(t *testing.T) {
		vfstest.Run(t, func(t *testing.T) (vfs.FS, string) { return mem(t), "/root" })
	})
	t.Run("Fault", func(t *testing.T) {
		vfstest.Run(t, func(t *testing.T) (vfs.FS, string) { return vfs.NewFault(mem(t), nil), "/root" })
	})
	// A file system after a crash is one like any other.
	t.Run("Mem after a crash", func(t *testing.T) {
		vfstest.Run(t, func(t *testing.T) (vfs.FS, string) {
			m := mem(t)
			if err := m.SyncDir("/"); err != nil {
				t.Fatal(err)
			}
			return m.CrashStrict(), "/root"
		})
	})
}
