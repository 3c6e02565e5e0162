package main

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
)

func TestOTelVariables(t *testing.T) {
	for _, c := range []struct {
		env  string
		want string // exporter, protocol and sampler
	}{
		{"", "- http ParentBased{root:AlwaysOnSampler"},
		{"OTEL_TRACES_EXPORTER=otlp", "otlp http ParentBased"},
		{"OTEL_EXPORTER_OTLP_ENDPOINT=http://c:4318", "otlp http ParentBased"},
		{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=https://c/v1/traces", "otlp http ParentBased"},
		{"OTEL_EXPORTER_OTLP_ENDPOINT=http://c:4318 OTEL_TRACES_EXPORTER=none", "- http"},
		{"OTEL_EXPORTER_OTLP_ENDPOINT=http://c:4318 OTEL_SDK_DISABLED=TRUE", "- http"},
		{"OTEL_TRACES_EXPORTER=console OTEL_EXPORTER_OTLP_PROTOCOL=grpc", "console grpc"},
		{"OTEL_EXPORTER_OTLP_PROTOCOL=grpc OTEL_EXPORTER_OTLP_TRACES_PROTOCOL=http/protobuf", "- http"},
		{"OTEL_TRACES_SAMPLER=always_off", "- http AlwaysOffSampler"},
		{"OTEL_TRACES_SAMPLER=traceidratio OTEL_TRACES_SAMPLER_ARG=0.25", "- http TraceIDRatioBased{0.25}"},
		{"OTEL_TRACES_SAMPLER=parentbased_traceidratio OTEL_TRACES_SAMPLER_ARG=0.5", "- http ParentBased{root:TraceIDRatioBased{0.5}"},
	} {
		o, err := readOTel(strings.Fields(c.env))
		if err != nil {
			t.Errorf("%s: %v", c.env, err)
			continue
		}
		got := strings.Join([]string{map[bool]string{true: "-"}[o.exporter == ""] + o.exporter, map[bool]string{true: "grpc", false: "http"}[o.grpc], o.sampler.Description()}, " ")
		if !strings.HasPrefix(got, c.want) {
			t.Errorf("%s: %s, want %s", c.env, got, c.want)
		}
	}
}

func TestOTelVariablesThatAreWrong(t *testing.T) {
	for _, env := range []string{
		"OTEL_TRACES_EXPORTER=zipkin", "OTEL_TRACES_EXPORTER=otlp,console", "OTEL_SDK_DISABLED=1", "OTEL_TRACES_SAMPLER=jaeger_remote",
		"OTEL_TRACES_SAMPLER_ARG=2", "OTEL_TRACES_SAMPLER_ARG=NaN", "OTEL_EXPORTER_OTLP_PROTOCOL=http/json", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL=thrift",
		"OTEL_PROPAGATORS=tracecontext,jaeger", "OTEL_EXPORTER_OTLP_ENDPOINT=collector:4317", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=ftp://x",
		"OTEL_EXPORTER_OTLP_HEADERS=hush", "OTEL_EXPORTER_OTLP_TRACES_HEADERS=a=b,=hush", "OTEL_RESOURCE_ATTRIBUTES=a",
		"OTEL_BSP_MAX_QUEUE_SIZE=0", "OTEL_BSP_SCHEDULE_DELAY=5s",
	} {
		name, _, _ := strings.Cut(env, "=")
		_, err := readOTel([]string{env, "OTEL_TRACES_SAMPLER=traceidratio"})
		if name == "OTEL_TRACES_SAMPLER" {
			_, err = readOTel([]string{env})
		}
		if err == nil || !strings.Contains(err.Error(), "environment variable "+name+":") {
			t.Errorf("%s: %v", env, err)
		} else if strings.Contains(err.Error(), "hush") {
			t.Errorf("%s: the error repeats a secret: %v", env, err)
		}
	}
}

// A wrong variable is an error of usage, which names it.
func TestServeRefusesOTelVariables(t *testing.T) {
	var out bytes.Buffer
	std := stdio{strings.NewReader(""), &out, &out, []string{"OTEL_TRACES_EXPORTER=zipkin"}, nil}
	if code := exitCode(&out, dispatch(t.Context(), std, []string{"serve", "--store", "local", "--data-dir", t.TempDir()})); code != 2 || !strings.Contains(out.String(), "OTEL_TRACES_EXPORTER") {
		t.Errorf("exit %d: %s", code, out.String())
	}
}

func TestB3(t *testing.T) {
	const id, span = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
	for _, c := range []struct {
		in   propagation.MapCarrier
		want string // empty: ignored
	}{
		{propagation.MapCarrier{"b3": id + "-" + span + "-1"}, id + "-" + span + "-1"},
		{propagation.MapCarrier{"b3": id + "-" + span + "-d-0102030405060708"}, id + "-" + span + "-1"},
		{propagation.MapCarrier{"b3": id + "-" + span}, id + "-" + span + "-0"},
		{propagation.MapCarrier{"b3": strings.ToUpper(id) + "-" + span + "-0"}, id + "-" + span + "-0"},
		{propagation.MapCarrier{"b3": id[16:] + "-" + span + "-1"}, "0000000000000000" + id[16:] + "-" + span + "-1"},
		{propagation.MapCarrier{"x-b3-traceid": id, "x-b3-spanid": span, "x-b3-sampled": "1"}, id + "-" + span + "-1"},
		{propagation.MapCarrier{"x-b3-traceid": id, "x-b3-spanid": span, "x-b3-flags": "1"}, id + "-" + span + "-1"},
		{propagation.MapCarrier{"x-b3-traceid": id, "x-b3-spanid": span, "x-b3-sampled": "yes"}, ""},
		{propagation.MapCarrier{"b3": "0"}, ""},
		{propagation.MapCarrier{"b3": id + "-" + span + "-1-2-3"}, ""},
		{propagation.MapCarrier{"b3": id[1:] + "-" + span + "-1"}, ""},
		{propagation.MapCarrier{"b3": strings.Repeat("0", 32) + "-" + span + "-1"}, ""},
		{propagation.MapCarrier{"b3": id + "-" + span[1:] + "x-1"}, ""},
		{propagation.MapCarrier{"x-b3-sampled": "1"}, ""},
	} {
		ctx := b3{}.Extract(context.Background(), c.in)
		single, multi := propagation.MapCarrier{}, propagation.MapCarrier{}
		b3{}.Inject(ctx, single)
		b3{multi: true}.Inject(ctx, multi)
		if single["b3"] != c.want {
			t.Errorf("%v: read as %q, want %q", c.in, single["b3"], c.want)
		}
		if again := (b3{}).Extract(context.Background(), multi); !trace.SpanContextFromContext(ctx).Equal(trace.SpanContextFromContext(again)) {
			t.Errorf("%v: written as %v", c.in, multi)
		}
	}
}

func TestLogCarriesTrace(t *testing.T) {
	sc := trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{1}, SpanID: trace.SpanID{2}})
	ctx := trace.ContextWithSpanContext(t.Context(), sc)
	for _, format := range []string{"text", "json"} {
		var out bytes.Buffer
		log := newLogger(&out, slog.LevelInfo, format).With("bridge", "b1")
		log.WarnContext(ctx, "of a job")
		log.Warn("of none")
		lines := strings.Split(out.String(), "\n")
		if !strings.Contains(lines[0], sc.TraceID().String()) || !strings.Contains(lines[0], "span_id") || strings.Contains(lines[1], "trace_id") {
			t.Errorf("%s: %s", format, out.String())
		}
	}
}

func TestExportErrorsAreFew(t *testing.T) {
	var out bytes.Buffer
	e := &exportErrors{log: newLogger(&out, nil, "text")}
	for range 100 {
		e.Handle(errors.New("no collector"))
	}
	if n := strings.Count(out.String(), "no collector"); n != 1 {
		t.Errorf("%d lines", n)
	}
	e.last = time.Time{}
	e.Handle(errors.New("still none"))
	if !strings.Contains(out.String(), "more_since_last=99") {
		t.Errorf("%s", out.String())
	}
}
