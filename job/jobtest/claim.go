package jobtest

import (
	"fmt"
	"slices"
	"time"

	"github.com/delaybridge/delaybridge/job"
)

var claimTests = []test{
	{"Leases", testClaimLeases},
	{"Order", testClaimOrder},
	{"OrderOfRetries", testClaimOrderOfRetries},
	{"Until", testClaimUntil},
	{"Max", testClaimMax},
	{"From", testClaimFrom},
	{"NextDue", testClaimNextDue},
	{"Ahead", testClaimAhead},
	{"Past", testClaimPast},
}

func testClaimLeases(h *harness) {
	jobs := []job.Job{h.mk("a", "orders.new", 0), h.mk("b", "orders.new", 1000)}
	h.mustPut(jobs...)
	ds := h.claimDue(time.Second)
	h.wantIDs(ds, "a", "b")
	for i, d := range ds {
		h.wantJob(d.Job, jobs[i])
		deadline := h.t0.Add(time.Second).Add(d.AckWait)
		if d.Attempt != 1 || d.Base != 0 || d.Nonce == 0 || d.Owner != owner || d.Next != jobs[i].Due || d.Deadline != deadline {
			h.Errorf("delivery %+v, want the first, due at %d, to %s, until %d", d, jobs[i].Due, owner, deadline)
		}
		got := h.wantState(d.ID, job.Running)
		if got.Attempt != 1 || got.Owner != owner || got.Next != deadline || got.Ref() != d.Ref() {
			h.Errorf("Get says %+v of the delivery %+v", got, d)
		}
	}
	if ds[0].Nonce == ds[1].Nonce {
		h.Error("two deliveries have the same nonce")
	}
	h.wantNone(time.Minute)
}

func testClaimOrder(h *harness) {
	var jobs []job.Job
	for i := range 300 {
		// 7 and 300 have no common factor, so every time occurs once.
		jobs = append(jobs, h.mk(fmt.Sprintf("job%d", i), fmt.Sprintf("orders.%d", i%5), time.Duration(i*7%300)*time.Microsecond))
	}
	h.mustPut(jobs...)
	c := h.claim(job.ClaimRequest{Now: h.t0.Add(time.Second), Until: h.t0.Add(time.Second), Max: 4096})
	if !slices.IsSortedFunc(c.Deliveries, inOrder) {
		h.Error("deliveries are not in order of their due times")
	}
	if len(c.Deliveries) != len(jobs) || c.Last != h.t0.Add(299*time.Microsecond) || c.NextDue != 0 {
		h.Errorf("%d deliveries, last %d, next %d", len(c.Deliveries), c.Last, c.NextDue)
	}
}

// testClaimOrderOfRetries mixes first attempts with later ones: all are in
// order of their next attempt, whatever their due times.
func testClaimOrderOfRetries(h *harness) {
	h.mustPut(h.mkMany(40, "retry%d", "orders.new", 0)...)
	ds := h.claimDue(0)
	for i, d := range ds {
		h.mustSettle(0, job.Settlement{Ref: d.Ref(), Outcome: job.Retry, At: h.t0.Add(time.Duration(2*i) * time.Microsecond)})
		h.mustPut(h.mk(fmt.Sprintf("first%d", i), "orders.new", time.Duration(2*i+1)*time.Microsecond))
	}
	c := h.claim(job.ClaimRequest{Now: h.t0, Until: h.t0.Add(time.Second), Max: 4096})
	for i, d := range c.Deliveries {
		if want := h.t0.Add(time.Duration(i) * time.Microsecond); d.Next != want {
			h.Errorf("delivery %d is of %q, next %d, want %d", i, d.ID, d.Next, want)
		}
	}
	if len(c.Deliveries) != 80 {
		h.Errorf("%d deliveries of 80", len(c.Deliveries))
	}
}

func testClaimUntil(h *harness) {
	h.mustPut(h.mk("a", "orders.new", time.Second), h.mk("b", "orders.new", time.Second+time.Microsecond))
	h.wantNone(time.Second - time.Microsecond)
	h.wantIDs(h.claimDue(time.Second), "a")
	h.wantIDs(h.claimDue(time.Second+time.Microsecond), "b")
}

