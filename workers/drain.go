package workers

import (
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/delaybridge/delaybridge/subjects"
)

// byeTries is how often a farewell is sent at most.
const byeTries = 3

// drain stops the worker, in this order: no more jobs arrive; what has not
// begun goes back; bridges are told what still runs; handlers end; outcomes
// are confirmed. At once: the handlers' contexts are cancelled first. The
// function that it returns sends the last farewell.
func (w *Worker) drain(atOnce bool) (goodbye func()) {
	wait := max(w.cfg.Drain, 0)
	if atOnce {
		wait = 0
	}
	deadline := time.Now().Add(wait)
	unowned := w.leave()
	for _, j := range unowned {
		w.giveBack(j)
	}
	w.unsubscribe(w.jobs)
	w.bye()
	w.await(time.Until(deadline), func() bool { return w.active == 0 && w.ready.len() == 0 || w.nc.IsClosed() })
	w.mu.Lock()
	w.ready = fifo{}
	w.mu.Unlock()
	w.cancelAll(ErrStopping)
	w.await(w.patience.handlers, func() bool { return w.active == 0 })
	w.await(w.patience.confirm, func() bool { return w.settling == 0 || w.nc.IsClosed() })
	return func() {
		w.abandon()
		w.bye()
	}
}

// leave ends the intake and takes out what has not begun, but for messages
// that no bridge can give to another worker. It returns what bridges do not
// know to be here, so that no farewell gives it back.
func (w *Worker) leave() (unowned []*Job) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.phase = phaseDraining
	w.roomy.Broadcast()
	for _, j := range w.ledger.jobs {
		switch j.stage {
		case stageArrived, stageClaiming:
			unowned = append(unowned, j)
			w.ledger.remove(j)
		case stageReady:
			w.ledger.remove(j)
		}
	}
	w.claiming, w.arrived = 0, fifo{}
	w.ready.remove(func(j *Job) bool { return j.token != "" })
	return unowned
}

// unsubscribe ends the subscriptions and waits until what the client has
// received has been taken in.
func (w *Worker) unsubscribe(subs []*nats.Subscription) {
	var closed sync.WaitGroup
	for _, s := range subs {
		closed.Add(1)
		once := sync.OnceFunc(closed.Done)
		s.SetClosedHandler(func(string) { once() })
		if s.Drain() != nil {
			once() // the connection is closed
		}
	}
	done := make(chan struct{})
	go func() { closed.Wait(); close(done) }()
	timeout := time.NewTimer(w.patience.unsubscribe)
	defer timeout.Stop()
	select {
	case <-done:
	case <-w.closed:
	case <-timeout.C:
	}
}

// bye tells bridges that the worker leaves, and what it still finishes, until
// one answers.
func (w *Worker) bye() {
	select {
	case <-w.byeDone: // of an earlier one
	default:
	}
	for range byeTries {
		if !w.nc.IsConnected() {
			return
		}
		w.beat(subjects.KindBye, answerBye)
		select {
		case <-w.byeDone:
			return
		case <-time.After(w.patience.bye):
		}
	}
}

// await waits until done, which is called under the mutex, or for that long.
func (w *Worker) await(limit time.Duration, done func() bool) {
	timeout := time.NewTimer(limit)
	defer timeout.Stop()
	for {
		w.mu.Lock()
		ok := done()
		w.mu.Unlock()
		if ok {
			return
		}
		select {
		case <-w.changed:
		case <-timeout.C:
			return
		}
	}
}

// abandon leaves the jobs to others whose handlers do not return.
func (w *Worker) abandon() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.phase = phaseEnded
	for _, j := range w.ledger.jobs {
		if j.stage == stageRunning {
			w.ledger.remove(j)
		}
	}
}

// end says what was left undone.
func (w *Worker) end() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.phase = phaseEnded
	switch {
	case w.active > 0:
		return fmt.Errorf("workers: %d handlers have not returned after their contexts were cancelled; others run their jobs", w.active)
	case w.settling > 0:
		return fmt.Errorf("workers: %d outcomes were not confirmed by a bridge; those jobs may run again", w.settling)
	}
	return nil
}
