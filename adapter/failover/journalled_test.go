package failover_test

import (
	"context"
	"errors"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/delaybridge/delaybridge/job"
	"github.com/delaybridge/delaybridge/memdelay/wal/crashfs"
)

// unsaved is a Redis that keeps only what it is told to save.
func unsaved(o *rigOptions) { o.redis = []string{"--appendonly", "no"} }

// command runs one on Redis, beside the store.
func (r *rig) command(args ...any) {
	r.Helper()
	c := redis.NewClient(&redis.Options{Addr: r.redis.Addr()})
	defer c.Close()
	if err := c.Do(context.Background(), args...).Err(); err != nil {
		r.Fatalf("%v: %v", args, err)
	}
}

// loseAll lets Redis lose everything, and returns once that is made good.
func (s *scene) loseAll() {
	s.Helper()
	s.redis.Kill()
	s.redis.RestartEmpty()
	s.awaitOffer()
	s.awaitMode(job.ModeRedis)
	s.settledDown()
}

func (r *rig) offered(want int) {
	r.Helper()
	r.eventually("losses made good", func() bool { r.seen.mu.Lock(); defer r.seen.mu.Unlock(); return len(r.seen.losses) > 0 })
	r.seen.mu.Lock()
	defer r.seen.mu.Unlock()
	if r.seen.offered != want {
		r.Errorf("Redis took %d jobs of the journal, want %d; it lost %q", r.seen.offered, want, r.seen.losses)
	}
}

// TestLossBetweenProcesses: Redis loses all, or the latest, while no bridge runs.
// The next one finds out, once.
func TestLossBetweenProcesses(t *testing.T) {
	for name, lose := range map[string]func(*rig){
		"all":    func(r *rig) { r.redis.RestartEmpty() },
		"latest": func(r *rig) { r.redis.Restart() },
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, withJournal, unsaved)
			r.awaitMode(job.ModeRedis)
			r.command("save")
			r.put(journalled(mk("j", time.Hour))...)
			r.stop()
			r.redis.Kill()
			lose(r)
			r.start()
			r.awaitMode(job.ModeRedis)
			r.offered(1)
			r.want("j", job.Pending, 0, job.StoredBoth)
			r.stop()
			r.start()
			r.awaitMode(job.ModeRedis)
			if len(r.seen.losses) > 0 {
				t.Errorf("the next start finds another loss: %q", r.seen.losses)
			}
			r.want("j", job.Pending, 0, job.StoredBoth)
		})
	}
}

// TestFlushed: data goes without a connection breaking, while the bridge has
// nothing to do and while it compares its journal.
func TestFlushed(t *testing.T) {
	t.Run("idle", func(t *testing.T) {
		r := newRig(t, withJournal)
		r.awaitMode(job.ModeRedis)
		r.put(journalled(mk("j", time.Hour))...)
		r.connectAll()
		r.command("flushall")
		r.offered(1)
		r.awaitMode(job.ModeRedis)
		r.want("j", job.Pending, 0, job.StoredBoth)
	})
	t.Run("compared", func(t *testing.T) {
		s := newScene(t, withJournal)
		s.put(journalled(mk("j", time.Hour))...)
		s.beforeNext("get", func() error { s.command("flushall"); return nil })
		s.store.Reconcile(context.Background())
		s.offered(1)
		s.awaitMode(job.ModeRedis)
		s.want("j", job.Pending, 0, job.StoredBoth)
	})
}

// connectAll opens all connections to Redis that the store may have: no new one
// looks at the data first.
func (r *rig) connectAll() {
	var calls sync.WaitGroup
	for range 32 {
		calls.Go(func() {
			for range 50 {
				_, _ = r.store.Get(context.Background(), []string{"j"})
			}
		})
	}
	calls.Wait()
}

