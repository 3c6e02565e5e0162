package spans

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/embedded"
	"go.opentelemetry.io/otel/trace/noop"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	resourcepb "go.opentelemetry.io/proto/otlp/resource/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
)

// Client carries spans to a collector; those of the exporters otlptracehttp and
// otlptracegrpc are such.
type Client interface {
	Start(ctx context.Context) error
	Stop(ctx context.Context) error
	UploadTraces(ctx context.Context, spans []*tracepb.ResourceSpans) error
}

// Options of a Provider. The zero value of a field means its default.
type Options struct {
	// Client exports the spans; required.
	Client Client
	// Sampler decides which are made; default: all, but those of traces of which
	// others decided that they are not.
	Sampler sdktrace.Sampler
	// Resource is what the spans are of.
	Resource *resource.Resource
	// Queue is how many spans wait at most to be exported; default 32768.
	Queue int
	// Batch is how many are exported with one call; default 2048, at most Queue.
	Batch int
	// Every is how long a span waits at most until a batch is full; default 5 s.
	Every time.Duration
	// Timeout bounds one call; default 30 s.
	Timeout time.Duration
	// OnError is told what a call returned, and that spans were dropped; nil:
	// nobody is.
	OnError func(error)
}

// Provider makes tracers. It is safe for concurrent use.
type Provider struct {
	embedded.TracerProvider
	o        Options
	resource *resourcepb.Resource
	follows  bool // see follows
	kick     chan struct{}
	stop     chan struct{}
	stopping sync.Once
	done     chan struct{}

	mu      sync.Mutex
	tracers map[scope]*Tracer
	full    []chunk // batches to be exported
	spare   [][]byte
	queued  int // spans that wait
	dropped int // since it was told
	closed  bool
}

// scope names a tracer.
type scope struct{ name, version string }

// chunk is a batch of spans of one tracer, as the field of a ScopeSpans that holds
// them.
type chunk struct {
	t    *Tracer
	data []byte
	n    int
}

var _ trace.TracerProvider = (*Provider)(nil)

// New starts the client and a goroutine that exports with it, until Shutdown.
func New(ctx context.Context, o Options) (*Provider, error) {
	if o.Client == nil {
		return nil, errors.New("spans: Options.Client is missing")
	}
	if o.Sampler == nil {
		o.Sampler = sdktrace.ParentBased(sdktrace.AlwaysSample())
	}
	o.Queue = cmp.Or(max(o.Queue, 0), 32768)
	o.Batch = min(cmp.Or(max(o.Batch, 0), 2048), o.Queue)
	o.Every, o.Timeout = cmp.Or(max(o.Every, 0), 5*time.Second), cmp.Or(max(o.Timeout, 0), 30*time.Second)
	if err := o.Client.Start(ctx); err != nil {
		return nil, fmt.Errorf("spans: start the exporter: %w", err)
	}
	p := &Provider{
		o: o, follows: follows(o.Sampler), resource: &resourcepb.Resource{}, tracers: map[scope]*Tracer{},
		kick: make(chan struct{}, 1), stop: make(chan struct{}), done: make(chan struct{}),
	}
	if o.Resource != nil {
		for _, kv := range o.Resource.Attributes() {
			p.resource.Attributes = append(p.resource.Attributes, &commonpb.KeyValue{Key: valid(string(kv.Key)), Value: &commonpb.AnyValue{
				Value: &commonpb.AnyValue_StringValue{StringValue: valid(kv.Value.String())},
			}})
		}
	}
	go p.run()
	return p, nil
}

// Tracer returns the tracer of that name.
func (p *Provider) Tracer(name string, opts ...trace.TracerOption) trace.Tracer {
	c := trace.NewTracerConfig(opts...)
	s := scope{name, c.InstrumentationVersion()}
	p.mu.Lock()
	defer p.mu.Unlock()
	t := p.tracers[s]
	if t == nil {
		t = &Tracer{p: p, scope: &commonpb.InstrumentationScope{Name: valid(s.name), Version: valid(s.version)}}
		p.tracers[s] = t
	}
	return t
}

