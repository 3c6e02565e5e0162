package adapter_test

import (
	"context"
	"encoding/json"
	"errors"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/delaybridge/delaybridge/job"
	"github.com/delaybridge/delaybridge/memdelay"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"
)

// attempt checks which attempt m is and that it did not come early.
func attempt(t *testing.T, m *nats.Msg, want int, notBefore time.Time) {
	t.Helper()
	if now := time.Now(); now.Before(notBefore) {
		t.Errorf("attempt %d came %v early", want, notBefore.Sub(now))
	}
	if got := m.Header.Get("Delay-Attempt"); got != strconv.Itoa(want) {
		t.Errorf("attempt %s, want %d", got, want)
	}
}

// deadEvent is what delay.event.dead carries.
type deadEvent struct {
	Bridge, ID, Target, Reason string
	Attempt                    int
}

func receiveDead(t *testing.T, ch <-chan *nats.Msg) (e deadEvent) {
	t.Helper()
	if err := json.Unmarshal(receive(t, ch).Data, &e); err != nil {
		t.Fatal(err)
	}
	return e
}

// TestVerbsOfTheGoClient settles with the methods of a plain message.
func TestVerbsOfTheGoClient(t *testing.T) {
	r := newRig(t)
	work := r.worker("t.x")
	for name, c := range map[string]struct {
		settle func(*nats.Msg) error
		state  job.State
		reason string
	}{
		"Ack":          {func(m *nats.Msg) error { return m.Ack() }, job.Done, ""},
		"AckSync":      {func(m *nats.Msg) error { return m.AckSync() }, job.Done, ""},
		"Term":         {func(m *nats.Msg) error { return m.Term() }, job.Dead, "terminated"},
		"Nak":          {func(m *nats.Msg) error { return m.Nak() }, job.Pending, ""},
		"NakWithDelay": {func(m *nats.Msg) error { return m.NakWithDelay(time.Hour) }, job.Pending, ""},
	} {
		a := r.schedule("delay.in.0s.t.x", name, "Delay-Backoff", "1h")
		m := receive(t, work)
		before := time.Now()
		if err := c.settle(m); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		got := r.becomes(a.ID, c.state)
		if got.Reason != c.reason {
			t.Errorf("%s: reason %q, want %q", name, got.Reason, c.reason)
		}
		if next := got.Next.Time(); c.state == job.Pending && (next.Before(before.Add(time.Hour)) || next.After(time.Now().Add(time.Hour))) {
			t.Errorf("%s: next attempt at %v, want an hour from %v", name, next, before)
		}
	}
}

// TestVerbs settles with the bodies that any client can send.
func TestVerbs(t *testing.T) {
	r := newRig(t)
	work := r.worker("t.x")
	for verb, c := range map[string]struct {
		state  job.State
		reason string
		after  time.Duration // until the next attempt
	}{
		"":                           {state: job.Done},
		"+ACK":                       {state: job.Done},
		"+ACK ":                      {state: job.Done},
		"+ACK some result":           {state: job.Done},
		"+OK":                        {state: job.Done},
		"-NAK":                       {state: job.Pending, after: time.Hour},
		"-NAK 90m":                   {state: job.Pending, after: 90 * time.Minute},
		"-NAK {\"delay\":120000000}": {state: job.Pending, after: 120 * time.Millisecond},
		"-NAK {}":                    {state: job.Pending, after: time.Hour},
		"-NAK {\"reason\":\"why\"}":  {state: job.Pending, after: time.Hour},
		"-NAK 2000000h":              {state: job.Pending, after: 3653 * 24 * time.Hour}, // jobs.max_delay
		"+TERM":                      {state: job.Dead, reason: "terminated"},
		"+TERM no such order: 7":     {state: job.Dead, reason: "terminated: no such order: 7"},
	} {
		a := r.schedule("delay.in.0s.t.x", verb, "Delay-Backoff", "1h")
		m := receive(t, work)
		before := time.Now()
		if answer := r.settle(m, verb); answer != "" {
			t.Errorf("%q answered %q", verb, answer)
		}
		got := r.state(a.ID)
		if got.State != c.state || got.Reason != c.reason {
			t.Errorf("%q: %s %q, want %s %q", verb, got.State, got.Reason, c.state, c.reason)
		}
		if c.state == job.Pending && (got.Next < job.At(before.Add(c.after))-1 || got.Next > job.At(time.Now().Add(c.after))) {
			t.Errorf("%q: next attempt at %v, want %v from %v", verb, got.Next.Time(), c.after, before)
		}
		if c.after == 120*time.Millisecond {
			m := receive(t, work)
			attempt(t, m, 2, before.Add(c.after))
			r.done(m)
		}
	}
}