func testClaimMax(h *harness) {
	h.mustPut(h.mkMany(40, "job%d", "orders.new", 0)...)
	for _, n := range []int{1, 3, 40} {
		c := h.claim(job.ClaimRequest{Now: h.t0, Until: h.t0, Max: n})
		if len(c.Deliveries) == 0 {
			h.Errorf("a claim of at most %d returned none of 40 jobs", n)
		}
		for _, d := range c.Deliveries {
			h.mustSettle(0, job.Settlement{Ref: d.Ref(), Outcome: job.Release, At: h.t0})
		}
	}
	if n := len(h.claimAll(job.ClaimRequest{Now: h.t0, Until: h.t0, Max: 1})); n != 40 {
		h.Errorf("claims one by one returned %d jobs of 40", n)
	}
}

// testClaimFrom allows a store to ignore From, but not to invent anything.
func testClaimFrom(h *harness) {
	h.mustPut(h.mk("a", "orders.new", time.Second), h.mk("b", "orders.new", 2*time.Second), h.mk("c", "orders.new", 3*time.Second))
	c := h.claim(job.ClaimRequest{Now: h.t0, From: h.t0.Add(2 * time.Second), Until: h.t0.Add(2 * time.Second), Max: 100})
	if got := ids(c.Deliveries); !slices.Equal(got, []string{"b"}) && !slices.Equal(got, []string{"a", "b"}) {
		h.Errorf("claimed %q, want b, and a at most", got)
	}
	h.wantState("c", job.Pending)
}

func testClaimNextDue(h *harness) {
	next := func(d time.Duration, limit int, want job.Time) {
		h.Helper()
		c := h.claim(job.ClaimRequest{Now: h.t0.Add(d), Until: h.t0.Add(d), Max: limit})
		if c.NextDue != want {
			h.Errorf("next due %d, want %d", c.NextDue, want)
		}
	}
	a, b := h.mk("a", "orders.new", time.Second), h.mk("b", "orders.new", 5*time.Second)
	h.mustPut(b)
	next(0, 10, b.Due)
	h.mustPut(a)
	next(0, 10, a.Due)
	next(time.Second, 0, a.Due)
	next(time.Second, 10, b.Due)
	h.reschedule(job.Reschedule{ID: "b", Due: h.t0.Add(3 * time.Second)})
	next(time.Second, 10, h.t0.Add(3*time.Second))
	h.reschedule(job.Reschedule{ID: "b", Due: h.t0.Add(7 * time.Second)})
	next(time.Second, 10, h.t0.Add(7*time.Second))
	h.cancel(0, "b")
	next(time.Second, 10, 0)
	running := h.get("a")
	retry := job.Settlement{Ref: running.Ref(), Outcome: job.Retry, At: h.t0.Add(9 * time.Second)}
	h.mustSettle(0, retry)
	next(time.Second, 10, retry.At)
	next(9*time.Second, 10, 0)
}

// testClaimAhead claims before the due time: the lease counts from then.
func testClaimAhead(h *harness) {
	j := h.mk("a", "orders.new", 50*time.Millisecond)
	h.mustPut(j)
	c := h.claim(job.ClaimRequest{Now: h.t0, Until: j.Due, Max: 10})
	h.wantIDs(c.Deliveries, "a")
	d := c.Deliveries[0]
	if want := j.Due.Add(j.AckWait); d.Deadline != want {
		h.Errorf("deadline %d, want %d", d.Deadline, want)
	}
	retry := h.t0.Add(10 * time.Second)
	h.mustSettle(0, job.Settlement{Ref: d.Ref(), Outcome: job.Retry, At: retry})
	c = h.claim(job.ClaimRequest{Now: h.t0, Until: retry, Max: 10})
	h.wantIDs(c.Deliveries, "a")
	d = c.Deliveries[0]
	if want := retry.Add(j.AckWait); d.Deadline != want || d.Next != retry || d.Due != j.Due {
		h.Errorf("a retry at %d: next %d; deadline %d, want %d; due %d, want %d", retry, d.Next, d.Deadline, want, d.Due, j.Due)
	}
}

