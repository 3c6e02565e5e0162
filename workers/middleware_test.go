package workers_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"strings"
	"sync"
	"testing"

	"github.com/nats-io/nats.go"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/delaybridge/delaybridge/internal/testnats"
	"github.com/delaybridge/delaybridge/workers"
)

func TestMiddlewareOrder(t *testing.T) {
	var mu sync.Mutex
	var got []string
	note := func(s string) {
		mu.Lock()
		defer mu.Unlock()
		got = append(got, s)
	}
	named := func(name string) workers.Middleware {
		return func(next workers.Handler) workers.Handler {
			return func(ctx context.Context, j *workers.Job) error {
				note(name + " in")
				err := next(ctx, j)
				note(name + " out " + err.Error())
				return err
			}
		}
	}
	cfg := config()
	cfg.Middleware = []workers.Middleware{named("a"), named("b")}
	b, w := rig(t, cfg, func(context.Context, *workers.Job) error { panic("boom") })
	b.settled(b.direct(w, "p"), 1)
	mu.Lock()
	defer mu.Unlock()
	if s, want := strings.Join(got, ", "), "a in, b in, b out panic: boom, a out panic: boom"; s != want {
		t.Errorf("%s; want %s", s, want)
	}
}

func TestMiddlewareThatPanics(t *testing.T) {
	cfg := config()
	log := &lines{}
	cfg.Logger = slog.New(slog.NewTextHandler(log, nil))
	cfg.Middleware = []workers.Middleware{func(workers.Handler) workers.Handler {
		return func(context.Context, *workers.Job) error { panic(io.EOF) }
	}}
	b, w := rig(t, cfg, done)
	if m := b.settled(b.direct(w, "p"), 1); m.body != `-NAK {"reason":"panic: EOF"}` {
		t.Errorf("settled with %q", m.body)
	}
	if !strings.Contains(log.String(), "panic=EOF") || !strings.Contains(log.String(), "middleware_test.go") {
		t.Errorf("no stack in the log:\n%s", log)
	}
}

func TestLogging(t *testing.T) {
	for _, tt := range []struct {
		err  error
		want string
	}{
		{nil, `level=INFO msg="job done" job=job-p target=t.x attempt=1`},
		{io.EOF, `level=WARN msg="job failed" job=job-p`},
		{workers.Discard("r"), `error="workers: discarded: r"`},
		{workers.Snooze(5), `level=INFO msg="job snoozed"`},
	} {
		log := &lines{}
		cfg := config()
		cfg.Middleware = []workers.Middleware{workers.Logging(slog.New(slog.NewTextHandler(log, nil)))}
		b, w := rig(t, cfg, func(context.Context, *workers.Job) error { return tt.err })
		b.settled(b.direct(w, "p"), 1)
		if !strings.Contains(log.String(), tt.want) {
			t.Errorf("%v logged as %s, want %s", tt.err, log, tt.want)
		}
	}
}

// spans is a trace.TracerProvider that keeps what it is told.
type spans struct {
	noop.TracerProvider
	mu   sync.Mutex
	made []*span
}

type tracer struct {
	noop.Tracer
	all *spans
}

type span struct {
	noop.Span
	name   string
	parent trace.SpanContext
	own    trace.SpanContext
	kind   trace.SpanKind
	attrs  attribute.Set

	mu    sync.Mutex
	code  codes.Code
	ended bool
}

func (s *spans) Tracer(string, ...trace.TracerOption) trace.Tracer { return &tracer{all: s} }

func (t *tracer) Start(ctx context.Context, name string, opts ...trace.SpanStartOption) (context.Context, trace.Span) {
	c := trace.NewSpanStartConfig(opts...)
	s := &span{name: name, parent: trace.SpanContextFromContext(ctx), kind: c.SpanKind(), attrs: attribute.NewSet(c.Attributes()...)}
	s.own = s.parent.WithSpanID(trace.SpanID{1, 2, 3, 4, 5, 6, 7, 8}).WithRemote(false)
	t.all.mu.Lock()
	defer t.all.mu.Unlock()
	t.all.made = append(t.all.made, s)
	return trace.ContextWithSpan(ctx, s), s
}

func (s *span) SpanContext() trace.SpanContext { return s.own }

func (s *span) SetStatus(c codes.Code, _ string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.code = c
}

func (s *span) End(...trace.SpanEndOption) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = true
}

const (
	parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	child  = "00-0af7651916cd43dd8448eb211c80319c-0102030405060708-01"
)

func TestTracing(t *testing.T) {
	for _, spelling := range []string{"traceparent", "Traceparent", "TRACEPARENT"} {
		for _, err := range []error{nil, io.EOF, workers.Snooze(1)} {
			all := &spans{}
			cfg := config()
			cfg.Middleware = []workers.Middleware{workers.Tracing(all)}
			b, w := rig(t, cfg, func(context.Context, *workers.Job) error { return err })
			m := b.settled(b.direct(w, "p", header(spelling, parent)), 1)
			if got := m.header.Get("traceparent"); got != child {
				t.Errorf("%s: the outcome carries %q, want the span %s", spelling, got, child)
			}
			if len(all.made) != 1 {
				t.Fatalf("%d spans", len(all.made))
			}
			s := all.made[0]
			target, _ := s.attrs.Value("messaging.destination.name")
			failed := errors.Is(err, io.EOF)
			if s.name != "process" || s.kind != trace.SpanKindConsumer || s.parent.SpanID().String() != "b7ad6b7169203331" ||
				!s.ended || target.AsString() != "t.x" || (s.code == codes.Error) != failed {
				t.Errorf("span %+v", s)
			}
		}
	}
}

// Without Tracing the producer's trace still reaches the outcome.
func TestTraceContextPassesThrough(t *testing.T) {
	inside := make(chan trace.SpanContext, 1)
	b, w := rig(t, config(), func(ctx context.Context, _ *workers.Job) error {
		inside <- trace.SpanContextFromContext(ctx)
		return nil
	})
	m := b.settled(b.direct(w, "p", header("traceparent", parent), header("baggage", "k=v")), 1)
	if m.header.Get("traceparent") != parent || m.header.Get("baggage") != "k=v" {
		t.Errorf("the outcome carries %v", m.header)
	}
	if c := receive(t, inside); !c.IsRemote() || c.SpanID().String() != "b7ad6b7169203331" {
		t.Errorf("the handler's context has %v", c)
	}
}

func TestHeartbeatsCarryTheTraceOfRun(t *testing.T) {
	srv := testnats.Start(t)
	b := newBridge(t, srv)
	w, err := workers.New(connect(t, srv), config(), done)
	if err != nil {
		t.Fatal(err)
	}
	carrier := propagation.MapCarrier{"traceparent": parent}
	ctx, cancel := context.WithCancel(propagation.TraceContext{}.Extract(t.Context(), carrier))
	ended := make(chan error, 1)
	go func() { ended <- w.Run(ctx) }()
	carries := func(h nats.Header) bool { return h.Get("traceparent") == parent }
	b.beatThat("with a trace", func(h beat) bool { return carries(h.header) })
	cancel()
	if err := receive(t, ended); err != nil {
		t.Error(err)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if !carries(b.byes[0].header) {
		t.Errorf("farewell carries %v", b.byes[0].header)
	}
}
