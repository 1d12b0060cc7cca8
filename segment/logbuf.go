package segment

import (
	"reflect"
	"sync"
	"unsafe"

	"github.com/tidwall/wal"
)

// logBuffers lends the log library the memory that it keeps a segment in. By itself the library grows a new buffer for each
// segment, copying it again and again: two thirds of the append path's time, and most of the process's page faults
// (docs/decisions/0005). The buffers are fields that it does not export; where a later version has them no more, or of
// another type, nothing is lent and it grows its own as before.
//
// What nobody uses is given back to the runtime by and by, so that an idle lane holds nothing.
type logBuffers struct {
	entries, batches sync.Pool // of *[]byte
}

const (
	// bufferSlackBytes is the room above a segment's size, since the batch that fills it goes over it.
	bufferSlackBytes = 1 << 20
	// maxBufferBytes is the largest buffer that is lent; beyond it the library grows its own.
	maxBufferBytes = 64 << 20
)

// lend gives a log a buffer of sizeBytes for its entries, and one for its batch if there is one. It must not be called while
// the log is in use.
func (b *logBuffers) lend(l *wal.Log, sizeBytes int64) {
	entries, batch := entryBuffer(l), batchBuffer(l)
	if entries == nil || batch == nil || sizeBytes > maxBufferBytes {
		return
	}
	buf, ok := b.entries.Get().(*[]byte)
	if !ok || int64(cap(*buf)) < sizeBytes {
		fresh := make([]byte, 0, sizeBytes)
		buf = &fresh
	}
	*entries = append((*buf)[:0], *entries...)
	if buf, ok := b.batches.Get().(*[]byte); ok {
		*batch = *buf
	}
}

// takeBack takes the buffers from a log that is not used any more.
func (b *logBuffers) takeBack(l *wal.Log) {
	put := func(pool *sync.Pool, buf *[]byte) {
		if buf != nil && cap(*buf) <= maxBufferBytes {
			kept := (*buf)[:0]
			*buf = nil
			pool.Put(&kept)
		}
	}
	put(&b.entries, entryBuffer(l))
	put(&b.batches, batchBuffer(l))
}

// entryBuffer is the buffer of the only segment of a log, or nil if the library is not as it was.
func entryBuffer(l *wal.Log) *[]byte {
	segments := reflect.ValueOf(l).Elem().FieldByName("segments")
	if segments.Kind() != reflect.Slice || segments.Len() != 1 || segments.Index(0).Kind() != reflect.Pointer {
		return nil
	}
	return bytesField(segments.Index(0).Elem(), "ebuf")
}

// batchBuffer is the buffer of the batch that a log's Write fills, or nil if the library is not as it was.
func batchBuffer(l *wal.Log) *[]byte {
	return bytesField(reflect.ValueOf(l).Elem().FieldByName("wbatch"), "datas")
}

// bytesField is the field of that name in a struct, if it is a []byte.
func bytesField(v reflect.Value, name string) *[]byte {
	if v.Kind() != reflect.Struct {
		return nil
	}
	f := v.FieldByName(name)
	if !f.IsValid() || !f.CanAddr() || f.Type() != reflect.TypeFor[[]byte]() {
		return nil
	}
	return (*[]byte)(unsafe.Pointer(f.UnsafeAddr())) //nolint:gosec // type and presence were just checked
}
