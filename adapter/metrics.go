package adapter

import (
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"go.opentelemetry.io/otel/trace"

	"github.com/delaybridge/delaybridge/api"
	"github.com/delaybridge/delaybridge/job"
	"github.com/delaybridge/delaybridge/subjects"
)

// metrics are what the bridge counts, stage by stage of a job's way; what it looks
// up instead is in gauges.go. Neither ids nor targets are labels. Every series is
// there, at zero, from the start: a rate needs the value before the first event.
type metrics struct {
	intake      *prometheus.CounterVec // result
	settlements *prometheus.CounterVec // outcome, result
	published   prometheus.Counter
	unpublished *prometheus.CounterVec // reason
	expired     prometheus.Counter
	refusedAcks prometheus.Counter
	storeErrors *prometheus.CounterVec // call
	pruned      prometheus.Counter
	lateness    lateness               // due to published
	owned       lateness               // due to owned by a worker
	fallbacks   *prometheus.CounterVec // service, status
	recovery    lateness               // of this service
	modes       *prometheus.GaugeVec   // mode
	recoveries  *prometheus.CounterVec // reason
	refusals    *prometheus.CounterVec // kind
	events      *prometheus.CounterVec // event
	dataLosses  prometheus.Counter
	counts      countGauges

	service           string
	stored, duplicate prometheus.Counter // intake, by result, at hand
	settles           [len(outcomeNames)][len(resultNames)]prometheus.Counter
}

func newMetrics(cfg *Config) (*metrics, error) {
	m := &metrics{service: cfg.Service}
	all := slices.Concat(m.intakeStage(), m.publishStage(), m.settleStage(), m.degradation(cfg), m.workers(), m.notices(), m.counts.init())
	return m, register(cfg.Registerer, all)
}

func register(reg prometheus.Registerer, cs []prometheus.Collector) error {
	for _, c := range cs {
		if err := reg.Register(c); err != nil {
			return err
		}
	}
	return nil
}

func counter(name, help string) prometheus.Counter {
	return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
}

// counters makes a counter per value of a label.
func counters(name, help, label string, values ...string) *prometheus.CounterVec {
	v := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, []string{label})
	for _, value := range values {
		v.WithLabelValues(value)
	}
	return v
}

// intakeStage makes the metrics about what producers publish.
func (m *metrics) intakeStage() []prometheus.Collector {
	results := []string{"stored", "duplicate"}
	for _, e := range []*job.Error{job.ErrSchedule, job.ErrTarget, job.ErrForbidden, job.ErrHeader, job.ErrTooLarge, job.ErrConflict, job.ErrFull, job.ErrUnavailable} {
		results = append(results, strconv.Itoa(e.ErrCode))
	}
	m.intake = counters("delaybridge_intake_messages_total",
		"Messages on the intake subjects by result: stored, duplicate, or the err_code of the refusal.", "result", results...)
	m.stored, m.duplicate = m.intake.WithLabelValues("stored"), m.intake.WithLabelValues("duplicate")
	m.storeErrors = counters("delaybridge_store_errors_total", "Failed calls of the store by call.", "call",
		"put", "claim", "settle", "expired", "get", "list waiting targets", "prune", "count")
	return []prometheus.Collector{m.intake, m.storeErrors}
}

// Why a delivery was not published.
const (
	unpublishedTooLarge    = "too_large"
	unpublishedTarget      = "forbidden_target"
	unpublishedHeader      = "bad_header"
	unpublishedConnection  = "connection"
	unpublishedUnconfirmed = "unconfirmed"
)

// publishStage makes the metrics about deliveries on their way to workers.
func (m *metrics) publishStage() []prometheus.Collector {
	m.published = counter("delaybridge_published_total", "Deliveries published to their targets or workers, further attempts included.")
	m.unpublished = counters("delaybridge_publish_failures_total",
		"Deliveries that were not published, by reason: too_large, forbidden_target and bad_header (the job is dead), connection (it stays due), unconfirmed (it may have been published, and is tried again).",
		"reason", unpublishedTooLarge, unpublishedTarget, unpublishedHeader, unpublishedConnection, unpublishedUnconfirmed)
	m.lateness = newLateness("delaybridge_lateness_seconds", "Publish minus the time the attempt was due.", latenessBuckets)
	m.owned = newLateness("delaybridge_owned_lateness_seconds",
		"The time from when a worker owns the job, by directed dispatch or a claim, minus the time the attempt was due.", latenessBuckets)
	return []prometheus.Collector{m.published, m.unpublished, m.lateness, m.owned}
}

