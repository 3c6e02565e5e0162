package jobtest

import (
	"fmt"
	"reflect"
	"slices"
	"time"

	"github.com/delaybridge/delaybridge/job"
)

var ownTests = []test{
	{"Bridge", testOwnBridge},
	{"Repeated", testOwnRepeated},
	{"SameWorkerElsewhere", testOwnElsewhere},
	{"Taken", testOwnTaken},
	{"RenewsTheLease", testOwnRenews},
	{"TokenStaysValid", testOwnToken},
	{"GoneWithTheLease", testOwnGone},
	{"ExpiredLease", testOwnExpired},
	{"Mixed", testOwnMixed},
	{"TwiceInBatch", testOwnTwice},
}

// own is the settlement that makes who the owner until t0+d.
func (h *harness) own(ref job.Ref, who string, d time.Duration) job.Settlement {
	return job.Settlement{Ref: ref, Outcome: job.Own, At: h.t0.Add(d), Owner: who}
}

// testOwnBridge has a worker claim what a bridge has, its own or another one.
func testOwnBridge(h *harness) {
	for _, bridge := range []string{owner, "bridge-2"} {
		d := h.runOne("of " + bridge)
		h.wantOwner(d, owner)
		h.mustSettle(0, h.own(d.Ref(), bridge+"/w1", time.Minute))
		h.wantOwner(d, bridge+"/w1")
		h.complete(0, d)
	}
}

func testOwnRepeated(h *harness) {
	d := h.runOne("a")
	for range 3 {
		h.mustSettle(0, h.own(d.Ref(), owner+"/w1", time.Minute))
		h.wantOwner(d, owner+"/w1")
	}
	// By the owner that a claim has given it to, too.
	h.aside(1, "orders.new")
	d = h.fillSlots("orders.new", slotsOf(1, "w2")...)[0]
	h.mustSettle(0, h.own(d.Ref(), owner+"/w2", time.Minute))
	h.wantOwner(d, owner+"/w2")
}

func testOwnElsewhere(h *harness) {
	h.aside(1, "orders.new")
	d := h.fillSlots("orders.new", slotsOf(1, "w1")...)[0]
	for _, bridge := range []string{"bridge-2", "b", owner} {
		h.mustSettle(0, h.own(d.Ref(), bridge+"/w1", time.Minute))
		h.wantOwner(d, bridge+"/w1")
	}
	h.complete(0, d)
}

// testOwnTaken wants others refused, and nothing changed: not the lease either.
func testOwnTaken(h *harness) {
	h.aside(1, "orders.new")
	h.mustPut(h.mk("claimed", "mail.send", 0))
	claimed := h.claimOne(0)
	h.mustSettle(0, h.own(claimed.Ref(), owner+"/w1", time.Minute))
	for _, d := range []job.Delivery{h.fillSlots("orders.new", slotsOf(1, "w1")...)[0], claimed} {
		before := h.get(d.ID)
		for _, who := range []string{owner + "/w2", "bridge-2/w2", owner + "/w", owner + "/w11", owner + "/W1", "w1/" + owner} {
			h.wantResult(0, h.own(d.Ref(), who, time.Hour), job.Taken)
		}
		if after := h.get(d.ID); !reflect.DeepEqual(after, before) {
			h.Errorf("refused claims changed the job from\n%+v to\n%+v", before, after)
		}
		h.wantOwner(d, owner+"/w1")
		h.complete(0, d)
	}
}

func testOwnRenews(h *harness) {
	d := h.runOne("a")
	for _, until := range []time.Duration{time.Hour, time.Second} {
		h.mustSettle(0, h.own(d.Ref(), owner+"/w1", until))
		if i := h.wantState("a", job.Running); i.Next != h.t0.Add(until) {
			h.Errorf("the lease ends at %d, want %d", i.Next, h.t0.Add(until))
		}
		if ds, next := h.expired(until-time.Millisecond, 10); len(ds) != 0 || next != h.t0.Add(until) {
			h.Errorf("expired %q, next %d, want none, %d", ids(ds), next, h.t0.Add(until))
		}
		ds, _ := h.expired(until, 10)
		h.wantIDs(ds, "a")
		if ds[0].Owner != owner+"/w1" || ds[0].Ref() != d.Ref() || ds[0].Deadline != h.t0.Add(until) {
			h.Errorf("expired as %+v", ds[0])
		}
	}
	// Renewing it otherwise leaves the owner.
	h.mustSettle(0, job.Settlement{Ref: d.Ref(), Outcome: job.Extend, At: h.t0.Add(time.Hour)})
	h.wantOwner(d, owner+"/w1")
}

// testOwnToken ends deliveries by the token that they had before they were
// owned.
func testOwnToken(h *harness) {
	want := []job.State{job.Done, job.Pending, job.Pending, job.Pending, job.Dead, job.Running, job.Running}
	h.mustPut(h.mkMany(len(outcomes), "job%d", "orders.new", 0)...)
	for i, d := range h.claimDue(0) {
		h.mustSettle(0, h.own(d.Ref(), owner+"/w1", time.Minute))
		s := settlement(h, d.Ref(), outcomes[i])
		h.mustSettle(0, s)
		h.wantState(d.ID, want[i])
		if s.Outcome == job.Complete {
			h.wantResult(0, s, job.Repeated)
		}
	}
}

