package redisdelay

import (
	"context"
	"fmt"
	"reflect"
	"testing"
	"time"

	"github.com/delaybridge/delaybridge/internal/testredis"
	"github.com/delaybridge/delaybridge/job"
)

// What the store has of an id before a merge.
const (
	nothing   = ""
	pending   = "pending"
	retried   = "retried" // pending, after one attempt
	setAside  = "set aside"
	running   = "running"
	dead      = "dead"
	done      = "done"
	cancelled = "cancelled"
)

// have brings a job to a state and returns its last delivery, if it had one.
func (l *life) have(j job.Job, state string) (d job.Delivery) {
	l.t.Helper()
	if state == nothing {
		return d
	}
	l.put(j)
	ctx := context.Background()
	switch state {
	case pending:
		return d
	case cancelled:
		_, err := l.s.Cancel(ctx, l.t0, job.ByIDs(j.ID))
		l.must(err)
		return d
	}
	d = l.claim(j.Due.Sub(l.t0), "")[0]
	st := job.Settlement{Ref: d.Ref(), Target: d.Target, Due: d.Due, At: l.t0.Add(time.Minute)}
	switch state {
	case running:
		return d
	case retried:
		st.Outcome = job.Retry
	case setAside:
		st.Outcome = job.SetAside
	case dead:
		st.Outcome, st.Reason = job.Bury, "here"
	}
	l.settle(st)
	return d
}

func (l *life) get(id string) job.Info {
	l.t.Helper()
	infos, err := l.s.Get(context.Background(), []string{id})
	l.must(err)
	return infos[0]
}

// mergeCase is one merge: what is here, what comes, what becomes of it.
type mergeCase struct {
	here    string
	age     int // the item's incarnation is the same (0), newer (1) or older (-1) than that here
	item    job.State
	attempt uint32
	change  func(it *job.MergeItem)
	want    job.MergeResult
	took    bool // the store then has the item's state; else what it had
}

func offer(it *job.MergeItem)     { it.Offer = true }
func replacing(it *job.MergeItem) { it.Replace = true }
func elsewhere(it *job.MergeItem) { it.Target = "billing.new" }

