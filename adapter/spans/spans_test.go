package spans_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/proto"

	"github.com/delaybridge/delaybridge/adapter/spans"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// collector takes spans as a real one does: from the wire.
type collector struct {
	mu     sync.Mutex
	err    error
	block  chan struct{} // nil: no call waits
	calls  int
	traces []*tracepb.ResourceSpans
}

func (c *collector) Start(context.Context) error { return nil }
func (c *collector) Stop(context.Context) error  { return nil }

func (c *collector) UploadTraces(ctx context.Context, batch []*tracepb.ResourceSpans) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.calls++
	if c.block != nil {
		select {
		case <-c.block:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	if c.err != nil {
		return c.err
	}
	for _, r := range batch {
		read, err := spans.Decode(r)
		if err != nil {
			return err
		}
		c.traces = append(c.traces, read)
	}
	return nil
}

func (c *collector) spans() (out []*tracepb.Span) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, r := range c.traces {
		for _, s := range r.ScopeSpans {
			out = append(out, s.Spans...)
		}
	}
	return out
}

// start returns a provider that exports to c when it is told to.
func start(t *testing.T, c spans.Client, change ...func(*spans.Options)) *spans.Provider {
	t.Helper()
	o := spans.Options{Client: c, Every: time.Hour}
	for _, f := range change {
		f(&o)
	}
	p, err := spans.New(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Shutdown(context.Background()) })
	return p
}

func flush(t *testing.T, p *spans.Provider) {
	t.Helper()
	if err := p.ForceFlush(t.Context()); err != nil {
		t.Fatal(err)
	}
}

var (
	parentID = trace.TraceID{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}
	began    = time.Unix(1800000000, 123456789)
)

func remote(flags trace.TraceFlags) trace.SpanContext {
	state, _ := trace.ParseTraceState("a=1,b=2")
	return trace.NewSpanContext(trace.SpanContextConfig{TraceID: parentID, SpanID: trace.SpanID{8, 7, 6}, TraceFlags: flags, TraceState: state, Remote: true})
}

// makeSpans has a tracer make spans with everything in them.
func makeSpans(tr trace.Tracer) {
	ctx := trace.ContextWithRemoteSpanContext(context.Background(), remote(trace.FlagsSampled))
	ctx, a := tr.Start(ctx, "a", trace.WithTimestamp(began), trace.WithSpanKind(trace.SpanKindConsumer),
		trace.WithAttributes(attribute.String("s", "text"), attribute.Bool("b", true), attribute.Int64("n", -7), attribute.Float64("f", 1.5)),
		trace.WithLinks(trace.Link{SpanContext: remote(0), Attributes: []attribute.KeyValue{attribute.Int("k", 1)}}))
	_, b := tr.Start(ctx, "b", trace.WithTimestamp(began.Add(time.Second)), trace.WithSpanKind(trace.SpanKindProducer))
	b.SetAttributes(attribute.StringSlice("list", []string{"x", "", "y"}))
	b.AddEvent("e", trace.WithTimestamp(began), trace.WithAttributes(attribute.String("k", "v")))
	b.SetStatus(codes.Error, "why")
	b.SetStatus(codes.Unset, "")
	b.SetName("b2")
	b.End(trace.WithTimestamp(began.Add(2 * time.Second)))
	b.SetName("late")
	b.SetAttributes(attribute.Bool("late", true))
	b.End()
	a.SetStatus(codes.Error, "lost")
	a.SetStatus(codes.Ok, "")
	a.SetStatus(codes.Error, "not any more")
	a.End(trace.WithTimestamp(began.Add(3 * time.Second)))
	_, root := tr.Start(ctx, "root", trace.WithNewRoot(), trace.WithTimestamp(began))
	root.RecordError(errors.New("bad"), trace.WithTimestamp(began))
	root.End(trace.WithTimestamp(began))
}

