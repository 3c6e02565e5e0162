package adapter_test

import (
	"context"
	"regexp"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"github.com/delaybridge/delaybridge/adapter"
	"github.com/delaybridge/delaybridge/job"
	"github.com/delaybridge/delaybridge/memdelay"
)

// measured runs a bridge whose metrics can be read.
func measured(t *testing.T, opts ...rigOption) (*rig, *prometheus.Registry) {
	t.Helper()
	reg := prometheus.NewRegistry()
	return newRig(t, append(opts, withConfig(func(c *adapter.Config) { c.Registerer = reg }))...), reg
}

// becomesMetric waits until a series has a value.
func becomesMetric(t *testing.T, reg *prometheus.Registry, want float64, name string, labels ...string) {
	t.Helper()
	var got float64
	defer func() {
		if got != want {
			t.Logf("%s %v is %v", name, labels, got)
		}
	}()
	eventually(t, name, func() bool {
		got, _ = metric(t, reg, name, labels...)
		return got == want
	})
}

// labelsAllowed are the labels with few values; none of them is an id or a target.
var labelsAllowed = []string{"result", "call", "reason", "outcome", "service", "status", "instance", "mode", "kind", "event", "state", "connection"}

func TestMetricsAreWellNamed(t *testing.T) {
	_, reg := measured(t)
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	problems, err := promlint.NewWithMetricFamilies(families).Lint()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
	name := regexp.MustCompile(`^(delaybridge_\w+|circuit_breaker_fallback_invocations_total|fallback_queue_depth|recovery_latency_seconds)$`)
	for _, f := range families {
		if !name.MatchString(f.GetName()) {
			t.Errorf("name %s", f.GetName())
		}
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				if !slices.Contains(labelsAllowed, l.GetName()) {
					t.Errorf("%s has the label %s", f.GetName(), l.GetName())
				}
			}
			if h := m.GetHistogram(); h != nil && (len(h.GetBucket()) == 0 || h.Schema == nil) {
				t.Errorf("%s lacks classic or native buckets", f.GetName())
			}
		}
	}
}

func TestEverySeriesIsThereFromTheStart(t *testing.T) {
	r, reg := measured(t)
	series := func() (n int) {
		families, err := reg.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range families {
			n += len(f.GetMetric())
		}
		return n
	}
	before := series()
	work, events := r.worker("t.x"), r.listen("delay.event.>")
	r.request("delay.in.soon.t.x", "not readable")
	if err := r.nc.Publish("delay.in.1s.bad..target", nil); err != nil {
		t.Fatal(err)
	}
	r.schedule("delay.in.0s.t.x", "p")
	m := receive(t, work)
	r.settle(m, "+WPI")
	r.settle(m, "+TERM")
	r.settle(m, "nonsense")
	receive(t, events)
	becomesMetric(t, reg, 1, "delaybridge_settlements_total", "outcome", "bury", "result", "settled")
	if after := series(); after != before {
		t.Errorf("%d series, %d before anything happened: rates lack their first event", after, before)
	}
}

// exemplars returns the trace ids in a histogram's buckets.
func exemplars(t *testing.T, reg *prometheus.Registry, name string) (ids []string) {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, b := range f.GetMetric()[0].GetHistogram().GetBucket() {
			for _, l := range b.GetExemplar().GetLabel() {
				ids = append(ids, l.GetName()+"="+l.GetValue())
			}
		}
	}
	return ids
}

func TestExemplars(t *testing.T) {
	const id = "4bf92f3577b34da6a3ce929d0e0e4736"
	r, reg := measured(t)
	work := r.worker("t.x")
	r.schedule("delay.in.0s.t.x", "not recorded", "traceparent", "00-"+id+"-00f067aa0ba902b7-00")
	r.done(receive(t, work))
	if ids := exemplars(t, reg, "delaybridge_lateness_seconds"); ids != nil {
		t.Errorf("exemplars %v of a trace that is not recorded", ids)
	}
	r.schedule("delay.in.0s.t.x", "recorded", "Traceparent", "00-"+id+"-00f067aa0ba902b7-01")
	r.done(receive(t, work))
	eventually(t, "exemplar", func() bool {
		return slices.Equal(exemplars(t, reg, "delaybridge_lateness_seconds"), []string{"trace_id=" + id})
	})
}

// fallbackStore claims as a store does that works from this bridge's disk.
type fallbackStore struct{ job.Store }

func (s fallbackStore) Claim(ctx context.Context, r job.ClaimRequest) (job.Claimed, error) {
	c, err := s.Store.Claim(ctx, r)
	for i := range c.Deliveries {
		c.Deliveries[i].Fallback = true
	}
	return c, err
}

