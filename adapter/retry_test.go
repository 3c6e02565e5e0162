package adapter_test

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/delaybridge/delaybridge/adapter"
	"github.com/delaybridge/delaybridge/internal/testnats"
	"github.com/delaybridge/delaybridge/job"
	"github.com/delaybridge/delaybridge/memdelay"
	"github.com/nats-io/nats.go/jetstream"
)

// TestBackoff walks through explicit steps, of which the last one repeats,
// until the attempts are used up.
func TestBackoff(t *testing.T) {
	r := newRig(t)
	work, dead := r.worker("t.x"), r.listen("delay.event.dead")
	steps := []time.Duration{30 * time.Millisecond, 90 * time.Millisecond, 90 * time.Millisecond}
	a := r.schedule("delay.in.0s.t.x", "p", "Delay-Backoff", "30ms,90ms", "Delay-Max-Attempts", "4")
	notBefore := a.Due
	for i := 1; ; i++ {
		m := receive(t, work)
		attempt(t, m, i, notBefore)
		if i > len(steps) {
			r.settle(m, "-NAK 1h") // the last one: no delay helps
			break
		}
		notBefore = time.Now().Add(steps[i-1])
		if err := m.Nak(); err != nil {
			t.Fatal(err)
		}
	}
	if got := r.state(a.ID); got.State != job.Dead || got.Reason != "max_attempts" || got.Attempt != 4 {
		t.Errorf("%s %q after %d attempts", got.State, got.Reason, got.Attempt)
	}
	want := deadEvent{Bridge: "b1", ID: a.ID, Target: "t.x", Reason: "max_attempts", Attempt: 4}
	if e := receiveDead(t, dead); e != want {
		t.Errorf("event %+v, want %+v", e, want)
	}
}

func TestRequeuedJobStartsANewBudget(t *testing.T) {
	r := newRig(t)
	work := r.worker("t.x")
	a := r.schedule("delay.in.0s.t.x", "p", "Delay-Max-Attempts", "2", "Delay-Backoff", "0s")
	for i := 1; i <= 2; i++ {
		m := receive(t, work)
		attempt(t, m, i, a.Due)
		r.settle(m, "-NAK")
	}
	if got := r.state(a.ID).State; got != job.Dead {
		t.Fatalf("state %s", got)
	}
	c, err := r.store.Reschedule(t.Context(), []job.Reschedule{{ID: a.ID, Due: job.At(time.Now()), Requeue: true}})
	if err != nil || c[0].Result != job.ResultDone {
		t.Fatalf("requeue: %+v, error %v", c, err)
	}
	for i := 3; i <= 4; i++ {
		m := receive(t, work)
		attempt(t, m, i, a.Due)
		r.settle(m, "-NAK")
	}
	if got := r.state(a.ID); got.State != job.Dead || got.Attempt != 4 {
		t.Errorf("%s after %d attempts", got.State, got.Attempt)
	}
}

func TestNoLimitOfAttempts(t *testing.T) {
	r := newRig(t, withConfig(func(c *adapter.Config) { c.MaxAttempts = 2 }))
	work := r.worker("t.x")
	a := r.schedule("delay.in.0s.t.x", "p", "Delay-Max-Attempts", "0", "Delay-Backoff", "0s")
	for i := 1; i <= 30; i++ {
		m := receive(t, work)
		attempt(t, m, i, a.Due)
		if i == 30 {
			r.done(m)
			break
		}
		r.settle(m, "-NAK")
	}
}

func TestExpires(t *testing.T) {
	r := newRig(t)
	work, dead := r.worker("t.x"), r.listen("delay.event.dead")
	late := r.schedule("delay.at.1000000000.t.x", "p", "Delay-Expires", "1h")
	past := r.schedule("delay.in.50ms.t.x", "p", "Delay-Expires", "1970-01-01T00:00:00Z")
	for range 2 {
		e := receiveDead(t, dead)
		if e.ID != late.ID && e.ID != past.ID || e.Reason != "expired" {
			t.Errorf("event %+v", e)
		}
		if got := r.state(e.ID); got.State != job.Dead || got.Reason != "expired" {
			t.Errorf("%s %q", got.State, got.Reason)
		}
	}
	nothing(t, work)
	// One that fails for so long that it expires between two attempts.
	retried := r.schedule("delay.in.0s.t.x", "p", "Delay-Expires", "300ms")
	r.settle(receive(t, work), "-NAK 400ms")
	if e := receiveDead(t, dead); e.ID != retried.ID || e.Reason != "expired" {
		t.Errorf("event %+v", e)
	}
	nothing(t, work)
	if time.Now().Before(retried.Due.Add(300 * time.Millisecond)) {
		t.Error("dead before it expired")
	}
}