// What is exported is what the SDK exports.
func TestAsTheSDK(t *testing.T) {
	about := resource.NewSchemaless(attribute.String("service.name", "x"))
	var want, got collector
	exporter, err := otlptrace.New(t.Context(), &want)
	if err != nil {
		t.Fatal(err)
	}
	sdk := sdktrace.NewTracerProvider(sdktrace.WithSyncer(exporter), sdktrace.WithResource(about))
	makeSpans(sdk.Tracer("scope", trace.WithInstrumentationVersion("v1")))
	if err := sdk.Shutdown(t.Context()); err != nil {
		t.Fatal(err)
	}
	ours := start(t, &got, func(o *spans.Options) { o.Resource = about })
	makeSpans(ours.Tracer("scope", trace.WithInstrumentationVersion("v1")))
	flush(t, ours)

	if len(got.traces) != 1 || got.traces[0].Resource.String() != want.traces[0].Resource.String() ||
		got.traces[0].ScopeSpans[0].Scope.String() != want.traces[0].ScopeSpans[0].Scope.String() {
		t.Errorf("exported %v, the SDK %v", got.traces, want.traces)
	}
	ws, gs := want.spans(), got.spans()
	if len(ws) != 3 || len(gs) != 3 {
		t.Fatalf("%d spans, the SDK %d, want 3", len(gs), len(ws))
	}
	if !bytes.Equal(gs[0].ParentSpanId, gs[1].SpanId) || !bytes.Equal(gs[0].TraceId, parentID[:]) || bytes.Equal(gs[2].TraceId, parentID[:]) {
		t.Errorf("ids %v", gs)
	}
	for i := range ws {
		for _, s := range []*tracepb.Span{ws[i], gs[i]} {
			s.SpanId = nil // random
			if i == 0 {
				s.ParentSpanId = nil
			}
			if i == 2 {
				s.TraceId = nil
			}
			if s.Status == nil {
				s.Status = &tracepb.Status{}
			}
		}
		if !proto.Equal(ws[i], gs[i]) {
			t.Errorf("span %d\n%v, the SDK\n%v", i, gs[i], ws[i])
		}
	}
}

// A Record is exported as the span would be that is made step by step.
func TestRecord(t *testing.T) {
	var want, got collector
	made, recorded := start(t, &want), start(t, &got)
	attrs := []attribute.KeyValue{attribute.String("k", "v"), attribute.Int("n", 300), attribute.Bool("b", true), attribute.String("long", strings.Repeat("x", 200))}
	shape := spans.NewShape("name", trace.SpanKindConsumer, attrs[:1]...)
	links := []trace.Link{{SpanContext: remote(0)}, {}}
	for _, parent := range []trace.SpanContext{remote(trace.FlagsSampled), {}, remote(0)} {
		ctx := trace.ContextWithSpanContext(t.Context(), parent)
		_, s := made.Tracer("x").Start(ctx, "name", trace.WithSpanKind(trace.SpanKindConsumer), trace.WithTimestamp(began), trace.WithAttributes(attrs...), trace.WithLinks(links...))
		s.SetStatus(codes.Error, "why")
		s.End(trace.WithTimestamp(began.Add(time.Second)))

		tr := recorded.Tracer("x").(*spans.Tracer)
		sc := tr.Begin(parent, shape, links)
		if parent.IsValid() && (sc.TraceID() != parent.TraceID() || sc.TraceState().String() != "a=1,b=2") || sc.SpanID() == parent.SpanID() || sc.IsRemote() {
			t.Errorf("child of %v: %v", parent, sc)
		}
		tr.Record(&spans.Record{
			Shape: shape, Context: sc, Parent: parent, Start: began, End: began.Add(time.Second), Attributes: append(attrs[1:], attribute.KeyValue{}), Links: links, Failure: "why",
		})
	}
	flush(t, made)
	flush(t, recorded)
	ws, gs := want.spans(), got.spans()
	if len(ws) != 2 || len(gs) != 2 {
		t.Fatalf("%d spans recorded, %d made, want 2: the third one is not sampled", len(gs), len(ws))
	}
	for i := range ws {
		ws[i].SpanId, gs[i].SpanId = nil, nil // random
		if i == 1 {
			ws[i].TraceId, gs[i].TraceId = nil, nil
		}
		slices.SortFunc(ws[i].Attributes, byKey)
		slices.SortFunc(gs[i].Attributes, byKey)
		if !proto.Equal(ws[i], gs[i]) {
			t.Errorf("recorded\n%v, made\n%v", gs[i], ws[i])
		}
	}
}

