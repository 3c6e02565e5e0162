package jobtest

import (
	"context"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/delaybridge/delaybridge/job"
)

var outcomes = []job.Outcome{job.Complete, job.Retry, job.Release, job.SetAside, job.Bury, job.Extend, job.Own}

// settlement returns a settlement that is complete for any outcome.
func settlement(h *harness, ref job.Ref, o job.Outcome) job.Settlement {
	return job.Settlement{Ref: ref, Outcome: o, At: h.t0.Add(time.Minute), Target: "orders.new", Reason: "why", Owner: owner + "/w1"}
}

var settleTests = []test{
	{"Complete", testSettleComplete},
	{"Retry", testSettleRetry},
	{"Release", testSettleRelease},
	{"Bury", testSettleBury},
	{"Extend", testSettleExtend},
	{"Mixed", testSettleMixed},
	{"TwiceInBatch", testSettleTwiceInBatch},
	{"Spare", testSettleSpare}, {"ReleaseSpare", testReleaseSpare},
	{"Prune", testPrune},
}

func testSettleComplete(h *harness) {
	d := h.runOne("a")
	done := job.Settlement{Ref: d.Ref(), Outcome: job.Complete}
	h.mustSettle(time.Second, done)
	h.wantState("a", job.Done)
	for range 2 {
		h.wantResult(time.Second, done, job.Repeated)
	}
	h.wantNone(time.Hour)
	if ds, next := h.expired(time.Hour, 10); len(ds) != 0 || next != 0 {
		h.Errorf("a done job still has a lease: %v, %d", ids(ds), next)
	}
}

func testSettleRetry(h *harness) {
	d := h.runOne("a")
	for attempt := uint32(2); attempt <= 4; attempt++ {
		wait := time.Duration(attempt) * time.Minute
		h.mustSettle(0, job.Settlement{Ref: d.Ref(), Outcome: job.Retry, At: h.t0.Add(wait)})
		i := h.wantState("a", job.Pending)
		if i.Attempt != attempt-1 || i.Next != h.t0.Add(wait) || i.Due != h.t0 || i.Owner != "" || i.Nonce != 0 {
			h.Errorf("to be retried, the job is %+v", i)
		}
		h.wantNone(wait - 1000)
		before := d
		d = h.claimOne(wait)
		if d.Attempt != attempt || d.Nonce == before.Nonce || d.Incarnation != before.Incarnation || d.Due != h.t0 || d.Next != h.t0.Add(wait) {
			h.Errorf("delivery %+v after %+v, want attempt %d", d.Ref(), before.Ref(), attempt)
		}
		if want := h.t0.Add(wait).Add(d.AckWait); d.Deadline != want {
			h.Errorf("deadline %d, want %d", d.Deadline, want)
		}
	}
	h.complete(0, d)
}

func testSettleRelease(h *harness) {
	d := h.runOne("a")
	for range 3 {
		h.mustSettle(0, job.Settlement{Ref: d.Ref(), Outcome: job.Release, At: h.t0})
		if i := h.wantState("a", job.Pending); i.Attempt != 0 || i.Owner != "" {
			h.Errorf("released, the job is at attempt %d of %q", i.Attempt, i.Owner)
		}
		before := d
		d = h.claimOne(0)
		if d.Attempt != 1 || d.Nonce == before.Nonce {
			h.Errorf("delivery %+v after %+v, want the same attempt with another nonce", d.Ref(), before.Ref())
		}
	}
	h.mustSettle(0, job.Settlement{Ref: d.Ref(), Outcome: job.Retry, At: h.t0})
	d = h.claimOne(0)
	h.mustSettle(0, job.Settlement{Ref: d.Ref(), Outcome: job.Release, At: h.t0})
	if d = h.claimOne(0); d.Attempt != 2 {
		h.Errorf("attempt %d after a retry and a release, want 2", d.Attempt)
	}
	h.complete(0, d)
}

func testSettleBury(h *harness) {
	d := h.runOne("a")
	reason := "terminated: \x00\xff " + strings.Repeat("r", 300)
	h.mustSettle(time.Second, job.Settlement{Ref: d.Ref(), Outcome: job.Bury, Reason: reason})
	i := h.wantState("a", job.Dead)
	if i.Reason != reason[:255] || i.Attempt != 1 || i.Next != h.t0.Add(time.Second) || i.Owner != "" || i.Nonce != 0 {
		h.Errorf("a dead job is %+v, want the reason %.30q... cut to 255 bytes", i, reason)
	}
	h.wantJob(i.Job, d.Job)
	h.wantNone(time.Hour)
	dead := h.listAll(job.Query{State: job.Dead, Limit: 10})
	if len(dead) != 1 || !reflect.DeepEqual(dead[0], i) {
		h.Errorf("listed as %+v, want %+v", dead, i)
	}
	h.mustPut(h.mk("b", "orders.new", 0))
	h.mustSettle(0, job.Settlement{Ref: refOf(h.claimOne(0)), Outcome: job.Bury})
	if i := h.wantState("b", job.Dead); i.Reason != "" {
		h.Errorf("reason %q, want none", i.Reason)
	}
}

