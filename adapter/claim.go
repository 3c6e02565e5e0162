package adapter

import (
	"context"
	"time"

	"github.com/delaybridge/delaybridge/job"
)

const (
	// claimPoll is how often the claimer looks without being woken: for jobs
	// that other bridges stored.
	claimPoll = time.Second
	// waitingPoll is how often it looks for targets with jobs set aside that
	// it does not know of.
	waitingPoll = 10 * time.Second
	// probesPerRound bounds the probes between two claims, so that thousands
	// of parked targets do not hold up the others.
	probesPerRound = 16
	// verifyAfter is how long after the publish of a probe the server's "no
	// responders" must have come.
	verifyAfter = 25 * time.Millisecond
	// maxLag is how far claims may fall behind due times before a lane that has
	// most at hand makes way for the others.
	maxLag = 2 * time.Second
)

// claimLoop leases due jobs shortly before they are due, until ctx is done.
func (b *Bridge) claimLoop(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	var waitingAt, dueAt job.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		case <-b.disp.wakeClaim:
		}
		if !b.out.IsConnected() {
			timer.Reset(b.cfg.ClaimAhead)
			continue
		}
		now := b.now()
		if b.disp.relearn.Swap(false) || now >= waitingAt {
			waitingAt = now.Add(waitingPoll)
			b.learnWaiting(ctx)
			b.disp.forget(now)
		}
		b.disp.wakeUp()
		var next job.Time
		next, dueAt = b.claimOnce(ctx, now, dueAt)
		next = b.disp.sleepUntil(next)
		timer.Reset(max(0, next.Sub(b.now())))
	}
}

// unbroken bounds a call of the store that a stop must not break off: nobody
// would know what it has leased.
func (b *Bridge) unbroken(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), b.cfg.StoreTimeout)
}

func (b *Bridge) learnWaiting(ctx context.Context) {
	ctx, cancel := b.unbroken(ctx)
	defer cancel()
	targets, err := b.store.Waiting(ctx)
	if err != nil {
		b.storeFailed("list waiting targets", err)
		return
	}
	b.disp.waitingTargets(targets)
}

// claimOnce does one round of claims: what is due, unless nothing is before dueAt,
// what is set aside and has room now, and probes. It returns when the next round
// is needed, and when something may be due.
func (b *Bridge) claimOnce(ctx context.Context, now, dueAt job.Time) (next, due job.Time) {
	next = now.Add(claimPoll)
	earlier := func(t job.Time) {
		if t != 0 && t < next {
			next = t
		}
	}
	overdue := false
	if b.disp.lookDue.Swap(false) || now >= dueAt {
		dueAt, overdue = b.lookForDue(ctx, now)
	}
	earlier(dueAt)
	hungry, at := b.disp.takeHungry(now)
	earlier(at)
	probes, at := b.disp.takeProbes(now)
	earlier(at)
	for _, l := range append(hungry, probes...) {
		earlier(b.claimAside(ctx, l, now))
	}
	b.setAside(ctx, b.disp.stagnant(overdue))
	earlier(b.disp.patienceEnds(now))
	return next, dueAt
}

// lookForDue claims what is due and returns when to do so again, unless woken.
func (b *Bridge) lookForDue(ctx context.Context, now job.Time) (again job.Time, overdue bool) {
	// While the claim is under way, whatever is stored must wake the claimer
	// unless it would be woken in time anyway.
	poll := now.Add(claimPoll)
	b.disp.nextClaim.Store(int64(poll.Add(b.cfg.ClaimAhead)))
	again, overdue = b.claimDue(ctx, now)
	if again == 0 || again > poll {
		again = poll
	}
	b.disp.nextClaim.Store(int64(again.Add(b.cfg.ClaimAhead / 2)))
	return again, overdue
}

// claimDue claims scheduled jobs up to ClaimAhead before they are due. It
// returns when to claim again (zero: when woken), and whether what was claimed
// is overdue by more than maxLag.
func (b *Bridge) claimDue(ctx context.Context, now job.Time) (again job.Time, overdue bool) {
	room := b.disp.room()
	if room <= 0 {
		return 0, false // the firer wakes the claimer when there is room
	}
	r := job.ClaimRequest{Now: now, Until: now.Add(b.cfg.ClaimAhead), Max: room, Owner: b.cfg.ID, Blocked: b.disp.blockedTargets()}
	c, err := b.claim(ctx, r)
	switch {
	case err != nil:
		return now.Add(b.cfg.ClaimAhead), false
	case c.NextDue == 0:
		return 0, false
	case c.NextDue > r.Until:
		return c.NextDue - job.Time(b.cfg.ClaimAhead/2/time.Microsecond), false
	}
	if c.SetAside > len(c.Deliveries) {
		b.claimFront(ctx, r, c.Last)
	}
	return now, now.Sub(c.Last) > maxLag
}

