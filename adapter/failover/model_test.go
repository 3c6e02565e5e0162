package failover_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/delaybridge/delaybridge/job"
)

// life is what the model knows of one job.
type life struct {
	due       job.Time
	acked     bool   // a Put returned
	ended     uint64 // when a completion or cancellation had returned, on the model's clock; zero: not
	maybe     bool   // one was tried whose outcome is not known
	attempt   uint32 // of the latest delivery
	nonce     uint64 // of the same
	owner     string // the worker that owns it, empty: none that is known
	owned     uint64 // when that was answered, on the model's clock
	completed bool   // by a delivery
	history   []string
}

// model checks, while others use the store, that nothing which was acknowledged
// is lost, undone or early.
type model struct {
	*rig
	clock atomic.Uint64
	mu    sync.Mutex
	jobs  map[string]*life
	held  []job.Delivery
	stats struct{ put, unput, delivered, again, ended, unended, slotted, owned, taken int }
}

// TestModel uses the store from several goroutines while Redis is cut off,
// stalled, slowed down and killed at random. DELAYBRIDGE_SEED replays a run.
func TestModel(t *testing.T) {
	runs, length := 2, 3*time.Second
	if os.Getenv("DELAYBRIDGE_SOAK") != "" {
		runs, length = 20, 15*time.Second
	}
	seed := uint64(time.Now().UnixNano())
	if text := os.Getenv("DELAYBRIDGE_SEED"); text != "" {
		seed, _ = strconv.ParseUint(text, 10, 64)
		runs = 1
	}
	for i := range runs {
		t.Run(fmt.Sprintf("run%d", i), func(t *testing.T) { runModel(t, seed+uint64(i), length) })
	}
}

func runModel(t *testing.T, seed uint64, length time.Duration) {
	t.Logf("DELAYBRIDGE_SEED=%d replays this", seed)
	m := &model{rig: newRig(t), jobs: map[string]*life{}}
	end := time.Now().Add(length)
	var wg sync.WaitGroup
	for i := range 3 {
		rnd := rand.New(rand.NewPCG(seed, uint64(i)))
		wg.Go(func() {
			for time.Now().Before(end) {
				m.step(rnd)
			}
		})
	}
	m.disturb(rand.New(rand.NewPCG(seed, 99)), end)
	wg.Wait()
	m.drain()
	t.Logf("%+v", m.stats)
	if m.stats.put < 100 || m.stats.ended < 50 || m.stats.slotted < 10 || m.stats.owned < 10 || m.stats.taken == 0 {
		t.Errorf("hardly anything happened: %+v", m.stats)
	}
}

// disturb makes faults until end, and heals the last.
func (m *model) disturb(rnd *rand.Rand, end time.Time) {
	for time.Now().Before(end) {
		time.Sleep(time.Duration(rnd.IntN(300)) * time.Millisecond) // without a fault
		fault := time.Duration(20+rnd.IntN(400)) * time.Millisecond
		switch rnd.IntN(5) {
		case 0:
			m.proxy.Cut()
		case 1:
			m.proxy.Stall()
			time.Sleep(fault)
			m.proxy.Resume()
		case 2:
			m.proxy.DropReplies(1+rnd.IntN(20), func(args []string) bool { return len(args) > 3 && args[0] == "evalsha" })
		case 3:
			m.redis.Freeze()
			time.Sleep(fault)
			m.redis.Thaw()
		case 4:
			m.redis.Kill()
			time.Sleep(fault)
			m.redis.Restart()
		}
	}
	m.proxy.DropReplies(0, func([]string) bool { return false })
}

func (m *model) step(rnd *rand.Rand) {
	switch rnd.IntN(11) {
	case 0, 1:
		m.putSome(rnd)
	case 2, 3:
		m.claimSome(rnd)
	case 4, 8:
		m.claimSlots(rnd)
	case 9, 10:
		m.ownSome(rnd)
	case 5, 6:
		m.settleSome(rnd)
	case 7:
		m.cancelOne(rnd)
	}
}

func (m *model) putSome(rnd *rand.Rand) {
	jobs := make([]job.Job, 1+rnd.IntN(20))
	for i := range jobs {
		id := ""
		if rnd.IntN(2) == 0 {
			id = fmt.Sprintf("chosen-%x", rnd.Uint64())
		}
		jobs[i] = mk(id, time.Duration(rnd.IntN(500))*time.Millisecond)
		if rnd.IntN(2) == 0 {
			jobs[i].Target = directed
		}
		jobs[i].AckWait = time.Second
		jobs[i].MaxAttempts = 0
	}
	res, err := m.store.Put(context.Background(), jobs)
	m.mu.Lock()
	defer m.mu.Unlock()
	for i := range jobs {
		l := m.life(jobs[i].ID)
		l.due = jobs[i].Due
		if err != nil || res[i].Err != nil {
			m.stats.unput++
			continue
		}
		if res[i].Duplicate {
			m.Errorf("%s is a duplicate", jobs[i].ID)
		}
		m.stats.put++
		l.acked = true
		m.note(jobs[i].ID, "put, in %s", res[i].Stored)
	}
}

// note adds to the history of a job. m.mu is held.
func (m *model) note(id, format string, args ...any) {
	l := m.life(id)
	l.history = append(l.history, time.Now().Format("05.000 ")+m.store.Mode().String()+" "+fmt.Sprintf(format, args...))
}

// life returns what is known of id; a delivery may come before the answer to
// the put. m.mu is held.
func (m *model) life(id string) *life {
	l := m.jobs[id]
	if l == nil {
		l = &life{}
		m.jobs[id] = l
	}
	return l
}

