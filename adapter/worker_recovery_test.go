package adapter_test

import (
	"strings"
	"testing"
	"time"

	"github.com/delaybridge/delaybridge/adapter"
	"github.com/delaybridge/delaybridge/job"
)

// ReconstructWorkerTasks
func TestBridgeTakesItsFormerLeasesIn(t *testing.T) {
	r := newRig(t, withConfig(func(c *adapter.Config) { fast(c); c.WorkerTTL = 500 * time.Millisecond; c.Drain = time.Millisecond }))
	w1, w2 := r.owner("w1", 1, "t.x"), r.owner("w2", 1, "t.x")
	w1.beat()
	lives := r.schedule("delay.in.0s.t.x", "lives")
	m1 := receive(t, w1.jobs)
	w2.beat()
	dies := r.schedule("delay.in.0s.t.x", "dies")
	m2 := receive(t, w2.jobs)
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	w2.nc.Close()
	r.start()
	w1.beating(m1)
	eventually(t, "the dead worker's job is pending", func() bool { return r.state(dies.ID).State == job.Pending })
	if got := r.state(lives.ID); got.State != job.Running || got.Attempt != 1 {
		t.Errorf("the live worker's job is %s at attempt %d", got.State, got.Attempt)
	}
	r.done(m1)
	if answer := r.settle(m2, ""); !strings.HasPrefix(answer, `-ERR {"code":409,`) {
		t.Errorf("completion of the dead worker answered %q", answer)
	}
}

// A bridge that is gone leaves leases, which a peer takes in.
func TestPeerRecoversJobsOfABridgeThatIsGone(t *testing.T) {
	r := newRig(t, withStore(newModeStore(job.ModeRedis)), withConfig(func(c *adapter.Config) { c.Drain = 10 * time.Millisecond }))
	w1, w2 := r.owner("w1", 1, "t.x"), r.owner("w2", 1, "t.x")
	w1.beat()
	a := r.schedule("delay.in.0s.t.x", "p")
	m := receive(t, w1.jobs)
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	w1.nc.Close()
	newRig(t, beside(r), withConfig(func(c *adapter.Config) { fast(c); c.WorkerTTL = 500 * time.Millisecond; c.ID = "b2" }))
	w2.beating()
	again := receive(t, w2.jobs)
	attempt(t, again, 2, time.Time{})
	if again.Header.Get("Delay-Job-Id") != a.ID || token(again) == token(m) {
		t.Errorf("delivered %v", again.Header)
	}
	if answer := w2.request(again, ""); answer != "" {
		t.Errorf("completion answered %q", answer)
	}
}

// The lease of a worker that beats may have run out while no bridge was there to
// hear it.
func TestRestartAfterTheLease(t *testing.T) {
	r := newRig(t, withConfig(func(c *adapter.Config) { fast(c); c.Drain = time.Millisecond }))
	w := r.owner("w1", 1, "t.x")
	w.beat()
	a := r.schedule("delay.in.0s.t.x", "p", "Delay-Ack-Wait", "1s")
	m := receive(t, w.jobs)
	w.beating(m)
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	over := r.state(a.ID).Next
	eventually(t, "the lease is over", func() bool { return job.At(time.Now()) > over })
	r.start()
	eventually(t, "the lease is renewed twice over", func() bool { return r.state(a.ID).Next > over.Add(time.Second) })
	if got := r.state(a.ID); got.State != job.Running || got.Attempt != 1 {
		t.Errorf("the job of a worker that beats is %s at attempt %d", got.State, got.Attempt)
	}
	r.done(m)
}
