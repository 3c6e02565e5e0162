package redisdelay

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/delaybridge/delaybridge/internal/testredis"
	"github.com/delaybridge/delaybridge/job"
)

// setAsideMany puts jobs that are due, each of a target of its own, and sets them
// aside.
func setAsideMany(t *testing.T, s *Store, jobs int) {
	t.Helper()
	ctx := context.Background()
	batch, due := benchJobs(jobs, generatedID), job.At(time.Now())
	for i := range batch {
		batch[i].Due = due + job.Time(i%2*i) // half of them at one instant
		batch[i].Target = fmt.Sprintf("orders.%d", i)
	}
	if _, err := s.Put(ctx, batch); err != nil {
		t.Fatal(err)
	}
	for left := jobs; left > 0; {
		now := job.At(time.Now().Add(time.Second))
		c, err := s.Claim(ctx, job.ClaimRequest{Now: now, Until: now, Max: left, Owner: "b"})
		if err != nil || len(c.Deliveries) == 0 {
			t.Fatalf("%d of %d jobs claimed, error %v", jobs-left, jobs, err)
		}
		list := make([]job.Settlement, len(c.Deliveries))
		for i := range list {
			d := &c.Deliveries[i]
			list[i] = job.Settlement{Ref: d.Ref(), Outcome: job.SetAside, At: d.Next, Target: d.Target}
		}
		if _, err := s.Settle(ctx, now, list); err != nil {
			t.Fatal(err)
		}
		left -= len(list)
	}
}

// TestCountIsBoundedByShards: with many targets that nobody takes jobs of, a count
// costs Redis no more.
func TestCountIsBoundedByShards(t *testing.T) {
	const jobs = 2000
	ctx := context.Background()
	server := testredis.Start(t, "--appendonly", "no")
	s, c := open(t, server.URL()), raw(t, server)
	setAsideMany(t, s, jobs)
	commands := func() (n int64) {
		if _, err := fmt.Sscan(infoField(t, c, "stats", "total_commands_processed"), &n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	before := commands()
	got, err := s.Count(ctx)
	if want := (job.Counts{Pending: jobs, Aside: jobs}); err != nil || got != want {
		t.Errorf("Count: %+v, error %v; want %+v", got, err, want)
	}
	if n, most := commands()-before, int64(4*s.opts.Shards+1); n > most {
		t.Errorf("a count took %d commands, want %d at most", n, most)
	}
}

// TestListOfManyTargets: of many targets with jobs set aside, a page reads those
// that are on it. Every job is listed once, in order.
func TestListOfManyTargets(t *testing.T) {
	const jobs = 1500
	ctx := context.Background()
	server := testredis.Start(t, "--appendonly", "no")
	s, c := open(t, server.URL()), raw(t, server)
	setAsideMany(t, s, jobs)
	later := benchJobs(100, generatedID)
	for i := range later {
		later[i].Due = job.At(time.Now().Add(time.Hour))
	}
	if _, err := s.Put(ctx, later); err != nil {
		t.Fatal(err)
	}
	calls := func() (n int64) {
		_, stat, _ := strings.Cut(infoField(t, c, "commandstats", "cmdstat_evalsha"), "calls=")
		if _, err := fmt.Sscan(stat[:strings.Index(stat, ",")], &n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	for _, limit := range []int{1, 100, 1000} {
		q := job.Query{State: job.Pending, Limit: limit}
		before, pages := calls(), 0
		seen := map[string]bool{}
		last := position{}
		for begin := true; begin || q.Cursor != ""; begin = false {
			p, err := s.List(ctx, q)
			if err != nil {
				t.Fatal(err)
			}
			for i := range p.Jobs {
				at := position{true, p.Jobs[i].Next, p.Jobs[i].ID}
				if seen[at.id] || at.compare(last) <= 0 {
					t.Errorf("limit %d: %s is listed again, or out of order", limit, at.id)
				}
				seen[at.id], last = true, at
			}
			q.Cursor, pages = p.Cursor, pages+1
			if limit == 1 && pages == 3 {
				break
			}
		}
		if want := jobs + len(later); limit > 1 && len(seen) != want || limit == 1 && len(seen) != 3 {
			t.Errorf("limit %d: %d jobs listed, want %d", limit, len(seen), want)
		}
		// A look at all sets, a call for each that is on the page, and its records.
		if n, most := calls()-before, int64(pages*(limit+4*s.opts.Shards+jobs/maxFirsts)); n > most {
			t.Errorf("limit %d: %d calls for %d pages, want %d at most", limit, n, pages, most)
		}
	}
}
