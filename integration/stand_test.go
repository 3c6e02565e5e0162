package integration

import (
	"context"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/delaybridge/delaybridge/internal/testnats"
	"github.com/delaybridge/delaybridge/internal/testproxy"
	"github.com/delaybridge/delaybridge/internal/testredis"
	"github.com/redis/go-redis/v9"
)

// stand is a system for faults, see docs/faults.md: a bridge in a
// process of its own, with a journal, on a Redis that is reached through a
// proxy.
type stand struct {
	*system
	proxy  *testproxy.Proxy
	admin  *redis.Client // past the proxy
	bridge *child
	flags  []string
	target string // of jobs whose workers take them at once
	seed   uint64
	pulse  *pulse
	kills  int
}

// shortFailover makes the bridge turn to its local store and back so quickly
// that a test can wait for it.
var shortFailover = []string{
	"--failover-probe-every", "100ms", "--failover-probe-suspect", "50ms", "--failover-dwell", "300ms", "--failover-max-dwell", "600ms",
}

// newStand starts everything. What Redis confirmed it has on its disk, so that
// no kill loses it.
func newStand(t *testing.T, flags ...string) *stand {
	t.Helper()
	return newStandOn(t, testredis.Start(t, "--appendfsync", "always"), flags...)
}

func newStandOn(t *testing.T, r *testredis.Server, flags ...string) *stand {
	t.Helper()
	seed := testSeed(t)
	s := &stand{
		system: &system{Checker: NewChecker(), t: t, kind: redisStore, dir: t.TempDir(), silence: 3 * time.Second, nats: testnats.Start(t), redis: r, url: r.URL()},
		proxy:  testproxy.Start(t, r.Addr()),
		admin:  redis.NewClient(&redis.Options{Addr: r.Addr()}),
		seed:   seed, pulse: startPulse(),
	}
	t.Cleanup(s.pulse.stop)
	t.Cleanup(func() { _ = s.admin.Close() })
	s.look, _ = s.open("test")
	s.url = s.proxy.URL()
	s.killed.Store(true)
	s.flags = append([]string{"--http-addr", "127.0.0.1:0", "--local-max-jobs", "2000000",
		"--jobs-max-attempts", "0", "--jobs-ack-wait", "1s", "--drain", "2s"}, shortFailover...)
	s.flags = append(s.flags, flags...)
	s.startBridge()
	return s
}

// testSeed is what the choices of a test follow from: DELAYBRIDGE_SEED, or else
// another one each time.
func testSeed(t *testing.T) uint64 {
	t.Helper()
	seed := uint64(time.Now().UnixNano())
	if v := os.Getenv("DELAYBRIDGE_SEED"); v != "" {
		var err error
		if seed, err = strconv.ParseUint(v, 10, 64); err != nil {
			t.Fatalf("DELAYBRIDGE_SEED: %v", err)
		}
	}
	t.Logf("choices from DELAYBRIDGE_SEED=%d", seed)
	return seed
}

func (s *stand) random(stream uint64) *rand.Rand { return rand.New(rand.NewPCG(s.seed, stream)) }

func (s *stand) startBridge() {
	s.t.Helper()
	s.bridge = s.child("b1", s.flags...)
}

// restartBridge ends the bridge as kill -9 does and starts it again.
func (s *stand) restartBridge() {
	s.t.Helper()
	_, healed := s.Fault("kill", true)
	s.kills++
	s.bridge.kill()
	s.startBridge()
	healed()
}

// command gives Redis an order, past the proxy.
func (s *stand) command(args ...any) string {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	v, err := s.admin.Do(ctx, args...).Text()
	if err != nil {
		s.t.Fatalf("redis: %v: %v", args, err)
	}
	return v
}

// metric reads one metric of the bridge, the sum over its labels.
func (s *stand) metric(name string) (float64, error) { return s.bridge.metric(name) }

// depth is how many jobs only the bridge itself holds.
const depth = "fallback_queue_depth"

// awaitDrained waits until no store holds a live job.
func (s *stand) awaitDrained() {
	s.t.Helper()
	s.awaitCounts("all delivered", func(c Counts) bool { return c.Missing == 0 })
	s.eventually("no job is held by the bridge alone", func(context.Context) (bool, error) {
		n, err := s.metric(depth)
		return n == 0, err
	})
	s.awaitEmpty()
}

// stopInOrder ends the bridge with SIGTERM, for which it may have warned of faults.
func (s *stand) stopInOrder() {
	s.t.Helper()
	if took := s.bridge.end(); took > 15*time.Second {
		s.t.Errorf("SIGTERM took %v", took)
	}
}
