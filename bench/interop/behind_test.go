package interop

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// quick is a destination that is tried again soon, so that tests need not wait.
const quick = ", retry: {initial_interval: 5ms, max_interval: 50ms}"

// quickAlso is the same, with gRPC's RESOURCE_EXHAUSTED tried again also without a delay.
const quickAlso = ", retry: {initial_interval: 5ms, max_interval: 50ms, retry_codes: [8]}"

// noQueue makes a Collector answer only when its exporter is done, so that what it has acknowledged is delivered.
func noQueue() keys {
	return keys{"sending_queue": keys{"enabled": false}, "retry_on_failure": keys{"enabled": false}}
}

// behind is an agent between an SDK and a Collector, whose exporter sends to a sink.
type behind struct {
	sink, reference *sink
	at              ports
	agent           *agent
	app             *app
	pipeline        pipeline
}

// newBehind makes all of it but the Collector. settings are of the agent's destination, exporter of the Collector.
func newBehind(t *testing.T, transport, settings string, exporter keys) *behind {
	t.Helper()
	return newBehindTo(t, startSink(t), transport, settings, exporter)
}

func newBehindTo(t *testing.T, s *sink, transport, settings string, exporter keys) *behind {
	t.Helper()
	b := &behind{sink: s, reference: startSink(t), at: freePorts(t)}
	b.agent = startAgent(t, onePort+anyDisk+destination(transport, b.at.addr(transport), settings))
	b.app = newApp(t, client{transport: transport, addr: b.agent.addr(transport), gzip: true}, b.reference)
	b.pipeline = pipeline{
		protocols: onPorts(b.at, nil, nil), transport: overGRPC,
		exporter: exportTo(overGRPC, b.sink.grpc, exporter),
	}
	return b
}

// overBoth runs a test with each transport between the agent and the Collector.
func overBoth(t *testing.T, test func(t *testing.T, transport string)) {
	t.Parallel()
	for _, transport := range transports() {
		t.Run(transport, func(t *testing.T) {
			t.Parallel()
			test(t, transport)
		})
	}
}

// TestCollectorBehind: all arrives through a Collector that batches, once, also over connections that it ends after a while.
func TestCollectorBehind(t *testing.T) {
	overBoth(t, func(t *testing.T, transport string) {
		b := newBehind(t, transport, quick, nil)
		b.pipeline.batch = keys{}
		age := keys{"keepalive": keys{"server_parameters": keys{"max_connection_age": "10ms", "max_connection_age_grace": "1m"}}}
		b.pipeline.protocols = onPorts(b.at, age, nil)
		c := startCollector(t, b.pipeline)
		for range 10 {
			b.app.work(20, 100)
		}
		equal(t, b.sink, b.reference, decoded)
		c.lostNothing()
		b.agent.allDelivered()
	})
}

// TestCollectorBehindWithFullQueue: a Collector whose queue is full refuses; what it refused is sent again.
func TestCollectorBehindWithFullQueue(t *testing.T) {
	overBoth(t, func(t *testing.T, transport string) {
		b := newBehind(t, transport, quick, keys{"sending_queue": keys{"queue_size": 1, "num_consumers": 1}})
		b.sink.hold()
		c := startCollector(t, b.pipeline)
		b.app.work(50, 100)
		await(t, "the collector refuses", func() bool { return len(c.said(saysReject)) > 0 })
		b.sink.release()
		equal(t, b.sink, b.reference, decoded)
		b.agent.allDelivered()
	})
}

// TestCollectorBehindWithMemoryLimit: the same for one without memory, until it is restarted with more.
func TestCollectorBehindWithMemoryLimit(t *testing.T) {
	overBoth(t, func(t *testing.T, transport string) {
		b := newBehind(t, transport, quick, noQueue())
		b.pipeline.limiter = keys{"check_interval": "1ms", "limit_mib": 1, "min_gc_interval_when_hard_limited": "1h"}
		c := startCollector(t, b.pipeline)
		b.app.workDuring(func() { await(t, "the collector refuses", b.agent.retried) })
		if len(c.said("Memory usage is above soft limit. Refusing data.")) == 0 {
			t.Error("the collector refused for another reason")
		}
		c.stop()
		b.pipeline.limiter = nil
		c = startCollector(t, b.pipeline)
		equal(t, b.sink, b.reference, decoded)
		c.lostNothing()
		b.agent.allDelivered()
	})
}

// TestCollectorBehindThatIsSlow: a Collector answers after the agent has given up waiting, but has delivered all the same, and
// the agent sends again: all arrives, some of it more than once, and the agent counts what it sent again.
func TestCollectorBehindThatIsSlow(t *testing.T) {
	overBoth(t, func(t *testing.T, transport string) {
		b := newBehind(t, transport, quick+", timeout: 200ms", noQueue())
		b.sink.holdAnswers()
		startCollector(t, b.pipeline)
		b.app.work(20, 100)
		await(t, "something arrives again", func() bool {
			all, err := recordsOf(b.sink.requests(), decoded)
			if err != nil {
				t.Fatal(err)
			}
			for _, count := range all {
				if count > 1 {
					return true
				}
			}
			return false
		})
		b.sink.release()
		n := arrived(t, b.sink, b.reference, decoded)
		b.agent.allDelivered()
		// A metric, which is one record here, is at least one for the agent.
		if resent := b.agent.metric("records_resent_total", ""); n == 0 || resent < uint64(n) {
			t.Errorf("%d records came more than once, the agent says it sent %d again", n, resent)
		}
	})
}

