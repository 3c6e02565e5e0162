package failover_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/delaybridge/delaybridge/adapter/failover"
	"github.com/delaybridge/delaybridge/job"
)

// stage is a primary on which a test says what happens around each call.
type stage struct {
	mu     sync.Mutex
	real   failover.Primary
	away   bool
	short  int                       // pages of List are no longer than this; zero: as long as asked for
	before map[string][]func() error // by the kind of the call
	after  map[string][]func() error
}

var (
	errAway = errors.New("the stage is dark")
	errLost = errors.New("the answer is lost")
)

// around runs a call of that kind between its hooks. The error of a hook is what
// the call returns: of one before, in its place; of one after, in place of its
// answer.
func (s *stage) around(kind string, do func(failover.Primary) error) error {
	p, hook, away := s.enter(kind)
	if away {
		return errAway
	}
	if hook != nil {
		if err := hook(); err != nil {
			return err
		}
	}
	err := do(p)
	if hook := s.take(s.after, kind); hook != nil {
		if lost := hook(); lost != nil {
			return lost
		}
	}
	return err
}

func (s *stage) enter(kind string) (failover.Primary, func() error, bool) {
	s.mu.Lock()
	p, away := s.real, s.away
	s.mu.Unlock()
	if away {
		return p, nil, true
	}
	return p, s.take(s.before, kind), false
}

// take returns the next hook of that kind, which acts once.
func (s *stage) take(hooks map[string][]func() error, kind string) func() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := hooks[kind]
	if len(list) == 0 {
		return nil
	}
	hooks[kind] = list[1:]
	return list[0]
}

// beforeNext has f run before the next call of that kind, afterNext after it; a
// second one is for the call after that.
func (s *stage) beforeNext(kind string, f func() error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.before[kind] = append(s.before[kind], f)
}

func (s *stage) afterNext(kind string, f func() error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.after[kind] = append(s.after[kind], f)
}

func (s *stage) setAway(away bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.away = away
}

// behind is the primary behind the stage, as another bridge has it.
func (s *stage) behind() failover.Primary {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.real
}

// staged is the primary that the store sees.
type staged struct {
	failover.Primary // Waiting, Prune, Now, Close
	*stage
}

func (p staged) Put(ctx context.Context, jobs []job.Job) (res []job.PutResult, err error) {
	err = p.around("put", func(p failover.Primary) (err error) { res, err = p.Put(ctx, jobs); return err })
	return res, err
}

func (p staged) Claim(ctx context.Context, r job.ClaimRequest) (c job.Claimed, err error) {
	err = p.around("claim", func(p failover.Primary) (err error) { c, err = p.Claim(ctx, r); return err })
	return c, err
}

func (p staged) Expired(ctx context.Context, now job.Time, limit int) (ds []job.Delivery, next job.Time, err error) {
	err = p.around("expired", func(p failover.Primary) (err error) { ds, next, err = p.Expired(ctx, now, limit); return err })
	return ds, next, err
}

func (p staged) Settle(ctx context.Context, now job.Time, list []job.Settlement) (res []job.SettleResult, err error) {
	err = p.around("settle", func(p failover.Primary) (err error) { res, err = p.Settle(ctx, now, list); return err })
	return res, err
}

func (p staged) Get(ctx context.Context, ids []string) (infos []job.Info, err error) {
	err = p.around("get", func(p failover.Primary) (err error) { infos, err = p.Get(ctx, ids); return err })
	return infos, err
}

func (p staged) List(ctx context.Context, q job.Query) (page job.Page, err error) {
	if short := p.short; short > 0 {
		q.Limit = min(q.Limit, short)
	}
	err = p.around("list", func(p failover.Primary) (err error) { page, err = p.List(ctx, q); return err })
	return page, err
}

func (p staged) Cancel(ctx context.Context, now job.Time, list []job.Cancellation) (c []job.Change, err error) {
	err = p.around("cancel", func(p failover.Primary) (err error) { c, err = p.Cancel(ctx, now, list); return err })
	return c, err
}

func (p staged) Reschedule(ctx context.Context, list []job.Reschedule) (c []job.Change, err error) {
	err = p.around("reschedule", func(p failover.Primary) (err error) { c, err = p.Reschedule(ctx, list); return err })
	return c, err
}

func (p staged) Merge(ctx context.Context, now job.Time, items []job.MergeItem) (res []job.MergeResult, err error) {
	err = p.around("merge", func(p failover.Primary) (err error) { res, err = p.Merge(ctx, now, items); return err })
	return res, err
}

func (p staged) Upcoming(ctx context.Context, from, until job.Time, limit int) (jobs []job.Info, complete job.Time, err error) {
	err = p.around("upcoming", func(p failover.Primary) (err error) {
		jobs, complete, err = p.Upcoming(ctx, from, until, limit)
		return err
	})
	return jobs, complete, err
}

