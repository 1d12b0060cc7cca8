//go:build unix

package main

import (
	"context"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// watch keeps the most that disk and memory took.
func (o *outage) watch(ctx context.Context) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		disk, rss := o.disk(), o.rss()
		o.mu.Lock()
		o.mostDisk, o.mostRSS = max(o.mostDisk, disk), max(o.mostRSS, rss)
		o.mu.Unlock()
	}
}

func (o *outage) most(of *int64) int64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	return *of
}

// disk is what the segments of the lanes take now, in bytes of blocks that are allocated.
func (o *outage) disk() (n int64) {
	_ = filepath.WalkDir(filepath.Join(o.dir, "data", "lanes"), func(_ string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || d.Name() == "cursor" {
			return nil //nolint:nilerr // what goes meanwhile takes nothing
		}
		if info, err := d.Info(); err == nil {
			if st, ok := info.Sys().(*syscall.Stat_t); ok {
				n += min(st.Blocks*512, info.Size())
			}
		}
		return nil
	})
	return n
}

// rss is the agent's resident memory; 0 where it is not known.
func (o *outage) rss() int64 {
	u, err := o.agent.Usage()
	if err != nil {
		return 0
	}
	return u.ResidentBytes
}

func (o *outage) get(path string) (string, bool) {
	resp, err := http.Get("http://" + o.admin + path)
	if err != nil {
		return "", false
	}
	text, err := io.ReadAll(resp.Body)
	_ = resp.Body.Close()
	return string(text), err == nil && resp.StatusCode == http.StatusOK
}

func (o *outage) ready() bool {
	_, ok := o.get("/readyz")
	return ok
}

// metric is the value of a series of the agent's; 0 if it does not say.
func (o *outage) metric(name string) float64 {
	text, _ := o.get("/metrics")
	_, after, _ := strings.Cut(text, "\ningest_agent_"+name+" ")
	value, _, _ := strings.Cut(after, "\n")
	v, _ := strconv.ParseFloat(value, 64)
	return v
}

// emptied says whether the agent has nothing in the bucket any more.
func (o *outage) emptied() bool {
	text, ok := o.get("/metrics")
	return ok && strings.Contains(text, "\ningest_agent_shipped_objects 0\n")
}

func (o *outage) await(limit time.Duration, what string, done func() bool) error {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for deadline := time.Now().Add(limit); !done(); <-tick.C {
		if time.Now().After(deadline) {
			return fmt.Errorf("%s: not within %v", what, limit)
		}
	}
	return nil
}
