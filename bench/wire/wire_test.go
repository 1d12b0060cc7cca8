package wire

import (
	"bytes"
	"io"
	"testing"

	"google.golang.org/grpc/mem"
)

func TestCodingsAreInverse(t *testing.T) {
	data := bytes.Repeat([]byte("a line of telemetry\n"), 1000)
	for _, coding := range []string{None, Gzip, Zstd} {
		c, err := NewCompressor(coding)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Compress([]byte("an earlier body")); err != nil {
			t.Fatal(err)
		}
		packed, err := c.Compress(data)
		if err != nil {
			t.Fatal(err)
		}
		if coding != None && len(packed) > len(data)/10 {
			t.Errorf("%s: %d bytes of %d", coding, len(packed), len(data))
		}
		r, err := Decompressor(coding, bytes.NewReader(packed))
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(r)
		if err != nil || !bytes.Equal(got, data) {
			t.Errorf("%s: differs after the way there and back (%v)", coding, err)
		}
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	}
	if _, err := NewCompressor("br"); err == nil {
		t.Error("an unknown coding was taken for packing")
	}
	if _, err := Decompressor("br", bytes.NewReader(data)); err == nil {
		t.Error("an unknown coding was taken for unpacking")
	}
}

func TestRawCodecKeepsItsOwnCopy(t *testing.T) {
	wireBytes := []byte("message")
	var got []byte
	if err := (RawCodec{}).Unmarshal(mem.BufferSlice{mem.SliceBuffer(wireBytes[:3]), mem.SliceBuffer(wireBytes[3:])}, &got); err != nil {
		t.Fatal(err)
	}
	wireBytes[0] = 'X' // as the transport does when it uses its buffer again
	if string(got) != "message" {
		t.Errorf("got %q", got)
	}
	if _, err := (RawCodec{}).Marshal("text"); err == nil {
		t.Error("a message of another type was taken")
	}
}
