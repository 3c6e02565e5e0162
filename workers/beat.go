package workers

import (
	"context"
	"encoding/json"
	"errors"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/delaybridge/delaybridge/internal/natstrace"
	"github.com/delaybridge/delaybridge/subjects"
)

// schedule is when the keeper has something to do, on the worker's clock.
type schedule struct {
	interval time.Duration // between heartbeats, as of the last one
	last     time.Duration // the last heartbeat; zero: none yet
	asap     bool          // the next heartbeat is due now
	unheard  bool          // nobody was there to hear the last one
	repeat   time.Duration // the first request to repeat; zero: none
	back     time.Duration // the first delivery to give back unclaimed; zero: none
}

// hasten makes heartbeats frequent enough for a job with that ack wait.
func (w *Worker) hasten(ackWait time.Duration) {
	if every := w.beatsFor(ackWait); every < w.schedule.interval {
		w.schedule.interval = every
		wake(w.kick)
	}
}

// beatsFor returns how far apart heartbeats may be to renew such a lease: a
// third, so that one can be lost.
func (w *Worker) beatsFor(ackWait time.Duration) time.Duration {
	if ackWait <= 0 {
		return w.cfg.Heartbeat
	}
	return min(max(ackWait/3, minHeartbeat), w.cfg.Heartbeat)
}

// beatHeard notes whether a bridge was there to hear the last heartbeat. If none
// was the next one comes early, so that one that starts knows the worker at
// once; and then what nobody could take is sent again.
func (w *Worker) beatHeard(heard bool) {
	w.mu.Lock()
	before := w.schedule.unheard
	w.schedule.unheard = !heard
	if !heard {
		w.schedule.interval = min(w.schedule.interval, w.patience.minPause)
		wake(w.kick)
	} else if before {
		w.repeatNow()
	}
	w.mu.Unlock()
	switch {
	case !heard && !before:
		w.log.Warn("no bridge is there: the worker waits for one", "prefix", w.cfg.Prefix)
	case heard && before:
		w.log.Info("a bridge is there", "prefix", w.cfg.Prefix)
	}
}

// repeatNow makes all that is unanswered due.
func (w *Worker) repeatNow() {
	for _, j := range w.ledger.jobs {
		j.repeatAt = 0
	}
	w.schedule.repeat = w.now()
	wake(w.kick)
}

// keep sends heartbeats and repeats what was not answered, until stop is
// closed.
func (w *Worker) keep(stop <-chan struct{}, status <-chan nats.Status) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-stop:
			return
		case s := <-status:
			if s == nats.CONNECTED {
				w.reconnected()
			}
		case <-w.kick:
		case <-timer.C:
		}
		if w.nc.IsClosed() {
			close(w.closed)
			wake(w.changed)
			<-stop
			return
		}
		timer.Reset(w.tend())
	}
}

// reconnected makes everything due: what was sent may be lost.
func (w *Worker) reconnected() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.schedule.asap = true
	w.repeatNow()
}

