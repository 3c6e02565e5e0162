package adapter_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/delaybridge/delaybridge/adapter"
	"github.com/delaybridge/delaybridge/job"
	"github.com/delaybridge/delaybridge/memdelay"
)

// The store may be asked about a job in vain; then nothing is said about it.
func TestNothingIsStaleThatCannotBeJudged(t *testing.T) {
	store := &blindStore{Store: memdelay.New(memdelay.Options{})}
	r := newRig(t, withConfig(fast), withStore(store))
	plain := r.worker("t.x")
	w := r.owner("w1", 1)
	w.directed = false
	r.schedule("delay.in.0s.t.x", "p")
	m := receive(t, plain)
	r.done(m)
	store.blind.Store(true)
	if stale := w.beat(m); len(stale) != 0 {
		t.Errorf("stale though nobody can know: %v", stale)
	}
	store.blind.Store(false)
	if stale := w.beat(m); !slices.Equal(stale, tokens(m)) {
		t.Errorf("stale: %v", stale)
	}
}

// A delivery that another bridge has ended is stale also for the one that sent it.
func TestStaleAlthoughHeld(t *testing.T) {
	r := newRig(t, withConfig(fast))
	w := r.owner("w1", 1, "t.x")
	w.beat()
	a := r.schedule("delay.in.0s.t.x", "p", "Delay-Ack-Wait", "100ms")
	m := receive(t, w.jobs)
	info := r.state(a.ID)
	ended := job.Settlement{Ref: info.Ref(), Outcome: job.Bury, Reason: "another bridge"}
	if _, err := r.store.Settle(context.Background(), job.At(time.Now()), []job.Settlement{ended}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the worker is told, as its lease cannot be renewed", func() bool { return slices.Equal(w.beat(m), tokens(m)) })
}

// A peer that works from its disk may hold what the shared store does not know.
func TestNothingIsStaleThatAPeerOnDiskMayHold(t *testing.T) {
	r := newRig(t, withConfig(fast), withStore(newModeStore(job.ModeRedis)))
	w := r.owner("w1", 1, "t.x")
	other := newRig(t, withConfig(func(c *adapter.Config) { fast(c); c.ID = "b2"; c.Prefix = "other" }), func(c *rigConfig) { c.srv = r.srv })
	plain := other.worker("t.z")
	other.request("other.in.0s.t.z", "p")
	m := receive(t, plain) // its job is in a store that r cannot see
	if stale := w.beat(m); !slices.Equal(stale, tokens(m)) {
		t.Errorf("without peers: stale %v", stale)
	}
	state := `{"bridge":"b2","circuit_state":"OPEN","version":1}`
	eventually(t, "nothing is stale while the peer works from its disk", func() bool {
		if err := r.nc.Publish("delay.sys.state", []byte(state)); err != nil {
			t.Fatal(err)
		}
		return len(w.beat(m)) == 0
	})
}
