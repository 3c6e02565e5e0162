package adapter

import (
	"context"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/delaybridge/delaybridge/adapter/spans"
	"github.com/delaybridge/delaybridge/internal/natstrace"
	"github.com/delaybridge/delaybridge/job"
)

// Spans follow the semantic conventions for messaging, version 1.43; they are
// listed in docs/tracing.md. Their names have no target in them, which may hold
// ids.
//
//	producer's span
//	└ receive             its context is stored with the job
//	  ├ publish           one for each attempt; it goes out with the delivery
//	  │ ├ claim           of a worker's +CLAIM
//	  │ └ (the worker's)
//	  │   └ settle
//	  └ publish

// tracerName is the instrumentation scope of the spans.
const tracerName = "github.com/delaybridge/delaybridge/adapter"

// maxLinks is how many of the jobs that it moved a migration is linked to.
const maxLinks = 128

// Headers of a trace that belong to the producer: they travel as they came.
const (
	headerTrace   = "traceparent"
	headerState   = "tracestate"
	headerBaggage = "baggage"
)

// tracing makes the spans of a bridge and reads and writes their contexts. It is
// safe for concurrent use, but for migrate and moved.
type tracing struct {
	tracer trace.Tracer  // nil: no spans
	quick  *spans.Tracer // the same, if it is such a one
	prop   propagation.TextMapPropagator
	w3c    bool // prop is W3C's
	link   bool // deliveries begin traces of their own

	migration string // that links is about
	links     []trace.Link
}

func newTracing(cfg *Config) *tracing {
	t := &tracing{prop: cfg.Propagator, link: cfg.TraceLink}
	if cfg.Tracer != nil {
		t.tracer = cfg.Tracer.Tracer(tracerName)
		t.quick, _ = t.tracer.(*spans.Tracer)
	}
	_, t.w3c = cfg.Propagator.(propagation.TraceContext)
	return t
}

// What spans of one sort have in common.
var (
	attrSystem     = attribute.String("messaging.system", "nats")
	shapeReceive   = shape("receive", trace.SpanKindConsumer, "receive")
	shapePublish   = shape("publish", trace.SpanKindProducer, "send")
	shapeSettle    = shape("settle", trace.SpanKindConsumer, "settle")
	shapeClaim     = shape("claim", trace.SpanKindConsumer, "settle")
	shapeMigrate   = spans.NewShape("migrate", trace.SpanKindInternal)
	attrsDuplicate = attribute.Bool("delaybridge.duplicate", true)
	outcomeAttrs   = outcomes()
	resultAttrs    = results()
)

func shape(name string, kind trace.SpanKind, operation string) *spans.Shape {
	return spans.NewShape(name, kind, attrSystem,
		attribute.String("messaging.operation.name", name), attribute.String("messaging.operation.type", operation))
}

// span is one that has begun, and what will be said of it. Its zero value is none.
type span struct {
	sc, parent trace.SpanContext
	other      trace.Span // of a tracer that is not adapter/spans'; nil: it is

	target, id, worker string // empty: not known
	attempt            uint32 // zero: none
	failure            string
	links              []trace.Link
}

// startOf is the time from when the spans of a batch last, zero without tracing,
// endOf that up to when.
func startOf(t *tracing) time.Time {
	if t.tracer == nil {
		return time.Time{}
	}
	return time.Now()
}

func endOf(t *tracing) time.Time { return startOf(t) }

// begin begins a span; without a valid parent it is a root.
func (t *tracing) begin(parent trace.SpanContext, s *spans.Shape, began time.Time, links ...trace.Link) span {
	if t.quick != nil {
		return span{sc: t.quick.Begin(parent, s, links), parent: parent, links: links}
	}
	_, other := t.tracer.Start(under(parent), s.Name, trace.WithSpanKind(s.Kind), trace.WithTimestamp(began), trace.WithLinks(links...))
	return span{sc: other.SpanContext(), parent: parent, other: other}
}

// attrBuffers are used again: a tracer copies what it is given.
var attrBuffers = sync.Pool{New: func() any { return new([8]attribute.KeyValue) }}