// TestRecoveryLatencyIsThatOfTheDelivery: a job that is claimed and not delivered has
// none.
func TestRecoveryLatencyIsThatOfTheDelivery(t *testing.T) {
	const id = "4bf92f3577b34da6a3ce929d0e0e4736"
	r, reg := measured(t, withStore(fallbackStore{memdelay.New(memdelay.Options{})}), withConfig(func(c *adapter.Config) { c.Service = "s" }))
	work, dead := r.worker("t.x"), r.listen("delay.event.dead")
	r.schedule("delay.in.0s.t.x", "expired", "Delay-Expires", "1ns")
	receive(t, dead)
	if n, ok := metric(t, reg, "recovery_latency_seconds", "service", "s"); n != 0 || !ok {
		t.Errorf("%v observations before a delivery", n)
	}
	r.schedule("delay.in.0s.t.x", "now", "traceparent", "00-"+id+"-00f067aa0ba902b7-01")
	r.done(receive(t, work))
	becomesMetric(t, reg, 1, "recovery_latency_seconds", "service", "s")
	if ids := exemplars(t, reg, "recovery_latency_seconds"); !slices.Equal(ids, []string{"trace_id=" + id}) {
		t.Errorf("exemplars: %v", ids)
	}
}

func TestJobsAreCounted(t *testing.T) {
	store := memdelay.New(memdelay.Options{})
	jobs := make([]job.Job, 3)
	for i := range jobs {
		jobs[i] = job.Job{Target: "t.x", Due: job.Time(time.Now().Add(time.Hour).UnixMicro()), AckWait: time.Second}
	}
	if _, err := store.Put(context.Background(), jobs); err != nil {
		t.Fatal(err)
	}
	_, reg := measured(t, withStore(store))
	becomesMetric(t, reg, 3, "delaybridge_pending_jobs")
	if at, _ := metric(t, reg, "delaybridge_jobs_counted_timestamp_seconds"); time.Since(time.Unix(int64(at), 0)).Abs() > time.Minute {
		t.Errorf("counted at %v", at)
	}
}

// uncountable is a store that cannot count its jobs.
type uncountable struct{ job.Store }

func (uncountable) Count(context.Context) (job.Counts, error) {
	return job.Counts{}, job.ErrUnavailable
}

func TestJobsThatCannotBeCounted(t *testing.T) {
	_, reg := measured(t, withStore(uncountable{memdelay.New(memdelay.Options{})}))
	becomesMetric(t, reg, 1, "delaybridge_store_errors_total", "call", "count")
	if at, _ := metric(t, reg, "delaybridge_jobs_counted_timestamp_seconds"); at != 0 {
		t.Errorf("counted at %v", at)
	}
}

func TestGaugesOfDispatch(t *testing.T) {
	r, reg := measured(t, withConfig(fast))
	r.schedule("delay.in.0s.nobody.x", "p")
	becomesMetric(t, reg, 1, "delaybridge_lanes", "state", "parked")
	w := r.owner("w1", 2, "t.x")
	w.beat()
	becomesMetric(t, reg, 1, "delaybridge_workers", "state", "live")
	if n, _ := metric(t, reg, "delaybridge_worker_free_slots"); n != 2 {
		t.Errorf("%v slots free", n)
	}
	r.schedule("delay.in.0s.t.x", "p")
	m := receive(t, w.jobs)
	becomesMetric(t, reg, 1, "delaybridge_worker_free_slots")
	becomesMetric(t, reg, 1, "delaybridge_owned_lateness_seconds")
	if n, _ := metric(t, reg, "delaybridge_in_flight_deliveries"); n < 1 {
		t.Errorf("%v in flight", n)
	}
	w.say("bye", tokens(m), nil)
	becomesMetric(t, reg, 1, "delaybridge_workers", "state", "leaving")
	for name, want := range map[string]float64{"delaybridge_intake_queue_limit": 1 << 16, "delaybridge_intake_queue_messages": 0, "delaybridge_intake_overloaded": 0} {
		if n, ok := metric(t, reg, name); !ok || n != want {
			t.Errorf("%s is %v", name, n)
		}
	}
	if n, _ := metric(t, reg, "delaybridge_nats_connected", "connection", "dispatch"); n != 1 {
		t.Errorf("connected: %v", n)
	}
}

func TestClaimedJobsCountAsOwned(t *testing.T) {
	r, reg := measured(t, withConfig(fast))
	work := r.worker("t.x")
	r.schedule("delay.in.0s.t.x", "p")
	m := receive(t, work)
	for range 2 { // repeated, it counts once
		r.settle(m, `+CLAIM {"worker":"w1"}`)
	}
	if n, _ := metric(t, reg, "delaybridge_owned_lateness_seconds"); n != 1 {
		t.Errorf("%v claims", n)
	}
}
