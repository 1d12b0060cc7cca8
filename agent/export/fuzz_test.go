package export

import (
	"bytes"
	"encoding/json"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	spb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"ingest-agent/agent/otlpwire"
	"ingest-agent/segment"
)

// checkOutcome fails unless an outcome is one that a drain can work with and its error one line of bounded text.
func checkOutcome(t *testing.T, out segment.Outcome, records uint64) {
	t.Helper()
	if out.Verdict < segment.Delivered || out.Verdict > segment.TooLarge {
		t.Errorf("verdict %d", out.Verdict)
	}
	if out.RetryAfter < 0 || (out.RetryAfter > 0 && out.Verdict != segment.Retry) {
		t.Errorf("verdict %d after %v", out.Verdict, out.RetryAfter)
	}
	if out.Rejected > records || (out.Rejected > 0 && out.Verdict != segment.Delivered) {
		t.Errorf("verdict %d, %d of %d rejected", out.Verdict, out.Rejected, records)
	}
	if out.Err == nil {
		if out.Verdict != segment.Delivered || out.Rejected > 0 {
			t.Errorf("verdict %d, %d rejected: no error says why", out.Verdict, out.Rejected)
		}
		return
	}
	if text := out.Err.Error(); len(text) > maxMessageBytes+1000 || !utf8.ValidString(text) || strings.ContainsFunc(text, func(c rune) bool { return c < ' ' || c == 0x7f }) {
		t.Errorf("error %q", text)
	}
}

// FuzzHTTPAnswer: whatever a destination answers over HTTP, the verdict is that of its status.
func FuzzHTTPAnswer(f *testing.F) {
	partial := []byte("\x0a\x07\x08\x03\x12\x03old")
	f.Add(uint16(200), uint8(1), contentProtobuf, "", "", partial)
	f.Add(uint16(200), uint8(2), contentJSON, "", "", []byte(`{"partialSuccess":{"rejectedSpans":"3","errorMessage":"old"}}`))
	f.Add(uint16(202), uint8(3), contentJSON+"; charset=utf-8", "", "", []byte(`{"partialSuccess":{"rejectedDataPoints":-1}}`))
	f.Add(uint16(429), uint8(1), "text/plain", "9223372037", "", []byte("slow\ndown \xff"))
	f.Add(uint16(503), uint8(1), contentProtobuf, "Wed, 01 Jan 2020 00:00:09 GMT", "Wed, 01 Jan 2020 00:00:00 GMT", []byte("\x08\x0e\x12\x04busy"))
	f.Add(uint16(413), uint8(2), contentJSON, "-1", "yesterday", []byte(`{"code":8,"message":"\u2028"}`))
	f.Add(uint16(400), uint8(3), "a/b;;", "Monday", "", []byte(`{"message":`))
	sink, err := newHTTPSink(httpOptions("http://h"))
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, code uint16, signal uint8, contentType, retryAfter, date string, answer []byte) {
		s := segment.Signal(signal)
		if !s.Valid() || code < 200 || code > 999 || len(answer) > maxAnswerBytes {
			return
		}
		header := http.Header{"Content-Type": {contentType}, "Retry-After": {retryAfter}, "Date": {date}}
		r := request(t, s, 2, 2)
		out := sink.judge(r, &http.Response{StatusCode: int(code), Header: header}, answer, &payload{}, nil)
		checkOutcome(t, out, r.Records())
		if want := wantHTTP(int(code)); out.Verdict != want {
			t.Errorf("HTTP %d: verdict %d, want %d", code, out.Verdict, want)
		}
	})
}

// FuzzGRPCStatus: whatever status a destination sends, the verdict is that of its code, a RetryInfo and a few words.
func FuzzGRPCStatus(f *testing.F) {
	for _, code := range []codes.Code{codes.InvalidArgument, codes.ResourceExhausted, codes.Unavailable, 99} {
		for _, form := range retryDetails(f) {
			b, err := proto.Marshal(&spb.Status{Code: int32(code), Message: "grpc: received message larger than max", Details: form.details})
			if err != nil {
				f.Fatal(err)
			}
			f.Add(b, false)
		}
	}
	sink, err := newGRPCSink(grpcOptions("h:1"))
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { mustClose(f, sink) })
	f.Fuzz(func(t *testing.T, raw []byte, answered bool) {
		var st spb.Status
		if proto.Unmarshal(raw, &st) != nil || st.GetCode() == 0 {
			return
		}
		out := sink.judge(status.FromProto(&st).Err(), answered)
		checkOutcome(t, out, 0)
		switch code := codes.Code(st.GetCode()); code {
		case codes.Canceled, codes.DeadlineExceeded, codes.Aborted, codes.Unavailable, codes.DataLoss:
			if out.Verdict != segment.Retry {
				t.Errorf("%v: verdict %d", code, out.Verdict)
			}
		case codes.InvalidArgument, codes.Unauthenticated, codes.PermissionDenied:
			if out.Verdict != segment.Refused && !saysCut(status.FromProto(&st)) {
				t.Errorf("%v: verdict %d", code, out.Verdict)
			}
		default:
		}
		if out.Verdict == segment.Delivered {
			t.Error("a refusal was taken for a delivery")
		}
	})
}

