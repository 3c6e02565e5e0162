package workers

import (
	"context"
	"errors"
	"log/slog"
	"runtime/debug"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
)

// Middleware wraps a handler.
type Middleware func(Handler) Handler

// chain wraps h, the first middleware outermost. A panic of the handler is an
// error to all of them; one of theirs is caught as well.
func chain(h Handler, ms []Middleware) Handler {
	h = guard(h)
	for i := len(ms) - 1; i >= 0; i-- {
		h = ms[i](h)
	}
	if len(ms) > 0 {
		h = guard(h)
	}
	return h
}

func guard(h Handler) Handler {
	return func(ctx context.Context, j *Job) (err error) {
		defer func() {
			if v := recover(); v != nil {
				err = &PanicError{Value: v, Stack: debug.Stack()}
			}
		}()
		return h(ctx, j)
	}
}

// Logging logs every job when its handler returns: at info, or at warn when it
// failed or was discarded. Nil: slog.Default.
func Logging(logger *slog.Logger) Middleware {
	if logger == nil {
		logger = slog.Default()
	}
	return func(next Handler) Handler {
		return func(ctx context.Context, j *Job) error {
			began := time.Now()
			err := next(ctx, j)
			level, msg := slog.LevelInfo, "job done"
			if err != nil {
				level, msg = slog.LevelWarn, "job failed"
			}
			if snooze := (*SnoozeError)(nil); errors.As(err, &snooze) {
				level, msg = slog.LevelInfo, "job snoozed"
			}
			if logger.Enabled(ctx, level) {
				attrs := []slog.Attr{
					slog.String("job", j.ID), slog.String("target", j.Target),
					slog.Int("attempt", j.Attempt), slog.Duration("took", time.Since(began)),
				}
				if err != nil {
					attrs = append(attrs, slog.Any("error", err))
				}
				logger.LogAttrs(ctx, level, msg, attrs...)
			}
			return err
		}
	}
}

// tracerName is the instrumentation scope of the spans.
const tracerName = "github.com/delaybridge/delaybridge/workers"

// Tracing runs every handler in a span named process, a child of the one that
// the delivery names, with the attributes of the semantic conventions for
// messaging, version 1.43. The outcome carries the span's context. Nil:
// otel.GetTracerProvider.
func Tracing(provider trace.TracerProvider) Middleware {
	return func(next Handler) Handler {
		return func(ctx context.Context, j *Job) error {
			p := provider
			if p == nil {
				p = otel.GetTracerProvider()
			}
			ctx, span := p.Tracer(tracerName).Start(ctx, "process",
				trace.WithSpanKind(trace.SpanKindConsumer), trace.WithAttributes(spanAttributes(j)...))
			defer span.End()
			j.ctx = ctx
			err := next(ctx, j)
			if snooze := (*SnoozeError)(nil); err != nil && !errors.As(err, &snooze) {
				span.RecordError(err)
				span.SetStatus(codes.Error, err.Error())
			}
			return err
		}
	}
}

func spanAttributes(j *Job) []attribute.KeyValue {
	return []attribute.KeyValue{
		attribute.String("messaging.system", "nats"),
		attribute.String("messaging.operation.name", "process"),
		attribute.String("messaging.operation.type", "process"),
		attribute.String("messaging.destination.name", j.Target),
		attribute.String("messaging.message.id", j.ID),
		attribute.Int("delaybridge.attempt", j.Attempt),
	}
}
