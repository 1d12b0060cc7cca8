package interop

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/confmap"
	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/exporter"
	"go.opentelemetry.io/collector/exporter/otlpexporter"
	"go.opentelemetry.io/collector/exporter/otlphttpexporter"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/processor"
	"go.opentelemetry.io/collector/processor/batchprocessor"
	"go.opentelemetry.io/collector/processor/memorylimiterprocessor"
	"go.opentelemetry.io/collector/receiver"
	"go.opentelemetry.io/collector/receiver/otlpreceiver"
	noopmetric "go.opentelemetry.io/otel/metric/noop"
	nooptrace "go.opentelemetry.io/otel/trace/noop"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
)

// keys are configuration as in a Collector's YAML file.
type keys = map[string]any

// pipeline is the configuration of a Collector: an OTLP receiver, perhaps a memory limiter, perhaps a batch processor, and an
// OTLP exporter, for the three signals.
type pipeline struct {
	protocols keys // of the receiver; see onPorts
	limiter   keys // nil: none
	batch     keys // nil: none
	transport string
	exporter  keys
}

// onPorts are protocols of a receiver at two addresses, with more keys for each; nil is none.
func onPorts(at ports, grpcMore, httpMore keys) keys {
	return keys{"grpc": merge(keys{"endpoint": at.grpc}, grpcMore), "http": merge(keys{"endpoint": at.http}, httpMore)}
}

// exportTo are the keys of an exporter that sends to host:port without TLS. Its own backoff is short, so that longer delays
// are those that it was told.
func exportTo(transport, addr string, more keys) keys {
	endpoint := addr
	if transport == overHTTP {
		endpoint = "http://" + addr
	}
	return merge(keys{
		"endpoint": endpoint, "tls": keys{"insecure": true},
		"retry_on_failure": keys{"initial_interval": "5ms", "max_interval": shortBackoff.String()},
	}, more)
}

const shortBackoff = 20 * time.Millisecond

// smallBatches are keys of a batch processor whose requests the smallest agent can take.
func smallBatches() keys {
	return keys{"timeout": "5ms", "send_batch_size": 10, "send_batch_max_size": 20}
}

func merge(base, more keys) keys {
	maps.Copy(base, more)
	return base
}

// ports are where a receiver listens.
type ports struct{ grpc, http string }

func (p ports) addr(transport string) string {
	if transport == overGRPC {
		return p.grpc
	}
	return p.http
}

