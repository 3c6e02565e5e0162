package main

import (
	"context"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/delaybridge/delaybridge/internal/testnats"
	"github.com/delaybridge/delaybridge/internal/testredis"
	"github.com/delaybridge/delaybridge/workers"
)

// TestOwnerKeys sees in Redis who owns a job, for as long as the keys say.
func TestOwnerKeys(t *testing.T) {
	t.Parallel()
	srv, server := testnats.Start(t), testredis.Start(t)
	start(t, "serve", "--nats-url", srv.URL(), "--redis-url", server.URL(), "--id", "one", "--http-addr", "off", "--data-dir", t.TempDir(),
		"--workers-task-ttl", "50s", "--workers-heartbeat-ttl", "20s").ready()
	opts, err := redis.ParseURL(server.URL())
	if err != nil {
		t.Fatal(err)
	}
	rdb := redis.NewClient(opts)
	defer rdb.Close()
	nc, _ := worker(t, srv.URL(), "unused")
	finish := make(chan struct{})
	w, err := workers.New(nc, workers.Config{Name: "w1", Subjects: []string{"orders.x"}}, func(context.Context, *workers.Job) error {
		<-finish
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- w.Run(ctx) }()
	put(t, srv.URL(), "--id", "a", "orders.x", "x")
	for key, ttl := range map[string]time.Duration{"delay:worker:{w1}:task": 50 * time.Second, "delay:task:{a}:workerId": 50 * time.Second, "delay:worker:{w1}:hb": 20 * time.Second} {
		awaitTTL(t, rdb, key, ttl-10*time.Second, ttl)
	}
	if owner, err := rdb.Get(t.Context(), "delay:task:{a}:workerId").Result(); err != nil || owner != "w1" {
		t.Errorf("owner %q, %v, want w1", owner, err)
	}
	close(finish)
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	const gone = -2 // how Redis says that there is no such key
	for _, key := range []string{"delay:worker:{w1}:task", "delay:task:{a}:workerId", "delay:worker:{w1}:hb"} {
		awaitTTL(t, rdb, key, gone, gone)
	}
}

// awaitTTL returns when key has between low and high to live.
func awaitTTL(t *testing.T, rdb *redis.Client, key string, low, high time.Duration) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for {
		ttl, err := rdb.TTL(ctx, key).Result()
		if err == nil && low <= ttl && ttl <= high {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("%s has %v to live, %v, want %v to %v", key, ttl, err, low, high)
		case <-time.After(10 * time.Millisecond):
		}
	}
}
