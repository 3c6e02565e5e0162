package main

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/delaybridge/delaybridge/memdelay"
)

// storeMetrics are about what is on this bridge's disk.
type storeMetrics struct {
	reg   prometheus.Registerer
	syncs *prometheus.HistogramVec // log
}

func newStoreMetrics(reg prometheus.Registerer) (*storeMetrics, error) {
	m := &storeMetrics{reg: reg, syncs: prometheus.NewHistogramVec(histogram("delaybridge_wal_fsync_seconds",
		"Time of one sync of a log (local or journal), which confirms all that was written since the one before.",
		.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, 1, 5), []string{"log"})}
	return m, register(reg, m.syncs)
}

// onSync returns what the log of that name calls after each sync.
func (m *storeMetrics) onSync(log string) func(time.Duration, int, int) {
	h := m.syncs.WithLabelValues(log)
	return func(took time.Duration, _, _ int) { h.Observe(took.Seconds()) }
}

// disk registers what is about the directory of a store.
func (m *storeMetrics) disk(log string, s *memdelay.Store) error {
	labels := prometheus.Labels{"log": log}
	return register(m.reg,
		gauge("delaybridge_wal_bytes", "Bytes of a log and its snapshots on disk.", labels, func() float64 { return float64(s.Usage().LogBytes) }),
		gauge("delaybridge_wal_jobs", "Jobs that a log keeps, dead ones included.", labels, func() float64 { return float64(s.Usage().Jobs) }),
		gauge("delaybridge_wal_failed", "1 when a log takes nothing now: the disk is full, or a sync has failed.", labels, func() float64 {
			if s.Usage().LogErr != nil {
				return 1
			}
			return 0
		}),
	)
}

// local registers what is about the limits of the local store.
func (m *storeMetrics) local(s *memdelay.Store) error {
	own := func() float64 { u := s.Usage(); return float64(u.Jobs - u.Adopted) }
	return register(m.reg,
		gauge("delaybridge_local_jobs", "Jobs that count against local.max_jobs.", nil, own),
		gauge("delaybridge_local_jobs_limit", "local.max_jobs.", nil, func() float64 { return float64(s.Usage().MaxJobs) }),
		gauge("delaybridge_local_bytes", "Bytes that count against local.max_bytes.", nil, func() float64 { u := s.Usage(); return float64(u.OwnBytes + u.VerdictBytes) }),
		gauge("delaybridge_local_bytes_limit", "local.max_bytes.", nil, func() float64 { return float64(s.Usage().MaxBytes) }),
	)
}

func gauge(name, help string, labels prometheus.Labels, value func() float64) prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help, ConstLabels: labels}, value)
}

// histogram describes one with classic buckets and, for who asks for them, native
// ones.
func histogram(name, help string, buckets ...float64) prometheus.HistogramOpts {
	return prometheus.HistogramOpts{
		Name: name, Help: help, Buckets: buckets,
		NativeHistogramBucketFactor: 1.1, NativeHistogramMaxBucketNumber: 160, NativeHistogramMinResetDuration: time.Hour,
	}
}

func register(reg prometheus.Registerer, cs ...prometheus.Collector) error {
	for _, c := range cs {
		if err := reg.Register(c); err != nil {
			return err
		}
	}
	return nil
}
