package versus

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"ingest-agent/bench/limit"
	"ingest-agent/bench/otlpgen"
	"ingest-agent/segment"
)

// BareName is the name of the rows of Bare.
const BareName = "append + fdatasync"

// Bare is one round of what no durable answer can be faster than on this disk: each request is appended to one file and
// synced, without a network, by one goroutine.
func Bare(ctx context.Context, cfg Config) (row Row, err error) {
	row.Subject = BareName
	dir, err := os.MkdirTemp(cfg.Dir, "versus-")
	if err != nil {
		return row, fmt.Errorf("make directory: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	g, err := otlpgen.New(cfg.Seed, cfg.Records)
	if err != nil {
		return row, err
	}
	file, err := limit.Bare().Open(dir)
	if err != nil {
		return row, err
	}
	var body []byte
	begun := time.Now()
	for i := 0; time.Since(begun) < cfg.Length && err == nil; i++ {
		if err = ctx.Err(); err != nil {
			break
		}
		body = g.Append(body[:0], segment.Signals[i%len(segment.Signals)], i/len(segment.Signals), row.Acked+1)
		before := time.Now()
		err = file.Append([][]byte{body})
		row.Latency.Add(time.Since(before))
		row.Acked += uint64(cfg.Records)
		row.Bytes += uint64(len(body))
	}
	row.Sending = time.Since(begun)
	if err = errors.Join(err, file.Close()); err != nil {
		return row, fmt.Errorf("append and sync: %w", err)
	}
	return row, nil
}
