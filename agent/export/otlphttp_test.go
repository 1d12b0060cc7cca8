package export

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/klauspost/compress/zstd"
	spb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/protobuf/proto"

	"ingest-agent/segment"
)

func httpOptions(endpoint string) Options {
	return Options{Type: TypeOTLPHTTP, Endpoint: endpoint, Timeout: time.Minute, InFlight: 4, FrameIDs: true, UserAgent: "ingest-agent/test"}
}

func newTestSink(t *testing.T, o Options) Sink {
	t.Helper()
	s, err := New("default", o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { mustClose(t, s) })
	return s
}

// serve starts a server; it and its connections are closed before the test ends.
func serve(t *testing.T, h http.HandlerFunc) *httptest.Server {
	t.Helper()
	srv := httptest.NewServer(h)
	t.Cleanup(srv.Close)
	return srv
}

func TestSuccessAndRedirectStatuses(t *testing.T) {
	followed := false
	srv := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/elsewhere" {
			followed = true
			return
		}
		var status int
		_, _ = fmt.Sscan(r.Header.Get("X-Status"), &status)
		w.Header().Set("Location", "/elsewhere")
		if status == 304 {
			w.Header().Set("Location", "://[")
		}
		w.WriteHeader(status)
	})
	for status, want := range map[int]segment.Verdict{
		200: segment.Delivered, 201: segment.Delivered, 202: segment.Delivered, 204: segment.Delivered, 299: segment.Delivered,
		300: segment.Refused, 301: segment.Refused, 302: segment.Refused, 303: segment.Refused, 304: segment.Refused,
		307: segment.Refused, 308: segment.Refused, 600: segment.Refused,
	} {
		o := httpOptions(srv.URL)
		o.Headers = map[string]string{"X-Status": fmt.Sprint(status)}
		out := newTestSink(t, o).Deliver(t.Context(), request(t, segment.Traces, 1, 1))
		if out.Verdict != want {
			t.Errorf("HTTP %d: verdict %d, want %d (%v)", status, out.Verdict, want, out.Err)
		}
	}
	if followed {
		t.Error("a redirect was followed")
	}
}

func TestConfiguredRetryCodes(t *testing.T) {
	srv := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", "3")
		w.WriteHeader(http.StatusUnauthorized)
	})
	o := httpOptions(srv.URL)
	o.RetryCodes = []int{401}
	out := newTestSink(t, o).Deliver(t.Context(), request(t, segment.Logs, 1, 1))
	wantVerdict(t, out, segment.Retry)
	if out.RetryAfter != 3*time.Second {
		t.Errorf("delay %v", out.RetryAfter)
	}
}

func TestErrorTellsWhatTheDestinationSays(t *testing.T) {
	status, err := proto.Marshal(&spb.Status{Code: 3, Message: "no such\ntenant \xe2\x80\xa8 here"})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ contentType, body, want string }{
		{"application/x-protobuf", string(status), "no such tenant   here"},
		{"application/json; charset=utf-8", `{"code":3,"message":"no such tenant","details":[{"@type":"x/y"}]}`, "no such tenant"},
		{"text/plain", "no\x00such \xff tenant\n", "no such  tenant"},
		{"text/plain", strings.Repeat("é", 1<<15), "…"},
		{"text/html", "<html>", "Bad Request"},
		{"application/x-protobuf", "garbage", "Bad Request"},
		{"", "", "Bad Request"},
	} {
		srv := serve(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header()["Content-Type"] = []string{c.contentType}
			w.WriteHeader(http.StatusBadRequest)
			_, _ = io.WriteString(w, c.body)
		})
		out := newTestSink(t, httpOptions(srv.URL)).Deliver(t.Context(), request(t, segment.Logs, 1, 1))
		wantVerdict(t, out, segment.Refused)
		if text := out.Err.Error(); !strings.HasSuffix(text, c.want) || len(text) > maxMessageBytes+100 || strings.ContainsAny(text, "\n\x00") || !utf8.ValidString(text) {
			t.Errorf("%s %.20q: error %q", c.contentType, c.body, text)
		}
	}
}

// strictGunzip fails unless data is one gzip member.
func strictGunzip(data []byte) ([]byte, error) {
	in := bytes.NewReader(data)
	z, err := gzip.NewReader(in)
	if err != nil {
		return nil, err
	}
	z.Multistream(false)
	out, err := io.ReadAll(z)
	if err == nil && in.Len() > 0 {
		err = fmt.Errorf("%d bytes behind the first member", in.Len())
	}
	return out, err
}