func testClaimPast(h *harness) {
	old, first := h.mk("old", "orders.new", -24*time.Hour), h.mk("first", "orders.new", 0)
	first.Due = 1
	h.mustPut(old, first)
	ds := h.claimDue(0)
	h.wantIDs(ds, "first", "old")
	for _, d := range ds {
		if want := h.t0.Add(d.AckWait); d.Deadline != want {
			h.Errorf("deadline of %q: %d, want %d", d.ID, d.Deadline, want)
		}
	}
	far := h.mk("far", "orders.new", 10*365*24*time.Hour)
	h.mustPut(far)
	h.wantIDs(h.claimAll(job.ClaimRequest{Now: h.t0, Until: far.Due - 1}))
	h.wantIDs(h.claimAll(job.ClaimRequest{Now: h.t0, Until: far.Due}), "far")
}

var setAsideTests = []test{
	{"ByClaim", testSetAsideByClaim},
	{"ByClaimInSteps", testSetAsideInSteps},
	{"BySettle", testSetAsideBySettle},
	{"ClaimInOrder", testSetAsideOrder},
	{"Changed", testSetAsideChanged},
}

func testSetAsideByClaim(h *harness) {
	h.mustPut(
		h.mk("a", "orders.new", 0), h.mk("b", "mail.send", 1000), h.mk("c", "orders.new", 2000),
		h.mk("d", "orders.old", 3000), h.mk("later", "orders.new", time.Hour),
	)
	r := job.ClaimRequest{Now: h.t0.Add(time.Second), Until: h.t0.Add(time.Second), Max: 1000, Blocked: []string{"orders.new", "absent"}}
	c := h.claim(r)
	h.wantIDs(c.Deliveries, "b", "d")
	if c.SetAside != 2 || c.NextDue != h.t0.Add(time.Hour) || c.Last != h.t0.Add(3*time.Microsecond) {
		h.Errorf("%d set aside, next due %d, last %d", c.SetAside, c.NextDue, c.Last)
	}
	if want := []job.Aside{{Target: "orders.new", Next: h.t0}}; !slices.Equal(c.Aside, want) {
		h.Errorf("set aside for %v, want %v", c.Aside, want)
	}
	if got := h.waiting(); !slices.Equal(got, []string{"orders.new"}) {
		h.Errorf("waiting %q, want orders.new", got)
	}
	for _, id := range []string{"a", "c", "later"} {
		if i := h.wantState(id, job.Pending); i.Next != i.Due || i.Attempt != 0 {
			h.Errorf("job %q is next at %d, attempt %d, want %d, 0", id, i.Next, i.Attempt, i.Due)
		}
	}
	h.wantNone(time.Second)
	h.wantIDs(h.claimAll(job.ClaimRequest{Now: r.Now, Until: r.Until, Target: "absent"}))
	// Blocked says nothing about a claim for a target.
	ds := h.claimAll(job.ClaimRequest{Now: r.Now, Until: r.Until, Target: "orders.new", Blocked: r.Blocked})
	h.wantIDs(ds, "a", "c")
	for _, d := range ds {
		if d.Attempt != 1 || d.Owner != owner || d.Deadline != r.Now.Add(d.AckWait) {
			h.Errorf("delivery %+v, want the first, until %d", d, r.Now.Add(d.AckWait))
		}
	}
	if got := h.waiting(); len(got) != 0 {
		h.Errorf("waiting %q after all were claimed", got)
	}
}

// testSetAsideInSteps sets aside more jobs than a store does at once, beside
// one that must come through.
func testSetAsideInSteps(h *harness) {
	h.mustPut(h.mkMany(3000, "job%d", "orders.new", 0)...)
	h.mustPut(h.mk("busy", "mail.send", time.Second))
	at := h.t0.Add(time.Second)
	h.wantIDs(h.claimAll(job.ClaimRequest{Now: at, Until: at, Blocked: []string{"orders.new"}}), "busy")
	if n := len(h.claimAll(job.ClaimRequest{Now: at, Until: at, Target: "orders.new"})); n != 3000 {
		h.Errorf("%d jobs of 3000 were set aside", n)
	}
}

