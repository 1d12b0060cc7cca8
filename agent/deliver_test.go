package agent_test

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/oklog/ulid/v2"
	"go.opentelemetry.io/collector/pdata/plog"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"ingest-agent/agent"
	"ingest-agent/agent/agenttest"
	"ingest-agent/agent/config"
	"ingest-agent/bench/load"
	"ingest-agent/bench/otlpgen"
	"ingest-agent/bench/wire"
	"ingest-agent/segment"
	"ingest-agent/segment/vfs"
)

// answerHTTP starts a destination that answers each request's body with a status. It is called for one request at a time.
func answerHTTP(t testing.TB, answer func(body []byte) int) (url string) {
	t.Helper()
	var mu sync.Mutex
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		mu.Lock()
		defer mu.Unlock()
		w.WriteHeader(answer(body))
	}))
	t.Cleanup(srv.Close)
	return srv.URL
}

// answerGRPC starts a destination that takes messages up to maxBytes and answers each with a code, one at a time.
func answerGRPC(t testing.TB, maxBytes int, answer func(body []byte) codes.Code) (addr string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	srv := grpc.NewServer(grpc.ForceServerCodecV2(wire.RawCodec{}), grpc.MaxRecvMsgSize(maxBytes),
		grpc.UnknownServiceHandler(func(_ any, s grpc.ServerStream) error {
			var body []byte
			if err := s.RecvMsg(&body); err != nil {
				return err
			}
			mu.Lock()
			defer mu.Unlock()
			if code := answer(body); code != codes.OK {
				return status.Error(code, "as told")
			}
			return s.SendMsg(&[]byte{})
		}))
	var serving sync.WaitGroup
	serving.Go(func() { _ = srv.Serve(l) })
	t.Cleanup(func() { srv.Stop(); serving.Wait() })
	return l.Addr().String()
}

// deadLetter is what is kept of a refused frame, or of a part of one.
type deadLetter struct {
	frame segment.Frame
	cause string
}

