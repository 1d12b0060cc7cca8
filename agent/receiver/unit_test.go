package receiver

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"
)

func TestQuietLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		core, logs := observer.New(zapcore.InfoLevel)
		q := newQuietLog(zap.New(core))
		for range 5 {
			q.refused("sync", zap.Error(errors.New("cause")))
		}
		q.refused("disk")
		time.Sleep(logEvery) // on the fake clock
		q.refused("sync")
		var omitted []int64
		for _, e := range logs.All() {
			omitted = append(omitted, e.ContextMap()["omitted"].(int64))
		}
		if len(omitted) != 3 || omitted[0] != 0 || omitted[1] != 0 || omitted[2] != 4 {
			t.Errorf("logged with %v omitted, want 0, 0, 4", omitted)
		}
	})
}

// The bound is never too small, and for what encoders write it is at most one block for each block too large.
func TestZstdBound(t *testing.T) {
	const seed = 7
	random := rand.New(rand.NewPCG(seed, seed))
	skippable := append([]byte("\x52\x2a\x4d\x18\x05\x00\x00\x00"), "hello"...)
	for _, size := range []int{0, 1, 1000, 127 << 10, 128 << 10, 129 << 10, 3 << 20} {
		noise := make([]byte, size)
		for i := range noise {
			noise[i] = byte(random.Uint32())
		}
		for name, plain := range map[string][]byte{"noise": noise, "zeros": make([]byte, size), "text": bytes.Repeat([]byte("telemetry "), size/10)} {
			for kind, body := range map[string][]byte{
				"sized":    zstdSized(t, plain),
				"streamed": zstdStreamed(t, plain),
				"frames":   bytes.Join([][]byte{zstdSized(t, plain[:len(plain)/2]), skippable, zstdStreamed(t, plain[len(plain)/2:])}, nil),
			} {
				bound := zstdBound(body, 1<<30)
				if bound < len(plain) || bound > len(plain)+len(plain)/8+4*maxZstdBlockBytes {
					t.Errorf("%s, %s of %d bytes: bound %d (seed %d)", kind, name, len(plain), bound, seed)
				}
				f, err := newInflater(4 << 20)
				if err != nil {
					t.Fatal(err)
				}
				err = f.inflate(t.Context(), zstdCoding, body, func(inflated []byte) error {
					if !bytes.Equal(inflated, plain) {
						t.Errorf("%s, %s of %d bytes: inflated to something else", kind, name, len(plain))
					}
					return nil
				})
				if err != nil {
					t.Errorf("%s, %s of %d bytes: %v", kind, name, len(plain), err)
				}
			}
		}
	}
}