// TestReconcile: copies of jobs that ended elsewhere go, the others stay.
func TestReconcile(t *testing.T) {
	s := newScene(t, withJournal)
	s.put(journalled(mk("kept", time.Hour), mk("cancelled", time.Hour))...)
	if c, err := s.behind().Cancel(context.Background(), now(), job.ByIDs("cancelled")); err != nil || c[0].Result != job.ResultDone {
		t.Fatal(c, err)
	}
	s.store.Reconcile(context.Background())
	s.loseAll()
	s.offered(1)
	s.want("kept", job.Pending, 0, job.StoredBoth)
	s.want("cancelled", job.Cancelled, 0, job.StoredRedis)
}

// TestHandedOverIsJournalled: a put that Redis did not confirm and took all the
// same is journalled as soon as that is known.
func TestHandedOverIsJournalled(t *testing.T) {
	t.Run("delivered later", func(t *testing.T) {
		s := newScene(t, withJournal)
		s.beforeNext("merge", func() error { return errLost })
		s.afterNext("put", func() error { return errLost })
		s.one(journalled(mk("x", 0))[0], job.StoredLocal)
		s.retriedAndLost(s.claim(1)[0])
	})
	t.Run("delivered before", func(t *testing.T) {
		s := newScene(t, withJournal)
		var d job.Delivery
		s.afterNext("put", func() error { d = s.claim(1)[0]; return errLost })
		s.one(journalled(mk("x", 0))[0], job.StoredBoth)
		s.retriedAndLost(d)
	})
}

// TestKeptIsJournalled: what Redis knows better than the local store, and the
// bridge finds out before it trusts Redis, is journalled as Redis has it.
func TestKeptIsJournalled(t *testing.T) {
	s := newScene(t, withJournal, func(o *rigOptions) { o.limits.Dwell, o.limits.MaxDwell = time.Hour, time.Hour })
	s.beforeNext("merge", func() error { s.setAway(true); return errLost })
	s.afterNext("put", func() error { return errLost })
	s.one(journalled(mk("x", 0))[0], job.StoredLocal)
	s.awaitMode(job.ModeLocal)
	if c, err := s.store.Reschedule(context.Background(), []job.Reschedule{{ID: "x", Due: now().Add(time.Hour)}}); err != nil || c[0].Result != job.ResultDone {
		t.Fatal(c, err)
	}
	s.claimAsPeer()
	s.setAway(false)
	s.settledDown()
	if m := s.store.Mode(); m != job.ModeLocal {
		t.Errorf("mode %v, want local", m)
	}
	if f := s.journal.Find([]string{"x"})[0]; f.State != job.Pending || f.Attempt != 1 {
		t.Errorf("the journal has %+v", f)
	}
}

func (s *scene) retriedAndLost(d job.Delivery) {
	s.settledDown()
	s.mustSettle(d, job.Retry, now().Add(time.Hour))
	s.want("x", job.Pending, 1, job.StoredBoth)
	s.loseAll()
	s.offered(1)
	if i := s.get("x"); i.State != job.Pending {
		s.Errorf("x is %q", i.State)
	}
}

// TestNotInTheJournal: what is said of the journal is what it holds.
func TestNotInTheJournal(t *testing.T) {
	s := newScene(t, withJournal)
	if _, err := s.behind().Put(context.Background(), journalled(mk("x", time.Hour))); err != nil {
		t.Fatal(err)
	}
	s.want("x", job.Pending, 0, job.StoredRedis)
}

