package main

import (
	"context"
	"strings"

	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
)

// b3 reads and writes the trace context of Zipkin, as https://github.com/openzipkin/b3-propagation
// describes it: in one header, or in several. It reads either.
type b3 struct{ multi bool }

// The headers of b3, in the spelling of a carrier that ignores it.
const (
	b3Single  = "b3"
	b3Trace   = "x-b3-traceid"
	b3Span    = "x-b3-spanid"
	b3Sampled = "x-b3-sampled"
	b3Flags   = "x-b3-flags"
)

var _ propagation.TextMapPropagator = b3{}

// Inject writes the span of ctx.
func (p b3) Inject(ctx context.Context, c propagation.TextMapCarrier) {
	sc := trace.SpanContextFromContext(ctx)
	if !sc.IsValid() {
		return
	}
	sampled := "0"
	if sc.IsSampled() {
		sampled = "1"
	}
	if !p.multi {
		c.Set(b3Single, sc.TraceID().String()+"-"+sc.SpanID().String()+"-"+sampled)
		return
	}
	c.Set(b3Trace, sc.TraceID().String())
	c.Set(b3Span, sc.SpanID().String())
	c.Set(b3Sampled, sampled)
}

// Extract returns ctx with the span that c names. What is not readable, or names
// no span, is ignored.
func (p b3) Extract(ctx context.Context, c propagation.TextMapCarrier) context.Context {
	var id, span, sampled string
	if v := c.Get(b3Single); v != "" {
		parts := strings.Split(v, "-")
		if len(parts) < 2 || len(parts) > 4 {
			return ctx
		}
		id, span = parts[0], parts[1]
		if len(parts) > 2 {
			sampled = parts[2]
		}
	} else {
		id, span, sampled = c.Get(b3Trace), c.Get(b3Span), c.Get(b3Sampled)
		if c.Get(b3Flags) == "1" {
			sampled = "d"
		}
	}
	if sc, ok := b3Context(id, span, sampled); ok {
		return trace.ContextWithRemoteSpanContext(ctx, sc)
	}
	return ctx
}

// Fields returns the headers that Inject writes.
func (p b3) Fields() []string {
	if p.multi {
		return []string{b3Trace, b3Span, b3Sampled}
	}
	return []string{b3Single}
}

func b3Context(id, span, sampled string) (sc trace.SpanContext, ok bool) {
	if len(id) == 16 {
		id = strings.Repeat("0", 16) + id
	}
	tid, err := trace.TraceIDFromHex(strings.ToLower(id))
	if err != nil {
		return sc, false
	}
	sid, err := trace.SpanIDFromHex(strings.ToLower(span))
	if err != nil {
		return sc, false
	}
	var flags trace.TraceFlags
	switch sampled {
	case "1", "d", "true":
		flags = trace.FlagsSampled
	case "", "0", "false":
	default:
		return sc, false
	}
	return trace.NewSpanContext(trace.SpanContextConfig{TraceID: tid, SpanID: sid, TraceFlags: flags, Remote: true}), true
}
