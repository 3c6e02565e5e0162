package adapter

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"go.opentelemetry.io/otel/propagation"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/delaybridge/delaybridge/job"
)

const aParent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

func traced(change ...func(*Config)) (*tracing, *tracetest.InMemoryExporter) {
	spans := tracetest.NewInMemoryExporter()
	cfg := Config{Tracer: sdktrace.NewTracerProvider(sdktrace.WithSyncer(spans))}.withDefaults()
	for _, f := range change {
		f(&cfg)
	}
	return newTracing(&cfg), spans
}

// What is read and written quickly is what the propagator reads and writes.
func FuzzTraceparent(f *testing.F) {
	for _, s := range []string{aParent, aParent[:53] + "00", aParent[:53] + "02", aParent[:53] + "03", aParent[:53] + "04", aParent + "-x", "cc" + aParent[2:], "",
		"00-00000000000000000000000000000000-b7ad6b7169203331-01", "00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01", aParent[:53] + "1", aParent[:34] + "g" + aParent[35:], aParent[:35] + "_" + aParent[36:]} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		c := propagation.MapCarrier{"traceparent": s}
		ctx := propagation.TraceContext{}.Extract(context.Background(), c)
		want := trace.SpanContextFromContext(ctx)
		got, ok := parseTraceparent(s)
		if ok && !got.Equal(want) {
			t.Fatalf("%q read as %v, want %v", s, got, want)
		}
		if !ok && len(s) == len(aParent) && s[:3] == "00-" && want.IsValid() {
			t.Fatalf("%q not read, though it is %v", s, want)
		}
		if ok && traceparent(got) != s {
			t.Fatalf("%q written as %q", s, traceparent(got))
		}
	})
}

func TestStoredContextIsReplaced(t *testing.T) {
	for _, p := range propagators {
		t.Run(p.name, func(t *testing.T) { testStoredContext(t, p.p) })
	}
}

// propagators are W3C's, which has a short cut, and one that writes all there is.
var propagators = []struct {
	name string
	p    propagation.TextMapPropagator
}{
	{"W3C", nil}, {"composite", propagation.NewCompositeTextMapPropagator(propagation.TraceContext{}, propagation.Baggage{})},
}

func testStoredContext(t *testing.T, p propagation.TextMapPropagator) {
	tr, spans := traced(func(c *Config) {
		if p != nil {
			c.Propagator = p
		}
	})
	for _, c := range []struct {
		name   string
		header []job.Field
		parent bool
		want   []string // names, in order
	}{
		{"lower case", []job.Field{{Name: "a", Value: "1"}, {Name: "traceparent", Value: aParent}, {Name: "tracestate", Value: "x=1"}}, true, []string{"a", "traceparent", "tracestate"}},
		{"another spelling, state too", []job.Field{{Name: "Traceparent", Value: aParent}, {Name: "Tracestate", Value: "x=1 , y=2"}, {Name: "Baggage", Value: " k=v"}}, true, []string{"traceparent", "Tracestate", "Baggage"}},
		{"two spellings", []job.Field{{Name: "TRACEPARENT", Value: aParent}, {Name: "z", Value: ""}, {Name: "traceparent", Value: "x"}}, true, []string{"traceparent", "z"}},
		{"none", nil, false, []string{"traceparent"}},
		{"unreadable", []job.Field{{Name: "traceparent", Value: "00-1"}, {Name: "tracestate", Value: "x=1"}, {Name: "baggage", Value: "k=v"}}, false, []string{"traceparent", "baggage"}},
	} {
		spans.Reset()
		j := job.Job{ID: "id", Target: "t", Header: slices.Clone(c.header)}
		began := startOf(tr)
		span := tr.receive(&j, began)
		tr.received(&span, &j, &job.PutResult{Duplicate: true}, began, endOf(tr))
		s := spans.GetSpans()[0]
		var names []string
		for _, f := range j.Header {
			names = append(names, f.Name)
			for _, old := range c.header {
				if old.Name == f.Name && f.Name != headerTrace && old.Value != f.Value {
					t.Errorf("%s: %s is %q now, was %q", c.name, f.Name, f.Value, old.Value)
				}
			}
		}
		if !slices.Equal(names, c.want) || tr.stored(j.Header).SpanID() != s.SpanContext.SpanID() || s.Parent.IsValid() != c.parent {
			t.Errorf("%s: stored %v, of span %v with parent %v", c.name, j.Header, s.SpanContext, s.Parent)
		}
		if !slices.Contains(s.Attributes, attrsDuplicate) || s.StartTime.IsZero() || s.EndTime.Before(s.StartTime) {
			t.Errorf("%s: span %+v", c.name, s)
		}
	}
}

// A store and its caller may share the headers of a delivery.
func TestDeliveryLeavesStoredHeaderAlone(t *testing.T) {
	tr, _ := traced(func(c *Config) { c.Propagator = propagators[1].p })
	f := &flight{Delivery: job.Delivery{Job: job.Job{Header: []job.Field{{Name: "Traceparent", Value: aParent}, {Name: "TraceState", Value: "x=1"}}}}}
	f.trace = tr.publish(f, startOf(tr)).sc
	h := map[string][]string{"Traceparent": {aParent}, "TraceState": {"x=1"}}
	(&publisher{trace: tr, msg: nats.Msg{Header: h}}).carry(f)
	if f.Header[0].Name != "Traceparent" || f.Header[0].Value != aParent {
		t.Errorf("the stored header is %v now", f.Header)
	}
	if len(h) != 2 || h["traceparent"][0] != traceparent(f.trace) || h["TraceState"][0] != "x=1" {
		t.Errorf("delivered %v", h)
	}
}

func TestWithoutTracingNothingChanges(t *testing.T) {
	tr, _ := traced(func(c *Config) { c.Tracer = nil })
	j := job.Job{Header: []job.Field{{Name: "Traceparent", Value: aParent}}}
	h := map[string][]string{"Traceparent": {aParent}}
	(&publisher{trace: tr, msg: nats.Msg{Header: h}}).carry(&flight{trace: tr.stored(j.Header)})
	if len(h) != 1 || h["Traceparent"] == nil {
		t.Errorf("delivered %v", h)
	}
	if tr.stored(j.Header).SpanID().String() != "b7ad6b7169203331" {
		t.Error("the producer's context is not read, for log lines and owner messages")
	}
	tr.moved("m", []job.Info{{Job: j}})
	tr.migrated("m", 1, time.Second)
}

func TestMigrationIsLinked(t *testing.T) {
	tr, spans := traced()
	jobs := make([]job.Info, 200)
	for i := range jobs {
		jobs[i].Header = []job.Field{{Name: "traceparent", Value: fmt.Sprintf("00-0af7651916cd43dd8448eb211c80319c-%016x-01", i+1)}}
	}
	jobs[0].Header[0].Value = aParent[:53] + "00" // not sampled: there is nothing to be linked to
	tr.moved("earlier", jobs[:3])
	tr.moved("m1", jobs[:100])
	tr.moved("m1", jobs[100:])
	tr.migrated("m1", 200, time.Second)
	tr.migrated("m2", 5, time.Second)
	got := spans.GetSpans()
	if len(got) != 2 || len(got[0].Links) != maxLinks || got[0].Links[0].SpanContext.SpanID() != (trace.SpanID{7: 2}) || len(got[1].Links) != 0 {
		t.Fatalf("spans %+v", got)
	}
	if d := got[0].EndTime.Sub(got[0].StartTime); d != time.Second {
		t.Errorf("the span of a migration of a second lasts %v", d)
	}
}
