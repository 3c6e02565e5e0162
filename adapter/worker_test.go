package adapter_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/delaybridge/delaybridge/adapter"
	"github.com/delaybridge/delaybridge/job"
)

func TestJobsAreSentToAWorker(t *testing.T) {
	r := newRig(t, withConfig(fast))
	plain := r.worker("t.x")
	w := r.owner("w1", 2, "t.*")
	owners := r.listen("delay.owner.w1")
	w.beat()
	a := r.schedule("delay.in.0s.t.x", "p", "traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
	m := receive(t, w.jobs)
	attempt(t, m, 1, a.Due)
	if string(m.Data) != "p" || m.Header.Get("Delay-Target") != "t.x" || m.Header.Get("Delay-Job-Id") != a.ID {
		t.Errorf("got %q with %v", m.Data, m.Header)
	}
	if got := r.state(a.ID); got.Owner != "b1/w1" || got.State != job.Running {
		t.Errorf("the store has %s, owned by %q", got.State, got.Owner)
	}
	claimed := receive(t, owners)
	if want := fmt.Sprintf(`{"event":"claimed","job":%q,"token":%q,"attempt":1,"bridge":"b1"}`, a.ID, token(m)); string(claimed.Data) != want {
		t.Errorf("owner told as %s, want %s", claimed.Data, want)
	}
	if claimed.Header.Get("traceparent") != m.Header.Get("traceparent") || claimed.Header.Get("traceparent") == "" {
		t.Errorf("owner told with %v", claimed.Header)
	}
	if stale := w.beat(m); len(stale) != 0 {
		t.Errorf("stale: %v", stale)
	}
	r.done(m)
	if released := receive(t, owners); !strings.Contains(string(released.Data), `"released"`) || !strings.Contains(string(released.Data), token(m)) {
		t.Errorf("owner told as %s, want released", released.Data)
	}
	if stale := w.beat(m); !slices.Equal(stale, tokens(m)) {
		t.Errorf("a job that is done is not stale: %v", stale)
	}
	nothing(t, plain)
}

func TestWorkerThatJoinsGetsParkedJobs(t *testing.T) {
	r := newRig(t, withConfig(func(c *adapter.Config) { fast(c); c.ProbeMin, c.ProbeMax = time.Minute, time.Minute }))
	a := r.schedule("delay.in.0s.t.x", "p")
	r.parked(a.ID, "t.x")
	w := r.owner("w1", 1, "t.x")
	start := time.Now()
	w.beat()
	m := receive(t, w.jobs)
	if took := time.Since(start); took > time.Second {
		t.Errorf("the parked job came after %v", took)
	}
	attempt(t, m, 1, a.Due)
	r.done(m)
}

func TestTargetIsPlainAgainWithoutWorkers(t *testing.T) {
	r := newRig(t, withConfig(fast))
	w := r.owner("w1", 1, "t.x")
	w.beat()
	r.schedule("delay.in.0s.t.x", "p")
	r.done(receive(t, w.jobs))
	plain := r.worker("t.x")
	w.say("bye", nil, nil)
	a := r.schedule("delay.in.0s.t.x", "p")
	m := receive(t, plain)
	attempt(t, m, 1, a.Due)
	r.done(m)
}

// A worker that may not subscribe to its subject gets its jobs by the queue group.
func TestWorkerThatDoesNotHearItsSubject(t *testing.T) {
	r := newRig(t, withConfig(fast))
	w := &owner{t: t, nc: r.nc, name: "w1", subjects: []string{"t.x"}, capacity: 1, directed: true}
	plain := r.worker("t.x")
	w.beat()
	a := r.schedule("delay.in.0s.t.x", "p")
	// The bridge tries once more with each heartbeat.
	for heard := 0; len(plain) == 0; heard++ {
		if heard > 100 {
			t.Fatal("the job does not come by the queue group")
		}
		w.beat()
		r.intakeArrived()
	}
	m := receive(t, plain)
	attempt(t, m, 1, a.Due)
	r.done(m)
}
