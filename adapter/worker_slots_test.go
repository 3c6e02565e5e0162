package adapter_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/delaybridge/delaybridge/job"
	"github.com/delaybridge/delaybridge/memdelay"
	"github.com/delaybridge/delaybridge/subjects"
	"github.com/nats-io/nats.go"
)

func TestCapacitiesAreKept(t *testing.T) {
	const jobs = 300
	r := newRig(t, withConfig(fast))
	var ws []*owner
	for _, capacity := range []int{1, 10, 100} {
		w := r.owner(fmt.Sprint("w", capacity), capacity, "t.>")
		w.beat()
		ws = append(ws, w)
	}
	ids := r.scheduleAll(jobs, always("delay.in.0s.t.x"), always("p"))
	var held [][]*nats.Msg
	for _, w := range ws {
		var got []*nats.Msg
		for range w.capacity {
			got = append(got, receive(t, w.jobs))
		}
		held = append(held, got)
	}
	var all []*nats.Msg
	for len(all) < jobs {
		for i, w := range ws {
			if len(held[i]) == 0 {
				continue
			}
			nothing(t, w.jobs) // more than its capacity
			m := held[i][0]
			held[i] = held[i][1:]
			r.done(m)
			if all = append(all, m); jobs-len(all) >= 111 {
				held[i] = append(held[i], receive(t, w.jobs)) // the slot is used again
			} else if jobs-len(all) == 110 {
				for k, w := range ws { // what is left is in their hands
					held[k] = append(held[k], drain(w.jobs)...)
				}
			}
		}
	}
	firstAttempts(t, ids, all)
}

// What a peer gives a worker uses its slots.
func TestSlotsThatAPeerUses(t *testing.T) {
	r := newRig(t, withConfig(fast), withStore(newModeStore(job.ModeRedis)))
	w := r.owner("w1", 2, "t.x")
	w.beat()
	state := `{"bridge":"b2","circuit_state":"CLOSED","version":1}`
	eventually(t, "the bridge listens to its peer", func() bool {
		if err := r.nc.Publish("delay.sys.state", []byte(state)); err != nil {
			t.Fatal(err)
		}
		_, err := r.nc.Request("delay.owner.nobody", nil, 20*time.Millisecond)
		return !errors.Is(err, nats.ErrNoResponders)
	})
	tell := func(event, id string) {
		t.Helper()
		token := subjects.AppendToken(nil, subjects.Token{Store: subjects.StoreRedis, Attempt: 1, Nonce: 1, ID: id})
		if err := r.nc.Publish("delay.owner.w1", fmt.Appendf(nil, `{"event":%q,"job":%q,"token":%q,"attempt":1,"bridge":"b2"}`, event, id, token)); err != nil {
			t.Fatal(err)
		}
	}
	tell("claimed", "j1")
	tell("claimed", "j1") // a copy
	tell("claimed", "j2")
	r.dispatchArrived()
	a := r.schedule("delay.in.0s.t.x", "p")
	r.parked(a.ID, "t.x")
	nothing(t, w.jobs)
	tell("released", "j1")
	m := receive(t, w.jobs)
	attempt(t, m, 1, a.Due)
	b := r.schedule("delay.in.0s.t.x", "p")
	r.parked(b.ID, "t.x")
	nothing(t, w.jobs)
	w.beat(m)
	nothing(t, w.jobs) // the peer's job may have been given after the heartbeat was begun
	w.beat(m)
	again := receive(t, w.jobs)
	r.done(m)
	r.done(again)
}

// A heartbeat that is taken in after the completion of a job which it lists costs
// no slot.
func TestHeartbeatCrossesACompletion(t *testing.T) {
	r := newRig(t, withConfig(fast))
	w, other := r.owner("w1", 1, "t.x"), r.owner("w2", 1, "t.y")
	w.beat()
	r.schedule("delay.in.0s.t.x", "p")
	m := receive(t, w.jobs)
	w.tell("hb", m)
	if answer := w.request(m, ""); answer != "" { // right behind it, on the same connection
		t.Fatal(answer)
	}
	other.beat() // the heartbeat has been taken in
	r.schedule("delay.in.0s.t.x", "p")
	r.done(promptly(t, w.jobs))
}

// Whenever a worker beats, its slots are used again as soon as they are free.
func TestBeatsDoNotSlowAWorkerDown(t *testing.T) {
	const jobs = 100
	r := newRig(t, withConfig(fast))
	w := r.owner("w1", 1, "t.x")
	w.beat()
	ids := r.scheduleAll(jobs, always("delay.in.0s.t.x"), always("p"))
	var all []*nats.Msg
	for range jobs {
		m := promptly(t, w.jobs)
		w.tell("hb", m)
		if answer := w.request(m, ""); answer != "" {
			t.Fatal(answer)
		}
		all = append(all, m)
	}
	firstAttempts(t, ids, all)
}

