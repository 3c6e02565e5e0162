package redisdelay

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/delaybridge/delaybridge/internal/testredis"
	"github.com/delaybridge/delaybridge/job"
)

// oneShard makes what is in Redis easy to look at.
func oneShard(o *Options) { o.Shards = 1 }

// lease puts a job and leases it to the owner.
func (l *life) lease(id, owner string) job.Delivery {
	l.t.Helper()
	l.put(l.job(id, "orders.new", 0))
	c, err := l.s.Claim(context.Background(), job.ClaimRequest{Now: l.t0, Until: l.t0, Max: 10, Owner: owner})
	l.must(err)
	if len(c.Deliveries) != 1 || c.Deliveries[0].Owner != owner {
		l.t.Fatalf("claimed for %q: %+v", owner, c.Deliveries)
	}
	return c.Deliveries[0]
}

// wantOwner checks who has the lease, wherever it is told.
func (l *life) wantOwner(d job.Delivery, want string) {
	l.t.Helper()
	ctx := context.Background()
	changes, err := l.s.Cancel(ctx, l.t0, job.ByIDs(d.ID))
	l.must(err)
	moved, err := l.s.Reschedule(ctx, []job.Reschedule{{ID: d.ID, Due: l.t0}})
	l.must(err)
	expired, _, err := l.s.Expired(ctx, l.t0.Add(1000*time.Hour), 1000)
	l.must(err)
	page, err := l.s.List(ctx, job.Query{State: job.Running, Limit: 1000})
	l.must(err)
	got := []string{l.get(d.ID).Owner, changes[0].Owner, moved[0].Owner, "", ""}
	for _, e := range expired {
		if e.Ref() == d.Ref() {
			got[3] = e.Owner
		}
	}
	for _, i := range page.Jobs {
		if i.Ref() == d.Ref() {
			got[4] = i.Owner
		}
	}
	if !slices.Equal(got, []string{want, want, want, want, want}) {
		l.t.Errorf("Get, Cancel, Reschedule, Expired and List say that %q is owned by %q, want %q", d.ID, got, want)
	}
}

// ending is a way in which leases end.
type ending func(l *life, ds []job.Delivery)

// whole is the completion with all that the caller knows.
func whole(d job.Delivery) job.Settlement {
	return job.Settlement{Ref: d.Ref(), Target: d.Target, Due: d.Due}
}

func settled(o job.Outcome, change ...func(*job.Settlement)) ending {
	return func(l *life, ds []job.Delivery) {
		var list []job.Settlement
		for _, d := range ds {
			st := job.Settlement{Ref: d.Ref(), Outcome: o, At: l.t0.Add(time.Hour), Target: d.Target}
			for _, c := range change {
				c(&st)
			}
			list = append(list, st)
		}
		l.settle(list...)
	}
}

// mergedAs merges the jobs as they are here, with a change.
func mergedAs(change func(l *life, it *job.MergeItem)) ending {
	return func(l *life, ds []job.Delivery) {
		for _, d := range ds {
			it := job.MergeItem{Info: l.get(d.ID)}
			change(l, &it)
			if res := l.merge(it); res[0] != job.Merged {
				l.t.Errorf("merged: %v", res)
			}
		}
	}
}

// TestOwnerGoesWithTheLease ends leases that workers have in every way: nothing of
// the owner is left.
func TestOwnerGoesWithTheLease(t *testing.T) {
	server := testredis.Start(t)
	client := raw(t, server)
	cases := map[string]ending{
		"complete":       settled(job.Complete, func(s *job.Settlement) { s.Target, s.Due = "", 0 }),
		"complete known": func(l *life, ds []job.Delivery) { l.settle(whole(ds[0]), whole(ds[1])) },
		"complete beside a stale one": func(l *life, ds []job.Delivery) {
			stale := whole(ds[1])
			stale.Nonce++
			l.settle(whole(ds[0]), stale)
			l.wantOwner(ds[1], "b/w1")
			l.settle(whole(ds[1]))
		},
		"retry":           settled(job.Retry),
		"release":         settled(job.Release),
		"release, spared": settled(job.Release, func(s *job.Settlement) { s.Spare = true }),
		"set aside":       settled(job.SetAside),
		"bury":            settled(job.Bury),
		"merge of a done one": mergedAs(func(l *life, it *job.MergeItem) {
			it.State, it.Next, it.Owner = job.Done, l.t0, ""
		}),
		"merge of one that ended under another lease": mergedAs(func(l *life, it *job.MergeItem) {
			it.State, it.Next, it.Owner, it.Nonce = job.Done, l.t0, "", 7
		}),
		"merge of a pending one": mergedAs(func(l *life, it *job.MergeItem) {
			it.State, it.Owner, it.Nonce = job.Pending, "", 0
		}),
		"merge of another attempt": mergedAs(func(l *life, it *job.MergeItem) {
			it.Attempt++
			it.Owner = "b"
			it.Nonce = NewNonce(it.Incarnation, it.Attempt, it.Owner)
		}),
		"merge of the same lease": mergedAs(func(l *life, it *job.MergeItem) { it.Owner = "b" }),
	}
	for name, end := range cases {
		t.Run(name, func(t *testing.T) {
			flush(t, client)
			l := &life{t: t, s: open(t, server.URL(), oneShard), t0: job.At(time.Now())}
			var ds []job.Delivery
			for _, id := range []string{"a", "b"} {
				d := l.lease(id, "b")
				l.settle(job.Settlement{Ref: d.Ref(), Outcome: job.Own, At: l.t0.Add(time.Hour), Owner: "b/w1"})
				l.wantOwner(d, "b/w1")
				ds = append(ds, d)
			}
			end(l, ds)
			if left := client.HGetAll(context.Background(), "test:{0}:owner").Val(); len(left) > 0 {
				t.Errorf("owners are left: %q", left)
			}
			checkShape(t, client)
		})
	}
}

// TestLeftOverOwner: an earlier release, which does not know the owner hash, may leave
// entries there. They say nothing of a later lease.
func TestLeftOverOwner(t *testing.T) {
	server := testredis.Start(t)
	client := raw(t, server)
	l := &life{t: t, s: open(t, server.URL(), oneShard), t0: job.At(time.Now())}
	client.HSet(context.Background(), "test:{0}:owner", "a", "long ago"+"b/w1")
	d := l.lease("a", "b")
	l.wantOwner(d, "b")
	l.settle(job.Settlement{Ref: d.Ref(), Outcome: job.Own, At: l.t0.Add(time.Hour), Owner: "b/w2"})
	l.wantOwner(d, "b/w2")
	l.settle(job.Settlement{Ref: d.Ref()})
	checkShape(t, client)
}

// TestStaleCompletionKeepsOwner: only the present Ref may end what a worker owns.
func TestStaleCompletionKeepsOwner(t *testing.T) {
	server := testredis.Start(t)
	client := raw(t, server)
	l := &life{t: t, s: open(t, server.URL(), oneShard), t0: job.At(time.Now())}
	d := l.lease("a", "b")
	l.settle(job.Settlement{Ref: d.Ref(), Outcome: job.Own, At: l.t0.Add(time.Hour), Owner: "b/w1"})
	for o := range job.Own {
		st := job.Settlement{Ref: d.Ref(), Outcome: o, At: l.t0, Target: d.Target, Due: d.Due}
		st.Attempt++
		l.settle(st)
		st.Due = 0
		l.settle(st)
	}
	l.wantOwner(d, "b/w1")
	checkShape(t, client)
}
