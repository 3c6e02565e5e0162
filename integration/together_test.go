package integration

import (
	"testing"
	"time"

	"github.com/delaybridge/delaybridge/integration/internal/report"
)

// Two bridges give jobs to one worker, whose capacity both respect as far as
// they know what it runs for the other.
func TestTwoBridgesShareWorkers(t *testing.T) {
	t.Parallel()
	const capacity, jobs = 20, 400
	w := newWorks(t, redisStore)
	w.start(crashTTL...)
	second := w.child("b2", w.flags...)
	h1 := w.join("w1", beatOf("-capacity", "20", "-work", "50ms")...)
	h2 := w.join("w2", beatOf("-capacity", "20", "-work", "50ms")...)
	owners := w.watchOwners()
	w.spread(jobs, time.Second, crewTarget)
	w.settled()
	second.end()
	w.close(Once, h1, h2)
	for id, n := range w.most() {
		if n > capacity {
			t.Errorf("worker %s ran %d handlers at once, its capacity is %d", id, n, capacity)
		}
		// What one bridge has just given the other does not know yet.
		if n := owners.owned(id); n > capacity*3/2 {
			t.Errorf("worker %s was given %d jobs at once by both bridges, its capacity is %d", id, n, capacity)
		}
	}
}

// A bridge and a worker that has jobs of it are killed together. The other bridge
// gives the jobs to the other worker.
func TestBridgeAndWorkerKilled(t *testing.T) {
	t.Parallel()
	const jobs = 20
	w := newWorks(t, redisStore)
	w.start(crashTTL...)
	second := w.child("b2", w.flags...)
	h1 := w.join("w1", beatOf("-capacity", "20", "-first", "1h")...)
	ids := w.sendAll(jobs, crewTarget)
	for _, id := range ids {
		w.awaitStarted(id, 1)
	}
	_, healed := w.Fault("kill", true)
	w.bridge.kill()
	h1.kill()
	killed := time.Now()
	h2 := w.join("w2", beatOf("-capacity", "20")...)
	var last time.Time
	for _, id := range ids {
		if at := w.awaitReport("the job at w2", func(r report.Report) bool {
			return r.Event == report.Started && r.ID == id && r.Worker == "w2"
		}).Time(); at.After(last) {
			last = at
		}
	}
	healed()
	took := last.Sub(killed)
	t.Logf("all jobs were at the other worker %v after the kill of bridge and worker", took.Round(time.Millisecond))
	if limit := 12 * time.Second; took > limit { // a bridge is missed after 3 s, looked after each 5 s; the TTL is 2 s
		t.Errorf("the jobs were at the other worker after %v, want at most %v: not by their leases of 30 s", took, limit)
	}
	w.bridge = second
	w.close(Explained, h2)
	w.wantAgainOnlyOf("w1")
}
