package fleet

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"ingest-agent/bench/child"
	"ingest-agent/bench/load"
)

// node is one of the agents: its ports, its disk, and what it has acknowledged.
type node struct {
	name             string
	data             string
	grpc, http, addr string // addr is admin's
	process          *child.Process
	log              string

	mu    sync.Mutex
	acked []ack
}

// ack is one request that was answered with success.
type ack struct {
	first   uint64
	records int
	at      time.Duration // by the sink's clock
}

const maxMetricsBytes = 16 << 20

func (r *round) start(n *node) error {
	text := fmt.Sprintf(`node: %s
data_dir: %q
receivers: {grpc: {endpoint: %q}, http: {endpoint: %q}}
admin: {endpoint: %q}
wal: {ack: %s, segment_size: 1MiB, min_free_bytes: 0}
destinations:
  default: {type: otlp_http, endpoint: %q, compression: none, retry: {initial_interval: 50ms, max_interval: 300ms}}
bucket: {url: %q}
shipper: {after: %v, retry_max_interval: 1s}
recovery: {scan_interval: 500ms, heartbeat: 500ms, stale_after: %v}
shutdown: {timeout: %v}
`, n.name, n.data, n.grpc, n.http, n.addr, r.plan.ack, r.sink.URL(), r.url, shipAfter, staleAfter, shutdownTimeout)
	path := filepath.Join(r.dir, n.name+".yaml")
	if err := os.WriteFile(path, []byte(text), 0o640); err != nil {
		return fmt.Errorf("write configuration: %w", err)
	}
	n.log = filepath.Join(r.dir, n.name+".log")
	cmd := exec.Command(r.cfg.Bin, "run", "--config", path) // ends by a signal
	cmd.Dir, cmd.Env = r.dir, r.bucket.Env
	p, err := child.Start(cmd, n.log)
	n.process = p
	return err
}

// ready waits until the node takes requests.
func (n *node) ready(ctx context.Context) error {
	return await(ctx, readyTimeout, func() error {
		code, body, err := n.get(ctx, "/readyz")
		if err == nil && code != http.StatusOK {
			err = fmt.Errorf("%s is not ready: %d %s; see %s", n.name, code, body, n.log)
		}
		return err
	})
}

// send loads the node until ctx ends.
func (n *node) send(ctx context.Context, r *round) (load.Result, error) {
	l, err := load.New(load.Config{
		GRPC: n.grpc, HTTP: n.http, Senders: 2, Records: r.plan.records, Rate: 60, Timeout: sendTimeout, Seed: r.cfg.Seed,
		Sequence: &r.sequence, Acked: &r.acked,
		OnAck: func(first uint64, records int) {
			n.mu.Lock()
			defer n.mu.Unlock()
			n.acked = append(n.acked, ack{first, records, r.sink.Now()})
		},
	})
	if err != nil {
		return load.Result{}, fmt.Errorf("prepare load: %w", err)
	}
	return l.Run(ctx)
}

// pending is what the node says is not delivered yet of its own disk.
func (n *node) pending(ctx context.Context) (sum float64, err error) {
	code, page, err := n.get(ctx, "/metrics")
	if err != nil {
		return 0, err
	}
	found := false
	lines := bufio.NewScanner(strings.NewReader(page))
	for lines.Scan() {
		if line := lines.Text(); strings.HasPrefix(line, "ingest_agent_pending_records{") {
			value, err := strconv.ParseFloat(line[strings.LastIndexByte(line, ' ')+1:], 64)
			if err != nil {
				return 0, fmt.Errorf("read metrics: %w", err)
			}
			sum, found = sum+value, true
		}
	}
	if !found && code != http.StatusOK {
		return 0, fmt.Errorf("read metrics: status %d", code)
	}
	return sum, nil
}

func (n *node) get(ctx context.Context, path string) (code int, body string, err error) {
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: sendTimeout}
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+n.addr+path, nil)
	if err != nil {
		return 0, "", fmt.Errorf("ask %s: %w", n.name, err)
	}
	resp, err := client.Do(r)
	if err != nil {
		return 0, "", fmt.Errorf("ask %s: %w", n.name, err)
	}
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxMetricsBytes))
	return resp.StatusCode, string(text), errors.Join(err, resp.Body.Close())
}

// await tries until there is no error, and returns the last one when the time is over.
func await(ctx context.Context, limit time.Duration, try func() error) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	for {
		err := try()
		if err == nil {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("within %v: %w", limit, err)
		}
	}
}