func TestLongReasonIsCut(t *testing.T) {
	r := newRig(t)
	work := r.worker("t.x")
	a := r.schedule("delay.in.0s.t.x", "p")
	if answer := r.settle(receive(t, work), "+TERM "+strings.Repeat("x", 10_000)); answer != "" {
		t.Errorf("answered %q", answer)
	}
	if got := r.state(a.ID); got.State != job.Dead || len(got.Reason) > 255 || !strings.HasPrefix(got.Reason, "terminated: xxx") {
		t.Errorf("%s, reason %q", got.State, got.Reason)
	}
}

// TestUnknownVerbs checks that what cannot be read is refused and changes
// nothing.
func TestUnknownVerbs(t *testing.T) {
	r := newRig(t)
	work := r.worker("t.x")
	a := r.schedule("delay.in.0s.t.x", "p")
	m := receive(t, work)
	running := r.state(a.ID)
	for _, verb := range []string{"done", "+NXT", "+CLAIM {}", "+ack", "ACK", " ", " +ACK", "+OK x", "+ACKNOWLEDGED", "-NAK soon", "-NAK -5s", "-NAK {\"delay\":-1}",
		"-NAK {\"delay\":\"1s\"}", "-NAK {", "-NAK 99999999999h", "{}", `{"stream":"S","seq":1}`, "\x00", "\xff\xfe", strings.Repeat("z", 5000)} {
		if answer := r.settle(m, verb); !strings.HasPrefix(answer, `-ERR {"code":400,"err_code":20400,`) || !json.Valid([]byte(answer[5:])) {
			t.Errorf("%q answered %q", cut(verb), answer)
		}
		if got := r.state(a.ID); got.State != job.Running || got.Next != running.Next || got.Nonce != running.Nonce {
			t.Fatalf("%q changed the job to %+v", cut(verb), got)
		}
	}
	// A status is never a settlement, whatever comes with it.
	for _, status := range []string{"503", "404", "100"} {
		s := message(m.Reply, "+ACK", "Status", status)
		if status != "503" {
			s.Data = nil
		}
		if err := r.nc.PublishMsg(s); err != nil {
			t.Fatal(err)
		}
	}
	r.settle(m, "fence")
	if got := r.state(a.ID); got.State != job.Running || got.Nonce != running.Nonce {
		t.Fatalf("a status message changed the job to %+v", got)
	}
	r.done(m)
}

func TestRefusedSettlements(t *testing.T) {
	r := newRig(t)
	work := r.worker("t.x")
	a := r.schedule("delay.in.0s.t.x", "p", "Delay-Backoff", "0s")
	first := receive(t, work)
	if answer := r.settle(first, "-NAK"); answer != "" {
		t.Fatalf("NAK answered %q", answer)
	}
	second := receive(t, work)
	stale := `-ERR {"code":409,"err_code":20409,`
	verbs := []string{"", "+ACK x", "-NAK", "-NAK 1s", "+WPI", "+TERM"}
	for _, verb := range verbs {
		if answer := r.settle(first, verb); !strings.HasPrefix(answer, stale) {
			t.Errorf("stale %q answered %q", verb, answer)
		}
	}
	if got := r.state(a.ID); got.State != job.Running || got.Attempt != 2 {
		t.Errorf("changed to %+v", got)
	}
	r.done(second)
	r.done(second)
	if answer := r.settle(second, "+ACK"); answer != "" {
		t.Errorf("the same completion again answered %q", answer)
	}
	for _, verb := range verbs[2:] {
		if answer := r.settle(second, verb); !strings.HasPrefix(answer, stale) {
			t.Errorf("%q after completion answered %q", verb, answer)
		}
	}
	if got := r.state(a.ID); got.State != job.Done {
		t.Errorf("changed to %+v", got)
	}
}

