package main

import (
	"context"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/delaybridge/delaybridge/job"
	"github.com/delaybridge/delaybridge/memdelay"
)

// TestLocalMetricsCountWhatLimitsDo: jobs of Redis that the disk delivers in its
// place do not count against the limits.
func TestLocalMetricsCountWhatLimitsDo(t *testing.T) {
	ctx := context.Background()
	reg := prometheus.NewRegistry()
	m, err := newStoreMetrics(reg)
	if err != nil {
		t.Fatal(err)
	}
	s := memdelay.New(memdelay.Options{Verdicts: true})
	if err := m.local(s); err != nil {
		t.Fatal(err)
	}
	adopted := job.Job{ID: "adopted", Incarnation: 7, Target: "orders.x", Due: job.At(time.Now().Add(time.Hour)), AckWait: time.Second, Payload: make([]byte, 10_000)}
	if err := s.Adopt(ctx, []job.Info{{Job: adopted, State: job.Pending, Next: adopted.Due}}); err != nil {
		t.Fatal(err)
	}
	own := adopted
	own.ID, own.Incarnation, own.Payload = "own", 0, make([]byte, 100)
	if _, err := s.Put(ctx, []job.Job{own}); err != nil {
		t.Fatal(err)
	}
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, f := range families {
		got[f.GetName()] = f.GetMetric()[0].GetGauge().GetValue()
	}
	if jobs, bytes := got["delaybridge_local_jobs"], got["delaybridge_local_bytes"]; jobs != 1 || bytes < 100 || bytes > 1000 {
		t.Errorf("%v jobs and %v bytes count, want the one that is the bridge's own", jobs, bytes)
	}
}
