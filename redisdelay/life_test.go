package redisdelay

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/delaybridge/delaybridge/job"
)

// life drives a store through every kind of call and writes down every answer,
// in a form that is the same from run to run.
type life struct {
	t   testing.TB
	s   *Store
	t0  job.Time
	log []string
}

func (l *life) note(format string, args ...any) { l.log = append(l.log, fmt.Sprintf(format, args...)) }

func (l *life) must(err error) {
	l.t.Helper()
	if err != nil {
		l.t.Fatal(err)
	}
}

func (l *life) job(id, target string, d time.Duration) job.Job {
	return job.Job{ID: id, Target: target, Due: l.t0.Add(d), AckWait: 30 * time.Second, MaxAttempts: 10, Payload: []byte(id)}
}

func (l *life) put(jobs ...job.Job) {
	l.t.Helper()
	res, err := l.s.Put(context.Background(), jobs)
	l.must(err)
	for _, r := range res {
		l.note("put %v %d %v", r.Duplicate, r.Due-l.t0, r.Err)
	}
}

// claim claims all that is due at t0+d, in order of the ids.
func (l *life) claim(d time.Duration, target string, blocked ...string) []job.Delivery {
	l.t.Helper()
	r := job.ClaimRequest{Now: l.t0.Add(d), Until: l.t0.Add(d), Max: 1000, Owner: "b", Target: target, Blocked: blocked}
	var all []job.Delivery
	aside := 0
	for {
		c, err := l.s.Claim(context.Background(), r)
		l.must(err)
		all, aside = append(all, c.Deliveries...), aside+c.SetAside
		if c.NextDue == 0 || c.NextDue > r.Until {
			break
		}
	}
	slices.SortFunc(all, func(a, b job.Delivery) int { return cmp.Compare(a.ID, b.ID) })
	for _, d := range all {
		l.note("claim %s for %s attempt %d base %d due %d until %d", d.ID, d.Owner, d.Attempt, d.Base, d.Due-l.t0, d.Deadline-l.t0)
	}
	l.note("claimed %d, set aside %d", len(all), aside)
	return all
}

func (l *life) settle(list ...job.Settlement) {
	l.t.Helper()
	res, err := l.s.Settle(context.Background(), l.t0, list)
	l.must(err)
	l.note("settle %v", res)
}

// live is a life with every kind of call and every outcome, one per job.
func (l *life) live() {
	outcomes := map[string]job.Outcome{
		"a": job.Complete, "b": job.Retry, "c": job.Release, "d": job.SetAside, "e": job.Bury, "f": job.Extend, "g": job.Bury,
	}
	ids := []string{"a", "b", "c", "d", "e", "f", "g", "aside1", "aside2", "replaced", "cancelled"}
	var jobs []job.Job
	for i, id := range ids {
		jobs = append(jobs, l.job(id, "orders.new", time.Duration(i)*time.Microsecond))
	}
	jobs[7].Target, jobs[8].Target = "mail.send", "mail.send"
	jobs[10].Due = l.t0.Add(time.Hour)
	l.put(jobs...)
	replace := l.job("replaced", "orders.other", time.Hour)
	replace.Replace = true
	l.put(l.job("a", "orders.new", time.Hour), l.job("b", "billing.new", 0), replace)

	for k := range 2 { // claimed, given back and claimed again
		var list []job.Settlement
		for _, d := range l.claim(time.Second, "", "mail.send") {
			list = append(list, job.Settlement{
				Ref: d.Ref(), Outcome: outcomes[d.ID], At: l.t0.Add(time.Duration(10*k) * time.Second), Target: d.Target, Reason: "why",
			})
		}
		l.settle(list...)
		l.settle(list...)
	}
	l.change()
	l.give()
	l.claim(time.Minute, "orders.new")
	l.claim(time.Minute, "mail.send")
	l.look(append(ids, "unknown"))
	l.mergeAll()
}

// give gives jobs that are set aside to workers in turn; one claims another's, and
// all give back what they have.
func (l *life) give() {
	var jobs []job.Job
	for i := range 7 {
		jobs = append(jobs, l.job(fmt.Sprintf("given%d", i), "video.encode", time.Duration(i)*time.Millisecond))
	}
	l.put(jobs...)
	l.claim(30*time.Second, "", "orders.new", "mail.send", "video.encode")
	r := job.ClaimRequest{
		Now: l.t0.Add(time.Minute), Until: l.t0.Add(time.Minute), Max: 1000, Owner: "b", Target: "video.encode",
		Slots: []job.Slot{{Owner: "b/w1", Free: 1}, {Owner: "b/w2", Free: 2}, {Owner: "b/w3", Free: 10}},
	}
	var list []job.Settlement
	for more := true; more; {
		c, err := l.s.Claim(context.Background(), r)
		l.must(err)
		more = c.NextDue != 0 && c.NextDue <= r.Until
		for _, d := range c.Deliveries {
			l.note("gave %s to %s", d.ID, d.Owner)
			list = append(list,
				job.Settlement{Ref: d.Ref(), Outcome: job.Own, At: l.t0.Add(time.Hour), Owner: "c/w3"},
				job.Settlement{Ref: d.Ref(), Outcome: job.SetAside, At: l.t0.Add(time.Hour), Target: d.Target})
			r.Slots[slices.IndexFunc(r.Slots, func(s job.Slot) bool { return s.Owner == d.Owner })].Free--
		}
	}
	l.settle(list...)
	l.own()
}

