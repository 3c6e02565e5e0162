package jobtest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/delaybridge/delaybridge/job"
)

// harness is one test's store, with calls that must not fail.
type harness struct {
	*testing.T
	suite Suite
	store job.Store
	// t0 is when the test begins. The tests' times are near the real one, as a
	// caller's are, but pass as the tests say.
	t0 job.Time
}

func newHarness(t *testing.T, s Suite) *harness {
	return &harness{T: t, suite: s, store: s.Open(t), t0: job.At(time.Now())}
}

// owner is what the tests claim as.
const owner = "bridge-1"

// mk returns a job with the usual settings, due d after t0.
func (h *harness) mk(id, target string, d time.Duration) job.Job {
	return job.Job{
		ID: id, Target: target, Due: h.t0.Add(d), Expires: h.t0.Add(d + time.Hour),
		AckWait: 30 * time.Second, MaxAttempts: 10, Payload: []byte("payload of " + id),
	}
}

// mkMany returns n jobs with ids from a format, all due d after t0.
func (h *harness) mkMany(n int, format, target string, d time.Duration) []job.Job {
	jobs := make([]job.Job, n)
	for i := range jobs {
		jobs[i] = h.mk(fmt.Sprintf(format, i), target, d)
	}
	return jobs
}

// batch is the number of jobs of one call under load.
const batch = 256

func (h *harness) put(jobs ...job.Job) []job.PutResult {
	h.Helper()
	res, err := h.store.Put(context.Background(), jobs)
	if err != nil || len(res) != len(jobs) {
		h.Fatalf("Put of %d jobs: %d results, error %v", len(jobs), len(res), err)
	}
	for i, r := range res {
		if h.suite.Stored != "" && r.Err == nil && r.Stored != h.suite.Stored {
			h.Errorf("Put of %q: stored %q, want %q", jobs[i].ID, r.Stored, h.suite.Stored)
		}
	}
	return res
}

// mustPut puts jobs, in batches, of which every one must be stored.
func (h *harness) mustPut(jobs ...job.Job) {
	h.Helper()
	for part := range slices.Chunk(jobs, batch) {
		for i, r := range h.put(part...) {
			h.wantStored(r, part[i])
		}
	}
}

func (h *harness) wantStored(r job.PutResult, j job.Job) {
	h.Helper()
	if r.Err != nil || r.Duplicate || r.Due != j.Due {
		h.Fatalf("Put of %q: %+v, want stored, due %d", j.ID, r, j.Due)
	}
}

func (h *harness) wantDuplicate(r job.PutResult, due job.Time) {
	h.Helper()
	if r.Err != nil || !r.Duplicate || r.Due != due {
		h.Errorf("Put: %+v, want a duplicate of a job due %d", r, due)
	}
}

func (h *harness) wantConflict(r job.PutResult) {
	h.Helper()
	var e *job.Error
	if r.Duplicate || !errors.Is(r.Err, job.ErrConflict) || !errors.As(r.Err, &e) {
		h.Errorf("Put: %+v, want an *Error that is ErrConflict", r)
	}
}

func (h *harness) claim(r job.ClaimRequest) job.Claimed {
	h.Helper()
	r.Owner = cmp.Or(r.Owner, owner)
	c, err := h.store.Claim(context.Background(), r)
	if err != nil {
		h.Fatalf("Claim %+v: %v", r, err)
	}
	if len(c.Deliveries) > r.Max {
		h.Fatalf("Claim of at most %d returned %d", r.Max, len(c.Deliveries))
	}
	return c
}

// claimAll claims until nothing due by r.Until is left.
func (h *harness) claimAll(r job.ClaimRequest) []job.Delivery {
	h.Helper()
	var all []job.Delivery
	r.Max = cmp.Or(r.Max, 1000)
	for range 100_000 {
		c := h.claim(r)
		all = append(all, c.Deliveries...)
		if c.NextDue == 0 || c.NextDue > r.Until {
			return all
		}
	}
	h.Fatalf("Claim %+v never comes to an end", r)
	return nil
}

// claimDue claims all that is due d after t0, at that moment.
func (h *harness) claimDue(d time.Duration) []job.Delivery {
	h.Helper()
	at := h.t0.Add(d)
	return h.claimAll(job.ClaimRequest{Now: at, Until: at})
}

// wantNone checks that nothing is due until t0+d. The claim is made ahead of
// time, so that the store forgets nothing.
func (h *harness) wantNone(d time.Duration) {
	h.Helper()
	h.wantIDs(h.claimAll(job.ClaimRequest{Now: h.t0, Until: h.t0.Add(d)}))
}

