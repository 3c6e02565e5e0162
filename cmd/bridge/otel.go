package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"github.com/redis/go-redis/extra/redisotel/v9"
	"github.com/redis/go-redis/v9"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	"go.opentelemetry.io/otel/trace"

	"github.com/delaybridge/delaybridge/adapter/spans"
)

const (
	// traceFlush is how long a stop waits for the last spans to be exported.
	traceFlush = 1500 * time.Millisecond
	// traceErrors is how often an exporter's error is logged.
	traceErrors = time.Second
)

// startTracing makes c trace as o asks. The function that is returned ends that.
func startTracing(ctx context.Context, c *config, o otelConfig, out io.Writer, log *slog.Logger) (stop func(), err error) {
	c.bridge.Propagator, c.bridge.TraceLink = o.propagator, c.tracing.delayed == delayedLink
	if o.exporter == "" {
		return func() {}, nil
	}
	// What they say of themselves is in part what they were told, which is secret.
	otel.SetLogger(logr.Discard())
	failed := &exportErrors{log: log}
	otel.SetErrorHandler(failed)
	provider, err := o.provider(ctx, c, out, failed.Handle)
	if err != nil {
		return nil, fmt.Errorf("traces: %w; correct the OTEL_ variables, or set OTEL_TRACES_EXPORTER=none", err)
	}
	c.bridge.Tracer = provider
	if c.tracing.redis {
		c.tracing.instrument = func(client redis.UniversalClient) error {
			return redisotel.InstrumentTracing(client, redisotel.WithTracerProvider(provider), redisotel.WithDBStatement(false))
		}
	}
	return func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), traceFlush)
		defer cancel()
		if err := provider.Shutdown(ctx); err != nil {
			log.Warn("the last spans were not exported", "error", err)
		}
	}, nil
}

func (o *otelConfig) provider(ctx context.Context, c *config, out io.Writer, errors func(error)) (*spans.Provider, error) {
	about, err := o.resource(ctx, c)
	if err != nil {
		return nil, err
	}
	return spans.New(ctx, spans.Options{
		Client: o.client(out), Sampler: o.sampler, Resource: about, OnError: errors,
		Queue: o.queue, Batch: o.batch, Every: o.every, Timeout: o.timeout,
	})
}

// client returns what carries spans away. It needs no collector to be there.
func (o *otelConfig) client(out io.Writer) spans.Client {
	switch {
	case o.exporter == exporterConsole:
		return spans.Console(out)
	case o.grpc:
		return otlptracegrpc.NewClient()
	}
	return otlptracehttp.NewClient()
}

// resource says what the spans are of; the variables come first.
func (o *otelConfig) resource(ctx context.Context, c *config) (*resource.Resource, error) {
	about := []attribute.KeyValue{
		attribute.String("service.instance.id", c.bridge.ID), attribute.String("service.version", version()),
	}
	if !o.named {
		about = append(about, attribute.String("service.name", c.bridge.Service))
	}
	return resource.New(ctx, resource.WithTelemetrySDK(), resource.WithAttributes(about...), resource.WithFromEnv())
}

// exportErrors logs the errors of an exporter that cannot reach its collector: the
// first at once, then one in a while.
type exportErrors struct {
	log *slog.Logger

	mu      sync.Mutex
	last    time.Time
	skipped int
}

// Handle is called by the exporter.
func (e *exportErrors) Handle(err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if now := time.Now(); now.Sub(e.last) >= traceErrors {
		e.log.Warn("traces not exported", "error", err, "more_since_last", e.skipped)
		e.last, e.skipped = now, 0
		return
	}
	e.skipped++
}

// traceHandler adds the trace to lines about one job, whose context has it.
type traceHandler struct{ slog.Handler }

func (h traceHandler) Handle(ctx context.Context, r slog.Record) error {
	if sc := trace.SpanContextFromContext(ctx); sc.IsValid() {
		r = r.Clone()
		r.AddAttrs(slog.String("trace_id", sc.TraceID().String()), slog.String("span_id", sc.SpanID().String()))
	}
	return h.Handler.Handle(ctx, r)
}

func (h traceHandler) WithAttrs(as []slog.Attr) slog.Handler {
	return traceHandler{h.Handler.WithAttrs(as)}
}
func (h traceHandler) WithGroup(name string) slog.Handler {
	return traceHandler{h.Handler.WithGroup(name)}
}
