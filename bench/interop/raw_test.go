package interop

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/encoding/protowire"
)

// codings are those that OTLP bodies are sent in here.
func codings() []string { return []string{"none", "gzip", "zstd"} }

// TestBytesReceivedAreBytesDelivered: requests with fields that nobody knows, at every level, arrive as they were sent.
func TestBytesReceivedAreBytesDelivered(t *testing.T) {
	t.Parallel()
	for _, to := range transports() {
		for _, compression := range codings() {
			t.Run("to/"+to+"/"+compression, func(t *testing.T) {
				t.Parallel()
				s := startSink(t)
				a := startAgent(t, onePort+anyDisk+destination(to, s.addr(to), ", compression: "+compression))
				n := 0
				for _, from := range transports() {
					send := newSender(t, from, a.addr(from))
					for _, coding := range codings() {
						for _, sig := range signals() {
							body := strangeRequest(sig, fmt.Sprint("number ", n))
							send(coding, sig, body)
							n++
							await(t, "the request arrives", func() bool { return len(s.requests()) >= n })
							checkRequest(t, s.requests()[n-1], request{signal: sig, body: body, coding: httpCoding(to, compression)})
						}
					}
				}
				a.allDelivered()
				if len(s.requests()) != n {
					t.Errorf("%d requests arrived, want %d", len(s.requests()), n)
				}
			})
		}
	}
}

// httpCoding is the Content-Encoding of a request to a destination; gRPC has none that the sink could see.
func httpCoding(transport, compression string) string {
	if transport == overGRPC || compression == "none" {
		return ""
	}
	return compression
}

func checkRequest(t *testing.T, got, want request) {
	t.Helper()
	if got.signal != want.signal || !bytes.Equal(got.body, want.body) {
		t.Errorf("%s of %d bytes arrived as %s of %d:\n%x\n%x", want.signal, len(want.body), got.signal, len(got.body), want.body, got.body)
	}
	if got.coding != want.coding {
		t.Errorf("coding %q, want %q", got.coding, want.coding)
	}
	if got.frames == "" {
		t.Error("no frame ids")
	}
}

// seed is that of what is drawn at random.
var seed = flag.Uint64("seed", 1, "`number` that what is drawn at random comes from")

// TestBytesOfMergedRequests: of many requests, some wait while the destination does not answer, and leave together: as nothing
// but their bytes one after the other, none twice.
func TestBytesOfMergedRequests(t *testing.T) {
	t.Parallel()
	for _, to := range transports() {
		for _, compression := range codings() {
			t.Run("to/"+to+"/"+compression, func(t *testing.T) {
				t.Parallel()
				t.Logf("seed %d", *seed)
				s := startSink(t)
				s.hold()
				a := startAgent(t, onePort+anyDisk+destination(to, s.addr(to), ", timeout: 1m, compression: "+compression))
				const count = 200
				sent := sendMany(t, a, count)
				s.release()
				a.allDelivered()
				if n := len(s.requests()); n >= count {
					t.Errorf("%d requests arrived of %d: none were merged", n, count)
				}
				takeApart(t, s.requests(), sent)
			})
		}
	}
}

// sendMany sends requests drawn at random, in every way, and returns their bodies. The agent must count their bytes.
func sendMany(t *testing.T, a *agent, count int) map[signal][][]byte {
	t.Helper()
	draw := rand.New(rand.NewPCG(*seed, 0))
	send := map[string]sender{}
	for _, from := range transports() {
		send[from] = newSender(t, from, a.addr(from))
	}
	sent, sentBytes := map[signal][][]byte{}, 0
	for i := range count {
		sig, coding := signals()[draw.IntN(3)], codings()[draw.IntN(3)]
		body := strangeRequest(sig, fmt.Sprint("number ", i, strings.Repeat("x", draw.IntN(2000))))
		send[transports()[draw.IntN(2)]](coding, sig, body)
		sent[sig], sentBytes = append(sent[sig], body), sentBytes+len(body)
	}
	if n := a.metric("bytes_accepted_total", ""); n != uint64(sentBytes) {
		t.Errorf("the agent says it took %d bytes of %d", n, sentBytes)
	}
	return sent
}

// takeApart fails the test unless requests are made of the bodies of sent, each once.
func takeApart(t *testing.T, requests []request, sent map[signal][][]byte) {
	t.Helper()
	for _, r := range requests {
		for rest := r.body; len(rest) > 0; {
			i := slices.IndexFunc(sent[r.signal], func(body []byte) bool { return bytes.HasPrefix(rest, body) })
			if i < 0 {
				t.Fatalf("%s: never sent, or sent once and here again: %x", r.signal, rest)
			}
			rest = rest[len(sent[r.signal][i]):]
			sent[r.signal] = slices.Delete(sent[r.signal], i, i+1)
		}
	}
	for sig, left := range sent {
		if len(left) > 0 {
			t.Errorf("%d requests with %s are missing", len(left), sig)
		}
	}
}

