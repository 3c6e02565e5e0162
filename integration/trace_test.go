package integration

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"

	"github.com/delaybridge/delaybridge/adapter/spans"
	"github.com/delaybridge/delaybridge/workers"
)

// What a producer's span is, in all tests.
const (
	producerTrace = "0af7651916cd43dd8448eb211c80319c"
	producerSpan  = "b7ad6b7169203331"
	traceTarget   = "trace.work"
)

// tracedWorks are works whose bridge exports its spans to the test.
type tracedWorks struct {
	*works
	*otlpReceiver
	stopLibrary func() // ends the worker that library began, if it did
}

func newTracedWorks(t *testing.T, kind storeKind, env []string, flags ...string) *tracedWorks {
	t.Helper()
	w := &tracedWorks{newWorks(t, kind), newOTLPReceiver(t), func() {}}
	w.system.env = w.otlpReceiver.env(env...)
	w.start(flags...)
	return w
}

// put schedules a job with the headers, which are names and values, and returns its
// id.
func (w *tracedWorks) put(delay, target string, headers ...string) string {
	w.works.t.Helper()
	m := nats.NewMsg("delay.in." + delay + "." + target)
	for i := 0; i < len(headers); i += 2 {
		m.Header[headers[i]] = []string{headers[i+1]}
	}
	reply, err := w.nc.RequestMsg(m, patient)
	if err != nil {
		w.works.t.Fatal(err)
	}
	id, _, _ := strings.Cut(string(reply.Data[strings.Index(string(reply.Data), `"id":"`)+6:]), `"`)
	if strings.Contains(string(reply.Data), `"error"`) {
		w.works.t.Fatalf("refused: %s", reply.Data)
	}
	return id
}

// library runs a worker that traces until the test ends.
func (w *tracedWorks) library() {
	w.works.t.Helper()
	p, err := spans.New(context.Background(), spans.Options{Client: otlptracehttp.NewClient(otlptracehttp.WithEndpointURL(w.otlpReceiver.url + "/v1/traces")), Every: 50 * time.Millisecond})
	if err != nil {
		w.works.t.Fatal(err)
	}
	worker, err := workers.New(w.client(), workers.Config{
		Name: "w1", Subjects: []string{traceTarget}, Logger: w.logger("w1"), Middleware: []workers.Middleware{workers.Tracing(p)},
	}, func(context.Context, *workers.Job) error { return nil })
	if err != nil {
		w.works.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		if err := worker.Run(ctx); err != nil {
			w.works.t.Error(err)
		}
	})
	w.stopLibrary = sync.OnceFunc(func() {
		cancel()
		running.Wait()
		if err := p.Shutdown(context.Background()); err != nil {
			w.works.t.Error(err)
		}
	})
	w.works.t.Cleanup(w.stopLibrary)
}

// end stops the worker and then the bridge, which answers the worker's farewell.
func (w *tracedWorks) end() {
	w.works.t.Helper()
	w.stopLibrary()
	w.bridge.end()
}

// wantChain checks the spans of a job from its producer to its completion by the
// library, and returns that of its intake.
func (w *tracedWorks) wantChain(id string) otlpSpan {
	t := w.works.t
	t.Helper()
	receive := w.one("receive", ofJob(id))
	if receive.trace() != producerTrace || receive.parent() != producerSpan || receive.Kind != tracepb.Span_SPAN_KIND_CONSUMER ||
		receive.attr("messaging.system") != "nats" || receive.attr("messaging.operation.type") != "receive" ||
		receive.attr("messaging.destination.name") != traceTarget || receive.service != "delaybridge" {
		t.Errorf("span of the intake: %v", receive)
	}
	publish := w.one("publish", under(receive))
	if publish.Kind != tracepb.Span_SPAN_KIND_PRODUCER || publish.attr("delaybridge.attempt") != "1" || publish.attr("messaging.message.id") != id ||
		publish.attr("messaging.operation.type") != "send" {
		t.Errorf("span of the delivery: %v", publish)
	}
	process := w.one("process", under(publish))
	if process.attr("messaging.message.id") != id || process.service == "delaybridge" {
		t.Errorf("span of the worker: %v", process)
	}
	settle := w.one("settle", under(process))
	if settle.attr("delaybridge.outcome") != "complete" || settle.attr("delaybridge.result") != "settled" || settle.attr("messaging.message.id") != id {
		t.Errorf("span of the completion: %v", settle)
	}
	return receive
}

