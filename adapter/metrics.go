package adapter

import (
	"slices"
	"strconv"
	"time"

	"github.com/delaybridge/delaybridge/job"
	"github.com/delaybridge/delaybridge/subjects"
	"github.com/prometheus/client_golang/prometheus"
)

// metrics are what the bridge counts. Neither ids nor targets are labels.
type metrics struct {
	intake      *prometheus.CounterVec // result
	settlements *prometheus.CounterVec // outcome, result
	published   prometheus.Counter
	expired     prometheus.Counter
	refusedAcks prometheus.Counter
	storeErrors *prometheus.CounterVec // call
	pruned      prometheus.Counter
	lateness    prometheus.Histogram
	fallbacks   *prometheus.CounterVec // service, status
	recovery    prometheus.Observer    // of this service
	modes       *prometheus.GaugeVec   // mode
	recoveries  *prometheus.CounterVec // reason
	refusals    *prometheus.CounterVec // kind

	service           string
	stored, duplicate prometheus.Counter // intake, by result, at hand
	settles           [len(outcomeNames)][len(resultNames)]prometheus.Counter
}

func newMetrics(cfg *Config) (*metrics, error) {
	m := &metrics{
		intake: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "delaybridge_intake_messages_total",
			Help: "Messages on the intake subjects by result: stored, duplicate, or the err_code of the refusal."}, []string{"result"}),
		settlements: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "delaybridge_settlements_total",
			Help: "Settlements by outcome (complete, retry, release, set_aside, bury, extend, own) and result (settled, repeated, stale, unknown, taken, unreachable)."}, []string{"outcome", "result"}),
		published: prometheus.NewCounter(prometheus.CounterOpts{Name: "delaybridge_published_total",
			Help: "Deliveries published to their targets, further attempts included."}),
		expired: prometheus.NewCounter(prometheus.CounterOpts{Name: "delaybridge_leases_expired_total",
			Help: "Deliveries whose lease ran out without a settlement."}),
		refusedAcks: prometheus.NewCounter(prometheus.CounterOpts{Name: "delaybridge_acknowledgements_refused_total",
			Help: "Acknowledgements that could not be read."}),
		storeErrors: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "delaybridge_store_errors_total",
			Help: "Failed calls of the store by call."}, []string{"call"}),
		pruned: prometheus.NewCounter(prometheus.CounterOpts{Name: "delaybridge_dead_jobs_removed_total",
			Help: "Dead jobs removed because they were older than dead.max_age."}),
		lateness: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "delaybridge_lateness_seconds",
			Help:    "Publish minus the time the attempt was due.",
			Buckets: []float64{.0002, .0005, .001, .002, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 10, 60}}),
	}
	for o, outcome := range outcomeNames {
		for r, result := range resultNames {
			m.settles[o][r] = m.settlements.WithLabelValues(outcome, result)
		}
	}
	m.stored, m.duplicate = m.intake.WithLabelValues("stored"), m.intake.WithLabelValues("duplicate")
	cs := []prometheus.Collector{m.intake, m.settlements, m.published, m.expired, m.refusedAcks, m.storeErrors, m.pruned, m.lateness}
	for _, c := range slices.Concat(cs, m.degradation(cfg), m.workers()) {
		if err := cfg.Registerer.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// workers makes the metrics about workers that own their jobs. All exist from the
// start.
func (m *metrics) workers() []prometheus.Collector {
	m.recoveries = prometheus.NewCounterVec(prometheus.CounterOpts{Name: "delaybridge_jobs_recovered_total",
		Help: "Jobs taken from a worker and given to others, by reason: disconnected, no_heartbeat, absent (it did not have them)."}, []string{"reason"})
	for _, reason := range []string{reasonDisconnected, reasonNoHeartbeat, reasonAbsent} {
		m.recoveries.WithLabelValues(reason)
	}
	m.refusals = prometheus.NewCounterVec(prometheus.CounterOpts{Name: "delaybridge_worker_messages_refused_total",
		Help: "Messages of workers that could not be read, by kind: hb (heartbeats), bye (farewells)."}, []string{"kind"})
	for _, kind := range []string{subjects.KindHeartbeat, subjects.KindBye} {
		m.refusals.WithLabelValues(kind)
	}
	return []prometheus.Collector{m.recoveries, m.refusals}
}

// The reasons why jobs are taken from a worker.
const (
	reasonDisconnected = "disconnected"
	reasonNoHeartbeat  = "no_heartbeat"
	reasonAbsent       = "absent"
)

func (m *metrics) recovered(reason string, jobs int) {
	m.recoveries.WithLabelValues(reason).Add(float64(jobs))
}

func (m *metrics) workerRefused(kind string) { m.refusals.WithLabelValues(kind).Inc() }

// degradation makes the metrics about the loss of the shared store. All exist
// from the start.
func (m *metrics) degradation(cfg *Config) []prometheus.Collector {
	m.service = cfg.Service
	m.fallbacks = prometheus.NewCounterVec(prometheus.CounterOpts{Name: "circuit_breaker_fallback_invocations_total",
		Help: "Jobs that this bridge's disk was to take in place of Redis, by status: triggered (Redis did not confirm them), spilled (intake overload), rejected (the disk was full or failed)."},
		[]string{"service", "status"})
	for _, status := range []string{"triggered", "spilled", "rejected"} {
		m.fallback(status, 0)
	}
	recovery := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "recovery_latency_seconds",
		Help:    "Per job that was on this bridge's disk: delivery minus due, or its return to Redis minus the first sign of life.",
		Buckets: []float64{.001, .005, .01, .025, .05, .1, .25, .5, 1, 2, 5, 10, 30, 60, 300}}, []string{"service"})
	m.recovery = recovery.WithLabelValues(cfg.Service)
	m.modes = prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "delaybridge_mode",
		Help: "1 for the mode that the bridge is in (redis, local, migrating), 0 for the others; all 0 where there is one store only."}, []string{"mode"})
	for _, mode := range modes {
		m.modes.WithLabelValues(mode.String())
	}
	held := cfg.LocalJobs
	if held == nil {
		held = func() int { return 0 }
	}
	depth := prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "fallback_queue_depth",
		Help:        "Jobs that only this bridge's disk holds.",
		ConstLabels: prometheus.Labels{"service": cfg.Service, "instance": cfg.ID}}, func() float64 { return float64(held()) })
	return []prometheus.Collector{m.fallbacks, recovery, m.modes, depth}
}

