package adapter_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/delaybridge/delaybridge/adapter"
	"github.com/delaybridge/delaybridge/job"
	"github.com/delaybridge/delaybridge/memdelay"
	"github.com/nats-io/nats.go"
)

// stopping tells the bridge to stop, waits until it has left the intake, and
// returns a function that waits for the end of Run.
func (r *rig) stopping() (wait func()) {
	r.t.Helper()
	done := make(chan error, 1)
	stop := r.stop
	go func() { done <- stop() }()
	eventually(r.t, "the bridge leaves the intake", func() bool {
		_, err := r.nc.Request("delay.to.nowhere", nil, patient) // refused while it is there
		return errors.Is(err, nats.ErrNoResponders)
	})
	return func() {
		r.t.Helper()
		select {
		case err := <-done:
			if err != nil {
				r.t.Errorf("Run: %v", err)
			}
		case <-time.After(patient):
			r.t.Fatal("Run does not return")
		}
	}
}

func longDrain(c *adapter.Config) { c.Drain = patient / 2 }

func TestStopWithNothingToDo(t *testing.T) {
	r := newRig(t, withConfig(longDrain))
	r.schedule("delay.in.1h.t.x", "p")
	if err := r.stop(); err != nil {
		t.Errorf("Run: %v", err)
	}
}

func TestStopServesAcknowledgements(t *testing.T) {
	r := newRig(t, withConfig(longDrain))
	work, results := r.worker("t.x"), r.listen("results")
	ids := r.scheduleAll(3, always("delay.in.0s.t.x"), always("p"), "Delay-Backoff", "1h", "Delay-Reply-To", "results")
	first, second, third := receive(t, work), receive(t, work), receive(t, work)
	wait := r.stopping()
	r.done(first)
	if answer := r.settle(second, "-NAK"); answer != "" {
		t.Errorf("NAK answered %q", answer)
	}
	// The last one ends the drain, maybe before its answer would.
	if err := third.Respond([]byte("+ACK value")); err != nil {
		t.Fatal(err)
	}
	wait()
	if got := string(receive(t, results).Data); got != "value" {
		t.Errorf("result %q", got)
	}
	for i, want := range []job.State{job.Done, job.Pending, job.Done} {
		if got := r.state(ids[i]).State; got != want {
			t.Errorf("job %d is %s, want %s", i, got, want)
		}
	}
}

// TestStopEndsWithItsDrainTime leaves a delivery with its worker, whose
// acknowledgement is accepted by the next bridge of that name.
func TestStopEndsWithItsDrainTime(t *testing.T) {
	r := newRig(t, withConfig(func(c *adapter.Config) { c.Drain = 50 * time.Millisecond }))
	work := r.worker("t.x")
	a := r.schedule("delay.in.0s.t.x", "p")
	m := receive(t, work)
	if err := r.stop(); err != nil {
		t.Errorf("Run: %v", err)
	}
	if got := r.state(a.ID); got.State != job.Running || got.Attempt != 1 {
		t.Errorf("%s at attempt %d", got.State, got.Attempt)
	}
	if _, err := r.nc.Request(m.Reply, nil, patient); !errors.Is(err, nats.ErrNoResponders) {
		t.Errorf("completion while no bridge runs: %v", err)
	}
	r.start()
	r.done(m)
	if got := r.state(a.ID).State; got != job.Done {
		t.Errorf("state %s", got)
	}
	nothing(t, work)
}

// TestStopGivesBackWhatWasClaimed stops between claim and due time.
func TestStopGivesBackWhatWasClaimed(t *testing.T) {
	r := newRig(t, withConfig(func(c *adapter.Config) { c.ClaimAhead, c.Drain = time.Second, patient/2 }))
	work := r.worker("t.x")
	at := time.Now().Add(1200 * time.Millisecond).UnixMilli()
	ids := r.scheduleAll(500, func(int) string { return fmt.Sprintf("delay.at.%d.t.x", at) }, always("p"))
	eventually(t, "all jobs are claimed", func() bool {
		for _, id := range ids {
			if r.state(id).State != job.Running {
				return false
			}
		}
		return true
	})
	if err := r.stop(); err != nil {
		t.Errorf("Run: %v", err)
	}
	if time.Now().UnixMilli() >= at {
		t.Fatal("too slow to stop before the jobs are due")
	}
	for _, id := range ids {
		if got := r.state(id); got.State != job.Pending || got.Attempt != 0 || got.Next != job.Time(at*1000) {
			t.Fatalf("%s at attempt %d, next at %v", got.State, got.Attempt, got.Next.Time())
		}
	}
	nothing(t, work)
	r.start()
	ms := ackAll(t, work, len(ids))
	firstAttempts(t, ids, ms)
	for _, m := range ms {
		attempt(t, m, 1, time.UnixMilli(at))
	}
}