var mergeCases = []mergeCase{
	// Nothing is known: any state.
	{nothing, 0, job.Pending, 0, nil, job.Merged, true},
	{nothing, 0, job.Pending, 3, nil, job.Merged, true},
	{nothing, 0, job.Running, 1, nil, job.Merged, true},
	{nothing, 0, job.Running, 4, nil, job.Merged, true},
	{nothing, 0, job.Dead, 2, nil, job.Merged, true},
	{nothing, 0, job.Done, 1, nil, job.Merged, true},
	{nothing, 0, job.Cancelled, 0, nil, job.Merged, true},
	{nothing, 0, job.Pending, 0, offer, job.Merged, true},
	{nothing, 0, job.Dead, 1, offer, job.Merged, true},

	// The same incarnation: the higher attempt, or what ended.
	{pending, 0, job.Pending, 0, nil, job.Merged, true}, // another time
	{pending, 0, job.Pending, 2, nil, job.Merged, true},
	{pending, 0, job.Running, 1, nil, job.Merged, true},
	{pending, 0, job.Done, 1, nil, job.Merged, true},
	{pending, 0, job.Cancelled, 0, nil, job.Merged, true},
	{pending, 0, job.Dead, 1, nil, job.Merged, true},
	{pending, 0, job.Pending, 2, offer, job.Kept, false},
	{retried, 0, job.Pending, 0, nil, job.Kept, false},
	{retried, 0, job.Pending, 1, nil, job.Merged, true},
	{retried, 0, job.Running, 2, nil, job.Merged, true},
	{retried, 0, job.Done, 1, nil, job.Merged, true},
	{setAside, 0, job.Pending, 1, nil, job.Merged, true},
	{setAside, 0, job.Running, 1, nil, job.Merged, true},
	{setAside, 0, job.Done, 1, nil, job.Merged, true},
	{setAside, 0, job.Cancelled, 0, nil, job.Merged, true},
	{running, 0, job.Pending, 0, nil, job.Kept, false},
	{running, 0, job.Pending, 1, nil, job.Merged, true},
	{running, 0, job.Running, 1, nil, job.Merged, true},
	{running, 0, job.Running, 2, nil, job.Merged, true},
	{running, 0, job.Done, 1, nil, job.Merged, true},
	{running, 0, job.Cancelled, 0, nil, job.Merged, true},
	{running, 0, job.Dead, 1, nil, job.Merged, true},
	{dead, 0, job.Pending, 0, nil, job.Kept, false},
	{dead, 0, job.Pending, 1, nil, job.Merged, true}, // requeued
	{dead, 0, job.Cancelled, 1, nil, job.Merged, true},
	{done, 0, job.Pending, 4, nil, job.Kept, false},
	{done, 0, job.Running, 4, nil, job.Kept, false},
	{done, 0, job.Done, 1, nil, job.Kept, false},
	{cancelled, 0, job.Running, 1, nil, job.Kept, false},

	// Another one that has ended.
	{done, 1, job.Pending, 0, nil, job.Merged, true},
	{cancelled, 1, job.Running, 1, nil, job.Merged, true},
	{done, -1, job.Pending, 0, nil, job.Merged, true},
	{done, 1, job.Pending, 0, offer, job.Merged, true},
	{done, -1, job.Pending, 0, offer, job.Kept, false},
	{done, 1, job.Done, 1, nil, job.Merged, true},
	{done, -1, job.Done, 1, nil, job.Kept, false},

	// Another one that lives, and one that replaces.
	{pending, 1, job.Pending, 0, replacing, job.Merged, true},
	{setAside, 1, job.Pending, 0, replacing, job.Merged, true},
	{dead, 1, job.Pending, 0, replacing, job.Merged, true},
	{retried, 1, job.Pending, 0, replacing, job.Merged, true},
	{retried, 1, job.Dead, 1, replacing, job.Merged, true},
	{running, 1, job.Pending, 0, replacing, job.Busy, false},
	{pending, -1, job.Pending, 0, replacing, job.Joined, false},

	// Another one that lives, and one that ended.
	{pending, 1, job.Done, 1, nil, job.Joined, true},
	{setAside, 1, job.Done, 1, nil, job.Joined, true},
	{retried, 1, job.Cancelled, 0, nil, job.Joined, true},
	{dead, 1, job.Done, 1, nil, job.Joined, true},
	{running, 1, job.Done, 1, nil, job.Busy, false},
	{pending, -1, job.Done, 1, nil, job.Kept, false},
	{pending, -1, job.Cancelled, 0, nil, job.Kept, false},

	// Another one that lives, and one that is running.
	{pending, 1, job.Running, 1, nil, job.Merged, true},
	{retried, 1, job.Running, 1, nil, job.Merged, true},
	{setAside, 1, job.Running, 1, nil, job.Merged, true},
	{running, 1, job.Running, 1, nil, job.Busy, false},
	{pending, -1, job.Running, 1, nil, job.Busy, false},

	// Another one that lives, and one that is pending or dead.
	{pending, 1, job.Pending, 0, nil, job.Joined, false},
	{setAside, 1, job.Pending, 0, nil, job.Joined, false},
	{running, 1, job.Pending, 2, nil, job.Joined, false},
	{dead, 1, job.Dead, 1, nil, job.Joined, false},
	{pending, 1, job.Pending, 0, offer, job.Kept, false},

	// Another one that lives under another first token.
	{pending, 1, job.Pending, 0, elsewhere, job.Busy, false},
	{pending, 1, job.Running, 1, elsewhere, job.Busy, false},
	{pending, 1, job.Done, 1, elsewhere, job.Kept, false},
}

func (c *mergeCase) name(i int) string {
	return fmt.Sprintf("%02d here %s, age %d, item %s %d", i, c.here, c.age, c.item, c.attempt)
}

