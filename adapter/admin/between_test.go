package admin_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/delaybridge/delaybridge/api"
	"github.com/delaybridge/delaybridge/job"
	"github.com/delaybridge/delaybridge/memdelay"
)

// between is a store to which something happens right before it is changed once: after
// the service has looked at the job, and before it changes it.
type between struct {
	job.Store
	what atomic.Pointer[func()]
}

func (b *between) next(f func()) { b.what.Store(&f) }

func (b *between) happen() {
	if f := b.what.Swap(nil); f != nil {
		(*f)()
	}
}

func (b *between) Cancel(ctx context.Context, now job.Time, list []job.Cancellation) ([]job.Change, error) {
	b.happen()
	return b.Store.Cancel(ctx, now, list)
}

func (b *between) Reschedule(ctx context.Context, list []job.Reschedule) ([]job.Change, error) {
	b.happen()
	return b.Store.Reschedule(ctx, list)
}

func newBetween(t *testing.T) (*between, *rig) {
	b := &between{Store: memdelay.New(memdelay.Options{})}
	return b, newRig(t, withStore(b))
}

// drop cancels a job in the store.
func (r *rig) drop(b *between, id string) {
	if c, err := b.Store.Cancel(r.Context(), r.bridge.Now(), job.ByIDs(id)); err != nil || c[0].Result != job.ResultDone {
		r.Errorf("%+v, %v", c, err)
	}
}

// TestIDTakenByAnotherTarget: the job of the target is gone, and somebody else's has
// its id, when the call comes to change it.
func TestIDTakenByAnotherTarget(t *testing.T) {
	b, r := newBetween(t)
	for verb, more := range map[string]string{"cancel": "", "fire": "", "reschedule": `,"in":"1s"`, "requeue": ""} {
		for _, theirs := range []job.State{job.Pending, job.Dead} {
			id := fmt.Sprint(verb, theirs)
			if verb == "requeue" {
				r.end(job.Bury, "orders.x", id)
			} else {
				r.put("orders.x", id)
			}
			b.next(func() {
				r.drop(b, id)
				if theirs == job.Pending {
					r.put("bills.x", id)
				} else {
					r.end(job.Bury, "bills.x", id)
				}
			})
			a := r.ask(verb+".orders.x", fmt.Sprintf(`{"id":%q%s}`, id, more))
			if c := read[api.Change](t, a.body); c != (api.Change{ID: api.ID(id), Result: job.ResultUnknown}) || a.code != 404 {
				t.Errorf("%s, and theirs is %s: %d %+v", verb, theirs, a.code, c)
			}
			if i := r.state(id); i.State != theirs || i.Target != "bills.x" || theirs == job.Pending && i.Due < r.bridge.Now().Add(hour/2) {
				t.Errorf("after %s, their %s job is %+v", verb, theirs, i)
			}
		}
	}
}

// TestIDTakenByTheSameTarget: the job that has its id now may be changed, so it is.
func TestIDTakenByTheSameTarget(t *testing.T) {
	b, r := newBetween(t)
	for verb, want := range map[string]job.State{"cancel": job.Cancelled, "reschedule": job.Pending} {
		r.put("orders.x", verb)
		b.next(func() {
			r.drop(b, verb)
			r.put("orders.x", verb)
		})
		body := fmt.Sprintf(`{"id":%q}`, verb)
		if verb == "reschedule" {
			body = fmt.Sprintf(`{"id":%q,"in":"9h"}`, verb)
		}
		if got := must[api.Change](r, verb+".orders.x", body); got.Result != job.ResultDone {
			t.Errorf("%s: %+v", verb, got)
		}
		if i := r.state(verb); i.State != want || verb == "reschedule" && i.Due < r.bridge.Now().Add(8*hour) {
			t.Errorf("after %s: %+v", verb, i)
		}
	}
}

// TestPurgeLeavesWhatHasChanged: a purge removes what it has listed, and not what has
// become of it.
func TestPurgeLeavesWhatHasChanged(t *testing.T) {
	b, r := newBetween(t)
	r.end(job.Bury, "orders.x", "requeued", "dead")
	b.next(func() {
		list := []job.Reschedule{{ID: "requeued", Due: r.bridge.Now().Add(hour), Requeue: true}}
		if c, err := b.Store.Reschedule(t.Context(), list); err != nil || c[0].Result != job.ResultDone {
			t.Errorf("%+v, %v", c, err)
		}
	})
	if got := must[api.Purged](r, "purge", `{"target":"orders.x"}`); got != (api.Purged{Purged: 1}) {
		t.Errorf("dead ones: %+v", got)
	}
	r.put("orders.x", "taken", "pending")
	b.next(func() {
		r.drop(b, "taken")
		r.put("bills.x", "taken")
	})
	if got := must[api.Purged](r, "purge.orders.x", `{"state":"pending"}`); got != (api.Purged{Purged: 2}) {
		t.Errorf("pending ones: %+v", got)
	}
	for id, want := range map[string]job.State{"requeued": job.Cancelled, "dead": job.Cancelled, "pending": job.Cancelled, "taken": job.Pending} {
		if got := r.state(id); got.State != want {
			t.Errorf("%s is %s, want %s", id, got.State, want)
		}
	}
}

// TestCancelInAState: the caller may say which state it means.
func TestCancelInAState(t *testing.T) {
	stores(t, func(t *testing.T, r *rig) {
		cancel := func(id, state string, want api.Change) {
			t.Helper()
			a := r.ask("cancel", fmt.Sprintf(`{"id":%q,"state":%q}`, id, state))
			want.ID = api.ID(id)
			if got := read[api.Change](t, a.body); got != want || (a.code == 404) != (want.Result == job.ResultUnknown) {
				t.Errorf("cancel %s if %s: %d %+v, want %+v", id, state, a.code, got, want)
			}
		}
		r.put("orders.x", "p1")
		r.end(job.Bury, "orders.x", "d1")
		r.lease("orders.x", "r1")
		for _, state := range []string{"pending", "dead"} {
			cancel("r1", state, api.Change{Result: job.ResultRunning, Attempt: 1, Owner: "b9/w1"})
			cancel("nobody", state, api.Change{Result: job.ResultUnknown})
		}
		cancel("p1", "dead", api.Change{Result: job.ResultFinished})
		cancel("d1", "pending", api.Change{Result: job.ResultFinished, Attempt: 1})
		for _, state := range []string{"running", "done", "cancelled", "odd"} {
			r.refuses("cancel", fmt.Sprintf(`{"id":"p1","state":%q}`, state), job.ErrHeader, "state", state, "pending", "dead")
		}
		for id, want := range map[string]job.State{"p1": job.Pending, "d1": job.Dead} {
			if got := r.state(id).State; got != want {
				t.Errorf("%s is %s, want %s", id, got, want)
			}
		}
		cancel("p1", "pending", api.Change{Result: job.ResultDone})
		cancel("d1", "dead", api.Change{Result: job.ResultDone, Attempt: 1})
	})
}