// settleStage makes the metrics about how deliveries end.
func (m *metrics) settleStage() []prometheus.Collector {
	m.settlements = prometheus.NewCounterVec(prometheus.CounterOpts{Name: "delaybridge_settlements_total",
		Help: "Settlements by outcome (complete, retry, release, set_aside, bury, extend, own) and result (settled, repeated, stale, unknown, taken, unreachable)."}, []string{"outcome", "result"})
	for o, outcome := range outcomeNames {
		for r, result := range resultNames {
			m.settles[o][r] = m.settlements.WithLabelValues(outcome, result)
		}
	}
	m.expired = counter("delaybridge_leases_expired_total", "Deliveries whose lease ran out without a settlement.")
	m.refusedAcks = counter("delaybridge_acknowledgements_refused_total", "Acknowledgements that could not be read.")
	m.pruned = counter("delaybridge_dead_jobs_removed_total", "Dead jobs removed because they were older than dead.max_age.")
	return []prometheus.Collector{m.settlements, m.expired, m.refusedAcks, m.pruned}
}

// workers makes the metrics about workers that own their jobs.
func (m *metrics) workers() []prometheus.Collector {
	m.recoveries = counters("delaybridge_jobs_recovered_total",
		"Jobs taken from a worker and given to others, by reason: disconnected, no_heartbeat, absent (it did not have them).",
		"reason", reasonDisconnected, reasonNoHeartbeat, reasonAbsent)
	m.refusals = counters("delaybridge_worker_messages_refused_total",
		"Messages of workers that could not be read, by kind: hb (heartbeats), bye (farewells).",
		"kind", subjects.KindHeartbeat, subjects.KindBye)
	return []prometheus.Collector{m.recoveries, m.refusals}
}

// The reasons why jobs are taken from a worker.
const (
	reasonDisconnected = "disconnected"
	reasonNoHeartbeat  = "no_heartbeat"
	reasonAbsent       = "absent"
)

// degradation makes the metrics about the loss of the shared store.
func (m *metrics) degradation(cfg *Config) []prometheus.Collector {
	m.fallbacks = prometheus.NewCounterVec(prometheus.CounterOpts{Name: "circuit_breaker_fallback_invocations_total",
		Help: "Jobs that this bridge's disk was to take in place of Redis, by status: triggered (Redis did not confirm them), spilled (intake overload), rejected (the disk was full or failed)."},
		[]string{"service", "status"})
	for _, status := range []string{"triggered", "spilled", "rejected"} {
		m.fallback(status, 0)
	}
	recovery := prometheus.NewHistogramVec(histogramOpts("recovery_latency_seconds",
		"Per job that was on this bridge's disk: delivery minus due, or its return to Redis minus the first sign of life.",
		[]float64{.001, .005, .01, .025, .05, .1, .25, .5, 1, 2, 5, 10, 30, 60, 300}), []string{"service"})
	m.recovery = lateness{recovery.WithLabelValues(cfg.Service).(prometheus.Histogram), new(atomic.Int64)}
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

// notices makes the metrics about what operators are told.
func (m *metrics) notices() []prometheus.Collector {
	m.events = counters("delaybridge_events_total", "Events by name; docs/events.md.", "event", eventNames...)
	m.dataLosses = counter("delaybridge_data_losses_total", "Times that Redis was found to have lost data.")
	return []prometheus.Collector{m.events, m.dataLosses}
}

func (m *metrics) recovered(reason string, jobs int) {
	m.recoveries.WithLabelValues(reason).Add(float64(jobs))
}

func (m *metrics) workerRefused(kind string) { m.refusals.WithLabelValues(kind).Inc() }

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

func (m *metrics) notPublished(reason string, jobs int) {
	m.unpublished.WithLabelValues(reason).Add(float64(jobs))
}

// fired counts a publish.
func (m *metrics) fired(f *flight, late time.Duration, of trace.SpanContext) {
	m.published.Inc()
	m.lateness.observe(late, of)
	if f.direct { // to the worker that owns the job
		m.owned.observe(late, of)
	}
	if f.Fallback {
		m.recovery.observe(late, of)
	}
}

var (
	outcomeNames = [...]string{job.Complete: "complete", job.Retry: "retry", job.Release: "release", job.SetAside: "set_aside", job.Bury: "bury", job.Extend: "extend", job.Own: "own"}
	resultNames  = [...]string{job.Settled: "settled", job.Repeated: "repeated", job.Stale: "stale", job.Unknown: "unknown", job.Taken: "taken", job.Unreachable: "unreachable"}
)

func (m *metrics) settled(o job.Outcome, r job.SettleResult) {
	m.settles[o][r].Inc()
}

// totals reads what was counted since the start.
func (m *metrics) totals() api.Totals {
	t := api.Totals{
		Stored: count(m.stored), Duplicate: count(m.duplicate), Published: count(m.published), Expired: count(m.expired),
		Completed: count(m.settles[job.Complete][job.Settled]), Retried: count(m.settles[job.Retry][job.Settled]), Buried: count(m.settles[job.Bury][job.Settled]),
	}
	t.Refused = sum(m.intake) - t.Stored - t.Duplicate
	return t
}

func count(c prometheus.Metric) uint64 {
	var d dto.Metric
	_ = c.Write(&d) // fails only for labels that are no UTF-8
	return uint64(d.GetCounter().GetValue())
}

func sum(v *prometheus.CounterVec) (n uint64) {
	ch := make(chan prometheus.Metric)
	go func() { defer close(ch); v.Collect(ch) }()
	for m := range ch {
		n += count(m)
	}
	return n
}