// FuzzEncodeLine: what the receiver lets in becomes one line of OTLP JSON with the same number of records.
func FuzzEncodeLine(f *testing.F) {
	for _, signal := range segment.Signals {
		f.Add(uint8(signal), body(f, signal, "name", 2))
	}
	f.Fuzz(func(t *testing.T, signal uint8, b []byte) {
		s := segment.Signal(signal)
		info, err := otlpwire.Check(s, b)
		if err != nil || len(b) > 1<<16 {
			return
		}
		line, err := encodeLine(&segment.Request{Signal: s, Frames: []segment.Frame{frame(s, 1, b, info.Records)}})
		if err != nil {
			t.Fatalf("accepted, but not written: %v", err)
		}
		if text, ok := bytes.CutSuffix(line, []byte("\n")); !ok || bytes.ContainsAny(text, "\n\x00") || !json.Valid(text) {
			t.Errorf("not one line of JSON: %q", line)
		} else if n := checkLine(t, s, text); n != info.Records {
			t.Errorf("%d records of %d: %s", n, info.Records, text)
		}
	})
}

// FuzzDeadFileName: a name that is taken for a dead letter's is the only one of what it says, and stays in its directory.
func FuzzDeadFileName(f *testing.F) {
	lane := &deadLane{dir: filepath.Join("dead", "owner", "default.0")}
	whole := newDeadFile(lane, deadFrame("default", segment.Logs, 3, 2, "body"))
	f.Add(filepath.Base(whole.path()))
	f.Add(strings.ToUpper(filepath.Base(whole.path())))
	f.Add("../" + filepath.Base(whole.path()))
	f.Add("1-1-00000000000000000000000000000000.logs.1.seg")
	f.Add("..seg")
	f.Fuzz(func(t *testing.T, name string) {
		got, err := parseDeadFile(lane, name)
		if err != nil {
			return
		}
		if got.path() != lane.dir+string(filepath.Separator)+name || !got.signal.Valid() {
			t.Errorf("%q is read as %q", name, got.path())
		}
		if again, err := parseDeadFile(lane, filepath.Base(got.path())); err != nil || again != got {
			t.Errorf("%q: %+v, then %+v (%v)", name, got, again, err)
		}
	})
}

// FuzzTornLines: what a crash left of a file is cut behind a whole line, nothing that may have been confirmed is cut, and a
// second repair finds nothing to do.
func FuzzTornLines(f *testing.F) {
	f.Add([]byte("{}\n{}\n"), uint16(0))
	f.Add([]byte("{}\n{\"a\":"), uint16(0))
	f.Add([]byte("{}\n\x00\x00\x00\n{}\n"), uint16(1))
	f.Add([]byte("no line"), uint16(2))
	f.Fuzz(func(t *testing.T, image []byte, from uint16) {
		size := int64(len(image))
		at := min(int64(from), size)
		keep, err := wholeLines(bytes.NewReader(image), at, size)
		good := image[at:]
		if zero := bytes.IndexByte(good, 0); zero >= 0 {
			good = good[:zero]
		}
		want := at + int64(bytes.LastIndexByte(good, '\n')) + 1
		if want == at && at > 0 { // no line end, and what is before was not looked at
			if err == nil {
				t.Fatalf("cut at %d without a line", keep)
			}
			return
		}
		if err != nil || keep != want {
			t.Fatalf("keep %d (%v), want %d", keep, err, want)
		}
		if again, err := wholeLines(bytes.NewReader(image[:keep]), at, keep); at < keep && (err != nil || again != keep) {
			t.Errorf("a second repair cuts at %d of %d (%v)", again, keep, err)
		}
	})
}

// FuzzRetryAfter: a delay is never negative, and one in seconds is what it says or stands for more than the type holds.
func FuzzRetryAfter(f *testing.F) {
	for _, text := range []string{"", "0", "7", "-1", "1e3", "0x10", "99999999999999999999", "Fri, 31 Dec 9999 23:59:59 GMT"} {
		f.Add(text, "Wed, 01 Jan 2020 00:00:00 GMT")
	}
	f.Fuzz(func(t *testing.T, text, date string) {
		got := retryAfter(http.Header{"Retry-After": {text}, "Date": {date}}, time.Unix(1700000000, 0))
		if got < 0 {
			t.Errorf("delay %v", got)
		}
		if d, err := time.ParseDuration(strings.TrimSpace(text) + "s"); err == nil && strings.Trim(strings.TrimSpace(text), "0123456789") == "" && got != d {
			t.Errorf("delay %v, want %v", got, d)
		}
		if _, err := http.ParseTime(strings.TrimSpace(text)); err != nil && strings.ContainsAny(text, ".-+:ex") && got != 0 {
			t.Errorf("%q is neither seconds nor a date, but means %v", text, got)
		}
	})
}
