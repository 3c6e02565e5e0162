package adapter

import (
	"cmp"
	"iter"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/delaybridge/delaybridge/job"
	"github.com/delaybridge/delaybridge/subjects"
)

const (
	// maxClaimed bounds the jobs that are claimed and not yet published. A
	// burst needs about 2,048 at hand to be ready when it starts.
	maxClaimed = 3072
	// minRoom is the room worth a claim.
	minRoom = maxClaimed / 4
	// maxBlocked is how many blocked targets one claim names.
	maxBlocked = 64
	// laneMemory is how long an unused lane keeps its window.
	laneMemory = time.Minute
)

// dispatcher holds every delivery of this bridge between claim and end.
//
// claimer -> heap (not yet due) -> lane.ready (due) -> published -> settled.
// The claimer fills the heap, the firer empties it, the settler and the
// expirer end what was published. All share mu; none holds it across I/O.
type dispatcher struct {
	now func() job.Time

	mu      sync.Mutex
	heap    dueQueue           // claimed, not yet due
	flights map[string]*flight // by job id: every lease this bridge holds, and those being settled
	lanes   map[string]*lane   // by target
	shared  []sharedWindow
	claimed int      // jobs in heap and in all lanes' ready
	starved bool     // the claimer waits for room
	active  []*lane  // lanes with ready jobs
	hungry  []*lane  // waiting lanes that may have room
	blocked []*lane  // lanes whose due jobs are set aside, latest seen first
	probes  job.Time // when the next probe is due, zero: none planned
	limit   func() int

	nextClaim atomic.Int64 // job.Time up to which the claimer sleeps
	wakeClaim chan struct{}
	wakeFire  chan struct{}
	wakeLease chan struct{}
	nextLease atomic.Int64 // job.Time up to which the expirer sleeps
	probeMin  time.Duration
	probeMax  time.Duration
}

// sharedWindow is one window for all targets that match a pattern.
type sharedWindow struct {
	match subjects.Matcher
	win   *window
}

func newDispatcher(cfg Config, now func() job.Time, limit func() int) (*dispatcher, error) {
	d := &dispatcher{
		now: now, limit: limit,
		flights: make(map[string]*flight), lanes: make(map[string]*lane),
		wakeClaim: make(chan struct{}, 1), wakeFire: make(chan struct{}, 1), wakeLease: make(chan struct{}, 1),
		probeMin: cfg.ProbeMin, probeMax: cfg.ProbeMax,
	}
	for _, l := range cfg.Lanes {
		m, err := subjects.NewMatcher([]string{l.Pattern})
		if err != nil {
			return nil, err
		}
		d.shared = append(d.shared, sharedWindow{m, newWindow(l.MaxInFlight)})
	}
	return d, nil
}

// wake sets a flag channel without blocking.
func wake(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}

// due tells the claimer that a job due at t was stored.
func (d *dispatcher) due(t job.Time) {
	if int64(t) < d.nextClaim.Load() {
		wake(d.wakeClaim)
	}
}

// lane returns the target's lane, made when it is new. d.mu is held.
func (d *dispatcher) lane(target string) *lane {
	l := d.lanes[target]
	if l == nil {
		l = &lane{target: target, win: d.window(target), blockedAt: -1}
		d.lanes[target] = l
	}
	return l
}

func (d *dispatcher) window(target string) *window {
	for _, s := range d.shared {
		if s.match.Match(target) {
			return s.win
		}
	}
	return newWindow(d.limit())
}

// admit takes claimed deliveries in. It returns those that must be set aside
// at once, because their target turned out to be blocked.
func (d *dispatcher) admit(ds []job.Delivery, fromAside bool) (aside []*flight) {
	now := d.now()
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, f := range inOrder(ds) {
		f.lane = d.lane(f.Target)
		f.lane.lastUsed = now
		if old := d.flights[f.ID]; old != nil && !old.gone {
			d.lost(old)
		}
		d.flights[f.ID] = f
		if !fromAside && f.lane.blocks() {
			d.drop(f)
			f.lane.aside++
			d.block(f.lane)
			aside = append(aside, f)
			continue
		}
		d.claimed++
		f.probe = fromAside && f.lane.parked != notParked
		if fromAside || f.Next <= now {
			d.makeReady(f, now)
			continue
		}
		f.lane.early++
		d.heap.push(f)
	}
	if len(ds) > 0 {
		wake(d.wakeFire)
	}
	return aside
}

// inOrder makes flights of deliveries, those of one instant in the order in
// which they were taken in.
func inOrder(ds []job.Delivery) []*flight {
	flights, out := make([]flight, len(ds)), make([]*flight, len(ds))
	for i := range ds {
		flights[i].Delivery = ds[i]
		out[i] = &flights[i]
	}
	slices.SortFunc(out, func(a, b *flight) int {
		return cmp.Or(cmp.Compare(a.Next, b.Next), cmp.Compare(a.Incarnation, b.Incarnation))
	})
	return out
}

