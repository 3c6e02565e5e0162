package adapter_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/delaybridge/delaybridge/adapter"
	"github.com/delaybridge/delaybridge/job"
	"github.com/delaybridge/delaybridge/memdelay"
)

func TestClaim(t *testing.T) {
	r := newRig(t, withConfig(fast))
	plain := r.worker("t.x")
	w1, w2 := r.owner("w1", 1), r.owner("w2", 1)
	w1.directed, w2.directed = false, false
	w1.beat()
	a := r.schedule("delay.in.0s.t.x", "p", "Delay-Ack-Wait", "7s", "Delay-Backoff", "0s")
	m := receive(t, plain)
	for range 2 {
		if got, want := w1.request(m, `+CLAIM {"worker":"w1"}`), `+OK {"attempt":1,"ack_wait_ms":7000}`; got != want {
			t.Errorf("claim answered %q, want %q", got, want)
		}
	}
	if got := w2.request(m, `+CLAIM {"worker":"w2"}`); !strings.HasPrefix(got, `-ERR {"code":409,`) {
		t.Errorf("claim of another's job answered %q", got)
	}
	if got := r.state(a.ID); got.Owner != "b1/w1" {
		t.Errorf("owned by %q", got.Owner)
	}
	if stale := w1.beat(m); len(stale) != 0 {
		t.Errorf("stale for its owner: %v", stale)
	}
	if stale := w2.beat(m); !slices.Equal(stale, tokens(m)) {
		t.Errorf("not stale for another: %v", stale)
	}
	w1.pinged(2)
	w1.nc.Close()
	again := receive(t, plain)
	attempt(t, again, 2, time.Time{})
	if got := w2.request(m, `+CLAIM {"worker":"w2"}`); !strings.HasPrefix(got, `-ERR {"code":409,`) {
		t.Errorf("claim of an old attempt answered %q", got)
	}
	r.done(again)
	if got := w2.request(again, `+CLAIM {"worker":"w2"}`); !strings.HasPrefix(got, `-ERR {"code":4`) {
		t.Errorf("claim of a completed job answered %q", got)
	}
}

func TestBadClaims(t *testing.T) {
	r := newRig(t, withConfig(fast))
	plain := r.worker("t.x")
	a := r.schedule("delay.in.0s.t.x", "p")
	m := receive(t, plain)
	for _, body := range []string{"+CLAIM", "+CLAIM {", `+CLAIM {"worker":""}`, `+CLAIM {"worker":"a.b"}`, `+CLAIM {"worker":1}`} {
		if got := r.settle(m, body); !strings.HasPrefix(got, `-ERR {"code":400,"err_code":20400,`) {
			t.Errorf("%q answered %q", body, got)
		}
	}
	if got := r.state(a.ID); got.Owner != "b1" {
		t.Errorf("owned by %q", got.Owner)
	}
	r.done(m)
}

// TestClaimForAnother: a worker cannot fill another one, of targets that it may not
// take, with its own jobs.
func TestClaimForAnother(t *testing.T) {
	r := newRig(t, withConfig(func(c *adapter.Config) {
		c.AllowWorkers = []adapter.WorkerRule{{Name: "w1", Pattern: "t.>"}, {Name: "other", Pattern: "billing.>"}}
	}))
	plain := r.worker("t.x")
	a := r.schedule("delay.in.0s.t.x", "p")
	m := receive(t, plain)
	if got := r.settle(m, `+CLAIM {"worker":"other"}`); !strings.HasPrefix(got, `-ERR {"code":403,"err_code":20403,`) {
		t.Errorf("a claim for a worker of other targets is answered %q", got)
	}
	if got := r.state(a.ID); got.Owner != "b1" {
		t.Errorf("owned by %q", got.Owner)
	}
	if got := r.settle(m, `+CLAIM {"worker":"w1"}`); !strings.HasPrefix(got, "+OK ") {
		t.Errorf("a claim that the rules allow is answered %q", got)
	}
	r.done(m)
}

func TestSnooze(t *testing.T) {
	r := newRig(t)
	plain := r.worker("t.x")
	r.schedule("delay.in.0s.t.x", "p", "Delay-Max-Attempts", "1")
	for attempt := 1; attempt <= 3; attempt++ {
		m := receive(t, plain)
		if got := m.Header.Get("Delay-Attempt"); got != fmt.Sprint(attempt) {
			t.Errorf("attempt %s, want %d", got, attempt)
		}
		if answer := r.settle(m, `-NAK {"delay":1000000,"spare":true}`); answer != "" {
			t.Errorf("snooze answered %q", answer)
		}
	}
	r.done(receive(t, plain))
}

// A completion right behind a claim leaves nothing that uses a slot.
func TestCompletionRightBehindAClaim(t *testing.T) {
	r := newRig(t, withConfig(fast))
	plain := r.worker("t.x")
	w := r.owner("w1", 1, "t.y")
	w.beat()
	r.schedule("delay.in.0s.t.x", "p")
	m := receive(t, plain)
	inbox := r.nc.NewRespInbox()
	answers := r.listen(inbox)
	for _, verb := range []string{`+CLAIM {"worker":"w1"}`, ""} {
		if err := r.nc.PublishRequest(m.Reply, inbox, []byte(verb)); err != nil {
			t.Fatal(err)
		}
	}
	receive(t, answers)
	receive(t, answers)
	r.schedule("delay.in.0s.t.y", "p")
	r.done(promptly(t, w.jobs))
}

// A claim that is repeated because its answer was lost is not taken for done when
// the delivery has ended.
func TestRepeatedClaimOfAStaleDelivery(t *testing.T) {
	store := &faultStore{Store: memdelay.New(memdelay.Options{})}
	var claims atomic.Int64
	store.settle = func(ctx context.Context, now job.Time, list []job.Settlement) ([]job.SettleResult, error) {
		if list[0].Outcome == job.Own && claims.Add(1) == 1 {
			ended := job.Settlement{Ref: list[0].Ref, Outcome: job.Retry, At: now.Add(time.Hour)}
			if _, err := store.Store.Settle(ctx, now, []job.Settlement{ended}); err != nil {
				t.Error(err)
			}
			return nil, errors.New("no answer")
		}
		return store.Store.Settle(ctx, now, list)
	}
	r := newRig(t, withConfig(fast), withStore(store))
	plain := r.worker("t.x")
	r.schedule("delay.in.0s.t.x", "p")
	if got := r.settle(receive(t, plain), `+CLAIM {"worker":"w1"}`); !strings.HasPrefix(got, `-ERR {"code":409,`) {
		t.Errorf("claim of a delivery that ended answered %q", got)
	}
}
