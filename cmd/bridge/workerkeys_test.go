package main

import (
	"strings"
	"testing"
	"time"
)

func TestWorkerKeys(t *testing.T) {
	c, err := loadConfig(given("workers.ttl", "3s", "workers.ping", "100ms", "workers.task_ttl", "1m", "workers.heartbeat_ttl", "10s"), nil)
	if err != nil {
		t.Fatal(err)
	}
	if c.bridge.WorkerTTL != 3*time.Second || c.bridge.WorkerPing != 100*time.Millisecond || c.taskTTL != time.Minute || c.heartbeatTTL != 10*time.Second {
		t.Errorf("ttl %v, ping %v, task_ttl %v, heartbeat_ttl %v", c.bridge.WorkerTTL, c.bridge.WorkerPing, c.taskTTL, c.heartbeatTTL)
	}
	for _, tt := range []struct{ key, value, err string }{
		{"workers.ttl", "0s", "workers.ttl (--workers-ttl): must be more than 0"},
		{"workers.ttl", "300ms", "workers.ping: 300ms is not less than workers.ttl, 300ms"},
		{"workers.ttl", "2h", "workers.ttl: 2h0m0s is not between"},
		{"workers.ping", "1ms", "workers.ping: 1ms is not between"},
		{"workers.ping", "6s", "workers.ping: 6s is not less than workers.ttl, 6s"},
		{"workers.task_ttl", "100ms", "workers.task_ttl: 100ms is not between"},
		{"workers.heartbeat_ttl", "8d", "workers.heartbeat_ttl: 192h0m0s is not between"},
		{"workers.ping", "often", `workers.ping (--workers-ping): "often" is not a duration`},
	} {
		_, err := loadConfig(given(tt.key, tt.value), nil)
		if err == nil || !strings.Contains(err.Error(), tt.err) || strings.Count(err.Error(), "\n") != 1 {
			t.Errorf("%s %s: %v, want one error with %q", tt.key, tt.value, err, tt.err)
		}
	}
}