// A trace goes from the producer through the bridge and the worker to the
// completion, whatever store keeps the job.
func TestTrace(t *testing.T) {
	onBothDisks(t, func(t *testing.T, kind storeKind) {
		w := newTracedWorks(t, kind, nil)
		w.library()
		for _, name := range []string{"traceparent", "Traceparent", "TRACEPARENT"} {
			w.wantChain(w.put("10ms", traceTarget, name, "00-"+producerTrace+"-"+producerSpan+"-01", "tracestate", "a=1"))
		}
		w.wantRoots()
		w.wantRetry()
		w.wantUnsampled()
		w.end()
	})
}

// wantRoots checks that a job without a context, or with none that can be read, is
// traced all the same.
func (w *tracedWorks) wantRoots() {
	t := w.works.t
	t.Helper()
	for _, header := range [][]string{nil, {"traceparent", "00-xyz"}} {
		receive := w.one("receive", ofJob(w.put("0s", traceTarget, header...)))
		if receive.parent() != "" || receive.trace() == producerTrace {
			t.Errorf("span of a job with %q: %v", header, receive)
		}
		w.one("settle", under(w.one("process", under(w.one("publish", under(receive))))))
	}
}

// wantRetry checks the spans of a job that a plain worker claims, refuses and then
// completes: each attempt is a child of the intake.
func (w *tracedWorks) wantRetry() {
	t := w.works.t
	t.Helper()
	msgs := make(chan *nats.Msg, 8)
	if _, err := w.nc.ChanQueueSubscribe("trace.plain", "workers", msgs); err != nil {
		t.Fatal(err)
	}
	owners := make(chan *nats.Msg, 8)
	if _, err := w.nc.ChanSubscribe("delay.owner.hand", owners); err != nil {
		t.Fatal(err)
	}
	id := w.put("0s", "trace.plain", "Traceparent", "00-"+producerTrace+"-"+producerSpan+"-01", "Tracestate", "b=2", "baggage", "k=v")
	first := w.next(msgs)
	w.ask(first, `+CLAIM {"worker":"hand"}`)
	w.ask(first, `-NAK 1ms`)
	second := w.next(msgs)
	w.ask(second, `+ACK`)

	receive := w.one("receive", ofJob(id))
	publishes := w.await(2, "publish", under(receive))
	for i, m := range []*nats.Msg{first, second} {
		p := publishes[i]
		if got := p.attr("delaybridge.attempt"); got != fmt.Sprint(i+1) {
			t.Errorf("span %d of a delivery is of attempt %s", i+1, got)
		}
		if want := fmt.Sprintf("00-%s-%s-01", producerTrace, p.id()); m.Header["traceparent"] == nil || m.Header["traceparent"][0] != want || m.Header["Traceparent"] != nil {
			t.Errorf("attempt %d came with %v, want traceparent %s alone", i+1, m.Header, want)
		}
		if m.Header["Tracestate"][0] != "b=2" || m.Header["baggage"][0] != "k=v" {
			t.Errorf("attempt %d came with %v", i+1, m.Header)
		}
		outcome := []string{"retry", "complete"}[i]
		if s := w.one("settle", under(p)); s.attr("delaybridge.outcome") != outcome || s.attr("delaybridge.attempt") != fmt.Sprint(i+1) {
			t.Errorf("span of the settlement of attempt %d: %v", i+1, s)
		}
	}
	if s := w.one("claim", under(publishes[0])); s.attr("delaybridge.outcome") != "own" || s.attr("delaybridge.result") != "settled" {
		t.Errorf("span of the claim: %v", s)
	}
	if got, want := w.next(owners).Header.Get("traceparent"), first.Header.Get("traceparent"); got != want {
		t.Errorf("the owner message has traceparent %q, the delivery %q", got, want)
	}
}

func (w *tracedWorks) next(msgs <-chan *nats.Msg) *nats.Msg {
	w.works.t.Helper()
	select {
	case m := <-msgs:
		return m
	case <-time.After(patient):
		w.works.t.Fatal("nothing came")
		return nil
	}
}

// ask settles a delivery, which must be accepted.
func (w *tracedWorks) ask(m *nats.Msg, verb string) {
	w.works.t.Helper()
	body, err := w.settle(w.nc, m, verb)
	if err != nil || strings.HasPrefix(body, "-ERR") {
		w.works.t.Fatalf("%s: %q, %v", verb, body, err)
	}
}