// deadLetters reads the dead letters of a data directory.
func deadLetters(t testing.TB, dataDir string) (found []deadLetter) {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(agent.LayoutOf(dataDir).Dead, "*", "*", "*.seg"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range paths {
		lane, err := segment.ParseLaneID(filepath.Base(filepath.Dir(path)))
		if err != nil {
			t.Fatal(err)
		}
		text, _, _ := strings.Cut(filepath.Base(path), "-")
		seq, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		object, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		frames, cause, err := segment.DecodeObject(object, segment.Birth{Lane: lane, Seq: segment.Seq(seq)})
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		for _, f := range frames {
			found = append(found, deadLetter{f, cause})
		}
	}
	return found
}

// fillLane stores frames in lane default.0 of a data directory, as an agent that takes everything would.
func fillLane(t testing.TB, dataDir string, frames []segment.Frame) {
	t.Helper()
	l, err := segment.OpenLane(segment.LaneOptions{
		FS: vfs.OS(), Dir: agent.LayoutOf(dataDir).Lanes, ID: segment.LaneID{Destination: "default"}, Owner: segment.OwnerID(ulid.Make()),
		Space: segment.NewSpace(segment.SpaceOptions{MaxBytes: 1 << 40}), Log: zap.NewNop(),
		Quarantine: segment.NewQuarantine(vfs.OS(), agent.LayoutOf(dataDir).Quarantine, segment.DefaultQuarantineBytes),
		Settings:   segment.Settings{Ack: segment.AckDisk, SegmentSizeBytes: 1 << 30, SegmentAge: time.Hour},
	})
	if err != nil {
		t.Fatal(err)
	}
	for i := range frames {
		f := &frames[i]
		f.Signal, f.Tenant, f.Received = segment.Logs, "default", time.Now()
		if err := l.Append(t.Context(), f); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestCase50BadItems: one record that the destination never takes and one frame that is no OTLP go aside with the cause; all
// others are delivered, whether each came alone or in a request of ten.
func TestCase50BadItems(t *testing.T) {
	t.Parallel()
	for _, perFrame := range []uint64{1, 10} {
		t.Run(fmt.Sprint(perFrame, " in a frame"), func(t *testing.T) {
			t.Parallel()
			const records, refused, broken = 100, 50, 60
			const limit = 5 * time.Second // the case says one; a busy machine gets more
			gen, err := otlpgen.New(1, int(perFrame))
			if err != nil {
				t.Fatal(err)
			}
			one, err := otlpgen.New(1, 1)
			if err != nil {
				t.Fatal(err)
			}
			var frames []segment.Frame
			want := map[uint64]bool{}
			for first := uint64(1); first <= records; first += perFrame {
				if first <= broken && broken < first+perFrame { // the others of its frame come alone
					for seq := first; seq < first+perFrame; seq++ {
						f := segment.Frame{Records: 1, Body: one.Append(nil, segment.Logs, 0, seq)}
						if seq == broken {
							f.Body = []byte("a valid frame, but no OTLP")
						}
						frames = append(frames, f)
					}
				} else {
					frames = append(frames, segment.Frame{Records: uint32(perFrame), Body: gen.Append(nil, segment.Logs, 0, first)})
				}
			}
			for seq := uint64(1); seq <= records; seq++ {
				want[seq] = seq != refused && seq != broken
			}
			dir := t.TempDir()
			fillLane(t, dir, frames)

			got := map[uint64]int{}
			var last time.Time
			url := answerHTTP(t, func(body []byte) int {
				var seqs []uint64
				err := otlpgen.Walk(segment.Logs, body, func(seq uint64) { seqs = append(seqs, seq) })
				if err != nil || slices.Contains(seqs, refused) {
					return http.StatusBadRequest
				}
				for _, seq := range seqs {
					got[seq]++
				}
				last = time.Now()
				return http.StatusOK
			})
			begin := time.Now()
			n := start(t, newConfig(t, dir, url))
			n.awaitDrained(20 * time.Second)
			dead := deadLetters(t, dir)
			m := n.metrics()
			n.stop()
			if took := last.Sub(begin); took > limit {
				t.Errorf("the last was delivered after %v", took)
			}
			for seq, once := range want {
				if (got[seq] == 1) != once {
					t.Errorf("record %d arrived %d times", seq, got[seq])
				}
			}
			if len(dead) != 2 || m.Sum("records_dead_letter_total") != 2 || m.Sum("records_delivered_total") != records-2 {
				t.Errorf("%d dead letters, counted %d, delivered %d", len(dead), m.Sum("records_dead_letter_total"), m.Sum("records_delivered_total"))
			}
			for _, d := range dead {
				var seqs []uint64
				err := otlpgen.Walk(segment.Logs, d.frame.Body, func(seq uint64) { seqs = append(seqs, seq) })
				if isBroken := string(d.frame.Body) == "a valid frame, but no OTLP"; isBroken == (err == nil && slices.Equal(seqs, []uint64{refused})) {
					t.Errorf("records %v are a dead letter (%v)", seqs, err)
				}
				if !strings.Contains(d.cause, "HTTP 400") {
					t.Errorf("cause %q", d.cause)
				}
			}
		})
	}
}

// TestCase47OversizedItem: a destination with a limit gets everything that fits it, however it came; only what can not fit
// goes aside.
func TestCase47OversizedItem(t *testing.T) {
	t.Parallel()
	sizes := []int{200, 400, 700, 300, 1200, 200, 300, 1000, 400, 500} // in 1,000 bytes
	logs := func(which ...int) []byte {
		d := plog.NewLogs()
		records := d.ResourceLogs().AppendEmpty().ScopeLogs().AppendEmpty().LogRecords()
		for _, i := range which {
			r := records.AppendEmpty()
			r.Attributes().PutInt("i", int64(i))
			r.Body().SetStr(strings.Repeat("x", sizes[i]*1000))
		}
		b, err := (&plog.ProtoMarshaler{}).MarshalLogs(d)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	read := func(t *testing.T, body []byte) (which []int) {
		d, err := (&plog.ProtoUnmarshaler{}).UnmarshalLogs(body)
		if err != nil {
			t.Error(err)
			return nil
		}
		for _, rl := range d.ResourceLogs().All() {
			for _, sl := range rl.ScopeLogs().All() {
				for _, r := range sl.LogRecords().All() {
					i, _ := r.Attributes().Get("i")
					which = append(which, int(i.Int()))
				}
			}
		}
		return which
	}
	const binary, decimal = 1 << 20, 1_000_000 // the log of 1,000 KB only fits the first with what is around it
	for _, c := range []struct {
		name  string
		limit int
		grpc  bool
		whole bool // all logs in one request
		dead  []int
	}{
		{"HTTP, ten requests", binary, false, false, []int{4}},
		{"HTTP, one request", binary, false, true, []int{4}},
		{"HTTP, one request, smaller limit", decimal, false, true, []int{4, 7}},
		{"gRPC, ten requests", binary, true, false, []int{4}},
		{"gRPC, one request, smaller limit", decimal, true, true, []int{4, 7}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			got := map[int]int{}
			take := func(body []byte) {
				for _, i := range read(t, body) {
					got[i]++
				}
			}
			dir := t.TempDir()
			var cfg config.Config
			if c.grpc {
				addr := answerGRPC(t, c.limit, func(body []byte) codes.Code { take(body); return codes.OK })
				cfg = newConfig(t, dir, "http://x", onlyDestination(func(d *config.Destination) {
					d.Type, d.Endpoint, d.TLS.Insecure = config.OTLPGRPC, addr, true
				}))
			} else {
				cfg = newConfig(t, dir, answerHTTP(t, func(body []byte) int {
					if len(body) > c.limit {
						return http.StatusRequestEntityTooLarge
					}
					take(body)
					return http.StatusOK
				}))
			}
			n := start(t, cfg)
			var requests [][]byte
			if c.whole {
				requests = append(requests, logs(0, 1, 2, 3, 4, 5, 6, 7, 8, 9))
			} else {
				for i := range sizes {
					requests = append(requests, logs(i))
				}
			}
			for _, r := range requests {
				if code, _ := n.post(r); code != http.StatusOK {
					t.Fatalf("HTTP %d", code)
				}
			}
			n.awaitDrained(20 * time.Second)
			m := n.metrics()
			n.stop()
			var dead []int
			for _, d := range deadLetters(t, dir) {
				dead = append(dead, read(t, d.frame.Body)...)
			}
			if slices.Sort(dead); !slices.Equal(dead, c.dead) || m.Sum("records_dead_letter_total") != uint64(len(c.dead)) {
				t.Errorf("dead letters %v, counted %d, want %v", dead, m.Sum("records_dead_letter_total"), c.dead)
			}
			for i := range sizes {
				if (got[i] == 1) == slices.Contains(c.dead, i) {
					t.Errorf("log %d of %d KB arrived %d times", i, sizes[i], got[i])
				}
			}
		})
	}
}

// TestCase53OrderAcrossRetries: with ordered, a request that fails is repeated before any later one is sent, so the numbers
// rise at the sink, but for those of a request that comes again.
func TestCase53OrderAcrossRetries(t *testing.T) {
	t.Parallel()
	next := uint64(1)           // the record that a request must begin with
	failed := map[uint64]bool{} // first records of requests that were answered with a failure
	requests, repeated := 0, 0
	url := answerHTTP(t, func(body []byte) int {
		var seqs []uint64
		if err := otlpgen.Walk(segment.Logs, body, func(seq uint64) { seqs = append(seqs, seq) }); err != nil || len(seqs) == 0 {
			t.Errorf("bad request: %v", err)
			return http.StatusBadRequest
		}
		for i, seq := range seqs {
			if seq != next+uint64(i) {
				t.Errorf("records %v arrived when %d was due", seqs, next)
				break
			}
		}
		if failed[seqs[0]] {
			repeated++
		} else if requests++; requests%3 == 0 {
			failed[seqs[0]] = true
			return http.StatusServiceUnavailable
		}
		next = seqs[len(seqs)-1] + 1
		return http.StatusOK
	})
	n := start(t, newConfig(t, t.TempDir(), url, onlyDestination(func(d *config.Destination) {
		d.Ordered, d.InFlight, d.MaxRequestSizeBytes = true, 8, 4<<10
		d.Retry.InitialInterval, d.Retry.MaxInterval = time.Millisecond, 2*time.Millisecond
	})))
	acked := agenttest.Send(t, load.Config{HTTP: n.Addrs().HTTP, Senders: 1, Requests: 300, Records: 2, Signals: []segment.Signal{segment.Logs}, Seed: 5})
	n.awaitDrained(20 * time.Second)
	n.stop()
	if next != acked.Count()+1 {
		t.Errorf("%d of %d arrived", next-1, acked.Count())
	}
	if repeated < 20 {
		t.Errorf("%d requests, %d of them repeated: the test needs more", requests, repeated)
	}
}