// TestRolledBack: Redis comes back from before a completion, which the journal
// knows of, and nobody has looked at it yet, or it is not trusted yet.
func TestRolledBack(t *testing.T) {
	t.Run("not noticed", func(t *testing.T) {
		s := newScene(t, withJournal, unsaved)
		s.put(journalled(mk("x", 0))...)
		s.mustSettle(s.claim(1)[0], job.Retry, now())
		s.command("save")
		s.mustSettle(s.claim(1)[0], job.Complete, 0)
		hold, reached := make(chan struct{}), make(chan struct{})
		s.beforeNext("probe", func() error { close(reached); <-hold; return nil })
		s.await("a probe", reached)
		s.redis.Kill()
		s.redis.Restart()
		for range 20 {
			s.nothingDue()
		}
		close(hold)
		s.awaitOffer()
		s.awaitMode(job.ModeRedis)
		s.want("x", job.Done, 2, job.StoredRedis)
		s.silentThroughout()
	})
	t.Run("not trusted", func(t *testing.T) {
		s := newScene(t, withJournal, unsaved, func(o *rigOptions) { o.limits.Dwell, o.limits.MaxDwell = time.Hour, time.Hour })
		s.put(journalled(mk("x", 0))...)
		s.command("save")
		s.mustSettle(s.claim(1)[0], job.Complete, 0)
		s.unplug()
		s.redis.Kill()
		s.redis.Restart()
		read := make(chan struct{})
		s.afterNext("upcoming", func() error { close(read); return nil })
		s.setAway(false)
		s.await("a refill", read)
		s.nothingDue()
	})
	t.Run("of another bridge's job", func(t *testing.T) {
		s := newScene(t, withJournal)
		s.put(journalled(mk("x", 0))...)
		d := s.claim(1)[0]
		s.mustSettle(d, job.Complete, 0)
		again := journalled(mk("x", 0))
		again[0].Incarnation, again[0].Due = d.Incarnation, d.Due
		s.forgetInRedis("x")
		if _, err := s.behind().Put(context.Background(), again); err != nil {
			t.Fatal(err)
		}
		s.nothingDue()
		s.want("x", job.Done, 1, job.StoredRedis)
	})
}

// forgetInRedis makes Redis forget that the job ended, as if it were restored.
func (s *scene) forgetInRedis(id string) {
	s.Helper()
	c := redis.NewClient(&redis.Options{Addr: s.redis.Addr()})
	defer c.Close()
	ctx := context.Background()
	for _, key := range c.Keys(ctx, "*").Val() {
		if c.Type(ctx, key).Val() == "hash" {
			c.HDel(ctx, key, id)
		}
	}
}

// TestEndedBeforeJournalled: a job is complete, or cancelled, before its copy is
// written.
func TestEndedBeforeJournalled(t *testing.T) {
	t.Run("complete", func(t *testing.T) {
		s := newScene(t, withJournal)
		s.afterNext("put", func() error { s.mustSettle(s.claim(1)[0], job.Complete, 0); return nil })
		s.put(journalled(mk("x", 0))...)
		s.loseAll()
		s.offered(0)
		s.want("x", job.Done, 1, job.StoredRedis)
		s.silentThroughout()
	})
	t.Run("cancelled", func(t *testing.T) {
		s := newScene(t, withJournal)
		s.afterNext("put", func() error { s.mustCancel("x"); return nil })
		s.put(journalled(mk("x", 0))...)
		s.loseAll()
		s.offered(0)
		s.want("x", job.Cancelled, 0, job.StoredRedis)
		s.silentThroughout()
	})
	t.Run("another one cancelled", func(t *testing.T) {
		s := newScene(t, withJournal)
		s.put(journalled(mk("x", time.Hour))...)
		s.beforeNext("put", func() error { s.mustCancel("x"); return nil })
		s.put(journalled(mk("x", time.Hour))...)
		s.loseAll()
		s.offered(1)
		s.want("x", job.Pending, 0, job.StoredBoth)
	})
	t.Run("put after a cancellation", func(t *testing.T) {
		s := newScene(t, withJournal)
		s.put(journalled(mk("x", time.Hour))...)
		s.afterNext("cancel", func() error { s.put(journalled(mk("x", time.Hour))...); return nil })
		s.mustCancel("x")
		s.want("x", job.Pending, 0, job.StoredBoth)
		s.loseAll()
		s.offered(1)
		s.want("x", job.Pending, 0, job.StoredBoth)
	})
	t.Run("merged", func(t *testing.T) {
		s := newScene(t, withJournal)
		s.unplug()
		s.one(journalled(mk("x", 0))[0], job.StoredLocal)
		ran := make(chan struct{})
		s.afterNext("merge", func() error {
			defer close(ran)
			s.mustSettle(s.claim(1)[0], job.Complete, 0)
			return nil
		})
		s.setAway(false)
		s.await("a merge", ran)
		s.awaitMode(job.ModeRedis)
		s.settledDown()
		s.loseAll()
		s.offered(0)
		s.silentThroughout()
	})
}

