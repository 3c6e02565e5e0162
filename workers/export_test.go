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
	p.minPause, p.maxPause = p.minPause/10, p.maxPause/10
	p.unsubscribe, p.handlers, p.confirm, p.bye = p.unsubscribe/10, p.handlers/10, p.confirm/10, p.bye/10
}

// Patient makes w repeat nothing by itself. It is called before Run.
func (w *Worker) Patient() {
	w.patience.repeats = [3]time.Duration{time.Hour, time.Hour, time.Hour}
	w.patience.minPause, w.patience.maxPause = time.Hour, time.Hour
}

// Beat sends a heartbeat.
func (w *Worker) Beat() { w.beat(subjects.KindHeartbeat, answerBeat) }
