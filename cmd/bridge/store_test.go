package main

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"

	"github.com/delaybridge/delaybridge/internal/testredis"
)

// syncBuffer is a log that is read while it is written.
type syncBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
	hit chan struct{}
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	select {
	case b.hit <- struct{}{}:
	default:
	}
	return b.buf.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// TestWatchTellsOfEviction lets Redis evict keys while the bridge runs.
func TestWatchTellsOfEviction(t *testing.T) {
	server := testredis.Start(t)
	out := &syncBuffer{hit: make(chan struct{}, 1)}
	log := slog.New(slog.NewTextHandler(out, nil))
	c := &config{store: storeRedis, redisURL: server.URL(), redisShards: 1, dedupWindow: time.Minute, dataDir: t.TempDir()}
	c.bridge.ID, c.bridge.Prefix = "b1", "delay"
	store, err := openStore(t.Context(), c, log, prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	client := redis.NewClient(&redis.Options{Addr: server.Addr()})
	defer client.Close()
	if err := client.ConfigSet(t.Context(), "maxmemory-policy", "allkeys-lru").Err(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		store.watch(ctx, log, time.Millisecond)
	}()
	select {
	case <-out.hit:
	case <-time.After(20 * time.Second):
		t.Error("nothing was logged")
	}
	cancel()
	<-done
	if s := out.String(); !strings.Contains(s, "allkeys-lru") || !strings.Contains(s, "noeviction") {
		t.Errorf("logged %q, want the policy and what to set", s)
	}
}
