package jobtest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/delaybridge/delaybridge/job"
)

var listTests = []test{
	{"Pages", testListPages},
	{"Ties", testListTies},
	{"States", testListStates},
	{"Target", testListTarget},
	{"WhileOthersChange", testListWhileOthersChange},
	{"BadQuery", testListBadQuery},
}

func (h *harness) list(q job.Query) job.Page {
	h.Helper()
	p, err := h.store.List(context.Background(), q)
	if err != nil {
		h.Fatalf("List %+v: %v", q, err)
	}
	if len(p.Jobs) > q.Limit {
		h.Fatalf("List %+v: a page of %d jobs", q, len(p.Jobs))
	}
	return p
}

// listAll fetches every page; between pages it calls each function.
func (h *harness) listAll(q job.Query, between ...func()) []job.Info {
	h.Helper()
	var all []job.Info
	for range 10_000 {
		p := h.list(q)
		all = append(all, p.Jobs...)
		if p.Cursor == "" {
			h.wantListed(q, all)
			return all
		}
		q.Cursor = p.Cursor
		for _, f := range between {
			f()
		}
	}
	h.Fatalf("List %+v never comes to an end", q)
	return nil
}

// wantListed checks the order of a list and what was asked for.
func (h *harness) wantListed(q job.Query, all []job.Info) {
	h.Helper()
	for i, one := range all {
		if one.State != cmp.Or(q.State, job.Pending) || q.Target != "" && one.Target != q.Target {
			h.Errorf("list of state %q, target %q has %+v", q.State, q.Target, one)
		}
		if i > 0 && byNext(all[i-1], one) >= 0 {
			h.Errorf("%q at %d is listed before %q at %d", all[i-1].ID, all[i-1].Next, one.ID, one.Next)
		}
	}
}

func byNext(a, b job.Info) int {
	return cmp.Or(cmp.Compare(a.Next, b.Next), strings.Compare(a.ID, b.ID))
}

func infoIDs(infos []job.Info) []string {
	var ids []string
	for _, i := range infos {
		ids = append(ids, i.ID)
	}
	return ids
}

func (h *harness) wantListedIDs(infos []job.Info, want ...string) {
	h.Helper()
	if got := infoIDs(infos); !slices.Equal(got, want) {
		h.Errorf("listed %q, want %q", got, want)
	}
}

func testListPages(h *harness) {
	var want []string
	for i := range 100 {
		j := h.mk(fmt.Sprintf("job%02d", i), fmt.Sprintf("orders.%d", i%3), time.Duration(i)*time.Microsecond)
		h.mustPut(j)
		want = append(want, j.ID)
	}
	// A third of them is set aside; the list shows no difference.
	at := h.t0.Add(50 * time.Microsecond)
	for range 10 {
		h.claim(job.ClaimRequest{Now: at, Until: at, Max: 0, Blocked: []string{"orders.0", "orders.1", "orders.2"}})
	}
	for _, limit := range []int{1, 7, 100, 1000} {
		h.wantListedIDs(h.listAll(job.Query{Limit: limit}), want...)
	}
	for _, i := range h.list(job.Query{Limit: 10}).Jobs {
		got := h.get(i.ID)
		h.wantJob(i.Job, got.Job)
		if i.Next != got.Next || i.State != got.State || i.Shard != got.Shard {
			h.Errorf("listed as %+v, Get says %+v", i, got)
		}
	}
}

// testListTies lists many jobs of one instant, more than a page can hold.
func testListTies(h *harness) {
	h.mustPut(h.mk("first", "orders.new", 0), h.mk("last", "orders.new", 2*time.Second))
	jobs := h.mkMany(1500, "job%d", "orders.new", time.Second)
	slices.Reverse(jobs) // put in another order than they are listed in
	h.mustPut(jobs...)
	for _, limit := range []int{37, 1000} {
		all := h.listAll(job.Query{Limit: limit})
		if len(all) != 1502 || all[0].ID != "first" || all[1501].ID != "last" {
			h.Errorf("by %d: listed %d jobs of 1502", limit, len(all))
		}
	}
}

