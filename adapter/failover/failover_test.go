package failover_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/delaybridge/delaybridge/adapter/failover"
	"github.com/delaybridge/delaybridge/job"
	"github.com/delaybridge/delaybridge/job/jobtest"
)

func TestConformance(t *testing.T) {
	jobtest.Suite{
		Open: func(t *testing.T) job.Store {
			// What takes long on a busy machine is no failure here.
			return newRig(t, withLimits(func(l *failover.Thresholds) {
				*l = failover.Thresholds{HandOver: 5 * time.Second, MaxTimeouts: 1000, ProbeTimeout: 5 * time.Second}
			})).store
		},
		Stored: job.StoredRedis,
	}.Run(t)
}

func TestNobodyWaitsForAFrozenRedis(t *testing.T) {
	r := newRig(t)
	r.awaitMode(job.ModeRedis)
	if got := r.put(mk("", time.Hour)); got != job.StoredRedis {
		t.Fatalf("stored in %q", got)
	}
	r.redis.Freeze()
	for i := range 5 {
		start := time.Now()
		if got := r.put(mk("", time.Hour)); got != job.StoredLocal {
			t.Errorf("stored in %q", got)
		}
		if took := time.Since(start); took > 500*time.Millisecond {
			t.Errorf("put %d took %v", i, took)
		}
	}
	r.awaitMode(job.ModeLocal)
	r.redis.Thaw()
	r.awaitMode(job.ModeRedis)
	if got := r.put(mk("", time.Hour)); got != job.StoredRedis {
		t.Errorf("stored in %q", got)
	}
	r.eventually("all jobs in Redis", func() bool {
		p, err := r.store.List(context.Background(), job.Query{Limit: 100})
		return err == nil && len(p.Jobs) == 7 && p.Jobs[0].Stored == job.StoredRedis && p.Jobs[6].Stored == job.StoredRedis
	})
}

// TestOutage does to jobs of Redis, while it is away, everything that can be
// done, and looks at what Redis knows once it is back.
func TestOutage(t *testing.T) {
	r := newRig(t)
	r.awaitMode(job.ModeRedis)
	soon := 300 * time.Millisecond
	for _, id := range []string{"running", "running-done", "running-retry"} {
		r.put(mk(id, 0))
	}
	held := map[string]job.Delivery{}
	for _, d := range r.claim(3) {
		held[d.ID] = d
	}
	for _, id := range []string{"done", "retry", "dead", "cancelled", "moved", "replaced", "fired", "untouched"} {
		d := soon
		if id == "cancelled" || id == "moved" || id == "replaced" || id == "untouched" {
			d = 50 * time.Second
		}
		r.put(mk(id, d))
	}
	far := mk("far", time.Hour)
	r.put(far)
	r.down()

	for _, d := range r.claim(4) {
		held[d.ID] = d
	}
	r.nothingDue()
	later := now().Add(time.Hour)
	outcomes := map[string]struct {
		o  job.Outcome
		at job.Time
	}{
		"running-done": {job.Complete, 0}, "running-retry": {job.Retry, later},
		"done": {job.Complete, 0}, "retry": {job.Retry, later}, "dead": {job.Bury, 0},
	}
	for id, o := range outcomes {
		if got := r.settle(held[id], o.o, o.at); got != job.Settled {
			t.Errorf("%s: %v", id, got)
		}
	}
	ctx := context.Background()
	if c, err := r.store.Cancel(ctx, now(), job.ByIDs("cancelled")); err != nil || c[0].Result != job.ResultDone {
		t.Errorf("cancel: %+v, %v", c, err)
	}
	if c, err := r.store.Reschedule(ctx, []job.Reschedule{{ID: "moved", Due: later}}); err != nil || c[0].Result != job.ResultDone {
		t.Errorf("reschedule: %+v, %v", c, err)
	}
	repl := mk("replaced", time.Hour)
	repl.Replace, repl.Payload = true, []byte("new")
	r.put(repl)
	if res, err := r.store.Put(ctx, []job.Job{mk("untouched", time.Hour)}); err != nil || !res[0].Duplicate {
		t.Errorf("second put of a job in Redis: %+v, %v", res, err)
	}
	if _, err := r.store.Get(ctx, []string{"far"}); !errors.Is(err, job.ErrUnavailable) || strings.Count(err.Error(), "try again later") != 1 {
		t.Errorf("a job that only Redis knows: %v", err)
	}
	r.want("fired", job.Running, 1, job.StoredLocal)
	r.want("running", job.Running, 1, job.StoredRedis)

	r.up()
	r.want("running", job.Running, 1, job.StoredRedis)
	r.want("running-done", job.Done, 1, job.StoredRedis)
	r.want("running-retry", job.Pending, 1, job.StoredRedis)
	r.want("done", job.Done, 1, job.StoredRedis)
	r.want("retry", job.Pending, 1, job.StoredRedis)
	r.want("dead", job.Dead, 1, job.StoredRedis)
	r.want("cancelled", job.Cancelled, 0, job.StoredRedis)
	if i := r.want("moved", job.Pending, 0, job.StoredRedis); i.Next != later {
		t.Errorf("moved is due at %v", i.Next.Time())
	}
	if i := r.want("replaced", job.Pending, 0, job.StoredRedis); string(i.Payload) != "new" {
		t.Errorf("replaced has payload %q", i.Payload)
	}
	r.want("untouched", job.Pending, 0, job.StoredRedis)
	r.want("far", job.Pending, 0, job.StoredRedis)
	r.want("fired", job.Running, 1, job.StoredRedis)
	r.nothingDue()
	// A worker that got its job during the outage settles it after.
	for _, id := range []string{"fired", "running"} {
		if got := r.settle(held[id], job.Complete, 0); got != job.Settled {
			t.Errorf("%s after the outage: %v", id, got)
		}
		r.want(id, job.Done, 1, job.StoredRedis)
	}
	if got := r.settle(held["done"], job.Complete, 0); got != job.Repeated {
		t.Errorf("done again: %v", got)
	}
}

