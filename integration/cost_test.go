package integration

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/delaybridge/delaybridge/workers"
)

// The tests here measure CPU time, and print it. In their short forms they show
// that what they measure works; `make bench-workers` runs the long ones.

// cpu is the time that a process has had of a core so far.
func cpu(t *testing.T, pid int) time.Duration {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	// The name of the program, in parentheses, may hold anything.
	fields := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))
	var ticks int
	for _, f := range fields[11:13] { // user and system time
		n, err := strconv.Atoi(f)
		if err != nil {
			t.Fatal(err)
		}
		ticks += n
	}
	return time.Duration(ticks) * time.Second / 100
}

func (c *child) cpu() time.Duration { return cpu(c.t, c.cmd.Process.Pid) }

// share is what of one core a process had while f ran.
func (c *child) share(f func()) float64 {
	begin, before := time.Now(), c.cpu()
	f()
	return float64(c.cpu()-before) / float64(time.Since(begin))
}

// heartbeatShare is what the heartbeats of 1,000 workers with 10 jobs each may
// take of a core of the bridge.
const heartbeatShare = 0.05

// Many workers that hold jobs and beat cost the bridge little.
//
// This test measures, so it runs beside no other.
func TestCostOfHeartbeats(t *testing.T) {
	const jobs = 10 // of each worker
	crowd, span := pick(100, 1000), pick(2*time.Second, 20*time.Second)
	w := newWorksOn(t, redisStore, "everysec") // as most are set up
	w.start()
	pause := func() { time.Sleep(span) } // what is measured
	time.Sleep(time.Second)              // the start is over
	idle := w.bridge.share(pause)
	s := startSimulation(w, crowd, jobs)
	w.flood(crowd*jobs, func(int) *nats.Msg { return w.in(0, simulated) })
	w.await(fmt.Sprintf("%d jobs held", crowd*jobs), s.full)
	beats := s.beats.Load()
	time.Sleep(2 * time.Second) // the burst is over
	busy := w.bridge.share(pause)
	fmt.Printf("\n%d workers with %d jobs each: %.1f %% of a core of the bridge, idle %.1f %%; %d heartbeats, %d answered\n\n",
		crowd, jobs, 100*busy, 100*idle, s.beats.Load(), s.answered.Load())
	if limit := pick(2, 1.0) * heartbeatShare; busy-idle >= limit {
		t.Errorf("heartbeats take %.1f %% of a core, want less than %.1f %%", 100*(busy-idle), 100*limit)
	}
	if got := s.beats.Load() - beats; got < int64(crowd)*int64(span/simulatedBeat)/2 {
		t.Errorf("only %d heartbeats were sent", got)
	}
	if n := s.deliveries.Load(); n != int64(crowd*jobs) {
		t.Errorf("%d deliveries of %d jobs", n, crowd*jobs)
	}
	s.stop()
	s.completeAll()
	w.settled()
	w.bridge.end()
}

// simulated is the target of simulated workers.
const (
	simulated     = "simulated.work"
	simulatedBeat = 2 * time.Second // as the library
)

// simulation is a crowd of workers in this process that take jobs, beat, and
// answer pings.
type simulation struct {
	w                           *works
	hands                       []*simulant
	full                        chan struct{} // closed when all slots are taken
	ending                      chan struct{}
	stop                        func() // the heartbeats; more than once is harmless
	running                     sync.WaitGroup
	beats, answered, deliveries atomic.Int64
}

// simulant is one of the crowd.
type simulant struct {
	id string
	nc *nats.Conn

	mu     sync.Mutex
	tokens []string
	msgs   []*nats.Msg
}

func startSimulation(w *works, crowd, jobs int) *simulation {
	w.t.Helper()
	s := &simulation{w: w, full: make(chan struct{}), ending: make(chan struct{})}
	var conns []*nats.Conn
	for range 10 {
		conns = append(conns, w.client())
	}
	left := new(atomic.Int64)
	left.Store(int64(crowd * jobs))
	for i := range crowd {
		h := &simulant{id: named("s", i), nc: conns[i%len(conns)]}
		s.hands = append(s.hands, h)
		s.listen(h, left)
	}
	for _, nc := range conns {
		if err := nc.Flush(); err != nil {
			w.t.Fatal(err)
		}
	}
	for i, h := range s.hands {
		first := simulatedBeat * time.Duration(i) / time.Duration(crowd) // they do not beat at once
		s.running.Go(func() { s.beat(h, jobs, first) })
	}
	s.stop = sync.OnceFunc(func() {
		close(s.ending)
		s.running.Wait()
	})
	w.t.Cleanup(s.stop)
	return s
}

func (s *simulation) listen(h *simulant, left *atomic.Int64) {
	s.w.t.Helper()
	_, err := h.nc.Subscribe("delay.job."+h.id, func(m *nats.Msg) {
		s.deliveries.Add(1)
		h.mu.Lock()
		h.tokens, h.msgs = append(h.tokens, m.Header.Get("Delay-Token")), append(h.msgs, m)
		h.mu.Unlock()
		if left.Add(-1) == 0 {
			close(s.full)
		}
	})
	if err == nil {
		_, err = h.nc.Subscribe("delay.ping."+h.id, func(m *nats.Msg) { _ = m.Respond(nil) })
	}
	if err != nil {
		s.w.t.Fatal(err)
	}
}