func testSettleExtend(h *harness) {
	d := h.runOne("a")
	for _, until := range []time.Duration{time.Hour, time.Second} {
		h.mustSettle(0, job.Settlement{Ref: d.Ref(), Outcome: job.Extend, At: h.t0.Add(until)})
		if i := h.wantState("a", job.Running); i.Next != h.t0.Add(until) || i.Ref() != d.Ref() || i.Owner != owner {
			h.Errorf("extended, the job is %+v", i)
		}
		if ds, next := h.expired(until-time.Millisecond, 10); len(ds) != 0 || next != h.t0.Add(until) {
			h.Errorf("expired %q, next %d, want none, %d", ids(ds), next, h.t0.Add(until))
		}
		ds, _ := h.expired(until, 10)
		h.wantIDs(ds, "a")
	}
	h.complete(0, d)
}

// testSettleMixed settles every way in one batch, of which some are refused.
func testSettleMixed(h *harness) {
	h.mustPut(h.mkMany(2*len(outcomes), "job%d", "orders.new", 0)...)
	var list []job.Settlement
	for i, d := range h.claimDue(0) {
		s := settlement(h, d.Ref(), outcomes[i/2])
		if i%2 == 1 {
			s.Nonce++
		}
		list = append(list, s, job.Settlement{Ref: job.Ref{ID: "unknown" + d.ID, Incarnation: 1, Attempt: 1, Nonce: 1}, Outcome: s.Outcome})
	}
	want := []job.State{job.Done, job.Pending, job.Pending, job.Pending, job.Dead, job.Running, job.Running}
	for i, r := range h.settle(0, list...) {
		if i%2 == 1 && r != job.Unknown || i%4 == 0 && r != job.Settled || i%4 == 2 && r != job.Stale {
			h.Errorf("settlement %d of the batch: result %d", i, r)
		}
		if i%4 == 0 {
			h.wantState(list[i].ID, want[i/4])
		} else if i%4 == 2 {
			h.wantState(list[i].ID, job.Running)
		}
	}
}

func testSettleTwiceInBatch(h *harness) {
	h.mustPut(h.mk("a", "orders.new", 0), h.mk("b", "orders.new", 1000), h.mk("c", "orders.new", 2000))
	var list []job.Settlement
	for i, d := range h.claimDue(time.Second) {
		first := []job.Outcome{job.Complete, job.Retry, job.Extend}[i]
		list = append(list, settlement(h, d.Ref(), first), settlement(h, d.Ref(), job.Complete))
	}
	want := []job.SettleResult{job.Settled, job.Repeated, job.Settled, job.Stale, job.Settled, job.Settled}
	if got := h.settle(0, list...); !reflect.DeepEqual(got, want) {
		h.Errorf("results %v, want %v", got, want)
	}
	h.wantState("a", job.Done)
	h.wantState("b", job.Pending)
	h.wantState("c", job.Done)
}

var fencingTests = []test{
	{"WrongToken", testFencingWrongToken},
	{"OlderAttempt", testFencingOlderAttempt},
	{"SameAttemptAgain", testFencingSameAttempt},
	{"ReusedID", testFencingReusedID},
	{"NotRunning", testFencingNotRunning},
	{"Ended", testFencingEnded},
	{"NeverSeen", testFencingNeverSeen},
}

// wantStale settles ref in every way and wants all refused, without effect.
func (h *harness) wantStale(ref job.Ref) {
	h.Helper()
	before := h.get(ref.ID)
	for _, o := range outcomes {
		h.wantResult(0, settlement(h, ref, o), job.Stale)
	}
	if after := h.get(ref.ID); !reflect.DeepEqual(after, before) {
		h.Errorf("refused settlements changed the job from\n%+v to\n%+v", before, after)
	}
}

func testFencingWrongToken(h *harness) {
	d := h.runOne("a")
	for _, change := range []func(*job.Ref){
		func(r *job.Ref) { r.Nonce++ },
		func(r *job.Ref) { r.Nonce = 0 },
		func(r *job.Ref) { r.Attempt++ },
		func(r *job.Ref) { r.Attempt = 0 },
		func(r *job.Ref) { r.Incarnation++ },
		func(r *job.Ref) { r.Incarnation = 0 },
	} {
		ref := d.Ref()
		change(&ref)
		h.wantStale(ref)
	}
	h.complete(0, d)
}

