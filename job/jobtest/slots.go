package jobtest

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/delaybridge/delaybridge/job"
)

var slotTests = []test{
	{"Owners", testSlotsOwners},
	{"NeverMoreThanFree", testSlotsFree},
	{"InTurn", testSlotsInTurn},
	{"Max", testSlotsMax},
	{"NoneFree", testSlotsNoneFree},
	{"OnlyDue", testSlotsOnlyDue},
	{"LongestOwner", testSlotsLongestOwner},
	{"AgainAfterRetry", testSlotsAgain},
	{"Listed", testSlotsListed},
}

// aside puts jobs, due from t0 on, and has them set aside for their target.
func (h *harness) aside(n int, target string) []job.Job {
	h.Helper()
	jobs := h.mkMany(n, "job%04d", target, 0)
	for i := range jobs {
		// 7919 is prime, so every due time occurs once, in another order than the ids.
		jobs[i].Due = h.t0.Add(time.Duration(i*7919%n) * time.Microsecond)
	}
	h.mustPut(jobs...)
	at := h.t0.Add(time.Second)
	h.wantIDs(h.claimAll(job.ClaimRequest{Now: at, Until: at, Blocked: []string{target}}))
	return jobs
}

// claimSlots claims once for slots, at t0+1s.
func (h *harness) claimSlots(target string, limit int, slots ...job.Slot) job.Claimed {
	h.Helper()
	at := h.t0.Add(time.Second)
	c := h.claim(job.ClaimRequest{Now: at, Until: at, Max: limit, Target: target, Slots: slots})
	given := perOwner(c.Deliveries)
	for _, s := range slots {
		if given[s.Owner] > max(0, s.Free) {
			h.Errorf("%q has %d free and got %d", s.Owner, s.Free, given[s.Owner])
		}
		delete(given, s.Owner)
	}
	if len(given) > 0 {
		h.Errorf("deliveries to owners without a slot: %v", given)
	}
	if !slices.IsSortedFunc(c.Deliveries, inOrder) {
		h.Error("deliveries are not in order of their due times")
	}
	return c
}

// fillSlots claims until the slots are full or nothing is due.
func (h *harness) fillSlots(target string, slots ...job.Slot) []job.Delivery {
	h.Helper()
	slots = slices.Clone(slots)
	var all []job.Delivery
	for range 10_000 {
		c := h.claimSlots(target, 1000, slots...)
		all = append(all, c.Deliveries...)
		given, free := perOwner(c.Deliveries), 0
		for i := range slots {
			slots[i].Free -= given[slots[i].Owner]
			free += slots[i].Free
		}
		if free == 0 || c.NextDue == 0 || c.NextDue > h.t0.Add(time.Second) {
			return all
		}
	}
	h.Fatalf("claims for %v never come to an end", slots)
	return nil
}

func perOwner(ds []job.Delivery) map[string]int {
	count := map[string]int{}
	for i := range ds {
		count[ds[i].Owner]++
	}
	return count
}

func slotsOf(free int, workers ...string) []job.Slot {
	slots := make([]job.Slot, len(workers))
	for i, w := range workers {
		slots[i] = job.Slot{Owner: job.OwnerOf(owner, w), Free: free}
	}
	return slots
}

// testSlotsOwners checks that the owner is told wherever a lease is.
func testSlotsOwners(h *harness) {
	h.aside(20, "orders.new")
	ds := h.fillSlots("orders.new", slotsOf(5, "w1", "w2", "w3", "w4")...)
	if len(ds) != 20 {
		h.Fatalf("%d deliveries of 20", len(ds))
	}
	byID := map[string]job.Delivery{}
	for _, d := range ds {
		h.wantOwner(d, d.Owner)
		if d.Attempt != 1 || d.Deadline != h.t0.Add(time.Second).Add(d.AckWait) {
			h.Errorf("delivery %+v, want the first, until %d", d, h.t0.Add(time.Second).Add(d.AckWait))
		}
		byID[d.ID] = d
	}
	expired, _ := h.expired(time.Hour, 100)
	if len(expired) != 20 {
		h.Errorf("%d leases of 20 ran out", len(expired))
	}
	for _, e := range expired {
		if d := byID[e.ID]; e.Owner != d.Owner || e.Ref() != d.Ref() {
			h.Errorf("%q expired with the lease %+v of %q, claimed as %+v by %q", e.ID, e.Ref(), e.Owner, d.Ref(), d.Owner)
		}
	}
	h.complete(time.Second, ds...)
}

