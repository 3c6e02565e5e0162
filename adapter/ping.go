package adapter

import (
	"strings"
	"time"

	"github.com/delaybridge/delaybridge/job"
	"github.com/delaybridge/delaybridge/subjects"
	"github.com/nats-io/nats.go"
)

const (
	// watchPeriod is how often workers are looked after.
	watchPeriod = 50 * time.Millisecond
	// suspicion is the shortest time between the two pings that must reach nobody
	// before a worker counts as gone.
	suspicion = 300 * time.Millisecond
	// linkGrace is how long after this bridge's own reconnect nobody counts as gone
	// for that: the others may not be back yet.
	linkGrace = 5 * time.Second
	// pingShare is the least time per worker from one round of pings to the next:
	// 1,000 workers are asked twice a second.
	pingShare = 500 * time.Microsecond
	// linkCheck bounds the check of this bridge's own connection before a worker is
	// given up that is not heard.
	linkCheck = time.Second
	// fewWorkers is how many of them may vanish together and be believed gone.
	fewWorkers = 4
)

// heardPong is the callback of answers to pings, the server's "no responders"
// among them.
func (b *Bridge) heardPong(m *nats.Msg) {
	id := m.Subject[strings.LastIndexByte(m.Subject, '.')+1:]
	if len(m.Data) == 0 && m.Header.Get(headerStatus) == "503" {
		b.signs.add(id)
		return
	}
	b.disp.pong(id)
}

// takeSigns draws the conclusions from pings that reached nobody.
func (b *Bridge) takeSigns() {
	for _, id := range b.signs.take(nil) {
		sent, aside := b.disp.unanswered(id, b.out.Stats().Reconnects)
		b.reassign(id, reasonDisconnected, sent, aside)
	}
}

// watchWorkers gives up workers whose heartbeats have ended and asks the others
// that hold jobs whether they are there. gap is how long nobody has looked.
func (b *Bridge) watchWorkers(at ticks, gap time.Duration) {
	if gap > 10*watchPeriod || !b.out.IsConnected() {
		b.disp.excuse(gap) // heartbeats may be on their way, or cannot come
	}
	silent := b.disp.silent(at, b.cfg.WorkerTTL)
	if len(silent) > 0 && b.out.FlushTimeout(linkCheck) != nil {
		b.disp.excuse(linkCheck)
		return // it is this bridge that is cut off
	}
	for _, w := range silent {
		sent, aside := b.disp.giveUp(w)
		b.reassign(w, reasonNoHeartbeat, sent, aside)
	}
	for _, id := range b.disp.toPing(at, b.cfg.WorkerPing, b.out.Stats().Reconnects) {
		b.ping(id)
	}
}

// ping asks a worker whether it is there.
func (b *Bridge) ping(id string) {
	// What cannot be sent is not answered either, and that proves nothing.
	_ = b.out.PublishRequest(subjects.Worker(b.cfg.Prefix, subjects.KindPing, id), b.pongs+"."+id, nil)
}

// reassign gives the jobs of a worker that is gone to others. What it had counts
// as an attempt: it may be what ended the worker.
func (b *Bridge) reassign(worker, why string, sent, aside []*flight) {
	if len(sent)+len(aside) == 0 {
		return
	}
	now := b.now()
	for _, f := range sent {
		s := f.ending(job.Retry, now)
		b.again(&s, &f.Delivery, 0, now)
		b.settler.add(s)
	}
	b.settler.add(asideSettlements(aside)...)
	b.metrics.recovered(why, len(sent))
	b.orphaned(worker, why, sent, aside)
	b.log.worker.Log(b.cfg.Logger, "worker is gone, its jobs go to others", "worker", worker, "why", why, "jobs", len(sent)+len(aside))
}

// pong notes that a worker is connected.
func (d *dispatcher) pong(id string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if w := d.workers[id]; w != nil {
		w.answered = true
		if w.suspect != 0 {
			w.suspect = 0
			d.freed(w)
		}
	}
}

// unanswered notes that a ping has reached nobody, and returns what the worker
// has if it must be gone.
func (d *dispatcher) unanswered(id string, link uint64) (sent, aside []*flight) {
	at := d.ticks()
	d.mu.Lock()
	defer d.mu.Unlock()
	d.noteLink(link, at)
	w := d.workers[id]
	switch {
	case w == nil || !w.answered: // it may not be allowed to answer
		return nil, nil
	case w.suspect == 0:
		w.suspect = at
		return nil, nil
	case at.sub(w.suspect) < suspicion || w.pinged <= w.suspect:
		return nil, nil
	case at.sub(d.linked) < linkGrace && d.linked != 0 || d.manyVanish():
		return nil, nil // the fault is more likely between
	}
	return d.removeWorker(w)
}

// noteLink notes reconnects of this bridge. d.mu is held.
func (d *dispatcher) noteLink(link uint64, at ticks) {
	if link == d.link {
		return
	}
	d.link, d.linked = link, at
	for _, w := range d.workers {
		w.heard = max(w.heard, at) // they may have lost their connections with it
	}
}

// manyVanish reports whether more than half of the workers, and not just a few,
// cannot be reached. d.mu is held.
func (d *dispatcher) manyVanish() bool {
	lost, all := 0, 0
	for _, w := range d.workers {
		if w.suspect != 0 {
			lost++
		}
		if !w.leaving || len(w.flights) > 0 {
			all++
		}
	}
	return all >= fewWorkers && 2*lost > all
}

// silent returns the workers without heartbeat for ttl.
func (d *dispatcher) silent(at ticks, ttl time.Duration) (ids []string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for id, w := range d.workers {
		if at.sub(w.heard) > ttl {
			ids = append(ids, id)
		}
	}
	return ids
}

// giveUp removes a worker.
func (d *dispatcher) giveUp(id string) (sent, aside []*flight) {
	d.mu.Lock()
	defer d.mu.Unlock()
	w := d.workers[id]
	if w == nil {
		return nil, nil
	}
	return d.removeWorker(w)
}

// excuse grants all workers the time in which nobody listened.
func (d *dispatcher) excuse(gap time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, w := range d.workers {
		w.heard += ticks(gap / time.Microsecond)
	}
}

// toPing returns the workers to be asked now: those that hold jobs, all at one
// time because each time has its cost, and any that cannot be reached.
func (d *dispatcher) toPing(at ticks, every time.Duration, link uint64) (ids []string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.noteLink(link, at)
	round := at.sub(d.pinged) >= max(every, time.Duration(len(d.workers))*pingShare)
	if round {
		d.pinged = at
	}
	for id, w := range d.workers {
		ask := round && len(w.flights) > 0
		if w.suspect != 0 {
			ask = at.sub(max(w.pinged, w.suspect)) >= suspicion
		}
		if ask {
			w.pinged = at
			ids = append(ids, id)
		}
	}
	return ids
}
