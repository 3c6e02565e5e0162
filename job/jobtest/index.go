package jobtest

import (
	"context"
	"reflect"
	"time"

	"github.com/delaybridge/delaybridge/job"
)

var getTests = []test{
	{"Batch", testGetBatch},
	{"Ended", testGetEnded},
}

func testGetBatch(h *harness) {
	h.complete(0, h.runOne("done"))
	h.mustSettle(0, settlement(h, refOf(h.runOne("dead")), job.Bury))
	h.runOne("running")
	h.mustPut(h.mk("pending", "orders.new", time.Hour), h.mk("cancelled", "orders.new", 0))
	h.cancel(0, "cancelled")
	want := []struct {
		id    string
		state job.State
	}{
		{"unknown", ""}, {"done", job.Done}, {"", ""}, {"cancelled", job.Cancelled}, {"pending", job.Pending},
		{"running", job.Running}, {"dead", job.Dead}, {"pending", job.Pending},
	}
	var ids []string
	for _, w := range want {
		ids = append(ids, w.id)
	}
	infos, err := h.store.Get(context.Background(), ids)
	if err != nil || len(infos) != len(want) {
		h.Fatalf("Get: %d results of %d, error %v", len(infos), len(want), err)
	}
	for i, w := range want {
		if infos[i].State != w.state || w.state != "" && infos[i].ID != w.id {
			h.Errorf("job %q is %q of id %q, want %q", w.id, infos[i].State, infos[i].ID, w.state)
		}
		if stored := infos[i].Stored; h.suite.Stored != "" && w.state != "" && stored != h.suite.Stored {
			h.Errorf("job %q is stored %q, want %q", w.id, stored, h.suite.Stored)
		}
	}
}

func testGetEnded(h *harness) {
	d := h.runOne("a")
	h.complete(time.Second, d)
	i := h.wantState("a", job.Done)
	if i.Target != d.Target || i.Due != d.Due || i.Incarnation != d.Incarnation || i.Attempt != 1 || i.Next != h.t0.Add(time.Second) {
		h.Errorf("a done job is %+v", i)
	}
	j := h.mk("b", "orders.new", time.Hour)
	h.mustPut(j)
	h.cancel(time.Second, "b")
	i = h.wantState("b", job.Cancelled)
	if i.Target != j.Target || i.Due != j.Due || i.Incarnation == 0 || i.Attempt != 0 || i.Next != h.t0.Add(time.Second) {
		h.Errorf("a cancelled job is %+v", i)
	}
}

var cancelTests = []test{
	{"Pending", testCancelPending},
	{"Running", testCancelRunning},
	{"Ended", testCancelEnded},
	{"FreesTheID", testCancelFreesTheID},
}

func testCancelPending(h *harness) {
	h.mustPut(h.mkMany(20, "job%d", "orders.new", 0)...)
	res := h.cancel(0, "job3", "unknown", "job3", "job17")
	want := []job.Change{
		{ID: "job3", Result: job.ResultDone}, {ID: "unknown", Result: job.ResultUnknown},
		{ID: "job3", Result: job.ResultFinished}, {ID: "job17", Result: job.ResultDone},
	}
	if !reflect.DeepEqual(res, want) {
		h.Errorf("changes %+v, want %+v", res, want)
	}
	ds := h.claimDue(0)
	for _, d := range ds {
		if d.ID == "job3" || d.ID == "job17" {
			h.Errorf("the cancelled job %q was delivered", d.ID)
		}
	}
	if len(ds) != 18 {
		h.Errorf("%d jobs delivered of 18", len(ds))
	}
}

func testCancelRunning(h *harness) {
	d := h.runOne("a")
	running := job.Change{ID: "a", Result: job.ResultRunning, Attempt: 1, Owner: owner}
	h.wantChange(h.cancel(0, "a")[0], running)
	h.wantState("a", job.Running)
	h.mustSettle(0, settlement(h, d.Ref(), job.Retry))
	d = h.claimOne(time.Minute)
	running.Attempt = 2
	h.wantChange(h.cancel(0, "a")[0], running)
	h.complete(0, d)
	h.wantState("a", job.Done)
}

func testCancelEnded(h *harness) {
	h.complete(0, h.runOne("done"))
	h.wantChange(h.cancel(0, "done")[0], job.Change{ID: "done", Result: job.ResultFinished, Attempt: 1})
	h.wantState("done", job.Done)
	h.mustSettle(0, settlement(h, refOf(h.runOne("dead")), job.Bury))
	h.wantChange(h.cancel(0, "dead")[0], job.Change{ID: "dead", Result: job.ResultDone, Attempt: 1})
	h.wantState("dead", job.Cancelled)
	h.wantChange(h.cancel(0, "dead")[0], job.Change{ID: "dead", Result: job.ResultFinished, Attempt: 1})
	if dead := h.listAll(job.Query{State: job.Dead, Limit: 10}); len(dead) != 0 {
		h.Errorf("still listed as dead: %+v", dead)
	}
}

func testCancelFreesTheID(h *harness) {
	h.mustPut(h.mk("a", "orders.new", 0))
	h.cancel(0, "a")
	// Another first token: the id is free for everybody.
	j := h.mk("a", "billing.new", time.Second)
	h.mustPut(j)
	h.wantJob(h.wantState("a", job.Pending).Job, j)
	h.wantNone(0)
	h.complete(0, h.claimOne(time.Second))
	h.wantState("a", job.Done)
}

