package interop

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/exporters/otlp/otlplog/otlploggrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlplog/otlploghttp"
	"go.opentelemetry.io/otel/exporters/otlp/otlpmetric/otlpmetricgrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlpmetric/otlpmetrichttp"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/log"
	"go.opentelemetry.io/otel/metric"
	sdklog "go.opentelemetry.io/otel/sdk/log"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
)

// exporters are the SDK's exporters of the three signals.
type exporters struct {
	traces  sdktrace.SpanExporter
	metrics sdkmetric.Exporter
	logs    sdklog.Exporter
}

// client says how the SDK sends.
type client struct {
	transport, addr string
	gzip            bool
	secure          *tls.Config // nil: without TLS
	headers         map[string]string
}

// connect makes exporters, which the user shuts down.
func (c client) connect(t *testing.T) exporters {
	t.Helper()
	connect := c.connectHTTP
	if c.transport == overGRPC {
		connect = c.connectGRPC
	}
	e, err := connect(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func (c client) connectGRPC(ctx context.Context) (e exporters, err error) {
	creds := insecure.NewCredentials()
	if c.secure != nil {
		creds = credentials.NewTLS(c.secure)
	}
	traces := []otlptracegrpc.Option{otlptracegrpc.WithEndpoint(c.addr), otlptracegrpc.WithTimeout(limit),
		otlptracegrpc.WithHeaders(c.headers), otlptracegrpc.WithTLSCredentials(creds)}
	metrics := []otlpmetricgrpc.Option{otlpmetricgrpc.WithEndpoint(c.addr), otlpmetricgrpc.WithTimeout(limit),
		otlpmetricgrpc.WithHeaders(c.headers), otlpmetricgrpc.WithTLSCredentials(creds)}
	logs := []otlploggrpc.Option{otlploggrpc.WithEndpoint(c.addr), otlploggrpc.WithTimeout(limit),
		otlploggrpc.WithHeaders(c.headers), otlploggrpc.WithTLSCredentials(creds)}
	if c.gzip {
		traces = append(traces, otlptracegrpc.WithCompressor("gzip"))
		metrics = append(metrics, otlpmetricgrpc.WithCompressor("gzip"))
		logs = append(logs, otlploggrpc.WithCompressor("gzip"))
	}
	var errs [3]error
	e.traces, errs[0] = otlptracegrpc.New(ctx, traces...)
	e.metrics, errs[1] = otlpmetricgrpc.New(ctx, metrics...)
	e.logs, errs[2] = otlploggrpc.New(ctx, logs...)
	return e, errors.Join(errs[:]...)
}

func (c client) connectHTTP(ctx context.Context) (e exporters, err error) {
	traces := []otlptracehttp.Option{otlptracehttp.WithEndpoint(c.addr), otlptracehttp.WithTimeout(limit), otlptracehttp.WithHeaders(c.headers)}
	metrics := []otlpmetrichttp.Option{otlpmetrichttp.WithEndpoint(c.addr), otlpmetrichttp.WithTimeout(limit), otlpmetrichttp.WithHeaders(c.headers)}
	logs := []otlploghttp.Option{otlploghttp.WithEndpoint(c.addr), otlploghttp.WithTimeout(limit), otlploghttp.WithHeaders(c.headers)}
	if c.gzip {
		traces = append(traces, otlptracehttp.WithCompression(otlptracehttp.GzipCompression))
		metrics = append(metrics, otlpmetrichttp.WithCompression(otlpmetrichttp.GzipCompression))
		logs = append(logs, otlploghttp.WithCompression(otlploghttp.GzipCompression))
	}
	if c.secure != nil {
		traces = append(traces, otlptracehttp.WithTLSClientConfig(c.secure))
		metrics = append(metrics, otlpmetrichttp.WithTLSClientConfig(c.secure))
		logs = append(logs, otlploghttp.WithTLSClientConfig(c.secure))
	} else {
		traces = append(traces, otlptracehttp.WithInsecure())
		metrics = append(metrics, otlpmetrichttp.WithInsecure())
		logs = append(logs, otlploghttp.WithInsecure())
	}
	var errs [3]error
	e.traces, errs[0] = otlptracehttp.New(ctx, traces...)
	e.metrics, errs[1] = otlpmetrichttp.New(ctx, metrics...)
	e.logs, errs[2] = otlploghttp.New(ctx, logs...)
	return e, errors.Join(errs[:]...)
}

// app is an instrumented program. What it records goes where the client under test sends and to a reference sink, as the
// same objects: the same ids, times and values.
type app struct {
	t         *testing.T
	traces    *sdktrace.TracerProvider
	metrics   *sdkmetric.MeterProvider
	logs      *sdklog.LoggerProvider
	collected sdkmetric.Reader
	to        []sdkmetric.Exporter
}

// batch is how many spans or log records the SDK puts into a request.
const batch = 10

func newApp(t *testing.T, c client, reference *sink) *app {
	t.Helper()
	via, direct := c.connect(t), client{transport: overGRPC, addr: reference.grpc}.connect(t)
	res := resource.NewWithAttributes("https://opentelemetry.io/schemas/1.37.0",
		attribute.String("service.name", t.Name()), attribute.Int("process.pid", 4711), attribute.StringSlice("tags", []string{"a", "b"}))
	a := &app{t: t, collected: sdkmetric.NewManualReader(), to: []sdkmetric.Exporter{via.metrics, direct.metrics}}
	a.traces = sdktrace.NewTracerProvider(sdktrace.WithResource(res),
		sdktrace.WithBatcher(via.traces, sdktrace.WithMaxExportBatchSize(batch)),
		sdktrace.WithBatcher(direct.traces, sdktrace.WithMaxExportBatchSize(batch)))
	a.metrics = sdkmetric.NewMeterProvider(sdkmetric.WithResource(res), sdkmetric.WithReader(a.collected),
		sdkmetric.WithView(sdkmetric.NewView(sdkmetric.Instrument{Name: "sizes"},
			sdkmetric.Stream{Aggregation: sdkmetric.AggregationBase2ExponentialHistogram{MaxSize: 20, MaxScale: 5}})))
	a.logs = sdklog.NewLoggerProvider(sdklog.WithResource(res),
		sdklog.WithProcessor(sdklog.NewBatchProcessor(via.logs, sdklog.WithExportMaxBatchSize(batch))),
		sdklog.WithProcessor(sdklog.NewBatchProcessor(direct.logs, sdklog.WithExportMaxBatchSize(batch))))
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), limit)
		defer cancel()
		err := errors.Join(a.traces.Shutdown(ctx), a.metrics.Shutdown(ctx), a.logs.Shutdown(ctx))
		for _, e := range a.to {
			err = errors.Join(err, e.Shutdown(ctx))
		}
		if err != nil {
			t.Errorf("shut down SDK: %v", err)
		}
	})
	return a
}

