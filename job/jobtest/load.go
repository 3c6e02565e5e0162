package jobtest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/delaybridge/delaybridge/job"
)

var loadTests = []test{
	{"100kJobs", testLoad100k},
	{"ConcurrentClaimers", testLoadClaimers},
	{"ConcurrentSlots", testLoadSlots},
	{"ConcurrentOwners", testLoadOwners},
	{"ConcurrentSettlers", testLoadSettlers},
	{"ConcurrentPuts", testLoadPuts},
}

// testLoad100k takes 100,000 jobs through their whole life.
func testLoad100k(h *harness) {
	const n = 100_000
	jobs := make([]job.Job, batch)
	for from := 0; from < n; from += batch {
		jobs = jobs[:min(batch, n-from)]
		for i := range jobs {
			// 7919 and 100,000 have no common factor: every due time occurs once.
			due := time.Duration((from+i)*7919%n) * time.Microsecond
			jobs[i] = job.Job{Target: "orders.new", Due: h.t0.Add(due), AckWait: time.Minute, Payload: []byte("payload")}
		}
		h.mustPut(jobs...)
	}
	seen := make(map[string]bool, n)
	last := map[uint16]job.Time{} // per shard: across shards, calls may overlap
	r := job.ClaimRequest{Now: h.t0.Add(time.Second), Until: h.t0.Add(time.Second), Max: batch}
	for next := job.Time(1); next != 0; {
		c := h.claim(r)
		next = c.NextDue
		if !slices.IsSortedFunc(c.Deliveries, inOrder) {
			h.Fatal("deliveries of one claim are not in order of their due times")
		}
		for _, d := range c.Deliveries {
			if seen[d.ID] || d.Due < last[d.Shard] {
				h.Fatalf("%q, due at %d, delivered before: %v; after one due at %d", d.ID, d.Due, seen[d.ID], last[d.Shard])
			}
			seen[d.ID], last[d.Shard] = true, d.Due
		}
		h.complete(time.Second, c.Deliveries...)
	}
	if len(seen) != n {
		h.Errorf("delivered %d jobs of %d", len(seen), n)
	}
}

// claimers is how many goroutines claim at the same time.
const claimers = 8

// handles returns two handles on the data, or the same one twice.
func (h *harness) handles() [2]job.Store {
	if h.suite.Peer == nil {
		return [2]job.Store{h.store, h.store}
	}
	return [2]job.Store{h.store, h.suite.Peer(h.T, h.store)}
}

// testLoadClaimers lets two owners with several goroutines each claim the same
// jobs: each job must be leased once.
func testLoadClaimers(h *harness) {
	const n = 4000
	h.mustPut(h.mkMany(n, "job%d", "orders.new", 0)...)
	h.claimTogether(n, func(g int) job.ClaimRequest {
		return job.ClaimRequest{Now: h.t0, Until: h.t0, Max: 10 + 7*g, Owner: fmt.Sprintf("bridge-%d", g%2)}
	}, func(job.ClaimRequest, job.Claimed) error { return nil })
}

// claimTogether has the claimers claim n jobs through two handles, each with its
// request; check judges each claim. Each job must be leased once.
func (h *harness) claimTogether(n int, request func(g int) job.ClaimRequest, check func(job.ClaimRequest, job.Claimed) error) {
	h.Helper()
	stores := h.handles()
	var (
		wg      sync.WaitGroup
		claimed atomic.Int32
		leases  [claimers][]job.Delivery
		errs    [claimers]error
	)
	ctx, stop := context.WithTimeout(h.Context(), time.Minute)
	defer stop()
	for g := range claimers {
		r := request(g)
		wg.Go(func() {
			// A handle may take a while to learn of jobs that another put.
			for int(claimed.Load()) < n && errs[g] == nil {
				c, err := stores[g%2].Claim(ctx, r)
				if err == nil {
					err = check(r, c)
				}
				leases[g] = append(leases[g], c.Deliveries...)
				claimed.Add(int32(len(c.Deliveries)))
				errs[g] = err
			}
		})
	}
	wg.Wait()
	h.wantLeasedOnce(n, leases, errs)
}

// wantLeasedOnce checks that the claimers got n jobs, each once, and completes them.
func (h *harness) wantLeasedOnce(n int, leases [claimers][]job.Delivery, errs [claimers]error) {
	h.Helper()
	owners := map[string]string{}
	for g, ds := range leases {
		if errs[g] != nil {
			h.Fatalf("claimer %d: %v", g, errs[g])
		}
		for _, d := range ds {
			if before, ok := owners[d.ID]; ok {
				h.Fatalf("%q was leased to %s and to %s", d.ID, before, d.Owner)
			}
			owners[d.ID] = d.Owner
		}
		h.complete(0, ds...)
	}
	if len(owners) != n {
		h.Errorf("leased %d jobs of %d", len(owners), n)
	}
}

