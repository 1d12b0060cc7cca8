package kill

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"

	"ingest-agent/bench/otlpgen"
	"ingest-agent/bench/wire"
	"ingest-agent/segment"
)

// fault is what a fake agent does wrong. The harness must find each out, and find nothing in the one that has none.
type fault string

const (
	sound     fault = "sound"
	lossy     fault = "lossy"     // answers before it has written
	forgetful fault = "forgetful" // never writes its cursor
	inventive fault = "inventive" // delivers a record that nobody sent
	changing  fault = "changing"  // delivers a record that was changed
	repeating fault = "repeating" // delivers some requests twice, without a crash
	crashing  fault = "crashing"  // ends by itself
	deaf      fault = "deaf"      // is never ready
	stubborn  fault = "stubborn"  // does not end at SIGTERM
	angry     fault = "angry"     // ends at SIGTERM, but not with 0
	miscounts fault = "miscounts" // delivers all, but its books say otherwise
)

const faultVariable = "INGEST_AGENT_TEST_FAULT"

// TestMain lets this test's own binary be the agent: the harness needs a process to kill.
func TestMain(m *testing.M) {
	if f := os.Getenv(faultVariable); f != "" {
		if err := runFake(fault(f)); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// fake is the simplest thing that keeps the promises: one file that is appended to before the answer, and a cursor.
// A kill leaves the page cache alone, so it does without syncs.
type fake struct {
	fault  fault
	url    string
	dir    string
	invent *otlpgen.Generator

	mu      sync.Mutex
	log     *os.File
	held    [][]byte // lossy: answered but not written
	size    int64    // of the log, whole entries
	pending atomic.Int64
	cursor  struct{ offset, delivered int64 }
}

const entryHeader = 5 // signal, length of the body

func runFake(f fault) error {
	flags := flag.NewFlagSet("run", flag.ContinueOnError)
	dir := flags.String("data-dir", "", "")
	grpcAddr, httpAddr, adminAddr := flags.String("grpc", "", ""), flags.String("http", "", ""), flags.String("admin", "", "")
	destination := flags.String("destination", "", "")
	if err := flags.Parse(os.Args[2:]); err != nil {
		return err
	}
	a := &fake{fault: f, dir: *dir, url: strings.TrimPrefix(*destination, "otlp-http:")}
	g, err := otlpgen.New(1, 1)
	if err != nil {
		return err
	}
	a.invent = g
	if err := a.open(); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	if f == stubborn {
		ctx = context.Background()
		signal.Ignore(syscall.SIGTERM)
	}
	server := grpc.NewServer(grpc.ForceServerCodecV2(wire.RawCodec{}), grpc.UnknownServiceHandler(a.serveGRPC))
	listener, err := net.Listen("tcp", *grpcAddr)
	if err != nil {
		return err
	}
	failed := make(chan error, 4)
	go func() { failed <- server.Serve(listener) }()
	go func() { failed <- http.ListenAndServe(*httpAddr, http.HandlerFunc(a.serveHTTP)) }()
	go func() { failed <- http.ListenAndServe(*adminAddr, http.HandlerFunc(a.serveAdmin)) }()
	if f == crashing {
		time.AfterFunc(100*time.Millisecond, func() { failed <- errors.New("crash") })
	}
	delivered := make(chan error, 1)
	go func() { delivered <- a.deliver(ctx) }()
	select {
	case err := <-failed:
		return err
	case err := <-delivered:
		if f == angry {
			return errors.New("angry")
		}
		return err
	}
}

// open cuts what the last life wrote in part, and reads the cursor.
func (a *fake) open() (err error) {
	if err := os.MkdirAll(a.dir, 0o755); err != nil {
		return err
	}
	if a.log, err = os.OpenFile(filepath.Join(a.dir, "log"), os.O_RDWR|os.O_CREATE, 0o644); err != nil {
		return err
	}
	if text, err := os.ReadFile(filepath.Join(a.dir, "cursor")); err == nil {
		if _, err := fmt.Sscan(string(text), &a.cursor.offset, &a.cursor.delivered); err != nil {
			return err
		}
	}
	for {
		body, _, err := a.read(a.size)
		if err != nil {
			break
		}
		if a.size >= a.cursor.offset {
			a.pending.Add(1)
		}
		a.size += entryHeader + int64(len(body))
	}
	return a.log.Truncate(a.size)
}

func (a *fake) read(offset int64) (body []byte, signal segment.Signal, err error) {
	var header [entryHeader]byte
	if _, err := a.log.ReadAt(header[:], offset); err != nil {
		return nil, 0, err
	}
	body = make([]byte, binary.BigEndian.Uint32(header[1:]))
	_, err = a.log.ReadAt(body, offset+entryHeader)
	return body, segment.Signal(header[0]), err
}

// take makes a request durable.
func (a *fake) take(signal segment.Signal, body []byte) error {
	entry := append([]byte{byte(signal)}, binary.BigEndian.AppendUint32(nil, uint32(len(body)))...)
	entry = append(entry, body...)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.pending.Add(1)
	if a.fault == lossy {
		if a.held = append(a.held, entry); len(a.held) < 20 {
			return nil
		}
		entry, a.held = bytes.Join(a.held, nil), nil
	}
	_, err := a.log.WriteAt(entry, a.size)
	if err == nil {
		a.size += int64(len(entry))
	}
	return err
}

func (a *fake) serveGRPC(_ any, stream grpc.ServerStream) error {
	method, _ := grpc.MethodFromServerStream(stream)
	var body []byte
	if err := stream.RecvMsg(&body); err != nil {
		return err
	}
	for _, signal := range segment.Signals {
		if wire.GRPCMethod(signal) == method {
			if err := a.take(signal, body); err != nil {
				return err
			}
		}
	}
	return stream.SendMsg(&[]byte{})
}

func (a *fake) serveHTTP(w http.ResponseWriter, r *http.Request) {
	unpacked, err := wire.Decompressor(r.Header.Get("Content-Encoding"), r.Body)
	if err == nil {
		var body []byte
		if body, err = io.ReadAll(unpacked); err == nil {
			signal, _ := segment.ParseSignal(strings.TrimPrefix(r.URL.Path, "/v1/"))
			err = a.take(signal, body)
		}
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
}

func (a *fake) serveAdmin(w http.ResponseWriter, r *http.Request) {
	switch {
	case r.URL.Path == "/readyz" && a.fault == deaf:
		w.WriteHeader(http.StatusServiceUnavailable)
	case r.URL.Path == "/metrics":
		a.mu.Lock()
		delivered := a.cursor.delivered
		if a.fault == miscounts {
			delivered--
		}
		pending := a.pending.Load() - int64(len(a.held)) // lossy does not even know
		a.mu.Unlock()
		fmt.Fprintf(w, "# TYPE ingest_agent_pending_records gauge\ningest_agent_pending_records{lane=\"default.0\"} %d\n", pending)
		fmt.Fprintf(w, "ingest_agent_records_delivered_total{destination=\"default\",signal=\"logs\"} %d\n", delivered)
	}
}

// deliver sends the log in order, and writes the cursor every cursorInterval, until ctx ends.
func (a *fake) deliver(ctx context.Context) error {
	written := time.Now()
	extra := a.fault == inventive || a.fault == changing
	for n := 0; ctx.Err() == nil; n++ {
		if time.Since(written) >= cursorInterval {
			if err := a.writeCursor(); err != nil {
				return err
			}
			written = time.Now()
		}
		a.mu.Lock()
		offset, size := a.cursor.offset, a.size
		a.mu.Unlock()
		if offset == size {
			sleepFor(ctx, time.Millisecond)
			continue
		}
		body, signal, err := a.read(offset)
		if err != nil {
			return err
		}
		if extra && a.post(signal, a.spoil(signal, body)) {
			extra = false // once is what must be noticed
		}
		if !a.post(signal, body) {
			sleepFor(ctx, 20*time.Millisecond)
			continue
		}
		if a.fault == repeating && n%50 == 0 {
			a.post(signal, body)
		}
		a.mu.Lock()
		a.cursor.offset += entryHeader + int64(len(body))
		a.cursor.delivered += records(signal, body)
		a.mu.Unlock()
		a.pending.Add(-1)
	}
	return a.writeCursor()
}

func sleepFor(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

func records(signal segment.Signal, body []byte) (n int64) {
	// The harness made the body, so it can be read.
	_ = otlpgen.Walk(signal, body, func(uint64) { n++ })
	return n
}

// spoil makes what inventive and changing deliver besides the request.
func (a *fake) spoil(signal segment.Signal, body []byte) []byte {
	if a.fault == inventive {
		return a.invent.Append(nil, signal, 0, 1_000_000_007)
	}
	return bytes.Replace(body, []byte("http.route"), []byte("http.rout3"), 1)
}

func (a *fake) post(signal segment.Signal, body []byte) bool {
	resp, err := http.Post(a.url+wire.HTTPPath(signal), "application/x-protobuf", bytes.NewReader(body))
	if err != nil {
		return false
	}
	_, err = io.Copy(io.Discard, resp.Body)
	return errors.Join(err, resp.Body.Close()) == nil && (resp.StatusCode == http.StatusOK || a.fault == changing)
}

func (a *fake) writeCursor() error {
	if a.fault == forgetful {
		return nil
	}
	a.mu.Lock()
	text := fmt.Sprintln(a.cursor.offset, a.cursor.delivered)
	a.mu.Unlock()
	path := filepath.Join(a.dir, "cursor")
	if err := os.WriteFile(path+".new", []byte(text), 0o644); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}
