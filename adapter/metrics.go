package adapter

import (
	"strconv"
	"time"

	"github.com/delaybridge/delaybridge/job"
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

	stored, duplicate prometheus.Counter // intake, by result, at hand
	settles           [len(outcomeNames)][len(resultNames)]prometheus.Counter
}

func newMetrics(reg prometheus.Registerer) (*metrics, error) {
	m := &metrics{
		intake: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "delaybridge_intake_messages_total",
			Help: "Messages on the intake subjects by result: stored, duplicate, or the err_code of the refusal."}, []string{"result"}),
		settlements: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "delaybridge_settlements_total",
			Help: "Settlements by outcome (complete, retry, release, set_aside, bury, extend) and result (settled, repeated, stale, unknown)."}, []string{"outcome", "result"}),
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
	for _, c := range []prometheus.Collector{m.intake, m.settlements, m.published, m.expired, m.refusedAcks, m.storeErrors, m.pruned, m.lateness} {
		if err := reg.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
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
	outcomeNames = [...]string{job.Complete: "complete", job.Retry: "retry", job.Release: "release", job.SetAside: "set_aside", job.Bury: "bury", job.Extend: "extend"}
	resultNames  = [...]string{job.Settled: "settled", job.Repeated: "repeated", job.Stale: "stale", job.Unknown: "unknown"}
)

func (m *metrics) settled(o job.Outcome, r job.SettleResult) {
	m.settles[o][r].Inc()
}
