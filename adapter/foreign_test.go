package adapter_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/delaybridge/delaybridge/job"
	"github.com/delaybridge/delaybridge/memdelay"
)

// countingStore counts the looks at leases.
type countingStore struct {
	job.Store
	looks atomic.Int64
}

func (s *countingStore) Expired(ctx context.Context, now job.Time, most int) ([]job.Delivery, job.Time, error) {
	s.looks.Add(1)
	return s.Store.Expired(ctx, now, most)
}

// leaseTo leases n jobs to another bridge, all over by the store's account since
// a moment ago.
func leaseTo(t *testing.T, store job.Store, owner string, n int) {
	t.Helper()
	const lease = 20 * time.Second // so the bridge spares them for another 6 s
	claimed := job.At(time.Now().Add(-lease - 100*time.Millisecond))
	jobs := make([]job.Job, n)
	for i := range jobs {
		jobs[i] = job.Job{Target: "other.x", Due: claimed, AckWait: lease}
	}
	if _, err := store.Put(t.Context(), jobs); err != nil {
		t.Fatal(err)
	}
	c, err := store.Claim(t.Context(), job.ClaimRequest{Now: claimed, Until: claimed, Max: n, Owner: owner})
	if err != nil || len(c.Deliveries) != n {
		t.Fatalf("%d of %d jobs claimed: %v", len(c.Deliveries), n, err)
	}
}

// TestLeasesOfAnotherBridge: those that are over by the store's account, and may
// run still, neither keep the bridge busy nor hide its own.
func TestLeasesOfAnotherBridge(t *testing.T) {
	const foreign, lease, limit = 600, 800 * time.Millisecond, 20
	store := &countingStore{Store: memdelay.New(memdelay.Options{})}
	leaseTo(t, store, "other", foreign)
	r := newRig(t, withStore(store))
	work := r.worker("t.x")
	r.schedule("delay.in.0s.t.x", "p")
	r.done(receive(t, work)) // from now on the target has a worker
	r.schedule("delay.in.0s.t.x", "p", "Delay-Ack-Wait", lease.String(), "Delay-Backoff", "10ms")
	receive(t, work)
	start, before := time.Now(), store.looks.Load()
	again := receive(t, work)
	took, looks := time.Since(start), store.looks.Load()-before
	attempt(t, again, 2, time.Time{})
	if took > lease+time.Second {
		t.Errorf("the next attempt came after %v, the lease was %v", took, lease)
	}
	if float64(looks) > limit*max(1, took.Seconds()) {
		t.Errorf("the bridge looked %d times for leases that ran out in %v, want at most %d a second", looks, took, limit)
	}
	r.done(again)
	if running, err := store.List(t.Context(), job.Query{State: job.Running, Limit: 1000}); err != nil || len(running.Jobs) != foreign {
		t.Errorf("%d of %d jobs are still the other bridge's, %v", len(running.Jobs), foreign, err)
	}
}

// TestManyLeasesOfAnotherBridge has more of them than are handled at a time.
func TestManyLeasesOfAnotherBridge(t *testing.T) {
	const foreign, limit = 2100, 20
	store := &countingStore{Store: memdelay.New(memdelay.Options{})}
	leaseTo(t, store, "other", foreign)
	r := newRig(t, withStore(store))
	work := r.worker("t.x")
	start, before := time.Now(), store.looks.Load()
	r.schedule("delay.in.500ms.t.x", "p")
	m := receive(t, work)
	if took, looks := time.Since(start), store.looks.Load()-before; float64(looks) > limit*max(1, took.Seconds()) {
		t.Errorf("the bridge looked %d times for leases that ran out in %v, want at most %d a second", looks, took, limit)
	}
	r.done(m)
}