// TestStopAmongPublishedJobs stops while jobs that nobody acknowledges are
// being published: what was published is done, the rest was not touched.
func TestStopAmongPublishedJobs(t *testing.T) {
	r := newRig(t, withConfig(longDrain))
	work := r.worker("t.x")
	at := time.Now().Add(300 * time.Millisecond).UnixMilli()
	ids := r.scheduleAll(1000, func(i int) string { return fmt.Sprintf("delay.at.%d.t.x", at+int64(i/5)) }, always("p"), "Delay-Ack", "none")
	delivered := map[string]bool{}
	for range 300 {
		delivered[receive(t, work).Header.Get("Delay-Job-Id")] = true
	}
	r.stopping()()
	r.flush()
	for len(work) > 0 {
		id := (<-work).Header.Get("Delay-Job-Id")
		if delivered[id] {
			t.Errorf("%s delivered twice", id)
		}
		delivered[id] = true
	}
	for i, id := range ids {
		switch got := r.state(id); {
		case delivered[id] && got.State != job.Done:
			t.Fatalf("job %d was delivered and is %s", i, got.State)
		case !delivered[id] && (got.State != job.Pending || got.Attempt != 0):
			t.Fatalf("job %d was not delivered and is %s at attempt %d", i, got.State, got.Attempt)
		}
	}
	t.Logf("%d of %d delivered", len(delivered), len(ids))
}

// TestStopAnswersEveryProducer publishes while the bridge stops: each message
// is stored and answered, or reported by the server as nobody's.
func TestStopAnswersEveryProducer(t *testing.T) {
	r := newRig(t, withConfig(longDrain))
	inbox := r.nc.NewRespInbox()
	replies := r.listen(inbox + ".*")
	var wg sync.WaitGroup
	started := make(chan struct{})
	const n = 20_000
	wg.Go(func() {
		for i := range n {
			if err := r.nc.PublishRequest("delay.in.1h.t.x", inbox+"."+strconv.Itoa(i), nil); err != nil {
				t.Error(err)
			}
			if i == n/10 {
				r.flush() // so that the bridge has some of them
				close(started)
			}
		}
	})
	<-started
	if err := r.stop(); err != nil {
		t.Errorf("Run: %v", err)
	}
	wg.Wait()
	stored, refused := 0, 0
	for range n {
		m := receive(t, replies)
		if m.Header.Get("Status") == "503" {
			refused++
			continue
		}
		a := decodeAck(t, m)
		if a.Error != nil {
			t.Fatalf("refused: %+v", *a.Error)
		}
		if r.state(a.ID).State != job.Pending {
			t.Fatalf("answered and not stored: %+v", a)
		}
		stored++
	}
	nothing(t, replies)
	if stored == 0 {
		t.Error("none stored")
	}
	t.Logf("%d stored, %d refused", stored, refused)
}

// TestStopWithABrokenStore must end although nothing can be settled.
func TestStopWithABrokenStore(t *testing.T) {
	store := &faultStore{Store: memdelay.New(memdelay.Options{})}
	store.settle = func(context.Context, job.Time, []job.Settlement) ([]job.SettleResult, error) {
		return nil, errors.New("broken")
	}
	r := newRig(t, withStore(store), withConfig(func(c *adapter.Config) { c.Drain = 50 * time.Millisecond }))
	work := r.worker("t.x")
	r.schedule("delay.in.0s.t.x", "p")
	if err := receive(t, work).Ack(); err != nil {
		t.Fatal(err)
	}
	r.stopping()()
}

func TestTwoBridgesOfOneID(t *testing.T) {
	r := newRig(t)
	_, run := r.newBridge()
	if err := run(t.Context()); !errors.Is(err, adapter.ErrIDInUse) {
		t.Errorf("error %v, want %v", err, adapter.ErrIDInUse)
	}
	r.schedule("delay.in.1h.t.x", "the first one still works")
	if err := r.stop(); err != nil {
		t.Errorf("Run: %v", err)
	}
	r.start() // the id is free again
	r.schedule("delay.in.1h.t.x", "p")
}

func second(c *adapter.Config) { c.ID, c.Drain = "b2", patient/2 }

