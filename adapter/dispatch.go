package adapter

import (
	"cmp"
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
	now   func() job.Time
	ticks func() ticks

	mu        sync.Mutex
	heap      dueQueue           // claimed, not yet due
	flights   map[string]*flight // by job id: every lease this bridge holds, and those being settled
	lanes     map[string]*lane   // by target
	shared    []sharedWindow
	claimed   int      // jobs in heap and in all lanes' ready
	starved   bool     // the claimer waits for room
	active    []*lane  // lanes with ready jobs
	hungry    []*lane  // waiting lanes that may have room
	blocked   []*lane  // lanes whose due jobs are set aside, latest seen first
	probes    job.Time // when the next probe is due, zero: none planned
	orphansAt job.Time // when orphans are looked for again
	limit     func() int
	paused    subjects.Matcher // targets that operators have paused
	starving  int              // lanes that wait for a worker's slot
	claimerAt job.Time         // up to when the claimer sleeps; zero: it does not

	bridge  string // the id of this one
	workers map[string]*worker
	owners  *owners
	tracing *tracing
	renewal time.Duration // of what people see of owners
	ahead   time.Duration // how long before they are due jobs are claimed
	link    uint64        // how often the connection had been made anew
	linked  ticks         // when that was noticed
	pinged  ticks         // when workers were asked last whether they are there

	lookDue   atomic.Bool  // the claimer must look for what is due
	relearn   atomic.Bool  // the claimer must look for targets with jobs set aside
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
		now: now, ticks: tickClock(), limit: limit,
		tracing: newTracing(&cfg), bridge: cfg.ID, workers: make(map[string]*worker), owners: newOwners(cfg.OwnerKeys != nil), renewal: cfg.OwnerRenewal, ahead: cfg.ClaimAhead,
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
		d.lookDue.Store(true)
		wake(d.wakeClaim)
	}
}

// lane returns the target's lane, made when it is new. d.mu is held.
func (d *dispatcher) lane(target string) *lane {
	l := d.lanes[target]
	if l == nil {
		l = &lane{target: target, win: d.window(target), paused: d.paused.Match(target), blockedAt: -1}
		d.lanes[target] = l
		for _, w := range d.workers {
			if w.takes() && w.covers.Match(target) {
				d.serve(l, w)
			}
		}
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
	now, at := d.now(), d.ticks()
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, f := range inOrder(ds) {
		f.lane = d.lane(f.Target)
		f.lane.lastUsed = now
		if old := d.flights[f.ID]; old != nil && !old.gone {
			d.lost(old)
		}
		d.flights[f.ID] = f
		if !d.assign(f) || f.lane.paused || !fromAside && f.lane.blocks() {
			d.putAside(f)
			aside = append(aside, f)
			continue
		}
		d.claimed++
		f.probe = fromAside && f.lane.parked != notParked
		if f.Next <= now {
			d.makeReady(f, at)
			continue
		}
		f.lane.early++
		f.lane.win.early++
		d.heap.push(f)
	}
	if len(ds) > 0 {
		wake(d.wakeFire)
	}
	return aside
}

// assign makes the worker that f was leased to its owner; false: it is gone.
// d.mu is held.
func (d *dispatcher) assign(f *flight) bool {
	_, id := job.SplitOwner(f.Owner)
	if id == "" || f.Ack != job.AckWorker { // no worker settles it, so its target gets it
		return true
	}
	w := d.workers[id]
	if w == nil || !w.takes() {
		return false
	}
	d.own(f, w)
	f.direct = true
	return true
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
func (d *dispatcher) makeReady(f *flight, at ticks) {
	f.since = at
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
		f.win.expired(f, d.ticks())
		d.feed(f.lane)
	} else {
		d.claimed--
		d.madeRoom()
	}
}

// ended forgets a delivery that the store does not know any more: somebody else
// has ended it.
func (d *dispatcher) ended(ref job.Ref) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if f := d.flights[ref.ID]; f != nil && !f.gone && f.Ref().Is(ref) {
		d.lost(f)
		delete(d.flights, ref.ID)
		wake(d.wakeFire)
	}
}

// madeRoom wakes the claimer when it waits for room and there is some. d.mu is
// held.
func (d *dispatcher) madeRoom() {
	if d.starved && maxClaimed-d.claimed >= minRoom {
		d.starved = false
		d.lookDue.Store(true)
		wake(d.wakeClaim)
	}
}

// drop ends a lease that this bridge no longer answers for. It stays in
// d.flights until the settlement that follows is durable: the store may find
// the lease run out meanwhile. d.mu is held.
func (d *dispatcher) drop(f *flight) {
	f.gone = true
	if f.sent {
		f.lane.out--
	}
	d.disown(f)
}

// collect moves what is due at now to its lane and returns, appended to
// batch, up to cap(batch) jobs that their windows let through, counted as
// sent at now. next is when the following job is due, zero: none.
func (d *dispatcher) collect(now job.Time, batch []*flight) (_ []*flight, next job.Time, more bool) {
	at := d.ticks()
	d.mu.Lock()
	defer d.mu.Unlock()
	for f := d.heap.top(); f != nil && f.Next <= now; f = d.heap.top() {
		d.heap.pop()
		f.lane.early--
		f.lane.win.early--
		if !f.gone {
			d.makeReady(f, at)
		}
	}
	keep := d.active[:0]
	for _, l := range d.active {
		for len(batch) < cap(batch) && l.canSend() {
			if f := l.ready.pop(); !f.gone {
				batch = append(batch, d.send(f, now, at))
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
	d.madeRoom()
	return batch, next, more
}

// send counts f as published at now. d.mu is held.
func (d *dispatcher) send(f *flight, now job.Time, at ticks) *flight {
	f.sent = true
	f.renew(now, at)
	d.claimed--
	f.lane.out++
	if !f.direct {
		f.win = f.lane.win
	}
	f.win.sent(f)
	f.lane.lastUsed = now
	if f.probe {
		f.lane.probing = true
	}
	if int64(f.Deadline) < d.nextLease.Load() {
		wake(d.wakeLease)
	}
	return f
}

// settled forgets deliveries that have ended in the store, and notes which
// settlements have set jobs aside there, so that they can be claimed.
func (d *dispatcher) settled(s []settlement) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for i := range s {
		if f := d.flights[s[i].ID]; f != nil && f.gone && f.Ref().Is(s[i].Ref) && s[i].Outcome != job.Extend {
			delete(d.flights, f.ID)
		}
		l := s[i].lane
		if l == nil {
			continue
		}
		l.aside--
		l.stored++
		l.waiting, l.asideDue, l.asideNext = true, 0, 0
		d.block(l)
		if l.parked == notParked {
			d.feed(l)
		} else {
			d.planProbe(l.probeAt)
		}
	}
}

// forget drops lanes that were not used for laneMemory.
func (d *dispatcher) forget(now job.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for t, l := range d.lanes {
		if l.idle() && now.Sub(l.lastUsed) > laneMemory {
			delete(d.lanes, t)
			d.unblock(l)
			d.notStarving(l)
			for _, w := range l.workers {
				w.lanes = slices.DeleteFunc(w.lanes, func(o *lane) bool { return o == l })
			}
		}
	}
}
