package adapter_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/delaybridge/delaybridge/adapter"
	"github.com/delaybridge/delaybridge/job"
	"github.com/nats-io/nats.go"
)

// Workers that change what they say of themselves, and names at their limits.

func TestWorkerChangesItsSubjects(t *testing.T) {
	r := newRig(t, withConfig(fast))
	w := r.owner("w1", 2, "t.a")
	w.beat()
	r.schedule("delay.in.0s.t.a", "p")
	r.done(receive(t, w.jobs))
	plainA, plainB := r.worker("t.a"), r.worker("t.b")
	r.schedule("delay.in.0s.t.b", "p")
	r.done(receive(t, plainB))
	w.subjects = []string{"t.b"}
	w.beat()
	for target, ch := range map[string]<-chan *nats.Msg{"t.a": plainA, "t.b": w.jobs} {
		a := r.schedule("delay.in.0s."+target, "p")
		m := receive(t, ch)
		attempt(t, m, 1, a.Due)
		r.done(m)
	}
	nothing(t, plainB)
}

func TestWorkerChangesItsCapacity(t *testing.T) {
	r := newRig(t, withConfig(fast))
	w := r.owner("w1", 1, "t.x")
	w.beat()
	ids := r.scheduleAll(6, always("delay.in.0s.t.x"), always("p"))
	held := []*nats.Msg{receive(t, w.jobs)}
	w.capacity = 4
	w.beat(held...)
	for len(held) < 4 {
		held = append(held, receive(t, w.jobs))
	}
	w.capacity = 2
	w.beat(held...)
	w.beat(held...) // the one before has been taken in when this one is answered
	r.done(held[0])
	r.done(held[1])
	w.beat(held[2:]...)
	nothing(t, w.jobs) // two are as many as it takes now
	all := held
	for _, m := range held[2:] {
		r.done(m)
		all = append(all, receive(t, w.jobs))
	}
	for _, m := range all[4:] {
		r.done(m)
	}
	firstAttempts(t, ids, all)
}

// A new process with the name of one that has just left.
func TestSameNameAfterAFarewell(t *testing.T) {
	r := newRig(t, withConfig(fast))
	w := r.owner("w1", 2, "t.x")
	w.beat()
	r.scheduleAll(2, always("delay.in.0s.t.x"), always("p"))
	kept, other := receive(t, w.jobs), receive(t, w.jobs)
	r.done(other)
	w.say("bye", tokens(kept), nil)
	w.beat(kept) // of the new one, which has taken over what the old one had
	a := r.schedule("delay.in.0s.t.x", "p")
	m := receive(t, w.jobs)
	attempt(t, m, 1, a.Due)
	r.done(m)
	r.done(kept)
}

// Two processes of one name, each with a job that the other does not list.
func TestTwoProcessesOfOneName(t *testing.T) {
	r := newRig(t, withConfig(fast))
	w := r.owner("w1", 2, "t.x")
	w.beat()
	ids := r.scheduleAll(2, always("delay.in.0s.t.x"), always("p"))
	ms := []*nats.Msg{receive(t, w.jobs), receive(t, w.jobs)}
	for end := time.Now().Add(1500 * time.Millisecond); time.Now().Before(end); {
		for _, m := range ms { // in turn, as their periods are the same
			if stale := w.beat(m); len(stale) > 0 {
				t.Fatalf("stale: %v", stale)
			}
		}
	}
	for i, m := range ms {
		r.done(m)
		if got := r.state(ids[i]); got.Attempt != 1 {
			t.Errorf("attempt %d", got.Attempt)
		}
	}
}

// The longest names, and an id of all bytes.
func TestNamesAtTheirLimits(t *testing.T) {
	var all strings.Builder
	for c := range 255 {
		all.WriteByte(byte(c + 1))
	}
	id := strings.NewReplacer("\r", "-", "\n", "-").Replace(all.String()) // which no header can hold
	id = strings.Trim(id, " \t")
	bridge, worker := strings.Repeat("b", 64), strings.Repeat("w", 64)
	r := newRig(t, withConfig(func(c *adapter.Config) { fast(c); c.ID = bridge }))
	w := r.owner(worker, 1, "t.x")
	owners := r.listen("delay.owner." + worker)
	w.beat()
	a := r.schedule("delay.in.0s.t.x", "p", "Nats-Msg-Id", id)
	m := receive(t, w.jobs)
	attempt(t, m, 1, a.Due)
	if got := r.state(id); got.Owner != bridge+"/"+worker {
		t.Errorf("owned by %q", got.Owner)
	}
	var told struct{ Event, Token string }
	if err := json.Unmarshal(receive(t, owners).Data, &told); err != nil || told.Event != "claimed" || told.Token != token(m) {
		t.Errorf("owner told as %+v, %v", told, err)
	}
	if stale := w.beat(m); len(stale) > 0 {
		t.Errorf("stale: %v", stale)
	}
	w.say("hb", nil, tokens(m))
	r.becomes(id, job.Done)
}
