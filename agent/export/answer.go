package export

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"mime"
	"net/http"
	"strconv"
	"strings"
	"time"

	"go.opentelemetry.io/collector/pdata/plog/plogotlp"
	"go.opentelemetry.io/collector/pdata/pmetric/pmetricotlp"
	"go.opentelemetry.io/collector/pdata/ptrace/ptraceotlp"
	spb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/protobuf/proto"

	"ingest-agent/segment"
)

const (
	contentProtobuf = "application/x-protobuf"
	contentJSON     = "application/json"

	// maxMessageBytes is how much of a destination's own words goes into an error, and so into logs and dead letters.
	maxMessageBytes = 256

	// maxDelay stands for each delay that is too long for its type. How much of a delay is heeded is for the caller to say.
	maxDelay time.Duration = math.MaxInt64
)

// delivered is the outcome of a success answer. By the OTLP specification a partial success is a success: what was rejected
// is not sent again. Err is set beside Delivered if the destination said something, or something that can not be read.
func delivered(r *segment.Request, contentType string, answer []byte) segment.Outcome {
	out := segment.Outcome{Verdict: segment.Delivered}
	kind := mediaType(contentType)
	if len(answer) == 0 || (kind != contentProtobuf && kind != contentJSON) {
		return out // a proxy or a plain sink; it has confirmed all the same
	}
	rejected, message, err := parsePartialSuccess(r.Signal, kind == contentJSON, answer)
	if err != nil {
		out.Err = errors.New("parse success answer: " + clean(err.Error())) // it quotes the answer
		return out
	}
	return partial(r, rejected, message)
}

// partial is the outcome of a success answer with these fields. More than was sent can not have been rejected.
func partial(r *segment.Request, rejected int64, message string) segment.Outcome {
	out := segment.Outcome{Verdict: segment.Delivered, Rejected: min(uint64(max(rejected, 0)), r.Records())}
	switch {
	case out.Rejected > 0:
		out.Err = fmt.Errorf("partial success: %d of %d records rejected: %s", out.Rejected, r.Records(), clean(message))
	case message != "":
		out.Err = errors.New("warning from the destination: " + clean(message))
	}
	return out
}

func parsePartialSuccess(signal segment.Signal, asJSON bool, answer []byte) (rejected int64, message string, err error) {
	parse := func(fromProto, fromJSON func([]byte) error) error {
		if asJSON {
			return fromJSON(answer)
		}
		return fromProto(answer)
	}
	switch signal {
	case segment.Logs:
		r := plogotlp.NewExportResponse()
		err = parse(r.UnmarshalProto, r.UnmarshalJSON)
		rejected, message = r.PartialSuccess().RejectedLogRecords(), r.PartialSuccess().ErrorMessage()
	case segment.Traces:
		r := ptraceotlp.NewExportResponse()
		err = parse(r.UnmarshalProto, r.UnmarshalJSON)
		rejected, message = r.PartialSuccess().RejectedSpans(), r.PartialSuccess().ErrorMessage()
	case segment.Metrics:
		r := pmetricotlp.NewExportResponse()
		err = parse(r.UnmarshalProto, r.UnmarshalJSON)
		rejected, message = r.PartialSuccess().RejectedDataPoints(), r.PartialSuccess().ErrorMessage()
	}
	return rejected, message, err
}

// statusError is the error of an answer that is no success: the status and what the destination says about it, which is a
// google.rpc.Status by the OTLP specification and plain text from many a proxy.
func statusError(response *http.Response, answer []byte) error {
	message := ""
	switch mediaType(response.Header.Get("Content-Type")) {
	case contentProtobuf:
		var status spb.Status
		if proto.Unmarshal(answer, &status) == nil {
			message = status.GetMessage()
		}
	case contentJSON:
		var status struct {
			Message string `json:"message"`
		}
		if json.Unmarshal(answer, &status) == nil {
			message = status.Message
		}
	case "text/plain":
		message = string(answer)
	}
	text := fmt.Sprintf("destination answered HTTP %d %s", response.StatusCode, http.StatusText(response.StatusCode))
	if message = clean(message); message != "" {
		text += ": " + message
	}
	return errors.New(strings.TrimSpace(text))
}

// retryAfter reads a Retry-After header: seconds or a date (RFC 9110, 10.2.3). What is neither is ignored. A date is taken
// relative to the Date of the same answer, so that the two hosts' clocks need not agree; now stands in if there is none.
func retryAfter(header http.Header, now time.Time) time.Duration {
	text := strings.TrimSpace(header.Get("Retry-After"))
	if text == "" {
		return 0
	}
	if strings.Trim(text, "0123456789") == "" {
		seconds, err := strconv.ParseInt(text, 10, 64)
		if err != nil || seconds > int64(maxDelay/time.Second) {
			return maxDelay
		}
		return time.Duration(seconds) * time.Second
	}
	at, err := http.ParseTime(text)
	if err != nil {
		return 0
	}
	if date, err := http.ParseTime(header.Get("Date")); err == nil {
		now = date
	}
	return max(at.Sub(now), 0)
}

func mediaType(contentType string) string {
	kind, _, err := mime.ParseMediaType(contentType)
	if err != nil {
		return ""
	}
	return kind
}

// clean makes foreign text fit for one line of a log.
func clean(text string) string {
	if len(text) > maxMessageBytes {
		text = text[:maxMessageBytes] + "…"
	}
	text = strings.ToValidUTF8(text, "")
	return strings.TrimSpace(strings.Map(func(c rune) rune {
		if c < ' ' || c == 0x7f || c == '\u2028' || c == '\u2029' {
			return ' '
		}
		return c
	}, text))
}
