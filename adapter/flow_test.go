package adapter_test

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/delaybridge/delaybridge/adapter"
	"github.com/delaybridge/delaybridge/internal/testnats"
	"github.com/delaybridge/delaybridge/job"
	"github.com/nats-io/nats.go"
)

// ackAll completes n deliveries and returns them.
func ackAll(t *testing.T, ch <-chan *nats.Msg, n int) (ms []*nats.Msg) {
	t.Helper()
	for range n {
		m := receive(t, ch)
		if err := m.Ack(); err != nil {
			t.Fatal(err)
		}
		ms = append(ms, m)
	}
	return ms
}

// firstAttempts checks that each of ids was delivered once, at attempt 1.
func firstAttempts(t *testing.T, ids []string, ms []*nats.Msg) {
	t.Helper()
	left := map[string]bool{}
	for _, id := range ids {
		left[id] = true
	}
	for _, m := range ms {
		id := m.Header.Get("Delay-Job-Id")
		if !left[id] {
			t.Errorf("%s delivered twice, or never scheduled", id)
		}
		delete(left, id)
		attempt(t, m, 1, time.Time{})
	}
	if len(left) > 0 {
		t.Errorf("%d jobs not delivered", len(left))
	}
}

// parked waits until the job has been set aside: it is pending again, and was
// not charged for what reached nobody.
func (r *rig) parked(id, target string) {
	r.t.Helper()
	eventually(r.t, "jobs of "+target+" are set aside", func() bool {
		waiting, err := r.store.Waiting(r.t.Context())
		info := r.state(id)
		return err == nil && strings.Contains(strings.Join(waiting, " "), target) && info.State == job.Pending && info.Attempt == 0
	})
}

func TestJobsOfAnAbsentTargetWait(t *testing.T) {
	r := newRig(t)
	ids := r.scheduleAll(200, always("delay.in.0s.absent.x"), strconv.Itoa)
	for _, id := range ids {
		r.parked(id, "absent.x")
	}
	ms := ackAll(t, r.worker("absent.x"), len(ids))
	firstAttempts(t, ids, ms)
	for _, id := range ids {
		r.becomes(id, job.Done)
	}
}