var modes = []job.Mode{job.ModeRedis, job.ModeLocal, job.ModeMigrating}

// fallback counts jobs by what this bridge's disk had to do with them.
func (m *metrics) fallback(status string, jobs int) {
	m.fallbacks.WithLabelValues(m.service, status).Add(float64(jobs))
}

// mode notes the mode that the bridge is in.
func (m *metrics) mode(now job.Mode) {
	for _, mode := range modes {
		on := 0.0
		if mode == now {
			on = 1
		}
		m.modes.WithLabelValues(mode.String()).Set(on)
	}
}

func (m *metrics) accepted(duplicate bool) {
	if duplicate {
		m.duplicate.Inc()
		return
	}
	m.stored.Inc()
}

func (m *metrics) rejected(e *job.Error) { m.intake.WithLabelValues(strconv.Itoa(e.ErrCode)).Inc() }

func (m *metrics) ackRefused() { m.refusedAcks.Inc() }

func (m *metrics) fired(late time.Duration) {
	m.published.Inc()
	m.lateness.Observe(late.Seconds())
}

var (
	outcomeNames = [...]string{job.Complete: "complete", job.Retry: "retry", job.Release: "release", job.SetAside: "set_aside", job.Bury: "bury", job.Extend: "extend", job.Own: "own"}
	resultNames  = [...]string{job.Settled: "settled", job.Repeated: "repeated", job.Stale: "stale", job.Unknown: "unknown", job.Taken: "taken", job.Unreachable: "unreachable"}
)

func (m *metrics) settled(o job.Outcome, r job.SettleResult) {
	m.settles[o][r].Inc()
}
