package main

import (
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/delaybridge/delaybridge/redisdelay"
)

// redisMetrics are about Redis as this bridge sees it.
type redisMetrics struct {
	seconds map[string]prometheus.Observer // by call; only read
	errors  map[string]prometheus.Counter  // likewise

	unsafe  *prometheus.GaugeVec // setting
	checked prometheus.Gauge
	figures map[string]prometheus.Gauge
}

// The settings of Redis that jobs depend on, as labels.
const (
	settingEviction    = "maxmemory_policy"
	settingPersistence = "appendonly"
	settingFsync       = "appendfsync"
	settingVersion     = "version"
)

// Figures of Redis that are looked at with its settings.
const (
	figureReplicas = "delaybridge_redis_replicas"
	figureUsed     = "delaybridge_redis_memory_used_bytes"
	figureLimit    = "delaybridge_redis_memory_limit_bytes"
	figureEvicted  = "delaybridge_redis_evicted_keys"
)

// newRedisMetrics registers them; store is where Redis is as soon as it was
// reached.
func newRedisMetrics(reg prometheus.Registerer, store *atomic.Pointer[redisdelay.Store]) (*redisMetrics, error) {
	seconds := prometheus.NewHistogramVec(histogram("delaybridge_redis_call_seconds",
		"Time of one call of Redis by call: a script, on one or several shards; probe, owners (keys for people), count.",
		.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, 1, 5), []string{"call"})
	errors := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "delaybridge_redis_call_errors_total",
		Help: "Calls of Redis that failed, by call; most are tried again."}, []string{"call"})
	m := &redisMetrics{seconds: map[string]prometheus.Observer{}, errors: map[string]prometheus.Counter{}, figures: map[string]prometheus.Gauge{}}
	for _, call := range redisdelay.CallNames() {
		m.seconds[call], m.errors[call] = seconds.WithLabelValues(call), errors.WithLabelValues(call)
	}
	offset := gauge("delaybridge_redis_clock_offset_seconds", "How far Redis' clock is ahead of this bridge's; jobs are due by Redis' clock.", nil, func() float64 {
		if s := store.Load(); s != nil {
			return s.ClockOffset().Seconds()
		}
		return 0
	})
	return m, register(reg, append(m.settings(), seconds, errors, offset)...)
}

// settings makes the metrics about how Redis is set up.
func (m *redisMetrics) settings() []prometheus.Collector {
	m.unsafe = prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "delaybridge_redis_setting_unsafe",
		Help: "1 for a setting of Redis with which jobs can be lost: maxmemory_policy (keys may be evicted), appendonly (off), appendfsync (no), version (too old)."}, []string{"setting"})
	for _, s := range []string{settingEviction, settingPersistence, settingFsync, settingVersion} {
		m.unsafe.WithLabelValues(s)
	}
	m.checked = prometheus.NewGauge(prometheus.GaugeOpts{Name: "delaybridge_redis_checked_timestamp_seconds", Help: "When the settings of Redis were looked at last, once a minute; 0: not yet."})
	cs := []prometheus.Collector{m.unsafe, m.checked}
	for name, help := range map[string]string{
		figureReplicas: "Replicas that are connected to Redis.",
		figureUsed:     "Memory that Redis uses.",
		figureLimit:    "maxmemory of Redis, 0: no limit.",
		figureEvicted:  "Keys of any kind that Redis has evicted since it started.",
	} {
		m.figures[name] = prometheus.NewGauge(prometheus.GaugeOpts{Name: name, Help: help})
		cs = append(cs, m.figures[name])
	}
	return cs
}

// onCall is told of each call.
func (m *redisMetrics) onCall(call string, took time.Duration, err error) {
	m.seconds[call].Observe(took.Seconds())
	if err != nil {
		m.errors[call].Inc()
	}
}

// report takes in what a check of Redis has found. An empty report means that
// nothing was read.
func (m *redisMetrics) report(r redisdelay.Report) {
	if r.Version == "" {
		return
	}
	m.checked.SetToCurrentTime()
	mark := func(setting string, unsafe bool) {
		v := 0.0
		if unsafe {
			v = 1
		}
		m.unsafe.WithLabelValues(setting).Set(v)
	}
	mark(settingEviction, r.MaxMemoryPolicy != "" && r.MaxMemoryPolicy != "noeviction")
	mark(settingPersistence, !r.AppendOnly)
	mark(settingFsync, r.AppendOnly && r.AppendFsync == "no")
	mark(settingVersion, r.TooOld())
	for name, v := range map[string]float64{
		figureReplicas: float64(r.Replicas), figureUsed: float64(r.UsedMemory), figureLimit: float64(r.MaxMemory), figureEvicted: float64(r.EvictedKeys),
	} {
		m.figures[name].Set(v)
	}
}
