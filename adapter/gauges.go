package adapter

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/delaybridge/delaybridge/job"
)

// countPeriod is how often the jobs in the store are counted. A scrape does not
// count them: scrapes may be many, and must not wait for a store.
const countPeriod = 5 * time.Second

// countGauges say how many jobs the store held when they were counted last, and
// when that was.
type countGauges struct {
	pending, aside, running, dead prometheus.Gauge
	at                            prometheus.Gauge
}

func (g *countGauges) init() []prometheus.Collector {
	g.pending = gauge("delaybridge_pending_jobs", "Jobs that wait, those set aside included; counted every 5 s, see delaybridge_jobs_counted_timestamp_seconds.")
	g.aside = gauge("delaybridge_set_aside_jobs", "Jobs that are due and wait because their targets take nothing now.")
	g.running = gauge("delaybridge_running_jobs", "Jobs under a lease.")
	g.dead = gauge("delaybridge_dead_jobs", "Jobs in the dead-letter set.")
	g.at = gauge("delaybridge_jobs_counted_timestamp_seconds", "When the jobs were counted last, 0: not yet. While the store cannot be reached the numbers are those of then.")
	return []prometheus.Collector{g.pending, g.aside, g.running, g.dead, g.at}
}

func gauge(name, help string) prometheus.Gauge {
	return prometheus.NewGauge(prometheus.GaugeOpts{Name: name, Help: help})
}

func (g *countGauges) set(c job.Counts, at time.Time) {
	g.pending.Set(float64(c.Pending))
	g.aside.Set(float64(c.Aside))
	g.running.Set(float64(c.Running))
	g.dead.Set(float64(c.Dead))
	g.at.Set(float64(at.UnixMilli()) / 1e3)
}

