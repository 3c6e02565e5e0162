package adapter

import (
	"context"
	"encoding/json"
	"strconv"
	"sync"
	"time"

	"github.com/delaybridge/delaybridge/internal/failpoint"
	"github.com/delaybridge/delaybridge/job"
	"github.com/delaybridge/delaybridge/subjects"
	"github.com/nats-io/nats.go"
	"go.opentelemetry.io/otel/trace"
)

const (
	// ownerLinger is how long owner messages are gathered.
	ownerLinger = 5 * time.Millisecond
	// keysPeriod is how often the keys that people see are written.
	keysPeriod = 100 * time.Millisecond
	// keysTimeout bounds one write of them.
	keysTimeout = time.Second
)

// ownerEvent is a change of owner, to be told.
type ownerEvent struct {
	worker   string
	ref      job.Ref
	trace    trace.SpanContext
	released bool
}

// owners notes who owns what for those who are to see it: peers, and people.
type owners struct {
	events *gather[ownerEvent]

	mu   sync.Mutex
	keys map[string]*job.OwnerUpdate // since the last write; nil: nobody is shown any
}

func newOwners(keys bool) *owners {
	o := &owners{events: newGather[ownerEvent]()}
	if keys {
		o.keys = map[string]*job.OwnerUpdate{}
	}
	return o
}

// claimed notes that f's worker owns it now.
func (o *owners) claimed(f *flight) {
	o.events.add(ownerEvent{worker: f.worker.id, ref: f.Ref(), trace: f.trace})
	o.update(f.worker.id, func(u *job.OwnerUpdate) { u.Added = append(u.Added, f.ID) })
}

// released notes that f's worker owns it no longer.
func (o *owners) released(f *flight) {
	o.events.add(ownerEvent{worker: f.worker.id, ref: f.Ref(), trace: f.trace, released: true})
	o.update(f.worker.id, func(u *job.OwnerUpdate) { u.Removed = append(u.Removed, f.ID) })
}

// beat notes a heartbeat of w, whose jobs it renews.
func (o *owners) beat(w *worker) {
	o.update(w.id, func(u *job.OwnerUpdate) {
		u.Beat, u.Kept = true, u.Kept[:0]
		for f := range w.flights {
			if f.sent {
				u.Kept = append(u.Kept, f.ID)
			}
		}
	})
}

// gone notes that w is gone.
func (o *owners) gone(w *worker) {
	o.update(w.id, func(u *job.OwnerUpdate) { u.Gone, u.Beat, u.Kept = true, false, nil })
}

func (o *owners) update(worker string, change func(*job.OwnerUpdate)) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.keys == nil {
		return
	}
	u := o.keys[worker]
	if u == nil {
		u = &job.OwnerUpdate{Worker: worker}
		o.keys[worker] = u
	}
	change(u)
}

// take returns what has changed since the last time, without the jobs that came
// and went meanwhile.
func (o *owners) take() []job.OwnerUpdate {
	o.mu.Lock()
	keys := o.keys
	o.keys = make(map[string]*job.OwnerUpdate, len(keys))
	o.mu.Unlock()
	out := make([]job.OwnerUpdate, 0, len(keys))
	for _, u := range keys {
		settleUpdate(u)
		out = append(out, *u)
	}
	return out
}

// settleUpdate leaves in u what holds after all of it: each job is added, kept or
// removed, by what was said of it last.
func settleUpdate(u *job.OwnerUpdate) {
	if len(u.Removed) == 0 {
		return
	}
	removed := make(map[string]int, len(u.Removed))
	for _, id := range u.Removed {
		removed[id]++
	}
	fresh := u.Added[:0]
	for _, id := range u.Added {
		if removed[id] > 0 {
			removed[id]--
			continue
		}
		fresh = append(fresh, id)
	}
	kept := u.Kept[:0]
	for _, id := range u.Kept {
		if removed[id] == 0 {
			kept = append(kept, id)
		}
	}
	gone := u.Removed[:0]
	for _, id := range u.Removed {
		if removed[id] > 0 {
			gone = append(gone, id)
		}
	}
	u.Added, u.Kept, u.Removed = fresh, kept, gone
}