// claimOne claims at t0+d what must be exactly one job.
func (h *harness) claimOne(d time.Duration) job.Delivery {
	h.Helper()
	ds := h.claimDue(d)
	if len(ds) != 1 {
		h.Fatalf("claimed %q, want one job", ids(ds))
	}
	return ds[0]
}

// runOne puts a job that is due and claims it.
func (h *harness) runOne(id string) job.Delivery {
	h.Helper()
	h.mustPut(h.mk(id, "orders.new", 0))
	return h.claimOne(0)
}

func (h *harness) settle(d time.Duration, list ...job.Settlement) []job.SettleResult {
	h.Helper()
	res, err := h.store.Settle(context.Background(), h.t0.Add(d), list)
	if err != nil || len(res) != len(list) {
		h.Fatalf("Settle of %d: %d results, error %v", len(list), len(res), err)
	}
	return res
}

// mustSettle settles one delivery, which must be accepted.
func (h *harness) mustSettle(d time.Duration, s job.Settlement) {
	h.Helper()
	h.wantResult(d, s, job.Settled)
}

func (h *harness) wantResult(d time.Duration, s job.Settlement, want job.SettleResult) {
	h.Helper()
	if got := h.settle(d, s)[0]; got != want {
		h.Errorf("Settle of %q with outcome %d: result %d, want %d", s.ID, s.Outcome, got, want)
	}
}

// complete completes deliveries, all of which must be accepted.
func (h *harness) complete(d time.Duration, ds ...job.Delivery) {
	h.Helper()
	for part := range slices.Chunk(ds, batch) {
		list := make([]job.Settlement, len(part))
		for i := range part {
			list[i] = job.Settlement{Ref: part[i].Ref(), Outcome: job.Complete}
		}
		for i, r := range h.settle(d, list...) {
			if r != job.Settled {
				h.Fatalf("completing %q: result %d, want settled", part[i].ID, r)
			}
		}
	}
}

func (h *harness) get(id string) job.Info {
	h.Helper()
	infos, err := h.store.Get(context.Background(), []string{id})
	if err != nil || len(infos) != 1 {
		h.Fatalf("Get of %q: %d results, error %v", id, len(infos), err)
	}
	return infos[0]
}

func (h *harness) wantState(id string, want job.State) job.Info {
	h.Helper()
	i := h.get(id)
	if i.State != want {
		h.Errorf("job %q is %q, want %q", id, i.State, want)
	}
	return i
}

func (h *harness) cancel(d time.Duration, ids ...string) []job.Change {
	h.Helper()
	res, err := h.store.Cancel(context.Background(), h.t0.Add(d), job.ByIDs(ids...))
	if err != nil || len(res) != len(ids) {
		h.Fatalf("Cancel of %d: %d results, error %v", len(ids), len(res), err)
	}
	return res
}

func (h *harness) reschedule(list ...job.Reschedule) []job.Change {
	h.Helper()
	res, err := h.store.Reschedule(context.Background(), list)
	if err != nil || len(res) != len(list) {
		h.Fatalf("Reschedule of %d: %d results, error %v", len(list), len(res), err)
	}
	return res
}

func (h *harness) wantChange(got, want job.Change) {
	h.Helper()
	if got != want {
		h.Errorf("change %+v, want %+v", got, want)
	}
}

func (h *harness) waiting() []string {
	h.Helper()
	targets, err := h.store.Waiting(context.Background())
	if err != nil {
		h.Fatal(err)
	}
	slices.Sort(targets)
	return targets
}

func (h *harness) wantIDs(ds []job.Delivery, want ...string) {
	h.Helper()
	if got := ids(ds); !slices.Equal(got, want) {
		h.Errorf("claimed %q, want %q", got, want)
	}
}

// wantJob compares what a store keeps of a job.
func (h *harness) wantJob(got, want job.Job) {
	h.Helper()
	got, want = plain(got), plain(want)
	if !reflect.DeepEqual(got, want) {
		h.Errorf("job %.40q came back as\n%.2000s, want\n%.2000s", want.ID, fmt.Sprintf("%+v", got), fmt.Sprintf("%+v", want))
	}
}

// plain returns j without the differences that mean nothing.
func plain(j job.Job) job.Job {
	j.Replace = false
	j.Incarnation = 0
	j.Header = slices.Concat([]job.Field{}, j.Header)
	j.Backoff = slices.Concat([]time.Duration{}, j.Backoff)
	j.Payload = slices.Concat([]byte{}, j.Payload)
	return j
}

func ids(ds []job.Delivery) []string {
	got := make([]string, len(ds))
	for i := range ds {
		got[i] = ds[i].ID
	}
	return got
}

func inOrder(a, b job.Delivery) int { return cmp.Compare(a.Next, b.Next) }

// refOf returns the token of a delivery that is not kept.
func refOf(d job.Delivery) job.Ref { return d.Ref() }