// beat sends heartbeats until the simulation ends.
func (s *simulation) beat(h *simulant, capacity int, first time.Duration) {
	for pause := first; ; pause = simulatedBeat {
		select {
		case <-s.ending:
			return
		case <-time.After(pause):
		}
		h.mu.Lock()
		running := slices.Clone(h.tokens)
		h.mu.Unlock()
		s.beats.Add(1)
		b := heartbeat{Worker: h.id, Queue: "workers", Subjects: []string{simulated}, Capacity: capacity, Free: max(0, capacity-len(running)), Directed: true, Running: running}
		if _, err := h.nc.Request("delay.hb."+h.id, b.json(), time.Second); err == nil {
			s.answered.Add(1)
		}
	}
}

// completeAll acknowledges all that the crowd has, and tells the Checker.
func (s *simulation) completeAll() {
	for _, h := range s.hands {
		h.mu.Lock()
		for _, m := range h.msgs {
			m.Subject = simulated
			m.Header.Del("Delay-Target")
			s.w.Delivered(m)
			_ = m.Respond(nil) // a connection that is gone shows elsewhere
		}
		h.mu.Unlock()
	}
}

// directedCost is what a job that is given to a worker and whose completion is
// confirmed may cost in comparison with a plain one that is acknowledged.
const directedCost = 1.3

// A job that a worker owns, and whose completion is confirmed, costs bridge and
// Redis little more than a plain one.
//
// This test measures, so it runs beside no other.
func TestCostOfOwnedJobs(t *testing.T) {
	rate, span := pick(2000, 10_000), pick(2*time.Second, 10*time.Second)
	plain := costPerJob(t, rate, span, plainWorkers)
	owned := costPerJob(t, rate, span, owningWorkers)
	fmt.Printf("\n%d jobs/s, CPU of bridge and Redis per job: plain %v, owned and confirmed %v: %.2f times\n\n",
		rate, plain, owned, float64(owned)/float64(plain))
	if limit := pick(3, 1.0) * directedCost; float64(owned) >= limit*float64(plain) {
		t.Errorf("an owned job costs %.2f times a plain one, want less than %.2f", float64(owned)/float64(plain), limit)
	}
}

// storeTime is how long a job takes to be stored, among many, at the most.
const storeTime = 150 * time.Microsecond

// costPerJob has jobs that are stored beforehand become due at that rate.
func costPerJob(t *testing.T, rate int, span time.Duration, run func(w *works, done func()) (stop func())) time.Duration {
	t.Helper()
	const target = crewTarget
	w := newWorksOn(t, redisStore, "everysec") // as most are set up
	w.start()
	jobs := int(span/time.Second) * rate
	all := make(chan struct{})
	var left atomic.Int64
	left.Store(int64(jobs))
	stop := run(w, func() {
		if left.Add(-1) == 0 {
			close(all)
		}
	})
	begin := time.Now().Add(time.Second + time.Duration(jobs)*storeTime).Truncate(time.Millisecond)
	w.flood(jobs, func(i int) *nats.Msg {
		return w.at(begin.Add(span*time.Duration(i)/time.Duration(jobs)).Truncate(time.Millisecond), target)
	})
	if late := time.Since(begin); late > 0 {
		t.Fatalf("the jobs were not stored in time, %v too late: is this machine very busy?", late)
	}
	before := w.bridge.cpu() + cpu(t, w.redis.PID())
	w.await("all jobs done", all)
	w.awaitEmpty()
	used := w.bridge.cpu() + cpu(t, w.redis.PID()) - before
	if n, err := w.bridge.metric("circuit_breaker_fallback_invocations_total"); err != nil || n > 0 {
		t.Fatalf("%v jobs went to the disk, %v: is this machine very busy?", n, err)
	}
	stop()
	w.bridge.end()
	return used / time.Duration(jobs)
}

// plainWorkers take jobs from a queue group and acknowledge them.
func plainWorkers(w *works, done func()) (stop func()) {
	for range 4 {
		nc := w.client()
		if _, err := nc.QueueSubscribe(crewTarget, "workers", func(m *nats.Msg) {
			_ = m.Respond(nil) // a connection that is gone shows when not all are done
			done()
		}); err != nil {
			w.t.Fatal(err)
		}
		if err := nc.Flush(); err != nil {
			w.t.Fatal(err)
		}
	}
	return func() {}
}

// owningWorkers use the library.
func owningWorkers(w *works, done func()) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	for i := range 4 {
		worker, err := workers.New(w.client(), workers.Config{
			Name: named("w", i), Subjects: []string{crewTarget}, Concurrency: 64, Logger: w.logger(named("w", i)),
		}, func(context.Context, *workers.Job) error {
			done()
			return nil
		})
		if err != nil {
			w.t.Fatal(err)
		}
		running.Go(func() {
			if err := worker.Run(ctx); err != nil {
				w.t.Error(err)
			}
		})
	}
	stop = sync.OnceFunc(func() {
		cancel()
		running.Wait()
	})
	w.t.Cleanup(stop)
	return stop
}