// run exports until Shutdown is called.
func (p *Provider) run() {
	defer close(p.done)
	tick := time.NewTicker(p.o.Every)
	defer tick.Stop()
	for {
		all := false
		select {
		case <-p.stop:
			return
		case <-p.kick:
		case <-tick.C:
			all = true
		}
		p.export(context.Background(), all)
	}
}

// export exports the batches that are full, or all.
func (p *Provider) export(ctx context.Context, all bool) {
	for ctx.Err() == nil {
		c, ok := p.take(all)
		if !ok {
			break
		}
		p.report(p.send(ctx, c))
		p.sent(c)
	}
	p.mu.Lock()
	dropped := p.dropped
	p.dropped = 0
	p.mu.Unlock()
	if dropped > 0 {
		p.report(fmt.Errorf("%d spans dropped: more than %d waited to be exported", dropped, p.o.Queue))
	}
}

func (p *Provider) report(err error) {
	if err != nil && p.o.OnError != nil {
		p.o.OnError(err)
	}
}

// take returns a full batch, or if all are wanted one that is not full.
func (p *Provider) take(all bool) (c chunk, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.full) == 0 && all {
		for _, t := range p.tracers {
			p.roll(t)
		}
	}
	if len(p.full) == 0 {
		return c, false
	}
	c = p.full[0]
	p.full = p.full[1:]
	return c, true
}

// roll makes what t has a batch to be exported. p.mu is held.
func (p *Provider) roll(t *Tracer) {
	if t.n == 0 {
		return
	}
	p.full = append(p.full, chunk{t, t.pending, t.n})
	t.pending, t.n = nil, 0
	if last := len(p.spare) - 1; last >= 0 {
		t.pending, p.spare = p.spare[last], p.spare[:last]
	}
}

// send exports c with one call.
func (p *Provider) send(ctx context.Context, c chunk) error {
	ctx, cancel := context.WithTimeout(ctx, p.o.Timeout)
	defer cancel()
	spans := &tracepb.ScopeSpans{Scope: c.t.scope}
	// A message writes the fields that it does not know as they are: the spans need
	// not be taken apart to be put together again.
	spans.ProtoReflect().SetUnknown(c.data)
	return p.o.Client.UploadTraces(ctx, []*tracepb.ResourceSpans{{Resource: p.resource, ScopeSpans: []*tracepb.ScopeSpans{spans}}})
}

// sent forgets c, whose memory is used again.
func (p *Provider) sent(c chunk) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.queued -= c.n
	if len(p.spare) < 2 {
		p.spare = append(p.spare, c.data[:0])
	}
}

// add takes in a span that has ended; head and body are its fields.
func (p *Provider) add(t *Tracer, head, body []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return
	}
	if p.queued >= p.o.Queue {
		p.dropped++
		return
	}
	p.queued++
	t.n++
	t.pending = appendTagged(t.pending, fieldSpans, len(head)+len(body))
	t.pending = append(append(t.pending, head...), body...)
	if t.n < p.o.Batch {
		return
	}
	p.roll(t)
	select {
	case p.kick <- struct{}{}:
	default:
	}
}

// ForceFlush exports what waits; it is for tests.
func (p *Provider) ForceFlush(ctx context.Context) error {
	p.export(ctx, true)
	return ctx.Err()
}

// Shutdown exports what waits, until ctx ends, and stops the client. Only its first
// call does anything.
func (p *Provider) Shutdown(ctx context.Context) (err error) {
	p.stopping.Do(func() {
		close(p.stop)
		p.mu.Lock()
		p.closed = true
		p.mu.Unlock()
		select {
		case <-p.done:
			p.export(ctx, true)
		case <-ctx.Done(): // to stop the client ends the call
		}
		stopped := p.o.Client.Stop(ctx)
		<-p.done
		if err = ctx.Err(); err == nil {
			err = stopped
		}
	})
	return err
}

