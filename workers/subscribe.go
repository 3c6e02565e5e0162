package workers

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/delaybridge/delaybridge/subjects"
)

// subscribeOwn subscribes to what is said to this worker alone.
func (w *Worker) subscribeOwn() error {
	worker := func(kind string) string { return subjects.Worker(w.cfg.Prefix, kind, w.cfg.Name) }
	sub, err := w.subscribe(w.inbox+".>", "", w.answered)
	if err != nil {
		return err
	}
	w.lasting = append(w.lasting, sub)
	sub, err = w.subscribe(worker(subjects.KindPing), "", func(m *nats.Msg) { m.Respond(nil) })
	if err != nil {
		w.log.Warn("bridges cannot ask whether the worker is there: they notice its death by its heartbeats alone", "error", err)
	} else {
		w.lasting = append(w.lasting, sub)
	}
	sub, err = w.subscribe(worker(subjects.KindJob), "", func(m *nats.Msg) { w.deliver(m, true) })
	w.mu.Lock()
	defer w.mu.Unlock()
	if err != nil {
		w.log.Warn("bridges cannot send jobs to the worker itself: it gets them through its queue group", "error", err)
		w.directed = false
	} else {
		w.jobs = append(w.jobs, sub)
	}
	return nil
}

// introduce waits until a bridge has heard the first heartbeat, which the keeper
// sends, or none is there: bridges then send the worker what it has room for. In
// its queue group alone it would be dealt jobs also while all of its handlers are
// busy. It returns false when the worker is to stop.
func (w *Worker) introduce(ctx context.Context) bool {
	if !w.directed {
		return ctx.Err() == nil // it has nothing but the queue group
	}
	patience := time.NewTicker(w.patience.introduce)
	defer patience.Stop()
	for {
		select {
		case <-w.known:
			return true
		case <-w.closed:
			return true // to subscribe tells
		case <-ctx.Done():
			return false
		case <-patience.C:
			if w.nc.IsConnected() {
				return true
			}
		}
	}
}

// subscribeTargets joins the queue group.
func (w *Worker) subscribeTargets() error {
	for _, subject := range w.cfg.Subjects {
		sub, err := w.subscribe(subject, w.cfg.Queue, func(m *nats.Msg) { w.deliver(m, false) })
		if err != nil {
			return err
		}
		w.mu.Lock()
		w.jobs = append(w.jobs, sub)
		w.mu.Unlock()
	}
	return nil
}

// subscribeTimeout is how long a server may take to take a subscription.
const subscribeTimeout = 5 * time.Second

// subscribe subscribes and waits until the server has taken or refused it. On
// a connection that is not up the subscription is made when it is.
func (w *Worker) subscribe(subject, queue string, cb nats.MsgHandler) (*nats.Subscription, error) {
	before := w.nc.LastError()
	sub, err := w.nc.QueueSubscribe(subject, queue, cb)
	if err != nil {
		return nil, fmt.Errorf("workers: subscribe to %q: %w", subject, err)
	}
	if !w.nc.IsConnected() {
		return sub, nil
	}
	if err := w.nc.FlushTimeout(subscribeTimeout); err != nil && w.nc.IsConnected() {
		return nil, errors.Join(fmt.Errorf("workers: subscribe to %q: %w", subject, err), sub.Unsubscribe())
	}
	// The client tells refusals to its error handler, which is the program's,
	// and keeps the last one.
	err = w.nc.LastError()
	if err != before && errors.Is(err, nats.ErrPermissionViolation) && strings.Contains(err.Error(), `"`+subject+`"`) {
		return nil, errors.Join(fmt.Errorf("workers: subscribe to %q: %w", subject, err), sub.Unsubscribe())
	}
	return sub, nil
}