// work records n operations (from any goroutine), each a span, two log records and some measurements, with padding bytes more in each span and
// record, and returns when both sides have answered.
func (a *app) work(n, padding int) {
	a.t.Helper()
	tracer := a.traces.Tracer("interop", trace.WithInstrumentationVersion("1.2.3"),
		trace.WithInstrumentationAttributes(attribute.Bool("scope", true)))
	logger := a.logs.Logger("interop/logs")
	meter := a.metrics.Meter("interop/metrics")
	count, err1 := meter.Int64Counter("operations", metric.WithUnit("{operation}"), metric.WithDescription("how many"))
	took, err2 := meter.Float64Histogram("duration", metric.WithUnit("s"))
	sizes, err3 := meter.Int64Histogram("sizes")
	level, err4 := meter.Float64Gauge("level")
	if err := errors.Join(err1, err2, err3, err4); err != nil {
		a.t.Error(err)
		return
	}
	filler := strings.Repeat("ä", padding/2)
	var last trace.SpanContext
	for i := range n {
		ctx, span := tracer.Start(a.t.Context(), fmt.Sprint("operation ", i), trace.WithSpanKind(trace.SpanKindServer),
			trace.WithLinks(trace.Link{SpanContext: last, Attributes: []attribute.KeyValue{attribute.Int("before", i)}}),
			trace.WithAttributes(attribute.Int64("n", int64(i)), attribute.Float64("f", 1/float64(i+3)), attribute.String("filler", filler),
				attribute.Int64Slice("list", []int64{-1, 0, 1 << 62}), attribute.String("empty", "")))
		span.AddEvent("event", trace.WithAttributes(attribute.Bool("even", i%2 == 0)))
		if i%3 == 0 {
			span.SetStatus(codes.Error, "every third fails")
		}
		for _, severity := range []log.Severity{log.SeverityInfo, log.SeverityFatal4} {
			var r log.Record
			r.SetTimestamp(time.Now())
			r.SetSeverity(severity)
			r.SetEventName("step")
			r.SetBody(attribute.MapValue(attribute.Int("n", i), attribute.ByteSlice("bytes", []byte{0, 255, byte(i)}),
				attribute.String("filler", filler)))
			r.AddAttributes(attribute.KeyValue{Key: "list", Value: attribute.SliceValue(attribute.Float64Value(0.5),
				attribute.MapValue(attribute.Bool("deep", true)), attribute.Value{})})
			logger.Emit(ctx, r)
		}
		count.Add(ctx, int64(i), metric.WithAttributes(attribute.Int("kind", i%4)))
		took.Record(ctx, float64(i)*0.013)
		sizes.Record(ctx, int64(i)*1000)
		level.Record(ctx, -1.5*float64(i))
		last = span.SpanContext()
		span.End()
		if i%batch == batch-1 { // the SDK's queues drop what does not fit
			a.flush()
		}
	}
	a.flush()
	var collected metricdata.ResourceMetrics
	if err := a.collected.Collect(a.t.Context(), &collected); err != nil {
		a.t.Error(err)
		return
	}
	for _, e := range a.to {
		if err := e.Export(a.t.Context(), &collected); err != nil {
			a.t.Errorf("export metrics: %v", err)
		}
	}
}