// Tracer makes spans. It is safe for concurrent use.
type Tracer struct {
	embedded.Tracer
	p       *Provider
	scope   *commonpb.InstrumentationScope
	pending []byte // ended spans; p.mu guards it
	n       int    // how many
}

// Start begins a span, which is the one of the context that is returned.
func (t *Tracer) Start(ctx context.Context, name string, opts ...trace.SpanStartOption) (context.Context, trace.Span) {
	c := trace.NewSpanStartConfig(opts...)
	if ctx == nil {
		ctx = context.Background()
	}
	var parent trace.SpanContext
	if !c.NewRoot() {
		parent = trace.SpanContextFromContext(ctx)
	}
	s := t.start(ctx, parent, name, c.SpanKind(), c.Timestamp(), c.Links(), c.Attributes())
	return trace.ContextWithSpan(ctx, s), s
}

func (t *Tracer) start(ctx context.Context, parent trace.SpanContext, name string, kind trace.SpanKind, start time.Time, links []trace.Link, attrs []attribute.KeyValue) trace.Span {
	sc, more := t.decide(ctx, parent, name, kind, links, attrs)
	if !sc.IsSampled() {
		return unsampled{p: t.p, sc: sc}
	}
	s := newSpan(t, name, sc, parent, kind, start)
	for _, l := range links {
		s.AddLink(l)
	}
	s.SetAttributes(attrs...)
	s.SetAttributes(more...)
	return s
}

// decide returns the context of a new span, which says whether it is made, and
// the attributes that the sampler gives it.
func (t *Tracer) decide(ctx context.Context, parent trace.SpanContext, name string, kind trace.SpanKind, links []trace.Link, attrs []attribute.KeyValue) (trace.SpanContext, []attribute.KeyValue) {
	id := parent.TraceID()
	for !id.IsValid() {
		binary.NativeEndian.PutUint64(id[:8], rand.Uint64())
		binary.NativeEndian.PutUint64(id[8:], rand.Uint64())
	}
	sampled, state := parent.IsSampled(), parent.TraceState()
	var more []attribute.KeyValue
	if !t.p.follows || !parent.IsValid() {
		verdict := t.p.o.Sampler.ShouldSample(sdktrace.SamplingParameters{
			ParentContext: trace.ContextWithSpanContext(ctx, parent), TraceID: id, Name: name, Kind: kind, Attributes: attrs, Links: links,
		})
		sampled, state, more = verdict.Decision == sdktrace.RecordAndSample, verdict.Tracestate, verdict.Attributes
	}
	return trace.NewSpanContext(trace.SpanContextConfig{
		TraceID: id, SpanID: newSpanID(), TraceFlags: parent.TraceFlags().WithSampled(sampled), TraceState: state,
	}), more
}

// unsampled is a span that is not made, but whose context goes on.
type unsampled struct {
	noop.Span
	p  *Provider
	sc trace.SpanContext
}

func (u unsampled) SpanContext() trace.SpanContext       { return u.sc }
func (u unsampled) TracerProvider() trace.TracerProvider { return u.p }

func newSpanID() (id trace.SpanID) {
	for !id.IsValid() {
		binary.NativeEndian.PutUint64(id[:], rand.Uint64())
	}
	return id
}

// follows reports whether a sampler decides about children as their parents were
// decided about, so that it need not be asked.
func follows(s sdktrace.Sampler) bool {
	d := s.Description()
	return strings.HasPrefix(d, "ParentBased{") &&
		strings.HasSuffix(d, ",remoteParentSampled:AlwaysOnSampler,remoteParentNotSampled:AlwaysOffSampler,"+
			"localParentSampled:AlwaysOnSampler,localParentNotSampled:AlwaysOffSampler}")
}
