package jobtest

import (
	"context"
	"fmt"
	"time"

	"github.com/delaybridge/delaybridge/job"
)

// guardTests are of changes that mean one incarnation of an id, or one state.
var guardTests = []test{
	{"Incarnation", testGuardIncarnation},
	{"Replaced", testGuardReplaced},
	{"State", testGuardState},
	{"StateSetAside", testGuardStateSetAside},
	{"Requeued", testGuardRequeued},
	{"Batch", testGuardBatch},
}

// stand is a job in one place of its life.
type stand struct {
	state   job.State
	attempt uint32
	put     func(h *harness, id string)
}

// stands are all places that a job may be in, by id.
var stands = map[string]stand{
	"pending":   {job.Pending, 0, func(h *harness, id string) { h.mustPut(h.mk(id, "orders.new", time.Hour)) }},
	"running":   {job.Running, 1, func(h *harness, id string) { h.runOne(id) }},
	"dead":      {job.Dead, 1, func(h *harness, id string) { h.bury(id) }},
	"done":      {job.Done, 1, func(h *harness, id string) { h.complete(0, h.runOne(id)) }},
	"cancelled": {job.Cancelled, 0, func(h *harness, id string) { h.mustPut(h.mk(id, "orders.new", 0)); h.cancel(0, id) }},
	"aside":     {job.Pending, 0, func(h *harness, id string) { h.setAside(id) }},
}

func (h *harness) bury(id string) { h.mustSettle(0, settlement(h, refOf(h.runOne(id)), job.Bury)) }

func (h *harness) setAside(id string) {
	h.Helper()
	h.mustPut(h.mk(id, "aside.new", 0))
	if c := h.claim(job.ClaimRequest{Now: h.t0, Until: h.t0, Max: 10, Blocked: []string{"aside.new"}}); len(c.Deliveries) != 0 || c.SetAside != 1 {
		h.Fatalf("%+v, want %q set aside", c, id)
	}
}

// is is what a change that cannot be made answers, if the job is meant at all.
func (s stand) is(id string, otherwise job.Result) job.Change {
	c := job.Change{ID: id, Result: otherwise, Attempt: s.attempt}
	switch s.state {
	case job.Running:
		c.Result, c.Owner = job.ResultRunning, owner
	case job.Done, job.Cancelled:
		c.Result = job.ResultFinished
	}
	return c
}

func (h *harness) cancelList(list ...job.Cancellation) []job.Change {
	h.Helper()
	res, err := h.store.Cancel(context.Background(), h.t0, list)
	if err != nil || len(res) != len(list) {
		h.Fatalf("Cancel of %d: %d results, error %v", len(list), len(res), err)
	}
	return res
}

// testGuardIncarnation: another incarnation is unknown, whatever became of the job;
// its own one changes nothing about the answers.
func testGuardIncarnation(h *harness) {
	for id, s := range stands {
		s.put(h, id)
		was := h.wantState(id, s.state)
		for _, other := range []uint64{was.Incarnation - 1, was.Incarnation + 1, was.Incarnation ^ 1<<63} {
			unknown := job.Change{ID: id, Result: job.ResultUnknown}
			h.wantChange(h.cancelList(job.Cancellation{ID: id, Incarnation: other})[0], unknown)
			h.wantChange(h.cancelList(job.Cancellation{ID: id, Incarnation: other, State: s.state})[0], unknown)
			h.wantChange(h.reschedule(job.Reschedule{ID: id, Incarnation: other, Due: h.t0.Add(time.Hour)})[0], unknown)
			h.wantChange(h.reschedule(job.Reschedule{ID: id, Incarnation: other, Due: h.t0.Add(time.Hour), Requeue: true})[0], unknown)
		}
		if i := h.wantState(id, s.state); i.Due != was.Due || i.Next != was.Next || i.Incarnation != was.Incarnation {
			h.Errorf("%s was changed from %+v to %+v", id, was, i)
		}
		r := job.Reschedule{ID: id, Incarnation: was.Incarnation, Due: h.t0.Add(2 * time.Hour), Requeue: s.state == job.Dead}
		h.wantChange(h.reschedule(r)[0], s.is(id, job.ResultDone))
		h.wantChange(h.cancelList(job.Cancellation{ID: id, Incarnation: was.Incarnation})[0], s.is(id, job.ResultDone))
	}
}

