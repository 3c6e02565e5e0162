package integration

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/delaybridge/delaybridge/integration/internal/report"
)

// While Redis is away workers beat, claim, die and are noticed as ever; and an
// outage that outlasts all keys about them makes no live worker look dead.
func TestWorkersWithoutRedis(t *testing.T) {
	t.Parallel()
	const shown = time.Second // how long Redis shows what workers own
	w := newWorks(t, redisStore)
	rdb := redis.NewClient(&redis.Options{Addr: w.redis.Addr()})
	t.Cleanup(func() { _ = rdb.Close() })
	w.start(append(slices.Clone(shortFailover), "--workers-ttl", "2s",
		"--workers-task-ttl", shown.String(), "--workers-heartbeat-ttl", shown.String())...)
	hands := map[string]*hand{}
	for _, id := range []string{"w1", "w2", "w3"} {
		hands[id] = w.join(id, beatOf("-capacity", "2", "-first", "8s")...)
	}
	kept := w.send(0, crewTarget)
	owner := w.awaitStarted(kept, 1).Worker
	w.awaitOwner(rdb, kept, owner)

	_, healed := w.Fault("redis-frozen", false)
	w.redis.Freeze()
	w.awaitMode("local")
	begin := time.Now()
	inOutage := w.send(0, crewTarget)
	victim := w.awaitStarted(inOutage, 1).Worker
	if victim == owner { // it holds both then; both come again
		t.Logf("%s has both jobs", victim)
	}
	claimed := w.own("foreign")
	w.awaitPinged(victim)
	killed := time.Now()
	hands[victim].kill()
	delete(hands, victim)
	again := w.awaitStarted(inOutage, 2)
	if took := again.Time().Sub(killed); took > killedWithin {
		t.Errorf("without Redis the job of a killed worker came again after %v, want at most %v", took, killedWithin)
	}
	if body, err := w.settle(w.nc, claimed, ""); err != nil || body != "" {
		t.Errorf("completion of a claimed job: %q, %v", body, err)
	}
	time.Sleep(time.Until(begin.Add(2 * shown))) // the length of the outage: all keys are gone by then
	w.redis.Thaw()
	w.awaitMode("redis")
	healed()
	if victim != owner {
		w.awaitOwner(rdb, kept, owner)
	}
	var left []*hand
	for _, h := range hands {
		left = append(left, h)
	}
	w.close(Explained, left...)
	w.wantAgainOnlyOf(victim)
	if n := len(w.seen(func(r report.Report) bool { return r.Event == report.Lost })); n > 0 {
		t.Errorf("live workers lost %d jobs", n)
	}
}

// awaitMode waits until the bridge is in that mode.
func (w *works) awaitMode(mode string) {
	w.t.Helper()
	w.eventually("mode "+mode, func(context.Context) (bool, error) {
		n, err := w.bridge.metric(`delaybridge_mode{mode="` + mode + `"}`)
		return n == 1, err
	})
}

// awaitOwner waits until Redis shows, to people, that the worker owns the job.
func (w *works) awaitOwner(rdb *redis.Client, id, worker string) {
	w.t.Helper()
	w.eventually("Redis shows "+worker+" as the owner of "+id, func(ctx context.Context) (bool, error) {
		owner, err := rdb.Get(ctx, "delay:task:{"+id+"}:workerId").Result()
		if err == redis.Nil {
			return false, nil
		}
		if err != nil || owner != worker {
			return false, err
		}
		has, err := rdb.SIsMember(ctx, "delay:worker:{"+worker+"}:task", id).Result()
		if err != nil || !has {
			return false, err
		}
		n, err := rdb.Exists(ctx, "delay:worker:{"+worker+"}:hb").Result()
		return n == 1, err
	})
}
