package jobtest

import (
	"context"
	"time"

	"github.com/delaybridge/delaybridge/job"
)

var countTests = []test{
	{"States", testCountStates},
}

func (h *harness) wantCounts(want job.Counts) {
	h.Helper()
	got, err := h.store.Count(context.Background())
	if err != nil || got != want {
		h.Errorf("Count: %+v, error %v; want %+v", got, err, want)
	}
}

func testCountStates(h *harness) {
	h.wantCounts(job.Counts{})
	h.mustPut(h.mkMany(20, "job%d", "orders.new", 0)...)
	h.mustPut(h.mkMany(3, "later%d", "orders.new", time.Hour)...)
	h.wantCounts(job.Counts{Pending: 23})
	ds := h.claimDue(time.Second)
	h.wantCounts(job.Counts{Pending: 3, Running: 20})
	for i, o := range []job.Outcome{job.Complete, job.Bury, job.Retry, job.SetAside, job.SetAside} {
		h.mustSettle(time.Second, job.Settlement{Ref: ds[i].Ref(), Outcome: o, At: ds[i].Next, Target: ds[i].Target})
	}
	h.wantCounts(job.Counts{Pending: 6, Aside: 2, Running: 15, Dead: 1})
	h.cancel(time.Second, ds[1].ID, ds[3].ID)
	h.wantCounts(job.Counts{Pending: 5, Aside: 1, Running: 15})
}
