package integration

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/delaybridge/delaybridge/integration/internal/report"
	"github.com/nats-io/nats.go"
)

// The first attempt of a job runs until its worker is killed, a further one ends
// at once.
var untilKilled = []string{"-capacity", "1", "-first", "1h", "-work", "0s"}

// killedWithin is how long after the kill of a worker its job is at another, at
// the latest.
const killedWithin = time.Second

// A worker that is killed has its job at another one within a second.
//
// This test measures, so it runs beside no other.
func TestKilledWorker(t *testing.T) {
	kills := pick(15, 100)
	w := newWorks(t, redisStore)
	w.start()
	hands := map[string]*hand{}
	for i := range 2 {
		hands[named("w", i)] = w.join(named("w", i), untilKilled...)
	}
	choose := rand.New(rand.NewPCG(testSeed(t), 0))
	var took []time.Duration
	for i := range kills {
		id := w.send(0, crewTarget)
		first := w.awaitStarted(id, 1)
		time.Sleep(time.Duration(choose.Int64N(int64(700 * time.Millisecond)))) // the kill comes at any time
		killed := time.Now()
		hands[first.Worker].kill()
		delete(hands, first.Worker)
		next := named("w", i+2)
		hands[next] = w.join(next, untilKilled...)
		second := w.awaitStarted(id, 2)
		took = append(took, second.Time().Sub(killed))
	}
	s := spread(took)
	fmt.Printf("\nfrom the kill of a worker to its job at another: %v\n\n", s)
	// Of a few, the p99 is the worst, which a machine that stands still can be.
	if got := pick(s.P90, s.P99); got >= killedWithin {
		t.Errorf("%v, want below %v: the p99 of many, the p90 of a few", s, killedWithin)
	}
	var left []*hand
	for _, h := range hands {
		left = append(left, h)
	}
	w.close(Explained, left...)
}

// A worker that is frozen has its job at another one within the TTL and a second.
// When it goes on its late completion is refused, the result of the other stands,
// and it has learnt so.
func TestFrozenWorker(t *testing.T) {
	const ttl = 6 * time.Second // the default
	onBothDisks(t, func(t *testing.T, kind storeKind) {
		w := newWorks(t, kind)
		w.start()
		results := make(chan *nats.Msg, 10)
		if _, err := w.client().ChanSubscribe("results", results); err != nil {
			t.Fatal(err)
		}
		// The handlers tell as the result who they are.
		h1 := w.join("w1", "-capacity", "1", "-work", "1s", "-deaf", "-result")
		id := w.send(0, crewTarget, "Delay-Reply-To", "results")
		w.awaitStarted(id, 1)
		frozen := time.Now()
		h1.freeze()
		h2 := w.join("w2", "-capacity", "1", "-work", "100ms", "-result")
		second := w.awaitStarted(id, 2)
		took := second.Time().Sub(frozen)
		fmt.Printf("\nfrom the freeze of a worker to its job at another (%s): %v\n\n", kind, took.Round(time.Millisecond))
		if took > ttl+time.Second {
			t.Errorf("after %v, want at most %v", took, ttl+time.Second)
		}
		w.awaitReport("w2 is done", func(r report.Report) bool { return r.Event == report.Done && r.Worker == "w2" })
		if m := w.message(results); string(m.Data) != "w2" || m.Header.Get("Delay-Job-Id") != id {
			t.Errorf("result %q of %q, want w2's of %s", m.Data, m.Header.Get("Delay-Job-Id"), id)
		}
		h1.thaw()
		w.awaitReport("w1 learns that the job is not its any more", func(r report.Report) bool {
			return r.Event == report.Lost && r.Worker == "w1" && r.ID == id
		})
		w.close(Explained, h1, h2)
		if len(results) > 0 {
			t.Errorf("a second result: %q", (<-results).Data)
		}
	})
}

// A worker that joins gets parked jobs at once.
func TestJoiningWorkerGetsParkedJobs(t *testing.T) {
	onBothDisks(t, func(t *testing.T, kind storeKind) {
		const jobs, within = 50, 300 * time.Millisecond
		w := newWorks(t, kind)
		w.start()
		w.flood(jobs, func(int) *nats.Msg { return w.in(0, crewTarget) })
		w.awaitParked()
		h := w.join("w1", "-capacity", "10")
		ready := w.awaitReport("w1 takes jobs", func(r report.Report) bool { return r.Event == report.Ready })
		first := w.awaitReport("the first job", func(r report.Report) bool { return r.Event == report.Started })
		took := first.Time().Sub(ready.Time())
		t.Logf("the first of the parked jobs came %v after the start of the worker", took)
		if took > within {
			t.Errorf("the first of the parked jobs came after %v, want at most %v", took, within)
		}
		w.close(Once, h)
	})
}

// awaitParked returns when the bridge tries the target so seldom that a worker
// which is not noticed waits for long.
func (w *works) awaitParked() {
	w.t.Helper()
	var tries float64
	var last time.Time
	w.eventually("the target is parked", func(context.Context) (bool, error) {
		n, err := w.bridge.metric("delaybridge_published_total")
		if n != tries {
			tries, last = n, time.Now()
		}
		return n > 0 && time.Since(last) > 800*time.Millisecond, err
	})
}
