package adapter_test

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/delaybridge/delaybridge/adapter"
	"github.com/delaybridge/delaybridge/job"
)

const (
	producerTrace = "0af7651916cd43dd8448eb211c80319c"
	producer      = "00-" + producerTrace + "-b7ad6b7169203331-01"
)

// tracesOfLines notes the trace of each line that is logged, by its message.
type tracesOfLines struct {
	slog.Handler
	mu    sync.Mutex
	lines map[string]string
}

func (h *tracesOfLines) Enabled(context.Context, slog.Level) bool { return true }

func (h *tracesOfLines) Handle(ctx context.Context, r slog.Record) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.lines[r.Message] = trace.SpanContextFromContext(ctx).TraceID().String()
	return nil
}

func (h *tracesOfLines) of(msg string) string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.lines[msg]
}

// Lines about one job tell its trace, whether the bridge makes spans or not.
func TestLinesAboutAJobHaveItsTrace(t *testing.T) {
	for name, tracer := range map[string]trace.TracerProvider{"off": nil, "on": sdktrace.NewTracerProvider()} {
		t.Run(name, func(t *testing.T) {
			h := &tracesOfLines{Handler: slog.DiscardHandler, lines: map[string]string{}}
			r := newRig(t, withConfig(func(c *adapter.Config) { c.Logger, c.Tracer = slog.New(h), tracer }))
			jobs := r.worker("t.x")
			a := r.schedule("delay.in.0s.t.x", "p", "Traceparent", producer, "Delay-Max-Attempts", "1")
			r.settle(receive(t, jobs), `-NAK {"reason":"no"}`)
			r.becomes(a.ID, job.Dead)
			m := message("delay.in.never.t.x", "p", "traceparent", producer)
			if err := r.nc.PublishMsg(m); err != nil {
				t.Fatal(err)
			}
			for _, msg := range []string{"worker refused a job", "job is dead", "message rejected, and nobody asked for an answer"} {
				eventually(t, "line with the trace: "+msg, func() bool { return h.of(msg) == producerTrace })
			}
		})
	}
}

// What is refused, and a lease that runs out, are in the trace too.
func TestSpansOfFailures(t *testing.T) {
	spans := tracetest.NewInMemoryExporter()
	r := newRig(t, withConfig(func(c *adapter.Config) { c.Tracer = sdktrace.NewTracerProvider(sdktrace.WithSyncer(spans)) }))
	find := func(name string, ok func(tracetest.SpanStub) bool) (s tracetest.SpanStub) {
		eventually(t, "span "+name, func() bool {
			all := spans.GetSpans()
			i := slices.IndexFunc(all, func(s tracetest.SpanStub) bool { return s.Name == name && ok(s) })
			if i >= 0 {
				s = all[i]
			}
			return i >= 0
		})
		return s
	}
	r.request("delay.in.never.t.x", "p", "traceparent", producer)
	s := find("receive", func(s tracetest.SpanStub) bool { return s.Status.Code == codes.Error })
	if s.SpanContext.TraceID().String() != producerTrace || !slices.Contains(s.Attributes, attribute.Int("delaybridge.error_code", 10189)) {
		t.Errorf("span of a refusal: %+v", s)
	}
	r.request("delay.in.never.t.x", "p")

	jobs := r.worker("t.x")
	r.done(func() *nats.Msg { r.schedule("delay.in.0s.t.x", "other"); return receive(t, jobs) }()) // somebody is there
	r.schedule("delay.in.0s.t.x", "p", "traceparent", producer, "Delay-Ack-Wait", "50ms")
	receive(t, jobs)
	first := find("publish", func(s tracetest.SpanStub) bool { return s.SpanContext.TraceID().String() == producerTrace })
	s = find("settle", func(s tracetest.SpanStub) bool { return s.Parent.SpanID() == first.SpanContext.SpanID() })
	if !slices.Contains(s.Attributes, attribute.String("delaybridge.outcome", "retry")) {
		t.Errorf("span of a lease that ran out: %+v", s)
	}
	const oversized = "1111111111111111aaaaaaaaaaaaaaaa"
	if _, err := r.store.Put(t.Context(), []job.Job{{
		ID: "oversized", Incarnation: 1, Target: "t.x", Due: 1, AckWait: time.Minute, Payload: make([]byte, 2<<20),
		Header: []job.Field{{Name: "traceparent", Value: "00-" + oversized + "-b7ad6b7169203331-01"}},
	}}); err != nil {
		t.Fatal(err)
	}
	first = find("publish", func(s tracetest.SpanStub) bool { return s.SpanContext.TraceID().String() == oversized })
	if s = find("settle", func(s tracetest.SpanStub) bool { return s.Parent.SpanID() == first.SpanContext.SpanID() }); first.Status.Code != codes.Error ||
		!slices.Contains(s.Attributes, attribute.String("delaybridge.outcome", "dead")) {
		t.Errorf("spans of a job that cannot be published: %+v, %+v", first, s)
	}
	for _, s := range spans.GetSpans() {
		if s.Name == "receive" && s.Status.Code == codes.Error && s.SpanContext.TraceID().String() != producerTrace {
			t.Errorf("a refusal began a trace: %+v", s)
		}
	}
}
