package adapter_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/delaybridge/delaybridge/job"
	"github.com/delaybridge/delaybridge/memdelay"
	"github.com/nats-io/nats.go"
)

// unreachable makes every completion and every other verb of a worker one for a
// store that cannot be reached, while on.
func unreachable(on *atomic.Bool) *faultStore {
	s := &faultStore{Store: memdelay.New(memdelay.Options{})}
	s.settle = func(ctx context.Context, now job.Time, list []job.Settlement) ([]job.SettleResult, error) {
		if !on.Load() {
			return s.Store.Settle(ctx, now, list)
		}
		out := make([]job.SettleResult, len(list))
		for i := range out {
			out[i] = job.Unreachable
		}
		return out, nil
	}
	return s
}

func TestUnreachableIsAnswered(t *testing.T) {
	var on atomic.Bool
	on.Store(true)
	r := newRig(t, withStore(unreachable(&on)))
	work := r.worker("t.x")
	a := r.schedule("delay.in.0s.t.x", "p")
	m := receive(t, work)
	for _, verb := range []string{"", "-NAK", "+TERM"} {
		if got := r.settle(m, verb); !strings.HasPrefix(got, `-ERR {"code":503,"err_code":20503,`) {
			t.Errorf("%q answered %q", verb, got)
		}
	}
	on.Store(false)
	r.done(m)
	r.becomes(a.ID, job.Done)
}

// TestUnreachableIsKept: nobody repeats an acknowledgement that was not a
// request, so the bridge does.
func TestUnreachableIsKept(t *testing.T) {
	var on atomic.Bool
	on.Store(true)
	r := newRig(t, withStore(unreachable(&on)))
	work := r.worker("t.x")
	a := r.schedule("delay.in.0s.t.x", "p")
	m := receive(t, work)
	if err := m.Ack(); err != nil {
		t.Fatal(err)
	}
	r.settle(m, "+WPI") // answered after the acknowledgement was tried
	on.Store(false)
	r.becomes(a.ID, job.Done)
}

// TestUnreachableRunsOut: when the lease has run out the job comes again, and
// nothing is left of the acknowledgement.
func TestUnreachableRunsOut(t *testing.T) {
	store := &faultStore{Store: memdelay.New(memdelay.Options{})}
	store.settle = func(ctx context.Context, now job.Time, list []job.Settlement) ([]job.SettleResult, error) {
		if list[0].Outcome == job.Complete && list[0].Attempt == 1 {
			return []job.SettleResult{job.Unreachable}, nil
		}
		return store.Store.Settle(ctx, now, list)
	}
	r := newRig(t, withStore(store))
	work := r.worker("t.x")
	a := r.schedule("delay.in.0s.t.x", "p", "Delay-Ack-Wait", "300ms", "Delay-Backoff", "1ms")
	m := receive(t, work)
	if err := m.Ack(); err != nil {
		t.Fatal(err)
	}
	m = receive(t, work)
	if got := m.Header.Get("Delay-Attempt"); got != "2" {
		t.Errorf("attempt %s, want 2", got)
	}
	r.done(m)
	r.becomes(a.ID, job.Done)
	start := time.Now()
	if err := r.stop(); err != nil || time.Since(start) > time.Second {
		t.Errorf("stopped after %v with %v: something is taken for in flight", time.Since(start), err)
	}
}

// TestPoisonedSettlement: one that the store cannot take keeps no other.
func TestPoisonedSettlement(t *testing.T) {
	var poison atomic.Value
	poison.Store("")
	var failed atomic.Int32
	store := &faultStore{Store: memdelay.New(memdelay.Options{})}
	store.settle = func(ctx context.Context, now job.Time, list []job.Settlement) ([]job.SettleResult, error) {
		for _, s := range list {
			if s.ID == poison.Load() {
				failed.Add(1)
				return nil, errors.New("poisoned")
			}
		}
		return store.Store.Settle(ctx, now, list)
	}
	r := newRig(t, withStore(store))
	work := r.worker("t.x")
	const n = 20
	ids := r.scheduleAll(n, always("delay.in.0s.t.x"), always("p"))
	poison.Store(ids[0])
	var late []*nats.Msg // acknowledged while the first are tried again and again
	for i := range n {
		m := receive(t, work)
		if i >= n/2 && m.Header.Get("Delay-Job-Id") != ids[0] {
			late = append(late, m)
		} else if err := m.Ack(); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "the store has refused", func() bool { return failed.Load() > 1 })
	for _, m := range late {
		if err := m.Ack(); err != nil {
			t.Fatal(err)
		}
	}
	for _, id := range ids[1:] {
		r.becomes(id, job.Done)
	}
	poison.Store("")
	r.becomes(ids[0], job.Done)
}

// TestSettlementGivenUp: who waits for a store that takes no settlement learns
// it when the lease is over, and the job comes again.
func TestSettlementGivenUp(t *testing.T) {
	store := &faultStore{Store: memdelay.New(memdelay.Options{})}
	store.settle = func(ctx context.Context, now job.Time, list []job.Settlement) ([]job.SettleResult, error) {
		if list[0].Outcome == job.Complete && list[0].Attempt == 1 {
			return nil, errors.New("broken")
		}
		return store.Store.Settle(ctx, now, list)
	}
	r := newRig(t, withStore(store))
	work := r.worker("t.x")
	r.schedule("delay.in.0s.t.x", "p", "Delay-Ack-Wait", "300ms", "Delay-Backoff", "1ms")
	if got := r.settle(receive(t, work), ""); !strings.HasPrefix(got, `-ERR {"code":503,"err_code":20503,`) {
		t.Errorf("answered %q", got)
	}
	r.done(receive(t, work))
}