func testFencingOlderAttempt(h *harness) {
	old := h.runOne("a")
	h.mustSettle(0, settlement(h, old.Ref(), job.Retry))
	d := h.claimOne(time.Minute)
	h.wantStale(old.Ref())
	h.complete(0, d)
}

// testFencingSameAttempt gives deliveries back that repeat their attempt.
func testFencingSameAttempt(h *harness) {
	old := h.runOne("a")
	h.mustSettle(0, settlement(h, old.Ref(), job.Release))
	d := h.claimOne(time.Minute)
	h.wantStale(old.Ref())
	h.mustSettle(0, settlement(h, d.Ref(), job.SetAside))
	ds := h.claimAll(job.ClaimRequest{Now: h.t0, Until: h.t0.Add(time.Minute), Target: "orders.new"})
	h.wantIDs(ds, "a")
	h.wantStale(old.Ref())
	h.wantStale(d.Ref())
	h.complete(0, ds...)
}

func testFencingReusedID(h *harness) {
	old := h.runOne("a")
	h.mustSettle(0, settlement(h, old.Ref(), job.Release))
	h.cancel(0, "a")
	d := h.runOne("a")
	h.wantStale(old.Ref())
	h.complete(0, d)
}

func testFencingNotRunning(h *harness) {
	d := h.runOne("a")
	for _, o := range []job.Outcome{job.Retry, job.Release, job.SetAside, job.Bury} {
		h.mustSettle(0, settlement(h, d.Ref(), o))
		h.wantStale(d.Ref())
		h.wantStale(withoutNonce(d))
		d.Attempt = h.get("a").Attempt
		h.wantStale(withoutNonce(d))
		h.cancel(0, "a")
		d = h.runOne("a")
	}
	fresh := h.mk("fresh", "orders.new", time.Hour)
	h.mustPut(fresh)
	h.wantStale(job.Ref{ID: "fresh", Shard: h.get("fresh").Shard, Incarnation: h.get("fresh").Incarnation})
}

func testFencingEnded(h *harness) {
	d := h.runOne("done")
	h.complete(0, d)
	for _, o := range outcomes[1:] {
		h.wantResult(0, settlement(h, d.Ref(), o), job.Stale)
	}
	other := d.Ref()
	other.Nonce++
	h.wantResult(0, settlement(h, other, job.Complete), job.Stale)
	h.wantResult(0, settlement(h, d.Ref(), job.Complete), job.Repeated)

	d = h.runOne("cancelled")
	h.mustSettle(0, settlement(h, d.Ref(), job.Retry))
	h.cancel(0, "cancelled")
	h.wantStale(d.Ref())
	h.wantStale(withoutNonce(d))
}

// withoutNonce returns the token of a job that is not running, as a store may
// write it.
func withoutNonce(d job.Delivery) job.Ref {
	ref := d.Ref()
	ref.Nonce = 0
	return ref
}

func testFencingNeverSeen(h *harness) {
	for _, o := range outcomes {
		h.wantResult(0, settlement(h, job.Ref{ID: "a", Incarnation: 1, Attempt: 1, Nonce: 1}, o), job.Unknown)
	}
	h.wantState("a", "")
}

var leaseTests = []test{
	{"Expired", testLeaseExpired},
	{"ExpiredIsNotLost", testLeaseExpiredSettles},
}

func (h *harness) expired(d time.Duration, limit int) ([]job.Delivery, job.Time) {
	h.Helper()
	ds, next, err := h.store.Expired(context.Background(), h.t0.Add(d), limit)
	if err != nil || len(ds) > limit {
		h.Fatalf("Expired of at most %d: %d results, error %v", limit, len(ds), err)
	}
	return ds, next
}

func testLeaseExpired(h *harness) {
	jobs := []job.Job{h.mk("c", "orders.new", 0), h.mk("a", "orders.new", 1000), h.mk("b", "mail.send", 2000)}
	for i, wait := range []time.Duration{30, 10, 20} {
		jobs[i].AckWait = wait * time.Second
	}
	h.mustPut(jobs...)
	byID := map[string]job.Delivery{}
	for _, d := range h.claimDue(time.Second) {
		d.Next = 0 // not known of a lease
		byID[d.ID] = d
	}
	deadline := func(d time.Duration) job.Time { return h.t0.Add(time.Second + d*time.Second) }
	steps := []struct {
		at    time.Duration
		limit int
		want  []string
		next  job.Time
	}{
		{11*time.Second - 1000, 10, nil, deadline(10)},
		{11 * time.Second, 10, []string{"a"}, deadline(20)},
		{time.Hour, 10, []string{"a", "b", "c"}, 0},
		{time.Hour, 2, []string{"a", "b"}, deadline(30)},
		{time.Hour, 0, nil, deadline(10)},
	}
	for _, s := range steps {
		ds, next := h.expired(s.at, s.limit)
		h.wantIDs(ds, s.want...)
		if next != s.next {
			h.Errorf("at most %d expired at %v: next %d, want %d", s.limit, s.at, next, s.next)
		}
		for _, d := range ds {
			if !reflect.DeepEqual(d, byID[d.ID]) {
				h.Errorf("expired as\n%+v, claimed as\n%+v", d, byID[d.ID])
			}
		}
	}
}