func testListStates(h *harness) {
	h.mustPut(h.mkMany(30, "job%02d", "orders.new", 0)...)
	ds := h.claimDue(0)
	slices.SortFunc(ds, func(a, b job.Delivery) int { return strings.Compare(a.ID, b.ID) })
	for i, d := range ds[:20] {
		o := job.Bury
		if i < 10 {
			o = job.Complete
		}
		// Later ids die first.
		h.mustSettle(time.Duration(20-i)*time.Second, settlement(h, d.Ref(), o))
	}
	h.mustPut(h.mk("new", "orders.new", 0))
	var dead, running []string
	for i := 19; i >= 10; i-- {
		dead = append(dead, ds[i].ID)
	}
	for _, d := range ds[20:] {
		running = append(running, d.ID)
	}
	h.wantListedIDs(h.listAll(job.Query{Limit: 4}), "new")
	h.wantListedIDs(h.listAll(job.Query{State: job.Pending, Limit: 4}), "new")
	h.wantListedIDs(h.listAll(job.Query{State: job.Dead, Limit: 4}), dead...)
	all := h.listAll(job.Query{State: job.Running, Limit: 4})
	h.wantListedIDs(all, running...)
	if all[0].Ref() != ds[20].Ref() || all[0].Owner != owner || all[0].Next != ds[20].Deadline {
		h.Errorf("listed as %+v, delivered as %+v", all[0], ds[20])
	}
}

func testListTarget(h *harness) {
	var want []string
	for i := range 60 {
		j := h.mk(fmt.Sprintf("job%02d", i), []string{"orders", "orders.new", "orders.new.x"}[i%3], time.Duration(i)*time.Second)
		h.mustPut(j)
		if i%3 == 1 {
			want = append(want, j.ID)
		}
	}
	h.wantListedIDs(h.listAll(job.Query{Target: "orders.new", Limit: 7}), want...)
	h.wantListedIDs(h.listAll(job.Query{Target: "orders.*", Limit: 7}))
	// What is set aside is listed beside what is not.
	h.claimAll(job.ClaimRequest{Now: h.t0, Until: h.t0.Add(30 * time.Second), Blocked: []string{"orders.new"}})
	h.wantListedIDs(h.listAll(job.Query{Target: "orders.new", Limit: 7}), want...)
}

// testListWhileOthersChange adds, removes and moves other jobs between pages.
func testListWhileOthersChange(h *harness) {
	var want []string
	for i := range 60 {
		h.mustPut(h.mk(fmt.Sprintf("stays%02d", i), "orders.new", time.Duration(i/20)*time.Minute))
		want = append(want, fmt.Sprintf("stays%02d", i))
	}
	n := 0
	h.mustPut(h.mkMany(60, "goes%02d", "orders.new", time.Minute)...)
	all := h.listAll(job.Query{Limit: 10}, func() {
		h.mustPut(h.mk(fmt.Sprintf("aaa%02d", n), "orders.new", 0), h.mk(fmt.Sprintf("zzz%02d", n), "orders.new", 2*time.Minute))
		h.cancel(0, fmt.Sprintf("goes%02d", 2*n))
		h.reschedule(job.Reschedule{ID: fmt.Sprintf("goes%02d", 2*n+1), Due: h.t0.Add(3 * time.Minute)})
		n++
	})
	got := slices.DeleteFunc(infoIDs(all), func(id string) bool { return !strings.HasPrefix(id, "stays") })
	if !slices.Equal(got, want) {
		h.Errorf("of the jobs that did not change the list has %q, want %q", got, want)
	}
}

func testListBadQuery(h *harness) {
	h.mustPut(h.mkMany(3, "job%d", "orders.new", 0)...)
	good := h.list(job.Query{Limit: 1}).Cursor
	for _, q := range []job.Query{
		{Cursor: "x", Limit: 1}, {Cursor: "\x00\xff", Limit: 1}, {Cursor: "AAAA", Limit: 1}, {Cursor: " " + good, Limit: 1},
		{Cursor: strings.Repeat("\xff", 1000), Limit: 1}, {State: job.Done, Limit: 1}, {State: "no such state", Limit: 1},
	} {
		p, err := h.store.List(context.Background(), q)
		if !errors.Is(err, job.ErrHeader) {
			h.Errorf("List of state %q, cursor %.20q: %d jobs, error %v, want ErrHeader", q.State, q.Cursor, len(p.Jobs), err)
		}
	}
}
