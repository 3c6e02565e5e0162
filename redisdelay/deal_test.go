package redisdelay

import (
	"cmp"
	"context"
	"fmt"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/delaybridge/delaybridge/internal/testproxy"
	"github.com/delaybridge/delaybridge/internal/testredis"
	"github.com/delaybridge/delaybridge/job"
)

// TestRepeatedClaimKeepsOwners loses the reply of a claim for workers: the repeat
// says who has what, also when some of it has ended since.
func TestRepeatedClaimKeepsOwners(t *testing.T) {
	server := testredis.Start(t)
	client := raw(t, server)
	proxy := testproxy.Start(t, server.Addr())
	l := &life{t: t, s: open(t, proxy.URL(), oneShard), t0: job.At(time.Now())}
	var jobs []job.Job
	for i := range 9 {
		jobs = append(jobs, l.job(fmt.Sprintf("job%d", i), "orders.new", time.Duration(i)*time.Microsecond))
	}
	l.put(jobs...)
	l.claim(time.Second, "", "orders.new")
	second := make(chan struct{})
	proxy.DropReplies(1, firstTime(claimScript))
	proxy.Observe(func(args []string) {
		if len(args) < 2 || args[1] != claimScript.sha {
			return
		}
		select {
		case <-second: // the second time: before Redis gets it, two jobs end
			for _, id := range []string{"job0", "job4"} {
				l.endLease(client, id)
			}
		default:
			close(second)
		}
	})
	c, err := l.s.Claim(context.Background(), job.ClaimRequest{
		Now: l.t0.Add(time.Second), Until: l.t0.Add(time.Second), Max: 100, Owner: "b", Target: "orders.new",
		Slots: []job.Slot{{Owner: "b/w1", Free: 10}, {Owner: "b/w2", Free: 1}, {Owner: "c", Free: 10}},
	})
	l.must(err)
	if proxy.Dropped() != 1 {
		t.Fatalf("%d replies were lost, want one", proxy.Dropped())
	}
	var got []string
	for _, d := range c.Deliveries {
		got = append(got, d.ID+" "+d.Owner)
		l.wantOwner(d, d.Owner)
	}
	want := []string{"job1 b/w2", "job2 c", "job3 b/w1", "job5 b/w1", "job6 c", "job7 b/w1", "job8 c"}
	if !slices.Equal(got, want) {
		t.Errorf("claimed %q, want %q", got, want)
	}
}

// endLease removes a running job, as another bridge may.
func (l *life) endLease(c *redis.Client, id string) {
	ctx := context.Background()
	for _, lease := range c.ZRange(ctx, "test:{0}:inf", 0, -1).Val() {
		if leaseID(lease) == id {
			c.ZRem(ctx, "test:{0}:inf", lease)
			c.HDel(ctx, "test:{0}:owner", id)
			c.HDel(ctx, "test:{0}:job", id)
		}
	}
}

// TestDealer checks the turns of the owners over the calls of a claim.
func TestDealer(t *testing.T) {
	slot := func(owner string, free int) job.Slot { return job.Slot{Owner: owner, Free: free} }
	cases := []struct {
		max   int
		slots []job.Slot
		limit int
		calls []int
		want  []string
	}{
		{5, nil, 5, []int{5}, []string{""}},
		{5, []job.Slot{slot("a", 2)}, 2, []int{2}, []string{"aa"}},
		{100, []job.Slot{slot("a", 1), slot("b", 3), slot("c", 2)}, 6, []int{6}, []string{"abcbcb"}},
		{100, []job.Slot{slot("a", 2), slot("b", 2), slot("c", 2)}, 6, []int{2, 2, 2}, []string{"ab", "bc", "ac"}},
		{4, []job.Slot{slot("a", 9), slot("b", 0), slot("c", -1), slot("d", 9)}, 4, []int{1, 3}, []string{"a", "dad"}},
		{2, []job.Slot{slot("a", 1), slot("b", 9), slot("c", 9)}, 2, []int{2}, []string{"ab"}},
		{9, []job.Slot{slot("a", 0)}, 0, nil, nil},
	}
	for _, c := range cases {
		given := slices.Clone(c.slots)
		r := job.ClaimRequest{Max: c.max, Target: "t", Slots: c.slots}
		d := newDealer(&r)
		if r.Max != c.limit {
			t.Errorf("%v: at most %d deliveries, want %d", c.slots, r.Max, c.limit)
		}
		var got []string
		for _, n := range c.calls {
			call := &call{}
			d.add(call, newTags(n, "b"))
			text := ""
			for _, a := range call.args {
				text += string(a.([]byte)[tagLen:])
			}
			got = append(got, text)
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%v: calls of %d are dealt to %q, want %q", given, c.calls, got, c.want)
		}
		if !reflect.DeepEqual(c.slots, given) {
			t.Errorf("the slots of the request were changed from %v to %v", given, c.slots)
		}
	}
}

// TestListRunning lists leases of many owners and claims, page by page.
func TestListRunning(t *testing.T) {
	server := testredis.Start(t)
	l := &life{t: t, s: open(t, server.URL()), t0: job.At(time.Now())}
	ctx := context.Background()
	const n = 700
	var want []string
	for i := range n {
		if i%100 == 0 {
			l.put(benchJobs(100, generatedID)...)
			now := l.t0.Add(time.Duration(i) * time.Second)
			c, err := l.s.Claim(ctx, job.ClaimRequest{Now: now, Until: now, Max: 256, Owner: fmt.Sprintf("b%d", i)})
			l.must(err)
			for k, d := range c.Deliveries {
				if k%2 == 1 {
					d.Owner = fmt.Sprintf("b/w%d", k)
					l.settle(job.Settlement{Ref: d.Ref(), Outcome: job.Own, At: d.Deadline, Owner: d.Owner})
				}
				want = append(want, fmt.Sprint(d.Deadline, d.ID, d.Nonce, d.Owner))
			}
		}
	}
	slices.Sort(want)
	for _, limit := range []int{1000, 50} {
		var got []string
		q := job.Query{State: job.Running, Limit: limit}
		for {
			p, err := l.s.List(ctx, q)
			l.must(err)
			if len(p.Jobs) > limit {
				t.Errorf("a page of %d jobs, want at most %d", len(p.Jobs), limit)
			}
			for _, i := range p.Jobs {
				got = append(got, fmt.Sprint(i.Next, i.ID, i.Nonce, i.Owner))
			}
			if q.Cursor = cmp.Or(p.Cursor, ""); q.Cursor == "" {
				break
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("by %d: listed %d jobs, want the %d that run, in order", limit, len(got), len(want))
		}
	}
}