// strictUnzstd fails unless data is one zstd frame. It walks the blocks by RFC 8878, 3.1.1.
func strictUnzstd(data []byte) ([]byte, error) {
	var h zstd.Header
	if err := h.Decode(data); err != nil {
		return nil, err
	}
	if h.WindowSize > zstdWindowBytes && !h.SingleSegment {
		return nil, fmt.Errorf("window of %d bytes", h.WindowSize)
	}
	rest := data[h.HeaderSize:]
	for last := false; !last; {
		if len(rest) < 3 {
			return nil, io.ErrUnexpectedEOF
		}
		block := uint32(rest[0]) | uint32(rest[1])<<8 | uint32(rest[2])<<16
		last = block&1 == 1
		size := int(block >> 3)
		if block>>1&3 == 1 { // one byte, repeated
			size = 1
		}
		rest = rest[3+size:]
	}
	if h.HasCheckSum {
		rest = rest[4:]
	}
	if len(rest) > 0 {
		return nil, fmt.Errorf("%d bytes behind the first frame", len(rest))
	}
	d, err := zstd.NewReader(nil)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	return d.DecodeAll(data, nil)
}

type received struct {
	path, contentType, encoding, ids, agent, token string
	length                                         int64
	body                                           []byte
}

func TestRequestOnTheWire(t *testing.T) {
	decode := map[Compression]func([]byte) ([]byte, error){
		"":              func(b []byte) ([]byte, error) { return b, nil },
		CompressionNone: func(b []byte) ([]byte, error) { return b, nil },
		CompressionGzip: strictGunzip,
		CompressionZstd: strictUnzstd,
	}
	for compression, unpack := range decode {
		for _, signal := range segment.Signals {
			for _, frames := range []int{1, 3, 100} {
				var got received
				srv := serve(t, func(w http.ResponseWriter, r *http.Request) {
					b, _ := io.ReadAll(r.Body)
					got = received{r.URL.Path, r.Header.Get("Content-Type"), r.Header.Get("Content-Encoding"),
						r.Header.Get("ingest-agent-frames"), r.UserAgent(), r.Header.Get("X-Token"), r.ContentLength, b}
					w.WriteHeader(http.StatusNoContent)
				})
				o := httpOptions(srv.URL + "/base/")
				o.Compression = compression
				o.Headers = map[string]string{"x-token": "secret"}
				r := request(t, signal, frames, 2)
				sink := newTestSink(t, o)
				for range 2 { // the second time with what the pools have
					out := sink.Deliver(t.Context(), r)
					if wantVerdict(t, out, segment.Delivered); out.Err != nil {
						t.Fatal(out.Err)
					}
					wire := got.body
					var err error
					if got.body, err = unpack(wire); err != nil {
						t.Fatalf("%s, %d frames: %v", compression, frames, err)
					}
					if got.length != int64(len(wire)) {
						t.Errorf("length %d announced, %d sent", got.length, len(wire))
					}
				}
				if !bytes.Equal(got.body, merged(r)) {
					t.Errorf("%s, %v: body differs", compression, signal)
				}
				encoding := string(compression)
				if compression == CompressionNone {
					encoding = ""
				}
				want := received{"/base/v1/" + signal.String(), "application/x-protobuf", encoding, segment.FrameIDs(r.Frames),
					"ingest-agent/test", "secret", got.length, got.body}
				if fmt.Sprint(got) != fmt.Sprint(want) {
					t.Errorf("got %.300v\nwant %.300v", got, want)
				}
			}
		}
	}
}

// A large body crosses the window and the buffers of the encoders.
func TestLargeBodyInOneMember(t *testing.T) {
	noise := make([]byte, 5<<18)
	for i := 0; i+8 <= len(noise); i += 8 {
		binary.LittleEndian.PutUint64(noise[i:], uint64(i)*0x9e3779b97f4a7c15)
	}
	r := &segment.Request{Signal: segment.Logs, Frames: []segment.Frame{
		frame(segment.Logs, 1, noise, 1), frame(segment.Logs, 2, nil, 0), frame(segment.Logs, 3, noise[:1<<18], 1)}}
	for compression, unpack := range map[Compression]func([]byte) ([]byte, error){CompressionGzip: strictGunzip, CompressionZstd: strictUnzstd} {
		p := payloads{compression: compression}
		body, err := p.make(r)
		if err != nil {
			t.Fatal(err)
		}
		wire, err := io.ReadAll(body)
		if err != nil {
			t.Fatal(err)
		}
		got, err := unpack(wire)
		if err != nil || !bytes.Equal(got, merged(r)) {
			t.Errorf("%s: body differs (%v)", compression, err)
		}
		p.release(body)
		if _, err := body.Read(make([]byte, 1)); !errors.Is(err, errRevoked) {
			t.Errorf("read after the end: %v", err)
		}
	}
}

func TestEmptyRequest(t *testing.T) {
	for _, compression := range []Compression{CompressionNone, CompressionGzip, CompressionZstd} {
		var length int64
		srv := serve(t, func(_ http.ResponseWriter, r *http.Request) { length = r.ContentLength })
		o := httpOptions(srv.URL)
		o.Compression = compression
		r := &segment.Request{Signal: segment.Logs, Frames: []segment.Frame{frame(segment.Logs, 1, nil, 0)}}
		wantVerdict(t, newTestSink(t, o).Deliver(t.Context(), r), segment.Delivered)
		if (length == 0) != (compression == CompressionNone) || length < 0 {
			t.Errorf("%s: length %d", compression, length)
		}
	}
}