// ownerLoop tells peers who owns what, until ctx is done.
func (b *Bridge) ownerLoop(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	var events []ownerEvent
	var buf []byte
	msg := nats.NewMsg("")
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-b.disp.owners.events.wake:
		}
		events = b.disp.owners.events.take(events)
		for i := range events {
			buf = b.tellOwner(msg, buf, &events[i])
		}
		sleepOrDone(ctx, timer, ownerLinger)
	}
}

// tellOwner publishes e. The client has copied msg and buf when it returns.
func (b *Bridge) tellOwner(msg *nats.Msg, buf []byte, e *ownerEvent) []byte {
	what := "claimed"
	if e.released {
		what = "released"
	}
	buf = append(buf[:0], `{"event":"`...)
	buf = append(buf, what...)
	buf = append(buf, `","job":`...)
	buf = appendJSONString(buf, e.ref.ID)
	buf = append(buf, `,"token":"`...)
	buf = subjects.AppendToken(buf, b.token(e.ref))
	buf = append(buf, `","attempt":`...)
	buf = strconv.AppendUint(buf, uint64(e.ref.Attempt), 10)
	buf = append(buf, `,"bridge":"`...)
	buf = append(buf, b.cfg.ID...)
	buf = append(buf, `"}`...)
	msg.Subject, msg.Data = subjects.Worker(b.cfg.Prefix, subjects.KindOwner, e.worker), buf
	clear(msg.Header)
	b.tracing.inject(e.trace, msg.Header)
	if err := b.out.PublishMsg(msg); err != nil {
		b.log.publish.Log(b.cfg.Logger, "owner of a job not told to peers", "worker", e.worker, "error", err)
	}
	failpoint.At(failpoint.OwnerTold)
	return buf
}

// token returns the wire form of ref at this bridge.
func (b *Bridge) token(ref job.Ref) subjects.Token {
	return subjects.Token{
		Store: b.storeByte, Shard: ref.Shard, Generated: ref.Generated, Incarnation: ref.Incarnation,
		Attempt: ref.Attempt, Nonce: ref.Nonce, ID: ref.ID,
	}
}

// keysLoop shows people who owns what, until ctx is done. While the store that
// bridges share is away nothing can be shown; later heartbeats make up for it.
func (b *Bridge) keysLoop(ctx context.Context) {
	if b.cfg.OwnerKeys == nil {
		return
	}
	tick := time.NewTicker(keysPeriod)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		updates := b.disp.owners.take()
		if len(updates) == 0 || b.exchange.store != nil && b.exchange.store.Mode() == job.ModeLocal {
			continue
		}
		call, cancel := context.WithTimeout(ctx, keysTimeout)
		if err := b.cfg.OwnerKeys.WriteOwners(call, updates); err != nil && ctx.Err() == nil {
			b.log.store.Log(b.cfg.Logger, "keys that show the owners of jobs not written", "error", err)
		}
		cancel()
	}
}

// ownerBody is an owner message of a peer.
type ownerBody struct {
	Event  string `json:"event"`
	Token  string `json:"token"`
	Bridge string `json:"bridge"`
}

// heardOwner takes in what a peer tells of a worker: its slots are in use, or
// free again.
func (b *Bridge) heardOwner(m *nats.Msg) {
	id, ok := subjects.ParseWorker(b.cfg.Prefix, subjects.KindOwner, m.Subject)
	var body ownerBody
	if !ok || json.Unmarshal(m.Data, &body) != nil || body.Bridge == b.cfg.ID {
		return
	}
	if t, err := subjects.ParseToken(body.Token); err == nil {
		b.disp.peerOwns(id, refOf(t), body.Event == "claimed")
	}
}

// peerOwns notes a job that a peer has given a worker, or that has ended.
func (d *dispatcher) peerOwns(id string, ref job.Ref, claimed bool) {
	ref = ref.Anywhere()
	d.mu.Lock()
	defer d.mu.Unlock()
	w := d.workers[id]
	switch {
	case w == nil:
	case claimed:
		w.foreign[ref] = 0
	default:
		delete(w.foreign, ref)
		d.freed(w)
	}
}
