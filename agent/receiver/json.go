package receiver

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"go.opentelemetry.io/collector/pdata/plog/plogotlp"
	"go.opentelemetry.io/collector/pdata/pmetric/pmetricotlp"
	"go.opentelemetry.io/collector/pdata/ptrace/ptraceotlp"
	"golang.org/x/sync/semaphore"

	"ingest-agent/segment"
)

// jsonDecoder turns OTLP JSON into protobuf.
type jsonDecoder struct {
	maxObjects int64
	objects    *semaphore.Weighted // objects that are being decoded, of all requests
}

func newJSONDecoder(limitBytes int) *jsonDecoder {
	n := int64(max(limitBytes/jsonBytesPerObject, minJSONObjects))
	return &jsonDecoder{maxObjects: n, objects: semaphore.NewWeighted(n)}
}

// decode waits until there is memory for the objects in text, and returns the request as protobuf.
func (d *jsonDecoder) decode(ctx context.Context, signal segment.Signal, text []byte) ([]byte, error) {
	objects, err := surveyJSON(text)
	if err != nil {
		return nil, err
	}
	if objects > d.maxObjects {
		refused := tooLarge(0)
		refused.text = fmt.Sprintf("request has more than %d JSON objects", d.maxObjects)
		return nil, refused
	}
	if err := d.objects.Acquire(ctx, objects); err != nil {
		return nil, err
	}
	defer d.objects.Release(objects)
	return transcode(signal, text)
}

// anything takes any JSON value without keeping it.
type anything struct{}

func (*anything) UnmarshalJSON([]byte) error { return nil }

// surveyJSON counts the objects of a JSON text and refuses what pdata's parser, which trusts its input more, would get
// wrong: text behind the value and fields behind one without a name are ignored by it, so that a success would be answered
// for records that are not stored; and it recurses as deep as the text is nested.
func surveyJSON(text []byte) (objects int64, err error) {
	if err := json.Unmarshal(text, new(anything)); err != nil {
		if syntax, is := errors.AsType[*json.SyntaxError](err); is {
			return 0, badData("body is not JSON: byte %d: %v", syntax.Offset, syntax)
		}
		return 0, badData("body is not JSON")
	}
	if first := bytes.TrimLeft(text, " \t\r\n"); first[0] != '{' {
		return 0, badData("body is not a JSON object")
	}
	depth := 0
	for i := 0; i < len(text); i++ {
		switch text[i] {
		case '{':
			objects++
			depth++
		case '[':
			depth++
		case '}', ']':
			depth--
		case '"':
			end := endOfString(text, i+1)
			if end == i+1 && isFieldName(text[end+1:]) {
				return 0, badData("byte %d: a field without a name", i)
			}
			i = end
		}
		if depth > maxJSONDepth {
			return 0, badData("byte %d: JSON is nested deeper than %d", i, maxJSONDepth)
		}
	}
	return objects, nil
}

// endOfString is the place of the quote that ends the string of valid JSON that begins at i.
func endOfString(text []byte, i int) int {
	for text[i] != '"' {
		if text[i] == '\\' {
			i++
		}
		i++
	}
	return i
}

func isFieldName(rest []byte) bool {
	return bytes.HasPrefix(bytes.TrimLeft(rest, " \t\r\n"), []byte(":"))
}

// transcode parses text and encodes it as protobuf.
func transcode(signal segment.Signal, text []byte) (body []byte, err error) {
	// The parser is not ours and sees outside bytes: what makes it panic is bad data, not the end of the request's
	// connection or of the process.
	defer func() {
		if p := recover(); p != nil {
			body, err = nil, badData("body is not OTLP JSON")
		}
	}()
	var request interface {
		UnmarshalJSON([]byte) error
		MarshalProto() ([]byte, error)
	}
	switch signal {
	case segment.Logs:
		request = plogotlp.NewExportRequest()
	case segment.Traces:
		request = ptraceotlp.NewExportRequest()
	case segment.Metrics:
		request = pmetricotlp.NewExportRequest()
	}
	if err := request.UnmarshalJSON(text); err != nil {
		// The rest of the parser's text repeats parts of the body.
		cause, _, _ := strings.Cut(err.Error(), ", error found in")
		return nil, badData("body is not OTLP JSON: %s", cause)
	}
	if body, err = request.MarshalProto(); err != nil {
		return nil, badData("body is not OTLP JSON")
	}
	return body, nil
}
