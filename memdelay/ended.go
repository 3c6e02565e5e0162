package memdelay

import (
	"time"

	"github.com/delaybridge/delaybridge/job"
)

// note is what is remembered of a job that ended.
type note struct {
	incarnation uint64
	nonce       uint64
	due, at     job.Time // at: when it ended
	target      string
	attempt     uint32
	cancelled   bool // otherwise it is done
	generated   bool
}

// note returns the id of e and the note that it ended at that time. Their
// strings are a copy: those of e would keep the whole record in memory.
func (e *entry) note(cancelled bool, at job.Time) (string, note) {
	id := e.id()
	text := id + e.target()
	n := note{
		incarnation: e.incarnation(), due: e.due(), at: at,
		target: text[len(id):], cancelled: cancelled, generated: e.generated(),
	}
	if e.run != nil {
		n.attempt, n.nonce = e.run.attempt, e.run.nonce
	}
	return text[:len(id)], n
}

// noteOf returns the id of i, a job that ended, and the note of that.
func noteOf(i *job.Info) (string, note) {
	text := string(append([]byte(i.ID), i.Target...)) // the strings of i may be part of more
	return text[:len(i.ID)], note{
		incarnation: i.Incarnation, nonce: i.Nonce, due: i.Due, at: i.Next, target: text[len(i.ID):],
		attempt: i.Attempt, cancelled: i.State == job.Cancelled, generated: i.Generated,
	}
}

func (n *note) state() job.State {
	if n.cancelled {
		return job.Cancelled
	}
	return job.Done
}

// ended remembers jobs that ended in two generations: the older one is dropped
// whole when the newer is as old as the window, or full.
type ended struct {
	window   time.Duration
	cap      int
	started  job.Time // when cur began
	cur, old map[string]note
}

func newEnded(window time.Duration, limit int) ended {
	return ended{window: window, cap: limit, cur: map[string]note{}}
}

func (d *ended) add(now job.Time, id string, n note) {
	if now >= d.started.Add(d.window) || len(d.cur) >= d.cap {
		d.old, d.cur, d.started = d.cur, map[string]note{}, now
	}
	d.cur[id] = n
}

// get returns what is known of id within the window before now, or nil.
func (d *ended) get(id string, now job.Time) *note {
	n, ok := d.cur[id]
	if !ok {
		n, ok = d.old[id]
	}
	if !ok || now >= n.at.Add(d.window) {
		return nil
	}
	return &n
}

// expire drops the generations that hold nothing within the window before now.
func (d *ended) expire(now job.Time) {
	if now >= d.started.Add(d.window) {
		d.old = nil
	}
	if now >= d.started.Add(2*d.window) && len(d.cur) > 0 {
		d.cur = map[string]note{}
	}
}

// drop forgets what is remembered of that incarnation of id.
func (d *ended) drop(id string, incarnation uint64) {
	for _, m := range []map[string]note{d.cur, d.old} {
		if n, ok := m[id]; ok && n.incarnation == incarnation {
			delete(m, id)
		}
	}
}

func (d *ended) len() int { return len(d.cur) + len(d.old) }
