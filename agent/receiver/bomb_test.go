package receiver

import (
	"bytes"
	"io"
	"net/http"
	"runtime"
	"runtime/debug"
	"slices"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"

	"ingest-agent/segment"
)

// peakGrowth runs do and returns by how much the heap grew at most, in bytes. Garbage is collected early meanwhile, so that
// it is about what is held, also under the race detector, where pools drop a part of what they get.
func peakGrowth(do func()) int64 {
	defer debug.SetGCPercent(debug.SetGCPercent(20))
	runtime.GC()
	runtime.GC() // also empties pools
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	base, peak := m.HeapInuse, m.HeapInuse
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			case <-time.After(time.Millisecond):
				runtime.ReadMemStats(&m)
				peak = max(peak, m.HeapInuse)
			}
		}
	}()
	do()
	close(stop)
	<-stopped
	return int64(peak) - int64(base)
}

const (
	bombLimit = 4 << 20
	bombs     = 50
)

func bombRun(t *testing.T) *running {
	t.Helper()
	return start(t, func(o *Options) {
		o.Settings.HTTPMaxRequestSizeBytes = bombLimit
		o.Settings.GRPCMaxRequestSizeBytes = bombLimit
		o.Settings.ReadTimeout = time.Minute
	})
}

// 50 bombs at once are each refused as too large, within the limit of one request and 64 MiB.
// postBomb sends a bomb over a connection of its own, and checks that it is too large for good.
func postBomb(t *testing.T, url, coding string, b []byte) {
	req := post(url, b)
	req.Header.Set("Content-Encoding", coding)
	resp, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(req)
	if err != nil {
		t.Error(err)
		return
	}
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusRequestEntityTooLarge || resp.Header.Get("Retry-After") != "" {
		t.Errorf("%s: %d", coding, resp.StatusCode)
	}
}

func TestBombsHTTP(t *testing.T) {
	zero := make([]byte, 100<<20)
	for name, b := range map[string][]byte{"gzip": gzipped(t, zero), "zstd": zstdStreamed(t, zero), "zstd with size": zstdSized(t, zero),
		"gzip, just above": gzipped(t, zero[:bombLimit+1])} {
		run := bombRun(t)
		grew := peakGrowth(func() {
			var all sync.WaitGroup
			for range bombs {
				all.Go(func() { postBomb(t, run.url, name[:4], b) })
			}
			all.Wait()
		})
		if grew > bombLimit+64<<20 {
			t.Errorf("%s: the heap grew by %d MiB", name, grew>>20)
		}
		t.Logf("%s (%d KiB): the heap grew by %d MiB", name, len(b)>>10, grew>>20)
	}
}

func TestBombsGRPC(t *testing.T) {
	zero := make([]byte, 100<<20)
	for name, b := range map[string][]byte{"gzip": gzipped(t, zero), "zstd": zstdStreamed(t, zero)} {
		run := bombRun(t)
		conn := run.encodedClient(t, name)
		grew := peakGrowth(func() {
			var all sync.WaitGroup
			for range bombs {
				all.Go(func() {
					_, err := call(t.Context(), conn, segment.Logs, b)
					if status.Code(err) != codes.ResourceExhausted || retryDelay(err) != 0 {
						t.Errorf("%s: %v", name, err)
					}
				})
			}
			all.Wait()
		})
		if grew > bombLimit+64<<20 {
			t.Errorf("%s: the heap grew by %d MiB", name, grew>>20)
		}
		t.Logf("%s (%d KiB): the heap grew by %d MiB", name, len(b)>>10, grew>>20)
	}
}

// asIs is a client compressor that names a coding and leaves the bytes alone, which are compressed already.
type asIs string

func (a asIs) Type() string { return string(a) }

// Do writes in small parts, since the library takes a buffer of 1 MiB for a large one, which would count as growth.
func (asIs) Do(w io.Writer, p []byte) error {
	for part := range slices.Chunk(p, 16<<10) {
		if _, err := w.Write(part); err != nil {
			return err
		}
	}
	return nil
}

// encodedClient sends messages that are compressed already.
func (run *running) encodedClient(t *testing.T, coding string) *grpc.ClientConn {
	t.Helper()
	//nolint:staticcheck // deprecated for real use; the other way has one compressor for each name in a process
	return run.client(t, grpc.WithCompressor(asIs(coding)))
}

// Case 56: what a few bytes claim is checked before memory is taken for it.
func TestCase56Claims(t *testing.T) {
	window := hugeWindow(t)
	run := bombRun(t)
	conns := map[string]*grpc.ClientConn{"gzip": run.encodedClient(t, "gzip"), "zstd": run.encodedClient(t, "zstd")}
	grew := peakGrowth(func() {
		got := run.send(t, "POST", "/v1/logs", bytes.NewReader(window), asProtobuf, "Content-Encoding: zstd")
		if got.status != 413 || got.header.Get("Retry-After") != "" {
			t.Errorf("zstd window of 2 GiB: %d %q", got.status, got.body)
		}
		snappy := []byte("\xff\xff\xff\xff\x0f0123456789abcdef")
		if got := run.send(t, "POST", "/v1/logs", bytes.NewReader(snappy), asProtobuf, "Content-Encoding: snappy"); got.status != 415 {
			t.Errorf("snappy: %d", got.status)
		}
	})
	if grew > 32<<20 {
		t.Errorf("HTTP: the heap grew by %d MiB", grew>>20)
	}
	grew = peakGrowth(func() {
		if _, err := call(t.Context(), conns["zstd"], segment.Logs, window); status.Code(err) != codes.ResourceExhausted || retryDelay(err) != 0 {
			t.Errorf("zstd window of 2 GiB over gRPC: %v", err)
		}
	})
	if grew > 32<<20 {
		t.Errorf("gRPC: the heap grew by %d MiB", grew>>20)
	}
	// The window that senders may use is decoded; a damaged stream is refused for good.
	plain := logsRequest(t, 0, 100, 10000)
	for coding, b := range map[string][]byte{"zstd": zstdStreamed(t, plain[:500000], plain[500000:]), "gzip": gzipped(t, plain[:500000], plain[500000:])} {
		if _, err := call(t.Context(), conns[coding], segment.Logs, b); err != nil {
			t.Errorf("%s: %v", coding, err)
		}
		if stored := run.keep.requests(); !bytes.Equal(stored[len(stored)-1].Body, plain) {
			t.Errorf("%s: something else is stored", coding)
		}
		for _, bad := range [][]byte{b[:len(b)/2], b[1:], append(b, "rubbish"...)} {
			if _, err := call(t.Context(), conns[coding], segment.Logs, bad); status.Code(err) != codes.InvalidArgument || retryDelay(err) != 0 {
				t.Errorf("%s, damaged: %v", coding, err)
			}
		}
	}
	// Nor does it come to life by what is put in place of its end, of whatever length.
	small := logsRequest(t, 0, 1, 10)
	for n := range 64 {
		open := protowire.AppendVarint(protowire.AppendTag(bytes.Clone(small), 1000, protowire.BytesType), uint64(n+1))
		for coding, b := range map[string][]byte{"gzip": gzipped(t, open), "zstd": zstdSized(t, open)} {
			if _, err := call(t.Context(), conns[coding], segment.Logs, append(b, "rubbish"...)); status.Code(err) != codes.InvalidArgument {
				t.Errorf("%s, damaged, %d bytes open: %v", coding, n+1, err)
			}
		}
	}
	if n := len(run.keep.requests()); n != 2 {
		t.Errorf("%d requests stored, want 2", n)
	}
}
