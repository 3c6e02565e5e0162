package adapter

import (
	"context"
	"strconv"
	"time"

	"github.com/delaybridge/delaybridge/job"
	"github.com/delaybridge/delaybridge/subjects"
	"github.com/nats-io/nats.go"
)

const (
	// intakeBatch is how many messages are stored with one call.
	intakeBatch = 256
	// intakeGroup is the queue group that all bridges of a prefix form.
	intakeGroup = "delaybridge"
	// overflowPeriod is how often the queue is looked at while the store is busy.
	overflowPeriod = 10 * time.Millisecond
)

// intake stores what producers publish. What arrives while a batch is being
// stored forms the next one, so batches grow with the load and nothing waits
// for a batch to fill.
type intake struct {
	b    *Bridge
	msgs chan *nats.Msg
	subs []*nats.Subscription

	batch      []*nats.Msg // the messages being handled
	overloaded bool        // so much was waiting when batch was taken that all of it is refused
	jobs       []job.Job   // those of them that can be stored
	from       []*nats.Msg // the message of each job
	buf        []byte
}

func newIntake(b *Bridge) *intake {
	return &intake{b: b, msgs: make(chan *nats.Msg, b.cfg.IntakeQueue)}
}

// subscribe joins the queue group.
func (in *intake) subscribe() error {
	for _, subject := range subjects.IntakeSubjects(in.b.cfg.Prefix) {
		s, err := in.b.in.ChanQueueSubscribe(subject, intakeGroup, in.msgs)
		if err != nil {
			return err
		}
		in.subs = append(in.subs, s)
	}
	return in.b.in.FlushTimeout(in.b.cfg.StoreTimeout)
}

// leave leaves the queue group; what has arrived is still in msgs.
func (in *intake) leave() {
	for _, s := range in.subs {
		if err := s.Drain(); err != nil {
			in.b.cfg.Logger.Warn("intake subscription not drained", "subject", s.Subject, "error", err)
		}
	}
	_ = in.b.in.FlushTimeout(in.b.cfg.StoreTimeout) // when it fails the connection is gone, and so is the interest
}

// run stores messages until stop is closed and none is left.
func (in *intake) run(ctx context.Context, stop <-chan struct{}) {
	for {
		select {
		case m := <-in.msgs:
			in.gather(m)
			in.handle(ctx)
		case <-stop:
			select {
			case m := <-in.msgs:
				in.gather(m)
				in.handle(ctx)
			default:
				return
			}
		}
	}
}

// overflow refuses messages while the store is so slow that the queue is nearly
// full, until stop is closed: beyond it the client would drop them unanswered.
func (in *intake) overflow(stop <-chan struct{}) {
	ticker := time.NewTicker(overflowPeriod)
	defer ticker.Stop()
	for {
		select {
		case <-stop:
			return
		case <-ticker.C:
		}
		for in.full() {
			select {
			case m := <-in.msgs:
				in.reject(m, in.overloadError())
			default:
			}
		}
	}
}

func (in *intake) full() bool { return len(in.msgs) > cap(in.msgs)*19/20 }

func (in *intake) overloadError() *job.Error {
	return job.ErrFull.With("intake overloaded: more than 95 %% of the %d messages that may wait (%s) do; try again later", cap(in.msgs), keyIntakeQueue)
}

// gather makes a batch of m and what has arrived since.
func (in *intake) gather(m *nats.Msg) {
	in.overloaded = in.full()
	in.batch = append(in.batch[:0], m)
	for len(in.batch) < intakeBatch {
		select {
		case m := <-in.msgs:
			in.batch = append(in.batch, m)
		default:
			return
		}
	}
}

// handle stores one batch and answers it.
func (in *intake) handle(ctx context.Context) {
	if in.overloaded {
		for _, m := range in.batch {
			in.reject(m, in.overloadError())
		}
		return
	}
	in.jobs, in.from = in.jobs[:0], in.from[:0]
	now := in.b.now()
	for _, m := range in.batch {
		var j job.Job
		if err := in.b.parse(m, now, &j); err != nil {
			in.reject(m, err)
			continue
		}
		in.jobs, in.from = append(in.jobs, j), append(in.from, m)
	}
	if len(in.jobs) > 0 {
		in.store(ctx)
	}
}

// store puts in.jobs with one call of the store and answers each.
func (in *intake) store(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, in.b.cfg.StoreTimeout)
	defer cancel()
	res, err := in.b.store.Put(ctx, in.jobs)
	if err != nil {
		in.b.storeFailed("put", err)
		for _, m := range in.from {
			in.reject(m, job.ErrUnavailable.With("not stored: %v", err))
		}
		return
	}
	first := job.Time(0)
	for i := range res {
		if res[i].Err != nil {
			in.reject(in.from[i], job.AsError(res[i].Err))
			continue
		}
		if due := in.jobs[i].Due; !res[i].Duplicate && (first == 0 || due < first) {
			first = due
		}
		in.accept(in.from[i], in.jobs[i].ID, res[i])
	}
	if first != 0 {
		in.b.disp.due(first)
	}
	clear(in.jobs)
}

func (in *intake) accept(m *nats.Msg, id string, r job.PutResult) {
	in.b.metrics.accepted(r.Duplicate)
	seq := in.b.seq.Add(1)
	if reply := in.b.replySubject(m.Reply); reply != "" {
		in.buf = appendPubAck(in.buf[:0], seq, id, r)
		in.b.respond(in.b.in, reply, in.buf)
	}
}

// reject answers a message that is not stored. Without anybody to answer, the
// refusal is an event and a line of the log.
func (in *intake) reject(m *nats.Msg, e *job.Error) {
	b := in.b
	b.metrics.rejected(e)
	if reply := b.replySubject(m.Reply); reply != "" {
		b.respondError(reply, e)
		return
	}
	b.log.rejected.Log(b.cfg.Logger, "message rejected, and nobody asked for an answer", "subject", cut(m.Subject, 128), "error", e)
	b.event("rejected", rejectedEvent{Bridge: b.cfg.ID, Subject: cut(m.Subject, 256), Error: e})
}

// respondError answers with an error, in the body for JetStream clients and in
// headers for clients of services.
func (b *Bridge) respondError(reply string, e *job.Error) {
	m := nats.NewMsg(reply)
	m.Header[headerServiceCode] = []string{strconv.Itoa(e.Code)}
	m.Header[headerServiceText] = []string{e.Description}
	m.Data = appendPubError(nil, e)
	if err := b.in.PublishMsg(m); err != nil {
		b.log.reply.Log(b.cfg.Logger, "answer not sent", "subject", reply, "error", err)
	}
}