// freePorts are two addresses that are free now and that no other test is given: servers stop and start on them. They are
// from below the range of outgoing connections: a client of a server that is down must not connect to itself.
func freePorts(t *testing.T) ports {
	t.Helper()
	var found []string
	for range portRange {
		l, err := net.Listen("tcp", fmt.Sprint("127.0.0.1:", lowestPort+lastPort.Add(1)%portRange))
		if err != nil {
			continue // taken
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		awaitForks()
		if found = append(found, l.Addr().String()); len(found) == 2 {
			return ports{found[0], found[1]}
		}
	}
	t.Fatal("no free ports")
	return ports{}
}

// awaitForks makes sure that what this process has closed is closed. A process that another test is just starting has a
// copy of each open descriptor until it runs its own program.
func awaitForks() {
	syscall.ForkLock.RLock()   // held by who starts a process, up to that point
	syscall.ForkLock.RUnlock() //nolint:gocritic,staticcheck // to wait is all that is wanted
}

const (
	lowestPort = 10000
	portRange  = 20000
)

// lastPort starts anywhere, so that two runs at once hardly meet.
var lastPort = func() *atomic.Uint32 {
	n := new(atomic.Uint32)
	n.Store(rand.Uint32N(portRange))
	return n
}()

// collector is a running Collector.
type collector struct {
	t       *testing.T
	logs    *observer.ObservedLogs
	started []component.Component // in the order of their start
	once    sync.Once
}

type noExtensions struct{}

func (noExtensions) GetExtensions() map[component.ID]component.Component { return nil }

// startCollector runs a Collector until it is stopped or the test ends.
func startCollector(t *testing.T, p pipeline) *collector {
	t.Helper()
	core, logs := observer.New(zap.InfoLevel)
	c := &collector{t: t, logs: logs}
	set := component.TelemetrySettings{
		Logger: zap.New(core), TracerProvider: nooptrace.NewTracerProvider(), MeterProvider: noopmetric.NewMeterProvider(),
		Resource: pcommon.NewResource(),
	}
	next := c.newExporter(set, p)
	if p.batch != nil {
		next = c.newProcessor(set, batchprocessor.NewFactory(), p.batch, next)
	}
	if p.limiter != nil {
		next = c.newProcessor(set, memorylimiterprocessor.NewFactory(), p.limiter, next)
	}
	c.newReceiver(set, p.protocols, next)
	t.Cleanup(c.stop)
	for i, part := range c.started {
		if err := part.Start(t.Context(), noExtensions{}); err != nil {
			c.started = c.started[:i]
			t.Fatalf("start collector: %v", err)
		}
	}
	return c
}

// stop ends the Collector as its service does: first what receives.
func (c *collector) stop() {
	c.once.Do(func() {
		ctx, cancel := context.WithTimeout(context.Background(), limit)
		defer cancel()
		for _, part := range slices.Backward(c.started) {
			if err := part.Shutdown(ctx); err != nil {
				c.t.Errorf("stop collector: %v", err)
			}
		}
		awaitForks()
	})
}

// consumers are the next part for each signal.
type consumers struct {
	traces  consumer.Traces
	metrics consumer.Metrics
	logs    consumer.Logs
}

func (c *collector) configure(cfg component.Config, k keys) component.Config {
	c.t.Helper()
	if err := confmap.NewFromStringMap(k).Unmarshal(cfg); err != nil {
		c.t.Fatalf("configure collector: %v", err)
	}
	return cfg
}

// add takes the parts that were made for the three signals.
func (c *collector) add(err1, err2, err3 error, parts ...component.Component) {
	c.t.Helper()
	if err := errors.Join(err1, err2, err3); err != nil {
		c.t.Fatalf("make collector: %v", err)
	}
	c.started = append(c.started, parts...)
}

func (c *collector) newExporter(telemetry component.TelemetrySettings, p pipeline) consumers {
	c.t.Helper()
	f := otlphttpexporter.NewFactory()
	if p.transport == overGRPC {
		f = otlpexporter.NewFactory()
	}
	set := exporter.Settings{ID: component.NewID(f.Type()), TelemetrySettings: telemetry}
	cfg := c.configure(f.CreateDefaultConfig(), p.exporter)
	ctx := c.t.Context()
	traces, err1 := f.CreateTraces(ctx, set, cfg)
	metrics, err2 := f.CreateMetrics(ctx, set, cfg)
	logs, err3 := f.CreateLogs(ctx, set, cfg)
	c.add(err1, err2, err3, traces, metrics, logs)
	return consumers{traces, metrics, logs}
}

// newProcessor gives each signal a configuration of its own: with one for all, the memory limiter is one too, and starts with
// a data race (v0.165.0: each Start after the first writes a field that the running check reads).
func (c *collector) newProcessor(telemetry component.TelemetrySettings, f processor.Factory, k keys, next consumers) consumers {
	c.t.Helper()
	set := processor.Settings{ID: component.NewID(f.Type()), TelemetrySettings: telemetry}
	cfg := func() component.Config { return c.configure(f.CreateDefaultConfig(), k) }
	ctx := c.t.Context()
	traces, err1 := f.CreateTraces(ctx, set, cfg(), next.traces)
	metrics, err2 := f.CreateMetrics(ctx, set, cfg(), next.metrics)
	logs, err3 := f.CreateLogs(ctx, set, cfg(), next.logs)
	c.add(err1, err2, err3, traces, metrics, logs)
	return consumers{traces, metrics, logs}
}

func (c *collector) newReceiver(telemetry component.TelemetrySettings, protocols keys, next consumers) {
	c.t.Helper()
	f := otlpreceiver.NewFactory()
	set := receiver.Settings{ID: component.NewID(f.Type()), TelemetrySettings: telemetry}
	cfg := c.configure(f.CreateDefaultConfig(), keys{"protocols": protocols})
	ctx := c.t.Context()
	traces, err1 := f.CreateTraces(ctx, set, cfg, next.traces)
	metrics, err2 := f.CreateMetrics(ctx, set, cfg, next.metrics)
	logs, err3 := f.CreateLogs(ctx, set, cfg, next.logs)
	c.add(err1, err2, err3, traces, metrics, logs)
}

// said are the log entries whose message begins with text.
func (c *collector) said(text string) []observer.LoggedEntry {
	return c.logs.Filter(func(e observer.LoggedEntry) bool { return strings.HasPrefix(e.Message, text) }).All()
}

// What exporters say.
const (
	saysRetry  = "Exporting failed. Will retry"
	saysDrop   = "Exporting failed. Dropping data"
	saysReject = "Exporting failed. Rejecting data"
)

// retries is how often the exporter tried again. Each delay must be no shorter than floor.
func (c *collector) retries(floor time.Duration) int {
	c.t.Helper()
	entries := c.said(saysRetry)
	for _, e := range entries {
		wait, err := time.ParseDuration(fmt.Sprint(e.ContextMap()["interval"]))
		if err != nil || wait < floor {
			c.t.Errorf("tried again after %v (%v): %v", wait, err, e.ContextMap()["error"])
		}
	}
	return len(entries)
}

// lostNothing fails the test if the exporter gave up a request.
func (c *collector) lostNothing() {
	c.t.Helper()
	for _, e := range append(c.said(saysDrop), c.said(saysReject)...) {
		c.t.Errorf("the collector: %s: %v", e.Message, e.ContextMap())
	}
}
