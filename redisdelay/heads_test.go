package redisdelay

import (
	"context"
	"fmt"
	"math/rand/v2"
	"reflect"
	"testing"
	"time"

	"github.com/delaybridge/delaybridge/internal/testredis"
	"github.com/delaybridge/delaybridge/job"
)

func TestHeads(t *testing.T) {
	h := newHeads(3)
	start := time.Now()
	due := func(until job.Time, after time.Duration) (shards []int) {
		for _, c := range h.due(until, start.Add(after), time.Second) {
			shards = append(shards, c.shard)
		}
		return shards
	}
	if got := due(10, 0); !reflect.DeepEqual(got, []int{0, 1, 2}) {
		t.Fatalf("asked at first: %v, want all", got)
	}
	old := h.due(10, time.Time{}, 0)
	h.set(old[0], 30, nil)
	h.set(old[1], 20, nil)
	h.set(old[2], never, nil)
	if got := due(30, 0); !reflect.DeepEqual(got, []int{1, 0}) {
		t.Errorf("asked for what is due by 30: %v, want shards 1 and 0", got)
	}
	if h.first() != 20 {
		t.Errorf("first %d, want 20", h.first())
	}
	h.lower(2, 15)
	h.set(old[2], never, nil) // an older reply
	h.set(old[1], never, nil)
	if got := due(40, 0); !reflect.DeepEqual(got, []int{2, 0}) {
		t.Errorf("asked after a put: %v, want shards 2 and 0", got)
	}
	if got := due(10, time.Second); !reflect.DeepEqual(got, []int{0, 1, 2}) {
		t.Errorf("asked after the look interval: %v, want all", got)
	}
}

func TestHeadsSamples(t *testing.T) {
	h := newHeads(1)
	c := h.due(1, time.Time{}, 0)[0]
	h.set(c, 10, []sample{{20, 16}, {30, 32}, {never, 40}})
	h.lower(0, 25)
	if got, want := h.due(10, time.Time{}, 0)[0].samples, []sample{{20, 16}}; !reflect.DeepEqual(got, want) {
		t.Errorf("samples after a put at 25: %v, want %v", got, want)
	}
}

func TestPlan(t *testing.T) {
	shard := func(n int, next job.Time, samples ...sample) candidate {
		return candidate{shard: n, next: next, samples: samples}
	}
	cases := []struct {
		name   string
		shards []candidate
		limit  int
		want   string // shard:until:max
	}{
		{"nothing due", nil, 10, ""},
		{"nothing wanted", []candidate{shard(0, 1)}, 0, ""},
		{"one shard", []candidate{shard(3, 5)}, 10, "3:100:10 "},
		{"no samples: equal shares", []candidate{shard(0, 5), shard(1, 6)}, 10, "0:100:5 1:100:5 "},
		{"all fits", []candidate{shard(0, 5, sample{never, 4}), shard(1, 6, sample{never, 6})}, 10, "0:100:4 1:100:6 "},
		{"up to a sample", []candidate{shard(0, 5, sample{50, 5}, sample{never, 9}), shard(1, 6, sample{40, 5}, sample{never, 8})}, 10, "0:39:5 1:39:5 "},
		{"the first shard is all before the second", []candidate{shard(0, 5, sample{30, 5}, sample{60, 10}), shard(1, 70, sample{80, 5})}, 10, "0:59:10 "},
		{"one instant", []candidate{shard(0, 5, sample{5, 5}, sample{never, 20}), shard(1, 5, sample{5, 5}, sample{never, 20})}, 10, "0:5:5 1:5:5 "},
		{"fewer wanted than shards", []candidate{shard(0, 5), shard(1, 8), shard(2, 9)}, 2, "0:8:2 "},
	}
	for _, c := range cases {
		got := ""
		for _, a := range plan(c.shards, 100, c.limit) {
			got += fmt.Sprintf("%d:%d:%d ", a.shard, a.until, a.max)
		}
		if got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

// TestBacklogOrder works off a backlog that is spread over all shards: every
// claim takes the earliest jobs there are.
func TestBacklogOrder(t *testing.T) {
	server := testredis.Start(t)
	s := open(t, server.URL())
	ctx := context.Background()
	const n = 5000
	now := job.At(time.Now())
	rnd := rand.New(rand.NewPCG(1, 2))
	jobs := make([]job.Job, n)
	for i := range jobs {
		jobs[i] = job.Job{ID: fmt.Sprintf("job-%d", i), Target: "orders.new", Due: now - job.Time(rnd.IntN(1e9)), AckWait: time.Minute}
	}
	if _, err := s.Put(ctx, jobs); err != nil {
		t.Fatal(err)
	}
	total, claims := 0, 0
	for last := job.Time(0); total < n; claims++ {
		c, err := s.Claim(ctx, job.ClaimRequest{Now: now, Until: now, Max: maxBatch, Owner: "b"})
		if err != nil || len(c.Deliveries) == 0 {
			t.Fatalf("%d of %d jobs claimed, then %d, %v", total, n, len(c.Deliveries), err)
		}
		for _, d := range c.Deliveries {
			if d.Next < last {
				t.Fatalf("claim %d has a job due %v before one that was claimed before", claims, last.Sub(d.Next))
			}
			last = d.Next
		}
		total += len(c.Deliveries)
	}
	if most := 2 * n / maxBatch; claims > most {
		t.Errorf("%d claims for %d jobs, want at most %d", claims, n, most)
	}
}
