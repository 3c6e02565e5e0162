package adapter

import (
	"slices"
	"time"

	"github.com/delaybridge/delaybridge/job"
	"github.com/delaybridge/delaybridge/subjects"
)

// worker is a worker that owns its jobs, as this bridge knows it. The
// dispatcher's mu guards it.
//
//	live --a ping reaches nobody--> suspect --again, and no safeguard--> gone
//	     <--heartbeat, pong--------
//	live or suspect --farewell--> leaving --nothing left--> gone
//	any --no heartbeat for the TTL--> gone
type worker struct {
	id       string
	owner    string // of its leases
	patterns []string
	covers   subjects.Matcher // patterns
	capacity int
	busy     int              // slots in use for what is no bridge's job
	foreign  map[job.Ref]int  // jobs that it has of others, by how many heartbeats in a row did not list them
	strange  map[job.Ref]bool // jobs in its last heartbeat that are not of this bridge
	directed bool             // it takes jobs on a subject of its own
	leaving  bool

	heard    ticks // last heartbeat
	shown    ticks // when what people see of it was renewed last
	pinged   ticks // last ping
	answered bool  // it has answered one
	suspect  ticks // since when nothing reaches it, zero: not so
	missed   bool  // a job did not reach it since its last heartbeat
	strikes  int   // in how many beats in a row that was so
	struck   ticks // when last

	beats   uint64               // heartbeats taken in
	flights map[*flight]struct{} // what it has of this bridge
	lanes   []*lane              // what it serves
	next    int                  // which of them gets its next free slot, if that starves
}

const (
	// maxStrikes is how many beats in a row jobs may fail to reach a worker on its
	// own subject before they are published to their targets instead.
	maxStrikes = 2
	// strikeMemory is how long that lasts.
	strikeMemory = 30 * time.Second
)

// takes reports whether w takes jobs on its own subject.
func (w *worker) takes() bool {
	return w.directed && w.capacity > 0 && !w.leaving && w.strikes < maxStrikes
}

// free is how many more jobs w takes now.
func (w *worker) free() int {
	if w.suspect != 0 || !w.takes() {
		return 0
	}
	return max(0, w.capacity-w.busy-len(w.foreign)-len(w.flights))
}

// worker returns the worker of that id, made when it is new. d.mu is held.
func (d *dispatcher) worker(id string) *worker {
	w := d.workers[id]
	if w == nil {
		w = &worker{
			id: id, owner: job.OwnerOf(d.bridge, id), heard: d.ticks(),
			foreign: map[job.Ref]int{}, flights: map[*flight]struct{}{},
		}
		d.workers[id] = w
	}
	return w
}

// directed reports whether the lane's jobs are given to workers rather than
// published to its target.
func (l *lane) directed() bool { return len(l.workers) > 0 }

// cover makes w serve the lanes that it covers, and no others. It returns jobs
// that were claimed for the queue groups of these targets and must be set aside.
// d.mu is held.
func (d *dispatcher) cover(w *worker) (aside []*flight) {
	served := make(map[*lane]bool, len(w.lanes))
	lanes := w.lanes
	w.lanes = nil
	for _, l := range lanes {
		if w.takes() && w.covers.Match(l.target) {
			w.lanes, served[l] = append(w.lanes, l), true
		} else {
			d.unserve(l, w)
		}
	}
	if !w.takes() {
		return nil
	}
	for _, l := range d.lanes {
		if !served[l] && w.covers.Match(l.target) {
			aside = append(aside, d.serve(l, w)...)
		}
	}
	return aside
}

// serve adds w to the workers of l. d.mu is held.
func (d *dispatcher) serve(l *lane, w *worker) (aside []*flight) {
	first := !l.directed()
	l.workers, w.lanes = append(l.workers, w), append(w.lanes, l)
	if first {
		l.win.leave(l)
		l.parked, l.probing = notParked, false
		if l.ready.len()+l.early > 0 {
			aside = d.takeReady(l)
		}
		d.block(l)
	}
	d.feed(l)
	return aside
}

// unserve takes w away from l, which is a plain lane again without the last.
// d.mu is held.
func (d *dispatcher) unserve(l *lane, w *worker) {
	l.workers = slices.DeleteFunc(l.workers, func(o *worker) bool { return o == w })
	if l.directed() {
		return
	}
	d.notStarving(l)
	if !l.blocks() {
		d.unblock(l)
	}
	d.feed(l)
}

// notStarving takes l off the lanes that wait for a slot. d.mu is held.
func (d *dispatcher) notStarving(l *lane) {
	if l.starving {
		l.starving = false
		d.starving--
	}
}

// leave takes l out of the queue for room in w.
func (w *window) leave(l *lane) {
	if l.queued {
		l.queued = false
		w.queue = slices.DeleteFunc(w.queue, func(o *lane) bool { return o == l })
	}
}

// slots returns the free slots of l's workers, n in all and at most limit, each
// time with another worker first.
func (l *lane) slots(limit int) (slots []job.Slot, n int) {
	l.turn++
	for i := range l.workers {
		w := l.workers[(i+l.turn)%len(l.workers)]
		if free := min(w.free(), limit-n); free > 0 {
			slots = append(slots, job.Slot{Owner: w.owner, Free: free})
			n += free
		}
	}
	return slots, n
}