// A slot that is offered to a target which has nothing for it goes to another one.
func TestFreedSlotGoesToATargetThatNeedsIt(t *testing.T) {
	const targets = 9
	r := newRig(t, withConfig(fast))
	w1, w2 := r.owner("w1", 1, "t.>"), r.owner("w2", targets, "t.shared.*", "hold")
	w1.beat()
	r.schedule("delay.in.0s.t.first", "p")
	held := receive(t, w1.jobs)
	w2.beat()
	r.scheduleAll(targets, always("delay.in.0s.hold"), always("p"))
	var busy []*nats.Msg
	for range targets {
		busy = append(busy, receive(t, w2.jobs))
	}
	for i := range targets {
		name := fmt.Sprint("t.shared.", i)
		r.parked(r.schedule("delay.in.0s."+name, "p").ID, name)
	}
	r.parked(r.schedule("delay.in.0s.t.own", "p").ID, "t.own")
	w1.pinged(3) // all of them have looked for a slot
	for _, m := range busy {
		r.done(m)
	}
	for range targets {
		receive(t, w2.jobs)
	}
	r.done(held)
	r.done(promptly(t, w1.jobs))
}

// What is set aside while a claim is under way that found nothing more is not
// forgotten.
func TestSetAsideDuringAClaim(t *testing.T) {
	store := &faultStore{Store: memdelay.New(memdelay.Options{})}
	let, noted, returned := make(chan struct{}), make(chan struct{}), make(chan struct{})
	var letOnce, notedOnce, returns sync.Once
	var given atomic.Bool // B, to a worker
	store.settle = func(ctx context.Context, now job.Time, list []job.Settlement) ([]job.SettleResult, error) {
		switch {
		case list[0].Outcome == job.SetAside && list[0].ID == "B" && given.Load():
			returns.Do(func() { close(returned); await(t, "A is claimed", let) })
		case list[0].ID == "C":
			notedOnce.Do(func() { close(noted) }) // and so is what was settled before
		}
		return store.Store.Settle(ctx, now, list)
	}
	var r *rig
	var c *nats.Msg
	claims := &claimStore{Store: store, claimed: func(req job.ClaimRequest, got job.Claimed) {
		if len(got.Deliveries) == 1 && got.Deliveries[0].ID == "B" && req.Target != "" {
			given.Store(true)
		}
		if len(got.Deliveries) == 1 && got.Deliveries[0].ID == "A" && got.NextDue == 0 {
			letOnce.Do(func() {
				close(let)
				if err := r.nc.Publish(c.Reply, nil); err != nil {
					t.Error(err)
				}
				await(t, "what was settled is noted", noted)
			})
		}
	}}
	r = newRig(t, withStore(claims), withConfig(fast))
	plain := r.worker("t.c")
	r.schedule("delay.in.0s.t.c", "p", "Nats-Msg-Id", "C")
	c = receive(t, plain)
	w1 := r.owner("w1", 1, "t.x")
	deaf := &owner{t: t, nc: r.nc, name: "w2", subjects: []string{"t.x"}, capacity: 1, directed: true}
	deaf.beat()
	r.schedule("delay.in.0s.t.x", "p", "Nats-Msg-Id", "B")
	await(t, "B is on its way back", returned)
	w1.beat()
	r.schedule("delay.in.0s.t.x", "p", "Nats-Msg-Id", "A")
	m := receive(t, w1.jobs)
	if id := m.Header.Get("Delay-Job-Id"); id != "A" {
		t.Fatal(id)
	}
	r.done(m)
	r.done(promptly(t, w1.jobs))
}

// The jobs of one target are not looked for in others.
func TestClaimsPerOwnedJob(t *testing.T) {
	const targets, jobs = 64, 50
	var aside atomic.Int64
	store := &claimStore{Store: memdelay.New(memdelay.Options{}), claimed: func(r job.ClaimRequest, _ job.Claimed) {
		if r.Target != "" {
			aside.Add(1)
		}
	}}
	r := newRig(t, withStore(store), withConfig(fast))
	w := r.owner("w1", 100, "t.>")
	w.beat()
	for i := range targets {
		r.schedule(fmt.Sprint("delay.in.0s.t.", i), "p")
		r.done(receive(t, w.jobs))
	}
	before := aside.Load()
	for range jobs {
		r.schedule("delay.in.0s.t.0", "p")
		r.done(receive(t, w.jobs))
	}
	if n := aside.Load() - before; n > 4*jobs {
		t.Errorf("%d claims for %d jobs of one target", n, jobs)
	}
}