// TestForbiddenWhenFired forbids a target while a job for it waits.
func TestForbiddenWhenFired(t *testing.T) {
	r := newRig(t)
	work, dead := r.worker("*.x"), r.listen("delay.event.dead")
	a := r.schedule("delay.in.300ms.secret.x", "p")
	b := r.schedule("delay.in.300ms.open.x", "p")
	cfg := r.cfg.bridge
	cfg.AllowTargets = []string{"open.>"}
	if err := r.bridge.Reload(cfg); err != nil {
		t.Fatal(err)
	}
	if e := receiveDead(t, dead); e.ID != a.ID || e.Reason != "forbidden target" || e.Target != "secret.x" {
		t.Errorf("event %+v", e)
	}
	if got := r.state(a.ID); got.State != job.Dead || got.Reason != "forbidden target" {
		t.Errorf("%s %q", got.State, got.Reason)
	}
	m := receive(t, work)
	if m.Header.Get("Delay-Job-Id") != b.ID {
		t.Errorf("delivered %s on %s", m.Header.Get("Delay-Job-Id"), m.Subject)
	}
	r.done(m)
	nothing(t, work)
}

func TestReloadChecks(t *testing.T) {
	r := newRig(t)
	cfg := r.cfg.bridge
	cfg.AllowTargets = []string{"a..b"}
	if err := r.bridge.Reload(cfg); err == nil || !strings.Contains(err.Error(), "targets.allow") {
		t.Errorf("error %v, want one that names targets.allow", err)
	}
	r.schedule("delay.in.1h.t.x", "still all targets")
}

func TestAckNone(t *testing.T) {
	r := newRig(t)
	work := r.worker("t.x")
	ids := r.scheduleAll(300, always("delay.in.50ms.t.x"), strconv.Itoa, "Delay-Ack", "none")
	for i := range ids {
		m := receive(t, work)
		if m.Reply != "" || string(m.Data) != strconv.Itoa(i) {
			t.Fatalf("delivered %q with reply %q, want %d without", m.Data, m.Reply, i)
		}
	}
	for _, id := range ids {
		r.becomes(id, job.Done)
	}
	nothing(t, work)
}

// TestAckStream delivers into a real stream.
func TestAckStream(t *testing.T) {
	r := newRig(t, withNATS(testnats.JetStream(t.TempDir())))
	js, err := jetstream.New(r.nc)
	if err != nil {
		t.Fatal(err)
	}
	cfg := jetstream.StreamConfig{Name: "S", Subjects: []string{"s.>"}, MaxMsgs: 2, Discard: jetstream.DiscardNew}
	stream, err := js.CreateStream(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 2 {
		a := r.schedule("delay.in.0s.s.x", "p"+strconv.Itoa(i), "Delay-Ack", "stream", "Nats-Msg-Id", "id"+strconv.Itoa(i), "X", "kept")
		done := r.becomes(a.ID, job.Done)
		m, err := stream.GetMsg(t.Context(), uint64(i+1))
		if err != nil || string(m.Data) != "p"+strconv.Itoa(i) || m.Header.Get("X") != "kept" {
			t.Fatalf("in the stream: %v, error %v", m, err)
		}
		if got, want := m.Header.Get("Nats-Msg-Id"), fmt.Sprintf("%s.%d", a.ID, done.Incarnation); got != want {
			t.Errorf("Nats-Msg-Id %q, want %q", got, want)
		}
	}
	// A full stream refuses: the job is tried again until there is room.
	a := r.schedule("delay.in.0s.s.x", "p2", "Delay-Ack", "stream", "Delay-Backoff", "20ms", "Delay-Max-Attempts", "0")
	eventually(t, "the refused job was tried twice", func() bool { return r.state(a.ID).Attempt >= 2 })
	cfg.MaxMsgs = 3
	if stream, err = js.UpdateStream(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	r.becomes(a.ID, job.Done)
	if info, err := stream.Info(t.Context()); err != nil || info.State.Msgs != 3 {
		t.Errorf("stream %+v, error %v", info, err)
	}
}

// TestAckStreamNeverTwice lets the bridge deliver a job again whose PubAck was
// lost: the stream keeps one.
func TestAckStreamNeverTwice(t *testing.T) {
	store := &faultStore{Store: memdelay.New(memdelay.Options{})}
	var lost atomic.Bool
	store.settle = func(ctx context.Context, now job.Time, list []job.Settlement) ([]job.SettleResult, error) {
		for i := range list {
			if list[i].Outcome == job.Complete && !lost.Swap(true) {
				list[i].Outcome, list[i].At = job.Retry, now // as if its lease had run out
			}
		}
		return store.Store.Settle(ctx, now, list)
	}
	r := newRig(t, withNATS(testnats.JetStream(t.TempDir())), withStore(store))
	js, err := jetstream.New(r.nc)
	if err != nil {
		t.Fatal(err)
	}
	stream, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "S", Subjects: []string{"s.>"}})
	if err != nil {
		t.Fatal(err)
	}
	a := r.schedule("delay.in.0s.s.x", "p", "Delay-Ack", "stream")
	if got := r.becomes(a.ID, job.Done); got.Attempt != 2 {
		t.Errorf("done at attempt %d, want 2", got.Attempt)
	}
	if info, err := stream.Info(t.Context()); err != nil || info.State.Msgs != 1 {
		t.Errorf("stream %+v, error %v", info, err)
	}
}
