package jobtest

import (
	"time"

	"github.com/delaybridge/delaybridge/job"
)

var dedupTests = []test{
	{"WhileItLives", testDedupWhileItLives},
	{"AfterCompletion", testDedupAfterCompletion},
	{"AfterTheWindow", testDedupAfterTheWindow},
	{"ElsewhereWhileItLives", testDedupElsewhere},
	{"ElsewhereAfterCompletion", testDedupElsewhereDone},
}

func testDedupWhileItLives(h *harness) {
	first := h.mk("a", "orders.new", 0)
	h.mustPut(first)
	duplicate := func(where string) {
		h.Helper()
		// Another target of the same first token makes no difference.
		second := h.mk("a", "orders.old", time.Hour)
		second.Payload = []byte(where)
		h.wantDuplicate(h.put(second)[0], first.Due)
		h.wantJob(h.get("a").Job, first)
	}
	duplicate("pending")
	h.claimAll(job.ClaimRequest{Now: h.t0, Until: h.t0, Blocked: []string{"orders.new"}})
	duplicate("set aside")
	d := h.claim(job.ClaimRequest{Now: h.t0, Until: h.t0, Max: 1, Target: "orders.new"}).Deliveries[0]
	duplicate("running")
	h.mustSettle(0, job.Settlement{Ref: d.Ref(), Outcome: job.Retry, At: h.t0.Add(time.Second)})
	duplicate("to be retried")
	d = h.claimOne(time.Second)
	h.mustSettle(0, job.Settlement{Ref: d.Ref(), Outcome: job.Bury, Reason: "broken"})
	duplicate("dead")
	h.wantState("a", job.Dead)
}

func testDedupAfterCompletion(h *harness) {
	d := h.runOne("a")
	h.complete(0, d)
	h.tick(h.suite.DedupWindow - time.Second)
	h.wantDuplicate(h.put(h.mk("a", "orders.new", time.Hour))[0], d.Due)
	h.wantDuplicate(h.put(h.mk("a", "orders", time.Hour))[0], d.Due)
	h.wantState("a", job.Done)
	h.wantNone(2 * time.Hour)
}

// tick lets the store know, by ending another job, that it is t0+d.
func (h *harness) tick(d time.Duration) {
	h.Helper()
	j := []job.Job{h.mk("", "ticks", 0)}
	j[0].ID = ""
	h.mustPut(j...)
	h.complete(d, h.claimDue(0)...)
}

func testDedupAfterTheWindow(h *harness) {
	old := h.runOne("a")
	h.complete(0, old)
	h.mustPut(h.mk("b", "orders.new", 0))
	h.cancel(0, "b")
	h.tick(2*h.suite.DedupWindow + time.Second)
	h.wantState("a", "")
	h.wantState("b", "")
	h.wantResult(2*h.suite.DedupWindow, job.Settlement{Ref: old.Ref(), Outcome: job.Complete}, job.Unknown)
	j := h.mk("a", "orders.new", 0)
	h.mustPut(j)
	d := h.claimOne(0)
	if d.Incarnation == old.Incarnation || d.Nonce == old.Nonce || d.Attempt != 1 {
		h.Errorf("the reused id was delivered as %+v, before as %+v", d.Ref(), old.Ref())
	}
	h.wantResult(0, job.Settlement{Ref: old.Ref(), Outcome: job.Complete}, job.Stale)
	h.complete(0, d)
}

func testDedupElsewhere(h *harness) {
	first := h.mk("a", "orders.new", 0)
	h.mustPut(first)
	conflict := func() {
		h.Helper()
		// Tokens are compared whole: "order" is not "orders".
		for _, target := range []string{"billing.new", "order", "orders2.new", "ordersx"} {
			j := h.mk("a", target, time.Hour)
			h.wantConflict(h.put(j)[0])
			j.Replace = true
			h.wantConflict(h.put(j)[0])
		}
		h.wantJob(h.get("a").Job, first)
	}
	conflict()
	d := h.claimOne(0)
	conflict()
	h.mustSettle(0, job.Settlement{Ref: d.Ref(), Outcome: job.Bury, Reason: "broken"})
	conflict()
	h.cancel(0, "a")
	h.mustPut(h.mk("a", "billing.new", 0))
}

