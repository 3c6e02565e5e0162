package adapter_test

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/delaybridge/delaybridge/adapter"
	"github.com/delaybridge/delaybridge/job"
	"github.com/delaybridge/delaybridge/memdelay"
	"github.com/nats-io/nats.go"
)

func TestLeaseRunsOut(t *testing.T) {
	r := newRig(t)
	work := r.worker("t.x")
	r.schedule("delay.in.0s.t.x", "p")
	r.done(receive(t, work)) // from now on the target has a worker
	a := r.schedule("delay.in.0s.t.x", "p", "Delay-Ack-Wait", "250ms", "Delay-Backoff", "50ms")
	first := receive(t, work)
	second := receive(t, work)
	attempt(t, first, 1, a.Due)
	attempt(t, second, 2, a.Due.Add(300*time.Millisecond))
	for _, verb := range []string{"", "-NAK", "+WPI", "+TERM"} {
		if answer := r.settle(first, verb); !strings.HasPrefix(answer, `-ERR {"code":409,`) {
			t.Errorf("%q of the first attempt answered %q", verb, answer)
		}
	}
	if got := r.state(a.ID); got.State != job.Running || got.Attempt != 2 {
		t.Errorf("changed to %+v", got)
	}
	r.done(second)
}

// TestLeaseEndsWhileTheCompletionIsStored lets the store take so long over a
// completion that it finds the lease run out meanwhile.
func TestLeaseEndsWhileTheCompletionIsStored(t *testing.T) {
	store := &faultStore{Store: memdelay.New(memdelay.Options{})}
	looked := make(chan job.Outcome, 100)
	store.settle = func(ctx context.Context, now job.Time, list []job.Settlement) ([]job.SettleResult, error) {
		if list[0].Outcome != job.Complete {
			looked <- list[0].Outcome
			return store.Store.Settle(ctx, now, list)
		}
		select {
		case o := <-looked:
			if o != job.Extend {
				t.Errorf("outcome %d for a lease that ran out after the acknowledgement, want it extended", o)
			}
		case <-time.After(patient):
			t.Error("nobody looked after the lease")
		}
		return store.Store.Settle(context.WithoutCancel(ctx), now, list)
	}
	r := newRig(t, withStore(store), withConfig(func(c *adapter.Config) { c.StoreTimeout = time.Minute }))
	work := r.worker("t.x")
	a := r.schedule("delay.in.0s.t.x", "p", "Delay-Ack-Wait", "200ms", "Delay-Backoff", "0s")
	r.done(receive(t, work))
	if got := r.state(a.ID); got.State != job.Done || got.Attempt != 1 {
		t.Errorf("%s after %d attempts", got.State, got.Attempt)
	}
	nothing(t, work)
}

func TestLeaseOfTheLastAttemptRunsOut(t *testing.T) {
	r := newRig(t)
	work, dead := r.worker("t.x"), r.listen("delay.event.dead")
	r.schedule("delay.in.0s.t.x", "p")
	r.done(receive(t, work))
	a := r.schedule("delay.in.0s.t.x", "p", "Delay-Ack-Wait", "50ms", "Delay-Max-Attempts", "1")
	m := receive(t, work)
	if e := receiveDead(t, dead); e.ID != a.ID || e.Reason != "max_attempts" {
		t.Errorf("event %+v", e)
	}
	if answer := r.settle(m, ""); !strings.HasPrefix(answer, `-ERR {"code":409,`) {
		t.Errorf("completion of a dead job answered %q", answer)
	}
}

// TestLeaseCountsFromThePublish lets a job wait for another one's end after it
// was claimed.
func TestLeaseCountsFromThePublish(t *testing.T) {
	const lease, work = 300 * time.Millisecond, 100 * time.Millisecond
	r := newRig(t, withConfig(func(c *adapter.Config) { c.MaxInFlight = 1 }))
	jobs, dead := r.worker("t.x"), r.listen("delay.event.dead")
	r.scheduleAll(2, always("delay.in.50ms.t.x"), always("p"), "Delay-Ack-Wait", lease.String(), "Delay-Max-Attempts", "1")
	first := receive(t, jobs)
	time.Sleep(work)
	r.done(first)
	asked := time.Now()
	second := receive(t, jobs)
	if e := receiveDead(t, dead); e.ID != second.Header.Get("Delay-Job-Id") || e.Reason != "max_attempts" {
		t.Errorf("event %+v", e)
	}
	// It was published at some time after first was settled, just before asked.
	if took := time.Since(asked); took < lease-50*time.Millisecond || took > lease+600*time.Millisecond {
		t.Errorf("the lease of %v ran out %v after the job was published", lease, took)
	}
}