// wantOwner checks who has the lease of d, wherever it is told.
func (h *harness) wantOwner(d job.Delivery, want string) {
	h.Helper()
	if i := h.wantState(d.ID, job.Running); i.Owner != want || i.Ref() != d.Ref() {
		h.Errorf("Get says that %q has the lease %+v, want %q, %+v", i.Owner, i.Ref(), want, d.Ref())
	}
	running := job.Change{ID: d.ID, Result: job.ResultRunning, Attempt: d.Attempt, Owner: want}
	h.wantChange(h.cancel(0, d.ID)[0], running)
	h.wantChange(h.reschedule(job.Reschedule{ID: d.ID, Due: h.t0.Add(time.Hour)})[0], running)
}

func testSlotsFree(h *harness) {
	const n = 300
	h.aside(n, "orders.new")
	slots := []job.Slot{{Owner: owner + "/w1", Free: 1}, {Owner: owner + "/w10", Free: 10}, {Owner: owner + "/w100", Free: 100}}
	seen := map[string]bool{}
	for _, want := range []int{111, 111, 78} {
		ds := h.fillSlots("orders.new", slots...)
		if len(ds) != want {
			h.Errorf("%d deliveries for 111 free slots, want %d", len(ds), want)
		}
		for _, d := range ds {
			if seen[d.ID] {
				h.Errorf("%q was delivered twice", d.ID)
			}
			seen[d.ID] = true
		}
	}
	if len(seen) != n {
		h.Errorf("delivered %d jobs of %d", len(seen), n)
	}
}

// testSlotsInTurn lets a store with many parts be a little uneven.
func testSlotsInTurn(h *harness) {
	const share = 20
	h.aside(400, "orders.new")
	c := h.claimSlots("orders.new", 4*share, slotsOf(100, "w1", "w2", "w3", "w4")...)
	given := perOwner(c.Deliveries)
	for _, s := range slotsOf(0, "w1", "w2", "w3", "w4") {
		if n := given[s.Owner]; n > 2*share || n < share/2 {
			h.Errorf("%q got %d of %d deliveries, want about %d", s.Owner, n, len(c.Deliveries), share)
		}
	}
}

func testSlotsMax(h *harness) {
	h.aside(40, "orders.new")
	left := 40
	for _, limit := range []int{1, 3, 0, 7} {
		c := h.claimSlots("orders.new", limit, slotsOf(10, "w1", "w2")...)
		if left -= len(c.Deliveries); limit > 0 && len(c.Deliveries) == 0 {
			h.Errorf("a claim of at most %d returned none of 40 jobs", limit)
		}
	}
	if n := len(h.fillSlots("orders.new", slotsOf(100, "w1")...)); n != left {
		h.Errorf("%d deliveries of the last %d jobs", n, left)
	}
}

func testSlotsNoneFree(h *harness) {
	h.aside(5, "orders.new")
	for _, slots := range [][]job.Slot{slotsOf(0, "w1"), slotsOf(0, "w1", "w2"), slotsOf(-3, "w1")} {
		c := h.claimSlots("orders.new", 100, slots...)
		if len(c.Deliveries) != 0 || c.NextDue == 0 || c.NextDue > h.t0.Add(time.Second) {
			h.Errorf("slots %v: claimed %q, next due %d, want none, the first", slots, ids(c.Deliveries), c.NextDue)
		}
	}
	ds := h.fillSlots("orders.new", append(slotsOf(0, "full"), slotsOf(9, "w1")...)...)
	if got := perOwner(ds); len(ds) != 5 || got[owner+"/w1"] != 5 {
		h.Errorf("given %v, want all 5 to w1", got)
	}
	if got := h.waiting(); len(got) != 0 {
		h.Errorf("waiting %q after all were claimed", got)
	}
	h.wantIDs(h.claimSlots("absent", 100, slotsOf(9, "w1")...).Deliveries)
	// No slots at all: the deliveries are the owner's.
	h.mustPut(h.mk("plain", "mail.send", 0))
	h.claimAll(job.ClaimRequest{Now: h.t0, Until: h.t0, Blocked: []string{"mail.send"}})
	c := h.claim(job.ClaimRequest{Now: h.t0, Until: h.t0, Max: 10, Target: "mail.send", Slots: []job.Slot{}})
	h.wantIDs(c.Deliveries, "plain")
	h.wantOwner(c.Deliveries[0], owner)
}

