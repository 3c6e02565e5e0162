package adapter

import (
	"context"
	"errors"
	"strconv"
	"sync/atomic"
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
)

// intake stores what producers publish. What arrives while a batch is being
// stored forms the next one, so batches grow with the load and nothing waits
// for a batch to fill. Overload is handled beside it, in overload.go.
type intake struct {
	b    *Bridge
	msgs chan *nats.Msg
	subs []*nats.Subscription

	overloaded atomic.Bool // more arrives than the store takes
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
	in.subs = nil
	_ = in.b.in.FlushTimeout(in.b.cfg.StoreTimeout) // when it fails the connection is gone, and so is the interest
}

// run stores messages until stop is closed and none is left.
func (in *intake) run(ctx context.Context, stop <-chan struct{}) {
	batch := &intakeMsgs{b: in.b}
	for {
		select {
		case m := <-in.msgs:
			batch.handle(ctx, m, in.msgs, in.b.store.Put)
		case <-stop:
			select {
			case m := <-in.msgs:
				batch.handle(ctx, m, in.msgs, in.b.store.Put)
			default:
				return
			}
		}
	}
}

// intakeMsgs is a batch of messages on its way into a store. It is used again
// for the next one.
type intakeMsgs struct {
	b     *Bridge
	msgs  []*nats.Msg
	jobs  []job.Job   // those of them that can be stored
	from  []*nats.Msg // the message of each job
	began time.Time   // when spans of the batch begin
	spans []span      // of each job; none without tracing
	buf   []byte
}

// putFunc stores jobs as job.Store's Put does.
type putFunc = func(context.Context, []job.Job) ([]job.PutResult, error)

// handle stores m and what else has arrived, and answers.
func (in *intakeMsgs) handle(ctx context.Context, m *nats.Msg, more <-chan *nats.Msg, put putFunc) {
	in.gather(m, more)
	in.jobs, in.from, in.spans = in.jobs[:0], in.from[:0], in.spans[:0]
	in.began = startOf(in.b.tracing)
	now := in.b.now()
	for _, m := range in.msgs {
		var j job.Job
		if err := in.b.parse(m, now, &j); err != nil {
			in.b.tracing.refused(m, err)
			in.b.reject(m, err)
			continue
		}
		if in.b.tracing.tracer != nil {
			in.spans = append(in.spans, in.b.tracing.receive(&j, in.began))
		}
		in.jobs, in.from = append(in.jobs, j), append(in.from, m)
	}
	if len(in.jobs) > 0 {
		in.store(ctx, put)
	}
}

// gather makes a batch of m and what has arrived since.
func (in *intakeMsgs) gather(m *nats.Msg, more <-chan *nats.Msg) {
	in.msgs = append(in.msgs[:0], m)
	for len(in.msgs) < intakeBatch {
		select {
		case m := <-more:
			in.msgs = append(in.msgs, m)
		default:
			return
		}
	}
}

// store puts in.jobs with one call of the store and answers each.
func (in *intakeMsgs) store(ctx context.Context, put putFunc) {
	ctx, cancel := context.WithTimeout(ctx, in.b.cfg.StoreTimeout)
	defer cancel()
	res, err := put(ctx, in.jobs)
	if err != nil {
		in.b.storeFailed("put", err)
		for i, m := range in.from {
			in.failed(i, notStored(err))
			in.b.reject(m, notStored(err))
		}
		return
	}
	first, ended := job.Time(0), endOf(in.b.tracing)
	for i := range res {
		if res[i].Err != nil {
			in.failed(i, job.AsError(res[i].Err))
			in.b.reject(in.from[i], job.AsError(res[i].Err))
			continue
		}
		if due := in.jobs[i].Due; !res[i].Duplicate && (first == 0 || due < first) {
			first = due
		}
		in.accept(in.from[i], in.jobs[i].ID, res[i])
		if len(in.spans) > 0 {
			in.b.tracing.received(&in.spans[i], &in.jobs[i], &res[i], in.began, ended)
		}
	}
	if first != 0 {
		in.b.disp.due(first)
	}
	clear(in.jobs)
	clear(in.spans)
}

// failed ends the span of the i-th job, which was not stored.
func (in *intakeMsgs) failed(i int, err *job.Error) {
	if len(in.spans) > 0 {
		in.b.tracing.failed(&in.spans[i], in.jobs[i].Target, err, in.began)
	}
}

// notStored is the answer to a whole batch that a store did not take.
func notStored(err error) *job.Error {
	if errors.Is(err, job.ErrFull) {
		return job.AsError(err)
	}
	return job.ErrUnavailable.With("not stored: %v", err)
}

func (in *intakeMsgs) accept(m *nats.Msg, id string, r job.PutResult) {
	in.b.metrics.accepted(r.Duplicate)
	seq := in.b.seq.Add(1)
	if reply := in.b.replySubject(m.Reply); reply != "" {
		in.buf = appendPubAck(in.buf[:0], seq, id, r)
		in.b.respond(in.b.in, reply, in.buf)
	}
}

// reject answers a message that is not stored. Without anybody to answer, the
// refusal is an event and a line of the log. That nothing can be stored is an
// event in any case.
func (b *Bridge) reject(m *nats.Msg, e *job.Error) {
	b.metrics.rejected(e)
	reply := b.replySubject(m.Reply)
	if reply != "" {
		b.respondError(reply, e)
		if e.Is(job.ErrFull) {
			if _, ok := b.fullEvents.next(); ok {
				b.event(eventRejected, rejectedEvent{Bridge: b.cfg.ID, Subject: cut(m.Subject, 256), Error: e})
			}
		}
		return
	}
	b.log.rejected.LogOf(b.tracing.ofMsg(m), b.cfg.Logger, "message rejected, and nobody asked for an answer", "subject", cut(m.Subject, 128), "error", e)
	b.event(eventRejected, rejectedEvent{Bridge: b.cfg.ID, Subject: cut(m.Subject, 256), Error: e})
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
