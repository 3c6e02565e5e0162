package adapter

import (
	"context"
	"encoding/json"

	"github.com/delaybridge/delaybridge/job"
	"github.com/delaybridge/delaybridge/subjects"
	"github.com/nats-io/nats.go"
)

// staleBody answers a heartbeat.
type staleBody struct {
	Stale []string `json:"stale"`
}

// answerLoop answers workers, until ctx is done. It asks the store about jobs
// that this bridge has not sent, so it may fall behind; what workers say is taken
// in without it.
func (b *Bridge) answerLoop(ctx context.Context) {
	var qs []*question
	for {
		select {
		case <-ctx.Done():
			return
		case <-b.questions.wake:
		}
		qs = b.questions.take(qs)
		b.answerAll(ctx, qs)
	}
}

// question is a heartbeat to be answered.
type question struct {
	*beat
	err   *job.Error // it cannot be read
	kind  string
	data  []byte
	reply string
	stale []string
}

// doubt is a token that only the store can judge.
type doubt struct {
	q   *question
	at  int // in q.running
	ref job.Ref
}

func (b *Bridge) answerAll(ctx context.Context, qs []*question) {
	var doubts []doubt
	for _, q := range qs {
		if q.err != nil {
			b.refuseWorker(q.reply, q.kind, q.err)
			continue
		}
		doubts = append(doubts, b.disp.judge(q)...)
	}
	b.settleDoubts(ctx, doubts)
	for _, q := range qs {
		if q.err == nil && q.reply != "" {
			data, _ := json.Marshal(staleBody{append([]string{}, q.stale...)}) // strings cannot fail
			b.respond(b.out, q.reply, data)
		}
	}
}

// refuseWorker answers what a worker sent and nobody can read.
func (b *Bridge) refuseWorker(reply, kind string, err *job.Error) {
	b.metrics.workerRefused(kind)
	b.log.worker.Log(b.cfg.Logger, "message of a worker refused", "kind", kind, "error", err)
	if reply != "" {
		data, _ := json.Marshal(struct { // codes and text cannot fail
			Error *job.Error `json:"error"`
		}{err})
		b.respond(b.out, reply, data)
	}
}

// judge finds which of the jobs that a worker runs are not its own by what this
// bridge has sent; it returns those that only the store knows about.
func (d *dispatcher) judge(q *question) (doubts []doubt) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for i, ref := range q.running {
		f := d.flights[ref.ID]
		switch {
		case f == nil:
			doubts = append(doubts, doubt{q, i, ref})
		case f.gone: // being settled: the next heartbeat will show
		case !f.Ref().Is(ref):
			if f.Incarnation != ref.Incarnation || f.Attempt >= ref.Attempt {
				q.stale = append(q.stale, q.Running[i])
			} else {
				doubts = append(doubts, doubt{q, i, ref})
			}
		case f.worker != nil && f.worker.id != q.Worker:
			q.stale = append(q.stale, q.Running[i])
		}
	}
	return doubts
}

// settleDoubts asks the store. What it cannot answer, and what another bridge
// may hold on its disk, is not judged.
func (b *Bridge) settleDoubts(ctx context.Context, doubts []doubt) {
	if len(doubts) == 0 {
		return
	}
	ids := make([]string, len(doubts))
	for i := range doubts {
		ids[i] = doubts[i].ref.ID
	}
	infos, errs := b.getAll(ctx, ids)
	for i := range doubts {
		if d := &doubts[i]; errs[i] == nil && !b.theirs(d, &infos[i]) {
			d.q.stale = append(d.q.stale, d.q.Running[d.at])
		}
	}
}

// theirs reports whether d is, or may be, the worker's present delivery. One
// whose bridge is gone is this one's from now on.
func (b *Bridge) theirs(d *doubt, info *job.Info) bool {
	switch {
	case info.State == "":
		return !b.exchange.nothingHidden()
	case info.State != job.Running || !info.Ref().Is(d.ref):
		return false
	}
	bridge, worker := job.SplitOwner(info.Owner)
	if worker != "" && worker != d.q.Worker {
		return false
	}
	if bridge == b.cfg.ID || !b.exchange.isLive(bridge) {
		b.disp.takeOver(deliveryOf(info), d.q.Worker)
	}
	return true
}

// deliveryOf is the delivery that info tells of.
func deliveryOf(in *job.Info) job.Delivery {
	return job.Delivery{
		Job: in.Job, Shard: in.Shard, Attempt: in.Attempt, Base: in.Base, Nonce: in.Nonce,
		Owner: in.Owner, Deadline: in.Next,
	}
}

// takeOver adopts a delivery that a worker has.
func (d *dispatcher) takeOver(e job.Delivery, worker string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.adopt(e, d.worker(worker))
}

// owned does what follows when a worker has become the owner of the delivery e.
func (b *Bridge) owned(e *settlement) {
	_, id := job.SplitOwner(e.Owner)
	d := b.disp
	d.mu.Lock()
	defer d.mu.Unlock()
	w := d.worker(id)
	f := d.flights[e.ID]
	switch {
	case f == nil && e.others:
		d.adopt(*e.delivery, w)
	case f != nil && !f.gone && f.Ref().Is(e.Ref) && f.worker != w:
		d.own(f, w)
		b.metrics.owned.observe(d.now().Sub(f.Next), f.trace)
		f.renew(d.now(), d.ticks())
		d.owners.claimed(f)
	}
}

// appendOwned appends the answer to a claim.
func (b *Bridge) appendOwned(dst []byte, e *settlement) []byte {
	wait := b.cfg.AckWait
	if e.delivery != nil {
		wait = e.delivery.AckWait
	}
	data, _ := json.Marshal(struct { // numbers cannot fail
		Attempt uint32 `json:"attempt"`
		WaitMS  int64  `json:"ack_wait_ms"`
	}{e.Attempt, wait.Milliseconds()})
	return append(append(dst, "+OK "...), data...)
}

// parseClaim reads the body of +CLAIM.
func parseClaim(data []byte) (worker string, _ *job.Error) {
	var body struct {
		Worker string `json:"worker"`
	}
	if err := json.Unmarshal(data, &body); err != nil {
		return "", job.ErrHeader.With(`+CLAIM: %v; send +CLAIM {"worker":"<name>"}`, err)
	}
	if err := subjects.CheckWorkerID(body.Worker); err != nil {
		return "", job.ErrHeader.With("+CLAIM: %v", err)
	}
	return body.Worker, nil
}

// stopWorkers ends the subscriptions to what workers say.
func stopWorkers(subs []*nats.Subscription) {
	for _, s := range subs {
		_ = s.Unsubscribe() // fails only when the connection is closed
	}
}
