package otlpgen

import (
	"bufio"
	"errors"
	"fmt"
	"io"

	"go.opentelemetry.io/collector/pdata/plog"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/pdata/ptrace"

	"ingest-agent/segment"
)

// MaxLineBytes bounds a line of NDJSON.
const MaxLineBytes = 256 << 20

// ErrTornLine is returned by WalkNDJSON when the last line has no line end: its writer was stopped in the middle of it,
// or is at work.
var ErrTornLine = errors.New("read lines: the last line has no end")

// WalkNDJSON calls visit for the number of each record in lines of OTLP JSON, each line one request. Errors are as for
// Walk; a last line without its end is not read and gives ErrTornLine.
func WalkNDJSON(signal segment.Signal, r io.Reader, visit func(seq uint64)) error {
	lines := bufio.NewReader(r)
	for number := 1; ; number++ {
		line, err := readLine(lines)
		switch {
		case errors.Is(err, io.EOF) && len(line) == 0:
			return nil
		case errors.Is(err, io.EOF):
			return ErrTornLine
		case err != nil:
			return fmt.Errorf("read line %d: %w", number, err)
		}
		body, err := protoOf(signal, line)
		if err != nil {
			return fmt.Errorf("read line %d: %w", number, err)
		}
		if err := Walk(signal, body, visit); err != nil {
			return fmt.Errorf("read line %d: %w", number, err)
		}
	}
}

// readLine returns a line with its end. Its error is io.EOF if the end is missing.
func readLine(r *bufio.Reader) ([]byte, error) {
	var line []byte
	for {
		part, err := r.ReadSlice('\n')
		line = append(line, part...)
		if !errors.Is(err, bufio.ErrBufferFull) {
			return line, err
		}
		if len(line) > MaxLineBytes {
			return nil, fmt.Errorf("it is over %d bytes", MaxLineBytes)
		}
	}
}

// protoOf is the protobuf form of a request in JSON.
func protoOf(signal segment.Signal, line []byte) ([]byte, error) {
	switch signal {
	case segment.Logs:
		d, err := (&plog.JSONUnmarshaler{}).UnmarshalLogs(line)
		if err != nil {
			return nil, err
		}
		return (&plog.ProtoMarshaler{}).MarshalLogs(d)
	case segment.Traces:
		d, err := (&ptrace.JSONUnmarshaler{}).UnmarshalTraces(line)
		if err != nil {
			return nil, err
		}
		return (&ptrace.ProtoMarshaler{}).MarshalTraces(d)
	default:
		d, err := (&pmetric.JSONUnmarshaler{}).UnmarshalMetrics(line)
		if err != nil {
			return nil, err
		}
		return (&pmetric.ProtoMarshaler{}).MarshalMetrics(d)
	}
}