// TestBornInAnOutage does the same to jobs that Redis has never seen.
func TestBornInAnOutage(t *testing.T) {
	r := newRig(t)
	r.awaitMode(job.ModeRedis)
	r.down()
	due := []string{"done", "retry", "dead", "running"}
	for _, id := range due {
		if got := r.put(mk(id, 0)); got != job.StoredLocal {
			t.Fatalf("stored in %q", got)
		}
	}
	held := map[string]job.Delivery{}
	for _, d := range r.claim(len(due)) {
		held[d.ID] = d
	}
	later := now().Add(time.Hour)
	r.settle(held["done"], job.Complete, 0)
	r.settle(held["retry"], job.Retry, later)
	r.settle(held["dead"], job.Bury, 0)
	r.put(mkMany(600, "waiting-%03d", time.Hour)...)
	r.up()
	r.want("done", job.Done, 1, job.StoredRedis)
	r.want("retry", job.Pending, 1, job.StoredRedis)
	r.want("dead", job.Dead, 1, job.StoredRedis)
	r.want("running", job.Running, 1, job.StoredRedis)
	for i := range 600 {
		r.want(fmt.Sprintf("waiting-%03d", i), job.Pending, 0, job.StoredRedis)
	}
	if got := r.settle(held["running"], job.Complete, 0); got != job.Settled {
		t.Errorf("running: %v", got)
	}
	r.nothingDue()
}

// TestSuspect lets Redis take jobs and lose the answers: each is then in both
// stores, and must be delivered once.
func TestSuspect(t *testing.T) {
	const jobs = 50
	r := newRig(t, withLimits(func(l *failover.Thresholds) { l.ProbeEvery = time.Minute }))
	r.awaitMode(job.ModeRedis)
	ingest := func(args []string) bool { return len(args) > 3 && args[0] == "evalsha" }
	for i := range jobs {
		r.proxy.DropReplies(1<<30, ingest)
		if got := r.put(mk(fmt.Sprintf("j-%02d", i), 0)); got != job.StoredLocal {
			t.Fatalf("stored in %q", got)
		}
		r.proxy.DropReplies(0, ingest)
	}
	r.awaitMode(job.ModeRedis)
	seen := map[string]bool{}
	for _, d := range r.claim(jobs) {
		if seen[d.ID] || d.Attempt != 1 {
			t.Errorf("%s came again, at attempt %d", d.ID, d.Attempt)
		}
		seen[d.ID] = true
		if got := r.settle(d, job.Complete, 0); got != job.Settled {
			t.Errorf("%s: %v", d.ID, got)
		}
	}
	r.eventually("all moved", func() bool { return r.get("j-00").Stored == job.StoredRedis })
	r.nothingDue()
}

// TestConflict publishes an id again that lives in Redis, beyond the horizon.
func TestConflict(t *testing.T) {
	r := newRig(t)
	r.awaitMode(job.ModeRedis)
	for _, id := range []string{"stays", "replaced", "settled"} {
		r.put(mk(id, time.Hour))
	}
	r.down()
	second := func(id string, d time.Duration) job.Job {
		j := mk(id, d)
		j.Payload = []byte("second")
		return j
	}
	r.put(second("stays", 2*time.Hour))
	repl := second("replaced", 2*time.Hour)
	repl.Replace = true
	r.put(repl)
	r.put(second("settled", 0))
	r.settle(r.claim(1)[0], job.Complete, 0)
	r.up()
	if i := r.want("stays", job.Pending, 0, job.StoredRedis); string(i.Payload) == "second" {
		t.Error("the older job did not stay")
	}
	if i := r.want("replaced", job.Pending, 0, job.StoredRedis); string(i.Payload) != "second" {
		t.Error("the job was not replaced")
	}
	r.want("settled", job.Done, 1, job.StoredRedis)
	r.seen.mu.Lock()
	defer r.seen.mu.Unlock()
	if len(r.seen.joined) < 2 {
		t.Errorf("told of %d conflicts", len(r.seen.joined))
	}
}

