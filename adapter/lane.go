package adapter

import (
	"time"

	"github.com/delaybridge/delaybridge/job"
	"go.opentelemetry.io/otel/trace"
)

// flight is one delivery under a lease that this bridge holds, from its claim
// to its end.
type flight struct {
	job.Delivery
	lane     *lane
	sent     bool              // published; before that it waits in a heap
	link     uint64            // how often the connection had been made anew before the publish
	probe    bool              // sent to find out whether a parked target takes jobs again
	gone     bool              // ended or given back
	direct   bool              // sent to its worker rather than to its target
	win      *window           // in which it counts once sent; nil: its worker's slots count
	worker   *worker           // who owns it; nil: a plain worker, whoever that is
	trace    trace.SpanContext // of its publish, or else the stored one
	seen     uint64            // the worker's heartbeat that listed it last
	absences int               // heartbeats in a row that did not
	since    ticks             // when it became ready; once sent: from when its lease and its age count
}

// ticks is a point in time by a clock that nobody sets, in microseconds: a lease
// of a worker and the age of a delivery do not change when the wall clock does.
type ticks int64

// sub returns t-u.
func (t ticks) sub(u ticks) time.Duration { return time.Duration(t-u) * time.Microsecond }

// tickClock returns a clock that begins now.
func tickClock() func() ticks {
	start := time.Now()
	return func() ticks { return ticks(time.Since(start)/time.Microsecond) + 1 }
}

// leaseLeft is how long the lease still lasts as the worker sees it: counted from
// the publish, not from the claim.
func (f *flight) leaseLeft(at ticks) time.Duration { return f.AckWait - at.sub(f.since) }

// renew begins the lease anew.
func (f *flight) renew(now job.Time, at ticks) {
	f.since, f.Deadline = at, now.Add(f.AckWait)
}

// ending is a settlement of f; at is what its outcome asks for, if anything.
func (f *flight) ending(o job.Outcome, at job.Time) settlement {
	return settlement{
		Settlement: job.Settlement{Ref: f.Ref(), Outcome: o, At: at, Target: f.Target, Due: f.Due},
		until:      f.Deadline, trace: f.trace,
	}
}

// why a target is parked.
type parkReason uint8

const (
	notParked    parkReason = iota
	noResponders            // nobody subscribes
	noPermission            // the bridge may not publish there
	silent                  // the first lease ran out and nothing was ever settled
)

// lane holds what the bridge knows of one target.
//
//	open ---503, no permission, first lease unsettled---> parked
//	parked --a probe is settled, or not refused---------> waiting
//	open ---window full for too long---------------------> waiting
//	waiting --nothing is left aside---------------------> open
//
// While a lane is parked or waiting, the store sets its due jobs aside and
// they are claimed from there: at most one per probe, or as the window has
// room. A lane of any state may be paused besides: then they stay there.
type lane struct {
	target  string
	win     *window
	ready   dueQueue // claimed and due, waiting for room
	active  bool     // listed in dispatcher.active
	settled bool     // a worker has settled something
	paused  bool     // by an operator: nothing is sent

	out       int      // deliveries sent and not ended
	stored    uint64   // times that jobs were set aside
	asked     uint64   // stored when jobs were claimed from there last
	waiting   bool     // the store may hold jobs set aside
	aside     int      // set-aside calls under way
	asideDue  job.Time // when the first job set aside is due, as far as known
	asideNext job.Time // when to claim it
	hungry    bool     // listed in dispatcher.hungry
	queued    bool     // listed in win.queue
	early     int      // deliveries in dispatcher.heap
	claimedAt job.Time // when jobs set aside were claimed last
	ended     int      // deliveries that ended since
	ahead     int      // jobs to claim beyond the window's room, see measure
	blockedAt int      // index in dispatcher.blocked, -1: not there

	parked     parkReason
	probeAt    job.Time
	probeDelay time.Duration
	probing    bool // a probe was published and not refused so far

	workers  []*worker // who take its jobs on their own subjects; none: its target gets them
	turn     int       // which of them is first
	starving bool      // it waits for one of their slots

	lastUsed job.Time
}

// patience is how long a due job may wait for room in its window, where it
// holds up the jobs of other targets, before the lane's jobs are set aside.
const patience = 250 * time.Millisecond

// blocks reports whether the store must set the lane's due jobs aside.
func (l *lane) blocks() bool { return l.paused || l.directed() || l.busyAside() }

// busyAside reports whether the store holds jobs of the lane aside, or may.
func (l *lane) busyAside() bool { return l.parked != notParked || l.waiting || l.aside > 0 }

// canSend reports whether the next ready job may be published.
func (l *lane) canSend() bool {
	if l.ready.len() == 0 || l.paused {
		return false
	}
	f := l.ready.top()
	return f.probe || f.worker != nil || l.parked == notParked && l.win.room() > 0
}

// hunger is how many jobs set aside the lane should claim now. A waiting lane
// claims when a quarter of its window is free, so that a round trip is worth
// its while and the worker never runs dry.
func (l *lane) hunger() int {
	if !l.wanting() {
		return 0
	}
	return l.worthwhile(l.room())
}

// room is how many more of its jobs the lane can take.
func (l *lane) room() int { return l.win.room() + l.ahead - l.ready.len() }

// worthwhile is n, or zero when so few are not worth a claim.
func (l *lane) worthwhile(n int) int {
	if n < max(1, l.win.size/4) {
		return 0
	}
	return n
}

// spare is how many jobs set aside that are not due yet the lane may claim: what
// its window has room for besides all that was claimed ahead for it already.
func (l *lane) spare() int {
	if l.directed() {
		return l.spareSlots()
	}
	return l.worthwhile(l.room() - l.win.early)
}

// wanting reports whether the lane has jobs set aside that it may send.
func (l *lane) wanting() bool { return l.waiting && l.parked == notParked && !l.paused }

// measure notes a claim of jobs set aside at now. A fast lane claims ahead what
// it settles in half its patience, so that the next round trip overlaps with
// the work; a slow one claims nothing that would have to go back.
func (l *lane) measure(now job.Time) {
	l.ahead = 0
	if took := now.Sub(l.claimedAt); took > 0 && l.claimedAt != 0 {
		l.ahead = min(int(int64(l.ended)*int64(patience/2)/int64(took)), l.win.size)
	}
	l.claimedAt, l.ended = now, 0
}

// idle reports whether the lane can be forgotten.
func (l *lane) idle() bool {
	return !l.busyAside() && l.ready.len() == 0 && l.out == 0
}
