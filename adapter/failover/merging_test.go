package failover_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/delaybridge/delaybridge/job"
	"github.com/delaybridge/delaybridge/memdelay/wal/crashfs"
)

// endings are what can become of a job while a merge of it is under way.
var endings = []struct {
	name    string
	running bool // when it is merged
	act     func(*scene, string, job.Delivery)
	state   job.State
}{
	{"complete", true, func(s *scene, _ string, d job.Delivery) { s.mustSettle(d, job.Complete, 0) }, job.Done},
	{"retry", true, func(s *scene, _ string, d job.Delivery) { s.mustSettle(d, job.Retry, now().Add(time.Hour)) }, job.Pending},
	{"bury", true, func(s *scene, _ string, d job.Delivery) { s.mustSettle(d, job.Bury, 0) }, job.Dead},
	{"cancel", false, func(s *scene, id string, _ job.Delivery) { s.mustCancel(id) }, job.Cancelled},
}

// TestEndsWhileMerged: what becomes of a job while a merge of it is under way
// reaches Redis, whether that has taken the older state already or not.
func TestEndsWhileMerged(t *testing.T) {
	eachID(t, "sent", func(t *testing.T, id string) { s := newScene(t); s.testEndsWhileMerged(s.beforeNext, id) })
	eachID(t, "taken", func(t *testing.T, id string) { s := newScene(t); s.testEndsWhileMerged(s.afterNext, id) })
}

func (s *scene) testEndsWhileMerged(hook func(string, func() error), id string) {
	s.unplug()
	ids := make([]string, len(endings))
	held := map[string]job.Delivery{}
	for i, e := range endings {
		j := mk("", 20*time.Second)
		if id != "" {
			j.ID = id + "-" + e.name
		}
		if e.running {
			j.Due = now()
		}
		ids[i] = s.one(j, job.StoredLocal).ID
		if e.running {
			held[ids[i]] = s.claim(1)[0]
		}
	}
	s.homecoming(hook, func() {
		for i, e := range endings {
			e.act(s, ids[i], held[ids[i]])
		}
		s.silent("during the merge")
	})
	for i, e := range endings {
		s.want(ids[i], e.state, held[ids[i]].Attempt, job.StoredRedis)
	}
	s.silentThroughout()
}

// TestEndsWhileItsStateIsMerged is the same with a job of Redis that was
// delivered without it: its state is merged before the bridge turns back.
func TestEndsWhileItsStateIsMerged(t *testing.T) {
	eachID(t, "complete", func(t *testing.T, id string) {
		s := newScene(t)
		j := s.one(mk(id, 0), job.StoredRedis)
		s.unplug()
		d := s.claim(1)[0]
		s.homecoming(s.afterNext, func() { s.mustSettle(d, job.Complete, 0) })
		s.want(j.ID, job.Done, 1, job.StoredRedis)
		s.silentThroughout()
	})
}

func (s *scene) mustSettle(d job.Delivery, o job.Outcome, at job.Time) {
	s.Helper()
	if got := s.settle(d, o, at); got != job.Settled {
		s.Errorf("settlement %d of attempt %d of %s: %v", o, d.Attempt, d.ID, got)
	}
}

func (s *scene) mustCancel(id string) {
	s.Helper()
	if c, err := s.store.Cancel(context.Background(), now(), job.ByIDs(id)); err != nil || c[0].Result != job.ResultDone {
		s.Errorf("cancel of %s: %+v, %v, want it done", id, c, err)
	}
}

// TestCancelledInAClaim: a cancellation is confirmed while a claim of the same
// job is under way in Redis, whose copy has not been merged yet.
func TestCancelledInAClaim(t *testing.T) {
	eachID(t, "id", func(t *testing.T, id string) {
		s := newScene(t)
		s.afterNext("put", func() error { return errLost })
		merge := s.holdMerge()
		j := s.one(mk(id, 0), job.StoredLocal)
		s.afterNext("claim", func() error { s.mustCancel(j.ID); return nil })
		s.silent("the claim")
		s.silent("after it")
		merge()
		s.settledDown()
		s.want(j.ID, job.Cancelled, 0, job.StoredRedis)
		s.silentThroughout()
	})
}

// TestKeptIsNotMirrored: where Redis knows a job better than the copy that was
// merged, the copy's state must not be taken for that of Redis.
func TestKeptIsNotMirrored(t *testing.T) {
	eachID(t, "id", func(t *testing.T, id string) {
		s := newScene(t)
		s.afterNext("put", func() error { return errLost })
		s.beforeNext("merge", func() error { s.claimAsPeer(); return nil })
		j := s.one(mk(id, 0), job.StoredLocal)
		s.settledDown()
		s.want(j.ID, job.Running, 1, job.StoredRedis)
		s.silentThroughout()
	})
}

// TestSettledOnTheMove: a delivery is on its way from the local store to the
// mirror, in neither of them, when it is settled and Redis does not answer.
func TestSettledOnTheMove(t *testing.T) {
	fs, disk := crashfs.New(1), newGate()
	s := newScene(t, func(o *rigOptions) { o.local.FS = fs })
	fs.Inject(disk.pass)
	s.unplug()
	j := s.one(mk("", 0), job.StoredLocal)
	d := s.claim(1)[0]
	s.afterNext("merge", func() error { disk.shut(); return nil })
	s.setAway(false)
	s.await("the disk is at work", disk.reached)
	s.eventually("the local store lets go of it", func() bool { return s.local.Find([]string{j.ID})[0].State == "" })
	s.beforeNext("settle", func() error { disk.open(); return errLost })
	s.mustSettle(d, job.Complete, 0)
	s.awaitMode(job.ModeRedis)
	s.settledDown()
	s.want(j.ID, job.Done, 1, job.StoredRedis)
	s.silentThroughout()
}

