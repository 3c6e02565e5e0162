package adapter

import (
	"context"
	"time"

	"github.com/delaybridge/delaybridge/internal/failpoint"
	"github.com/delaybridge/delaybridge/job"
	"github.com/delaybridge/delaybridge/subjects"
	"github.com/nats-io/nats.go"
	"go.opentelemetry.io/otel/trace"
)

const (
	// settleBatch is how many settlements are worth a call of the store.
	settleBatch = 1024
	// settleLinger is how long settlements that nobody waits for are gathered.
	settleLinger = 5 * time.Millisecond
)

// settlement is a job.Settlement with what follows once it is durable.
type settlement struct {
	job.Settlement
	until    job.Time // when its lease is over, and it of no use any more
	lane     *lane    // SetAside: who waits for it to be durable
	reply    string   // who asked to be answered; empty: nobody
	replyTo  string   // who gets the result; empty: nobody
	result   []byte
	delivery *job.Delivery     // Own: of which one; nil: not known
	others   bool              // Own: it is not this bridge's
	tried    bool              // a call of the store with it has failed, and may have settled it
	trace    trace.SpanContext // what it follows from, as far as known
	began    time.Time         // when its span begins; zero: it has none
}

// settler takes acknowledgements in and has the store settle them, in two steps
// so that a slot is free as soon as its delivery is acknowledged, also while the
// store is at work.
type settler struct {
	acks  *gather[*nats.Msg]
	ended *gather[settlement]
	held  *gather[settlement] // to be tried again: the store that has the job could not be reached
}

func newSettler() *settler {
	return &settler{newGather[*nats.Msg](), newGather[settlement](), newGather[settlement]()}
}

// ack is the callback of the acknowledgement subscription.
func (s *settler) ack(m *nats.Msg) { s.acks.add(m) }

// add queues endings that this bridge decided on.
func (s *settler) add(e ...settlement) { s.ended.add(e...) }

// ackLoop turns what workers acknowledge into settlements, until stop is closed
// and nothing is left.
func (b *Bridge) ackLoop(ctx context.Context, stop <-chan struct{}) {
	var acks []*nats.Msg
	for {
		select {
		case <-b.settler.acks.wake:
		case <-stop:
			if b.settler.acks.empty() {
				return
			}
		}
		acks = b.settler.acks.take(acks)
		failpoint.At(failpoint.AckTaken)
		b.settler.add(b.translate(ctx, acks)...)
	}
}

// settleLoop settles what has ended, until stop is closed and nothing is left.
func (b *Bridge) settleLoop(ctx context.Context, stop <-chan struct{}) {
	linger, again := time.NewTimer(time.Hour), time.NewTicker(holdPause)
	defer linger.Stop()
	defer again.Stop()
	var batch, more []settlement
	var since time.Time // when the oldest of batch was taken
	for {
		select {
		case <-b.settler.ended.wake:
		case <-linger.C:
		case <-again.C:
			b.settleNow(ctx, b.settler.held.take(nil))
		case <-stop:
			if len(batch) == 0 && b.settler.ended.empty() {
				b.settleNow(ctx, b.settler.held.take(nil)) // a last time
				return
			}
		}
		if len(batch) == 0 {
			since = time.Now()
		}
		more = b.settler.ended.take(more)
		batch = append(batch, more...)
		if wait := settleLinger - time.Since(since); wait > 0 && !worthACall(batch) && !closed(stop) {
			linger.Reset(wait)
			continue
		}
		b.settleNow(ctx, batch)
		clear(batch)
		batch = batch[:0]
	}
}

func closed(ch <-chan struct{}) bool {
	select {
	case <-ch:
		return true
	default:
		return false
	}
}

// worthACall reports whether batch must not linger: it is large, or somebody
// waits for an answer.
func worthACall(batch []settlement) bool {
	if len(batch) >= settleBatch {
		return true
	}
	for i := range batch {
		if batch[i].reply != "" || batch[i].replyTo != "" {
			return true
		}
	}
	return false
}

