package adapter_test

import (
	"fmt"
	"testing"

	"github.com/delaybridge/delaybridge/adapter"
	"github.com/delaybridge/delaybridge/internal/testnats"
	"github.com/delaybridge/delaybridge/job"
	"github.com/nats-io/nats.go"
)

// What no worker settles goes to its target, whoever covers that.
func TestJobsThatNoWorkerSettlesGoToTheirTargets(t *testing.T) {
	r := newRig(t, withConfig(fast))
	w := r.owner("w1", 2, "t.x")
	w.beat()
	target := r.worker("t.x")
	a := r.schedule("delay.in.0s.t.x", "p", "Delay-Ack", "none")
	receive(t, target)
	r.becomes(a.ID, job.Done)
	nothing(t, w.jobs)
}

// Beside owning workers, jobs that no worker settles are put off one by one when
// they reach nobody: the target is not parked.
func TestStreamJobDoesNotParkWorkers(t *testing.T) {
	store, settled := settles("lost")
	r := newRig(t, withConfig(fast), withStore(store))
	w := r.owner("w1", 2, "t.x")
	w.beat()
	r.schedule("delay.in.0s.t.x", "p", "Delay-Ack", "stream", "Nats-Msg-Id", "lost") // there is no stream
	await(t, "the stream job comes back", settled)
	r.schedule("delay.in.0s.t.x", "p")
	r.done(promptly(t, w.jobs))
}

func TestRefusedTargetDoesNotTakeFromWorkers(t *testing.T) {
	store, settled := settles("refused")
	deny := testnats.Config(fmt.Sprintf(bridgeAndClient, "secret.>"))
	r := newRig(t, withConfig(fast), withStore(store), withNATS(deny), withUsers(nats.UserInfo("bridge", "x"), nats.UserInfo("client", "x")))
	w := r.owner("w1", 3, "secret.x")
	w.beat()
	a := r.schedule("delay.in.0s.secret.x", "p")
	m := receive(t, w.jobs)
	r.schedule("delay.in.0s.secret.x", "p", "Delay-Ack", "none", "Nats-Msg-Id", "refused")
	await(t, "the job that is published to the target comes back", settled)
	if got := r.state(a.ID); got.State != job.Running || got.Attempt != 1 {
		t.Errorf("the worker's job is %s at attempt %d", got.State, got.Attempt)
	}
	r.done(m)
	r.schedule("delay.in.0s.secret.x", "p")
	r.done(promptly(t, w.jobs))
}

// A lease that a queue group let run out says nothing of a worker that has joined
// since.
func TestSilentLeaseDoesNotParkWorkers(t *testing.T) {
	r := newRig(t, withConfig(fast))
	plain := r.worker("t.x")
	a := r.schedule("delay.in.0s.t.x", "p", "Delay-Ack-Wait", "200ms", "Delay-Backoff", "0s")
	receive(t, plain)
	w := r.owner("w1", 1, "t.x")
	w.beat()
	again := promptly(t, w.jobs)
	if again.Header.Get("Delay-Job-Id") != a.ID {
		t.Errorf("delivered %v", again.Header)
	}
	r.done(again)
	nothing(t, plain)
}

func TestWorkerWithoutCapacityDoesNotHoldATargetUp(t *testing.T) {
	r := newRig(t, withConfig(fast))
	plain := r.worker("t.x")
	w := r.owner("w1", 0, "t.x")
	w.beat()
	r.schedule("delay.in.0s.t.x", "p")
	r.done(promptly(t, plain))
}

// Jobs of owning workers use their slots, and no room in a shared window.
func TestSharedWindowCountsPlainJobsOnly(t *testing.T) {
	r := newRig(t, withConfig(func(c *adapter.Config) {
		fast(c)
		c.Lanes = []adapter.Lane{{Pattern: "t.>", MaxInFlight: 2}}
	}))
	plain := r.worker("t.plain")
	w := r.owner("w1", 2, "t.x")
	w.beat()
	r.scheduleAll(2, always("delay.in.0s.t.x"), always("p"))
	receive(t, w.jobs)
	receive(t, w.jobs)
	r.scheduleAll(2, always("delay.in.0s.t.plain"), always("p"))
	for range 2 {
		promptly(t, plain)
	}
}
