package adapter

import (
	"encoding/json"
	"log/slog"
	"sync"
	"time"

	"github.com/delaybridge/delaybridge/job"
	"github.com/delaybridge/delaybridge/subjects"
)

// rejectedEvent is published when a message is refused that asked for no
// answer.
type rejectedEvent struct {
	Bridge  string     `json:"bridge"`
	Subject string     `json:"subject"`
	Error   *job.Error `json:"error"`
}

// deadEvent is published when a job enters the dead-letter set.
type deadEvent struct {
	Bridge  string `json:"bridge"`
	ID      string `json:"id"`
	Target  string `json:"target"`
	Reason  string `json:"reason"`
	Attempt uint32 `json:"attempt"`
}

// event publishes an event for whoever listens.
func (b *Bridge) event(name string, body any) {
	data, err := json.Marshal(body)
	if err == nil {
		err = b.in.Publish(subjects.Event(b.cfg.Prefix, name), data)
	}
	if err != nil {
		b.log.event.Log(b.cfg.Logger, "event not published", "event", name, "error", err)
	}
}

// logs are the lines whose number would grow with the traffic: each kind is
// written at most once per logEvery.
type logs struct {
	rejected, dead, nak, ack, publish, reply, event, store, conn limitedLog
}

const logEvery = time.Second

// limitedLog writes at most one warning per logEvery and counts the others.
type limitedLog struct {
	mu      sync.Mutex
	last    time.Time
	skipped int
}

// Log writes msg unless one of the same kind was written just now.
func (l *limitedLog) Log(logger *slog.Logger, msg string, args ...any) {
	l.mu.Lock()
	now := time.Now()
	if now.Sub(l.last) < logEvery {
		l.skipped++
		l.mu.Unlock()
		return
	}
	skipped := l.skipped
	l.last, l.skipped = now, 0
	l.mu.Unlock()
	if skipped > 0 {
		args = append(args, "more_since_last", skipped)
	}
	logger.Warn(msg, args...)
}

func (b *Bridge) storeFailed(call string, err error) {
	b.metrics.storeErrors.WithLabelValues(call).Inc()
	b.log.store.Log(b.cfg.Logger, "store call failed", "call", call, "error", err)
}