// follow does what a settlement entails beyond its answer.
func (b *Bridge) follow(e *settlement) {
	switch e.Outcome {
	case job.Complete:
		if e.replyTo != "" {
			b.publishResult(e)
		}
	case job.Bury:
		b.log.dead.LogOf(e.trace, b.cfg.Logger, "job is dead", "id", e.ID, "target", e.Target, "reason", e.Reason, "attempt", e.Attempt)
		b.event(eventDead, deadEvent{Bridge: b.cfg.ID, ID: e.ID, Target: e.Target, Reason: e.Reason, Attempt: e.Attempt})
	case job.Retry, job.Release:
		b.disp.due(e.At)
	case job.Own:
		b.owned(e)
	}
}

func (b *Bridge) publishResult(e *settlement) {
	m := nats.NewMsg(e.replyTo)
	m.Header[headerJobID] = []string{e.ID}
	m.Data = e.result
	if err := b.out.PublishMsg(m); err != nil {
		b.cfg.Logger.Warn("result not published", "id", e.ID, "reply_to", e.replyTo, "error", err)
	}
}

// parsedAck is an acknowledgement on its way to becoming a settlement.
type parsedAck struct {
	ack
	ref    job.Ref
	reply  string
	policy *job.Delivery     // what the job says about retries; nil: not known
	looked bool              // policy is from the store: the delivery is not this bridge's
	trace  trace.SpanContext // of the worker, or else of the delivery
}

// translate returns what the acknowledgements ms ask for.
func (b *Bridge) translate(ctx context.Context, ms []*nats.Msg) []settlement {
	if len(ms) == 0 {
		return nil
	}
	parsed := make([]parsedAck, 0, len(ms))
	for _, m := range ms {
		if p, err := b.parseAckMsg(m); err != nil {
			b.refuse(m.Reply, err)
		} else if p.verb != verbMeaningless {
			parsed = append(parsed, p)
		}
	}
	return b.settlements(ctx, parsed)
}

// settlements returns what follows from parsed.
func (b *Bridge) settlements(ctx context.Context, parsed []parsedAck) []settlement {
	unanswered := b.disp.resolve(parsed, b.now())
	batch := make([]settlement, 0, len(parsed))
	batch = append(batch, b.unanswered(unanswered)...)
	b.lookup(ctx, parsed)
	now, began := b.now(), startOf(b.tracing)
	for i := range parsed {
		p := &parsed[i]
		if p.verb == verbUnanswered || p.verb == verbMeaningless {
			continue
		}
		s, err := b.outcome(p, now)
		if err != nil {
			b.refuse(p.reply, err)
			continue
		}
		s.began = began
		batch = append(batch, s)
	}
	return batch
}

func (b *Bridge) parseAckMsg(m *nats.Msg) (p parsedAck, _ *job.Error) {
	_, text, ok := subjects.ParseAck(b.cfg.Prefix, m.Subject)
	if !ok {
		return p, job.ErrHeader.With("not an acknowledgement subject: %q", cut(m.Subject, 64))
	}
	t, err := subjects.ParseToken(text)
	if err != nil {
		return p, job.ErrHeader.With("acknowledgement token: %v", err)
	}
	a, jerr := parseAck(m)
	if jerr != nil {
		return p, jerr
	}
	return parsedAck{ack: a, ref: refOf(t), reply: b.replySubject(m.Reply), trace: b.tracing.ofMsg(m)}, nil
}

// replySubject returns subject if an answer may go there, else "".
func (b *Bridge) replySubject(subject string) string {
	if subject == "" || !subjects.CheckReply(b.cfg.Prefix, subject) {
		return ""
	}
	if !b.trust.reply(subject) {
		b.log.reply.Log(b.cfg.Logger, "answer not sent", "subject", cut(subject, 128), "error", errReplyRefused)
		return ""
	}
	return subject
}

