package adapter

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"

	"github.com/delaybridge/delaybridge/adapter/spans"
	"github.com/delaybridge/delaybridge/job"
)

// exported is a client that keeps what a collector would get.
type exported struct {
	mu    sync.Mutex
	spans []*tracepb.Span
}

func (e *exported) Start(context.Context) error { return nil }
func (e *exported) Stop(context.Context) error  { return nil }

func (e *exported) UploadTraces(_ context.Context, batch []*tracepb.ResourceSpans) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, r := range batch {
		read, err := spans.Decode(r)
		if err != nil {
			return err
		}
		for _, scope := range read.ScopeSpans {
			e.spans = append(e.spans, scope.Spans...)
		}
	}
	return nil
}

// lines are the spans without what is random or a time.
func (e *exported) lines() (lines []string) {
	for _, s := range e.spans {
		var as []string
		for _, a := range s.Attributes {
			as = append(as, a.Key+"="+text(a.Value))
		}
		slices.Sort(as)
		lines = append(lines, fmt.Sprintf("%s %v state=%q root=%v flags=%x links=%d status=%v %q %s",
			s.Name, s.Kind, s.TraceState, len(s.ParentSpanId) == 0, s.Flags, len(s.Links), s.GetStatus().GetCode(), s.GetStatus().GetMessage(), strings.Join(as, " ")))
	}
	return lines
}

func text(v *commonpb.AnyValue) string {
	if s := v.GetStringValue(); s != "" {
		return s
	}
	return fmt.Sprint(v.GetIntValue(), v.GetBoolValue())
}

// makeAll makes a span of every sort, for a job with that context and one without.
func makeAll(tr *tracing) {
	began := startOf(tr)
	for _, header := range [][]job.Field{
		{{Name: headerTrace, Value: aParent}, {Name: headerState, Value: "a=1"}}, nil, {{Name: headerTrace, Value: aParent[:53] + "00"}},
	} {
		j := job.Job{ID: "id", Target: "t", Header: header}
		s := tr.receive(&j, began)
		tr.received(&s, &j, &job.PutResult{Duplicate: header == nil}, began, endOf(tr))
		other := j
		s = tr.receive(&other, began)
		tr.failed(&s, "t", job.ErrFull, began)

		fs := []*flight{{Delivery: job.Delivery{Job: j, Attempt: 3}}, {Delivery: job.Delivery{Job: j, Attempt: 1, Owner: job.OwnerOf("b", "w")}, direct: true}}
		pub := &publisher{trace: tr}
		(&dispatcher{tracing: tr}).trace(pub, fs)
		pub.noteSpan(1, errors.New("why"))
		pub.endSpans()
		for _, o := range []job.Outcome{job.Complete, job.Own, job.Extend, job.Bury} {
			e := settlement{Settlement: job.Settlement{Ref: fs[0].Ref(), Outcome: o, Target: "t"}, trace: fs[0].trace, began: began}
			tr.settled(&e, map[bool]job.SettleResult{true: job.Stale, false: job.Settled}[o == job.Bury], endOf(tr))
			tr.settled(&e, job.Settled, endOf(tr)) // its span has ended
		}
		tr.moved("m", []job.Info{{Job: j}})
	}
	tr.migrated("m", 7, time.Second)
	tr.refused(&nats.Msg{Subject: "s", Header: nats.Header{"Traceparent": {aParent}}}, job.ErrSchedule)
}

// What this package makes of a bridge's spans with its own provider is what it
// makes with any.
func TestSpansOfEitherTracer(t *testing.T) {
	for _, link := range []bool{false, true} {
		var ours, sdk exported
		exporter, err := otlptrace.New(t.Context(), &sdk)
		if err != nil {
			t.Fatal(err)
		}
		own, err := spans.New(t.Context(), spans.Options{Client: &ours})
		if err != nil {
			t.Fatal(err)
		}
		theirs := sdktrace.NewTracerProvider(sdktrace.WithSyncer(exporter))
		for _, p := range []trace.TracerProvider{own, theirs} {
			cfg := Config{Tracer: p, TraceLink: link}.withDefaults()
			tr := newTracing(&cfg)
			if (tr.quick != nil) != (p == own) {
				t.Fatalf("tracer %T is quick: %v", p, tr.quick != nil)
			}
			makeAll(tr)
		}
		if err := errors.Join(own.Shutdown(t.Context()), theirs.Shutdown(t.Context())); err != nil {
			t.Fatal(err)
		}
		got, want := ours.lines(), sdk.lines()
		if len(want) < 15 || !slices.Equal(got, want) {
			t.Errorf("link %v: own provider\n%s\nanother\n%s", link, strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
		for _, s := range ours.spans {
			if s.StartTimeUnixNano == 0 || s.EndTimeUnixNano < s.StartTimeUnixNano {
				t.Errorf("span from %d to %d: %v", s.StartTimeUnixNano, s.EndTimeUnixNano, s)
			}
		}
	}
}