// TestProgressKeepsTheLease works for more than twice the ack wait.
func TestProgressKeepsTheLease(t *testing.T) {
	r := newRig(t)
	work := r.worker("t.x")
	a := r.schedule("delay.in.0s.t.x", "p", "Delay-Ack-Wait", "800ms", "Delay-Backoff", "0s")
	m := receive(t, work)
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(1800 * time.Millisecond); time.Now().Before(end); <-tick.C {
		if err := m.InProgress(); err != nil {
			t.Fatal(err)
		}
	}
	if answer := r.settle(m, "+WPI"); answer != "" {
		t.Errorf("+WPI answered %q", answer)
	}
	nothing(t, work)
	r.done(m)
	if got := r.state(a.ID); got.State != job.Done || got.Attempt != 1 {
		t.Errorf("%s after %d attempts", got.State, got.Attempt)
	}
}

// holder is a worker that counts how many deliveries it holds at a time.
type holder struct {
	now, most, total atomic.Int64
	release          chan struct{}
}

// hold takes deliveries of target and completes one for each value that
// release gets.
func (r *rig) hold(target string) *holder {
	r.t.Helper()
	h := &holder{release: make(chan struct{}, 10_000)}
	work := r.worker(target)
	held := make(chan *nats.Msg, 10_000)
	var wg sync.WaitGroup
	stop := make(chan struct{})
	wg.Go(func() {
		for {
			select {
			case m := <-work:
				h.total.Add(1)
				h.most.Store(max(h.most.Load(), h.now.Add(1)))
				held <- m
			case <-stop:
				return
			}
		}
	})
	wg.Go(func() {
		for {
			select {
			case <-h.release:
			case <-stop:
				return
			}
			select {
			case m := <-held:
				h.now.Add(-1)
				_ = m.Ack()
			case <-stop:
				return
			}
		}
	})
	r.t.Cleanup(func() { close(stop); wg.Wait() })
	return h
}

func TestCeilingOfATarget(t *testing.T) {
	r := newRig(t, withConfig(func(c *adapter.Config) { c.MaxInFlight = 5 }))
	h := r.hold("t.x")
	ids := r.scheduleAll(100, always("delay.in.0s.t.x"), always("p"))
	// A full target does not delay another one.
	other := r.worker("t.y")
	for range 10 {
		a := r.schedule("delay.in.100ms.t.y", "p")
		m := receive(t, other)
		if late := time.Since(a.Due); late < 0 || late > 2*time.Second {
			t.Errorf("another target's job delivered %v after due", late)
		}
		r.done(m)
	}
	if n := h.total.Load(); n != 5 {
		t.Errorf("%d deliveries in flight, want the ceiling of 5", n)
	}
	for range ids {
		h.release <- struct{}{}
	}
	for _, id := range ids {
		if got := r.becomes(id, job.Done); got.Attempt != 1 {
			t.Errorf("%s took %d attempts", id, got.Attempt)
		}
	}
	if n := h.most.Load(); n > 5 {
		t.Errorf("up to %d deliveries in flight, the ceiling is 5", n)
	}
}