func byKey(a, b *commonpb.KeyValue) int { return strings.Compare(a.Key, b.Key) }

func TestSampling(t *testing.T) {
	never, always := sdktrace.NeverSample(), sdktrace.AlwaysSample()
	for _, c := range []struct {
		name    string
		sampler sdktrace.Sampler
		parent  trace.SpanContext
		want    bool
	}{
		{"default, root", nil, trace.SpanContext{}, true},
		{"default, sampled", nil, remote(trace.FlagsSampled), true},
		{"default, not sampled", nil, remote(0), false},
		{"none, sampled", never, remote(trace.FlagsSampled), false},
		{"all, not sampled", always, remote(0), true},
		{"parent based on none, root", sdktrace.ParentBased(never), trace.SpanContext{}, false},
		{"parent based on none, sampled", sdktrace.ParentBased(never), remote(trace.FlagsSampled), true},
		{"parent based with another local rule", sdktrace.ParentBased(never, sdktrace.WithLocalParentNotSampled(always)), remote(0).WithRemote(false), true},
		{"parent based with another remote rule", sdktrace.ParentBased(never, sdktrace.WithRemoteParentNotSampled(always)), remote(0), true},
	} {
		var got collector
		p := start(t, &got, func(o *spans.Options) { o.Sampler = c.sampler })
		ctx := trace.ContextWithSpanContext(t.Context(), c.parent)
		ctx, s := p.Tracer("x").Start(ctx, "s")
		sc := s.SpanContext()
		if s.IsRecording() != c.want || sc.IsSampled() != c.want || !sc.IsValid() || sc.SpanID() == c.parent.SpanID() ||
			c.parent.IsValid() && sc.TraceID() != c.parent.TraceID() || trace.SpanContextFromContext(ctx).SpanID() != sc.SpanID() {
			t.Errorf("%s: span %+v", c.name, sc)
		}
		s.End()
		flush(t, p)
		if n := len(got.spans()); n == 1 != c.want {
			t.Errorf("%s: %d spans exported", c.name, n)
		}
	}
}

// A full batch is exported at once, what waits longest after a while.
func TestBatches(t *testing.T) {
	var c collector
	p := start(t, &c, func(o *spans.Options) { o.Batch, o.Every = 3, 10*time.Millisecond })
	for range 7 {
		_, s := p.Tracer("x").Start(t.Context(), "s")
		s.End()
	}
	deadline := time.Now().Add(10 * time.Second)
	for len(c.spans()) < 7 {
		if time.Now().After(deadline) {
			t.Fatalf("%d of 7 spans exported", len(c.spans()))
		}
		time.Sleep(time.Millisecond) // between two looks
	}
	for _, r := range c.traces {
		if n := len(r.ScopeSpans[0].Spans); n > 3 {
			t.Errorf("a batch of %d", n)
		}
	}
}

// A collector that does not answer holds nobody up, and what does not fit is
// dropped, and told.
func TestCollectorThatHangs(t *testing.T) {
	c := collector{block: make(chan struct{})}
	var mu sync.Mutex
	var told []string
	p := start(t, &c, func(o *spans.Options) {
		o.Queue, o.Batch = 10, 5
		o.OnError = func(err error) { mu.Lock(); told = append(told, err.Error()); mu.Unlock() }
	})
	for range 100 {
		_, s := p.Tracer("x").Start(t.Context(), "s")
		s.End()
	}
	close(c.block)
	if err := p.Shutdown(t.Context()); err != nil {
		t.Error(err)
	}
	if n := len(c.spans()); n != 10 {
		t.Errorf("%d spans exported of a queue of 10", n)
	}
	mu.Lock()
	defer mu.Unlock()
	if !strings.Contains(fmt.Sprint(told), "spans dropped: more than 10 waited") {
		t.Errorf("told %q", told)
	}
}

// A stop ends in time while a collector does not answer.
func TestShutdownInTime(t *testing.T) {
	c := &stubborn{started: make(chan struct{}), stopped: make(chan struct{})}
	p := start(t, c, func(o *spans.Options) { o.Batch = 1 })
	_, s := p.Tracer("x").Start(t.Context(), "s")
	s.End()
	<-c.started
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	if err := p.Shutdown(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Shutdown: %v", err)
	}
	_, s = p.Tracer("x").Start(t.Context(), "late")
	s.End()
}

