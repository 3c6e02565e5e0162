package integration

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/delaybridge/delaybridge/internal/testproxy"
)

// fault is something that goes wrong and is put right.
type fault struct {
	name         string
	outage       bool // Redis takes no job meanwhile
	inject, heal func(*stand)
}

// begin makes the fault and returns what heals it.
func (f fault) begin(s *stand) (*Span, func()) {
	s.t.Helper()
	s.t.Logf("fault %s", f.name)
	span, healed := s.Fault(f.name, false)
	f.inject(s)
	return span, func() {
		f.heal(s)
		healed()
		s.t.Logf("fault %s healed after %v", f.name, span.To.Sub(span.From))
	}
}

// outages are the faults in which Redis takes nothing for as long as they
// last; flaws are those in which it does, or does now and then; kills those of
// the bridge.
var (
	outages = []fault{
		{name: "redis-killed", inject: func(s *stand) { s.redis.Kill() }, heal: func(s *stand) { s.redis.Restart() }},
		{name: "redis-frozen", inject: func(s *stand) { s.redis.Freeze() }, heal: func(s *stand) { s.redis.Thaw() }},
		{name: "redis-readonly",
			inject: func(s *stand) { s.command("REPLICAOF", "127.0.0.1", "1") },
			heal:   func(s *stand) { s.command("REPLICAOF", "NO", "ONE") }},
		{name: "redis-without-replicas", inject: config("min-replicas-to-write", "1"), heal: config("min-replicas-to-write", "0")},
		{name: "redis-full", inject: config("maxmemory", "1"), heal: config("maxmemory", "0")},
		disturbed("redis-loading", func() testproxy.Disturbance {
			return testproxy.Disturbance{Refuse: "LOADING Redis is loading the dataset in memory"}
		}),
		disturbed("black-hole", func() testproxy.Disturbance { return testproxy.Disturbance{LoseCommands: true} }),
		disturbed("replies-lost", func() testproxy.Disturbance { return testproxy.Disturbance{LoseReplies: true} }),
		{name: "network-stalled", inject: func(s *stand) { s.proxy.Stall() }, heal: func(s *stand) { s.proxy.Resume() }},
	}
	flaws = []fault{
		disturbed("redis-slow", func() testproxy.Disturbance { return testproxy.Disturbance{Delay: 200 * time.Millisecond} }),
		disturbed("reset-in-mid-reply", tearing),
		{name: "scripts-flushed", inject: flushScripts, heal: flushScripts},
		{name: "config-changed", inject: changeConfig, heal: restoreConfig},
	}
	kills = []fault{
		{name: "bridge-killed", inject: (*stand).restartBridge, heal: (*stand).restartBridge},
		{name: "bridge-killed-in-local-mode",
			inject: func(s *stand) {
				s.redis.Freeze()
				s.awaitLocal()
				s.restartBridge()
			},
			heal: func(s *stand) { s.redis.Thaw() }},
		{name: "bridge-and-redis-killed",
			inject: func(s *stand) {
				s.redis.Kill()
				s.restartBridge()
			},
			heal: func(s *stand) { s.redis.Restart() }},
		{name: "bridge-killed-on-return",
			inject: func(s *stand) {
				s.redis.Freeze()
				s.awaitLocal()
			},
			heal: func(s *stand) {
				await := s.watchCircuit("HALF_OPEN")
				s.redis.Thaw()
				await()
				s.restartBridge()
			}},
	}
)

func init() {
	for i := range outages {
		outages[i].outage = true
	}
}

func disturbed(name string, d func() testproxy.Disturbance) fault {
	return fault{name: name,
		inject: func(s *stand) { s.proxy.Disturb(d()) },
		heal:   func(s *stand) { s.proxy.Disturb(testproxy.Disturbance{}) }}
}

// tearing ends every fifth reply in the middle.
func tearing() testproxy.Disturbance {
	var n atomic.Int64
	return testproxy.Disturbance{Tear: func() bool { return n.Add(1)%5 == 0 }}
}

func config(name, value string) func(*stand) {
	return func(s *stand) { s.command("CONFIG", "SET", name, value) }
}

func flushScripts(s *stand) { s.command("SCRIPT", "FLUSH") }

func changeConfig(s *stand) {
	s.command("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
	s.command("CONFIG", "SET", "appendonly", "no")
}

// restoreConfig returns when Redis has all of its data on the disk again.
func restoreConfig(s *stand) {
	s.command("CONFIG", "SET", "maxmemory-policy", "noeviction")
	s.command("CONFIG", "SET", "appendonly", "yes")
	s.eventually("the append-only file is complete", func(context.Context) (bool, error) {
		info := s.command("INFO", "persistence")
		for _, want := range []string{"aof_enabled:1", "aof_rewrite_in_progress:0", "aof_rewrite_scheduled:0"} {
			if !strings.Contains(info, want+"\r\n") {
				return false, nil
			}
		}
		if !strings.Contains(info, "aof_last_bgrewrite_status:ok") {
			return false, fmt.Errorf("the rewrite of the append-only file failed:\n%s", info)
		}
		return true, nil
	})
}

// awaitLocal waits until jobs are acknowledged from the local store.
func (s *stand) awaitLocal() {
	s.t.Helper()
	before := s.Counts().Local
	s.awaitCounts("acknowledged locally", func(c Counts) bool { return c.Local > before+50 })
}

// awaitRedis waits until jobs are acknowledged from Redis.
func (s *stand) awaitRedis() {
	s.t.Helper()
	before := s.Counts()
	s.awaitCounts("acknowledged from Redis", func(c Counts) bool { return c.Accepted-c.Local > before.Accepted-before.Local+50 })
}