// wantUnsampled checks that a producer's choice not to trace is kept.
func (w *tracedWorks) wantUnsampled() {
	t := w.works.t
	t.Helper()
	msgs := make(chan *nats.Msg, 1)
	if _, err := w.nc.ChanQueueSubscribe("trace.unsampled", "workers", msgs); err != nil {
		t.Fatal(err)
	}
	const other = "1111111111111111aaaaaaaaaaaaaaaa"
	w.put("0s", "trace.unsampled", "traceparent", "00-"+other+"-"+producerSpan+"-00")
	m := w.next(msgs)
	if got := m.Header.Get("traceparent"); !strings.HasPrefix(got, "00-"+other+"-") || !strings.HasSuffix(got, "-00") || strings.Contains(got, producerSpan) {
		t.Errorf("a job that is not traced came with traceparent %q", got)
	}
	w.ask(m, "+ACK")
	w.one("receive", ofJob(w.put("0s", traceTarget))) // what was exported before is here
	w.await(0, "receive", func(s otlpSpan) bool { return s.trace() == other })
	w.await(0, "publish", func(s otlpSpan) bool { return s.trace() == other })
}

// A job that is put while Redis is away, and delivered from it when it is back,
// has one trace; the migration is linked to it.
func TestTraceAcrossMigration(t *testing.T) {
	t.Parallel()
	w := newTracedWorks(t, redisStore, nil, append(slices.Clone(shortFailover), "--tracing-redis", "true")...)
	w.redis.Kill()
	w.awaitMode("local")
	id := w.put("1h", traceTarget, "traceparent", "00-"+producerTrace+"-"+producerSpan+"-01")
	w.redis.Restart()
	w.awaitMode("redis")
	if n, err := w.bridge.metric(depth); err != nil || n != 0 {
		t.Fatalf("%v jobs are still on the disk, %v", n, err)
	}
	w.library()
	if reply, err := w.nc.Request("delay.api.fire", fmt.Appendf(nil, `{"id":%q}`, id), patient); err != nil || strings.Contains(string(reply.Data), "error") {
		t.Fatalf("fire: %s, %v", reply.Data, err)
	}
	receive := w.wantChain(id)
	migrate := w.one("migrate", func(otlpSpan) bool { return true })
	if len(migrate.Links) != 1 || (otlpSpan{Span: &tracepb.Span{SpanId: migrate.Links[0].SpanId}}).id() != receive.id() ||
		!strings.HasPrefix(migrate.attr("delaybridge.migration"), "b1-") || migrate.attr("delaybridge.jobs") == "" {
		t.Errorf("span of the migration: %v, the intake %v", migrate, receive)
	}
	w.end()
	ofRedis := func(s otlpSpan) bool { return s.attr("db.system") == "redis" }
	if s := w.first(ofRedis); s.trace() == producerTrace || s.attr("db.statement") != "" {
		t.Errorf("span of a call of Redis: %v", s)
	}
}

// With tracing.delayed: link a delivery begins a trace of its own.
func TestTraceLink(t *testing.T) {
	t.Parallel()
	w := newTracedWorks(t, localStore, nil, "--tracing-delayed", "link")
	w.library()
	id := w.put("0s", traceTarget, "traceparent", "00-"+producerTrace+"-"+producerSpan+"-01", "tracestate", "a=1")
	receive := w.one("receive", ofJob(id))
	publish := w.one("publish", ofJob(id))
	if publish.trace() == producerTrace || publish.parent() != "" || len(publish.Links) != 1 || publish.TraceState != "" ||
		(otlpSpan{Span: &tracepb.Span{SpanId: publish.Links[0].SpanId, TraceId: publish.Links[0].TraceId}}).id() != receive.id() {
		t.Errorf("span of the delivery: %v", publish)
	}
	w.one("settle", under(w.one("process", under(publish))))
	w.end()
}

// The context of Zipkin works as W3C's.
func TestTraceB3(t *testing.T) {
	t.Parallel()
	w := newTracedWorks(t, localStore, []string{"OTEL_PROPAGATORS=b3multi,tracecontext", "OTEL_SERVICE_NAME=mine"})
	msgs := make(chan *nats.Msg, 1)
	if _, err := w.nc.ChanQueueSubscribe("trace.b3", "workers", msgs); err != nil {
		t.Fatal(err)
	}
	id := w.put("0s", "trace.b3", "X-B3-TraceId", producerTrace, "X-B3-SpanId", producerSpan, "X-B3-Sampled", "1")
	m := w.next(msgs)
	w.ask(m, "+ACK")
	receive := w.one("receive", ofJob(id))
	publish := w.one("publish", under(receive))
	if receive.parent() != producerSpan || receive.trace() != producerTrace || receive.service != "mine" {
		t.Errorf("span of the intake: %v", receive)
	}
	if m.Header.Get("x-b3-spanid") != publish.id() || m.Header.Get("x-b3-traceid") != producerTrace || m.Header.Get("X-B3-SpanId") != "" ||
		m.Header.Get("traceparent") != "00-"+producerTrace+"-"+publish.id()+"-01" {
		t.Errorf("the delivery came with %v, its span is %v", m.Header, publish)
	}
	w.end()
}
