package spans

import (
	"context"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
)

// Shape is what all spans of one sort have in common. It is encoded once.
type Shape struct {
	Name       string
	Kind       trace.SpanKind
	Attributes []attribute.KeyValue

	encoded []byte // all of that, as fields of a Span
}

// NewShape returns the shape of spans of that name, kind and attributes.
func NewShape(name string, kind trace.SpanKind, as ...attribute.KeyValue) *Shape {
	s := &Shape{Name: name, Kind: trace.ValidateSpanKind(kind), Attributes: as}
	b := appendString(nil, fieldName, name)
	b = appendVarint(b, fieldKind, uint64(s.Kind)) // the numbers are the same
	s.encoded = appendAttributes(b, fieldAttributes, as)
	return s
}

// Record is a span that has ended. Made from what its maker knows by itself, it
// costs a fraction of a trace.Span, which is an object that others may change.
type Record struct {
	Shape      *Shape
	Context    trace.SpanContext // what Begin returned
	Parent     trace.SpanContext // what Begin was given
	Start, End time.Time
	Attributes []attribute.KeyValue // beside those of the shape; those without a name are left out
	Links      []trace.Link
	Failure    string // empty: none; else the span has the status error
}

// Begin returns the context of a new span, whose parent was read from a message or
// is invalid for a root. If it is sampled it is exported when it is given to Record.
// Attributes that a sampler adds are not kept.
func (t *Tracer) Begin(parent trace.SpanContext, s *Shape, links []trace.Link) trace.SpanContext {
	sc, _ := t.decide(context.Background(), parent, s.Name, s.Kind, links, s.Attributes)
	return sc
}

// Record exports r, unless it is not sampled. It keeps nothing of r.
func (t *Tracer) Record(r *Record) {
	if !r.Context.IsSampled() {
		return
	}
	var memory [512]byte
	b := appendContext(memory[:0], r.Context, r.Parent.SpanID(), flagsOf(r.Context, r.Parent))
	b = appendTimes(b, r.Start, r.End)
	if r.Failure != "" {
		b = appendStatus(b, codes.Error, r.Failure)
	}
	b = append(b, r.Shape.encoded...)
	b = appendAttributes(b, fieldAttributes, r.Attributes)
	for _, l := range r.Links {
		b = appendLink(b, l)
	}
	t.p.add(t, b, nil)
}