// countLoop counts the jobs in the store, until ctx is done.
func (b *Bridge) countLoop(ctx context.Context) {
	tick := time.NewTicker(countPeriod)
	defer tick.Stop()
	for {
		b.countOnce(ctx)
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// countOnce counts what is there, unless most of it cannot be reached: then the
// numbers stay, and the time of the count shows that.
func (b *Bridge) countOnce(ctx context.Context) {
	if s := b.exchange.store; s != nil && s.Mode() == job.ModeLocal {
		return
	}
	call, cancel := context.WithTimeout(ctx, b.cfg.StoreTimeout)
	defer cancel()
	n, err := b.store.Count(call)
	switch {
	case err == nil:
		b.metrics.counts.set(n, b.cfg.Now())
	case ctx.Err() == nil:
		b.storeFailed("count", err)
	}
}

// survey is what the dispatcher is busy with.
type survey struct {
	inFlight, claimed             int
	open, waiting, parked, paused int // lanes
	live, suspect, leaving        int // workers
	slots, freeSlots              int
}

// survey looks at everything once: at the lanes whose jobs are set aside, and at
// the workers.
func (d *dispatcher) survey() (s survey) {
	d.mu.Lock()
	defer d.mu.Unlock()
	s.inFlight, s.claimed = len(d.flights), d.claimed
	for _, l := range d.blocked {
		switch {
		case l.paused:
			s.paused++
		case l.parked != notParked:
			s.parked++
		case l.busyAside():
			s.waiting++
		}
	}
	s.open = len(d.lanes) - s.paused - s.parked - s.waiting
	for _, w := range d.workers {
		switch {
		case w.leaving:
			s.leaving++
		case w.suspect != 0:
			s.suspect++
		default:
			s.live++
		}
		if w.takes() {
			s.slots += w.capacity
			s.freeSlots += w.free()
		}
	}
	return s
}

// bridgeGauges are read from a bridge when they are asked for; all of them are in
// its memory.
type bridgeGauges struct {
	b *Bridge

	inFlight, claimed, lanes, workers, slots, freeSlots *prometheus.Desc
	queue, queueLimit, overloaded                       *prometheus.Desc
	paused, peers, isolated                             *prometheus.Desc
	connected, reconnects                               *prometheus.Desc
}

func newBridgeGauges(b *Bridge) *bridgeGauges {
	desc := prometheus.NewDesc
	return &bridgeGauges{
		b:          b,
		inFlight:   desc("delaybridge_in_flight_deliveries", "Leases that this bridge holds: deliveries that are published and not settled, or about to be published.", nil, nil),
		claimed:    desc("delaybridge_claimed_jobs", "Those of them that are not published yet: they are due soon, or wait for room.", nil, nil),
		lanes:      desc("delaybridge_lanes", "Targets that this bridge has to do with, by state: open, waiting (for room, or for slots of workers), parked (nobody takes their jobs), paused.", []string{"state"}, nil),
		workers:    desc("delaybridge_workers", "Workers that own their jobs, by state: live, suspect (pings do not reach them), leaving.", []string{"state"}, nil),
		slots:      desc("delaybridge_worker_slots", "Jobs that these workers take at once.", nil, nil),
		freeSlots:  desc("delaybridge_worker_free_slots", "Jobs that they would take now.", nil, nil),
		queue:      desc("delaybridge_intake_queue_messages", "Messages that wait to be stored.", nil, nil),
		queueLimit: desc("delaybridge_intake_queue_limit", "intake.queue: how many may wait.", nil, nil),
		overloaded: desc("delaybridge_intake_overloaded", "1 while more arrives than the store takes, so that messages go to this bridge's disk or are refused.", nil, nil),
		paused:     desc("delaybridge_paused_patterns", "Targets and patterns that are paused.", nil, nil),
		peers:      desc("delaybridge_peers", "Other live bridges that share the store.", nil, nil),
		isolated:   desc("delaybridge_isolated", "1 while this bridge alone has lost Redis, so that its peers take the jobs in.", nil, nil),
		connected:  desc("delaybridge_nats_connected", "1 while the connection to NATS stands.", []string{"connection"}, nil),
		reconnects: desc("delaybridge_nats_reconnects_total", "How often the connection to NATS was made anew.", []string{"connection"}, nil),
	}
}

// Describe implements prometheus.Collector.
func (g *bridgeGauges) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{g.inFlight, g.claimed, g.lanes, g.workers, g.slots, g.freeSlots, g.queue, g.queueLimit, g.overloaded,
		g.paused, g.peers, g.isolated, g.connected, g.reconnects} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (g *bridgeGauges) Collect(ch chan<- prometheus.Metric) {
	set := func(d *prometheus.Desc, v int, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(v), labels...)
	}
	b, s := g.b, g.b.disp.survey()
	set(g.inFlight, s.inFlight)
	set(g.claimed, s.claimed)
	set(g.lanes, s.open, "open")
	set(g.lanes, s.waiting, "waiting")
	set(g.lanes, s.parked, "parked")
	set(g.lanes, s.paused, "paused")
	set(g.workers, s.live, "live")
	set(g.workers, s.suspect, "suspect")
	set(g.workers, s.leaving, "leaving")
	set(g.slots, s.slots)
	set(g.freeSlots, s.freeSlots)
	set(g.queue, len(b.intake.msgs))
	set(g.queueLimit, cap(b.intake.msgs))
	set(g.overloaded, bit(b.intake.overloaded.Load()))
	set(g.paused, len(b.Paused()))
	set(g.peers, len(b.exchange.peers.live(time.Now())))
	set(g.isolated, bit(b.exchange.isolated.Load()))
	set(g.connected, bit(b.in.IsConnected()), "intake")
	set(g.connected, bit(b.out.IsConnected()), "dispatch")
	ch <- prometheus.MustNewConstMetric(g.reconnects, prometheus.CounterValue, float64(b.in.Stats().Reconnects), "intake")
	ch <- prometheus.MustNewConstMetric(g.reconnects, prometheus.CounterValue, float64(b.out.Stats().Reconnects), "dispatch")
}

func bit(b bool) int {
	if b {
		return 1
	}
	return 0
}
