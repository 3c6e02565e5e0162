package adapter

import (
	"context"
	"time"

	"github.com/delaybridge/delaybridge/job"
)

const (
	// expirePoll is how often leases are looked at without being woken.
	expirePoll = time.Second
	// foreignGrace is, with a quarter of the lease, how much later a lease of
	// another bridge ends than the store knows: a job may have waited so long
	// between claim and publish.
	foreignGrace = time.Second
	// foreignPause is the shortest time between two looks while such leases are
	// due: they are found again each time.
	foreignPause = 100 * time.Millisecond
	// expireBatch is how many leases that ran out are handled at a time.
	expireBatch = 2048
)

// expireLoop ends deliveries whose lease ran out, of this and of crashed
// bridges, until ctx is done.
func (b *Bridge) expireLoop(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		case <-b.disp.wakeLease:
		}
		b.disp.nextLease.Store(int64(b.now().Add(expirePoll)))
		next := b.expireOnce(ctx)
		b.disp.nextLease.Store(int64(next))
		timer.Reset(max(time.Millisecond, next.Sub(b.now())))
	}
}

// expireOnce handles one batch of leases that ran out and returns when to
// look again.
func (b *Bridge) expireOnce(ctx context.Context) job.Time {
	now := b.now()
	call, cancel := b.unbroken(ctx)
	ds, next, err := b.store.Expired(call, now, expireBatch)
	cancel()
	poll := now.Add(expirePoll)
	if err != nil {
		b.storeFailed("expired", err)
		return poll
	}
	ended, spared := b.expire(ds, now)
	b.settleOrPass(ctx, ended)
	if len(ds) < expireBatch {
		b.disp.dropOrphans(now)
	}
	if spared > 0 {
		next = max(next, now.Add(foreignPause))
	}
	for i := range ended {
		if at := ended[i].At; ended[i].Outcome == job.Extend && (next == 0 || at < next) {
			next = at
		}
	}
	if next == 0 || next > poll {
		return poll
	}
	return next
}

// expire decides what becomes of deliveries whose lease ran out in the store;
// spared is how many of other bridges may still be running.
func (b *Bridge) expire(ds []job.Delivery, now job.Time) (out []settlement, spared int) {
	lost := orphans{}
	defer lost.tell(b)
	for i := range ds {
		d := &ds[i]
		s := settlement{Settlement: job.Settlement{Ref: d.Ref(), Target: d.Target}, until: now.Add(2 * expirePoll)} // then it is found again
		f, verdict, end := b.disp.expire(d, now)
		switch verdict {
		case leaseHeld:
			s.Outcome, s.At = job.Extend, end
		case leaseSpared:
			out = append(out, b.parkSilent(f)...)
			continue
		case leaseOver:
			owner, worker := job.SplitOwner(d.Owner)
			if f == nil && worker != "" && !(owner != b.cfg.ID && b.exchange.isLive(owner)) {
				lost.add(d.Owner, d.ID)
				b.disp.takeOver(*d, worker) // its heartbeats decide
				s.Outcome, s.At = job.Extend, now.Add(d.AckWait)
				break
			}
			if f == nil && owner != b.cfg.ID && (now < d.Deadline.Add(foreignGrace+d.AckWait/4) || b.disp.runs(worker, d.Ref())) {
				spared++ // the owner counts from the publish
				continue
			}
			if f == nil && !b.exchange.isLive(owner) {
				lost.add(d.Owner, d.ID)
			}
			b.metrics.expired.Inc()
			b.again(&s, d, -1, now)
			if s.trace = b.tracing.stored(d.Header); f != nil && f.trace.IsValid() {
				s.trace = f.trace
			}
			s.began = startOf(b.tracing)
		}
		out = append(out, s)
	}
	return out, spared
}

// runs reports whether a live worker has said that it has a delivery of a peer:
// that may not reach the store to renew the lease.
func (d *dispatcher) runs(worker string, ref job.Ref) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	w := d.workers[worker]
	return w != nil && w.strange[ref.Anywhere()]
}

type leaseVerdict uint8

const (
	leaseOver   leaseVerdict = iota // the attempt has failed
	leaseHeld                       // this bridge counts it as running still
	leaseSpared                     // nobody seems to be there: park
)

// expire looks a delivery up whose lease ran out in the store. A bridge counts
// a lease from the publish and the store from the claim, so it may not be
// over yet: then end is when it is.
func (d *dispatcher) expire(e *job.Delivery, now job.Time) (f *flight, v leaseVerdict, end job.Time) {
	at := d.ticks()
	d.mu.Lock()
	defer d.mu.Unlock()
	f = d.flights[e.ID]
	switch {
	case f == nil:
		return nil, leaseOver, 0
	case !f.Ref().Is(e.Ref()):
		if !f.gone && f.Incarnation == e.Incarnation && f.Attempt <= e.Attempt {
			d.lost(f) // a claim without an answer has leased the job anew
		}
		return nil, leaseOver, 0
	case f.gone:
		return f, leaseHeld, now.Add(expirePoll) // it is being settled
	case !f.sent:
		return f, leaseHeld, now.Add(f.AckWait)
	case f.leaseLeft(at) > 0:
		return f, leaseHeld, now.Add(f.leaseLeft(at))
	case !f.lane.settled && f.worker == nil && !f.lane.directed():
		if f.probe {
			f.Next = now // so that another job is the next probe
		}
		return f, leaseSpared, 0
	}
	d.drop(f)
	f.win.expired(f, at)
	wake(d.wakeFire)
	d.feed(f.lane)
	return f, leaseOver, 0
}

const (
	// orphanAge is how long after its lease a delivery is given up that the store
	// does not know any more.
	orphanAge = 5 * time.Second
	// orphanPause is the time between two looks for them.
	orphanPause = time.Second
)

// dropOrphans frees the slots of deliveries whose lease was over long ago and that
// the store, which has just told of all such leases, has not named: another
// bridge or an operator has ended them, or Redis has lost them.
func (d *dispatcher) dropOrphans(now job.Time) {
	at := d.ticks()
	d.mu.Lock()
	defer d.mu.Unlock()
	if now < d.orphansAt {
		return
	}
	d.orphansAt = now.Add(orphanPause)
	for _, f := range d.flights {
		if f.sent && !f.gone && f.leaseLeft(at) < -orphanAge {
			d.lost(f)
			delete(d.flights, f.ID)
		}
	}
	wake(d.wakeFire)
}

// parkSilent stops the target of f, on which nobody has ever settled anything.
// Somebody may have had f, so its number rises, but its budget is spared.
func (b *Bridge) parkSilent(f *flight) []settlement {
	out := b.park([]*flight{f}, silent)
	for i := range out {
		out[i].Spare = out[i].Ref.Is(f.Ref())
	}
	return out
}
