package workers

import (
	"context"
	"errors"
	"runtime/debug"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/delaybridge/delaybridge/internal/failpoint"
	"github.com/delaybridge/delaybridge/internal/natstrace"
	"github.com/delaybridge/delaybridge/subjects"
)

const (
	// maxBacklog is how many deliveries wait in the worker. Further ones wait
	// in the NATS client, which has limits of its own.
	maxBacklog = 8192
	// beatMargin is what a heartbeat has room for beside tokens, headers and
	// what Config says.
	beatMargin        = 4096
	defaultMaxPayload = 1 << 20
)

// deliver takes a delivery in. Directed: a bridge sent it to this worker, so
// it is the worker's already.
func (w *Worker) deliver(m *nats.Msg, directed bool) {
	j := newJob(m, w.cfg.Prefix, directed)
	if !directed && j.token == "" && !isTarget(w.cfg.Prefix, m.Subject) {
		return
	}
	w.mu.Lock()
	for !directed && w.phase == phaseRunning && w.arrived.len()+w.ready.len() >= maxBacklog {
		w.roomy.Wait()
	}
	taken := w.take(j, directed)
	claims := w.claims()
	w.start()
	w.mu.Unlock()
	if !taken {
		w.giveBack(j)
	}
	w.sendAll(claims)
	w.supersede(j)
}

// isTarget is false for what is no job's target but may well match a pattern that
// begins with a wildcard.
func isTarget(prefix, subject string) bool {
	return subjects.CheckReply(prefix, subject) && (subject[0] != '_' || subjects.CheckTarget(prefix, subject) == nil)
}

// take puts j where it belongs, or returns false to have it given back.
func (w *Worker) take(j *Job, directed bool) bool {
	switch {
	case j.token == "":
		if w.phase != phaseEnded {
			w.ready.push(j)
		}
		return true
	case w.ledger.has(j.token):
		return true
	case w.phase != phaseRunning || directed && !w.ledger.room(w.beatRoom()):
		return false
	}
	j.arrived = w.now()
	w.ledger.add(j)
	if directed {
		w.ledger.list(j)
		w.own(j)
	} else {
		w.arrived.push(j)
		w.giveBackAt(w.claimBy(j))
	}
	w.hasten(j.AckWait)
	return true
}

// own makes j wait for a handler.
func (w *Worker) own(j *Job) {
	j.stage = stageReady
	w.ready.push(j)
}

// claims takes from what has arrived the jobs that handlers are free for: what
// is claimed is not another worker's, however long it has to wait. The caller
// sends the claims.
func (w *Worker) claims() (out []*Job) {
	for w.phase == phaseRunning && w.arrived.len() > 0 && !w.choked() &&
		w.running+w.ready.len()+w.claiming < w.cfg.Concurrency && w.ledger.room(w.beatRoom()) {
		j := w.arrived.pop()
		j.stage = stageClaiming
		w.ledger.list(j)
		w.claiming++
		j.body, j.header = w.claimBody, w.forward(j.Header)
		w.expectAnswer(j)
		out = append(out, j)
	}
	if len(out) > 0 {
		w.lastClaim = w.now()
		w.roomy.Broadcast()
	}
	return out
}

// beatRoom is how many bytes of tokens fit a heartbeat.
func (w *Worker) beatRoom() int {
	limit := int(w.nc.MaxPayload())
	if limit <= 0 {
		limit = defaultMaxPayload // not connected yet
	}
	return max(limit-w.beatFrame, 2*maxTokenLen)
}

// giveBack lets bridges give j to another worker, without a charge. A lost
// message does no harm: the lease runs out, or a heartbeat tells.
func (w *Worker) giveBack(j *Job) { w.nc.Publish(j.reply, snoozeBody(0)) }

// start starts handlers for what is ready.
func (w *Worker) start() {
	for w.ready.len() > w.starting && w.mayStart() {
		w.active++
		w.starting++
		go w.work()
	}
}

// mayStart is false while too many outcomes wait for an answer: every further
// one might have to run again elsewhere.
func (w *Worker) mayStart() bool {
	return w.active < w.cfg.Concurrency && !w.choked()
}

func (w *Worker) choked() bool { return w.settling >= 4*w.cfg.Concurrency+1024 }