// stubborn is a client whose call lasts until it is stopped, as those of the
// exporters do.
type stubborn struct{ started, stopped chan struct{} }

func (c *stubborn) Start(context.Context) error { return nil }
func (c *stubborn) Stop(context.Context) error  { close(c.stopped); return nil }
func (c *stubborn) UploadTraces(context.Context, []*tracepb.ResourceSpans) error {
	close(c.started)
	<-c.stopped
	return errors.New("stopped")
}

func TestShutdownExports(t *testing.T) {
	var c collector
	p := start(t, &c)
	_, s := p.Tracer("x").Start(t.Context(), "s")
	s.End()
	if err := p.Shutdown(t.Context()); err != nil || len(c.spans()) != 1 {
		t.Errorf("%d spans exported by Shutdown, %v", len(c.spans()), err)
	}
}

func TestErrorsAreTold(t *testing.T) {
	c := collector{err: errors.New("no collector")}
	var told error
	p := start(t, &c, func(o *spans.Options) { o.OnError = func(err error) { told = err } })
	_, s := p.Tracer("x").Start(t.Context(), "s")
	s.End()
	flush(t, p)
	if told == nil || told.Error() != "no collector" {
		t.Errorf("told %v", told)
	}
}

// One span with bytes that are no text must not cost a batch.
func TestTextThatIsNone(t *testing.T) {
	var c collector
	p := start(t, &c)
	_, s := p.Tracer("x").Start(t.Context(), "a\xff")
	s.SetAttributes(attribute.String("id\xfe", "\x80\x81"))
	s.SetStatus(codes.Error, "\xc3\x28")
	s.End()
	flush(t, p)
	got := c.spans()
	if len(got) != 1 || got[0].Name != "a\ufffd" || got[0].Attributes[0].Key != "id\ufffd" || got[0].Attributes[0].Value.GetStringValue() != "\ufffd" || got[0].Status.Message != "\ufffd(" {
		t.Errorf("spans %v", got)
	}
}

func TestConsole(t *testing.T) {
	var out bytes.Buffer
	p := start(t, spans.Console(&out))
	makeSpans(p.Tracer("x"))
	flush(t, p)
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(lines) != 3 || !strings.Contains(lines[0], `"name":"b2","kind":"producer","trace_id":"0102030405060708090a0b0c0d0e0f10"`) ||
		!strings.Contains(lines[0], `"duration_us":1000000,"error":"why"`) || !strings.Contains(lines[1], `"n":-7`) ||
		!strings.Contains(lines[1], `"links":["0102030405060708090a0b0c0d0e0f10-0807060000000000"]`) {
		t.Errorf("%s", out.String())
	}
}

func BenchmarkRecord(b *testing.B) {
	p, err := spans.New(context.Background(), spans.Options{Client: &nowhere{}, Queue: 1 << 20})
	if err != nil {
		b.Fatal(err)
	}
	defer p.Shutdown(context.Background())
	tr := p.Tracer("x").(*spans.Tracer)
	shape := spans.NewShape("publish", trace.SpanKindProducer, attribute.String("messaging.system", "nats"),
		attribute.String("messaging.operation.name", "publish"), attribute.String("messaging.operation.type", "send"))
	attrs := []attribute.KeyValue{attribute.String("messaging.destination.name", "orders.created"),
		attribute.String("messaging.message.id", "0123456789ab"), attribute.Int64("delaybridge.attempt", 1)}
	parent := trace.NewSpanContext(trace.SpanContextConfig{TraceID: parentID, SpanID: trace.SpanID{1}, TraceFlags: trace.FlagsSampled, Remote: true})
	b.ReportAllocs()
	for b.Loop() {
		sc := tr.Begin(parent, shape, nil)
		tr.Record(&spans.Record{Shape: shape, Context: sc, Parent: parent, Start: began, End: began, Attributes: attrs})
	}
}

type nowhere struct{}

func (nowhere) Start(context.Context) error                                  { return nil }
func (nowhere) Stop(context.Context) error                                   { return nil }
func (nowhere) UploadTraces(context.Context, []*tracepb.ResourceSpans) error { return nil }