func (p staged) Probe(ctx context.Context) error {
	return p.around("probe", func(p failover.Primary) error { return p.Probe(ctx) })
}

// scene is a rig whose primary is on a stage. Its thresholds turn at the first
// failed probe and back at the first good one, and never because of calls.
type scene struct {
	*rig
	*stage
}

var onStage = failover.Thresholds{
	ProbeEvery: 10 * time.Millisecond, ProbeSuspect: 10 * time.Millisecond, ProbeTimeout: patient, ProbeFailures: 1, GoodProbes: 1,
	HandOver: 10 * time.Second, Dwell: time.Millisecond, MaxDwell: time.Millisecond,
	MinCalls: 1 << 20, MaxTimeouts: 1 << 20, MaxWaiting: 1 << 20,
}

func newScene(t testing.TB, change ...func(*rigOptions)) *scene {
	t.Helper()
	st := &stage{before: map[string][]func() error{}, after: map[string][]func() error{}}
	first := func(o *rigOptions) {
		o.limits = onStage
		o.wrap = func(p failover.Primary) failover.Primary {
			st.mu.Lock()
			defer st.mu.Unlock()
			st.real = p
			return staged{p, st}
		}
	}
	r := newRig(t, append([]func(*rigOptions){first}, change...)...)
	sc := &scene{r, st}
	r.Cleanup(func() { sc.setAway(false) })
	r.awaitMode(job.ModeRedis)
	return sc
}

// unplug takes the primary away and waits for local mode, plug gives it back and
// waits until all is there.
func (s *scene) unplug() {
	s.Helper()
	s.setAway(true)
	s.awaitMode(job.ModeLocal)
}

func (s *scene) plug() {
	s.Helper()
	s.setAway(false)
	s.awaitMode(job.ModeRedis)
}

// homecoming has f run around the next merge, in the middle of the way back, and
// returns once that is over.
func (s *scene) homecoming(hook func(string, func() error), f func()) {
	s.Helper()
	ran := make(chan struct{})
	hook("merge", func() error { defer close(ran); f(); return nil })
	s.setAway(false)
	s.await("a merge", ran)
	s.awaitMode(job.ModeRedis)
	s.settledDown()
}

func (s *scene) await(what string, c <-chan struct{}) {
	s.Helper()
	select {
	case <-c:
	case <-time.After(patient):
		s.Fatalf("in %v not so: %s", patient, what)
	}
}

// settledDown waits until the local store holds nothing any more.
func (s *scene) settledDown() {
	s.Helper()
	s.eventually("nothing is held locally", func() bool {
		u := s.local.Usage()
		return u.Jobs+u.Verdicts == 0
	})
}

// one puts one job and returns it with its id.
func (s *scene) one(j job.Job, stored string) job.Job {
	s.Helper()
	jobs := []job.Job{j}
	if got := s.put(jobs...); got != stored {
		s.Fatalf("%s is stored in %q, want %q", jobs[0].ID, got, stored)
	}
	return jobs[0]
}

// claimUntil claims what is due d from now.
func (r *rig) claimUntil(d time.Duration) []job.Delivery {
	r.Helper()
	t := now()
	c, err := r.store.Claim(context.Background(), job.ClaimRequest{Now: t, Until: t.Add(d), Max: 1000, Owner: "b1"})
	if err != nil {
		r.Fatalf("Claim: %v", err)
	}
	return c.Deliveries
}

// claimAsPeer claims one job as another bridge does.
func (s *scene) claimAsPeer() job.Delivery {
	s.Helper()
	t := now()
	c, err := s.behind().Claim(context.Background(), job.ClaimRequest{Now: t, Until: t, Max: 1, Owner: "b2"})
	if err != nil || len(c.Deliveries) != 1 {
		s.Fatalf("another bridge claims %+v, %v", c, err)
	}
	return c.Deliveries[0]
}

// silent checks that nothing is due within the next half minute.
func (s *scene) silent(when string) {
	s.Helper()
	if ds := s.claimUntil(30 * time.Second); len(ds) > 0 {
		s.Errorf("%s: %s delivered again, at attempt %d", when, ds[0].ID, ds[0].Attempt)
	}
}

// silentThroughout checks it in redis mode, in local mode and after the return.
func (s *scene) silentThroughout() {
	s.Helper()
	s.settledDown()
	s.silent("in redis mode")
	s.unplug()
	s.silent("in local mode")
	s.plug()
	s.settledDown()
	s.silent("after the return")
}

// eachID runs a test with an id that the producer chose, and with one that is
// generated.
func eachID(t *testing.T, name string, test func(t *testing.T, id string)) {
	for kind, id := range map[string]string{"chosen": "chosen", "generated": ""} {
		t.Run(fmt.Sprint(name, "/", kind), func(t *testing.T) { test(t, id) })
	}
}
