package adapter

import (
	"iter"
	"slices"
	"time"

	"github.com/delaybridge/delaybridge/job"
)

// stagnant takes back the ready jobs of lanes whose first one has waited for
// room too long, so that they can be set aside. With overdue set, claims lag so
// far behind that lanes which do move make way for the others as well.
func (d *dispatcher) stagnant(overdue bool) (aside []*flight) {
	d.mu.Lock()
	defer d.mu.Unlock()
	overdue = overdue && len(d.lanes) > 1
	for _, l := range d.active {
		if l.ready.len() == 0 || l.canSend() && !overdue {
			continue
		}
		if d.endures(l) < 0 || overdue && l.ready.len() > maxClaimed/2 {
			aside = append(aside, d.takeReady(l)...)
		}
	}
	return aside
}

// endures is how much longer l's ready jobs may wait for room: not long when they
// keep those of other targets from being claimed, else a good part of their
// lease. d.mu is held.
func (d *dispatcher) endures(l *lane) time.Duration {
	wait := patience
	if !d.starved { // there is room for theirs
		wait = max(wait, l.ready.top().AckWait/4)
	}
	return wait - d.ticks().sub(l.ready.top().since)
}

// takeReady empties l.ready for setting aside, and takes what is not due yet as
// well: it must not overtake the others. d.mu is held.
func (d *dispatcher) takeReady(l *lane) []*flight {
	var taken []*flight
	take := func(fs iter.Seq[*flight]) {
		for f := range fs {
			if f.lane == l && !f.gone {
				d.drop(f)
				taken = append(taken, f)
			}
		}
	}
	take(l.ready.all())
	if l.early > 0 {
		take(d.heap.all())
	}
	l.ready = dueQueue{}
	d.claimed -= len(taken)
	d.madeRoom()
	l.aside += len(taken)
	d.block(l)
	return taken
}

// putAside ends f, for which a call that sets its job aside follows. d.mu is held.
func (d *dispatcher) putAside(f *flight) {
	d.drop(f)
	f.lane.aside++
	d.block(f.lane)
}

// putOff takes f back, which reached nobody, when its target has workers that own
// their jobs and so cannot be parked: f is one that no worker settles.
func (d *dispatcher) putOff(f *flight) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if f.gone || !f.lane.directed() || f.Ack == job.AckWorker {
		return false
	}
	d.drop(f)
	f.win.returned()
	d.feed(f.lane)
	return true
}

// park stops a target: f never reached a worker. It returns what must be set
// aside: f and the lane's ready jobs.
func (d *dispatcher) park(f *flight, why parkReason, now job.Time) []*flight {
	d.mu.Lock()
	defer d.mu.Unlock()
	if f.gone {
		return nil
	}
	l := f.lane
	f.win.returned()
	d.putAside(f)
	if l.directed() { // its workers have joined meanwhile
		return []*flight{f}
	}
	d.parkLane(l, why, now)
	d.feed(l) // others of a shared window
	return append(d.takeReady(l), f)
}

// parkLane marks l as parked and plans its next probe. d.mu is held.
func (d *dispatcher) parkLane(l *lane, why parkReason, now job.Time) {
	if l.parked == notParked {
		l.probeDelay = d.probeMin
		l.probeAt = now.Add(l.probeDelay)
	} else if l.probing {
		l.probeDelay = min(2*l.probeDelay, d.probeMax)
		l.probeAt = now.Add(l.probeDelay)
	}
	l.parked, l.probing = why, false
	d.block(l)
	d.planProbe(l.probeAt)
}

// planProbe makes sure that the claimer looks for probes at t. d.mu is held.
func (d *dispatcher) planProbe(t job.Time) {
	if d.probes == 0 || t < d.probes {
		d.probes = t
	}
	d.due(t)
}

// unpark lets a target's jobs flow again. d.mu is held.
func (d *dispatcher) unpark(l *lane) {
	if l.parked == notParked {
		return
	}
	l.parked, l.probing = notParked, false
	if !l.blocks() {
		d.unblock(l)
	}
	d.feed(l)
}

// feed queues l, if it has jobs set aside, for room in its window, and lists
// the first lane of that queue when there is room for it. Lanes that share a
// window take turns. d.mu is held.
func (d *dispatcher) feed(l *lane) {
	if l.hungry && l.asideNext < d.claimerAt {
		wake(d.wakeClaim)
	}
	if l.directed() {
		d.feedDirected(l)
		return
	}
	w := l.win
	if l.wanting() && !l.hungry && !l.queued {
		l.queued = true
		w.queue = append(w.queue, l)
	}
	for len(w.queue) > 0 {
		first := w.queue[0]
		if first.wanting() && first.hunger() == 0 {
			return
		}
		first.queued = false
		w.queue = slices.Delete(w.queue, 0, 1)
		if first.wanting() {
			d.listHungry(first)
			return
		}
	}
}

// listHungry lists l to be claimed from. d.mu is held.
func (d *dispatcher) listHungry(l *lane) {
	l.hungry = true
	d.hungry = append(d.hungry, l)
	if l.asideNext < d.claimerAt {
		wake(d.wakeClaim)
	}
}

// sleepUntil is when the claimer is needed again, at the latest at next: lanes
// may have been listed since it looked.
func (d *dispatcher) sleepUntil(next job.Time) job.Time {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, l := range d.hungry {
		next = min(next, l.asideNext)
	}
	d.claimerAt = next
	return next
}

// wakeUp notes that the claimer looks at everything.
func (d *dispatcher) wakeUp() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.claimerAt = 0
}

// block lists l among the lanes whose due jobs are set aside, at the front.
// d.mu is held.
func (d *dispatcher) block(l *lane) {
	if l.blockedAt < 0 {
		l.blockedAt = len(d.blocked)
		d.blocked = append(d.blocked, l)
	}
	first := d.blocked[0]
	d.blocked[0], d.blocked[l.blockedAt] = l, first
	first.blockedAt, l.blockedAt = l.blockedAt, 0
}

// unblock takes l off that list. d.mu is held.
func (d *dispatcher) unblock(l *lane) {
	if l.blockedAt < 0 {
		return
	}
	n := len(d.blocked) - 1
	last := d.blocked[n]
	d.blocked[l.blockedAt], last.blockedAt = last, l.blockedAt
	d.blocked[n] = nil
	d.blocked = d.blocked[:n]
	l.blockedAt = -1
}

// blockedTargets returns the targets whose due jobs the next claim must set
// aside.
func (d *dispatcher) blockedTargets() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	out := make([]string, 0, min(len(d.blocked), maxBlocked))
	for _, l := range d.blocked[:cap(out)] {
		out = append(out, l.target)
	}
	return out
}

// wereSetAside takes in for which targets a claim has set jobs aside.
func (d *dispatcher) wereSetAside(aside []job.Aside) {
	if len(aside) == 0 {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, a := range aside {
		l := d.lane(a.Target)
		if !l.waiting || a.Next < l.asideDue {
			d.nextAside(l, a.Next)
		}
		l.waiting = true
		l.stored++
		d.block(l)
		d.feed(l)
	}
}

// waitingTargets takes in targets that have jobs set aside in the store, for
// instance by a bridge that ran before.
func (d *dispatcher) waitingTargets(targets []string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, t := range targets {
		l := d.lane(t)
		l.waiting, l.asideDue, l.asideNext = true, 0, 0
		d.block(l)
		d.feed(l)
	}
}
