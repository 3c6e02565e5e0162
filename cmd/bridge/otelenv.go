package main

import (
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/trace"
)

// otelConfig is what the variables of OpenTelemetry ask for, as
// https://opentelemetry.io/docs/specs/otel/configuration/sdk-environment-variables/
// describes them. The exporters read the rest of theirs by themselves.
type otelConfig struct {
	exporter   string // empty: no traces
	grpc       bool   // the protocol of the exporter otlp
	sampler    trace.Sampler
	propagator propagation.TextMapPropagator
	named      bool // the service has a name

	queue, batch   int // spans that wait, and that are exported at once; zero: the default
	every, timeout time.Duration
}

// The values of OTEL_TRACES_EXPORTER.
const (
	exporterOTLP    = "otlp"
	exporterConsole = "console"
	exporterNone    = "none"
)

// otelVars are environment variables by name.
type otelVars map[string]string

// readOTel reads the variables. The error names everything that is wrong: traces
// that silently go nowhere are noticed when they are needed.
func readOTel(environ []string) (o otelConfig, err error) {
	v := otelVars{}
	for _, kv := range environ {
		if name, value, _ := strings.Cut(kv, "="); strings.HasPrefix(name, "OTEL_") {
			v[name] = strings.TrimSpace(value)
		}
	}
	var errs []error
	note := func(err error) {
		if err != nil {
			errs = append(errs, err)
		}
	}
	o.propagator, err = v.propagator()
	note(err)
	disabled, err := v.oneOf("OTEL_SDK_DISABLED", "false", "true", "false")
	note(err)
	o.exporter, err = v.exporter()
	note(err)
	o.sampler, err = v.sampler()
	note(err)
	protocol, err := v.oneOf("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "", "grpc", "http/protobuf")
	note(err)
	if protocol == "" {
		protocol, err = v.oneOf("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf", "grpc", "http/protobuf")
		note(err)
	}
	o.grpc = protocol == "grpc"
	note(v.checkOTLP())
	if disabled == "true" {
		o.exporter = ""
	}
	for name, set := range map[string]func(int){
		"OTEL_BSP_MAX_QUEUE_SIZE": func(n int) { o.queue = n }, "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": func(n int) { o.batch = n },
		"OTEL_BSP_SCHEDULE_DELAY": func(n int) { o.every = time.Duration(n) * time.Millisecond },
		"OTEL_BSP_EXPORT_TIMEOUT": func(n int) { o.timeout = time.Duration(n) * time.Millisecond },
	} {
		note(v.count(name, set))
	}
	o.named = v["OTEL_SERVICE_NAME"] != "" || strings.Contains(v["OTEL_RESOURCE_ATTRIBUTES"], "service.name=")
	return o, errors.Join(errs...)
}

// oneOf returns the value of a variable that must be one of few.
func (v otelVars) oneOf(name, def string, values ...string) (string, error) {
	s := strings.ToLower(v[name])
	if s == "" {
		return def, nil
	}
	if !slices.Contains(values, s) {
		return def, fmt.Errorf("environment variable %s: %q is not one of %s", name, s, strings.Join(values, ", "))
	}
	return s, nil
}

// count reads a number above zero, if it is given.
func (v otelVars) count(name string, set func(int)) error {
	if v[name] == "" {
		return nil
	}
	n, err := strconv.ParseInt(v[name], 10, 32)
	if err != nil || n < 1 {
		return fmt.Errorf("environment variable %s: %q is not a number above 0", name, v[name])
	}
	set(int(n))
	return nil
}

// exporter returns where traces go. A variable that says to which collector they go
// asks for them.
func (v otelVars) exporter() (string, error) {
	def := exporterNone
	if v["OTEL_EXPORTER_OTLP_ENDPOINT"]+v["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"] != "" {
		def = exporterOTLP
	}
	s, err := v.oneOf("OTEL_TRACES_EXPORTER", def, exporterOTLP, exporterConsole, exporterNone)
	if s == exporterNone {
		s = ""
	}
	return s, err
}

// checkOTLP finds what the exporters would only ignore. Headers hold secrets, so
// none is repeated.
func (v otelVars) checkOTLP() error {
	var errs []error
	for _, name := range []string{"OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"} {
		if v[name] == "" {
			continue
		}
		if u, err := url.Parse(v[name]); err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
			errs = append(errs, fmt.Errorf("environment variable %s: not a URL like http://localhost:4318", name))
		}
	}
	for _, name := range []string{"OTEL_EXPORTER_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_TRACES_HEADERS", "OTEL_RESOURCE_ATTRIBUTES"} {
		for i, item := range strings.Split(v[name], ",") {
			if k, _, ok := strings.Cut(item, "="); v[name] != "" && (!ok || strings.TrimSpace(k) == "") {
				errs = append(errs, fmt.Errorf("environment variable %s: item %d is not name=value", name, i+1))
			}
		}
	}
	return errors.Join(errs...)
}

// sampler returns which new traces are kept.
func (v otelVars) sampler() (trace.Sampler, error) {
	const name, arg = "OTEL_TRACES_SAMPLER", "OTEL_TRACES_SAMPLER_ARG"
	s, err := v.oneOf(name, "parentbased_always_on", "always_on", "always_off", "traceidratio",
		"parentbased_always_on", "parentbased_always_off", "parentbased_traceidratio")
	if err != nil {
		return nil, err
	}
	ratio := 1.0
	if v[arg] != "" && strings.HasSuffix(s, "traceidratio") {
		if ratio, err = strconv.ParseFloat(v[arg], 64); err != nil || !(ratio >= 0 && ratio <= 1) {
			return nil, fmt.Errorf("environment variable %s: %q is not a number from 0 to 1", arg, v[arg])
		}
	}
	kind, based := strings.CutPrefix(s, "parentbased_")
	sampler := map[string]trace.Sampler{
		"always_on": trace.AlwaysSample(), "always_off": trace.NeverSample(), "traceidratio": trace.TraceIDRatioBased(ratio),
	}[kind]
	if based {
		sampler = trace.ParentBased(sampler)
	}
	return sampler, nil
}

// propagator returns how trace context is written in headers. Baggage needs none:
// the bridge passes it on as it came.
func (v otelVars) propagator() (propagation.TextMapPropagator, error) {
	const name = "OTEL_PROPAGATORS"
	given := v[name]
	if given == "" {
		given = "tracecontext,baggage"
	}
	var ps []propagation.TextMapPropagator
	for _, s := range strings.Split(given, ",") {
		switch s = strings.ToLower(strings.TrimSpace(s)); s {
		case "tracecontext":
			ps = append(ps, propagation.TraceContext{})
		case "b3":
			ps = append(ps, b3{})
		case "b3multi":
			ps = append(ps, b3{multi: true})
		case "baggage", "none", "":
		default:
			return nil, fmt.Errorf("environment variable %s: %q is not one of tracecontext, baggage, b3, b3multi, none", name, s)
		}
	}
	if len(ps) == 1 {
		return ps[0], nil
	}
	return propagation.NewCompositeTextMapPropagator(ps...), nil
}
