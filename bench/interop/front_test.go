package interop

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"
)

// smallest is a log that is full after some requests.
const smallest = "wal: {shards: 1, segment_size: 16KiB, max_bytes: 64KiB, full_wait: 50ms, min_free_bytes: 0}\n"

// shortestDelay is the least that the agent asks a client to wait when it is full.
const shortestDelay = time.Second

// TestCase44CollectorInFront: a Collector whose data the agent refuses, since it is full, tries again when the agent says,
// and all of it arrives, once.
func TestCase44CollectorInFront(t *testing.T) {
	overBoth(t, func(t *testing.T, transport string) {
		s, reference := startSink(t), startSink(t)
		s.hold()
		a := startAgent(t, onePort+smallest+destination(overHTTP, s.http, ", timeout: 1m"))
		at := freePorts(t)
		c := startCollector(t, pipeline{
			protocols: onPorts(at, nil, nil), batch: smallBatches(), transport: transport,
			exporter: exportTo(transport, a.addr(transport), nil),
		})
		newApp(t, client{transport: overGRPC, addr: at.grpc, gzip: true}, reference).work(100, 500)
		await(t, "the collector is told to wait", func() bool { return c.retries(shortestDelay) > 0 })
		s.release()
		equal(t, s, reference, decoded)
		if n := c.retries(shortestDelay); n == 0 || a.metric("requests_refused_total", "") < uint64(n) {
			t.Errorf("the agent refused %d requests, the collector tried %d again", a.metric("requests_refused_total", ""), n)
		}
		c.lostNothing()
		a.allDelivered()
	})
}

// TestGoSDKWhileOverloaded: the same with the SDK.
func TestGoSDKWhileOverloaded(t *testing.T) {
	overBoth(t, func(t *testing.T, transport string) {
		s, reference := startSink(t), startSink(t)
		s.hold()
		a := startAgent(t, onePort+smallest+destination(overHTTP, s.http, ", timeout: 1m"))
		program := newApp(t, client{transport: transport, addr: a.addr(transport), gzip: true}, reference)
		var working sync.WaitGroup
		working.Go(func() { program.work(100, 500) })
		await(t, "the SDK is refused", func() bool { return a.metric("requests_refused_total", "") > 0 })
		s.release()
		working.Wait()
		equal(t, s, reference, exact)
		a.allDelivered()
	})
}

// restarts is how often the tests of restarts do it.
const restarts = 5

// TestCollectorInFrontOfRestarts: a Collector that sends on while the agent is stopped and started again loses nothing, and
// nothing comes twice: who was not answered was not taken.
func TestCollectorInFrontOfRestarts(t *testing.T) {
	overBoth(t, func(t *testing.T, transport string) {
		s, reference, dir, own, at := startSink(t), startSink(t), t.TempDir(), freePorts(t), freePorts(t)
		settings := fmt.Sprintf("receivers: {grpc: {endpoint: %q}, http: {endpoint: %q}}\n", own.grpc, own.http) +
			anyDisk + destination(overHTTP, s.http, "")
		c := startCollector(t, pipeline{
			protocols: onPorts(at, nil, nil), batch: smallBatches(), transport: transport,
			exporter: exportTo(transport, own.addr(transport), keys{"sending_queue": keys{"block_on_overflow": true}}),
		})
		var a *agent
		newApp(t, client{transport: overGRPC, addr: at.grpc, gzip: true}, reference).workDuring(func() {
			a = startAgentIn(t, dir, settings)
			for range restarts {
				s.awaitMore(t)
				a.stop()
				a = startAgentIn(t, dir, settings)
			}
		})
		equal(t, s, reference, decoded)
		c.lostNothing()
		a.allDelivered()
	})
}

// TestCollectorInFrontCodings: what the Collector can send, and what comes of codings that the agent does not take: the
// Collector gives the data up at once, and says that the agent said so.
func TestCollectorInFrontCodings(t *testing.T) {
	t.Parallel()
	cases := []struct {
		transport string
		more      keys
		dropped   string // part of the Collector's error; empty: it arrives
	}{
		{overGRPC, keys{"compression": "none"}, ""},
		{overGRPC, keys{"compression": "gzip"}, ""},
		{overGRPC, keys{"compression": "zstd"}, ""},
		{overGRPC, keys{"compression": "snappy"}, "Unimplemented"},
		{overHTTP, keys{"compression": "none"}, ""},
		{overHTTP, keys{"compression": "gzip"}, ""},
		{overHTTP, keys{"compression": "zstd"}, ""},
		{overHTTP, keys{"compression": "gzip", "encoding": "json"}, ""},
		{overHTTP, keys{"compression": "snappy"}, "415"},
		{overHTTP, keys{"compression": "x-snappy-framed"}, "415"},
		{overHTTP, keys{"compression": "lz4"}, "415"},
		{overHTTP, keys{"compression": "zlib"}, "415"},
		{overHTTP, keys{"compression": "deflate"}, "415"},
		{overHTTP, keys{"compression": "snappy", "encoding": "json"}, "415"},
	}
	s, reference := startSink(t), startSink(t)
	a := startAgent(t, onePort+anyDisk+destination(overHTTP, s.http, ""))
	for _, test := range cases {
		t.Run(fmt.Sprint(test.transport, test.more), func(t *testing.T) {
			at := freePorts(t)
			c := startCollector(t, pipeline{
				protocols: onPorts(at, nil, nil), transport: test.transport,
				exporter: exportTo(test.transport, a.addr(test.transport), test.more),
			})
			if test.dropped == "" {
				newApp(t, client{transport: overHTTP, addr: at.http}, reference).work(5, 100)
				equal(t, s, reference, decoded)
				c.lostNothing()
				return
			}
			newApp(t, client{transport: overHTTP, addr: at.http}, startSink(t)).work(1, 100)
			await(t, "three signals are given up", func() bool { return len(c.said(saysDrop)) >= 3 })
			for _, e := range c.said(saysDrop) {
				if why := fmt.Sprint(e.ContextMap()["error"]); !strings.Contains(why, test.dropped) {
					t.Errorf("given up for another reason: %s", why)
				}
			}
		})
	}
	equal(t, s, reference, decoded) // nothing of what was refused
	a.allDelivered()
}
