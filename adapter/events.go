package adapter

import (
	"context"
	"encoding/json"
	"log/slog"
	"sync"
	"time"

	"github.com/delaybridge/delaybridge/job"
	"github.com/delaybridge/delaybridge/subjects"
	"go.opentelemetry.io/otel/trace"
)

// eventVersion is the version of the form of all events.
const eventVersion = 1

// The names of the events; docs/events.md.
const (
	eventRejected  = "rejected"
	eventDead      = "dead"
	eventOrphaned  = "orphaned"
	eventDegraded  = "degraded"
	eventRecovered = "recovered"
	eventMigrated  = "migrated"
	eventDataLoss  = "data_loss"
)

var eventNames = []string{eventRejected, eventDead, eventOrphaned, eventDegraded, eventRecovered, eventMigrated, eventDataLoss}

// eventHead is what all events have in common.
type eventHead struct {
	Type    string `json:"type"`
	Version int    `json:"version"`
}

// rejectedEvent is published when a message is refused that asked for no
// answer; and, at most once a second, when one is because the store is full.
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

// modeEvent is published when the shared store was lost ("degraded") or is in
// full use again ("recovered").
type modeEvent struct {
	Bridge string `json:"bridge"`
	From   string `json:"from"`
	To     string `json:"to"`
	Why    string `json:"why"`
}

// migratedEvent is published when a migration has ended; and, with an id, when
// a job that was put without the shared store met another of its id there.
type migratedEvent struct {
	Bridge    string `json:"bridge"`
	Migration string `json:"migration"`
	Jobs      int    `json:"jobs"`
	TookMS    int64  `json:"took_ms"`
	ID        string `json:"id,omitempty"`
	Target    string `json:"target,omitempty"`
}

// dataLossEvent is published when the shared store has lost jobs.
type dataLossEvent struct {
	Bridge  string `json:"bridge"`
	Why     string `json:"why"`
	Offered int    `json:"offered"` // jobs that the journal of this bridge could make good for
}

// orphanedEvent is published when jobs are taken from a worker, or from a bridge,
// that is gone: once for all that it had.
type orphanedEvent struct {
	Bridge string   `json:"bridge"`
	Worker string   `json:"worker,omitempty"` // whose they were; none: plain workers'
	Lost   string   `json:"lost,omitempty"`   // the bridge that had made the leases and is gone
	Why    string   `json:"why"`
	Jobs   int      `json:"jobs"`
	IDs    []string `json:"ids"` // the first orphanIDs of them
}

// orphanIDs is how many jobs an orphanedEvent names.
const orphanIDs = 20

// orphaned tells that fs have been taken from a worker.
func (b *Bridge) orphaned(worker, why string, fs ...[]*flight) {
	e := orphanedEvent{Bridge: b.cfg.ID, Worker: worker, Why: why}
	for _, part := range fs {
		for _, f := range part {
			e.add(f.ID)
		}
	}
	b.event(eventOrphaned, e)
}

func (e *orphanedEvent) add(id string) {
	if e.Jobs++; len(e.IDs) < orphanIDs {
		e.IDs = append(e.IDs, id)
	}
}

// heir is whom jobs were taken from that nobody looks after any more.
type heir struct{ bridge, worker string }

// orphans gathers jobs whose bridge is gone, to tell of them at once.
type orphans map[heir]*orphanedEvent

// add notes a job whose lease had that owner.
func (o orphans) add(owner, id string) {
	bridge, worker := job.SplitOwner(owner)
	k := heir{bridge, worker}
	if o[k] == nil {
		o[k] = &orphanedEvent{Worker: worker, Lost: bridge, Why: "bridge_gone"}
	}
	o[k].add(id)
}

// tell publishes what was gathered.
func (o orphans) tell(b *Bridge) {
	for _, e := range o {
		e.Bridge = b.cfg.ID
		b.event(eventOrphaned, e)
	}
}

// event publishes an event for whoever listens.
func (b *Bridge) event(name string, body any) {
	b.metrics.events.WithLabelValues(name).Inc()
	data, err := encodeEvent(name, body)
	if err == nil {
		err = b.in.Publish(subjects.Event(b.cfg.Prefix, name), data)
	}
	if err != nil {
		b.log.event.Log(b.cfg.Logger, "event not published", "event", name, "error", err)
	}
}

// encodeEvent writes the fields of all events, then those of body, which is a
// struct with at least one.
func encodeEvent(name string, body any) ([]byte, error) {
	head, err := json.Marshal(eventHead{name, eventVersion})
	if err != nil {
		return nil, err
	}
	rest, err := json.Marshal(body)
	if err != nil {
		return nil, err
	}
	return append(append(head[:len(head)-1], ','), rest[1:]...), nil
}

// logs are the lines whose number would grow with the traffic: each kind is
// written at most once per logEvery.
type logs struct {
	rejected, dead, nak, ack, settle, publish, reply, event, store, conn, worker limitedLog
}

const logEvery = time.Second

// pace lets one thing per logEvery through and counts the others.
type pace struct {
	mu      sync.Mutex
	last    time.Time
	skipped int
}

// next reports whether it is time for another one, and how many were not let
// through since the last.
func (p *pace) next() (skipped int, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	if now.Sub(p.last) < logEvery {
		p.skipped++
		return 0, false
	}
	skipped = p.skipped
	p.last, p.skipped = now, 0
	return skipped, true
}

// limitedLog writes at most one warning per logEvery and counts the others.
type limitedLog struct{ pace pace }

// Log writes msg unless one of the same kind was written just now.
func (l *limitedLog) Log(logger *slog.Logger, msg string, args ...any) {
	l.LogOf(trace.SpanContext{}, logger, msg, args...)
}

// LogOf is Log of a line about one job, whose trace is that of sc; handlers find it
// in the context of the line.
func (l *limitedLog) LogOf(sc trace.SpanContext, logger *slog.Logger, msg string, args ...any) {
	skipped, ok := l.pace.next()
	if !ok {
		return
	}
	if skipped > 0 {
		args = append(args, "more_since_last", skipped)
	}
	logger.WarnContext(trace.ContextWithSpanContext(context.Background(), sc), msg, args...)
}

func (b *Bridge) storeFailed(call string, err error) {
	b.metrics.storeErrors.WithLabelValues(call).Inc()
	b.log.store.Log(b.cfg.Logger, "store call failed", "call", call, "error", err)
}
