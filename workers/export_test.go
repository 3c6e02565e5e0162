package workers

import (
	"time"

	"github.com/delaybridge/delaybridge/subjects"
)

// Hurry makes w ten times as impatient. It is called before Run.
func (w *Worker) Hurry() {
	p := &w.patience
	for i := range p.repeats {
		p.repeats[i] /= 10
	}
	p.minPause, p.maxPause, p.introduce = p.minPause/10, p.maxPause/10, p.introduce/10
	p.unclaimed /= 10
	p.unsubscribe, p.handlers, p.confirm, p.bye = p.unsubscribe/10, p.handlers/10, p.confirm/10, p.bye/10
}

// Hoard makes w give nothing back that it has not claimed. It is called before
// Run.
func (w *Worker) Hoard() { w.patience.unclaimed = time.Hour }

// Listens reports whether w has joined its queue group.
func (w *Worker) Listens() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	want := len(w.cfg.Subjects)
	if w.directed {
		want++
	}
	return len(w.jobs) >= want
}

// Resend sends what is to be answered about that delivery once more, as after a
// lost answer.
func (w *Worker) Resend(token string) {
	w.mu.Lock()
	j := w.ledger.jobs[token]
	w.mu.Unlock()
	w.send(j)
}

// Patient makes w repeat nothing by itself. It is called before Run.
func (w *Worker) Patient() {
	w.patience.repeats = [3]time.Duration{time.Hour, time.Hour, time.Hour}
	w.patience.minPause, w.patience.maxPause = time.Hour, time.Hour
}

// Beat sends a heartbeat.
func (w *Worker) Beat() { w.beat(subjects.KindHeartbeat, answerBeat) }