// tend does what is due and returns how long nothing is.
func (w *Worker) tend() time.Duration {
	if !w.nc.IsConnected() {
		return w.cfg.Heartbeat
	}
	w.mu.Lock()
	now := w.now()
	beat := w.schedule.last == 0 || w.schedule.asap || now >= w.schedule.last+w.schedule.interval
	var again, stale []*Job
	if w.schedule.repeat > 0 && now >= w.schedule.repeat {
		again = w.due(now)
	}
	if w.schedule.back > 0 && now >= w.schedule.back {
		stale = w.staleArrivals(now)
	}
	w.mu.Unlock()
	w.sendAll(again)
	for _, j := range stale {
		w.giveBack(j)
	}
	if beat {
		w.beat(subjects.KindHeartbeat, answerBeat)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	next := w.schedule.last + w.schedule.interval
	for _, at := range []time.Duration{w.schedule.repeat, w.schedule.back} {
		if at > 0 {
			next = min(next, at)
		}
	}
	return max(next-w.now(), 0)
}

// beat sends a heartbeat or a farewell.
func (w *Worker) beat(kind, answers string) {
	w.beatMu.Lock()
	defer w.beatMu.Unlock()
	w.mu.Lock()
	w.beatBuf = w.appendBeat(w.beatBuf[:0], kind == subjects.KindBye)
	w.mu.Unlock()
	err := w.nc.PublishMsg(&nats.Msg{
		Subject: subjects.Worker(w.cfg.Prefix, kind, w.cfg.Name),
		Reply:   w.inbox + "." + answers, Data: w.beatBuf, Header: w.beatHeader,
	})
	if errors.Is(err, nats.ErrMaxPayload) { // of a server that takes less than the one before
		w.log.Error("the heartbeat is larger than the server takes; others will get the worker's jobs", "bytes", len(w.beatBuf))
	}
}

// appendBeat appends a heartbeat and plans the next one.
func (w *Worker) appendBeat(b []byte, bye bool) []byte {
	b = append(b, w.beatHead...)
	b = strconv.AppendInt(b, int64(w.free()), 10)
	b = append(b, `,"directed":`...)
	b = strconv.AppendBool(b, w.directed && w.phase == phaseRunning)
	b = append(b, `,"running":[`...)
	interval := w.cfg.Heartbeat
	for _, j := range w.ledger.jobs {
		if j.stage != stageSettling || j.verb != verbDone {
			interval = min(interval, w.beatsFor(j.AckWait))
		}
		if j.stage == stageReady || j.stage == stageRunning || j.stage == stageSettling && j.verb != verbDone {
			b = appendToken(b, j.token)
		}
	}
	b = append(b, `],"done":[`...)
	for _, j := range w.ledger.jobs {
		// One that was sent since the last heartbeat may well be under way.
		if j.stage == stageSettling && j.verb == verbDone && (bye || j.sentAt < w.schedule.last) {
			b = appendToken(b, j.token)
		}
	}
	w.schedule.interval, w.schedule.last, w.schedule.asap = interval, w.now(), false
	return append(b, `]}`...)
}

// appendToken appends a token to a list that begins with [.
func appendToken(b []byte, token string) []byte {
	if b[len(b)-1] != '[' {
		b = append(b, ',')
	}
	b = append(b, '"')
	b = append(b, token...)
	return append(b, '"')
}

// free is how many more jobs the worker would start at once.
func (w *Worker) free() int {
	if w.phase != phaseRunning || w.choked() {
		return 0
	}
	busy := w.running + w.ready.len() + w.arrived.len() + w.claiming
	return max(min(w.cfg.Concurrency-busy, maxListed-w.ledger.listed), 0)
}

// beatAnswered takes the answer to a heartbeat or farewell. What has ended
// meanwhile is not looked at: outcomes get answers of their own.
func (w *Worker) beatAnswered(a answer) {
	var body struct {
		Stale []string `json:"stale"`
		Error *refusal `json:"error"`
	}
	if len(a.body) == 0 {
		return
	}
	if err := json.Unmarshal(a.body, &body); err != nil {
		w.log.Error("the answer to a heartbeat cannot be read", "error", err)
		return
	}
	if body.Error != nil {
		w.log.Error("heartbeat refused", "error", body.Error.Description, "code", body.Error.Code)
	}
	w.stale(body.Stale)
}

// stale ends the jobs that a bridge says are not the worker's.
func (w *Worker) stale(tokens []string) {
	var lost []*Job
	w.mu.Lock()
	for _, token := range tokens {
		if j := w.ledger.jobs[token]; j != nil && w.lose(j) {
			lost = append(lost, j)
		}
	}
	w.lost(lost)
}

// supersede ends older deliveries of the job that j delivers again: bridges have
// given them up, and two handlers must not run it at once.
func (w *Worker) supersede(j *Job) {
	if j.Attempt < 2 || j.ID == "" || j.token == "" {
		return
	}
	var lost []*Job
	w.mu.Lock()
	if j.stage == stageReady || j.stage == stageRunning {
		for _, o := range w.ledger.jobs {
			if o.ID == j.ID && o.Attempt < j.Attempt && w.lose(o) {
				lost = append(lost, o)
			}
		}
	}
	w.lost(lost)
}

// lose ends j unless its handler has returned, or none is to have it.
func (w *Worker) lose(j *Job) bool {
	if j.stage != stageReady && j.stage != stageRunning {
		return false
	}
	w.ledger.remove(j)
	w.stats.Lost++
	if j.cancel != nil {
		j.cancel(ErrLost)
	}
	return true
}

// lost goes on after the jobs were lost. It unlocks the mutex.
func (w *Worker) lost(jobs []*Job) {
	if len(jobs) == 0 {
		w.mu.Unlock()
		return
	}
	w.ready.remove(func(j *Job) bool { return j.stage == stageGone })
	w.roomy.Broadcast()
	claims := w.claims()
	w.start()
	w.mu.Unlock()
	w.sendAll(claims)
	for _, j := range jobs {
		w.tellLost(j, ErrLost)
	}
}

// inject adds the trace context of ctx to h, which may be nil.
func (w *Worker) inject(ctx context.Context, h nats.Header) nats.Header {
	c := natstrace.Lazy{Header: h}
	w.cfg.Propagator.Inject(ctx, &c)
	return c.Header
}

// forward returns a header with the trace context of h, nil without one.
func (w *Worker) forward(h nats.Header) nats.Header {
	if len(h) == 0 {
		return nil
	}
	return w.inject(w.cfg.Propagator.Extract(context.Background(), natstrace.Header(h)), nil)
}