// workDuring works without end while f runs, and returns when all is answered.
func (a *app) workDuring(f func()) {
	done := make(chan struct{})
	var working sync.WaitGroup
	defer working.Wait()
	defer close(done) // also when f ends the test
	working.Go(func() {
		for {
			select {
			case <-done:
				return
			default:
				a.work(20, 100)
			}
		}
	})
	f()
}

func (a *app) flush() {
	a.t.Helper()
	if err := errors.Join(a.traces.ForceFlush(a.t.Context()), a.logs.ForceFlush(a.t.Context())); err != nil {
		a.t.Errorf("flush: %v", err)
	}
}

// TestGoSDK: what the SDK's exporters send through the agent arrives as what they send directly, byte for byte in each record.
func TestGoSDK(t *testing.T) {
	t.Parallel()
	for _, from := range transports() {
		for _, to := range transports() {
			for _, gzip := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s/gzip=%v/to/%s", from, gzip, to), func(t *testing.T) {
					t.Parallel()
					s, reference := startSink(t), startSink(t)
					a := startAgent(t, onePort+anyDisk+destination(to, s.addr(to), ""))
					newApp(t, client{transport: from, addr: a.addr(from), gzip: gzip}, reference).work(25, 100)
					equal(t, s, reference, exact)
					all, err := recordsOf(reference.requests(), exact)
					if want := 2*25 + 25 + 4; err != nil || len(all) != want { // else equal could have compared less
						t.Errorf("%d records were sent, want %d, %v", len(all), want, err)
					}
					a.allDelivered()
				})
			}
		}
	}
}

// destination is the configuration of the default destination at host:port.
func destination(transport, addr, more string) string {
	if transport == overGRPC {
		return fmt.Sprintf("destinations: {default: {type: otlp_grpc, endpoint: %q, tls: {insecure: true}%s}}\n", addr, more)
	}
	return fmt.Sprintf("destinations: {default: {type: otlp_http, endpoint: \"http://%s\"%s}}\n", addr, more)
}