// TestCollectorBehindRestarts: nothing is lost while a Collector goes away and comes back under load. It finishes what it has
// in hand before it goes, so that nothing comes twice either.
func TestCollectorBehindRestarts(t *testing.T) {
	overBoth(t, func(t *testing.T, transport string) {
		b := newBehind(t, transport, quick, noQueue())
		b.app.workDuring(func() {
			for range restarts {
				c := startCollector(t, b.pipeline)
				b.sink.awaitMore(t)
				c.stop()
			}
		})
		c := startCollector(t, b.pipeline)
		equal(t, b.sink, b.reference, decoded)
		c.lostNothing()
		b.agent.allDelivered()
	})
}

// TestCollectorBehindWithSizeLimit: one request that is larger than the Collector takes arrives in parts.
func TestCollectorBehindWithSizeLimit(t *testing.T) {
	overBoth(t, func(t *testing.T, transport string) {
		b := newBehind(t, transport, quick, noQueue())
		b.pipeline.protocols = onPorts(b.at, keys{"max_recv_msg_size_mib": 1}, keys{"max_request_body_size": 1 << 20})
		c := startCollector(t, b.pipeline)
		var body []byte
		for i := range 30 {
			record := part(2, part(5, text(1, fmt.Sprint(i))), part(6, text(1, "filler"), part(2, part(1, bytes.Repeat([]byte("x"), 100_000)))))
			body = append(body, part(1, part(2, record))...)
		}
		newSender(t, overHTTP, b.agent.addrs.HTTP)("gzip", "logs", body)
		newSender(t, overGRPC, b.reference.grpc)("gzip", "logs", body)
		equal(t, b.sink, b.reference, decoded)
		c.lostNothing()
		b.agent.allDelivered()
	})
}

// TestCollectorBehindThrottled: a backend throttles, and the Collector hands that on. Over HTTP it says 429, which is tried
// again. Over gRPC it says RESOURCE_EXHAUSTED without a delay, which is final by OTLP, unless retry_codes has it.
func TestCollectorBehindThrottled(t *testing.T) {
	overBoth(t, func(t *testing.T, transport string) {
		settings := quick
		if transport == overGRPC {
			settings = quickAlso
		}
		const refusals = 10
		refused := 0
		s := startSinkWith(t, func(request) ([]byte, error) {
			if refused < refusals {
				refused++
				return nil, status.Error(codes.ResourceExhausted, "too much")
			}
			return nil, nil
		})
		b := newBehindTo(t, s, transport, settings, nil)
		b.pipeline.transport, b.pipeline.exporter = overHTTP, exportTo(overHTTP, s.http, noQueue())
		startCollector(t, b.pipeline)
		b.app.work(20, 100)
		equal(t, s, b.reference, decoded)
		b.agent.allDelivered()
		if resent := b.agent.metric("records_resent_total", ""); resent < refusals {
			t.Errorf("the agent says that it sent %d records again after %d refusals", resent, refusals)
		}
	})
}

// TestCollectorBehindThatRejects: a backend refuses requests that have a certain record, and the Collector hands that on: as
// 400, or as INVALID_ARGUMENT. That record is a dead letter and all others of its request arrive, once.
func TestCollectorBehindThatRejects(t *testing.T) {
	overBoth(t, func(t *testing.T, transport string) {
		const poison = "the record that nobody takes"
		s := startSinkWith(t, func(r request) ([]byte, error) {
			if bytes.Contains(r.body, []byte(poison)) {
				return nil, status.Error(codes.InvalidArgument, "poison")
			}
			return nil, nil
		})
		b := newBehindTo(t, s, transport, quick, noQueue())
		b.pipeline.transport, b.pipeline.exporter = overHTTP, exportTo(overHTTP, s.http, noQueue())
		startCollector(t, b.pipeline)
		send, sendDirect := newSender(t, overHTTP, b.agent.addrs.HTTP), newSender(t, overGRPC, b.reference.grpc)
		for i, sig := range signals() {
			var all, good []byte
			for n := range 10 {
				body := strangeRequest(sig, fmt.Sprint("number ", n))
				all, good = append(all, body...), append(good, body...)
				if n == 3*i {
					all = append(all, strangeRequest(sig, poison)...)
				}
			}
			send("none", sig, all)
			sendDirect("none", sig, good)
		}
		b.app.work(20, 100)
		equal(t, s, b.reference, decoded)
		b.agent.accountsFor(0, 3)
		if n := countFilesWith(t, filepath.Join(b.agent.dir, "dead"), poison); n != 3 {
			t.Errorf("the record is in %d files of the dead letter, want one for each signal", n)
		}
	})
}

// countFilesWith is how many files below dir contain text.
func countFilesWith(t *testing.T, dir, text string) (n int) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		content, err := os.ReadFile(path)
		if bytes.Contains(content, []byte(text)) {
			n++
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// TestPartialSuccess: what a destination takes in part is counted, and not sent again.
func TestPartialSuccess(t *testing.T) {
	overBoth(t, func(t *testing.T, transport string) {
		s := startSinkWith(t, func(request) ([]byte, error) {
			return part(1, varint(1, 1), text(2, "one was bad")), nil // the same fields for each signal
		})
		reference := startSink(t)
		a := startAgent(t, onePort+anyDisk+destination(transport, s.addr(transport), quick))
		newApp(t, client{transport: transport, addr: a.addr(transport)}, reference).work(20, 100)
		equal(t, s, reference, exact)
		a.accountsFor(uint64(len(s.requests())), 0)
		if resent := a.metric("records_resent_total", ""); resent != 0 {
			t.Errorf("%d records were sent again", resent)
		}
	})
}
