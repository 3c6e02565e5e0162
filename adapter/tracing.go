package adapter

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

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
	tracer trace.Tracer // nil: no spans
	quick  starter      // the same, if it can do without contexts
	prop   propagation.TextMapPropagator
	w3c    bool // prop is W3C's
	link   bool // deliveries begin traces of their own

	migration string // that links is about
	links     []trace.Link
}

// starter is a tracer that needs no context, whose making would be a good part of
// the cost of a span; adapter/spans has one.
type starter interface {
	StartSpan(parent trace.SpanContext, name string, kind trace.SpanKind, start time.Time, links []trace.Link) trace.Span
}

func newTracing(cfg *Config) *tracing {
	t := &tracing{prop: cfg.Propagator, link: cfg.TraceLink}
	if cfg.Tracer != nil {
		t.tracer = cfg.Tracer.Tracer(tracerName)
		t.quick, _ = t.tracer.(starter)
	}
	_, t.w3c = cfg.Propagator.(propagation.TraceContext)
	return t
}

// Options of spans that are the same for all, so that none is made for each.
var (
	attrSystem     = attribute.String("messaging.system", "nats")
	attrsReceive   = operation("receive", "receive")
	attrsPublish   = operation("publish", "send")
	attrsSettle    = operation("settle", "settle")
	attrsClaim     = operation("claim", "settle")
	attrsDuplicate = attribute.Bool("delaybridge.duplicate", true)
	outcomeAttrs   = outcomes()
	resultAttrs    = results()
)

func operation(name, kind string) [3]attribute.KeyValue {
	return [3]attribute.KeyValue{
		attrSystem, attribute.String("messaging.operation.name", name), attribute.String("messaging.operation.type", kind),
	}
}

func target(s string) attribute.KeyValue { return attribute.String("messaging.destination.name", s) }
func jobID(s string) attribute.KeyValue  { return attribute.String("messaging.message.id", s) }
func attempt(n uint32) attribute.KeyValue {
	return attribute.Int64("delaybridge.attempt", int64(n))
}

// startOf is the time from when the spans of a batch last, endOf that up to when.
func startOf(t *tracing) time.Time {
	if t.tracer == nil {
		return time.Time{}
	}
	return time.Now()
}

func endOf(t *tracing) []trace.SpanEndOption {
	if t.tracer == nil {
		return nil
	}
	return []trace.SpanEndOption{trace.WithTimestamp(time.Now())}
}

// attrBuffers are used again: a tracer copies what it is given.
var attrBuffers = sync.Pool{New: func() any { return new([8]attribute.KeyValue) }}

// describe gives span the attributes of its operation and those of the job; attempt
// zero: none, the last ones without a name: none.
func describe(span trace.Span, op *[3]attribute.KeyValue, dest, id string, n uint32, more ...attribute.KeyValue) {
	buf := attrBuffers.Get().(*[8]attribute.KeyValue)
	as := append(buf[:0], op[:]...)
	as = append(as, jobID(id))
	if dest != "" {
		as = append(as, target(dest))
	}
	if n != 0 {
		as = append(as, attempt(n))
	}
	for _, a := range more {
		if a.Key != "" {
			as = append(as, a)
		}
	}
	span.SetAttributes(as...)
	attrBuffers.Put(buf)
}