// end ends a span, of which more may be said too; what has no name is left out.
func (t *tracing) end(e *span, s *spans.Shape, began, ended time.Time, more ...attribute.KeyValue) {
	if e.other == nil && !e.sc.IsSampled() {
		return
	}
	if e.other != nil && !e.other.IsRecording() {
		e.other.End()
		return
	}
	buf := attrBuffers.Get().(*[8]attribute.KeyValue)
	defer attrBuffers.Put(buf)
	as := buf[:0]
	if e.id != "" {
		as = append(as, attribute.String("messaging.message.id", e.id))
	}
	if e.target != "" {
		as = append(as, attribute.String("messaging.destination.name", e.target))
	}
	if e.attempt != 0 {
		as = append(as, attribute.Int64("delaybridge.attempt", int64(e.attempt)))
	}
	if e.worker != "" {
		as = append(as, attribute.String("delaybridge.worker", e.worker))
	}
	for _, a := range more {
		if a.Key != "" {
			as = append(as, a)
		}
	}
	if e.other == nil {
		t.quick.Record(&spans.Record{
			Shape: s, Context: e.sc, Parent: e.parent, Start: began, End: ended, Attributes: as, Links: e.links, Failure: e.failure,
		})
		return
	}
	e.other.SetAttributes(s.Attributes...)
	e.other.SetAttributes(as...)
	if e.failure != "" {
		e.other.SetStatus(codes.Error, e.failure)
	}
	e.other.End(trace.WithTimestamp(ended))
}

// extract returns the trace context in c, invalid without one.
func (t *tracing) extract(c propagation.TextMapCarrier) trace.SpanContext {
	if t.w3c {
		v := c.Get(headerTrace)
		if v == "" {
			return trace.SpanContext{}
		}
		if sc, ok := parseTraceparent(v); ok && c.Get(headerState) == "" {
			return sc
		}
	}
	return trace.SpanContextFromContext(t.prop.Extract(context.Background(), c))
}

// plain reports whether sc is written as nothing but a traceparent of the ordinary
// form.
func (t *tracing) plain(sc trace.SpanContext) bool {
	return t.w3c && sc.IsValid() && sc.TraceFlags()&^knownFlags == 0
}

// write writes sc into c.
func (t *tracing) write(sc trace.SpanContext, c propagation.TextMapCarrier) {
	if t.plain(sc) {
		c.Set(headerTrace, traceparent(sc))
		return
	}
	t.prop.Inject(under(sc), c)
}

// ofMsg is the trace context of a message, invalid without one.
func (t *tracing) ofMsg(m *nats.Msg) trace.SpanContext {
	if len(m.Header) == 0 {
		return trace.SpanContext{}
	}
	return t.extract(natstrace.Header(m.Header))
}

// stored is the trace context that is stored with a job, invalid without one.
func (t *tracing) stored(header []job.Field) trace.SpanContext {
	if len(header) == 0 {
		return trace.SpanContext{}
	}
	return t.extract((*fields)(&header))
}

// under returns a context whose span is the one of sc.
func under(sc trace.SpanContext) context.Context {
	return trace.ContextWithSpanContext(context.Background(), sc)
}

// receive begins the span of a job that is being taken in. The job is stored with
// the context of the span instead of the producer's.
func (t *tracing) receive(j *job.Job, began time.Time) span {
	parent := t.extract((*fields)(&j.Header))
	s := t.begin(parent, shapeReceive, began)
	if !parent.IsValid() {
		(*fields)(&j.Header).del(headerState) // without a parent it says nothing
	}
	t.write(s.sc, (*fields)(&j.Header))
	return s
}

// received ends the span of a job that was stored, or found to be one already.
func (t *tracing) received(s *span, j *job.Job, r *job.PutResult, began, ended time.Time) {
	var duplicate attribute.KeyValue
	if r.Duplicate {
		duplicate = attrsDuplicate
	}
	s.target, s.id = j.Target, j.ID
	t.end(s, shapeReceive, began, ended, duplicate)
}

// failed ends the span of a job that was not stored.
func (t *tracing) failed(s *span, to string, err *job.Error, began time.Time) {
	s.target, s.failure = to, err.Description
	t.end(s, shapeReceive, began, endOf(t), attribute.Int("delaybridge.error_code", err.ErrCode))
}

// refused makes the span of a message that is not taken in, if its producer
// traces.
func (t *tracing) refused(m *nats.Msg, err *job.Error) {
	if t.tracer == nil {
		return
	}
	if sc := t.ofMsg(m); sc.IsValid() {
		began := startOf(t)
		s := t.begin(sc, shapeReceive, began)
		t.failed(&s, cut(m.Subject, 256), err, began)
	}
}

// publish begins the span of a delivery.
func (t *tracing) publish(f *flight, began time.Time) (s span) {
	if stored := t.extract((*fields)(&f.Header)); t.link && stored.IsValid() {
		s = t.begin(trace.SpanContext{}, shapePublish, began, trace.Link{SpanContext: stored})
	} else {
		s = t.begin(stored, shapePublish, began)
	}
	s.target, s.id, s.attempt = f.Target, f.ID, f.Attempt
	if f.direct {
		_, s.worker = job.SplitOwner(f.Owner)
	}
	return s
}

