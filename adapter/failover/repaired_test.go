package failover_test

import (
	"context"
	"errors"
	"syscall"
	"testing"
	"time"

	"github.com/delaybridge/delaybridge/adapter/failover"
	"github.com/delaybridge/delaybridge/job"
	"github.com/delaybridge/delaybridge/memdelay/wal/crashfs"
)

// TestReplacedLeavesTheMirror replaces a mirrored job by one beyond the horizon:
// the first is not delivered in an outage.
func TestReplacedLeavesTheMirror(t *testing.T) {
	s := newScene(t)
	s.one(mk("x", 20*time.Second), job.StoredRedis)
	j := mk("x", time.Hour)
	j.Replace = true
	s.one(j, job.StoredRedis)
	s.unplug()
	for _, d := range s.claimUntil(30 * time.Second) {
		t.Errorf("the replaced job, due %v, is delivered", d.Due.Time())
	}
	s.setAway(false)
}

// TestChangedCopyFirst changes, in an outage, a job that Redis has too: what was
// there before is not delivered on the return.
func TestChangedCopyFirst(t *testing.T) {
	replace := func(s *scene) {
		j := mk("x", time.Hour)
		j.Replace = true
		s.one(j, job.StoredLocal)
	}
	for name, c := range map[string]struct {
		suspect bool // Redis took the put, and its answer was lost
		change  func(*scene)
	}{
		"suspect, rescheduled": {true, func(s *scene) {
			c, err := s.store.Reschedule(context.Background(), []job.Reschedule{{ID: "x", Due: now().Add(time.Hour)}})
			if err != nil || c[0].Result != job.ResultDone {
				t.Fatalf("reschedule: %+v, %v", c, err)
			}
		}},
		"suspect, replaced":           {true, replace},
		"beyond the mirror, replaced": {false, replace},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScene(t)
			if c.suspect {
				putSuspect := func() string {
					s.beforeNext("merge", func() error { s.setAway(true); return errLost })
					s.afterNext("put", func() error { return errLost })
					return s.put(mk("x", 10*time.Second))
				}
				// The mirror may read the job before the put is known to be lost: then
				// it is no suspect.
				for putSuspect() != job.StoredLocal {
					s = newScene(t)
				}
				s.awaitMode(job.ModeLocal)
			} else {
				s.one(mk("x", 70*time.Second), job.StoredRedis)
				s.unplug()
			}
			c.change(s)
			s.homecoming(s.beforeNext, func() {
				for _, d := range s.claimUntil(80 * time.Second) {
					t.Errorf("delivered with its old due time %v", d.Due.Time())
				}
			})
		})
	}
}

// TestReturnWithABadDisk has Redis come back while the log cannot be written, and
// states of Redis' jobs are held.
func TestReturnWithABadDisk(t *testing.T) {
	for name, broken := range map[string]error{"full": syscall.ENOSPC, "failed for good": syscall.EIO} {
		t.Run(name, func(t *testing.T) {
			fs := crashfs.New(1)
			s := newScene(t, func(o *rigOptions) { o.local.FS, o.badDisk = fs, true })
			s.one(mk("x", 0), job.StoredRedis)
			s.unplug()
			d := s.claim(1)[0]
			fs.Inject(func(op crashfs.Op) error {
				if op.Kind == "sync" && broken == syscall.EIO || op.Kind == "write" && broken == syscall.ENOSPC {
					return broken
				}
				return nil
			})
			if res, err := s.store.Put(context.Background(), []job.Job{mk("y", time.Hour)}); err == nil && res[0].Err == nil {
				t.Error("a put was taken by a disk that cannot be written")
			}
			s.setAway(false)
			s.eventually("a put is taken by Redis", func() bool {
				res, err := s.store.Put(context.Background(), []job.Job{mk("z", time.Hour)})
				return err == nil && (res[0].Duplicate || res[0].Err == nil && res[0].Stored == job.StoredRedis)
			})
			if res := s.settle(d, job.Complete, 0); res != job.Settled {
				t.Errorf("completed after the return: %v", res)
			}
			s.want("x", job.Done, 1, job.StoredRedis)
			fs.Inject(nil)
		})
	}
}

// TestClaimLetsGo has a claim wait for a frozen Redis: once the bridge has turned
// from it, due jobs do not wait for the connection.
func TestClaimLetsGo(t *testing.T) {
	s := newScene(t)
	s.one(mk("x", 0), job.StoredRedis)
	held, letGo := make(chan struct{}), make(chan struct{})
	s.beforeNext("claim", func() error { close(held); <-letGo; return errLost })
	failed := make(chan error, 1)
	go func() {
		_, err := s.store.Claim(context.Background(), job.ClaimRequest{Now: now(), Until: now(), Max: 1, Owner: "b1"})
		failed <- err
	}()
	s.await("claim", held)
	s.unplug()
	select {
	case err := <-failed:
		if !errors.Is(err, job.ErrUnavailable) {
			t.Errorf("claim: %v", err)
		}
	case <-time.After(patient):
		t.Error("the claim still waits for Redis")
	}
	s.claim(1)
	close(letGo)
	s.setAway(false)
}

// TestManyAtOneInstant has more jobs due at one instant than are read at once.
func TestManyAtOneInstant(t *testing.T) {
	const jobs = 4000
	s := newScene(t, withLimits(func(l *failover.Thresholds) { l.Horizon = 2 * time.Second }))
	list := mkMany(jobs, "b-%04d", 0)
	due := now().Add(6 * time.Second)
	for i := range list {
		list[i].Due = due
	}
	s.put(append(list, mk("later", 6100*time.Millisecond))...)
	s.eventually("all are mirrored", func() bool { return s.mirror.Usage().Jobs == jobs+1 })
}

// TestBusyKeepsNobody has a job on the disk whose id lives in Redis under another
// first token: it waits, the others move, and the mode is that of Redis.
func TestBusyKeepsNobody(t *testing.T) {
	s := newScene(t)
	s.one(mk("x", 2*time.Hour), job.StoredRedis)
	s.unplug()
	j := mk("x", 0)
	j.Target = "u.x"
	s.one(j, job.StoredLocal)
	s.one(mk("y", time.Hour), job.StoredLocal)
	s.setAway(false)
	s.awaitMode(job.ModeRedis)
	s.want("y", job.Pending, 0, job.StoredRedis)
}