// work runs what is ready until nothing is.
func (w *Worker) work() {
	var j *Job
	defer func() {
		if j != nil { // the handler has ended this goroutine
			w.finish(j, &PanicError{Value: "the handler called runtime.Goexit", Stack: debug.Stack()})
			w.mu.Lock()
			w.retire()
			w.start()
			w.mu.Unlock()
		}
	}()
	for first := true; ; first = false {
		next, ctx := w.next(first)
		if next == nil {
			return
		}
		j = next
		failpoint.At(failpoint.Received)
		err := w.call(ctx, j)
		failpoint.At(failpoint.Handled)
		w.finish(j, err)
		j = nil
	}
}

// next returns the job to run now; nil: the goroutine has to end.
func (w *Worker) next(first bool) (*Job, context.Context) {
	w.mu.Lock()
	if first {
		w.starting--
	}
	var j *Job
	for !w.choked() {
		if j = w.ready.pop(); j == nil || j.stage != stageGone {
			break
		}
	}
	if j == nil {
		w.retire()
		w.mu.Unlock()
		return nil, nil
	}
	j.stage = stageRunning
	w.running++
	ctx, cancel := context.WithCancelCause(w.base)
	j.cancel = cancel
	w.roomy.Signal()
	w.mu.Unlock()
	return j, ctx
}

func (w *Worker) retire() {
	w.active--
	wake(w.changed)
}

// call runs the handler of j.
func (w *Worker) call(ctx context.Context, j *Job) error {
	if len(j.Header) > 0 {
		ctx = w.cfg.Propagator.Extract(ctx, natstrace.Header(j.Header))
	}
	if w.cfg.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, w.cfg.Timeout)
		defer cancel()
	}
	j.ctx = ctx
	return w.handler(ctx, j)
}

// finish sends what became of j, whose handler has returned err.
func (w *Worker) finish(j *Job, err error) {
	var p *PanicError
	if errors.As(err, &p) {
		w.log.Error("the handler panicked", "job", j.ID, "target", j.Target, "panic", p.Value, "stack", string(p.Stack))
	}
	verb, body := settlement(j, err, context.Cause(j.ctx) == ErrStopping)
	var header nats.Header
	if j.token != "" {
		header = w.inject(j.ctx, nil)
	}
	w.mu.Lock()
	j.cancel(nil)
	w.running--
	ours := j.token != "" && j.stage == stageRunning
	if j.stage == stageRunning {
		w.stats.count(verb)
	}
	if ours {
		j.stage, j.verb, j.body, j.header = stageSettling, verb, body, header
		w.settling++
		w.expectAnswer(j)
	}
	claims := w.claims()
	w.mu.Unlock()
	if ours {
		w.send(j)
		failpoint.At(failpoint.Completed)
	}
	w.sendAll(claims)
}

func (s *Stats) count(v outcomeVerb) {
	switch v {
	case verbDone, verbResult:
		s.Done++
	case verbRetry:
		s.Retried++
	case verbDiscard:
		s.Discarded++
	case verbSnooze:
		s.Snoozed++
	}
}

// claimBy is when j goes back unless it is claimed before: another worker may
// have a free handler, and the lease must not run out.
func (w *Worker) claimBy(j *Job) time.Duration {
	since := j.arrived
	if !w.directed {
		since = max(since, w.lastClaim) // it comes this way again: not while it moves forward here
	}
	by := since + w.patience.unclaimed
	if j.AckWait > 0 {
		by = min(by, j.arrived+j.AckWait/2)
	}
	return by
}

// giveBackAt makes the keeper look at that time for what is to go back.
func (w *Worker) giveBackAt(at time.Duration) {
	if w.schedule.back == 0 || at < w.schedule.back {
		w.schedule.back = at
		wake(w.kick)
	}
}

// staleArrivals takes out what has waited too long to be claimed, for the caller
// to give back, and finds out when the next will have.
func (w *Worker) staleArrivals(now time.Duration) []*Job {
	w.schedule.back = 0
	stale := w.arrived.remove(func(j *Job) bool {
		by := w.claimBy(j)
		if by > now && (w.schedule.back == 0 || by < w.schedule.back) {
			w.schedule.back = by
		}
		return by <= now
	})
	for _, j := range stale {
		w.ledger.remove(j)
	}
	w.roomy.Broadcast()
	return stale
}
