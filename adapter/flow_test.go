package adapter_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/delaybridge/delaybridge/adapter"
	"github.com/delaybridge/delaybridge/internal/testnats"
	"github.com/delaybridge/delaybridge/job"
	"github.com/delaybridge/delaybridge/memdelay"
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

// farStore is a store whose claims take a round trip.
type farStore struct {
	job.Store
	trip time.Duration
}

func (s farStore) Claim(ctx context.Context, r job.ClaimRequest) (job.Claimed, error) {
	time.Sleep(s.trip / 2)
	defer time.Sleep(s.trip / 2)
	return s.Store.Claim(ctx, r)
}

// TestTargetOfAFarStoreOpensAgain: jobs of a target whose worker comes late are set
// aside. The worker keeps up, so the target has to open, although further jobs fall
// due within each round trip.
func TestTargetOfAFarStoreOpensAgain(t *testing.T) {
	r, reg := measured(t, withStore(farStore{memdelay.New(memdelay.Options{}), 20 * time.Millisecond}))
	ctx, stop := context.WithCancel(t.Context())
	var stream sync.WaitGroup
	defer stream.Wait()
	defer stop()
	stream.Go(func() {
		for tick := time.NewTicker(5 * time.Millisecond); ctx.Err() == nil; <-tick.C {
			if err := r.nc.Publish("delay.in.300ms.t.x", nil); err != nil {
				t.Error(err)
				return
			}
		}
	})
	becomesMetric(t, reg, 1, "delaybridge_lanes", "state", "parked")
	early := make(chan time.Duration, 1)
	if _, err := r.nc.QueueSubscribe("t.x", "workers", func(m *nats.Msg) {
		if due, err := time.Parse(dueLayout, m.Header.Get("Delay-Due")); err != nil || time.Now().Before(due) {
			select {
			case early <- time.Until(due):
			default:
			}
		}
		_ = m.Ack()
	}); err != nil {
		t.Fatal(err)
	}
	becomesMetric(t, reg, 1, "delaybridge_lanes", "state", "open")
	select {
	case by := <-early:
		t.Errorf("a job came %v before it was due", by)
	default:
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
// other. In all they take longer than the ack wait, so that a bridge which sent
// all at once would have to send some again.
func TestSlowWorker(t *testing.T) {
	const jobs, pace = 1000, 3 * time.Millisecond
	r := newRig(t)
	work := r.worker("t.x")
	ids := r.scheduleAll(jobs, always("delay.in.50ms.t.x"), always("p"), "Delay-Ack-Wait", "2s")
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
	ids := r.scheduleAhead(work, jobs, 500)
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
	ids := r.scheduleAhead(work, jobs, 700)
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

// scheduleAhead schedules n jobs for t.x at random instants within spread
// milliseconds, all of them before the first is due: a job that was stored after
// it was due has no place in the order.
func (r *rig) scheduleAhead(work <-chan *nats.Msg, n int, spread int64) []string {
	r.t.Helper()
	for lead := 500 * time.Millisecond; ; lead *= 2 {
		at := time.Now().Add(lead)
		ids := r.scheduleAll(n, func(int) string { return fmt.Sprintf("delay.at.%d.t.x", at.UnixMilli()+rand.Int64N(spread)) }, always("p"))
		if time.Now().Before(at) {
			return ids
		}
		ackAll(r.t, work, n)
	}
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
