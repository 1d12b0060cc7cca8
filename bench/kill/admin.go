package kill

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"ingest-agent/bench/child"
)

const (
	pollInterval = 5 * time.Millisecond
	pollTimeout  = 2 * time.Second // of one question
	// maxMetricsBytes bounds what is read of a page of metrics.
	maxMetricsBytes = 16 << 20
)

// admin asks the agent's admin endpoint.
type admin struct {
	client *http.Client
	base   string
}

func newAdmin(address string) *admin {
	return &admin{&http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: pollTimeout}, "http://" + address}
}

var errExited = errors.New("it ended by itself")

// poll asks until done is true. It fails when the time is over, with the last answer, and when the process ends.
func (a *admin) poll(ctx context.Context, p *child.Process, limit time.Duration, path string, done func(code int, body string) bool) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	ticker := time.NewTicker(pollInterval)
	defer ticker.Stop()
	for {
		code, body, err := a.get(ctx, path)
		if err == nil && done(code, body) {
			return nil
		}
		select {
		case <-p.Exited():
			return fmt.Errorf("ask %s: %w: %w", path, errExited, p.Err())
		case <-ctx.Done():
			if err == nil {
				err = fmt.Errorf("status %d, %q", code, shorten(body))
			}
			return fmt.Errorf("ask %s: not as it should be within %v; last answer: %w", path, limit, err)
		case <-ticker.C:
		}
	}
}

func (a *admin) get(ctx context.Context, path string) (code int, body string, err error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, a.base+path, nil)
	if err != nil {
		return 0, "", err
	}
	resp, err := a.client.Do(r)
	if err != nil {
		return 0, "", err
	}
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxMetricsBytes))
	return resp.StatusCode, string(text), errors.Join(err, resp.Body.Close())
}

func shorten(text string) string {
	const limit = 200
	if len(text) > limit {
		return text[:limit] + "…"
	}
	return text
}

// sumMetric adds up the series of a metric in Prometheus text. It is false if there is none.
func sumMetric(page, name string) (sum float64, found bool) {
	lines := bufio.NewScanner(strings.NewReader(page))
	lines.Buffer(nil, maxMetricsBytes)
	for lines.Scan() {
		rest, ok := strings.CutPrefix(lines.Text(), name)
		if !ok || rest == "" || (rest[0] != '{' && rest[0] != ' ') {
			continue
		}
		// A label's value may hold spaces and braces, but the value of the series comes after the last brace.
		fields := strings.Fields(rest[strings.LastIndexByte(rest, '}')+1:])
		if len(fields) == 0 {
			continue
		}
		value, err := strconv.ParseFloat(fields[0], 64)
		if err != nil {
			continue
		}
		sum += value
		found = true
	}
	return sum, found
}
