package natstrace_test

import (
	"reflect"
	"slices"
	"testing"

	"github.com/nats-io/nats.go"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/delaybridge/delaybridge/internal/natstrace"
)

const parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

func TestReadsAnySpelling(t *testing.T) {
	for _, name := range []string{"traceparent", "Traceparent", "TRACEPARENT", "traceParent"} {
		ctx := propagation.TraceContext{}.Extract(t.Context(), natstrace.Header{name: {parent}, "tracEstate": {"a=1"}, "X-Other": {"x"}})
		sc := trace.SpanContextFromContext(ctx)
		if sc.SpanID().String() != "b7ad6b7169203331" || sc.TraceState().Get("a") != "1" {
			t.Errorf("%s: read %+v", name, sc)
		}
	}
	if v := (natstrace.Header{"Traceparent": {"x"}, "traceparent": {"y"}}).Get("traceparent"); v != "y" {
		t.Errorf("of two spellings %q was read, not the lower-case one", v)
	}
	for _, h := range []natstrace.Header{nil, {}, {"traceparent": nil}, {"traceparenS": {"x"}}} {
		if v := h.Get("traceparent"); v != "" {
			t.Errorf("%v has %q", h, v)
		}
	}
}

func TestWritesLowerCaseAlone(t *testing.T) {
	h := nats.Header{"Traceparent": {"old"}, "TRACEPARENT": {"older"}, "X-Other": {"x"}}
	ctx := propagation.TraceContext{}.Extract(t.Context(), propagation.MapCarrier{"traceparent": parent})
	propagation.TraceContext{}.Inject(ctx, natstrace.Header(h))
	if want := (nats.Header{"traceparent": {parent}, "X-Other": {"x"}}); !reflect.DeepEqual(h, want) {
		t.Errorf("written %v, want %v", h, want)
	}
}

func TestKeysAreLowerCase(t *testing.T) {
	for _, c := range []propagation.TextMapCarrier{
		natstrace.Header{"Baggage": {"a=1"}, "tracestate": {"b=2"}}, &natstrace.Lazy{Header: nats.Header{"Baggage": {"a=1"}, "tracestate": {"b=2"}}},
	} {
		keys := c.Keys()
		slices.Sort(keys)
		if !slices.Equal(keys, []string{"baggage", "tracestate"}) {
			t.Errorf("keys %q", keys)
		}
	}
}

func TestSeveralLinesOfBaggage(t *testing.T) {
	h := natstrace.Header{"Baggage": {"a=1", "b=2"}}
	ctx := propagation.Baggage{}.Extract(t.Context(), h)
	out := natstrace.Lazy{}
	propagation.Baggage{}.Inject(ctx, &out)
	if got := out.Get("baggage"); got != "a=1,b=2" && got != "b=2,a=1" {
		t.Errorf("of two lines of baggage %q was read", got)
	}
}

func TestLazyMakesNoHeaderForNothing(t *testing.T) {
	l := natstrace.Lazy{}
	if propagation.TraceContext.Inject(propagation.TraceContext{}, t.Context(), &l); l.Header != nil || l.Get("traceparent") != "" {
		t.Errorf("header %v without anything to write", l.Header)
	}
}