// testGuardReplaced: an id names another job by now, of the same kind.
func testGuardReplaced(h *harness) {
	gone := map[string]uint64{}
	for _, id := range []string{"cancelled before", "replaced"} {
		h.mustPut(h.mk(id, "orders.new", time.Hour))
		gone[id] = h.get(id).Incarnation
	}
	h.cancel(0, "cancelled before")
	h.mustPut(h.mk("cancelled before", "billing.new", time.Hour))
	j := h.mk("replaced", "orders.new", time.Hour)
	j.Replace = true
	h.mustPut(j)
	for id, was := range gone {
		now := h.wantState(id, job.Pending)
		if now.Incarnation == was {
			h.Fatalf("%s has its incarnation still", id)
		}
		h.wantChange(h.cancelList(job.Cancellation{ID: id, Incarnation: was})[0], job.Change{ID: id, Result: job.ResultUnknown})
		h.wantChange(h.reschedule(job.Reschedule{ID: id, Incarnation: was, Due: h.t0})[0], job.Change{ID: id, Result: job.ResultUnknown})
		h.wantNone(0)
		h.wantState(id, job.Pending)
		h.wantChange(h.cancelList(job.Cancellation{ID: id, Incarnation: now.Incarnation})[0], job.Change{ID: id, Result: job.ResultDone})
	}
}

// testGuardState: a cancellation of one state leaves jobs of the others.
func testGuardState(h *harness) {
	for _, state := range []job.State{job.Pending, job.Dead} {
		for id, s := range stands {
			if id == "aside" {
				continue
			}
			name := fmt.Sprint(id, " ", state)
			s.put(h, name)
			want := s.is(name, job.ResultFinished)
			if state == s.state {
				want.Result = job.ResultDone
			}
			h.wantChange(h.cancelList(job.Cancellation{ID: name, Incarnation: h.get(name).Incarnation, State: state})[0], want)
			if state == s.state {
				h.wantState(name, job.Cancelled)
			} else {
				h.wantState(name, s.state)
			}
		}
		h.wantChange(h.cancelList(job.Cancellation{ID: "unknown", State: state})[0], job.Change{ID: "unknown", Result: job.ResultUnknown})
	}
}

// testGuardStateSetAside: what is set aside is pending; beside it, what runs for the
// same target is running.
func testGuardStateSetAside(h *harness) {
	h.mustPut(h.mk("running", "aside.new", 0))
	h.claimOne(0)
	h.setAside("aside")
	running := stands["running"].is("running", "")
	h.wantChange(h.cancelList(job.Cancellation{ID: "running", State: job.Dead})[0], running)
	h.wantChange(h.cancelList(job.Cancellation{ID: "running", State: job.Pending})[0], running)
	h.wantChange(h.cancelList(job.Cancellation{ID: "aside", State: job.Dead})[0], job.Change{ID: "aside", Result: job.ResultFinished})
	h.wantState("aside", job.Pending)
	h.wantChange(h.cancelList(job.Cancellation{ID: "aside", State: job.Pending})[0], job.Change{ID: "aside", Result: job.ResultDone})
	h.wantState("aside", job.Cancelled)
}

// testGuardRequeued: a job that is dead no more is not removed as a dead one,
// although it is the same incarnation.
func testGuardRequeued(h *harness) {
	h.bury("a")
	l := job.Cancellation{ID: "a", Incarnation: h.get("a").Incarnation, State: job.Dead}
	h.reschedule(job.Reschedule{ID: "a", Incarnation: l.Incarnation, Due: h.t0, Requeue: true})
	finished := job.Change{ID: "a", Result: job.ResultFinished, Attempt: 1}
	h.wantChange(h.cancelList(l)[0], finished)
	h.wantState("a", job.Pending)
	d := h.claimOne(time.Minute)
	h.wantChange(h.cancelList(l)[0], job.Change{ID: "a", Result: job.ResultRunning, Attempt: 2, Owner: owner})
	h.mustSettle(0, settlement(h, d.Ref(), job.Bury))
	h.wantChange(h.cancelList(l)[0], job.Change{ID: "a", Result: job.ResultDone, Attempt: 2})
	h.wantChange(h.cancelList(l)[0], job.Change{ID: "a", Result: job.ResultFinished, Attempt: 2})
}

// testGuardBatch: each of a batch has its own guards, and one id may come twice.
func testGuardBatch(h *harness) {
	const n = 600
	h.mustPut(h.mkMany(n, "job%d", "orders.new", time.Hour)...)
	var list []job.Cancellation
	for i := range n {
		l := job.Cancellation{ID: fmt.Sprint("job", i)}
		if i%3 > 0 {
			l.Incarnation = h.get(l.ID).Incarnation + uint64(i%3-1)
		}
		if i%7 == 0 {
			l.State = job.Dead
		}
		list = append(list, l)
	}
	list = append(list, list[1])
	for i, c := range h.cancelList(list...) {
		want := job.ResultDone
		switch {
		case i == n:
			want = job.ResultFinished
		case i%3 == 2:
			want = job.ResultUnknown
		case i%7 == 0:
			want = job.ResultFinished
		}
		h.wantChange(c, job.Change{ID: list[i].ID, Result: want})
	}
}