// resolve finds the deliveries that parsed is about among those this bridge
// holds, and ends or renews them at once, so that their slots are free while
// the store is being told. It returns those that nobody subscribes to.
func (d *dispatcher) resolve(parsed []parsedAck, now job.Time) (unanswered []*flight) {
	at := d.ticks()
	d.mu.Lock()
	defer d.mu.Unlock()
	freed := false
	for i := range parsed {
		p := &parsed[i]
		f := d.flights[p.ref.ID]
		if f == nil || f.gone || !f.sent || !f.Ref().Is(p.ref) || (p.verb == verbPubAck && f.Ack != job.AckStream) {
			continue
		}
		p.policy = &f.Delivery
		if !p.trace.IsValid() {
			p.trace = f.trace
		}
		switch p.verb {
		case verbUnanswered:
			unanswered = append(unanswered, f)
			continue
		case verbClaim:
			continue // it is the worker's when the store says so
		case verbProgress:
			f.renew(now, at)
		default:
			d.drop(f)
			f.win.settled(at)
			f.lane.ended++
			freed = true
			if f.direct && f.worker.strikes < maxStrikes {
				f.worker.strikes = 0
			}
		}
		f.lane.settled = true
		d.unpark(f.lane)
		d.feed(f.lane)
	}
	if freed {
		wake(d.wakeFire)
	}
	return unanswered
}

// lookup asks the store about deliveries that this bridge does not hold: of
// another bridge, or from before a restart. A plain completion needs nothing.
func (b *Bridge) lookup(ctx context.Context, parsed []parsedAck) {
	var ids []string
	var at []int
	for i := range parsed {
		if p := &parsed[i]; p.policy == nil && (p.verb != verbDone || p.result != nil) {
			ids, at = append(ids, p.ref.ID), append(at, i)
		}
	}
	if len(ids) == 0 {
		return
	}
	infos, errs := b.getAll(ctx, ids)
	for k, i := range at {
		p := &parsed[i]
		if errs[k] != nil {
			p.verb = verbMeaningless // without an answer: the lease runs out
			if p.reply != "" {
				b.respond(b.out, p.reply, appendRefusal(nil, errNotSettled))
			}
			continue
		}
		if in := &infos[k]; in.State == job.Running && in.Ref().Is(p.ref) {
			e := deliveryOf(in)
			p.policy, p.looked = &e, true
			if !p.trace.IsValid() {
				p.trace = b.tracing.stored(e.Header)
			}
		}
	}
}

// getAll looks ids up with one call; when that fails one by one, because a
// store that holds some of them cannot be reached.
func (b *Bridge) getAll(ctx context.Context, ids []string) ([]job.Info, []error) {
	ctx, cancel := context.WithTimeout(ctx, b.cfg.StoreTimeout)
	defer cancel()
	errs := make([]error, len(ids))
	infos, err := b.store.Get(ctx, ids)
	if err == nil {
		return infos, errs
	}
	b.storeFailed("get", err)
	infos = make([]job.Info, len(ids))
	for i := range ids {
		one, err := []job.Info{{}}, err
		if len(ids) > 1 {
			one, err = b.store.Get(ctx, ids[i:i+1])
		}
		if errs[i] = err; err == nil {
			infos[i] = one[0]
		}
	}
	return infos, errs
}

