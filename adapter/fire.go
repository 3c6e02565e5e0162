package adapter

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"strconv"
	"time"

	"github.com/delaybridge/delaybridge/internal/failpoint"
	"github.com/delaybridge/delaybridge/job"
	"github.com/delaybridge/delaybridge/subjects"
	"github.com/nats-io/nats.go"
	"go.opentelemetry.io/otel/trace"
)

const (
	// fireBatch is how many jobs are published between two looks at the clock.
	fireBatch = 256
	// preciseSleep is how long before a due time the firer leaves the Go timer
	// (good to about a millisecond) for nanosleep.
	preciseSleep = 5 * time.Millisecond
	// napLength bounds one nanosleep, so that freed windows are noticed.
	napLength = time.Millisecond
)

// fireLoop publishes jobs when they are due, never before, until ctx is done.
// It keeps an operating-system thread for itself, which sleeps precisely.
func (b *Bridge) fireLoop(ctx context.Context) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	sharpen()
	timer := time.NewTimer(0)
	defer timer.Stop()
	batch := make([]*flight, 0, fireBatch)
	pub := newPublisher(b)
	for ctx.Err() == nil {
		if !b.out.IsConnected() {
			sleepOrDone(ctx, timer, 10*time.Millisecond)
			continue
		}
		var next job.Time
		var more bool
		batch, next, more = b.disp.collect(b.now(), batch[:0])
		if len(batch) > 0 {
			b.fire(pub, batch)
		}
		if !more {
			b.sleepUntil(ctx, timer, next)
		}
	}
}