// makeReady queues a due job for its lane's window. d.mu is held.
func (d *dispatcher) makeReady(f *flight, now job.Time) {
	f.since = now
	f.lane.ready.push(f)
	if !f.lane.active {
		f.lane.active = true
		d.active = append(d.active, f.lane)
	}
}

// lost ends a delivery whose lease ran out unseen: the job was claimed anew.
// d.mu is held.
func (d *dispatcher) lost(f *flight) {
	d.drop(f)
	if f.sent {
		f.lane.win.expired()
		d.feed(f.lane)
	} else {
		d.claimed--
	}
}

// drop ends a lease that this bridge no longer answers for. It stays in
// d.flights until the settlement that follows is durable: the store may find
// the lease run out meanwhile. d.mu is held.
func (d *dispatcher) drop(f *flight) { f.gone = true }

// collect moves what is due at now to its lane and returns, appended to
// batch, up to cap(batch) jobs that their windows let through, counted as
// sent at now. next is when the following job is due, zero: none.
func (d *dispatcher) collect(now job.Time, batch []*flight) (_ []*flight, next job.Time, more bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for f := d.heap.top(); f != nil && f.Next <= now; f = d.heap.top() {
		d.heap.pop()
		if f.lane.early--; !f.gone {
			d.makeReady(f, now)
		}
	}
	keep := d.active[:0]
	for _, l := range d.active {
		for len(batch) < cap(batch) && l.canSend() {
			if f := l.ready.pop(); !f.gone {
				batch = append(batch, d.send(f, now))
			}
		}
		more = more || l.canSend()
		if l.active = l.ready.len() > 0; l.active {
			keep = append(keep, l)
		}
	}
	clear(d.active[len(keep):])
	d.active = keep
	if f := d.heap.top(); f != nil {
		next = f.Next
	}
	if d.starved && maxClaimed-d.claimed >= minRoom {
		d.starved = false
		wake(d.wakeClaim)
	}
	return batch, next, more
}

// send counts f as published at now. d.mu is held.
func (d *dispatcher) send(f *flight, now job.Time) *flight {
	f.sent, f.since = true, now
	d.claimed--
	f.lane.win.sent(f)
	f.lane.lastUsed = now
	if f.probe {
		f.lane.probing = true
	}
	if int64(f.leaseEnd()) < d.nextLease.Load() {
		wake(d.wakeLease)
	}
	return f
}

// stagnant takes back the ready jobs of lanes whose first one has waited for
// room too long, so that they can be set aside. With overdue set, claims lag so
// far behind that lanes which do move make way for the others as well.
func (d *dispatcher) stagnant(now job.Time, overdue bool) (aside []*flight) {
	d.mu.Lock()
	defer d.mu.Unlock()
	overdue = overdue && len(d.lanes) > 1
	for _, l := range d.active {
		if l.ready.len() == 0 || l.canSend() && !overdue {
			continue
		}
		if now > d.enduresUntil(l) || overdue && l.ready.len() > maxClaimed/2 {
			aside = append(aside, d.takeReady(l)...)
		}
	}
	return aside
}

// enduresUntil is how long l's ready jobs may wait for room: not long when they
// keep those of other targets from being claimed, else a good part of their
// lease. d.mu is held.
func (d *dispatcher) enduresUntil(l *lane) job.Time {
	wait := patience
	if !d.starved || len(d.lanes) == 1 {
		wait = max(wait, l.ready.top().AckWait/4)
	}
	return l.ready.top().since.Add(wait)
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
	l.aside += len(taken)
	d.block(l)
	return taken
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
	d.drop(f)
	l.win.returned()
	l.aside++
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
			first.hungry = true
			d.hungry = append(d.hungry, first)
			wake(d.wakeClaim)
			return
		}
	}
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

// settled forgets deliveries that have ended in the store, and notes which
// settlements have set jobs aside there, so that they can be claimed.
func (d *dispatcher) settled(s []settlement) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for i := range s {
		if f := d.flights[s[i].ID]; f != nil && f.gone && f.Ref() == s[i].Ref && s[i].Outcome != job.Extend {
			delete(d.flights, f.ID)
		}
		l := s[i].lane
		if l == nil {
			continue
		}
		l.aside--
		l.waiting, l.asideNext = true, 0
		d.block(l)
		if l.parked == notParked {
			d.feed(l)
		} else {
			d.planProbe(l.probeAt)
		}
	}
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

// waitingTargets takes in targets that have jobs set aside in the store, for
// instance by a bridge that ran before.
func (d *dispatcher) waitingTargets(targets []string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, t := range targets {
		l := d.lane(t)
		l.waiting = true
		d.block(l)
		d.feed(l)
	}
}

// forget drops lanes that were not used for laneMemory.
func (d *dispatcher) forget(now job.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for t, l := range d.lanes {
		if l.idle() && now.Sub(l.lastUsed) > laneMemory {
			delete(d.lanes, t)
		}
	}
}
