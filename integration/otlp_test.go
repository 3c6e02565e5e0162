package integration

import (
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	collectorpb "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"
)

// otlpReceiver is a collector in the test's process.
type otlpReceiver struct {
	t   *testing.T
	url string

	mu      sync.Mutex
	spans   []otlpSpan
	changed chan struct{} // closed at the next spans
}

// otlpSpan is a span as the receiver got it.
type otlpSpan struct {
	*tracepb.Span
	service string
}

func (s otlpSpan) id() string     { return hex.EncodeToString(s.SpanId) }
func (s otlpSpan) trace() string  { return hex.EncodeToString(s.TraceId) }
func (s otlpSpan) parent() string { return hex.EncodeToString(s.ParentSpanId) }

// attr is the value of an attribute as text.
func (s otlpSpan) attr(key string) string {
	for _, a := range s.Attributes {
		if a.Key == key {
			if a.Value.GetStringValue() != "" {
				return a.Value.GetStringValue()
			}
			return fmt.Sprint(a.Value.GetIntValue())
		}
	}
	return ""
}

func newOTLPReceiver(t *testing.T) *otlpReceiver {
	r := &otlpReceiver{t: t, changed: make(chan struct{})}
	srv := httptest.NewServer(r)
	t.Cleanup(srv.Close)
	r.url = srv.URL
	return r
}

// env makes a child export here, and soon.
func (r *otlpReceiver) env(more ...string) []string {
	return append([]string{"OTEL_EXPORTER_OTLP_ENDPOINT=" + r.url, "OTEL_EXPORTER_OTLP_HEADERS=api-key=secret", "OTEL_BSP_SCHEDULE_DELAY=50"}, more...)
}

func (r *otlpReceiver) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	b, err := io.ReadAll(q.Body)
	var in collectorpb.ExportTraceServiceRequest
	if err == nil {
		err = proto.Unmarshal(b, &in)
	}
	if err != nil || q.URL.Path != "/v1/traces" || q.Header.Get("Content-Type") != "application/x-protobuf" {
		r.t.Errorf("not an export of traces: %s %s: %v", q.Method, q.URL, err)
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, rs := range in.ResourceSpans {
		service := ""
		for _, a := range rs.Resource.Attributes {
			if a.Key == "service.name" {
				service = a.Value.GetStringValue()
			}
		}
		if service == "delaybridge" && q.Header.Get("Api-Key") != "secret" {
			r.t.Error("an export without the header that was configured")
		}
		for _, ss := range rs.ScopeSpans {
			for _, s := range ss.Spans {
				r.spans = append(r.spans, otlpSpan{s, service})
			}
		}
	}
	close(r.changed)
	r.changed = make(chan struct{})
	w.Header().Set("Content-Type", "application/x-protobuf")
}

// await returns the n spans of that name for which ok holds, as soon as they are
// there, in the order in which they began.
func (r *otlpReceiver) await(n int, name string, ok func(otlpSpan) bool) []otlpSpan {
	r.t.Helper()
	timeout := time.After(patient)
	for {
		var found []otlpSpan
		r.mu.Lock()
		for _, s := range r.spans {
			if s.Name == name && ok(s) {
				found = append(found, s)
			}
		}
		all, changed := len(r.spans), r.changed
		r.mu.Unlock()
		if len(found) > n {
			r.t.Fatalf("%d spans %s, want %d: %v", len(found), name, n, found)
		}
		if len(found) == n {
			for i := range found {
				for j := i; j > 0 && found[j].StartTimeUnixNano < found[j-1].StartTimeUnixNano; j-- {
					found[j], found[j-1] = found[j-1], found[j]
				}
			}
			return found
		}
		select {
		case <-changed:
		case <-timeout:
			r.t.Fatalf("%d spans %s, want %d, of %d in all", len(found), name, n, all)
		}
	}
}

// first returns the first span for which ok holds, which must be there.
func (r *otlpReceiver) first(ok func(otlpSpan) bool) otlpSpan {
	r.t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range r.spans {
		if ok(s) {
			return s
		}
	}
	r.t.Fatalf("none of %d spans is so", len(r.spans))
	return otlpSpan{}
}

// one is await of a single span.
func (r *otlpReceiver) one(name string, ok func(otlpSpan) bool) otlpSpan {
	r.t.Helper()
	return r.await(1, name, ok)[0]
}

// under says which spans are children of parent.
func under(parent otlpSpan) func(otlpSpan) bool {
	return func(s otlpSpan) bool { return s.parent() == parent.id() && s.trace() == parent.trace() }
}

// ofJob says which spans are about a job.
func ofJob(id string) func(otlpSpan) bool {
	return func(s otlpSpan) bool { return s.attr("messaging.message.id") == id }
}
