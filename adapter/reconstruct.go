package adapter

import (
	"context"
	"maps"
	"time"

	"github.com/delaybridge/delaybridge/job"
)

// The recovery loops; docs/workers.md.

const (
	// runningPeriod is how often RunningTaskRecovery looks at the store: at one
	// page of leases each time, so that all of them are seen in turn.
	runningPeriod = 5 * time.Second
	// pendingPeriod is how often PendingTaskReconciler looks for jobs set aside
	// that idle workers could have.
	pendingPeriod = 2 * time.Second
	// leasePage is how many leases are read at a time.
	leasePage = 1000
)

// recoverLoop runs ReconstructWorkerTasks when it is woken, at first and then
// whenever the shared store or a peer has come or gone, and RunningTaskRecovery
// and PendingTaskReconciler beside it, until ctx is done.
func (b *Bridge) recoverLoop(ctx context.Context) {
	running, pending := time.NewTicker(runningPeriod), time.NewTicker(pendingPeriod)
	defer running.Stop()
	defer pending.Stop()
	r := recovery{b: b, seen: map[job.Ref]ticks{}}
	cursor := ""
	for {
		select {
		case <-ctx.Done():
			return
		case <-b.reconstruct:
			r.reconstructWorkerTasks(ctx)
		case <-running.C:
			cursor, _ = r.recoverRunningTasks(ctx, cursor)
		case <-pending.C:
			b.reconcilePendingTasks()
		}
	}
}

// recovery takes leases in that are nobody's.
type recovery struct {
	b    *Bridge
	seen map[job.Ref]ticks // leases of this bridge that it did not hold, by when that was seen first
}

// reconstructWorkerTasks takes in all leases of workers whose bridge is gone, or
// was this one in a former life. An unreadable page ends it: it is woken again
// when the store is back, and the page is read again in its turn.
func (r *recovery) reconstructWorkerTasks(ctx context.Context) {
	for cursor, ok := r.recoverRunningTasks(ctx, ""); ok && cursor != ""; {
		cursor, ok = r.recoverRunningTasks(ctx, cursor)
	}
}

// recoverRunningTasks looks at one page of leases and returns where the next one
// begins. From then on a worker's heartbeats, or their end, decide about a lease
// that is taken in.
func (r *recovery) recoverRunningTasks(ctx context.Context, cursor string) (next string, ok bool) {
	b := r.b
	call, cancel := context.WithTimeout(ctx, b.cfg.StoreTimeout)
	defer cancel()
	page, err := b.leases(call, cursor)
	if err != nil {
		return "", false // the store says why elsewhere
	}
	now := b.now()
	lost := orphans{}
	defer lost.tell(b)
	for i := range page.Jobs {
		in := &page.Jobs[i]
		bridge, worker := job.SplitOwner(in.Owner)
		switch {
		case in.Owner == "": // whose it was is lost, so nobody will tell of it
			b.settler.add(settlement{
				Settlement: job.Settlement{Ref: in.Ref(), Outcome: job.Retry, At: now, Target: in.Target, Due: in.Due},
				until:      now.Add(in.AckWait),
			})
		case worker != "" && r.orphaned(in, bridge):
			if !b.disp.holds(in.ID) { // else it was taken over before
				lost.add(in.Owner, in.ID)
			}
			b.disp.takeOver(deliveryOf(in), worker)
		}
	}
	if page.Cursor == "" {
		r.forget()
	}
	return page.Cursor, true
}

// leases reads one page of leases: of this bridge's disk while those of the shared
// store cannot be read.
func (b *Bridge) leases(ctx context.Context, cursor string) (job.Page, error) {
	q := job.Query{State: job.Running, Limit: leasePage, Cursor: cursor}
	page, err := b.store.List(ctx, q)
	if l, ok := b.store.(leaseLister); ok && err != nil {
		return l.ListLocal(ctx, q)
	}
	return page, err
}

// orphaned reports whether nobody looks after a lease that bridge made, so that
// this one must. One of its own that it made in this life is being settled, most
// likely, or has just been made, unless that is still so a while later.
func (r *recovery) orphaned(in *job.Info, bridge string) bool {
	x := r.b.exchange
	if bridge != r.b.cfg.ID {
		return !x.isLive(bridge) && x.mine(in.ID)
	}
	if in.Next.Add(-in.AckWait) < r.b.started {
		return true
	}
	at := r.b.disp.ticks()
	first, known := r.seen[in.Ref()]
	if !known && !r.b.disp.holds(in.ID) {
		r.seen[in.Ref()] = at
	}
	return known && at.sub(first) > runningPeriod/2
}

// forget drops what was seen long ago.
func (r *recovery) forget() {
	at := r.b.disp.ticks()
	maps.DeleteFunc(r.seen, func(_ job.Ref, first ticks) bool { return at.sub(first) > time.Minute })
}

// holds reports whether a delivery of the job is here.
func (d *dispatcher) holds(id string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.flights[id] != nil
}

// reconcilePendingTasks has the claimer look for targets with jobs set aside
// while a worker is idle.
func (b *Bridge) reconcilePendingTasks() {
	if b.disp.idle() {
		b.disp.relearn.Store(true)
		wake(b.disp.wakeClaim)
	}
}

// idle reports whether a worker has nothing to do.
func (d *dispatcher) idle() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, w := range d.workers {
		if w.free() > 0 && len(w.flights) == 0 {
			return true
		}
	}
	return false
}
