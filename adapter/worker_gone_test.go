package adapter_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/delaybridge/delaybridge/adapter"
	"github.com/delaybridge/delaybridge/job"
	"github.com/nats-io/nats.go"
)

func TestKilledWorkerLosesItsJobs(t *testing.T) {
	r := newRig(t, withConfig(fast))
	w1 := r.owner("w1", 1, "t.x")
	w1.beat()
	a := r.schedule("delay.in.0s.t.x", "p")
	m := receive(t, w1.jobs)
	w1.pinged(2)
	w2 := r.owner("w2", 1, "t.x")
	w2.beat()
	w1.nc.Close()
	again := receive(t, w2.jobs)
	attempt(t, again, 2, time.Time{})
	if again.Header.Get("Delay-Job-Id") != a.ID {
		t.Errorf("another job: %v", again.Header)
	}
	if answer := r.settle(m, ""); !strings.HasPrefix(answer, `-ERR {"code":409,`) {
		t.Errorf("the late completion is answered %q", answer)
	}
	r.done(again)
}

// A dead worker's job that may not be tried again is dead.
func TestLastAttemptOfAKilledWorker(t *testing.T) {
	r := newRig(t, withConfig(fast))
	w := r.owner("w1", 1, "t.x")
	w.beat()
	a := r.schedule("delay.in.0s.t.x", "p", "Delay-Max-Attempts", "1")
	receive(t, w.jobs)
	w.pinged(2)
	w.nc.Close()
	if got := r.becomes(a.ID, job.Dead); got.Reason != "max_attempts" {
		t.Errorf("dead for %q", got.Reason)
	}
}

// A worker is asked before it has its first job, so that it can be killed with
// that at once and be believed gone.
func TestWorkerIsAskedWhenItJoins(t *testing.T) {
	r := newRig(t, withConfig(fast))
	w1, w2 := r.owner("w1", 1, "t.x"), r.owner("w2", 1, "t.x")
	w1.beat()
	eventually(t, "an idle worker is asked", func() bool { return w1.pings.Load() > 0 })
	r.schedule("delay.in.0s.t.x", "p")
	receive(t, w1.jobs)
	w1.nc.Close()
	w2.beat()
	again := receive(t, w2.jobs)
	attempt(t, again, 2, time.Time{})
	r.done(again)
}

// A worker whose pings never reached it may not be allowed to answer them.
func TestWorkerThatNeverAnsweredKeepsItsJobs(t *testing.T) {
	r := newRig(t, withConfig(fast))
	w := &owner{t: t, nc: connect(t, r.srv.URL()), name: "w1", subjects: []string{"t.x"}, capacity: 1, directed: true, jobs: make(chan *nats.Msg, 10)}
	w.hear("delay.job.w1", func(m *nats.Msg) { w.jobs <- m })
	w.flush()
	w.beat()
	a := r.schedule("delay.in.0s.t.x", "p")
	m := receive(t, w.jobs)
	r.busy("w2", "t.y").pinged(longSuspicion)
	if got := r.state(a.ID); got.State != job.Running || got.Attempt != 1 {
		t.Errorf("the job is %s at attempt %d", got.State, got.Attempt)
	}
	r.done(m)
}

func TestWorkerThatComesBackKeepsItsJobs(t *testing.T) {
	r := newRig(t, withConfig(fast))
	w := r.owner("w1", 1, "t.x")
	w.beat()
	r.schedule("delay.in.0s.t.x", "p")
	m := receive(t, w.jobs)
	w.pinged(2)
	w.nc.Close()
	w = r.owner("w1", 1, "t.x")
	if stale := w.beat(m); len(stale) > 0 {
		t.Errorf("stale: %v", stale)
	}
	w.pinged(longSuspicion)
	if stale := w.beat(m); len(stale) > 0 {
		t.Errorf("stale: %v", stale)
	}
	r.done(m)
}

func TestSilentWorkerLosesItsJobs(t *testing.T) {
	const ttl = 300 * time.Millisecond
	r := newRig(t, withConfig(func(c *adapter.Config) { c.WorkerTTL = ttl }))
	w1, w2 := r.owner("w1", 1, "t.x"), r.owner("w2", 1, "t.x")
	w1.beat()
	r.schedule("delay.in.0s.t.x", "p")
	m := receive(t, w1.jobs)
	start := time.Now()
	w1.beat(m)
	w2.beating()
	again := receive(t, w2.jobs)
	if took := time.Since(start); took < ttl || took > ttl+time.Second {
		t.Errorf("recovered after %v, the TTL is %v", took, ttl)
	}
	attempt(t, again, 2, time.Time{})
	if stale := w1.beat(m); !slices.Equal(stale, tokens(m)) {
		t.Errorf("it is not told what it has lost: %v", stale)
	}
	if answer := r.settle(m, ""); !strings.HasPrefix(answer, `-ERR {"code":409,`) {
		t.Errorf("the late completion is answered %q", answer)
	}
	r.done(again)
}

func TestManyThatVanishTogetherAreNotBelievedGone(t *testing.T) {
	r := newRig(t, withConfig(fast))
	names := []string{"w1", "w2", "w3", "w4"}
	var ws []*owner
	for _, name := range names {
		w := r.owner(name, 1, "t.x")
		w.beat()
		ws = append(ws, w)
	}
	r.scheduleAll(4, always("delay.in.0s.t.x"), always("p"))
	var held []*nats.Msg
	for _, w := range ws {
		m := receive(t, w.jobs)
		held = append(held, m)
		w.beat(m)
		w.pinged(2)
	}
	for _, w := range ws[:3] {
		w.nc.Close()
	}
	ws[3].pinged(longSuspicion)
	for _, m := range held {
		if got := r.state(m.Header.Get("Delay-Job-Id")); got.State != job.Running || got.Attempt != 1 {
			t.Errorf("a job is %s at attempt %d", got.State, got.Attempt)
		}
		r.done(m)
	}
}

// A bridge that is cut off hears no heartbeats, and draws no conclusion from that.
func TestOutageOfNATSIsNoDeathOfWorkers(t *testing.T) {
	const ttl = 200 * time.Millisecond
	r := newRig(t, withConfig(func(c *adapter.Config) { c.WorkerTTL = ttl }))
	w := &owner{t: t, name: "w1", subjects: []string{"t.x"}, capacity: 1, directed: true, jobs: make(chan *nats.Msg, 10)}
	w.nc = connect(t, r.srv.URL(), nats.ReconnectWait(10*time.Millisecond), nats.MaxReconnects(-1))
	w.hear("delay.job.w1", func(m *nats.Msg) { w.jobs <- m })
	w.flush()
	w.beat()
	a := r.schedule("delay.in.0s.t.x", "p", "Delay-Max-Attempts", "1")
	m := receive(t, w.jobs)
	w.beating(m)
	r.srv.Shutdown()
	down := time.Now()
	eventually(t, "the outage is longer than the TTL", func() bool { return time.Since(down) > 3*ttl })
	if got := r.state(a.ID); got.State != job.Running || got.Attempt != 1 {
		t.Errorf("while NATS is away the job is %s at attempt %d, %s", got.State, got.Attempt, got.Reason)
	}
	r.srv.Restart(t)
	eventually(t, "the completion is accepted", func() bool {
		answer, err := w.nc.Request(m.Reply, nil, time.Second)
		return err == nil && len(answer.Data) == 0
	})
}