// TestSharedLane puts two targets under one ceiling. The second one must get
// its turn although the first one took all of it.
func TestSharedLane(t *testing.T) {
	r := newRig(t, withConfig(func(c *adapter.Config) { c.Lanes = []adapter.Lane{{Pattern: "group.*", MaxInFlight: 4}} }))
	h := r.hold("group.*")
	first := r.scheduleAll(30, always("delay.in.0s.group.a"), always("p"))
	eventually(t, "the first target fills the lane", func() bool { return h.total.Load() == 4 })
	second := r.scheduleAll(30, always("delay.in.0s.group.b"), always("p"))
	for _, id := range second {
		r.parked(id, "group.b")
	}
	alone := r.worker("alone.x")
	r.schedule("delay.in.0s.alone.x", "p")
	r.done(receive(t, alone))
	start := time.Now()
	for range 60 {
		h.release <- struct{}{}
	}
	for _, id := range append(first, second...) {
		if got := r.becomes(id, job.Done); got.Attempt != 1 {
			t.Errorf("%s took %d attempts", id, got.Attempt)
		}
	}
	if n := h.most.Load(); n > 4 {
		t.Errorf("up to %d deliveries in flight, the ceiling is 4", n)
	}
	if took := time.Since(start); took > 3*time.Second {
		t.Errorf("60 jobs that nothing held up took %v", took)
	}
}

func TestReloadOfTheCeiling(t *testing.T) {
	r := newRig(t)
	cfg := r.cfg.bridge
	cfg.MaxInFlight = 2
	if err := r.bridge.Reload(cfg); err != nil {
		t.Fatal(err)
	}
	h := r.hold("t.x")
	ids := r.scheduleAll(10, always("delay.in.0s.t.x"), always("p"))
	for i := range ids {
		eventually(t, "as many in flight as the new ceiling lets through", func() bool { return h.total.Load() == int64(min(i+2, len(ids))) })
		h.release <- struct{}{}
	}
	for _, id := range ids {
		r.becomes(id, job.Done)
	}
	if n := h.most.Load(); n > 2 {
		t.Errorf("up to %d deliveries in flight, the ceiling is 2", n)
	}
}

// TestOrphanedDelivery ends a delivery behind the back of the bridge that made
// it: its slot must be free again, though nobody acknowledges it and no lease of
// it runs out.
func TestOrphanedDelivery(t *testing.T) {
	r := newRig(t, withConfig(func(c *adapter.Config) { c.MaxInFlight = 1 }))
	work := r.worker("t.x")
	r.schedule("delay.in.0s.t.x", "p")
	r.done(receive(t, work)) // from now on the target has a worker
	a := r.schedule("delay.in.0s.t.x", "p", "Delay-Ack-Wait", "100ms")
	receive(t, work)
	i := r.state(a.ID)
	if res, err := r.store.Settle(context.Background(), job.At(time.Now()), []job.Settlement{{Ref: i.Ref()}}); err != nil || res[0] != job.Settled {
		t.Fatalf("settled behind the bridge's back: %v, %v", res, err)
	}
	b := r.schedule("delay.in.0s.t.x", "next")
	m := receive(t, work)
	if got := m.Header.Get("Delay-Job-Id"); got != b.ID {
		t.Errorf("got %s, want %s", got, b.ID)
	}
	r.done(m)
}

// TestLeaseDoesNotEndWithTheClock sets the clock far ahead while a worker has a
// job: its lease lasts as long as it was told.
func TestLeaseDoesNotEndWithTheClock(t *testing.T) {
	var step atomic.Int64
	store := &countingStore{Store: memdelay.New(memdelay.Options{})}
	r := newRig(t, withStore(store), withConfig(func(c *adapter.Config) {
		c.Now = func() time.Time { return time.Now().Add(time.Duration(step.Load())) }
	}))
	work := r.worker("t.x")
	r.schedule("delay.in.0s.t.x", "p")
	r.done(receive(t, work)) // from now on the target has a worker
	r.schedule("delay.in.0s.t.x", "held", "Delay-Backoff", "0s")
	held := receive(t, work)
	step.Store(int64(time.Hour))
	// What is due by the new clock is delivered, and leases are looked at twice.
	for range 2 {
		r.schedule("delay.in.0s.t.x", "p")
		before := store.looks.Load()
		r.done(receive(t, work))
		for end := time.Now().Add(patient); store.looks.Load() == before; {
			if time.Now().After(end) {
				t.Fatal("nobody looks at leases")
			}
			time.Sleep(time.Millisecond)
		}
	}
	if len(work) > 0 {
		t.Errorf("%q is delivered again", receive(t, work).Data)
	}
	r.done(held)
}