func testSlotsOnlyDue(h *harness) {
	h.mustPut(h.mk("a", "orders.new", 0), h.mk("later", "orders.new", 0), h.mk("other", "mail.send", 0))
	h.claimAll(job.ClaimRequest{Now: h.t0, Until: h.t0, Blocked: []string{"orders.new", "mail.send"}})
	later := h.claim(job.ClaimRequest{Now: h.t0, Until: h.t0, Max: 10, Target: "orders.new"})
	at := h.t0.Add(time.Minute)
	for _, d := range later.Deliveries {
		if d.ID == "later" {
			h.mustSettle(0, job.Settlement{Ref: d.Ref(), Outcome: job.SetAside, At: at, Target: d.Target})
		} else {
			h.mustSettle(0, job.Settlement{Ref: d.Ref(), Outcome: job.SetAside, At: h.t0, Target: d.Target})
		}
	}
	c := h.claimSlots("orders.new", 10, slotsOf(10, "w1", "w2")...)
	h.wantIDs(c.Deliveries, "a")
	if c.NextDue != at {
		h.Errorf("next due %d, want %d", c.NextDue, at)
	}
	h.wantIDs(h.claimSlots("mail.send", 10, slotsOf(10, "w1")...).Deliveries, "other")
}

func testSlotsLongestOwner(h *harness) {
	h.aside(4, "orders.new")
	long := job.OwnerOf(strings.Repeat("b", 64), strings.Repeat("w", 64))
	other := long[:len(long)-1] + "x"
	for _, d := range h.fillSlots("orders.new", job.Slot{Owner: long, Free: 2}, job.Slot{Owner: other, Free: 2}) {
		h.wantOwner(d, d.Owner)
		want := job.Taken
		if d.Owner == long {
			want = job.Settled
		}
		h.wantResult(0, h.own(d.Ref(), long, time.Hour), want)
	}
}

// testSlotsAgain gives a job to one worker after another.
func testSlotsAgain(h *harness) {
	h.aside(1, "orders.new")
	var old []job.Delivery
	for i := range uint32(3) {
		worker := fmt.Sprintf("%s/w%d", owner, i)
		ds := h.fillSlots("orders.new", job.Slot{Owner: worker, Free: 1})
		if len(ds) != 1 {
			h.Fatalf("claimed %q, want one job", ids(ds))
		}
		h.wantOwner(ds[0], worker)
		for _, d := range old {
			h.wantResult(0, job.Settlement{Ref: d.Ref()}, job.Stale)
			h.wantResult(0, h.own(d.Ref(), d.Owner, time.Hour), job.Stale)
		}
		h.mustSettle(0, job.Settlement{Ref: ds[0].Ref(), Outcome: job.SetAside, At: h.t0, Target: "orders.new", Spare: true})
		if info := h.wantState(ds[0].ID, job.Pending); info.Owner != "" || info.Attempt != i+1 {
			h.Errorf("given back, the job is %+v", info)
		}
		old = append(old, ds...)
	}
}

// testSlotsListed lists leases of many owners: each as it was given.
func testSlotsListed(h *harness) {
	const n, workers = 1500, 60
	h.aside(n, "orders.new")
	var slots []job.Slot
	for i := range workers {
		slots = append(slots, slotsOf(n/workers, fmt.Sprintf("w%d", i))...)
	}
	byID := map[string]job.Delivery{}
	for i, d := range h.fillSlots("orders.new", slots...) {
		if i%10 == 0 { // by another bridge, and for longer
			_, worker := job.SplitOwner(d.Owner)
			d.Owner, d.Deadline = job.OwnerOf("bridge-2", worker), h.t0.Add(time.Hour+time.Duration(i)*time.Second)
			h.mustSettle(0, job.Settlement{Ref: d.Ref(), Outcome: job.Own, At: d.Deadline, Owner: d.Owner})
		}
		byID[d.ID] = d
	}
	for _, limit := range []int{97, 1000} {
		seen := map[string]bool{}
		for _, i := range h.listAll(job.Query{State: job.Running, Limit: limit}) {
			d := byID[i.ID]
			if seen[i.ID] || i.Ref() != d.Ref() || i.Owner != d.Owner || i.Next != d.Deadline {
				h.Fatalf("by %d: listed as %+v of %q until %d, again: %v; given as %+v of %q until %d",
					limit, i.Ref(), i.Owner, i.Next, seen[i.ID], d.Ref(), d.Owner, d.Deadline)
			}
			h.wantJob(i.Job, d.Job)
			seen[i.ID] = true
		}
		if len(seen) != n || len(byID) != n {
			h.Errorf("by %d: listed %d leases, given %d, want %d", limit, len(seen), len(byID), n)
		}
	}
}