// claimFront claims past a backlog of blocked targets that ends after last:
// what others have due now must not wait until all of it has been set aside.
func (b *Bridge) claimFront(ctx context.Context, r job.ClaimRequest, last job.Time) {
	r.Now = b.now()
	r.Until = r.Now.Add(b.cfg.ClaimAhead)
	r.From = max(last+1, r.Now.Add(-time.Second))
	r.Max = b.disp.room()
	if r.Max > 0 && r.From <= r.Until {
		_, _ = b.claim(ctx, r)
	}
}

// claim runs one claim and takes its deliveries in.
func (b *Bridge) claim(ctx context.Context, r job.ClaimRequest) (job.Claimed, error) {
	ctx, cancel := b.unbroken(ctx)
	defer cancel()
	c, err := b.store.Claim(ctx, r)
	if err != nil {
		b.storeFailed("claim", err)
		return c, err
	}
	b.disp.wereSetAside(c.Aside)
	live := b.buryUnfit(ctx, c.Deliveries)
	b.setAside(ctx, b.disp.admit(live, r.Target != ""))
	return c, nil
}

// claimAside claims jobs of l that were set aside: one probe when it is
// parked, else as many as its window has room for.
func (b *Bridge) claimAside(ctx context.Context, l *lane, now job.Time) job.Time {
	n, slots, ahead := b.disp.wants(l)
	if n <= 0 {
		return 0
	}
	c, err := b.claim(ctx, job.ClaimRequest{Now: now, Until: now.Add(ahead), Max: n, Owner: b.cfg.ID, Target: l.target, Slots: slots})
	if err != nil {
		b.disp.claimedAside(l, 0, now.Add(b.cfg.ClaimAhead))
		return now.Add(b.cfg.ClaimAhead)
	}
	b.disp.claimedAside(l, len(c.Deliveries), c.NextDue)
	return 0 // the lane is listed again when there is more
}

// buryUnfit sends jobs that may not be delivered any more to the dead-letter
// set and returns the others.
func (b *Bridge) buryUnfit(ctx context.Context, ds []job.Delivery) []job.Delivery {
	now := b.now()
	var dead []settlement
	live := ds[:0]
	for i := range ds {
		if reason := b.unfit(&ds[i], now); reason != "" {
			dead = append(dead, settlement{
				Settlement: job.Settlement{Ref: ds[i].Ref(), Outcome: job.Bury, Target: ds[i].Target, Reason: reason},
				until:      ds[i].Deadline, trace: b.tracing.stored(ds[i].Header), began: startOf(b.tracing),
			})
			continue
		}
		live = append(live, ds[i])
	}
	if len(dead) > 0 {
		b.settleOrPass(ctx, dead)
	}
	return live
}

func (b *Bridge) unfit(d *job.Delivery, now job.Time) string {
	if d.Expires != 0 && d.Expires < now {
		return "expired"
	}
	if b.checkTarget(d.Target) != nil {
		return "forbidden target"
	}
	return ""
}

// setAside gives jobs that their target cannot take now back to the store,
// apart from the scheduled ones.
func (b *Bridge) setAside(ctx context.Context, fs []*flight) {
	b.settleOrPass(ctx, asideSettlements(fs))
}

func asideSettlements(fs []*flight) []settlement {
	s := make([]settlement, len(fs))
	for i, f := range fs {
		s[i] = f.ending(job.SetAside, f.Next)
		s[i].lane = f.lane
	}
	return s
}

// room is how many more jobs may be claimed. When that is too few to be worth
// it, the firer wakes the claimer later.
func (d *dispatcher) room() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	if n := maxClaimed - d.claimed; n >= minRoom {
		return n
	}
	d.starved = true
	return 0
}