// trace begins the spans of deliveries that are about to be published, which are in
// p.spans then, or without tracing finds out to which trace they belong.
func (d *dispatcher) trace(p *publisher, batch []*flight) {
	known := false
	p.began, p.spans, p.traces = startOf(d.tracing), p.spans[:0], p.traces[:0]
	for _, f := range batch {
		var sc trace.SpanContext
		if d.tracing.tracer != nil {
			p.spans = append(p.spans, d.tracing.publish(f, p.began))
			sc = p.spans[len(p.spans)-1].sc
		} else {
			sc = d.tracing.stored(f.Header)
		}
		p.traces, known = append(p.traces, sc), known || sc.IsValid()
	}
	if !known {
		return
	}
	d.mu.Lock() // who takes a job from its worker reads it
	defer d.mu.Unlock()
	for i, f := range batch {
		if !f.gone {
			f.trace = p.traces[i]
		}
	}
}

// noteSpan notes that the i-th job of the batch was not published.
func (p *publisher) noteSpan(i int, err error) {
	if err != nil && len(p.spans) > 0 {
		p.spans[i].failure = err.Error()
	}
}

// endSpans ends the spans of a batch.
func (p *publisher) endSpans() {
	ended := endOf(p.trace)
	for i := range p.spans {
		p.trace.end(&p.spans[i], shapePublish, p.began, ended)
	}
	clear(p.spans)
}

// carry writes the context of f's span into the headers of its delivery. Without
// tracing they have the producer's.
func (p *publisher) carry(f *flight) {
	t, h := p.trace, natstrace.Header(p.msg.Header)
	if t.tracer == nil {
		return
	}
	if t.link {
		h.Del(headerState) // it belongs to the trace before
	}
	if !t.plain(f.trace) {
		t.inject(f.trace, p.msg.Header)
		return
	}
	if v := h[headerTrace]; len(v) == 0 || len(h) > 1 { // else there is no other spelling
		h.Del(headerTrace)
	}
	p.set(7, headerTrace, traceparent(f.trace))
}

// inject writes sc into h.
func (t *tracing) inject(sc trace.SpanContext, h nats.Header) {
	if sc.IsValid() {
		t.write(sc, outgoing{natstrace.Header(h)})
	}
}

// settled makes the span of a settlement that follows from what another span did,
// without tracing or without knowing that none.
func (t *tracing) settled(e *settlement, r job.SettleResult, ended time.Time) {
	if e.began.IsZero() || !e.trace.IsValid() || e.Outcome == job.Extend {
		return
	}
	how := shapeSettle
	if e.Outcome == job.Own {
		how = shapeClaim
	}
	s := t.begin(e.trace, how, e.began)
	s.target, s.id, s.attempt = e.Target, e.ID, e.Attempt
	if r != job.Settled && r != job.Repeated {
		s.failure = resultAttrs[r].Value.AsString()
	}
	t.end(&s, how, e.began, ended, outcomeAttrs[e.Outcome], resultAttrs[r])
	e.began = time.Time{}
}

func outcomes() (attrs [job.Own + 1]attribute.KeyValue) {
	for o, name := range map[job.Outcome]string{
		job.Complete: "complete", job.Retry: "retry", job.Release: "release", job.SetAside: "set_aside",
		job.Bury: "dead", job.Extend: "extend", job.Own: "own",
	} {
		attrs[o] = attribute.String("delaybridge.outcome", name)
	}
	return attrs
}

func results() (attrs [job.Unreachable + 1]attribute.KeyValue) {
	for r, name := range map[job.SettleResult]string{
		job.Settled: "settled", job.Repeated: "repeated", job.Stale: "stale", job.Unknown: "unknown",
		job.Taken: "taken", job.Unreachable: "unreachable",
	} {
		attrs[r] = attribute.String("delaybridge.result", name)
	}
	return attrs
}

// moved notes which jobs a migration has moved.
func (t *tracing) moved(migration string, jobs []job.Info) {
	if t.tracer == nil {
		return
	}
	if migration != t.migration {
		t.migration, t.links = migration, nil
	}
	for i := range jobs {
		if len(t.links) >= maxLinks {
			return
		}
		if sc := t.stored(jobs[i].Header); sc.IsSampled() {
			t.links = append(t.links, trace.Link{SpanContext: sc})
		}
	}
}

// migrated makes the span of a migration that has ended.
func (t *tracing) migrated(migration string, jobs int, took time.Duration) {
	if t.tracer == nil {
		return
	}
	end := time.Now()
	var links []trace.Link
	if migration == t.migration {
		links = t.links
	}
	began := end.Add(-took)
	s := t.begin(trace.SpanContext{}, shapeMigrate, began, links...)
	t.end(&s, shapeMigrate, began, end, attribute.String("delaybridge.migration", migration), attribute.Int("delaybridge.jobs", jobs))
	t.migration, t.links = "", nil
}