// testOwnGone ends a delivery that a worker owns in every way: the next one is
// somebody else's.
func testOwnGone(h *harness) {
	for _, o := range []job.Outcome{job.Complete, job.Retry, job.Release, job.SetAside, job.Bury} {
		d := h.runOne(fmt.Sprintf("ended by %d", o))
		h.mustSettle(0, h.own(d.Ref(), owner+"/w1", time.Minute))
		s := settlement(h, d.Ref(), o)
		s.At = h.t0
		h.mustSettle(0, s)
		if i := h.get(d.ID); i.Owner != "" || i.State == job.Running {
			h.Errorf("after outcome %d the job is %s, owned by %q", o, i.State, i.Owner)
		}
		h.wantResult(0, h.own(d.Ref(), owner+"/w1", time.Minute), job.Stale)
		h.wantNewLease(o, d)
		h.cancel(0, d.ID)
	}
}

// wantNewLease claims a job again that was d's, and ended so, and wants no trace
// of the worker that had it.
func (h *harness) wantNewLease(o job.Outcome, old job.Delivery) {
	h.Helper()
	switch o {
	case job.Complete:
		return
	case job.Bury:
		h.reschedule(job.Reschedule{ID: old.ID, Due: h.t0, Requeue: true})
	}
	r := job.ClaimRequest{Now: h.t0, Until: h.t0, Max: 1}
	if o == job.SetAside {
		r.Target = old.Target
	}
	ds := h.claimAll(r)
	h.wantIDs(ds, old.ID)
	h.wantOwner(ds[0], owner)
	h.wantResult(0, h.own(old.Ref(), owner+"/w1", time.Minute), job.Stale)
	h.mustSettle(0, h.own(ds[0].Ref(), owner+"/w2", time.Minute))
	h.wantOwner(ds[0], owner+"/w2")
	h.mustSettle(0, job.Settlement{Ref: ds[0].Ref(), Outcome: job.Release, At: h.t0})
}

// testOwnExpired: a lease that ran out is the present one until it is given back.
func testOwnExpired(h *harness) {
	d := h.runOne("a")
	h.mustSettle(0, h.own(d.Ref(), owner+"/w1", time.Second))
	ds, _ := h.expired(time.Minute, 10)
	h.wantIDs(ds, "a")
	h.mustSettle(time.Minute, h.own(d.Ref(), owner+"/w1", 2*time.Minute))
	ds, _ = h.expired(time.Minute, 10)
	h.wantIDs(ds)
	h.complete(time.Minute, d)
	h.wantResult(time.Minute, h.own(d.Ref(), owner+"/w1", time.Hour), job.Stale)
	h.wantResult(time.Minute, h.own(job.Ref{ID: "never", Incarnation: 1, Attempt: 1, Nonce: 1}, owner+"/w1", time.Hour), job.Unknown)
}

// testOwnMixed owns, among other settlements, in one batch.
func testOwnMixed(h *harness) {
	h.mustPut(h.mkMany(60, "job%02d", "orders.new", 0)...)
	ds := h.claimDue(0)
	for i, d := range ds {
		if i%3 == 0 {
			h.mustSettle(0, h.own(d.Ref(), owner+"/w1", time.Minute))
		}
	}
	var list []job.Settlement
	var want []job.SettleResult
	add := func(s job.Settlement, r job.SettleResult) { list, want = append(list, s), append(want, r) }
	for i, d := range ds {
		wrong := d.Ref()
		wrong.Nonce++
		switch i % 6 {
		case 0:
			add(h.own(d.Ref(), owner+"/w2", time.Hour), job.Taken)
		case 1:
			add(h.own(d.Ref(), owner+"/w2", time.Hour), job.Settled)
		case 2:
			add(h.own(wrong, owner+"/w2", time.Hour), job.Stale)
		case 3:
			add(job.Settlement{Ref: d.Ref()}, job.Settled)
		case 4:
			add(job.Settlement{Ref: d.Ref(), Outcome: job.Extend, At: h.t0.Add(time.Hour)}, job.Settled)
		case 5:
			add(h.own(job.Ref{ID: "not " + d.ID, Incarnation: 1, Attempt: 1, Nonce: 1}, owner+"/w2", time.Hour), job.Unknown)
		}
	}
	if got := h.settle(0, list...); !slices.Equal(got, want) {
		h.Errorf("results %v, want %v", got, want)
	}
	for i, d := range ds {
		if i%6 != 3 {
			h.wantOwner(d, []string{owner + "/w1", owner + "/w2", owner, "", owner, owner}[i%6])
		}
	}
}

// testOwnTwice has two workers ask for one delivery in the same batch.
func testOwnTwice(h *harness) {
	d := h.runOne("a")
	got := h.settle(0,
		h.own(d.Ref(), owner+"/w1", time.Minute), h.own(d.Ref(), owner+"/w2", time.Hour),
		h.own(d.Ref(), "bridge-2/w1", 2*time.Minute), job.Settlement{Ref: d.Ref()}, h.own(d.Ref(), owner+"/w1", time.Hour))
	if want := []job.SettleResult{job.Settled, job.Taken, job.Settled, job.Settled, job.Stale}; !slices.Equal(got, want) {
		h.Errorf("results %v, want %v", got, want)
	}
	h.wantState("a", job.Done)
}