func TestFrameIDs(t *testing.T) {
	var ids collector[string]
	srv := serve(t, func(_ http.ResponseWriter, r *http.Request) { ids.add(r.Header.Get("ingest-agent-frames")) })
	r := &segment.Request{Signal: segment.Logs}
	for i := range 500 {
		r.Frames = append(r.Frames, frame(segment.Logs, 2*i+1, nil, 0)) // gaps: no ranges
	}
	wantVerdict(t, newTestSink(t, httpOptions(srv.URL)).Deliver(t.Context(), r), segment.Delivered)
	if got := ids.get()[0]; got != segment.FrameIDs(r.Frames) {
		t.Errorf("ids %.100s", got)
	}
	o := httpOptions(srv.URL)
	o.FrameIDs = false
	wantVerdict(t, newTestSink(t, o).Deliver(t.Context(), r), segment.Delivered)
	if got := ids.get()[1]; got != "" {
		t.Errorf("ids %.100s though switched off", got)
	}
}

// Two sinks share the frames; neither changes them, and both servers get the bytes as they came, unknown fields too.
func TestCase64BytesUnchanged(t *testing.T) {
	r := request(t, segment.Logs, 3, 2)
	for i := range r.Frames {
		r.Frames[i].Body = append(r.Frames[i].Body, unknownField...)
	}
	want := slices.Clone(merged(r))
	var got collector[[]byte]
	srv := serve(t, func(_ http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		if r.Header.Get("Content-Encoding") == "gzip" {
			b, _ = strictGunzip(b)
		}
		got.add(b)
	})
	o := httpOptions(srv.URL)
	plain := newTestSink(t, o)
	o.Compression = CompressionGzip
	zipped := newTestSink(t, o)
	file := newTestSink(t, Options{Type: TypeFile, Directory: t.TempDir()})
	var wg sync.WaitGroup
	for range 20 {
		for _, s := range []Sink{plain, zipped, file} {
			wg.Go(func() {
				if out := s.Deliver(context.Background(), r); out.Verdict != segment.Delivered {
					t.Error(out.Err)
				}
			})
		}
	}
	wg.Wait()
	if len(got.get()) != 40 {
		t.Errorf("%d requests", len(got.get()))
	}
	for _, b := range append(got.get(), merged(r)) {
		if !bytes.Equal(b, want) {
			t.Fatal("bytes differ")
		}
	}
}

func TestHTTPOptionsAreChecked(t *testing.T) {
	for _, c := range []struct {
		want   string
		change func(*Options)
	}{
		{"endpoint", func(o *Options) { o.Endpoint = "collector:4318" }},
		{"endpoint: ", func(o *Options) { o.Endpoint = "ftp://u:hunter2@h" }},
		{"endpoint", func(o *Options) { o.Endpoint = "http://h#x" }},
		{"http://host[", func(o *Options) { o.Endpoint = "http://" }},
		{"compression", func(o *Options) { o.Compression = "snappy" }},
		{"timeout", func(o *Options) { o.Timeout = 0 }},
		{"in_flight", func(o *Options) { o.InFlight = 0 }},
		{"retry_codes", func(o *Options) { o.RetryCodes = []int{200} }},
		{"413", func(o *Options) { o.RetryCodes = []int{413} }},
		{"not a valid", func(o *Options) { o.Headers = map[string]string{"a b": "hunter2"} }},
		{"forbidden", func(o *Options) { o.Headers = map[string]string{"a": "hunter2\n"} }},
		{"set by the", func(o *Options) { o.Headers = map[string]string{"content-type": "hunter2"} }},
		{"/absent", func(o *Options) { o.TLS.CAFile = "/absent" }},
		{"give both", func(o *Options) { o.TLS.CertFile = "/absent" }},
		{"not one of", func(o *Options) { o.Type = "kafka" }},
	} {
		o := httpOptions("http://h:1")
		c.change(&o)
		_, err := New("acme", o)
		if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "acme") || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("want an error about %q, got %v", c.want, err)
		}
	}
}

func TestSignalURLs(t *testing.T) {
	for endpoint, want := range map[string]string{
		"http://h:4318":        "http://h:4318/v1/traces",
		"https://h/":           "https://h/v1/traces",
		"http://h/otlp":        "http://h/otlp/v1/traces",
		"http://h/otlp/":       "http://h/otlp/v1/traces",
		"http://h/a%2Fb/?k=v":  "http://h/a%2Fb/v1/traces?k=v",
		"http://h?k=v/":        "http://h/v1/traces?k=v/",
		"http://[::1]:4318/x/": "http://[::1]:4318/x/v1/traces",
	} {
		urls, err := signalURLs(endpoint)
		if err != nil || urls[segment.Traces.Index()].String() != want {
			t.Errorf("%s: %v, %v; want %s", endpoint, urls[segment.Traces.Index()], err, want)
		}
	}
}