// TestPeerTakesOver stops one of two bridges while workers hold its deliveries.
func TestPeerTakesOver(t *testing.T) {
	r := newRig(t, withConfig(longDrain))
	work, results := r.worker("t.x"), r.listen("results")
	ids := r.scheduleAll(4, always("delay.in.0s.t.x"), always("p"), "Delay-Reply-To", "results", "Delay-Backoff", "1h", "Delay-Ack-Wait", "10s")
	var ms []*nats.Msg
	for range ids {
		ms = append(ms, receive(t, work))
	}
	peer := newRig(t, beside(r), withConfig(second))
	if err := r.stop(); err != nil {
		t.Errorf("Run: %v", err)
	}
	r.done(ms[0])
	r.done(ms[0])
	for i, verb := range []string{"+ACK value", "-NAK", "+WPI"} {
		if answer := r.settle(ms[i+1], verb); answer != "" {
			t.Errorf("%q answered %q", verb, answer)
		}
	}
	if got := string(receive(t, results).Data); got != "value" {
		t.Errorf("result %q", got)
	}
	for i, want := range []job.State{job.Done, job.Done, job.Pending, job.Running} {
		if got := r.state(ids[i]); got.State != want || got.Attempt != 1 {
			t.Errorf("job %d is %s at attempt %d, want %s", i, got.State, got.Attempt, want)
		}
	}
	if next := r.state(ids[2]).Next.Time(); time.Until(next) < 50*time.Minute {
		t.Errorf("the peer does not keep to the job's backoff: next attempt at %v", next)
	}
	// The first one comes back and serves its acknowledgements itself, also
	// when the peer has gone.
	r.start()
	if err := peer.stop(); err != nil {
		t.Errorf("Run of the peer: %v", err)
	}
	r.done(ms[3])
	nothing(t, work)
}

// TestRollingStop stops one bridge after the other, as an upgrade does: whoever
// serves the acknowledgements of one that stopped passes them on.
func TestRollingStop(t *testing.T) {
	r := newRig(t, withConfig(longDrain))
	work := r.worker("t.x")
	a := r.schedule("delay.in.0s.t.x", "p", "Delay-Ack-Wait", "10s")
	m := receive(t, work)
	next := newRig(t, beside(r), withConfig(second))
	if err := r.stop(); err != nil {
		t.Errorf("Run of the first: %v", err)
	}
	newRig(t, beside(r), withConfig(func(c *adapter.Config) { c.ID = "b3" }))
	if err := next.stop(); err != nil {
		t.Errorf("Run of the second: %v", err)
	}
	r.done(m)
	if got := r.state(a.ID); got.State != job.Done || got.Attempt != 1 {
		t.Errorf("%s after %d attempts", got.State, got.Attempt)
	}
	nothing(t, work)
}

// TestTakeoverUnderLoad lets workers acknowledge while a bridge stops: with a
// peer there, nothing is delivered twice.
func TestTakeoverUnderLoad(t *testing.T) {
	const jobs = 4000
	r := newRig(t, withConfig(longDrain))
	newRig(t, beside(r), withConfig(second))
	work := r.worker("t.x")
	at := time.Now().Add(300 * time.Millisecond).UnixMilli()
	ids := r.scheduleAll(jobs, func(i int) string { return fmt.Sprintf("delay.at.%d.t.x", at+int64(i/10)) }, always("p"), "Delay-Ack-Wait", "2s")
	var wg sync.WaitGroup
	var ms []*nats.Msg
	half := make(chan struct{})
	wg.Go(func() {
		for len(ms) < jobs {
			m := receive(t, work)
			if err := m.Ack(); err != nil {
				t.Error(err)
			}
			if ms = append(ms, m); len(ms) == jobs/2 {
				close(half)
			}
		}
	})
	<-half
	if err := r.stop(); err != nil {
		t.Errorf("Run: %v", err)
	}
	wg.Wait()
	firstAttempts(t, ids, ms)
	for _, id := range ids {
		r.becomes(id, job.Done)
	}
	nothing(t, work)
}

// TestServerRestart takes the NATS server away while jobs fall due.
func TestServerRestart(t *testing.T) {
	const jobs = 2000
	again := nats.Option(func(o *nats.Options) error {
		o.ReconnectWait, o.MaxReconnect = 10*time.Millisecond, -1
		return nil
	})
	r := newRig(t, withUsers(again, again))
	work := r.worker("t.x")
	at := time.Now().Add(400 * time.Millisecond).UnixMilli()
	ids := r.scheduleAll(jobs, func(i int) string { return fmt.Sprintf("delay.at.%d.t.x", at+int64(i/4)) }, always("p"),
		"Delay-Ack-Wait", "500ms", "Delay-Backoff", "10ms", "Delay-Max-Attempts", "0")
	var wg sync.WaitGroup
	stop, some := make(chan struct{}), make(chan struct{})
	wg.Go(func() {
		for n := 0; ; n++ {
			if n == jobs/4 {
				close(some)
			}
			select {
			case m := <-work:
				_ = m.Ack() // lost with the connection, now and then
			case <-stop:
				return
			}
		}
	})
	defer wg.Wait()
	defer close(stop)
	<-some
	r.srv.Restart(t)
	for _, id := range ids {
		r.becomes(id, job.Done)
	}
	if a := r.schedule("delay.in.1h.t.x", "p"); a.Seq <= jobs {
		t.Errorf("seq %d after %d jobs", a.Seq, jobs)
	}
}