// gate holds syncs back while it is shut.
type gate struct {
	mu      sync.Mutex
	closed  chan struct{} // nil: open
	reached chan struct{} // closed when one waits
	once    sync.Once
}

func newGate() *gate { return &gate{reached: make(chan struct{})} }

func (g *gate) shut() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed = make(chan struct{})
}

func (g *gate) open() {
	g.mu.Lock()
	defer g.mu.Unlock()
	close(g.closed)
	g.closed = nil
}

func (g *gate) pass(op crashfs.Op) error {
	g.mu.Lock()
	closed := g.closed
	g.mu.Unlock()
	if closed == nil || op.Kind != "sync" {
		return nil
	}
	g.once.Do(func() { close(g.reached) })
	select {
	case <-closed:
		return nil
	case <-time.After(patient):
		return syscall.EIO
	}
}

// TestLossInACompletion: Redis confirms a completion, loses its data, and may be
// given the job back by the journal, before the journal hears of the completion.
func TestLossInACompletion(t *testing.T) {
	for name, offered := range map[string]bool{"offered before": true, "offered after": false} {
		t.Run(name, func(t *testing.T) {
			s := newScene(t, withJournal)
			s.put(journalled(mk("j", 0))...)
			d := s.claim(1)[0]
			s.afterNext("settle", func() error {
				s.redis.RestartEmpty()
				if offered {
					s.awaitOffer()
				}
				return nil
			})
			s.mustSettle(d, job.Complete, 0)
			s.awaitOffer()
			s.awaitMode(job.ModeRedis)
			s.silentThroughout()
			s.want("j", job.Done, 1, job.StoredRedis)
		})
	}
}

// TestLossInACancel is the same with a cancellation, which fails then, or is
// final.
func TestLossInACancel(t *testing.T) {
	s := newScene(t, withJournal)
	s.put(journalled(mk("j", 20*time.Second))...)
	s.afterNext("cancel", func() error { s.redis.RestartEmpty(); s.awaitOffer(); return nil })
	c, err := s.store.Cancel(context.Background(), now(), job.ByIDs("j"))
	if err != nil && errors.Is(err, job.ErrUnavailable) {
		s.awaitMode(job.ModeRedis)
		s.mustCancel("j")
	} else if err != nil || c[0].Result != job.ResultDone {
		t.Errorf("cancel: %+v, %v", c, err)
	}
	s.awaitMode(job.ModeRedis)
	s.silentThroughout()
	if i := s.get("j"); i.State != job.Cancelled {
		t.Errorf("the job is %s at attempt %d", i.State, i.Attempt)
	}
}

// TestLossInAPut is the same with a put: what is confirmed is in Redis in the end.
func TestLossInAPut(t *testing.T) {
	for _, mirrored := range []bool{false, true} { // before it is lost
		t.Run(fmt.Sprintf("mirrored=%t", mirrored), func(t *testing.T) { lossInAPut(t, mirrored) })
	}
}

func lossInAPut(t *testing.T, mirrored bool) {
	s := newScene(t, withJournal)
	s.put(journalled(mk("before", time.Hour))...)
	s.afterNext("put", func() error {
		if mirrored {
			s.eventually("the mirror has it", func() bool { return s.mirror.Find([]string{"j"})[0].State != "" })
		}
		s.redis.RestartEmpty()
		s.awaitOffer()
		return nil
	})
	j := journalled(mk("j", 20*time.Second))
	res, err := s.store.Put(context.Background(), j)
	if err != nil {
		t.Fatal(err)
	}
	s.awaitMode(job.ModeRedis)
	if errors.Is(res[0].Err, job.ErrUnavailable) {
		s.put(j...)
	}
	s.settledDown()
	s.want("j", job.Pending, 0, job.StoredBoth)
	if ds := s.claimUntil(30 * time.Second); len(ds) != 1 {
		t.Errorf("delivered %+v, want the job that was put", ds)
	}
}

// awaitOffer waits until what the journal holds was offered.
func (s *scene) awaitOffer() {
	s.Helper()
	s.eventually("a loss is made good", func() bool {
		s.seen.mu.Lock()
		defer s.seen.mu.Unlock()
		return len(s.seen.losses) > 0
	})
}

// TestCircuit: each change of the mode is told, once and in order; a relapse in
// the middle of the way back is one.
func TestCircuit(t *testing.T) {
	s := newScene(t)
	s.unplug()
	s.put(mk("j", time.Hour))
	s.homecoming(s.beforeNext, func() {
		if m := s.store.Mode(); m != job.ModeMigrating {
			t.Errorf("merged in mode %s", m)
		}
		s.unplug()
		s.setAway(false)
	})
	want := []string{
		"OPEN->HALF_OPEN", "HALF_OPEN->CLOSED", // at the start
		"CLOSED->OPEN", "OPEN->HALF_OPEN", "HALF_OPEN->OPEN", "OPEN->HALF_OPEN", "HALF_OPEN->CLOSED",
	}
	s.eventually("all changes told", func() bool {
		s.seen.mu.Lock()
		defer s.seen.mu.Unlock()
		return len(s.seen.circuits) >= len(want)
	})
	s.seen.mu.Lock()
	defer s.seen.mu.Unlock()
	if !slices.Equal(s.seen.circuits, want) {
		t.Errorf("told of %q, want %q", s.seen.circuits, want)
	}
}
