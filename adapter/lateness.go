package adapter

import (
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"
)

// latenessBuckets are the classic buckets of how late deliveries are.
var latenessBuckets = []float64{.0002, .0005, .001, .002, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 10, 60}

// histogramOpts describe a histogram that has classic buckets and, for who asks for
// them, native ones.
func histogramOpts(name, help string, buckets []float64) prometheus.HistogramOpts {
	return prometheus.HistogramOpts{
		Name: name, Help: help, Buckets: buckets,
		NativeHistogramBucketFactor: 1.1, NativeHistogramMaxBucketNumber: 160, NativeHistogramMinResetDuration: time.Hour,
	}
}

// lateness is a histogram of times, some of which name a trace that shows where the
// time went.
type lateness struct {
	prometheus.Histogram
	next *atomic.Int64 // when another exemplar is due, since exemplarStart
}

func newLateness(name, help string, buckets []float64) lateness {
	return lateness{prometheus.NewHistogram(histogramOpts(name, help, buckets)), new(atomic.Int64)}
}

// exemplarPause is the least time between two exemplars: they cost as much as all
// else that is counted of a job, and Prometheus keeps one per bucket and scrape.
const exemplarPause = 10 * time.Millisecond

var exemplarStart = time.Now()

// observe notes d, of a job of that trace if it has one.
func (l lateness) observe(d time.Duration, of trace.SpanContext) {
	if of.IsSampled() && of.HasTraceID() && l.turn() {
		l.Histogram.(prometheus.ExemplarObserver).ObserveWithExemplar(d.Seconds(), prometheus.Labels{"trace_id": of.TraceID().String()})
		return
	}
	l.Observe(d.Seconds())
}

// turn reports whether it is time for an exemplar.
func (l lateness) turn() bool {
	now := int64(time.Since(exemplarStart))
	next := l.next.Load()
	return now >= next && l.next.CompareAndSwap(next, now+int64(exemplarPause))
}
