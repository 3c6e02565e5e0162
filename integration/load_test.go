package integration

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
)

// load is what producers send to a stand, and what its workers do with it. All
// choices follow from the seed and the number of the job.
type load struct {
	producers int
	rate      int // jobs a second, of all producers
	jobs      int // the producers end after so many; 0: when they are stopped
	delay     func(*rand.Rand) time.Duration
	local     bool // ask for a copy in the journal
	steady    bool // workers just acknowledge
}

// The targets of a load. The workers of the second refuse some jobs and forget
// about others.
const (
	swift = "swift.work"
	flaky = "flaky.work"
)

// running is a load under way.
type running struct {
	load
	s       *stand
	next    atomic.Int64
	ending  chan struct{}
	sending sync.WaitGroup
	asking  sync.WaitGroup
	ask     *nats.Conn // of workers that ask for an answer
	workers []*nats.Conn
	stop    func() // the producers; more than once is harmless
}

// run starts workers and producers.
func (l load) run(s *stand, workers int) *running {
	s.t.Helper()
	r := &running{load: l, s: s, ending: make(chan struct{}), ask: s.client()}
	s.target = swift
	for range workers {
		r.workers = append(r.workers, s.worker(swift, r.work), s.worker(flaky, r.work))
	}
	nc, start := s.client(), time.Now()
	for range l.producers {
		r.sending.Go(func() { r.produce(nc, start) })
	}
	r.stop = sync.OnceFunc(func() {
		close(r.ending)
		r.sending.Wait()
	})
	s.t.Cleanup(r.stop)
	return r
}

// produce sends one job after the other, at the pace of the load.
func (r *running) produce(nc *nats.Conn, start time.Time) {
	for {
		n := r.next.Add(1) - 1
		if r.jobs > 0 && n >= int64(r.jobs) || !r.pause(time.Until(start.Add(time.Duration(n)*time.Second/time.Duration(r.rate)))) {
			return
		}
		r.send(nc, uint64(n))
	}
}

// pause reports whether the load still goes on after d.
func (r *running) pause(d time.Duration) bool {
	select {
	case <-r.ending:
		return false
	case <-time.After(d):
		return true
	}
}

// send publishes a job until it is taken, or must not be sent again because it
// could be there twice then.
func (r *running) send(nc *nats.Conn, n uint64) {
	choose := r.s.random(n)
	due := time.Now().Add(r.delay(choose) + time.Millisecond).Truncate(time.Millisecond)
	target := swift
	if !r.steady && choose.IntN(10) == 0 {
		target = flaky
	}
	m := r.s.at(due, target)
	named := choose.IntN(2) == 0
	if named {
		m.Header.Set("Nats-Msg-Id", fmt.Sprintf("%d-%d", r.s.seed, n))
	}
	m.Header.Set("Delay-Backoff", "100ms")
	if r.local {
		m.Header.Set("Delay-Durability", "local")
	}
	for {
		reply, err := nc.RequestMsg(m, r.s.silence)
		a := r.s.Answered(m, reply, err)
		if a.ID != "" || !(named || notStored(a, err)) {
			return
		}
		if a.Error != nil && a.Error.Code != 429 && a.Error.Code != 503 {
			r.s.t.Errorf("a producer was refused: %+v", *a.Error)
			return
		}
		if !r.pause(20 * time.Millisecond) {
			return
		}
		r.s.SentAgain(m)
	}
}

// notStored reports whether it is certain that the job was not stored.
func notStored(a Answer, err error) bool {
	return errors.Is(err, nats.ErrNoResponders) || a.Error != nil && a.Error.Code == 429
}

// work handles a delivery. Some acknowledgements ask whether they are durable.
func (r *running) work(m *nats.Msg, d Delivery) {
	choose := r.s.random(uint64(d.Job)<<16 | d.Attempt<<1 | 1<<63)
	switch x := choose.Float64(); {
	case m.Subject == flaky && x < 0.02:
	case m.Subject == flaky && x < 0.1:
		r.s.Settled(d, Nacked)
		_ = m.Respond([]byte("-NAK 50ms")) // a connection that is gone shows elsewhere
	case !r.steady && x < 0.3:
		r.s.Settled(d, Unconfirmed)
		r.asking.Go(func() { r.confirm(m) })
	default:
		r.s.Settled(d, Acked)
		done(m, d)
	}
}

// confirm completes a delivery, again and again until somebody answers.
func (r *running) confirm(m *nats.Msg) {
	for range 5 {
		_, err := r.s.settleWithin(r.ask, m, "", time.Second)
		if err == nil {
			return
		}
		time.Sleep(50 * time.Millisecond) // the worker's pause before it says it again
	}
}

// finished is closed when the producers have sent all.
func (r *running) finished() <-chan struct{} {
	done := make(chan struct{})
	go func() {
		defer close(done)
		r.sending.Wait()
	}()
	return done
}

// end stops the producers, waits until nothing is left to be done, and reports
// what was broken: G8 for those who waited longer than limit.
func (r *running) end(rule Rule, limit time.Duration) {
	r.s.t.Helper()
	r.stop()
	r.s.awaitDrained()
	r.asking.Wait()
	r.s.stopInOrder()
	r.s.verify(rule, r.workers)
	for _, v := range r.s.Waiting(limit + r.s.pulse.standstill()) {
		r.s.t.Error(v)
	}
}