// TestBacklogOfAnAbsentTarget measures what a busy target feels of it.
func TestBacklogOfAnAbsentTarget(t *testing.T) {
	const absent, busy = 20_000, 300
	r := newRig(t)
	ids := r.scheduleAll(absent, always("delay.in.0s.absent.x"), always("p"))
	work := r.worker("busy.x")
	start := time.Now()
	for i := range busy {
		r.schedule(fmt.Sprintf("delay.in.%dms.busy.x", 100+i), strconv.Itoa(i))
	}
	for range busy {
		m := receive(t, work)
		due, err := time.Parse(dueLayout, m.Header.Get("Delay-Due"))
		if err != nil {
			t.Fatal(err)
		}
		if late := time.Since(due); late < 0 || late > 2*time.Second {
			t.Errorf("job %s delivered %v after due", m.Data, late)
		}
		attempt(t, m, 1, time.Time{})
		if err := m.Ack(); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("%d jobs beside %d parked ones took %v", busy, absent, time.Since(start))
	firstAttempts(t, ids, ackAll(t, r.worker("absent.x"), absent))
}

// TestSilentSubscriber hides the lack of workers from the server: a subscriber
// of everything never answers.
func TestSilentSubscriber(t *testing.T) {
	r := newRig(t, withConfig(func(c *adapter.Config) { c.ProbeMin, c.ProbeMax = 20*time.Millisecond, 100*time.Millisecond }))
	r.listen(">")
	ids := r.scheduleAll(50, always("delay.in.0s.t.x"), always("p"), "Delay-Ack-Wait", "500ms", "Delay-Backoff", "10ms", "Delay-Max-Attempts", "0")
	eventually(t, "the target is parked", func() bool {
		waiting, err := r.store.Waiting(t.Context())
		return err == nil && len(waiting) == 1
	})
	charged := 0
	for _, id := range ids {
		if r.state(id).Attempt > 1 {
			charged++
		}
	}
	if charged > 0 {
		t.Errorf("%d jobs were charged for a first lease that nobody answered", charged)
	}
	var wg sync.WaitGroup
	stop := make(chan struct{})
	work := r.worker("t.x")
	wg.Go(func() {
		for {
			select {
			case m := <-work:
				_ = m.Ack()
			case <-stop:
				return
			}
		}
	})
	defer wg.Wait()
	defer close(stop)
	for _, id := range ids {
		r.becomes(id, job.Done)
	}
}

const bridgeAndClient = `authorization: {users: [
	{user: client, password: x},
	{user: bridge, password: x, permissions: {publish: {deny: [%q]}}}]}`

func TestTargetWithoutPermission(t *testing.T) {
	deny := func(s string) testnats.Option { return testnats.Config(fmt.Sprintf(bridgeAndClient, s)) }
	r := newRig(t, withNATS(deny("secret.>")), withUsers(nats.UserInfo("bridge", "x"), nats.UserInfo("client", "x")))
	secret, open := r.worker("secret.x"), r.worker("open.x")
	ids := r.scheduleAll(30, always("delay.in.0s.secret.x"), always("p"))
	none := r.scheduleAll(30, always("delay.in.0s.secret.x"), always("p"), "Delay-Ack", "none")
	others := r.scheduleAll(30, always("delay.in.0s.open.x"), always("p"))
	firstAttempts(t, others, ackAll(t, open, len(others)))
	ids = append(ids, none...)
	for _, id := range ids {
		r.parked(id, "secret.x")
	}
	nothing(t, secret)
	r.srv.Reload(t, deny("nothing"))
	var ms []*nats.Msg
	for range ids {
		m := receive(t, secret)
		if m.Reply != "" {
			if err := m.Ack(); err != nil {
				t.Fatal(err)
			}
		}
		ms = append(ms, m)
	}
	firstAttempts(t, ids, ms)
	for _, id := range ids {
		r.becomes(id, job.Done)
	}
}

// TestSlowWorker gives 1,000 due jobs to one worker that handles one after the
// other. In all they take several times the ack wait, so that a bridge which
// sent too many at once would have to send some again.
func TestSlowWorker(t *testing.T) {
	const jobs, pace = 1000, 2 * time.Millisecond
	r := newRig(t)
	work := r.worker("t.x")
	ids := r.scheduleAll(jobs, always("delay.in.50ms.t.x"), always("p"), "Delay-Ack-Wait", "900ms")
	var ms []*nats.Msg
	for range jobs {
		m := receive(t, work)
		time.Sleep(pace) // the work
		if err := m.Ack(); err != nil {
			t.Fatal(err)
		}
		ms = append(ms, m)
	}
	firstAttempts(t, ids, ms)
	for _, id := range ids {
		r.becomes(id, job.Done)
	}
	nothing(t, work)
}

// TestDueOrder schedules jobs in random order and expects them in that of their
// due times.
func TestDueOrder(t *testing.T) {
	const jobs = 5000
	r := newRig(t)
	work := r.worker("t.x")
	at := time.Now().Add(500 * time.Millisecond).UnixMilli()
	ids := r.scheduleAll(jobs, func(int) string { return fmt.Sprintf("delay.at.%d.t.x", at+rand.Int64N(500)) }, always("p"))
	ms := ackAll(t, work, jobs)
	firstAttempts(t, ids, ms)
	inDueOrder(t, ms)
}

// TestDueOrderOfASlowWorker does the same with a worker that falls behind, so
// that jobs are set aside.
func TestDueOrderOfASlowWorker(t *testing.T) {
	const jobs = 1000
	r := newRig(t, withConfig(func(c *adapter.Config) { c.MaxInFlight = 20 }))
	work := r.worker("t.x")
	at := time.Now().Add(300 * time.Millisecond).UnixMilli()
	ids := r.scheduleAll(jobs, func(int) string { return fmt.Sprintf("delay.at.%d.t.x", at+rand.Int64N(700)) }, always("p"))
	var ms []*nats.Msg
	for len(ms) < jobs {
		m := receive(t, work)
		time.Sleep(1500 * time.Microsecond) // the work
		if err := m.Ack(); err != nil {
			t.Fatal(err)
		}
		ms = append(ms, m)
	}
	firstAttempts(t, ids, ms)
	inDueOrder(t, ms)
}

func inDueOrder(t *testing.T, ms []*nats.Msg) {
	t.Helper()
	last, wrong := "", 0
	for i, m := range ms {
		due := m.Header.Get("Delay-Due")
		if due < last {
			if wrong++; wrong == 1 {
				t.Errorf("delivery %d was due at %s, the one before at %s", i, due, last)
			}
		}
		last = due
	}
	if wrong > 0 {
		t.Errorf("%d of %d deliveries out of order", wrong, len(ms))
	}
}

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

// TestProgressKeepsTheLease works for three times the ack wait.
func TestProgressKeepsTheLease(t *testing.T) {
	r := newRig(t)
	work := r.worker("t.x")
	a := r.schedule("delay.in.0s.t.x", "p", "Delay-Ack-Wait", "1s", "Delay-Backoff", "0s")
	m := receive(t, work)
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(3 * time.Second); time.Now().Before(end); <-tick.C {
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