// TestTokensNobodyMade settles with tokens that no delivery has.
func TestTokensNobodyMade(t *testing.T) {
	r := newRig(t)
	work := r.worker("t.x")
	other := newRig(t)
	foreign := other.worker("t.x")
	other.schedule("delay.in.0s.t.x", "p")
	m := receive(t, foreign)
	for _, verb := range []string{"", "+ACK x", "-NAK", "+WPI", "+TERM"} {
		if answer := r.settle(&nats.Msg{Reply: m.Reply}, verb); !strings.HasPrefix(answer, `-ERR {"code":404,"err_code":20404,`) {
			t.Errorf("%q for a job of another store answered %q", verb, answer)
		}
	}
	other.done(m)

	a := r.schedule("delay.in.0s.t.x", "p")
	m = receive(t, work)
	for _, reply := range []string{"delay.ack.b1.x", "delay.ack.b1.EAAA", m.Reply[:len(m.Reply)-1], m.Reply + "A"} {
		if answer := r.settle(&nats.Msg{Reply: reply}, "+TERM"); !strings.HasPrefix(answer, `-ERR {"code":4`) {
			t.Errorf("%s answered %q", reply, answer)
		}
	}
	if got := r.state(a.ID); got.State != job.Running {
		t.Errorf("changed to %+v", got)
	}
	r.done(m)
}

func TestResultGoesToReplyTo(t *testing.T) {
	r := newRig(t)
	work := r.worker("t.x")
	inbox := r.nc.NewRespInbox()
	for _, to := range []string{"results.x", inbox} {
		results := r.listen(to)
		for verb, want := range map[string]string{"+ACK {\"n\":1}": "{\"n\":1}", "+ACK two  words ": "two  words ", "+ACK \x00\xff": "\x00\xff"} {
			a := r.schedule("delay.in.0s.t.x", "p", "Delay-Reply-To", to)
			m := receive(t, work)
			if err := m.Respond([]byte(verb)); err != nil {
				t.Fatal(err)
			}
			res := receive(t, results)
			if got := r.state(a.ID).State; got != job.Done {
				t.Errorf("the result came when the job was %s", got)
			}
			if string(res.Data) != want || res.Header.Get("Delay-Job-Id") != a.ID {
				t.Errorf("%q to %s: got %q of %q", verb, to, res.Data, res.Header.Get("Delay-Job-Id"))
			}
		}
		// No result, no message.
		for _, verb := range []string{"", "+ACK", "+OK", "-NAK 1h", "+TERM result"} {
			r.schedule("delay.in.0s.t.x", "p", "Delay-Reply-To", to)
			if answer := r.settle(receive(t, work), verb); answer != "" {
				t.Errorf("%q answered %q", verb, answer)
			}
		}
		nothing(t, results)
	}
}

// TestResultAfterALostAnswer loses the answer of the store to a completion: it
// is repeated, and then the result goes out, once.
func TestResultAfterALostAnswer(t *testing.T) {
	store := &faultStore{Store: memdelay.New(memdelay.Options{})}
	var lost atomic.Bool
	store.settle = func(ctx context.Context, now job.Time, list []job.Settlement) ([]job.SettleResult, error) {
		res, err := store.Store.Settle(ctx, now, list)
		if !lost.Swap(true) {
			return nil, errors.New("answer lost")
		}
		return res, err
	}
	r := newRig(t, withStore(store))
	work, results := r.worker("t.x"), r.listen("results")
	r.schedule("delay.in.0s.t.x", "p", "Delay-Reply-To", "results")
	m := receive(t, work)
	if answer := r.settle(m, "+ACK value"); answer != "" {
		t.Errorf("answered %q", answer)
	}
	if got := string(receive(t, results).Data); got != "value" {
		t.Errorf("result %q", got)
	}
	if answer := r.settle(m, "+ACK value"); answer != "" {
		t.Errorf("the same completion again answered %q", answer)
	}
	nothing(t, results)
}