func sleepOrDone(ctx context.Context, timer *time.Timer, d time.Duration) {
	timer.Reset(d)
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// sleepUntil returns at next (zero: never), or earlier when woken.
func (b *Bridge) sleepUntil(ctx context.Context, timer *time.Timer, next job.Time) {
	left := time.Hour
	if next != 0 {
		left = next.Sub(b.now())
	}
	if left > preciseSleep {
		timer.Reset(left - preciseSleep)
		select {
		case <-timer.C:
		case <-b.disp.wakeFire:
		case <-ctx.Done():
		}
		return
	}
	if left > 0 {
		nap(min(left, napLength))
	}
	select {
	case <-b.disp.wakeFire:
	default:
	}
}

// fire publishes batch and hands it to the barrier.
func (b *Bridge) fire(pub *publisher, batch []*flight) {
	now := b.now()
	link := b.out.Stats().Reconnects
	failpoint.At(failpoint.Leased)
	var unsent []*flight
	sent := make([]*flight, 0, len(batch))
	b.disp.trace(pub, batch)
	for i, f := range batch {
		f.link = link
		if f.direct {
			b.disp.owners.claimed(f) // ahead of whatever tells that it was released
		}
		err := pub.publish(f)
		pub.noteSpan(i, err)
		switch {
		case err == nil:
			b.metrics.fired(f, now.Sub(f.Next), pub.traces[i])
			sent = append(sent, f)
			failpoint.At(failpoint.Published)
		case errors.Is(err, nats.ErrMaxPayload):
			b.metrics.notPublished(unpublishedTooLarge, 1)
			b.giveUp(f, "terminated: larger than the server's max_payload")
		case errors.Is(err, nats.ErrBadSubject):
			b.metrics.notPublished(unpublishedTarget, 1)
			b.giveUp(f, "forbidden target")
		case errors.Is(err, nats.ErrBadHeaderMsg):
			b.metrics.notPublished(unpublishedHeader, 1)
			b.giveUp(f, "terminated: a header name that cannot be sent")
		default:
			b.log.publish.LogOf(f.trace, b.cfg.Logger, "job not published, it stays due", "target", f.Target, "error", err)
			b.metrics.notPublished(unpublishedConnection, 1)
			unsent = append(unsent, f)
		}
	}
	pub.endSpans()
	b.barrier.add(sent...)
	b.unsent(unsent)
}

// giveUp buries a job that cannot be published at all.
func (b *Bridge) giveUp(f *flight, reason string) {
	if b.disp.takeBack([]*flight{f}) != nil {
		s := f.ending(job.Bury, 0)
		s.Reason, s.began = reason, startOf(b.tracing)
		b.settler.add(s)
	}
}

// unsent gives jobs back whose publish failed before it reached the server.
func (b *Bridge) unsent(fs []*flight) {
	for _, f := range b.disp.takeBack(fs) {
		b.settler.add(f.ending(job.Release, f.Next))
	}
}

// takeBack ends those deliveries of fs that still run, as if they had not been
// sent.
func (d *dispatcher) takeBack(fs []*flight) []*flight {
	d.mu.Lock()
	defer d.mu.Unlock()
	var out []*flight
	for _, f := range fs {
		if !f.gone {
			d.drop(f)
			f.win.returned()
			d.feed(f.lane)
			out = append(out, f)
		}
	}
	return out
}

// Headers of a delivery.
const (
	headerMsgID   = "Nats-Msg-Id"
	headerJobID   = "Delay-Job-Id"
	headerDue     = "Delay-Due"
	headerAttempt = "Delay-Attempt"
	headerAckWait = "Delay-Ack-Wait"
	headerToken   = "Delay-Token"
	headerTarget  = "Delay-Target" // only when it is not the subject
)

// publisher builds and publishes deliveries. Its message and header map are
// used again for each one: the client has copied them when publish returns.
type publisher struct {
	conn   *nats.Conn
	prefix string
	bridge string
	store  byte
	msg    nats.Msg
	own    [8][1]string
	trace  *tracing
	began  time.Time           // when the spans of the batch begin
	spans  []span              // of the batch; none without tracing
	traces []trace.SpanContext // the same, or those that are stored
	buf    []byte
	wait   time.Duration // what waitText said last
	text   string
	due    job.Time // what dueText said last
	dueStr string
}

func newPublisher(b *Bridge) *publisher {
	return &publisher{conn: b.out, prefix: b.cfg.Prefix, bridge: b.cfg.ID, store: b.storeByte, trace: b.tracing, msg: nats.Msg{Header: nats.Header{}}}
}

func (p *publisher) publish(f *flight) error {
	clear(p.msg.Header)
	for _, h := range f.Header {
		p.msg.Header[h.Name] = append(p.msg.Header[h.Name], h.Value)
	}
	p.carry(f)
	p.buf = subjects.AppendAckSubject(p.buf[:0], p.prefix, p.bridge, subjects.Token{
		Store: p.store, Shard: f.Shard, Generated: f.Generated, Incarnation: f.Incarnation, Attempt: f.Attempt, Nonce: f.Nonce, ID: f.ID,
	})
	reply := string(p.buf)
	msgID := f.ID
	if f.Ack == job.AckStream {
		msgID += "." + strconv.FormatUint(f.Incarnation, 10)
	}
	p.set(0, headerMsgID, msgID)
	p.set(1, headerJobID, f.ID)
	p.set(2, headerDue, p.dueText(f.Due))
	p.set(3, headerAttempt, strconv.FormatUint(uint64(f.Attempt), 10))
	p.set(4, headerAckWait, p.waitText(f.AckWait))
	p.set(5, headerToken, reply[lastDot(reply)+1:])
	p.msg.Subject, p.msg.Reply, p.msg.Data = f.Target, reply, f.Payload
	if f.direct {
		p.set(6, headerTarget, f.Target)
		p.msg.Subject = subjects.Worker(p.prefix, subjects.KindJob, f.worker.id)
	}
	if f.Ack == job.AckNone {
		p.msg.Reply = ""
	}
	err := p.conn.PublishMsg(&p.msg)
	if err == nil {
		f.Payload, f.Header = nil, nil
	}
	return err
}

func (p *publisher) set(i int, name, value string) {
	p.own[i][0] = value
	p.msg.Header[name] = p.own[i][:]
}

func (p *publisher) waitText(d time.Duration) string {
	if d != p.wait {
		p.wait, p.text = d, d.String()
	}
	return p.text
}

// dueText is t as RFC 3339; jobs that are due together have it in common.
func (p *publisher) dueText(t job.Time) string {
	if t != p.due {
		p.due, p.dueStr = t, t.Time().Format(timeLayout)
	}
	return p.dueStr
}

func lastDot(s string) int {
	i := len(s) - 1
	for i >= 0 && s[i] != '.' {
		i--
	}
	return i
}

const (
	// barrierPause is the shortest time between two barriers.
	barrierPause = 5 * time.Millisecond
	// refusalGrace is how long after the barrier an asynchronous refusal of a
	// publish (permissions) may still be on its way through the client.
	refusalGrace = 20 * time.Millisecond
	// barrierTimeout is when a connection that does not answer counts as lost.
	barrierTimeout = 5 * time.Second
)

// barrierLoop confirms that published jobs reached the server: one round trip
// for all that were published since the last one. It runs until ctx is done.
func (b *Bridge) barrierLoop(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
			return
		case <-b.barrier.wake:
		}
		b.confirm(b.barrier.take(nil))
		sleepOrDone(ctx, timer, barrierPause)
	}
}

