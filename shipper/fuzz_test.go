package shipper

import (
	"errors"
	"testing"

	"ingest-agent/segment/vfs"
)

// FuzzNote reads any bytes as a note: it is read, or set aside, or of a later version, and what was read is read again after
// it was written.
func FuzzNote(f *testing.F) {
	f.Add([]byte(`{"format":1,"owner":"01M8W7V58RTYD040DZX76WHNVN","lanes":["default.0"],"earlier":[{"owner":"01M8W7V58RTYD040DZX76WHNVN",` +
		`"lanes":["a.1.p2"],"ends":{"a.1.p2":"00000000000000000003.0000000001"}}],"skip":{"default.0":"00000000000000000001.0000000002"}}`))
	f.Add([]byte(`{"format":2}`))
	f.Add([]byte(`{"format":1`))
	f.Add([]byte(`null`))
	f.Fuzz(func(t *testing.T, text []byte) {
		disk := vfs.NewMem()
		if err := vfs.WriteFileAtomic(disk, "note", text, notePerm); err != nil {
			t.Fatal(err)
		}
		n, damaged, err := openNote(disk, "note")
		if err != nil {
			if !errors.Is(err, errLaterNote) {
				t.Fatal(err)
			}
			return
		}
		if damaged && len(n.data.Earlier)+len(n.data.Skip) > 0 {
			t.Fatalf("damaged, and yet it says %+v", n.data)
		}
		earlier := len(n.data.Earlier)
		if err := n.replace(n.data.clone()); err != nil {
			t.Fatal(err)
		}
		again, damaged, err := openNote(disk, "note")
		if err != nil || damaged || len(again.data.Earlier) != earlier {
			t.Fatalf("%d earlier ids were written, and %+v was read (damaged %v, %v)", earlier, again, damaged, err)
		}
	})
}
