package export

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"go.opentelemetry.io/collector/pdata/plog"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/pdata/ptrace"
	"golang.org/x/sys/unix"

	"ingest-agent/segment"
	"ingest-agent/segment/vfs"
)

const (
	// DefaultMaxFileBytes is the size at which a file is rotated if RotationOptions does not say another; it is that of
	// the Collector's file exporter.
	DefaultMaxFileBytes = 100 << 20

	// maxLineBytes bounds one line, and with it what a request may take in memory as JSON. A longer one is TooLarge.
	maxLineBytes = 64 << 20

	filePerm = 0o640
	dirPerm  = 0o750
)

// RotationOptions of a file destination. A file that would grow over MaxFileBytes is renamed to <signal>-<UTC time>.ndjson,
// as the Collector's file exporter does, and a new one begun.
type RotationOptions struct {
	MaxFileBytes int64 // 0: DefaultMaxFileBytes. A single line that is longer gets a file of its own
	// MaxBackups is how many rotated files are kept for each signal; 0, the default, keeps all. The Collector keeps 100 and
	// deletes the others. Here a file is what was delivered, perhaps its only copy, so it goes only by the operator's wish.
	MaxBackups int
}

// fileSink appends each request as one line of OTLP JSON to a file per signal: logs.ndjson, traces.ndjson, metrics.ndjson.
type fileSink struct {
	lock  io.Closer // nil if there is none
	files [segment.NumSignals]*lineFile
}

// openFileSink makes the sink on a directory of the disk that it alone writes to.
func openFileSink(dir string, rotation RotationOptions) (*fileSink, error) {
	if dir == "" {
		return nil, errors.New("directory: must be set")
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("find directory: %w", err)
	}
	if err := vfs.MkdirAll(vfs.OS(), dir, dirPerm); err != nil {
		return nil, err
	}
	lock, err := lockDir(dir)
	if err != nil {
		return nil, err
	}
	s, err := newFileSink(vfs.OS(), dir, rotation)
	if err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	s.lock = lock
	return s, nil
}

// newFileSink repairs the files in the directory and starts a writer for each signal.
func newFileSink(fsys vfs.FS, dir string, rotation RotationOptions) (*fileSink, error) {
	if rotation.MaxFileBytes < 0 || rotation.MaxBackups < 0 {
		return nil, errors.New("rotation: sizes and counts must not be negative")
	}
	if rotation.MaxFileBytes == 0 {
		rotation.MaxFileBytes = DefaultMaxFileBytes
	}
	s := &fileSink{}
	for _, signal := range segment.Signals {
		f := newLineFile(fsys, dir, signal.String(), rotation)
		f.repairExisting()
		s.files[signal.Index()] = f
		go f.run()
	}
	return s, nil
}

// lockDir locks the directory against a second sink, of this or another process: each would cut off what the other writes.
func lockDir(dir string) (*os.File, error) {
	d, err := os.Open(dir)
	if err != nil {
		return nil, fmt.Errorf("open directory: %w", err)
	}
	if err := unix.Flock(int(d.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		if errors.Is(err, unix.EWOULDBLOCK) {
			err = errors.New("another file destination or process writes to it")
		}
		return nil, errors.Join(fmt.Errorf("lock directory %s: %w", dir, err), d.Close())
	}
	return d, nil
}

// Deliver implements segment.Sink. Trouble with the disk is Retry, a body that is no OTLP is Refused. When ctx ends while
// the line is being written, the outcome is Retry and the line may be there all the same.
func (s *fileSink) Deliver(ctx context.Context, r *segment.Request) segment.Outcome {
	if err := ctx.Err(); err != nil {
		return retry(err)
	}
	line, err := encodeLine(r)
	if err != nil {
		return refused(err)
	}
	if len(line) > maxLineBytes {
		return segment.Outcome{Verdict: segment.TooLarge,
			Err: fmt.Errorf("request takes %d bytes as JSON, more than %d", len(line), maxLineBytes)}
	}
	return s.files[r.Signal.Index()].append(ctx, line)
}

// Close ends the writers, which finish what they have in hand, and releases the directory.
func (s *fileSink) Close() error {
	for _, f := range s.files {
		f.close()
	}
	if s.lock == nil {
		return nil
	}
	if err := s.lock.Close(); err != nil {
		return fmt.Errorf("release directory: %w", err)
	}
	return nil
}

// encodeLine is the request as the Collector's file exporter writes it. Each frame is decoded by itself, which spares a
// copy of the whole and tells which one is broken, and its resources are moved behind those of the frame before it: the
// same as decoding the bodies one after the other.
func encodeLine(r *segment.Request) ([]byte, error) {
	var line []byte
	var err error
	switch r.Signal {
	case segment.Logs:
		all := plog.NewLogs()
		err = eachFrame(r, func(body []byte) error {
			one, err := (&plog.ProtoUnmarshaler{}).UnmarshalLogs(body)
			if err == nil {
				one.ResourceLogs().MoveAndAppendTo(all.ResourceLogs())
			}
			return err
		})
		if err == nil {
			line, err = (&plog.JSONMarshaler{}).MarshalLogs(all)
		}
	case segment.Traces:
		all := ptrace.NewTraces()
		err = eachFrame(r, func(body []byte) error {
			one, err := (&ptrace.ProtoUnmarshaler{}).UnmarshalTraces(body)
			if err == nil {
				one.ResourceSpans().MoveAndAppendTo(all.ResourceSpans())
			}
			return err
		})
		if err == nil {
			line, err = (&ptrace.JSONMarshaler{}).MarshalTraces(all)
		}
	case segment.Metrics:
		all := pmetric.NewMetrics()
		err = eachFrame(r, func(body []byte) error {
			one, err := (&pmetric.ProtoUnmarshaler{}).UnmarshalMetrics(body)
			if err == nil {
				one.ResourceMetrics().MoveAndAppendTo(all.ResourceMetrics())
			}
			return err
		})
		if err == nil {
			line, err = (&pmetric.JSONMarshaler{}).MarshalMetrics(all)
		}
	default:
		err = fmt.Errorf("%v is not a signal", r.Signal)
	}
	if err != nil {
		return nil, fmt.Errorf("encode request as JSON: %w", err)
	}
	return append(line, '\n'), nil
}

func eachFrame(r *segment.Request, decode func(body []byte) error) error {
	for i := range r.Frames {
		if err := decode(r.Frames[i].Body); err != nil {
			return fmt.Errorf("decode frame %v: %w", r.Frames[i].ID, err)
		}
	}
	return nil
}