func (m *model) claimSome(rnd *rand.Rand) {
	start := m.clock.Add(1)
	t := now()
	c, err := m.store.Claim(context.Background(), job.ClaimRequest{Now: t, Until: t, Max: 1 + rnd.IntN(60), Owner: "b1", Blocked: []string{directed}})
	if err != nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, d := range c.Deliveries {
		if d.Target == directed {
			m.Errorf("%s delivered to nobody, though its target is blocked", d.ID)
		}
		m.delivered(start, d)
	}
}

func (m *model) delivered(start uint64, d job.Delivery) {
	l := m.life(d.ID)
	m.note(d.ID, "attempt %d, nonce %x", d.Attempt, d.Nonce)
	m.stats.delivered++
	if l.attempt > 0 {
		m.stats.again++
	}
	switch {
	case l.ended != 0 && start > l.ended:
		m.Errorf("%s delivered at attempt %d after it had ended (completed: %v): %q", d.ID, d.Attempt, l.completed, l.history)
	case d.Attempt <= l.attempt:
		m.Errorf("%s delivered at attempt %d after %d: %q", d.ID, d.Attempt, l.attempt, l.history)
	case d.Due > now():
		m.Errorf("%s delivered before it was due", d.ID)
	}
	l.attempt, l.nonce = max(l.attempt, d.Attempt), d.Nonce
	_, l.owner = job.SplitOwner(d.Owner)
	l.owned = start
	m.held = append(m.held, d)
}

// settleSome ends some of the deliveries that are held.
func (m *model) settleSome(rnd *rand.Rand) {
	m.mu.Lock()
	n := min(len(m.held), 1+rnd.IntN(40))
	ds := m.held[:n:n]
	m.held = m.held[n:]
	m.mu.Unlock()
	list := make([]job.Settlement, n)
	for i := range ds {
		list[i] = job.Settlement{Ref: ds[i].Ref(), Target: ds[i].Target, Due: ds[i].Due}
		if rnd.IntN(4) == 0 {
			list[i].Outcome, list[i].At = job.Retry, now().Add(time.Duration(rnd.IntN(200))*time.Millisecond)
		}
	}
	m.settleAll(list)
}

func (m *model) settleAll(list []job.Settlement) {
	if len(list) == 0 {
		return
	}
	res, err := m.store.Settle(context.Background(), now(), list)
	ended := m.clock.Add(1)
	m.mu.Lock()
	defer m.mu.Unlock()
	for i := range list {
		if err == nil {
			m.note(list[i].ID, "settled %d of attempt %d: %d", list[i].Outcome, list[i].Attempt, res[i])
		} else {
			m.note(list[i].ID, "settled %d of attempt %d: %v", list[i].Outcome, list[i].Attempt, err)
		}
		if list[i].Outcome != job.Complete {
			continue
		}
		l := m.life(list[i].ID)
		switch {
		case err != nil || res[i] == job.Unreachable:
			l.maybe = true
			m.stats.unended++
		case res[i] == job.Settled || res[i] == job.Repeated:
			l.ended, l.completed = ended, true
			m.stats.ended++
		}
	}
}

func (m *model) cancelOne(rnd *rand.Rand) {
	m.mu.Lock()
	id := ""
	for k, l := range m.jobs { // any
		if l.acked && l.ended == 0 && rnd.IntN(3) == 0 {
			id = k
			break
		}
	}
	m.mu.Unlock()
	if id == "" {
		return
	}
	c, err := m.store.Cancel(context.Background(), now(), job.ByIDs(id))
	ended := m.clock.Add(1)
	m.mu.Lock()
	defer m.mu.Unlock()
	l := m.life(id)
	if err == nil {
		m.note(id, "cancel: %s", c[0].Result)
	}
	switch {
	case err != nil:
		l.maybe = true
	case c[0].Result == job.ResultDone && l.ended == 0:
		l.ended = ended
		m.stats.ended++
	case c[0].Result == job.ResultUnknown && l.ended == 0 && !l.maybe:
		m.Errorf("%s is unknown to a cancel", id)
	}
}

// drain heals nothing: it waits until all jobs have ended, as a bridge would.
func (m *model) drain() {
	rnd := rand.New(rand.NewPCG(1, 1))
	m.eventually("all jobs ended", func() bool {
		m.claimSome(rnd)
		m.claimSlots(rnd)
		m.mu.Lock()
		held := m.held
		m.held = nil
		m.mu.Unlock()
		list := make([]job.Settlement, len(held))
		for i := range held {
			list[i] = job.Settlement{Ref: held[i].Ref()}
		}
		m.settleAll(list)
		if ds, _, err := m.store.Expired(context.Background(), now(), 100); err == nil {
			again := make([]job.Settlement, len(ds))
			for i := range ds {
				again[i] = job.Settlement{Ref: ds[i].Ref(), Outcome: job.Retry, At: now()}
			}
			m.settleAll(again)
		}
		return m.allEnded()
	})
	m.awaitMode(job.ModeRedis)
}

// allEnded reports whether each job has ended, asking the store where the model
// does not know.
func (m *model) allEnded() bool {
	m.mu.Lock()
	var ids []string
	for id, l := range m.jobs {
		if l.acked && l.ended == 0 {
			ids = append(ids, id)
		}
	}
	m.mu.Unlock()
	if len(ids) == 0 {
		return true
	}
	ids = ids[:min(len(ids), 500)]
	infos, err := m.store.Get(context.Background(), ids)
	if err != nil {
		return false
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for i := range infos {
		switch l := m.jobs[ids[i]]; infos[i].State {
		case job.Done, job.Cancelled:
			if l.maybe || infos[i].State == job.Done {
				l.ended = m.clock.Add(1)
			}
		case "":
			if !l.maybe {
				m.Errorf("%s is lost", ids[i])
			}
			l.ended = m.clock.Add(1)
		}
	}
	return false
}
