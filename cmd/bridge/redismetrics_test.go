package main

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	"github.com/redis/go-redis/v9"

	"github.com/delaybridge/delaybridge/internal/testredis"
	"github.com/delaybridge/delaybridge/job"
)

// gathered returns the value of a series, the number of observations of a histogram.
func gathered(t *testing.T, reg *prometheus.Registry, name, value string) float64 {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == name && (value == "" || m.GetLabel()[0].GetValue() == value) {
				return m.GetGauge().GetValue() + m.GetCounter().GetValue() + float64(m.GetHistogram().GetSampleCount())
			}
		}
	}
	t.Fatalf("no series %s %s", name, value)
	return 0
}

func TestMetricsOfRedis(t *testing.T) {
	t.Parallel()
	server, reg := testredis.Start(t), prometheus.NewRegistry()
	c := &config{store: storeRedis, redisURL: server.URL(), redisShards: 1, dedupWindow: time.Minute, dataDir: t.TempDir()}
	c.bridge.ID, c.bridge.Prefix = "b1", "delay"
	if err := registerBuild(reg, c); err != nil {
		t.Fatal(err)
	}
	store, err := openStore(t.Context(), c, slog.New(slog.DiscardHandler), reg)
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	client := redis.NewClient(&redis.Options{Addr: server.Addr()})
	defer client.Close()
	for _, policy := range []string{"allkeys-lru", "noeviction"} {
		if err := client.ConfigSet(t.Context(), "maxmemory-policy", policy).Err(); err != nil {
			t.Fatal(err)
		}
		store.check(t.Context(), slog.New(slog.DiscardHandler))
		want := 0.0
		if policy != "noeviction" {
			want = 1
		}
		if got := gathered(t, reg, "delaybridge_redis_setting_unsafe", settingEviction); got != want {
			t.Errorf("%s: unsafe %v", policy, got)
		}
	}
	if at := gathered(t, reg, "delaybridge_redis_checked_timestamp_seconds", ""); time.Since(time.Unix(int64(at), 0)) > time.Minute {
		t.Errorf("checked at %v", at)
	}
	if used := gathered(t, reg, figureUsed, ""); used <= 0 {
		t.Errorf("%v bytes used", used)
	}
	if _, err := store.Put(t.Context(), []job.Job{{Target: "t.x", Due: job.At(time.Now().Add(time.Hour)), AckWait: time.Second}}); err != nil {
		t.Fatal(err)
	}
	if n := gathered(t, reg, "delaybridge_redis_call_seconds", "ingest"); n != 1 {
		t.Errorf("%v calls of ingest", n)
	}
	server.Kill()
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	_ = store.redis.Load().Probe(ctx) // it fails, which is counted
	if n := gathered(t, reg, "delaybridge_redis_call_errors_total", "probe"); n != 1 {
		t.Errorf("%v probes failed", n)
	}
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	problems, err := promlint.NewWithMetricFamilies(families).Lint()
	if err != nil || len(problems) > 0 {
		t.Errorf("problems %v, %v", problems, err)
	}
}