// sender sends a body to an agent, and fails the test unless it is taken.
type sender func(coding string, s signal, body []byte)

func newSender(t *testing.T, transport, addr string) sender {
	t.Helper()
	if transport == overHTTP {
		client := &http.Client{Timeout: limit, Transport: &http.Transport{}}
		t.Cleanup(client.CloseIdleConnections)
		return func(coding string, s signal, body []byte) {
			t.Helper()
			if status := post(t, client, addr, coding, s, body); status != http.StatusOK {
				t.Fatalf("%s, %s: status %d", s, coding, status)
			}
		}
	}
	conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.ForceCodec(rawCodec{})))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() }) // nothing is left to send
	return func(coding string, s signal, body []byte) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		defer cancel()
		var options []grpc.CallOption
		if coding != "none" {
			options = append(options, grpc.UseCompressor(coding)) // the Collector's modules register zstd
		}
		var answer []byte
		if err := conn.Invoke(ctx, s.method(), &body, &answer, options...); err != nil {
			t.Fatalf("%s, %s: %v", s, coding, err)
		}
	}
}

// post sends a body over HTTP and returns the status.
func post(t *testing.T, client *http.Client, addr, coding string, s signal, body []byte) int {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+addr+"/v1/"+string(s), bytes.NewReader(deflate(t, coding, body)))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", protobufType)
	if coding != "none" {
		req.Header.Set("Content-Encoding", coding)
	}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode
}

func deflate(t *testing.T, coding string, body []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	var w io.WriteCloser
	var err error
	switch coding {
	case "gzip":
		w = gzip.NewWriter(&out)
	case "zstd":
		w, err = zstd.NewWriter(&out)
	default:
		return body
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(body); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// The functions below spell protobuf by hand, since no library writes what is wanted here.

// part is a length-delimited field.
func part(number protowire.Number, content ...[]byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(nil, number, protowire.BytesType), slices.Concat(content...))
}

func text(number protowire.Number, s string) []byte { return part(number, []byte(s)) }

func fixed(number protowire.Number, v uint64) []byte {
	return protowire.AppendFixed64(protowire.AppendTag(nil, number, protowire.Fixed64Type), v)
}

func varint(number protowire.Number, v uint64) []byte {
	return protowire.AppendVarint(protowire.AppendTag(nil, number, protowire.VarintType), v)
}

// strange is fields of each wire type with numbers that OTLP does not have: what a newer client may send. place makes them
// differ, so that bytes from elsewhere would not pass for them.
func strange(place byte) []byte {
	b := protowire.AppendTag(nil, 900, protowire.VarintType)
	b = append(b, place|0x80, 0x80, 0x00) // a number that takes more bytes than it needs
	b = protowire.AppendFixed32(protowire.AppendTag(b, 2000, protowire.Fixed32Type), math.MaxUint32)
	b = append(b, fixed(3000, uint64(place))...)
	b = append(b, part(4000, []byte{0xff, 0xfe, place})...)
	b = protowire.AppendTag(b, 5000, protowire.StartGroupType) // groups with fields are refused, as pdata does
	b = protowire.AppendTag(b, 5000, protowire.EndGroupType)
	return append(b, varint(protowire.MaxValidNumber, 1<<63)...)
}

func attributeField(number protowire.Number, place byte) []byte {
	return part(number, strange(place), text(1, "key"), part(2, text(1, fmt.Sprint("value ", place)), strange(place+1)))
}

// strangeRequest is a request with one record of a name, with strange fields at every level.
func strangeRequest(s signal, name string) []byte {
	return slices.Concat(strange(40), strangeResource(s, name), strange(43))
}

// strangeResource is strangeRequest without those of the request itself. Fields are not in the order of their numbers, as no
// encoder would write them.
func strangeResource(s signal, name string) []byte {
	traceID, spanID := bytes.Repeat([]byte{0xab}, 16), bytes.Repeat([]byte{0xcd}, 8)
	var record []byte
	switch s {
	case "logs":
		record = part(fieldRecord, strange(1), part(5, strange(2), text(1, name)), attributeField(6, 10), fixed(1, 42), varint(2, 9),
			part(9, traceID), part(10, spanID))
	case "traces":
		record = part(fieldRecord, attributeField(9, 10), part(2, spanID), part(1, traceID), strange(1), text(5, name),
			part(11, strange(2), text(2, "event"), attributeField(3, 12)), part(13, strange(3), part(1, traceID), part(2, spanID)),
			part(15, strange(4), varint(3, 2)))
	case "metrics":
		record = part(fieldRecord, strange(1), part(5, strange(2), part(1, strange(3), fixed(4, math.Float64bits(0.1)), attributeField(7, 10), fixed(3, 42))),
			text(1, name))
	}
	scope := part(1, strange(20), text(2, "version"), text(1, "scope"), attributeField(3, 21))
	resource := part(1, attributeField(1, 30), strange(31))
	return part(fieldResource, part(fieldScope, text(3, "schema"), record, strange(41), scope), strange(42), resource, text(3, "schema"))
}
