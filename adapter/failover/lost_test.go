package failover_test

import (
	"context"
	"testing"
	"time"

	"github.com/delaybridge/delaybridge/job"
)

// TestPutLost: Redis takes a job, and gives it to a worker, who may even finish,
// before the put gives up waiting for its answer.
func TestPutLost(t *testing.T) {
	eachID(t, "running", func(t *testing.T, id string) { testPutLost(newScene(t), id, false) })
	eachID(t, "done", func(t *testing.T, id string) { testPutLost(newScene(t), id, true) })
}

func testPutLost(s *scene, id string, finished bool) {
	var d job.Delivery
	s.afterNext("put", func() error {
		d = s.claim(1)[0]
		if finished {
			s.settle(d, job.Complete, 0)
		}
		return errLost
	})
	s.one(mk(id, 0), job.StoredRedis)
	s.silentThroughout()
	if !finished {
		if got := s.settle(d, job.Complete, 0); got != job.Settled {
			s.Errorf("completed: %v", got)
		}
	}
	s.want(d.ID, job.Done, 1, job.StoredRedis)
	s.silentThroughout()
}

// TestPutLostAndNotClaimed: the job is in both stores, and is delivered once.
func TestPutLostAndNotClaimed(t *testing.T) {
	eachID(t, "taken", func(t *testing.T, id string) {
		s := newScene(t)
		s.afterNext("put", func() error { return errLost })
		s.one(mk(id, 0), job.StoredLocal)
		s.claim(1)
		s.silentThroughout()
	})
	eachID(t, "not taken", func(t *testing.T, id string) {
		s := newScene(t)
		s.beforeNext("put", func() error { return errLost })
		s.one(mk(id, 0), job.StoredLocal)
		s.claim(1)
		s.silentThroughout()
	})
}

// TestClaimAnsweredAfterTheTurn: a claim of Redis comes back when the bridge
// works without it, and has or has not begun to deliver its copy.
func TestClaimAnsweredAfterTheTurn(t *testing.T) {
	for _, moved := range []bool{true, false} {
		s := newScene(t)
		j := s.one(mk("", 0), job.StoredRedis)
		var inside []job.Delivery
		answered := make(chan struct{})
		s.afterNext("claim", func() error {
			defer close(answered)
			s.unplug()
			if moved {
				inside = s.claimNow(10)
			}
			return nil
		})
		ds := s.claimNow(10)
		s.await("an answer", answered)
		ds = append(ds, inside...)
		ds = append(ds, s.claimNow(10)...)
		if len(ds) != 1 || ds[0].Attempt != 1 {
			t.Fatalf("moved %v: %d deliveries, want one: %+v", moved, len(ds), ds)
		}
		s.mustSettle(ds[0], job.Complete, 0)
		s.plug()
		s.want(j.ID, job.Done, 1, job.StoredRedis)
		s.silentThroughout()
	}
}

// TestCompletionLost: the answer to a completion is lost, before or after Redis
// had it. It is final all the same, also where Redis delivers the job once more
// before it hears of it.
func TestCompletionLost(t *testing.T) {
	for _, tc := range []struct {
		name  string
		after bool // Redis has it
		again bool // Redis delivers it again
	}{{"heard", true, false}, {"unheard", false, false}, {"delivered again", false, true}} {
		eachID(t, tc.name, func(t *testing.T, id string) {
			s := newScene(t)
			s.one(mk(id, 0), job.StoredRedis)
			d := s.claim(1)[0]
			hook := s.beforeNext
			if tc.after {
				hook = s.afterNext
			}
			hook("settle", func() error { return errLost })
			merge := s.holdMerge()
			if got := s.settle(d, job.Complete, 0); got != job.Settled {
				t.Errorf("completed: %v", got)
			}
			if tc.again {
				s.settleAsPeer(d, job.Retry)
			}
			s.silent("before Redis has heard of it")
			merge()
			s.settledDown()
			s.want(d.ID, job.Done, 1, job.StoredRedis)
			s.silentThroughout()
		})
	}
}

// holdMerge keeps the next merge waiting until what it returns is called.
func (s *scene) holdMerge() (release func()) {
	held := make(chan struct{})
	s.beforeNext("merge", func() error {
		select {
		case <-held:
		case <-time.After(patient):
		}
		return nil
	})
	return func() { close(held) }
}

// settleAsPeer settles in Redis behind the store's back.
func (s *scene) settleAsPeer(d job.Delivery, o job.Outcome) {
	s.Helper()
	res, err := s.behind().Settle(context.Background(), now(), []job.Settlement{{Ref: d.Ref(), Outcome: o, At: now(), Target: d.Target, Due: d.Due}})
	if err != nil || res[0] != job.Settled {
		s.Fatalf("another bridge settles: %v, %v", res, err)
	}
}

// TestOlderCopy: of a job that another bridge delivers anew there is an older
// state here. It does not stand in the way of the newer delivery's completion.
func TestOlderCopy(t *testing.T) {
	s := newScene(t)
	s.one(mk("j", 0), job.StoredRedis)
	d := s.claim(1)[0]
	s.afterNext("settle", func() error { return errLost })
	merge := s.holdMerge()
	if got := s.settle(d, job.Retry, now()); got != job.Settled {
		t.Fatalf("retried: %v", got)
	}
	newer := s.claimAsPeer()
	if got := s.settle(newer, job.Complete, 0); got != job.Settled || newer.Attempt != 2 {
		t.Errorf("the newer delivery, attempt %d: %v", newer.Attempt, got)
	}
	merge()
	s.settledDown()
	s.want("j", job.Done, 2, job.StoredRedis)
	s.silentThroughout()
}

// TestGivenBack: a delivery of Redis that never reached a worker is given back in
// local mode. Redis has it back after the return, its budget untouched.
func TestGivenBack(t *testing.T) {
	for name, o := range map[string]job.Outcome{"release": job.Release, "set aside": job.SetAside} {
		t.Run(name, func(t *testing.T) {
			s := newScene(t)
			s.one(mk("j", 0), job.StoredRedis)
			d := s.claim(1)[0]
			s.unplug()
			if got := s.settle(d, o, now()); got != job.Settled {
				t.Fatalf("settled: %v", got)
			}
			s.plug()
			s.want("j", job.Pending, 1, job.StoredRedis)
			again := s.claimUntil(0)
			if len(again) != 1 || again[0].Attempt != 2 || again[0].Attempt-again[0].Base != 1 {
				t.Fatalf("claimed %+v, want attempt 2, the first of the budget", again)
			}
			if got := s.settle(again[0], job.Complete, 0); got != job.Settled {
				t.Errorf("completed: %v", got)
			}
		})
	}
}
