package segment

import (
	"encoding/binary"
	"reflect"
	"unsafe"

	"github.com/tidwall/wal"
)

// entryWriter writes blocks through the log library without the library's own memory. By itself the library copies a block into its
// batch, from there behind all that was written to the segment before, which it keeps in a buffer that it grows anew for each
// segment, and writes from that: two thirds of the append path's time, and most of the process's memory (docs/decisions/0005).
// A segment is only ever appended to through the library, never read, so it is lent the block's own memory as both: the block
// in its batch, and as what it keeps an empty buffer that the block stands in, so that each byte is put where it is.
//
// These are fields that the library does not export; where a later version has them no more, or of another type, nothing is lent
// and it uses its own as before.
type entryWriter struct{ batch wal.Batch }

// write appends to a log the block that stands in entry behind entryRoom bytes. Nothing may be read from the log after it.
func (b *entryWriter) write(l *wal.Log, index uint64, entry []byte) error {
	block := entry[entryRoom:]
	kept := entryBuffer(l)
	b.batch.Clear()
	b.batch.Write(index, nil)
	data, size := batchFields(&b.batch)
	if kept == nil || data == nil {
		return l.Write(index, block)
	}
	var prefix [entryRoom]byte
	begin := entryRoom - binary.PutUvarint(prefix[:], uint64(len(block)))
	*data, *size = block, len(block)
	*kept = entry[begin:begin]
	err := l.WriteBatch(&b.batch)
	*data, *kept = nil, nil
	return err
}

// entryBuffer is what a log keeps of its only segment, or nil if the library is not as it was.
func entryBuffer(l *wal.Log) *[]byte {
	segments := reflect.ValueOf(l).Elem().FieldByName("segments")
	if segments.Kind() != reflect.Slice || segments.Len() != 1 || segments.Index(0).Kind() != reflect.Pointer {
		return nil
	}
	return field[[]byte](segments.Index(0).Elem(), "ebuf")
}

// batchFields are the data of a batch of one entry and the size of that, or nil if the library is not as it was.
func batchFields(b *wal.Batch) (data *[]byte, size *int) {
	v := reflect.ValueOf(b).Elem()
	entries := v.FieldByName("entries")
	if entries.Kind() != reflect.Slice || entries.Len() != 1 {
		return nil, nil
	}
	data, size = field[[]byte](v, "datas"), field[int](entries.Index(0), "size")
	if data == nil || size == nil {
		return nil, nil
	}
	return data, size
}

// field is the field of that name in a struct, if it is a T.
func field[T any](v reflect.Value, name string) *T {
	if v.Kind() != reflect.Struct {
		return nil
	}
	f := v.FieldByName(name)
	if !f.IsValid() || !f.CanAddr() || f.Type() != reflect.TypeFor[T]() {
		return nil
	}
	return (*T)(unsafe.Pointer(f.UnsafeAddr())) //nolint:gosec // type and presence were just checked
}