// TestVerbsAfterALostAnswer loses the answer of the store to settlements that
// cannot be told, when they are repeated, from stale ones.
func TestVerbsAfterALostAnswer(t *testing.T) {
	store := &faultStore{Store: memdelay.New(memdelay.Options{})}
	var lose atomic.Bool
	store.settle = func(ctx context.Context, now job.Time, list []job.Settlement) ([]job.SettleResult, error) {
		res, err := store.Store.Settle(ctx, now, list)
		if lose.Swap(false) {
			return nil, errors.New("answer lost")
		}
		return res, err
	}
	r := newRig(t, withStore(store))
	work, dead := r.worker("t.x"), r.listen("delay.event.dead")
	for _, c := range []struct {
		verb  string
		state job.State
	}{{"-NAK", job.Pending}, {"+TERM no use", job.Dead}, {"+WPI", job.Running}} {
		a := r.schedule("delay.in.0s.t.x", "p", "Delay-Backoff", "1h")
		m := receive(t, work)
		lose.Store(true)
		if answer := r.settle(m, c.verb); answer != "" || lose.Load() {
			t.Errorf("%q answered %q", c.verb, answer)
		}
		if got := r.state(a.ID); got.State != c.state || got.Attempt != 1 {
			t.Errorf("%q: %s after %d attempts, want %s", c.verb, got.State, got.Attempt, c.state)
		}
		switch c.state {
		case job.Dead:
			if e := receiveDead(t, dead); e.ID != a.ID || e.Reason != "terminated: no use" {
				t.Errorf("event %+v", e)
			}
		case job.Running:
			r.done(m)
		}
	}
	nothing(t, dead)
}

// TestSettlementSurvivesStoreFailure lets the store fail for a while.
func TestSettlementSurvivesStoreFailure(t *testing.T) {
	store := &faultStore{Store: memdelay.New(memdelay.Options{})}
	var calls atomic.Int32
	store.settle = func(ctx context.Context, now job.Time, list []job.Settlement) ([]job.SettleResult, error) {
		if calls.Add(1) <= 3 {
			return nil, errors.New("broken")
		}
		return store.Store.Settle(ctx, now, list)
	}
	r := newRig(t, withStore(store))
	work := r.worker("t.x")
	a := r.schedule("delay.in.0s.t.x", "p")
	r.done(receive(t, work))
	if got := r.state(a.ID).State; got != job.Done || calls.Load() < 4 {
		t.Errorf("answered when the job was %s, after %d calls", got, calls.Load())
	}
}

// TestMicroService uses a service of nats.go as the worker.
func TestMicroService(t *testing.T) {
	r := newRig(t)
	svc, err := micro.AddService(r.nc, micro.Config{Name: "worker", Version: "1.0.0"})
	if err != nil {
		t.Fatal(err)
	}
	attempts := make(chan string, 10)
	err = svc.AddEndpoint("x", micro.HandlerFunc(func(req micro.Request) {
		n := req.Headers().Get("Delay-Attempt")
		attempts <- n
		if n == "1" {
			_ = req.Error("500", "not yet", nil)
			return
		}
		_ = req.Respond(nil)
	}), micro.WithEndpointSubject("t.x"))
	if err != nil {
		t.Fatal(err)
	}
	r.flush()
	a := r.schedule("delay.in.0s.t.x", "p", "Delay-Backoff", "20ms")
	for _, want := range []string{"1", "2"} {
		select {
		case got := <-attempts:
			if got != want {
				t.Errorf("attempt %s, want %s", got, want)
			}
		case <-time.After(patient):
			t.Fatalf("attempt %s not delivered", want)
		}
	}
	if got := r.becomes(a.ID, job.Done); got.Attempt != 2 {
		t.Errorf("done after %d attempts", got.Attempt)
	}
	if err := svc.Stop(); err != nil {
		t.Error(err)
	}
}