const (
	// slotLinger is how long the free slots of a lane are gathered before jobs are
	// claimed for them, unless a quarter of all is free, or many.
	slotLinger = 5 * time.Millisecond
	manySlots  = 64
	// fewSlots is how many slots to spare are worth a claim ahead.
	fewSlots = 4
)

// countSlots returns how many slots of l's workers are free, and how many there
// are.
func (l *lane) countSlots() (free, all int) {
	for _, w := range l.workers {
		free, all = free+w.free(), all+w.capacity
	}
	return free, all
}

// spareSlots is how many of the free slots of l's workers may be taken for jobs
// that are not due yet: not those that make up half of all, and none of a few.
func (l *lane) spareSlots() int {
	free, all := l.countSlots()
	if spare := free - (all+1)/2; spare >= fewSlots {
		return spare
	}
	return 0
}

// nextAside notes when the first of the jobs set aside for l is due. With room to
// spare they are claimed ahead, many at a time. d.mu is held.
func (d *dispatcher) nextAside(l *lane, due job.Time) {
	l.asideDue = due
	if l.asideNext = due; l.spare() > 0 {
		l.asideNext = due.Add(-d.ahead / 2)
	}
}

// feedDirected lists l, if it has jobs set aside, to be claimed from when a slot
// is free, or has it wait for one. d.mu is held.
func (d *dispatcher) feedDirected(l *lane) {
	d.notStarving(l)
	if !l.wanting() || l.hungry {
		return
	}
	free, all := l.countSlots()
	if free == 0 {
		l.starving = true
		d.starving++
		return
	}
	if free < manySlots && 4*free < all {
		l.asideNext = max(l.asideNext, l.claimedAt.Add(slotLinger))
	}
	d.listHungry(l)
}

// freed feeds lanes that wait for a slot of w, each in its turn. d.mu is held.
func (d *dispatcher) freed(w *worker) {
	if d.starving == 0 {
		return
	}
	free := w.free()
	for range w.lanes {
		if free <= 0 {
			return
		}
		w.next = (w.next + 1) % len(w.lanes)
		if l := w.lanes[w.next]; l.starving {
			d.feed(l)
			free--
		}
	}
}

// passOn offers slots that l has left free to other lanes. d.mu is held.
func (d *dispatcher) passOn(l *lane) {
	for _, w := range l.workers {
		if d.starving == 0 {
			return
		}
		d.freed(w)
	}
}

// own makes w the owner of f. d.mu is held.
func (d *dispatcher) own(f *flight, w *worker) {
	if f.worker == w || f.gone {
		return
	}
	if f.worker != nil {
		delete(f.worker.flights, f)
	}
	f.worker = w
	w.flights[f] = struct{}{}
}

// disown notes that f has ended. d.mu is held.
func (d *dispatcher) disown(f *flight) {
	w := f.worker
	if w == nil {
		return
	}
	delete(w.flights, f)
	if f.sent {
		d.owners.released(f)
	}
	d.freed(w)
}

// lose takes fs, which are w's, from it. What was not published yet, and what
// never reached it, goes aside again.
func (d *dispatcher) lose(fs []*flight) (sent, aside []*flight) {
	for _, f := range fs {
		switch {
		case f.gone:
		case f.sent:
			d.drop(f)
			f.win.returned()
			d.feed(f.lane)
			sent = append(sent, f)
		default:
			d.claimed--
			d.putAside(f)
			aside = append(aside, f)
		}
	}
	d.madeRoom()
	return sent, aside
}

// removeWorker forgets w and takes all that it has from it. d.mu is held.
func (d *dispatcher) removeWorker(w *worker) (sent, aside []*flight) {
	sent, aside = d.lose(w.all())
	delete(d.workers, w.id)
	d.owners.gone(w)
	w.leaving = true
	d.cover(w) // it takes nothing any more, so nothing has to go aside
	return sent, aside
}

// all returns what w has.
func (w *worker) all() []*flight {
	fs := make([]*flight, 0, len(w.flights))
	for f := range w.flights {
		fs = append(fs, f)
	}
	return fs
}

// undelivered takes back a job that was sent to a worker and reached nobody.
func (d *dispatcher) undelivered(f *flight) (aside []*flight) {
	at := d.ticks()
	d.mu.Lock()
	defer d.mu.Unlock()
	if f.gone {
		return nil
	}
	w := f.worker
	if w.suspect == 0 {
		w.suspect = at
	}
	w.missed, w.struck = true, at
	f.win.returned()
	d.putAside(f)
	return []*flight{f}
}

// adopt takes a delivery in that a worker has and that another bridge sent, or
// this one in its former life. d.mu is held.
func (d *dispatcher) adopt(e job.Delivery, w *worker) {
	if old := d.flights[e.ID]; old != nil {
		return // it is settled meanwhile, or this bridge's anyway
	}
	if e.Ack != job.AckWorker {
		return // no worker has it
	}
	e.Payload = nil
	f := &flight{Delivery: e, lane: d.lane(e.Target), sent: true, since: d.ticks()}
	f.lane.lastUsed = d.now()
	f.trace = d.tracing.stored(e.Header)
	f.Header = nil
	f.lane.out++
	d.flights[f.ID] = f
	d.own(f, w)
	d.owners.claimed(f)
}
