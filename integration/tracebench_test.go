package integration

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"

	"github.com/delaybridge/delaybridge/adapter"
	"github.com/delaybridge/delaybridge/adapter/spans"
)

// BenchmarkTracing compares bridges that trace with one that does not, in turns
// whose order changes. Every job is taken in, delivered at once and completed.
// Ratios are the middle ones of those to the bridge that does not trace in the same
// round; the CPU time is that of this process, which everything but Redis is part of.
// Run it with GOGC=400, as the bridge runs.
func BenchmarkTracing(b *testing.B) {
	const jobs = 20_000
	for _, s := range stores {
		b.Run(s.name, func(b *testing.B) {
			kinds := []*tracedBench{{name: "off", flags: "01"}, {name: "unsampled", flags: "00"}, {name: "sdk", flags: "01"}, {name: "discard", flags: "01"}, {name: "otlp", flags: "01"}}
			for i, k := range kinds {
				if i > 0 {
					k.provider = benchProvider(b, k.name)
				}
				k.start(b, s.redis)
			}
			b.ResetTimer()
			for round := range b.N {
				for i := range kinds {
					kinds[(i+round)%len(kinds)].run(b, jobs)
				}
			}
			b.StopTimer()
			for _, k := range kinds {
				b.ReportMetric(middle(k.rate), k.name+"-jobs/s")
				b.ReportMetric(middle(k.cpu), k.name+"-cpu-us/job")
				fmt.Printf("%-6s %-9s %7.0f jobs/s (%.3f)  %5.1f us CPU/job (%.3f)\n", s.name, k.name,
					middle(k.rate), middle(ratios(k.rate, kinds[0].rate)), middle(k.cpu), middle(ratios(k.cpu, kinds[0].cpu)))
			}
		})
	}
}

func middle(v []float64) float64 {
	v = slices.Sorted(slices.Values(v))
	return v[len(v)/2]
}

// ratios compares what was measured in the same round.
func ratios(v, base []float64) []float64 {
	out := make([]float64, len(v))
	for i := range v {
		out[i] = v[i] / base[i]
	}
	return out
}

// discard is a client to nowhere.
type discard struct{}

func (discard) Start(context.Context) error                                  { return nil }
func (discard) Stop(context.Context) error                                   { return nil }
func (discard) UploadTraces(context.Context, []*tracepb.ResourceSpans) error { return nil }

// provider is what makes spans, in whatever way.
type provider interface {
	trace.TracerProvider
	ForceFlush(context.Context) error
	Shutdown(context.Context) error
}

// benchProvider is set up as the bridge does it, or for comparison with the SDK.
func benchProvider(b *testing.B, kind string) (p provider) {
	b.Helper()
	var client otlptrace.Client = discard{}
	if kind != "discard" {
		srv := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) }))
		b.Cleanup(srv.Close)
		client = otlptracehttp.NewClient(otlptracehttp.WithEndpointURL(srv.URL))
	}
	if kind == "sdk" {
		exporter, err := otlptrace.New(context.Background(), client)
		if err != nil {
			b.Fatal(err)
		}
		p = sdktrace.NewTracerProvider(sdktrace.WithBatcher(exporter, sdktrace.WithMaxQueueSize(32768), sdktrace.WithMaxExportBatchSize(2048)))
	} else {
		var err error
		if p, err = spans.New(context.Background(), spans.Options{Client: client}); err != nil {
			b.Fatal(err)
		}
	}
	b.Cleanup(func() { _ = p.Shutdown(context.Background()) })
	return p
}

// tracedBench is one of the bridges that are compared.
type tracedBench struct {
	name, flags string
	provider    provider // nil: it does not trace
	nc          *nats.Conn
	inbox       string
	window      chan struct{}
	left        atomic.Int64
	all         chan struct{}
	rate, cpu   []float64
}

func (k *tracedBench) start(b *testing.B, redis bool) {
	url := benchBridge(b, redis, func(c *adapter.Config) {
		if k.provider != nil {
			c.Tracer = k.provider
		}
	})
	k.all = make(chan struct{}, 1)
	for range 4 {
		nc := benchConn(b, url)
		if _, err := nc.QueueSubscribe("bench.jobs", "w", func(m *nats.Msg) {
			_ = m.Respond(nil)
			if k.left.Add(-1) == 0 {
				k.all <- struct{}{}
			}
		}); err != nil {
			b.Fatal(err)
		}
		_ = nc.Flush()
	}
	k.nc, k.window = benchConn(b, url), make(chan struct{}, 4096)
	k.inbox = k.nc.NewInbox()
	if _, err := k.nc.Subscribe(k.inbox, func(*nats.Msg) { <-k.window }); err != nil {
		b.Fatal(err)
	}
}

func (k *tracedBench) run(b *testing.B, jobs int) {
	k.left.Store(int64(jobs))
	payload := make([]byte, 256)
	begin, before := time.Now(), processCPU(b)
	for i := range jobs {
		k.window <- struct{}{}
		m := &nats.Msg{Subject: "delay.in.0s.bench.jobs", Reply: k.inbox, Data: payload, Header: nats.Header{
			"traceparent": {fmt.Sprintf("00-0af7651916cd43dd8448eb21%08x-b7ad6b71%08x-%s", i+1, i+1, k.flags)},
		}}
		if err := k.nc.PublishMsg(m); err != nil {
			b.Fatal(err)
		}
	}
	<-k.all
	took := time.Since(begin)
	if k.provider != nil {
		_ = k.provider.ForceFlush(context.Background()) // what it did not have time for counts too
	}
	k.rate = append(k.rate, float64(jobs)/took.Seconds())
	k.cpu = append(k.cpu, float64((processCPU(b)-before).Nanoseconds())/1e3/float64(jobs))
}

func processCPU(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
