package adapter

import (
	"context"
	"testing"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/delaybridge/delaybridge/job"
)

// BenchmarkMetricsOfAJob is all that is counted of one job on its way through a
// bridge; compare it with what a job costs in all.
func BenchmarkMetricsOfAJob(b *testing.B) {
	traced := trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{1}, SpanID: trace.SpanID{1}, TraceFlags: trace.FlagsSampled})
	for name, of := range map[string]trace.SpanContext{"plain": {}, "traced, owned": traced} {
		b.Run(name, func(b *testing.B) {
			cfg := Config{ID: "b1"}.withDefaults()
			m, err := newMetrics(&cfg)
			if err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			f := &flight{direct: of.IsValid()}
			late := time.Duration(0)
			for b.Loop() {
				late = (late + 37*time.Microsecond) % (20 * time.Millisecond)
				m.accepted(false)
				m.fired(f, late, of)
				m.settled(job.Complete, job.Settled)
			}
		})
	}
}

// TestMetricsAllocateNothing: not for a job without a trace.
func TestMetricsAllocateNothing(t *testing.T) {
	cfg := Config{ID: "b1"}.withDefaults()
	m, err := newMetrics(&cfg)
	if err != nil {
		t.Fatal(err)
	}
	f := &flight{direct: true, Delivery: job.Delivery{Fallback: true}}
	if n := testing.AllocsPerRun(100, func() {
		m.accepted(false)
		m.fired(f, time.Millisecond, trace.SpanContext{})
		m.settled(job.Complete, job.Settled)
	}); n != 0 {
		t.Errorf("%v allocations per job", n)
	}
}

// TestSurvey counts each target and each worker once.
func TestSurvey(t *testing.T) {
	d := newTestDispatcher(t)
	d.testBeat("w1", 4, "owned.x")
	d.waitingTargets([]string{"paused.x", "parked.x", "waiting.x"})
	d.lane("open.x")
	d.lane("owned.x")
	d.lanes["paused.x"].paused = true
	d.lanes["paused.x"].parked, d.lanes["parked.x"].parked = noResponders, noPermission
	d.workers["w1"].suspect = 1
	if s, want := d.survey(), (survey{open: 2, waiting: 1, parked: 1, paused: 1, suspect: 1, slots: 4}); s != want {
		t.Errorf("%+v, want %+v", s, want)
	}
}

// turningStore counts how often its jobs are counted.
type turningStore struct {
	job.Store
	mode  job.Mode
	times int
}

func (s *turningStore) Mode() job.Mode { return s.mode }
func (s *turningStore) ProbeSoon()     {}
func (s *turningStore) Count(context.Context) (job.Counts, error) {
	s.times++
	return job.Counts{Pending: 7}, nil
}

// TestJobsAreNotCountedWithoutRedis: that most of them cannot be reached is known,
// and no failure.
func TestJobsAreNotCountedWithoutRedis(t *testing.T) {
	cfg := Config{ID: "b1"}.withDefaults()
	m, err := newMetrics(&cfg)
	if err != nil {
		t.Fatal(err)
	}
	s := &turningStore{mode: job.ModeLocal}
	b := &Bridge{cfg: cfg, store: s, metrics: m, exchange: &exchange{store: s}}
	b.countOnce(t.Context())
	if s.times != 0 {
		t.Error("counted in local mode")
	}
	s.mode = job.ModeMigrating
	if b.countOnce(t.Context()); s.times != 1 {
		t.Error("not counted while Redis is there")
	}
}