// outcome decides what p means for its job. Without a policy the delivery is
// most likely not the present one: the store then says so and changes nothing.
func (b *Bridge) outcome(p *parsedAck, now job.Time) (settlement, *job.Error) {
	s := settlement{Settlement: job.Settlement{Ref: p.ref}, reply: p.reply, trace: p.trace}
	lease := now.Add(b.cfg.AckWait)
	if p.policy != nil {
		s.Target, s.Due = p.policy.Target, p.policy.Due
		lease = now.Add(p.policy.AckWait)
	}
	s.until = lease
	verb, delay, reason := p.verb, p.delay, p.reason
	if verb == verbPubAck {
		if p.policy == nil || p.policy.Ack != job.AckStream {
			return s, job.ErrHeader.With("a PubAck settles only jobs with Delay-Ack: stream")
		}
		verb, delay = verbDone, -1
		if err := parsePubAck(p.result); err != nil {
			verb, reason = verbNak, err.Error()
		}
		p.result = nil
	}
	switch verb {
	case verbDone:
		s.Outcome = job.Complete
		if p.policy != nil && p.result != nil {
			s.replyTo, s.result = p.policy.ReplyTo, p.result
		}
	case verbProgress:
		s.Outcome, s.At = job.Extend, lease
	case verbTerm:
		s.Outcome, s.Reason = job.Bury, "terminated"
		if reason != "" {
			s.Reason += ": " + reason
		}
	case verbClaim:
		if p.policy != nil {
			if err := b.trust.worker(p.worker, []string{p.policy.Target}); err != nil {
				return s, err
			}
		}
		s.Outcome, s.At, s.Owner = job.Own, lease, job.OwnerOf(b.cfg.ID, p.worker)
		s.delivery, s.others = p.policy, p.looked
	case verbNak:
		b.again(&s, p.policy, delay, now)
		if p.spare {
			s.Outcome, s.At, s.Reason, s.Spare = job.Release, now.Add(min(max(delay, 0), b.cfg.MaxDelay)), "", true
		}
		if reason != "" {
			b.log.nak.LogOf(p.trace, b.cfg.Logger, "worker refused a job", "id", p.ref.ID, "target", s.Target, "attempt", p.ref.Attempt, "reason", reason)
		}
	}
	return s, nil
}

// again plans the next attempt after a failed one: after delay, or by the
// job's backoff when it is negative; or none when it was the last.
func (b *Bridge) again(s *settlement, d *job.Delivery, delay time.Duration, now job.Time) {
	if d != nil && d.LastAttempt() {
		s.Outcome, s.Reason = job.Bury, "max_attempts"
		return
	}
	if delay < 0 && d != nil {
		delay = backoff(d.Backoff, d.Attempt-d.Base)
	}
	s.Outcome, s.At = job.Retry, now.Add(min(max(delay, 0), b.cfg.MaxDelay))
}

// unanswered takes back deliveries that reached nobody: their targets are parked,
// or, for those sent to a worker, others get them.
func (b *Bridge) unanswered(fs []*flight) (out []settlement) {
	for _, f := range fs {
		if f.direct {
			out = append(out, asideSettlements(b.disp.undelivered(f))...)
			continue
		}
		out = append(out, b.park([]*flight{f}, noResponders)...)
	}
	return out
}

// park stops the targets of deliveries that reached nobody and returns the
// settlements that take the attempts back.
func (b *Bridge) park(fs []*flight, why parkReason) []settlement {
	now := b.now()
	var out []settlement
	for _, f := range fs {
		if b.disp.putOff(f) {
			out = append(out, f.ending(job.Release, now.Add(b.cfg.ProbeMax)))
			continue
		}
		out = append(out, asideSettlements(b.disp.park(f, why, now))...)
	}
	return out
}

// refuse answers an acknowledgement that cannot be read. Without anybody to
// answer it is a line of the log: the worker would not learn otherwise why its
// jobs come again.
func (b *Bridge) refuse(reply string, e *job.Error) {
	b.metrics.ackRefused()
	if reply = b.replySubject(reply); reply != "" {
		b.respond(b.out, reply, appendRefusal(nil, e))
		return
	}
	b.log.ack.Log(b.cfg.Logger, "acknowledgement refused, the job is still the worker's", "error", e)
}

func (b *Bridge) respond(nc *nats.Conn, reply string, data []byte) {
	if err := nc.Publish(reply, data); err != nil {
		b.log.reply.Log(b.cfg.Logger, "answer not sent", "subject", reply, "error", err)
	}
}