// TestMergeRules is the table of what becomes of a merge, each case also merged a
// second time.
func TestMergeRules(t *testing.T) {
	server := testredis.Start(t)
	client := raw(t, server)
	for i, c := range mergeCases {
		t.Run(c.name(i), func(t *testing.T) {
			flush(t, client)
			l := &life{t: t, s: open(t, server.URL(), oneByOne), t0: job.At(time.Now())}
			it := c.run(l, fmt.Sprintf("job%d", i))
			checkShape(t, client)
			l.liveOn(it, c.took)
			checkShape(t, client)
		})
	}
}

func (c *mergeCase) run(l *life, id string) *job.MergeItem {
	old := job.NextIncarnation()
	here := l.job(id, "orders.new", -time.Minute)
	here.Incarnation = job.NextIncarnation()
	l.have(here, c.here)
	it := l.item(id, c.item, c.attempt)
	it.Incarnation = []uint64{old, here.Incarnation, job.NextIncarnation()}[1+c.age]
	if it.Owner != "" {
		it.Nonce = NewNonce(it.Incarnation, it.Attempt, it.Owner)
	}
	if c.change != nil {
		c.change(&it)
	}
	was := l.get(id)
	results := l.merge(it)
	if results[0] != c.want {
		l.t.Errorf("result %d, want %d", results[0], c.want)
	}
	after := l.get(id)
	if c.took {
		l.checkTook(&it, after)
	} else if !reflect.DeepEqual(after, was) {
		l.t.Errorf("it was %+v and is %+v", was, after)
	}
	l.merge(it)
	if again := l.get(id); !reflect.DeepEqual(again, after) {
		l.t.Errorf("a second merge changed %+v to %+v", after, again)
	}
	return &it
}

// checkTook compares what the store has with the item.
func (l *life) checkTook(it *job.MergeItem, got job.Info) {
	l.t.Helper()
	want := it.Info
	want.Shard, want.Stored, want.Replace = got.Shard, job.StoredRedis, false
	if over(it) {
		want.Job = job.Job{ID: it.ID, Incarnation: it.Incarnation, Target: it.Target, Due: it.Due}
		want.Nonce, want.Owner = 0, ""
	}
	if !reflect.DeepEqual(got, want) {
		l.t.Errorf("the store has\n%+v, want\n%+v", got, want)
	}
}

// liveOn checks that what was merged goes on as it would have there, and leaves
// nothing.
func (l *life) liveOn(it *job.MergeItem, took bool) {
	l.t.Helper()
	ctx := context.Background()
	defer func() {
		_, err := l.s.Cancel(ctx, l.t0, job.ByIDs(it.ID))
		l.must(err)
		for _, target := range []string{"orders.new", ""} {
			for _, d := range l.claim(3*time.Hour, target) {
				l.settle(job.Settlement{Ref: d.Ref()})
			}
		}
		ds, _, err := l.s.Expired(ctx, l.t0.Add(24*time.Hour), 10)
		l.must(err)
		for _, d := range ds {
			l.settle(job.Settlement{Ref: d.Ref()})
		}
	}()
	if !took {
		return
	}
	expect := func(want job.SettleResult) {
		l.t.Helper()
		for _, known := range []bool{true, false} {
			st := job.Settlement{Ref: it.Ref()}
			if known {
				st.Target, st.Due = it.Target, it.Due
			}
			res, err := l.s.Settle(ctx, l.t0, []job.Settlement{st})
			if l.must(err); res[0] != want {
				l.t.Errorf("settled with the item's Ref: %v, want %v", res[0], want)
			}
			if want == job.Settled {
				want = job.Repeated
			}
		}
	}
	switch it.State {
	case job.Running:
		expect(job.Settled)
	case job.Done:
		expect(job.Repeated)
	case job.Pending:
		ds := l.claim(2*time.Hour, "")
		if len(ds) != 1 || ds[0].ID != it.ID || ds[0].Attempt != it.Attempt+1 || ds[0].Next != it.Next || string(ds[0].Payload) != string(it.Payload) {
			l.t.Errorf("claimed %+v, want attempt %d of the item", ds, it.Attempt+1)
		}
	}
}