func testSetAsideBySettle(h *harness) {
	h.mustPut(h.mk("a", "orders.new", 0), h.mk("b", "orders.new", 1000), h.mk("c", "mail.send", 2000))
	ds := h.claimDue(time.Second)
	for i, d := range ds[:2] {
		h.mustSettle(0, job.Settlement{Ref: d.Ref(), Outcome: job.SetAside, At: h.t0.Add(time.Duration(10-i) * time.Second), Target: d.Target})
	}
	i := h.wantState("a", job.Pending)
	if i.Attempt != 0 || i.Next != h.t0.Add(10*time.Second) || i.Due != h.t0 || i.Owner != "" || i.Nonce != 0 {
		h.Errorf("set aside, the job is %+v", i)
	}
	h.wantNone(time.Hour)
	c := h.claim(job.ClaimRequest{Now: h.t0, Until: h.t0.Add(9 * time.Second), Max: 100, Target: "orders.new"})
	h.wantIDs(c.Deliveries, "b")
	if c.Deliveries[0].Attempt != 1 || c.NextDue != h.t0.Add(10*time.Second) || c.Deliveries[0].Nonce == ds[1].Nonce {
		h.Errorf("delivery %+v, next due %d", c.Deliveries[0], c.NextDue)
	}
	c = h.claim(job.ClaimRequest{Now: h.t0, Until: h.t0.Add(10 * time.Second), Max: 100, Target: "orders.new"})
	h.wantIDs(c.Deliveries, "a")
	if c.NextDue != 0 {
		h.Errorf("next due %d of an empty target", c.NextDue)
	}
}

func testSetAsideOrder(h *harness) {
	var jobs []job.Job
	for i := range 100 {
		jobs = append(jobs, h.mk(fmt.Sprintf("job%d", i), fmt.Sprintf("orders.%d", i%2), time.Duration(i*7%100)*time.Microsecond))
	}
	h.mustPut(jobs...)
	at := h.t0.Add(time.Second)
	h.claimAll(job.ClaimRequest{Now: at, Until: at, Blocked: []string{"orders.0", "orders.1"}})
	for _, target := range []string{"orders.0", "orders.1"} {
		c := h.claim(job.ClaimRequest{Now: at, Until: at, Max: 4096, Target: target})
		if len(c.Deliveries) != 50 || c.NextDue != 0 || !slices.IsSortedFunc(c.Deliveries, inOrder) {
			h.Errorf("%d deliveries of %s, next due %d, in order: %v", len(c.Deliveries), target, c.NextDue, slices.IsSortedFunc(c.Deliveries, inOrder))
		}
		for _, d := range c.Deliveries {
			if d.Target != target {
				h.Errorf("claimed %q of %s for %s", d.ID, d.Target, target)
			}
		}
	}
}

// testSetAsideChanged cancels and reschedules what is set aside.
func testSetAsideChanged(h *harness) {
	h.mustPut(h.mk("a", "orders.new", 0), h.mk("b", "orders.new", 0), h.mk("c", "orders.new", 0))
	blocked := job.ClaimRequest{Now: h.t0, Until: h.t0, Blocked: []string{"orders.new"}}
	h.claimAll(blocked)
	h.wantChange(h.cancel(0, "a")[0], job.Change{ID: "a", Result: job.ResultDone})
	due := h.t0.Add(time.Minute)
	h.wantChange(h.reschedule(job.Reschedule{ID: "b", Due: due})[0], job.Change{ID: "b", Result: job.ResultDone})
	if i := h.wantState("b", job.Pending); i.Due != due || i.Next != due {
		h.Errorf("rescheduled to %d, the job is due at %d, next at %d", due, i.Due, i.Next)
	}
	h.wantIDs(h.claimAll(job.ClaimRequest{Now: h.t0, Until: due, Target: "orders.new"}), "c")
	if got := h.waiting(); len(got) != 0 {
		h.Errorf("waiting %q after the last left", got)
	}
	h.wantIDs(h.claimDue(time.Minute), "b")
}