// testLoadSlots lets two bridges give the same jobs to their workers.
func testLoadSlots(h *harness) {
	const n = 2000
	h.aside(n, "orders.new")
	h.claimTogether(n, func(g int) job.ClaimRequest {
		r := job.ClaimRequest{Now: h.t0.Add(time.Second), Until: h.t0.Add(time.Second), Max: 100, Target: "orders.new"}
		r.Slots = []job.Slot{
			{Owner: fmt.Sprintf("bridge-%d/w%d", g%2, g), Free: 7 + g},
			{Owner: fmt.Sprintf("bridge-%d/w%d", g%2, g+100), Free: 3},
		}
		return r
	}, func(r job.ClaimRequest, c job.Claimed) error {
		got, given := perOwner(c.Deliveries), 0
		for _, s := range r.Slots {
			if given += got[s.Owner]; got[s.Owner] > s.Free {
				return fmt.Errorf("given %v for slots %v", got, r.Slots)
			}
		}
		if given != len(c.Deliveries) {
			return fmt.Errorf("given %v for slots %v", got, r.Slots)
		}
		return nil
	})
}

// testLoadOwners lets as many workers, through two bridges, ask for the same
// deliveries: each has one owner.
func testLoadOwners(h *harness) {
	const n = 200
	stores := h.handles()
	h.mustPut(h.mkMany(n, "job%d", "orders.new", 0)...)
	ds := h.claimDue(0)
	var wg sync.WaitGroup
	var results [claimers][]job.SettleResult
	var errs [claimers]error
	for g := range claimers {
		list := make([]job.Settlement, len(ds))
		for i := range ds {
			list[i] = h.own(ds[i].Ref(), fmt.Sprintf("bridge-%d/w%d", g%2, g), time.Minute)
		}
		wg.Go(func() {
			for part := range slices.Chunk(list, n/10) {
				res, err := stores[g%2].Settle(h.Context(), h.t0, part)
				results[g], errs[g] = append(results[g], res...), errors.Join(errs[g], err)
			}
		})
	}
	wg.Wait()
	if err := errors.Join(errs[:]...); err != nil {
		h.Fatal(err)
	}
	for i, d := range ds {
		owner := ""
		for g := range claimers {
			switch r := results[g][i]; {
			case r == job.Settled && owner == "":
				owner = fmt.Sprintf("bridge-%d/w%d", g%2, g)
			case r != job.Taken:
				h.Fatalf("worker %d asked for %q, which %q has: result %d", g, d.ID, owner, r)
			}
		}
		h.wantOwner(d, owner)
	}
	h.complete(0, ds...)
}

// testLoadSettlers settles the same deliveries in several goroutines: exactly
// one settlement of each must be accepted.
func testLoadSettlers(h *harness) {
	const n = 200
	stores := h.handles()
	h.mustPut(h.mkMany(n, "job%d", "orders.new", 0)...)
	ds := h.claimDue(0)
	var (
		wg      sync.WaitGroup
		settled atomic.Int32
	)
	for g := range claimers {
		var list []job.Settlement
		for _, d := range ds {
			list = append(list, settlement(h, d.Ref(), []job.Outcome{job.Complete, job.Retry}[g%2]))
		}
		wg.Go(func() {
			res, err := stores[g/2%2].Settle(context.Background(), h.t0, list)
			if err != nil {
				h.Errorf("settler %d: %v", g, err)
			}
			for _, r := range res {
				if r == job.Settled {
					settled.Add(1)
				}
			}
		})
	}
	wg.Wait()
	if got := settled.Load(); got != n {
		h.Errorf("%d settlements of %d jobs were accepted", got, n)
	}
}

// testLoadPuts puts the same ids in several goroutines: each must be stored
// once.
func testLoadPuts(h *harness) {
	const n = 200
	stores := h.handles()
	var (
		wg     sync.WaitGroup
		stored atomic.Int32
	)
	for g := range claimers {
		jobs := h.mkMany(n, "job%d", "orders.new", 0)
		wg.Go(func() {
			res, err := stores[g%2].Put(context.Background(), jobs)
			if err != nil {
				h.Errorf("putter %d: %v", g, err)
			}
			for _, r := range res {
				if r.Err == nil && !r.Duplicate {
					stored.Add(1)
				}
			}
		})
	}
	wg.Wait()
	if got := stored.Load(); got != n {
		h.Errorf("%d puts of %d ids were accepted", got, n)
	}
	if got := len(h.claimDue(0)); got != n {
		h.Errorf("%d deliveries of %d jobs", got, n)
	}
}