// TestChangedInTheJournal: a copy follows its job.
func TestChangedInTheJournal(t *testing.T) {
	reschedule := func(s *scene, r job.Reschedule) {
		s.Helper()
		if c, err := s.store.Reschedule(context.Background(), []job.Reschedule{r}); err != nil || c[0].Result != job.ResultDone {
			s.Fatalf("Reschedule: %+v, %v", c, err)
		}
	}
	t.Run("rescheduled", func(t *testing.T) {
		s := newScene(t, withJournal)
		s.put(journalled(mk("x", 10*time.Second))...)
		due := now().Add(time.Hour)
		reschedule(s, job.Reschedule{ID: "x", Due: due})
		s.loseAll()
		if i := s.want("x", job.Pending, 0, job.StoredBoth); i.Due != due {
			t.Errorf("due %v, want %v", i.Due.Time(), due.Time())
		}
		s.silent("after the loss")
	})
	t.Run("requeued", func(t *testing.T) {
		s := newScene(t, withJournal)
		s.put(journalled(mk("x", 0))...)
		s.mustSettle(s.claim(1)[0], job.Bury, 0)
		s.want("x", job.Dead, 1, job.StoredBoth)
		reschedule(s, job.Reschedule{ID: "x", Due: now().Add(time.Hour), Requeue: true})
		s.loseAll()
		s.want("x", job.Pending, 1, job.StoredBoth)
	})
	t.Run("replaced", func(t *testing.T) {
		s := newScene(t, withJournal)
		s.put(journalled(mk("x", 10*time.Second))...)
		j := mk("x", time.Hour)
		j.Replace = true
		s.one(j, job.StoredRedis)
		s.loseAll()
		s.offered(0)
		if i := s.get("x"); i.State != "" {
			t.Errorf("the job that was replaced is back: %s", i.State)
		}
	})
	t.Run("pruned", func(t *testing.T) {
		s := newScene(t, withJournal)
		s.put(journalled(mk("x", 0))...)
		s.mustSettle(s.claim(1)[0], job.Bury, 0)
		if n, err := s.store.Prune(context.Background(), now().Add(time.Hour), 10); n != 1 || err != nil {
			t.Fatalf("Prune: %d, %v", n, err)
		}
		s.loseAll()
		s.offered(0)
		if i := s.get("x"); i.State != "" {
			t.Errorf("the job that was pruned is back: %s", i.State)
		}
	})
}

// TestJournalFails: a disk that takes nothing hurts those who ask for it alone.
func TestJournalFails(t *testing.T) {
	fs := crashfs.New(1)
	s := newScene(t, withJournal, func(o *rigOptions) { o.journalFS, o.badDisk = fs, true })
	s.put(journalled(mk("done", 0))...)
	d := s.claim(1)[0]
	fs.Inject(func(op crashfs.Op) error {
		if op.Kind == "sync" {
			return syscall.EIO
		}
		return nil
	})
	s.mustSettle(d, job.Complete, 0)
	s.eventually("the journal has failed", func() bool { return s.journal.Usage().LogErr != nil })

	jobs := []job.Job{journalled(mk("a", time.Hour))[0], mk("b", time.Hour)}
	res, err := s.store.Put(context.Background(), jobs)
	if err != nil {
		t.Fatal(err)
	}
	if !errors.Is(res[0].Err, job.ErrUnavailable) {
		t.Errorf("asked for the journal: %+v", res[0])
	}
	if res[1].Err != nil || res[1].Stored != job.StoredRedis {
		t.Errorf("did not ask for it: %+v", res[1])
	}
	if i := s.get("a"); i.State != "" {
		t.Errorf("a was refused, and is %s in %s", i.State, i.Stored)
	}
	s.want("done", job.Done, 1, job.StoredRedis)
	s.unplug()
	s.one(journalled(mk("c", time.Hour))[0], job.StoredLocal)
	s.plug()
	s.settledDown()
	if i := s.get("c"); i.State != job.Pending {
		t.Errorf("c is %q", i.State)
	}
}
