package adapter_test

import (
	"context"
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

// probeStore holds its first claim of jobs set aside, which is a probe when the
// target is parked.
type probeStore struct {
	job.Store
	once             sync.Once
	probing, proceed chan struct{}
}

func (s *probeStore) Claim(ctx context.Context, r job.ClaimRequest) (job.Claimed, error) {
	if r.Target != "" {
		s.once.Do(func() {
			close(s.probing)
			<-s.proceed
		})
	}
	return s.Store.Claim(ctx, r)
}

// TestDueWhileTheOnlyParkedJobIsProbed: the probe takes the last job that was
// set aside, and another one falls due before the target counts as open again.
func TestDueWhileTheOnlyParkedJobIsProbed(t *testing.T) {
	store := &probeStore{Store: memdelay.New(memdelay.Options{}), probing: make(chan struct{}), proceed: make(chan struct{})}
	r := newRig(t, withStore(store))
	first := r.schedule("delay.in.0s.t.x", "first")
	r.parked(first.ID, "t.x")
	<-store.probing
	work := r.worker("t.x")
	second := r.schedule("delay.in.0s.t.x", "second")
	close(store.proceed)
	start := time.Now()
	ms := []*nats.Msg{receive(t, work), receive(t, work)}
	if took := time.Since(start); took > 3*time.Second {
		t.Errorf("delivered %v after the worker came", took)
	}
	firstAttempts(t, []string{first.ID, second.ID}, ms)
	for _, m := range ms {
		r.done(m)
	}
}

// TestPausedWorker measures what another target, not seen before, feels of a
// worker that takes jobs and never answers.
func TestPausedWorker(t *testing.T) {
	const paused, busy, pace = 4000, 150, 10 * time.Millisecond
	r := newRig(t, withConfig(func(c *adapter.Config) { c.Drain = 10 * time.Millisecond }))
	r.worker("paused.x")
	work := r.worker("busy.x")
	at := time.Now().Add(2 * time.Second) // all are stored by then
	r.scheduleAll(paused, always(fmt.Sprintf("delay.at.%d.paused.x", at.UnixMilli())), always("p"))
	r.scheduleAll(busy, func(i int) string {
		return fmt.Sprintf("delay.at.%d.busy.x", at.Add(time.Duration(i+1)*pace).UnixMilli())
	}, strconv.Itoa)
	var worst time.Duration
	for range busy {
		m := receive(t, work)
		due, err := time.Parse(dueLayout, m.Header.Get("Delay-Due"))
		if err != nil {
			t.Fatal(err)
		}
		worst = max(worst, time.Since(due))
		if err := m.Ack(); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("the latest job came %v after due", worst)
	if worst > 900*time.Millisecond {
		t.Errorf("a job came %v after due, beside a paused worker", worst)
	}
}
