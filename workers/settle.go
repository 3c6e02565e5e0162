package workers

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
)

// Answers arrive on <inbox>.<kind>.<token>, or <inbox>.<kind>.
const (
	answerClaim  = "c"
	answerSettle = "s"
	answerBeat   = "h"
	answerBye    = "b"
)

// patience is how long the worker waits for others.
type patience struct {
	// A claim or an outcome that is not answered is sent again after these
	// times, the last one repeating.
	repeats [3]time.Duration
	// The same when the answer is that nobody can take it now; doubled each
	// time.
	minPause, maxPause time.Duration
	// How long a bridge may take to hear the first heartbeat.
	introduce time.Duration
	// How long a delivery waits for a handler that is free to claim it.
	unclaimed time.Duration
	// How long each step of a stop takes at most, beside Config.Drain.
	unsubscribe time.Duration
	handlers    time.Duration // after their contexts were cancelled
	confirm     time.Duration // outcomes
	bye         time.Duration // each of byeTries
}

var defaultPatience = patience{
	repeats:  [3]time.Duration{time.Second, 2 * time.Second, 5 * time.Second},
	minPause: 250 * time.Millisecond, maxPause: 2 * time.Second,
	introduce: time.Second, unclaimed: time.Second,
	unsubscribe: 2 * time.Second, handlers: 2 * time.Second, confirm: 5 * time.Second, bye: 300 * time.Millisecond,
}

// repeatAfter returns when to send again what was sent that often.
func (p *patience) repeatAfter(sent int) time.Duration { return p.repeats[min(sent, len(p.repeats))-1] }

// expectAnswer begins a request of j, which the caller sends.
func (w *Worker) expectAnswer(j *Job) {
	now := w.now()
	j.sent, j.sentAt, j.pause = 1, now, 0
	w.repeatAt(j, now+w.patience.repeatAfter(1))
}

func (w *Worker) repeatAt(j *Job, at time.Duration) {
	j.repeatAt = at
	if w.schedule.repeat == 0 || at < w.schedule.repeat {
		w.schedule.repeat = at
		wake(w.kick)
	}
}

// due returns the requests to send again, and finds out when the next are.
func (w *Worker) due(now time.Duration) (out []*Job) {
	w.schedule.repeat = 0
	for _, j := range w.ledger.jobs {
		if j.stage != stageClaiming && j.stage != stageSettling {
			continue
		}
		if j.repeatAt <= now {
			j.sent++
			j.repeatAt = now + w.patience.repeatAfter(j.sent)
			out = append(out, j)
		}
		if w.schedule.repeat == 0 || j.repeatAt < w.schedule.repeat {
			w.schedule.repeat = j.repeatAt
		}
	}
	return out
}

func (w *Worker) sendAll(jobs []*Job) {
	for _, j := range jobs {
		w.send(j)
	}
}

// send sends the present request of j. Without a connection it does not: all
// are sent again when there is one, and what the client could not send is
// repeated like what was not answered.
func (w *Worker) send(j *Job) {
	if !w.nc.IsConnected() {
		return
	}
	w.mu.Lock()
	body, header := j.body, j.header
	kind := ""
	switch j.stage {
	case stageClaiming:
		kind = answerClaim
	case stageSettling:
		kind = answerSettle
	}
	w.mu.Unlock()
	if kind == "" {
		return // answered, lost or given back meanwhile
	}
	err := w.nc.PublishMsg(&nats.Msg{Subject: j.reply, Reply: w.inbox + "." + kind + "." + j.token, Data: body, Header: header})
	if errors.Is(err, nats.ErrMaxPayload) {
		w.shorten(j)
	}
}

// shorten makes an outcome that is larger than the server takes smaller: it goes
// without its trace context, and if that is not enough the job is tried again.
func (w *Worker) shorten(j *Job) {
	const why = "the result is larger than the server takes"
	w.mu.Lock()
	traced, result := j.header != nil, j.verb == verbResult
	ours := j.stage == stageSettling && (traced || result)
	switch {
	case ours && traced:
		j.header = nil
	case ours:
		j.verb, j.body = verbRetry, nak{nil, false, why}.body()
		w.stats.Done--
		w.stats.Retried++
	}
	w.mu.Unlock()
	if !ours {
		return
	}
	if !traced {
		w.log.Error("the job is tried again: "+why, "job", j.ID, "target", j.Target, "bytes", len(j.result))
	}
	w.send(j)
}