// start begins a span; without a valid parent it is a root.
func (t *tracing) start(parent trace.SpanContext, name string, kind trace.SpanKind, began time.Time, links ...trace.Link) trace.Span {
	if t.quick != nil {
		return t.quick.StartSpan(parent, name, kind, began, links)
	}
	_, span := t.tracer.Start(under(parent), name, trace.WithSpanKind(kind), trace.WithTimestamp(began), trace.WithLinks(links...))
	return span
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

// write writes sc into c.
func (t *tracing) write(sc trace.SpanContext, c propagation.TextMapCarrier) {
	if t.w3c && sc.TraceFlags()&^knownFlags == 0 {
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

// under returns a context whose span is the one of sc, elsewhere.
func under(sc trace.SpanContext) context.Context {
	return trace.ContextWithRemoteSpanContext(context.Background(), sc)
}

// receive begins the span of a job that is being taken in; nil without tracing.
// The job is stored with the context of the span instead of the producer's.
func (t *tracing) receive(j *job.Job, began time.Time) trace.Span {
	if t.tracer == nil {
		return nil
	}
	parent := t.extract((*fields)(&j.Header))
	span := t.start(parent, "receive", trace.SpanKindConsumer, began)
	if !parent.IsValid() {
		(*fields)(&j.Header).del(headerState) // without a parent it says nothing
	}
	t.write(span.SpanContext(), (*fields)(&j.Header))
	return span
}

// received ends the span of a job that was stored, or found to be one already.
func received(span trace.Span, j *job.Job, r *job.PutResult, ended []trace.SpanEndOption) {
	if span == nil {
		return
	}
	if span.IsRecording() {
		var duplicate attribute.KeyValue
		if r.Duplicate {
			duplicate = attrsDuplicate
		}
		describe(span, &attrsReceive, j.Target, j.ID, 0, duplicate)
	}
	span.End(ended...)
}

// failed ends the span of a job that was not stored.
func failed(span trace.Span, to string, err *job.Error) {
	if span == nil {
		return
	}
	if span.IsRecording() {
		span.SetAttributes(append(attrsReceive[:], target(to), attribute.Int("delaybridge.error_code", err.ErrCode))...)
		span.SetStatus(codes.Error, err.Description)
	}
	span.End()
}

// refused makes the span of a message that is not taken in, if its producer
// traces.
func (t *tracing) refused(m *nats.Msg, err *job.Error) {
	if t.tracer == nil {
		return
	}
	if sc := t.ofMsg(m); sc.IsValid() {
		failed(t.start(sc, "receive", trace.SpanKindConsumer, time.Now()), cut(m.Subject, 256), err)
	}
}

// publish begins the span of a delivery.
func (t *tracing) publish(f *flight, began time.Time) (span trace.Span) {
	if stored := t.extract((*fields)(&f.Header)); t.link && stored.IsValid() {
		span = t.start(trace.SpanContext{}, "publish", trace.SpanKindProducer, began, trace.Link{SpanContext: stored})
	} else {
		span = t.start(stored, "publish", trace.SpanKindProducer, began)
	}
	if span.IsRecording() {
		var worker attribute.KeyValue
		if f.direct {
			_, id := job.SplitOwner(f.Owner)
			worker = attribute.String("delaybridge.worker", id)
		}
		describe(span, &attrsPublish, f.Target, f.ID, f.Attempt, worker)
	}
	return span
}

// trace begins the spans of deliveries that are about to be published, which are in
// p.spans then, or without tracing finds out to which trace they belong.
func (d *dispatcher) trace(p *publisher, batch []*flight) {
	began, known := startOf(d.tracing), false
	p.spans, p.traces = p.spans[:0], p.traces[:0]
	for _, f := range batch {
		var sc trace.SpanContext
		if d.tracing.tracer != nil {
			span := d.tracing.publish(f, began)
			p.spans, sc = append(p.spans, span), span.SpanContext()
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
	if err != nil && len(p.spans) > 0 && p.spans[i].IsRecording() {
		p.spans[i].SetStatus(codes.Error, err.Error())
	}
}

// endSpans ends the spans of a batch.
func (p *publisher) endSpans() {
	ended := endOf(p.trace)
	for _, span := range p.spans {
		span.End(ended...)
	}
	clear(p.spans)
}

// carry writes the context of f's span into the headers of its delivery. Without
// tracing they have the producer's.
func (t *tracing) carry(f *flight, h nats.Header) {
	if t.tracer == nil {
		return
	}
	if t.link {
		natstrace.Header(h).Del(headerState) // it belongs to the trace before
	}
	t.inject(f.trace, h)
}

// inject writes sc into h.
func (t *tracing) inject(sc trace.SpanContext, h nats.Header) {
	if sc.IsValid() {
		t.write(sc, outgoing{natstrace.Header(h)})
	}
}

// settle begins the span of a settlement that follows from what the span of sc
// did; nil without tracing, or without knowing that.
func (t *tracing) settle(sc trace.SpanContext, o job.Outcome, began time.Time) trace.Span {
	if t.tracer == nil || !sc.IsValid() || o == job.Extend {
		return nil
	}
	name := "settle"
	if o == job.Own {
		name = "claim"
	}
	return t.start(sc, name, trace.SpanKindConsumer, began)
}

// ended ends the span of a settlement.
func (e *settlement) ended(r job.SettleResult, ended []trace.SpanEndOption) {
	span := e.span
	if span == nil {
		return
	}
	if span.IsRecording() {
		op := &attrsSettle
		if e.Outcome == job.Own {
			op = &attrsClaim
		}
		describe(span, op, e.Target, e.ID, e.Attempt, outcomeAttrs[e.Outcome], resultAttrs[r])
		if r != job.Settled && r != job.Repeated {
			span.SetStatus(codes.Error, resultAttrs[r].Value.AsString())
		}
	}
	span.End(ended...)
	e.span = nil
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
	span := t.start(trace.SpanContext{}, "migrate", trace.SpanKindInternal, end.Add(-took), links...)
	span.SetAttributes(attribute.String("delaybridge.migration", migration), attribute.Int("delaybridge.jobs", jobs))
	span.End(trace.WithTimestamp(end))
	t.migration, t.links = "", nil
}

// fields carries trace context in the headers of a job: it reads any spelling, and
// writes the name as it is given in place of any. What is the producer's it does
// not write.
type fields []job.Field

// Get returns the value of key, "" without one.
func (c *fields) Get(key string) string {
	for i := range *c {
		if f := &(*c)[i]; len(f.Name) == len(key) && strings.EqualFold(f.Name, key) {
			return f.Value
		}
	}
	return ""
}

// Set makes value the only one of key.
func (c *fields) Set(key, value string) {
	if producers(key) {
		return
	}
	for i := range *c {
		if f := &(*c)[i]; len(f.Name) == len(key) && strings.EqualFold(f.Name, key) {
			*f = job.Field{Name: key, Value: value}
			c.delFrom(i+1, key)
			return
		}
	}
	*c = append(*c, job.Field{Name: key, Value: value})
}

func (c *fields) del(key string) { c.delFrom(0, key) }

// delFrom removes key from the i-th header on.
func (c *fields) delFrom(i int, key string) {
	keep := (*c)[:min(i, len(*c))]
	for ; i < len(*c); i++ {
		if f := (*c)[i]; len(f.Name) != len(key) || !strings.EqualFold(f.Name, key) {
			keep = append(keep, f)
		}
	}
	*c = keep
}

// Keys returns the names that there are.
func (c *fields) Keys() []string {
	keys := make([]string, len(*c))
	for i, f := range *c {
		keys[i] = strings.ToLower(f.Name)
	}
	return keys
}

// outgoing is a header to which nothing is written that is the producer's.
type outgoing struct{ natstrace.Header }

func (o outgoing) Set(key, value string) {
	if !producers(key) {
		o.Header.Set(key, value)
	}
}

// producers reports whether a header is the producer's also where it belongs to the
// trace.
func producers(key string) bool { return key == headerState || key == headerBaggage }