func TestStartsWithoutRedis(t *testing.T) {
	r := newRig(t)
	r.awaitMode(job.ModeRedis)
	r.put(mk("in-redis", time.Hour))
	r.stop()
	r.redis.Kill()
	r.start()
	if m := r.store.Mode(); m != job.ModeLocal {
		t.Fatalf("mode %s", m)
	}
	r.put(mk("due", 0))
	r.put(mk("local", time.Hour))
	d := r.claim(1)[0]
	r.stop() // and again, with jobs on disk
	r.start()
	if got := r.settle(d, job.Complete, 0); got != job.Settled {
		t.Errorf("settled after a restart: %v", got)
	}
	r.up()
	r.want("in-redis", job.Pending, 0, job.StoredRedis)
	r.want("local", job.Pending, 0, job.StoredRedis)
	r.want("due", job.Done, 1, job.StoredRedis)
}

func TestCutMigration(t *testing.T) {
	const jobs = 6000
	r := newRig(t)
	r.awaitMode(job.ModeRedis)
	r.down()
	r.put(mkMany(jobs, "j-%04d", 0)...)
	r.redis.Restart()
	for range 3 {
		r.awaitMode(job.ModeMigrating)
		r.proxy.Cut()
		r.proxy.Stall()
		r.eventually("turned away or done", func() bool { return r.store.Mode() != job.ModeMigrating })
		r.proxy.Resume()
		if r.store.Mode() == job.ModeRedis {
			break
		}
	}
	r.awaitMode(job.ModeRedis)
	seen := map[string]bool{}
	for _, d := range r.claim(jobs) {
		if seen[d.ID] || d.Attempt != 1 {
			t.Fatalf("%s came again, at attempt %d", d.ID, d.Attempt)
		}
		seen[d.ID] = true
	}
	r.nothingDue()
}

func TestLimit(t *testing.T) {
	r := newRig(t, func(o *rigOptions) {
		o.local.MaxJobs = 10
		o.limits.HandOver = 10 * time.Second // Redis takes what is meant for it, however slowly
	})
	r.awaitMode(job.ModeRedis)
	r.put(mkMany(50, "redis-%d", 200*time.Millisecond)...)
	r.down()
	r.put(mkMany(10, "local-%d", 0)...)
	res, err := r.store.Put(context.Background(), []job.Job{mk("", 0)})
	if err != nil || !errors.Is(res[0].Err, job.ErrFull) {
		t.Fatalf("put beyond the limit: %+v, %v", res, err)
	}
	r.claim(60) // those of Redis do not count
	r.seen.mu.Lock()
	defer r.seen.mu.Unlock()
	if r.seen.fallback["rejected"] != 1 || r.seen.fallback["triggered"] != 10 {
		t.Errorf("told of %v", r.seen.fallback)
	}
}

// TestSecondOutage has Redis fail again right after its return: what the mirror
// had is still there.
func TestSecondOutage(t *testing.T) {
	r := newRig(t)
	r.awaitMode(job.ModeRedis)
	r.put(mkMany(100, "j-%02d", 2*time.Second)...)
	r.down()
	r.up()
	r.down()
	for _, d := range r.claim(100) {
		if d.Attempt != 1 {
			t.Errorf("%s came at attempt %d", d.ID, d.Attempt)
		}
	}
}

// TestHorizonMovesOn has a Redis that answers but is not trusted yet: jobs that
// were beyond the horizon when it failed are delivered.
func TestHorizonMovesOn(t *testing.T) {
	r := newRig(t, withLimits(func(l *failover.Thresholds) { l.Dwell, l.MaxDwell, l.Horizon = time.Hour, time.Hour, time.Second }))
	r.awaitMode(job.ModeRedis)
	r.put(mk("a", 3*time.Second))
	r.down()
	r.redis.Restart()
	if d := r.claim(1)[0]; r.store.Mode() != job.ModeLocal || d.Attempt != 1 || !d.Fallback {
		t.Errorf("%s came at attempt %d in mode %s", d.ID, d.Attempt, r.store.Mode())
	}
}

// TestMovedJobsAreNamed: a migration tells which jobs it moved, also of those that
// are due so late that no copy of them stays here.
func TestMovedJobsAreNamed(t *testing.T) {
	s := newScene(t)
	s.unplug()
	s.put(mk("late", 24*time.Hour), mk("soon", 30*time.Second), mk("later", 48*time.Hour))
	s.plug()
	var ids []string
	s.seen.mu.Lock()
	defer s.seen.mu.Unlock()
	for _, i := range s.seen.named {
		ids = append(ids, i.ID)
	}
	slices.Sort(ids)
	if !slices.Equal(ids, []string{"late", "later", "soon"}) {
		t.Errorf("told that %q have moved", ids)
	}
}