var rescheduleTests = []test{
	{"Pending", testReschedulePending},
	{"Retried", testRescheduleRetried},
	{"NotPending", testRescheduleNotPending},
	{"Requeue", testRequeue},
	{"RequeueNotDead", testRequeueNotDead},
}

func testReschedulePending(h *harness) {
	j := h.mk("a", "orders.new", time.Minute)
	j.Header = []job.Field{{Name: "X-A", Value: "1"}}
	j.Payload = nil
	never := h.mk("never", "orders.new", time.Hour)
	never.Expires = 0
	h.mustPut(j, never)
	for _, d := range []time.Duration{time.Hour, time.Second, -time.Second} {
		j.Due, j.Expires = h.t0.Add(d), h.t0.Add(d+time.Hour)
		h.wantChange(h.reschedule(job.Reschedule{ID: "a", Due: j.Due})[0], job.Change{ID: "a", Result: job.ResultDone})
		i := h.wantState("a", job.Pending)
		h.wantJob(i.Job, j)
		if i.Next != j.Due || i.Attempt != 0 {
			h.Errorf("rescheduled to %d, next at %d, attempt %d", j.Due, i.Next, i.Attempt)
		}
	}
	never.Due = h.t0
	h.reschedule(job.Reschedule{ID: "never", Due: h.t0})
	h.wantJob(h.get("never").Job, never)
	ds := h.claimDue(0)
	h.wantIDs(ds, "a", "never")
	h.wantJob(ds[0].Job, j)
	h.wantDuplicate(h.put(h.mk("a", "orders.new", 0))[0], j.Due)
}

func testRescheduleRetried(h *harness) {
	d := h.runOne("a")
	h.mustSettle(0, settlement(h, d.Ref(), job.Retry))
	due := h.t0.Add(time.Second)
	h.wantChange(h.reschedule(job.Reschedule{ID: "a", Due: due})[0], job.Change{ID: "a", Result: job.ResultDone, Attempt: 1})
	h.wantStale(d.Ref())
	d = h.claimOne(time.Second)
	if d.Attempt != 2 || d.Due != due {
		h.Errorf("attempt %d, due %d, want 2, %d", d.Attempt, d.Due, due)
	}
	h.complete(0, d)
}

func testRescheduleNotPending(h *harness) {
	h.complete(0, h.runOne("done"))
	h.mustSettle(0, settlement(h, refOf(h.runOne("dead")), job.Bury))
	h.mustPut(h.mk("cancelled", "orders.new", 0))
	h.cancel(0, "cancelled")
	h.runOne("running")
	want := []job.Change{
		{ID: "done", Result: job.ResultFinished, Attempt: 1},
		{ID: "dead", Result: job.ResultFinished, Attempt: 1},
		{ID: "cancelled", Result: job.ResultFinished},
		{ID: "unknown", Result: job.ResultUnknown},
		{ID: "running", Result: job.ResultRunning, Attempt: 1, Owner: owner},
	}
	var list []job.Reschedule
	for _, w := range want {
		list = append(list, job.Reschedule{ID: w.ID, Due: h.t0})
	}
	if got := h.reschedule(list...); !reflect.DeepEqual(got, want) {
		h.Errorf("changes %+v, want %+v", got, want)
	}
	h.wantState("dead", job.Dead)
	h.wantNone(time.Hour)
}

// testRequeue lets a job die of its last attempt twice.
func testRequeue(h *harness) {
	j := h.mk("a", "orders.new", 0)
	j.MaxAttempts = 2
	h.mustPut(j)
	for round := range uint32(2) {
		for n := range uint32(2) {
			d := h.claimOne(time.Minute)
			if d.Attempt != 2*round+n+1 || d.Base != 2*round || d.LastAttempt() != (n == 1) {
				h.Fatalf("round %d: attempt %d, base %d, last %v", round, d.Attempt, d.Base, d.LastAttempt())
			}
			o := job.Retry
			if d.LastAttempt() {
				o = job.Bury
			}
			h.mustSettle(0, settlement(h, d.Ref(), o))
		}
		due := h.t0.Add(time.Duration(round+1) * time.Second)
		change := job.Change{ID: "a", Result: job.ResultDone, Attempt: 2*round + 2}
		h.wantChange(h.reschedule(job.Reschedule{ID: "a", Due: due, Requeue: true})[0], change)
		i := h.wantState("a", job.Pending)
		if i.Due != due || i.Next != due || i.Reason != "" || i.Base != 2*round+2 || i.Expires != due.Add(time.Hour) {
			h.Errorf("requeued, the job is %+v", i)
		}
	}
	h.complete(0, h.claimOne(time.Minute))
	if i := h.wantState("a", job.Done); i.Attempt != 5 {
		h.Errorf("done at attempt %d, want 5", i.Attempt)
	}
}

func testRequeueNotDead(h *harness) {
	h.mustPut(h.mk("pending", "orders.new", time.Hour))
	h.complete(0, h.runOne("done"))
	h.runOne("running")
	want := []job.Change{
		{ID: "pending", Result: job.ResultUnknown},
		{ID: "done", Result: job.ResultFinished, Attempt: 1},
		{ID: "running", Result: job.ResultRunning, Attempt: 1, Owner: owner},
		{ID: "unknown", Result: job.ResultUnknown},
	}
	var list []job.Reschedule
	for _, w := range want {
		list = append(list, job.Reschedule{ID: w.ID, Due: h.t0, Requeue: true})
	}
	if got := h.reschedule(list...); !reflect.DeepEqual(got, want) {
		h.Errorf("changes %+v, want %+v", got, want)
	}
	h.wantNone(0)
}