// patienceEnds is when the next ready job will have waited for too long,
// zero: none waits.
func (d *dispatcher) patienceEnds(now job.Time) (at job.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, l := range d.active {
		if l.ready.len() > 0 && !l.canSend() {
			if t := now.Add(d.endures(l) + time.Millisecond); at == 0 || t < at {
				at = t
			}
		}
	}
	if d.starved && at == 0 {
		return now.Add(patience) // what was claimed ahead will be due, and may have to wait
	}
	if at != 0 {
		at = max(at, now.Add(time.Millisecond))
	}
	return at
}

// takeHungry returns the waiting lanes that may have room and whose jobs set
// aside are due, and when the next of the others are due.
func (d *dispatcher) takeHungry(now job.Time) (out []*lane, next job.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	keep := d.hungry[:0]
	for _, l := range d.hungry {
		if l.asideNext > now {
			keep = append(keep, l)
			if next == 0 || l.asideNext < next {
				next = l.asideNext
			}
			continue
		}
		l.hungry = false
		out = append(out, l)
	}
	clear(d.hungry[len(keep):])
	d.hungry = keep
	return out, next
}

// wants is how many jobs set aside l should claim now, for whose slots, and how
// far ahead of their due times. Without room for them it stays listed until the
// firer has made some.
func (d *dispatcher) wants(l *lane) (n int, slots []job.Slot, ahead time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	l.asked = l.stored
	if l.paused {
		return 0, nil, 0 // its end lists the lane again
	}
	if l.parked != notParked {
		return 1, nil, 0
	}
	room := maxClaimed - d.claimed
	if room <= 0 {
		d.starved, l.hungry = true, true
		l.asideNext = max(l.asideNext, d.now().Add(slotLinger)) // there is plenty to send
		d.hungry = append(d.hungry, l)
		return 0, nil, 0
	}
	if l.directed() {
		if spare := l.spareSlots(); spare > 0 && l.asideDue > d.now() {
			room, ahead = min(room, spare), d.ahead
		}
		slots, n = l.slots(room)
	} else {
		n = l.hunger()
	}
	if n == 0 {
		d.feed(l)
		return 0, nil, 0
	}
	if l.measure(d.now()); !l.directed() {
		n = l.hunger() // measured anew
		if spare := l.spare(); spare > 0 {
			n, ahead = spare, d.ahead
		}
		n = min(n, room)
	}
	return n, slots, ahead
}

// claimedAside notes the outcome of a claim of n jobs set aside; next is when
// the first of the others is due, zero: none is left.
func (d *dispatcher) claimedAside(l *lane, n int, next job.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if l.stored != l.asked {
		next = d.now() // more was set aside meanwhile
	}
	if l.waiting = next != 0 || l.aside > 0; !l.waiting {
		if l.parked == notParked || (n == 0 && l.win.inFlight == 0) {
			l.parked = notParked
			if !l.blocks() {
				d.unblock(l)
			}
		}
		d.feed(l) // others of a shared window
		d.passOn(l)
		return
	}
	d.nextAside(l, next)
	switch {
	case l.parked == notParked:
		d.feed(l)
	case n == 0:
		l.probeAt = max(l.probeAt, next)
		d.planProbe(l.probeAt)
	}
	d.passOn(l)
}

// takeProbes returns parked lanes whose probe is due at now, and when the
// next one is.
func (d *dispatcher) takeProbes(now job.Time) (due []*lane, next job.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.probes == 0 || d.probes > now {
		return nil, d.probes
	}
	var open []*lane
	for _, l := range d.blocked {
		switch {
		case l.parked == notParked || l.paused:
			continue
		case l.probeAt > now || len(due) >= probesPerRound:
		case l.probing && l.parked != silent:
			open = append(open, l)
			continue
		default:
			d.probed(l, now)
			due = append(due, l)
		}
		if next == 0 || l.probeAt < next {
			next = l.probeAt
		}
	}
	d.probes = next
	for _, l := range open {
		d.unpark(l)
	}
	return due, next
}

// probed plans the step after the probe that is sent now: a probe that is not
// refused shows that somebody subscribes, and opens the lane; after silence
// only a settlement does. d.mu is held.
func (d *dispatcher) probed(l *lane, now job.Time) {
	if l.parked != silent {
		l.probeAt = now.Add(verifyAfter)
		return
	}
	l.probeDelay = min(2*l.probeDelay, d.probeMax)
	l.probeAt = now.Add(l.probeDelay)
}