// answered takes every answer that the worker gets.
func (w *Worker) answered(m *nats.Msg) {
	kind, token, _ := strings.Cut(m.Subject[len(w.inbox)+1:], ".")
	a := parseAnswer(m)
	switch kind {
	case answerClaim:
		w.claimAnswered(token, a)
	case answerSettle:
		w.settleAnswered(token, a)
	case answerBeat, answerBye:
		w.beatHeard(!a.later)
		w.meet()
		w.beatAnswered(a)
		if kind == answerBye && !a.later {
			wake(w.byeDone)
		}
	}
}

// answer is what a bridge said.
type answer struct {
	body    []byte   // unless it is a refusal
	later   bool     // nobody can take the request at present
	refused *refusal // for good
}

// refusal is the body of a -ERR.
type refusal struct {
	Code        int    `json:"code"`
	ErrCode     int    `json:"err_code"`
	Description string `json:"description"`
}

func (r *refusal) Error() string {
	return fmt.Sprintf("refused by the bridge: %s (%d/%d)", r.Description, r.Code, r.ErrCode)
}

// Unwrap makes every refusal an ErrLost.
func (r *refusal) Unwrap() error { return ErrLost }

// passing reports whether the request may be taken later.
func (r *refusal) passing() bool { return r.Code >= 500 || r.Code == 429 }

func parseAnswer(m *nats.Msg) answer {
	if len(m.Header) > 0 && len(m.Data) == 0 && m.Header.Get("Status") != "" {
		return answer{later: true} // no responders
	}
	rest, isErr := bytes.CutPrefix(m.Data, []byte("-ERR"))
	if !isErr {
		return answer{body: m.Data}
	}
	var r refusal
	if err := json.Unmarshal(rest, &r); err != nil {
		r.Description = "unreadable refusal: " + oneLine(string(rest))
	}
	if r.passing() {
		return answer{later: true}
	}
	return answer{refused: &r}
}

func (w *Worker) claimAnswered(token string, a answer) {
	w.mu.Lock()
	j := w.ledger.jobs[token]
	if j == nil || j.stage != stageClaiming {
		w.mu.Unlock()
		return
	}
	switch {
	case a.later:
		w.again(j)
	case a.refused != nil:
		w.claiming--
		w.ledger.remove(j)
	default:
		w.claiming--
		w.claimed(j, a.body)
	}
	claims := w.claims()
	w.start()
	w.mu.Unlock()
	if a.refused != nil {
		w.log.Log(context.Background(), claimLevel(a.refused), "claim refused", "job", j.ID, "target", j.Target, "error", a.refused)
	}
	w.sendAll(claims)
	if a.refused == nil {
		w.supersede(j)
	}
}

// claimLevel is how much a refused claim matters: that another worker has the
// job is daily life.
func claimLevel(r *refusal) slog.Level {
	if r.Code == 404 || r.Code == 409 {
		return slog.LevelDebug
	}
	return slog.LevelError
}

func (w *Worker) claimed(j *Job, body []byte) {
	var ok struct {
		Attempt   int   `json:"attempt"`
		AckWaitMs int64 `json:"ack_wait_ms"`
	}
	// What it says is in the delivery's headers as well.
	if err := json.Unmarshal(bytes.TrimPrefix(body, []byte("+OK")), &ok); err == nil && ok.AckWaitMs > 0 {
		j.AckWait = time.Duration(ok.AckWaitMs) * time.Millisecond
	}
	w.own(j)
	w.hasten(j.AckWait)
}

// again repeats a request that nobody can take at present.
func (w *Worker) again(j *Job) {
	j.pause = min(max(2*j.pause, w.patience.minPause), w.patience.maxPause)
	w.repeatAt(j, w.now()+j.pause)
}

func (w *Worker) settleAnswered(token string, a answer) {
	w.mu.Lock()
	j := w.ledger.jobs[token]
	if j == nil || j.stage != stageSettling {
		w.mu.Unlock()
		return
	}
	if a.later {
		w.again(j)
		w.mu.Unlock()
		return
	}
	// The answer to what took effect may have been lost; only a completion is
	// confirmed a second time.
	lost := a.refused != nil && (j.sent == 1 || j.verb <= verbResult)
	w.settling--
	w.ledger.remove(j)
	if lost {
		w.stats.Lost++
	}
	wake(w.changed)
	claims := w.claims()
	w.start()
	w.mu.Unlock()
	if lost {
		w.tellLost(j, a.refused)
	}
	w.sendAll(claims)
}

// tellLost reports a job that is no longer the worker's.
func (w *Worker) tellLost(j *Job, err error) {
	w.log.Warn("the job is no longer this worker's; another may run it", "job", j.ID, "target", j.Target, "attempt", j.Attempt, "error", err)
	if w.cfg.OnLost != nil {
		w.cfg.OnLost(j, err)
	}
}