// testLeaseExpiredSettles: a lease that ran out is still the job's present one
// until somebody else takes the job.
func testLeaseExpiredSettles(h *harness) {
	h.mustPut(h.mk("a", "orders.new", 0), h.mk("b", "orders.new", 1000))
	late, lost := "a", "b"
	byID := map[string]job.Delivery{}
	for _, d := range h.claimDue(time.Second) {
		byID[d.ID] = d
	}
	ds, _ := h.expired(time.Hour, 10)
	h.wantIDs(ds, "a", "b")
	h.wantNone(time.Hour)
	h.complete(time.Hour, byID[late])
	h.mustSettle(time.Hour, job.Settlement{Ref: refOf(byID[lost]), Outcome: job.Retry, At: h.t0.Add(time.Hour)})
	d := h.claimOne(time.Hour)
	if d.ID != lost || d.Attempt != 2 {
		h.Errorf("claimed %q, attempt %d", d.ID, d.Attempt)
	}
	h.wantStale(refOf(byID[lost]))
	ds, _ = h.expired(time.Hour, 10)
	h.wantIDs(ds)
	h.complete(time.Hour, d)
}

func testPrune(h *harness) {
	jobs := h.mkMany(20, "job%02d", "orders.new", 0)
	h.mustPut(jobs...)
	for _, d := range h.claimDue(0) {
		i := slices.IndexFunc(jobs, func(j job.Job) bool { return j.ID == d.ID })
		h.mustSettle(time.Duration(i)*time.Second, settlement(h, d.Ref(), job.Bury))
	}
	h.wantChange(h.reschedule(job.Reschedule{ID: "job00", Due: h.t0, Requeue: true})[0], job.Change{ID: "job00", Result: job.ResultDone, Attempt: 1})
	prune := func(before time.Duration, max, want int) {
		h.Helper()
		n, err := h.store.Prune(context.Background(), h.t0.Add(before), max)
		if err != nil || n != want {
			h.Fatalf("pruned %d (%v), want %d", n, err, want)
		}
	}
	prune(9*time.Second, 5, 5)
	prune(9*time.Second, 100, 4)
	prune(9*time.Second, 100, 0)
	for i, j := range jobs {
		want := job.Dead
		switch {
		case i == 0:
			want = job.Pending
		case i <= 9:
			want = ""
		}
		h.wantState(j.ID, want)
	}
	h.mustPut(h.mk("job05", "orders.new", 0))
	h.wantState("job05", job.Pending)
	if dead := h.listAll(job.Query{State: job.Dead, Limit: 100}); len(dead) != 10 {
		h.Errorf("%d dead jobs left, want 10", len(dead))
	}
}

// testSettleSpare gives a job back without taking the attempt back: its number
// rises and its budget does not shrink.
func testSettleSpare(h *harness) {
	aside := job.ClaimRequest{Now: h.t0, Until: h.t0, Max: 1, Target: "orders.new"}
	settleSpared(h, job.SetAside, aside)
}

func testReleaseSpare(h *harness) {
	settleSpared(h, job.Release, job.ClaimRequest{Now: h.t0, Until: h.t0, Max: 1})
}

func settleSpared(h *harness, how job.Outcome, again job.ClaimRequest) {
	j := h.mk("a", "orders.new", 0)
	j.MaxAttempts = 2
	h.mustPut(j)
	d := h.claimOne(0)
	for attempt := uint32(1); attempt <= 3; attempt++ {
		if d.Attempt != attempt || d.Base != attempt-1 || d.LastAttempt() {
			h.Errorf("attempt %d of base %d, last %v; want %d of %d, not the last", d.Attempt, d.Base, d.LastAttempt(), attempt, attempt-1)
		}
		s := settlement(h, d.Ref(), how)
		s.At, s.Spare = h.t0, true
		h.mustSettle(0, s)
		if i := h.wantState("a", job.Pending); i.Attempt != attempt || i.Base != attempt {
			h.Errorf("given back, the job is at attempt %d of base %d, want %d of %d", i.Attempt, i.Base, attempt, attempt)
		}
		d = h.claim(again).Deliveries[0]
	}
	h.mustSettle(0, job.Settlement{Ref: d.Ref(), Outcome: job.Retry, At: h.t0})
	if d = h.claimOne(0); !d.LastAttempt() {
		h.Errorf("attempt %d of base %d is not the last of a budget of 2", d.Attempt, d.Base)
	}
	h.complete(0, d)
}