func testDedupElsewhereDone(h *harness) {
	old := h.runOne("a")
	h.complete(0, old)
	j := h.mk("a", "billing.new", 0)
	h.mustPut(j)
	h.wantJob(h.wantState("a", job.Pending).Job, j)
	h.wantConflict(h.put(h.mk("a", "orders.new", 0))[0])
	for _, o := range outcomes {
		if r := h.settle(0, settlement(h, old.Ref(), o))[0]; r == job.Settled {
			h.Errorf("a settlement of the job before was accepted, outcome %d", o)
		}
	}
	h.complete(0, h.claimOne(0))
}

var replaceTests = []test{
	{"Pending", testReplacePending},
	{"SetAside", testReplaceSetAside},
	{"Dead", testReplaceDead},
	{"Running", testReplaceRunning},
	{"NothingThere", testReplaceNothing},
	{"InOneBatch", testReplaceInBatch},
}

// replacement returns a job to replace id with.
func (h *harness) replacement(id string, d time.Duration) job.Job {
	j := h.mk(id, "orders.other", d)
	j.Payload = []byte("replaced")
	j.Replace = true
	return j
}

// wantReplaced checks that id is now j and delivered as a new job.
func (h *harness) wantReplaced(j job.Job) {
	h.Helper()
	i := h.wantState(j.ID, job.Pending)
	h.wantJob(i.Job, j)
	if i.Next != j.Due || i.Attempt != 0 || i.Base != 0 || i.Reason != "" {
		h.Errorf("the new job is %+v, want it due at %d and never delivered", i, j.Due)
	}
	ds := h.claimAll(job.ClaimRequest{Now: j.Due, Until: j.Due})
	h.wantIDs(ds, j.ID)
	if ds[0].Attempt != 1 || ds[0].Base != 0 {
		h.Errorf("delivered as attempt %d, base %d", ds[0].Attempt, ds[0].Base)
	}
}

func testReplacePending(h *harness) {
	d := h.runOne("a")
	h.mustSettle(0, job.Settlement{Ref: d.Ref(), Outcome: job.Retry, At: h.t0.Add(time.Minute)})
	j := h.replacement("a", time.Second)
	h.mustPut(j)
	if i := h.get("a"); i.Incarnation == d.Incarnation {
		h.Error("the replacement has the incarnation of the job before")
	}
	h.wantReplaced(j)
	h.wantNone(time.Hour)
}

func testReplaceSetAside(h *harness) {
	h.mustPut(h.mk("a", "orders.new", 0), h.mk("b", "orders.new", 0))
	h.claimAll(job.ClaimRequest{Now: h.t0, Until: h.t0, Blocked: []string{"orders.new"}})
	j := h.replacement("a", time.Second)
	h.mustPut(j)
	h.wantReplaced(j)
	h.wantIDs(h.claimAll(job.ClaimRequest{Now: h.t0, Until: h.t0.Add(time.Hour), Target: "orders.new"}), "b")
}

func testReplaceDead(h *harness) {
	d := h.runOne("a")
	bury := job.Settlement{Ref: d.Ref(), Outcome: job.Bury, Reason: "broken"}
	h.mustSettle(0, bury)
	j := h.replacement("a", time.Second)
	h.mustPut(j)
	h.wantResult(0, bury, job.Stale)
	h.wantReplaced(j)
	if dead := h.listAll(job.Query{State: job.Dead, Limit: 10}); len(dead) != 0 {
		h.Errorf("still listed as dead: %v", dead)
	}
}

func testReplaceRunning(h *harness) {
	d := h.runOne("a")
	h.wantConflict(h.put(h.replacement("a", 0))[0])
	h.wantJob(h.wantState("a", job.Running).Job, d.Job)
	h.complete(0, d)
}

func testReplaceNothing(h *harness) {
	h.complete(0, h.runOne("done"))
	h.mustPut(h.mk("cancelled", "orders.new", 0))
	h.cancel(0, "cancelled")
	for i, id := range []string{"never seen", "done", "cancelled"} {
		j := h.replacement(id, time.Duration(i)*time.Second)
		h.mustPut(j)
		h.wantReplaced(j)
	}
}

func testReplaceInBatch(h *harness) {
	first, second := h.mk("a", "orders.new", 0), h.replacement("a", time.Second)
	third := h.mk("a", "orders.new", time.Hour)
	res := h.put(first, second, third)
	h.wantStored(res[0], first)
	h.wantStored(res[1], second)
	h.wantDuplicate(res[2], second.Due)
	h.wantReplaced(second)
	h.wantNone(time.Hour)
}