// confirm finds out whether fs have reached the server, and completes those
// that nobody acknowledges.
func (b *Bridge) confirm(fs []*flight) {
	if len(fs) == 0 {
		return
	}
	if err := b.out.FlushTimeout(barrierTimeout); err != nil {
		b.unconfirmed(fs, err)
		return
	}
	// What went out on an earlier connection is not confirmed by this one.
	link := b.out.Stats().Reconnects
	var lost []*flight
	fs = slices.DeleteFunc(fs, func(f *flight) bool {
		if f.link != link {
			lost = append(lost, f)
		}
		return f.link != link
	})
	if len(lost) > 0 {
		b.unconfirmed(lost, nats.ErrConnectionReconnecting)
	}
	if unacked := withoutAck(fs); len(unacked) > 0 {
		time.Sleep(refusalGrace)
		b.published(unacked)
	}
}

func withoutAck(fs []*flight) (out []*flight) {
	for _, f := range fs {
		if f.Ack == job.AckNone {
			out = append(out, f)
		}
	}
	return out
}

// published completes jobs that nobody acknowledges.
func (b *Bridge) published(fs []*flight) {
	for _, f := range b.disp.finish(fs) {
		b.settler.add(f.ending(job.Complete, 0))
	}
}

// finish ends those deliveries of fs that still run, successfully.
func (d *dispatcher) finish(fs []*flight) []*flight {
	d.mu.Lock()
	defer d.mu.Unlock()
	at := d.ticks()
	var out []*flight
	for _, f := range fs {
		if !f.gone {
			d.drop(f)
			f.win.settled(at)
			f.lane.settled = true
			out = append(out, f)
			d.unpark(f.lane)
			d.feed(f.lane)
		}
	}
	wake(d.wakeFire)
	return out
}

// unconfirmed retries jobs that may not have reached the server. They may have
// been delivered, so the attempt counts; a last attempt keeps its lease. Whether
// a worker has a job that was sent to it, its heartbeats will tell.
func (b *Bridge) unconfirmed(fs []*flight, err error) {
	b.metrics.notPublished(unpublishedUnconfirmed, len(fs))
	b.log.publish.Log(b.cfg.Logger, "publish not confirmed, the jobs are tried again", "jobs", len(fs), "error", err)
	var again []*flight
	for _, f := range fs {
		if !f.LastAttempt() && !f.direct {
			again = append(again, f)
		}
	}
	now := b.now()
	for _, f := range b.disp.takeBack(again) {
		b.settler.add(f.ending(job.Retry, now))
	}
}