// own has workers claim what a bridge has leased, and leaves the leases.
func (l *life) own() {
	l.put(l.job("owned", "video.encode", 0), l.job("taken", "video.encode", 0))
	for _, d := range l.claim(0, "") {
		for _, owner := range []string{"b/w1", "c/w1", "b/w2"} {
			l.settle(job.Settlement{Ref: d.Ref(), Outcome: job.Own, At: l.t0.Add(time.Hour), Owner: owner})
		}
		l.look([]string{d.ID})
	}
}

// item is a job as another store has it.
func (l *life) item(id string, state job.State, attempt uint32) job.MergeItem {
	it := job.MergeItem{Info: job.Info{Job: l.job(id, "orders.new", time.Hour), State: state, Attempt: attempt, Next: l.t0.Add(2 * time.Hour)}}
	it.Incarnation = job.NextIncarnation()
	if attempt > 0 && state != job.Pending && state != job.Dead {
		it.Owner = "other"
		it.Nonce = NewNonce(it.Incarnation, attempt, it.Owner)
	}
	if state == job.Dead {
		it.Reason = "other"
	}
	return it
}

func (l *life) merge(items ...job.MergeItem) []job.MergeResult {
	l.t.Helper()
	res, err := l.s.Merge(context.Background(), l.t0, items)
	l.must(err)
	l.note("merge %v", res)
	return res
}

// mergeAll merges jobs of every state, also some that are here, on both shards,
// and then the same ones again.
func (l *life) mergeAll() {
	states := []job.State{job.Pending, job.Running, job.Dead, job.Done, job.Cancelled}
	var items []job.MergeItem
	var ids []string
	for i := range 20 {
		id := fmt.Sprintf("merged%02d", i)
		ids = append(ids, id)
		items = append(items, l.item(id, states[i%len(states)], uint32(1+i/5)))
	}
	items = append(items, l.item("b", job.Running, 1), l.item("replaced", job.Done, 1))
	for range 2 {
		l.merge(items...)
	}
	l.look(append(ids, "b", "replaced"))
	jobs, complete, err := l.s.Upcoming(context.Background(), l.t0, l.t0.Add(3*time.Hour), 1000)
	l.must(err)
	slices.SortFunc(jobs, func(a, b job.Info) int { return cmp.Compare(a.ID, b.ID) })
	for _, i := range jobs {
		l.note("upcoming %s attempt %d next %d", i.ID, i.Attempt, i.Next-l.t0)
	}
	l.note("complete to %d", complete-l.t0)
}

// change cancels, reschedules and prunes.
func (l *life) change() {
	ctx := context.Background()
	ch, err := l.s.Cancel(ctx, l.t0, job.ByIDs("a", "f", "aside1", "cancelled", "unknown"))
	l.must(err)
	l.note("cancel %+v", ch)
	ch, err = l.s.Reschedule(ctx, []job.Reschedule{
		{ID: "aside2", Due: l.t0.Add(time.Minute)}, {ID: "replaced", Due: l.t0.Add(2 * time.Hour)}, {ID: "a", Due: l.t0},
		{ID: "e", Due: l.t0.Add(time.Minute), Requeue: true}, {ID: "unknown", Due: l.t0},
	})
	l.must(err)
	l.note("reschedule %+v", ch)
	for range 2 {
		n, err := l.s.Prune(ctx, l.t0, 100)
		l.must(err)
		l.note("pruned %d", n)
	}
}

// look reads everything.
func (l *life) look(ids []string) {
	ctx := context.Background()
	infos, err := l.s.Get(ctx, ids)
	l.must(err)
	for _, i := range infos {
		l.note("%s %s attempt %d base %d due %d next %d owner %q reason %q payload %q", i.ID, i.State, i.Attempt, i.Base, i.Due-l.t0, i.Next-l.t0, i.Owner, i.Reason, i.Payload)
	}
	for _, state := range []job.State{job.Pending, job.Running, job.Dead} {
		p, err := l.s.List(ctx, job.Query{State: state, Limit: 1000})
		l.must(err)
		for _, i := range p.Jobs {
			l.note("%s: %s", state, i.ID)
		}
	}
	due := []source{{0, l.s.keys[0][dueKey]}, {1, l.s.keys[1][dueKey]}}
	near, rest, err := l.s.nearest(ctx, slices.Repeat(due, fewSets), position{}, 1)
	l.must(err)
	l.note("the nearest set is %v, the next begins with %+v", near, rest)
	ds, next, err := l.s.Expired(ctx, l.t0.Add(24*time.Hour), 1000)
	l.must(err)
	l.note("%d expire, next %d", len(ds), next)
	w, err := l.s.Waiting(ctx)
	l.must(err)
	slices.Sort(w)
	l.note("waiting %q", w)
}
