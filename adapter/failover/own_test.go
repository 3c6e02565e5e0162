package failover_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/delaybridge/delaybridge/job"
)

// aside puts n jobs that are due and has them set aside for t.x.
func (r *rig) aside(n int, format string) {
	r.Helper()
	r.put(mkMany(n, format, 0)...)
	r.eventually(fmt.Sprintf("%d jobs set aside", n), func() bool {
		t := now()
		c, err := r.store.Claim(context.Background(), job.ClaimRequest{Now: t, Until: t, Max: 100, Owner: "b1", Blocked: []string{"t.x"}})
		if err != nil || len(c.Deliveries) > 0 {
			r.Fatalf("a claim that sets all aside: %+v, %v", c.Deliveries, err)
		}
		n -= c.SetAside
		return n <= 0
	})
}

// claimSlots claims for workers with so many free slots, until n deliveries are
// there. The result is by owner.
func (r *rig) claimSlots(n int, free map[string]int) map[string][]job.Delivery {
	r.Helper()
	given := map[string][]job.Delivery{}
	r.eventually(fmt.Sprintf("%d deliveries", n), func() bool {
		var slots []job.Slot
		for owner, f := range free {
			slots = append(slots, job.Slot{Owner: owner, Free: f - len(given[owner])})
		}
		t := now()
		c, err := r.store.Claim(context.Background(), job.ClaimRequest{Now: t, Until: t, Max: 100, Owner: "b1", Target: "t.x", Slots: slots})
		if err != nil {
			return false
		}
		for _, d := range c.Deliveries {
			given[d.Owner] = append(given[d.Owner], d)
			n--
		}
		return n <= 0
	})
	for owner, ds := range given {
		if len(ds) > free[owner] {
			r.Errorf("%q has %d free and got %d", owner, free[owner], len(ds))
		}
	}
	return given
}

// own makes who the owner of a delivery, for a minute.
func (r *rig) own(d job.Delivery, who string) job.SettleResult {
	r.Helper()
	res, err := r.store.Settle(context.Background(), now(), []job.Settlement{{Ref: d.Ref(), Outcome: job.Own, At: now().Add(time.Minute), Owner: who}})
	if err != nil {
		r.Fatalf("Own: %v", err)
	}
	return res[0]
}

func (r *rig) mustOwn(d job.Delivery, who string, want job.SettleResult) {
	r.Helper()
	if got := r.own(d, who); got != want {
		r.Errorf("%s owns %s: result %d, want %d", who, d.ID, got, want)
	}
}

// wantOwner checks who has a delivery, in the store and in the one given.
func (r *rig) wantOwner(d job.Delivery, who string, stores ...job.Store) {
	r.Helper()
	for _, s := range append(stores, r.store) {
		infos, err := s.Get(context.Background(), []string{d.ID})
		got, want := infos[0].Ref(), d.Ref()
		got.Shard, want.Shard = 0, 0 // each store has its own
		if err != nil || infos[0].Owner != who || got != want {
			r.Errorf("%s is %s, %+v of %q, %v; want %+v of %q", d.ID, infos[0].State, infos[0].Ref(), infos[0].Owner, err, d.Ref(), who)
		}
	}
}

// peersLease is a delivery of another bridge, of a job that this one never saw.
func (s *scene) peersLease(id string) job.Delivery {
	s.Helper()
	ctx, p := context.Background(), s.behind()
	if _, err := p.Put(ctx, []job.Job{mk(id, time.Hour)}); err != nil {
		s.Fatal(err)
	}
	c, err := p.Claim(ctx, job.ClaimRequest{Now: now(), Until: now().Add(2 * time.Hour), Max: 1, Owner: "b2"})
	if err != nil || len(c.Deliveries) != 1 || c.Deliveries[0].ID != id {
		s.Fatalf("another bridge claims %+v, %v", c, err)
	}
	return c.Deliveries[0]
}

// TestOwnersMove gives jobs to workers in Redis and in an outage: both know their
// owners throughout, and after the return.
func TestOwnersMove(t *testing.T) {
	s := newScene(t)
	s.aside(4, "redis-%d")
	there := s.claimSlots(4, map[string]int{"b1/w1": 1, "b1/w2": 3})
	w1, w2 := there["b1/w1"][0], there["b1/w2"]
	s.one(mk("plain", 0), job.StoredRedis)
	plain := s.claim(1)[0]
	peers := s.peersLease("peers")
	s.mustOwn(w2[0], "b2/w2", job.Settled) // through another bridge
	s.mustOwn(w2[0], "b1/w1", job.Taken)

	s.unplug()
	s.aside(3, "own-%d")
	here := s.claimSlots(3, map[string]int{"b1/w1": 1, "b1/w3": 2})
	s.wantOwner(w1, "b1/w1")
	s.wantOwner(w2[0], "b2/w2")
	s.mustOwn(w2[0], "b1/w1", job.Taken)
	s.mustOwn(w2[1], "b2/w2", job.Settled)
	s.mustOwn(plain, "b1/w4", job.Settled)
	s.mustOwn(plain, "b1/w5", job.Taken)
	s.mustOwn(here["b1/w3"][0], "b1/w1", job.Taken)
	s.mustOwn(here["b1/w3"][0], "b2/w3", job.Settled)
	s.mustOwn(peers, "b1/w1", job.Unreachable)
	s.mustOwn(here["b1/w1"][0], "b1/w1", job.Settled)
	s.wantOwner(plain, "b1/w4")

	s.plug()
	s.settledDown()
	for owner, ds := range map[string][]job.Delivery{
		"b1/w1": {w1, here["b1/w1"][0]}, "b2/w2": w2[:2], "b1/w2": w2[2:], "b1/w4": {plain},
		"b2/w3": here["b1/w3"][:1], "b1/w3": here["b1/w3"][1:],
	} {
		for _, d := range ds {
			s.wantOwner(d, owner, s.behind())
			s.mustOwn(d, "b1/nobody", job.Taken)
			s.mustSettle(d, job.Complete, 0)
		}
	}
	s.wantOwner(peers, "b2", s.behind())
	s.mustOwn(peers, "b1/w1", job.Settled)
}

// TestOwnersAfterARestart: the bridge stops in an outage. Its disk knows who has
// what, and Redis is told.
func TestOwnersAfterARestart(t *testing.T) {
	s := newScene(t)
	s.aside(2, "redis-%d")
	s.unplug()
	s.aside(2, "own-%d")
	given := s.claimSlots(4, map[string]int{"b1/w1": 2, "b1/w2": 2})
	s.mustOwn(given["b1/w2"][0], "b2/w2", job.Settled)
	s.stop()
	s.setAway(false)
	s.start()
	s.awaitMode(job.ModeRedis)
	s.settledDown()
	for owner, ds := range map[string][]job.Delivery{"b1/w1": given["b1/w1"], "b2/w2": given["b1/w2"][:1], "b1/w2": given["b1/w2"][1:]} {
		for _, d := range ds {
			s.wantOwner(d, owner, s.behind())
		}
	}
}

// TestLeasesTakenOver: a bridge that has taken leases over, of its former life by
// listing them and of another one by owning them, needs no Redis to end them.
func TestLeasesTakenOver(t *testing.T) {
	s := newScene(t)
	s.aside(2, "listed-%d")
	listed := s.claimSlots(2, map[string]int{"b1/w1": 1, "b1/w2": 1})
	peers, also := s.peersLease("peers"), s.peersLease("also-peers")
	s.stop()
	s.start()
	s.awaitMode(job.ModeRedis)
	page, err := s.store.List(context.Background(), job.Query{State: job.Running, Limit: 100})
	if err != nil || len(page.Jobs) != 4 {
		t.Fatalf("%d leases listed, %v, want 4", len(page.Jobs), err)
	}
	s.mustOwn(peers, "b1/w3", job.Settled)
	s.mustOwn(also, "b3/w3", job.Settled) // not by this bridge
	s.unplug()
	for owner, d := range map[string]job.Delivery{"b1/w1": listed["b1/w1"][0], "b1/w2": listed["b1/w2"][0], "b1/w3": peers} {
		s.wantOwner(d, owner)
		s.mustOwn(d, "b1/nobody", job.Taken)
		s.mustSettle(d, job.Complete, 0)
	}
	s.mustOwn(also, "b1/w3", job.Unreachable)
	s.plug()
	s.settledDown()
	for _, d := range []job.Delivery{listed["b1/w1"][0], listed["b1/w2"][0], peers} {
		s.want(d.ID, job.Done, 1, job.StoredRedis)
	}
	s.mustSettle(also, job.Complete, 0)
	s.silentThroughout()
}

// TestOwnAnsweredAfterTheTurn: a worker owns a delivery in Redis, and the answer
// comes when the delivery has moved to the disk, where nobody or another worker
// owns it.
func TestOwnAnsweredAfterTheTurn(t *testing.T) {
	for name, tc := range map[string]struct {
		inside string
		want   job.SettleResult
		owner  string
	}{
		"nobody":         {"", job.Settled, "b1/w1"},
		"the same":       {"b2/w1", job.Settled, "b1/w1"},
		"another worker": {"b1/w2", job.Taken, "b1/w2"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScene(t)
			s.one(mk("a", 0), job.StoredRedis)
			d := s.claim(1)[0]
			s.afterNext("settle", func() error {
				s.unplug()
				if tc.inside != "" {
					s.mustOwn(d, tc.inside, job.Settled)
				} else if got := s.settle(d, job.Extend, now().Add(time.Minute)); got != job.Settled {
					t.Errorf("renewed: %d", got)
				}
				return nil
			})
			s.mustOwn(d, "b1/w1", tc.want)
			s.wantOwner(d, tc.owner)
			s.plug()
			s.settledDown()
			s.wantOwner(d, tc.owner, s.behind())
			s.mustSettle(d, job.Complete, 0)
			s.silentThroughout()
		})
	}
}

// TestOwnLost: the answer of Redis to a worker that owns a delivery is lost, before
// or after Redis has done it. It holds here, and in Redis in the end.
func TestOwnLost(t *testing.T) {
	for _, after := range []bool{true, false} {
		s := newScene(t)
		s.one(mk("a", 0), job.StoredRedis)
		d := s.claim(1)[0]
		hook := s.beforeNext
		if after {
			hook = s.afterNext
		}
		hook("settle", func() error { return errLost })
		merge := s.holdMerge()
		s.mustOwn(d, "b1/w1", job.Settled)
		s.mustOwn(d, "b1/w2", job.Taken)
		merge()
		s.settledDown()
		s.wantOwner(d, "b1/w1", s.behind())
		s.mustOwn(d, "b1/w2", job.Taken)
		s.mustSettle(d, job.Complete, 0)
		s.silentThroughout()
	}
}

// TestSlotsAnsweredAfterTheTurn: a claim for workers is under way when the bridge
// turns from Redis. Its slots are free again, and each is used once.
func TestSlotsAnsweredAfterTheTurn(t *testing.T) {
	for _, moved := range []bool{true, false} {
		s := newScene(t)
		s.aside(5, "job-%d")
		free := map[string]int{"b1/w1": 2, "b1/w2": 1}
		var inside map[string][]job.Delivery
		answered := make(chan struct{})
		s.afterNext("claim", func() error {
			defer close(answered)
			s.unplug()
			if moved {
				s.asideAgain()
				inside = s.claimSlots(3, free)
			}
			return nil
		})
		at := now()
		c, _ := s.store.Claim(context.Background(), job.ClaimRequest{
			Now: at, Until: at, Max: 10, Target: "t.x", Slots: []job.Slot{{Owner: "b1/w1", Free: 2}, {Owner: "b1/w2", Free: 1}},
		})
		s.await("an answer", answered)
		if len(c.Deliveries) > 0 {
			t.Errorf("moved %v: the late claim delivered %d jobs", moved, len(c.Deliveries))
		}
		if !moved {
			s.asideAgain()
			inside = s.claimSlots(3, free)
		}
		s.plug()
		s.settledDown()
		for owner, ds := range inside {
			for _, d := range ds {
				s.wantOwner(d, owner, s.behind())
				s.mustSettle(d, job.Complete, 0)
			}
		}
	}
}

// asideAgain sets aside here what was set aside in Redis.
func (s *scene) asideAgain() {
	s.Helper()
	t := now()
	c, err := s.store.Claim(context.Background(), job.ClaimRequest{Now: t, Until: t, Max: 100, Owner: "b1", Blocked: []string{"t.x"}})
	if err != nil || len(c.Deliveries) > 0 || c.SetAside == 0 {
		s.Fatalf("a claim that sets all aside: %+v, %v", c, err)
	}
}

// TestSetAsideIsMirrored: a delivery that Redis sets aside again is delivered from
// its copy.
func TestSetAsideIsMirrored(t *testing.T) {
	s := newScene(t)
	s.aside(2, "job-%d")
	given := s.claimSlots(2, map[string]int{"b1/w1": 1, "b1/w2": 1})
	s.mustSettle(given["b1/w1"][0], job.SetAside, now())
	s.unplug()
	s.asideAgain()
	again := s.claimSlots(1, map[string]int{"b1/w3": 5})["b1/w3"][0]
	if again.ID != given["b1/w1"][0].ID || again.Attempt != 1 {
		t.Errorf("%s delivered at attempt %d, want %s", again.ID, again.Attempt, given["b1/w1"][0].ID)
	}
	s.mustSettle(again, job.Complete, 0)
	s.plug()
	s.settledDown()
	s.want(again.ID, job.Done, 1, job.StoredRedis)
	s.wantOwner(given["b1/w2"][0], "b1/w2", s.behind())
}

// TestPeersDeliveryIsNotJudged: a copy from before another bridge made a delivery
// does not tell that it is stale.
func TestPeersDeliveryIsNotJudged(t *testing.T) {
	s := newScene(t)
	s.one(mk("a", 0), job.StoredRedis)
	d := s.claimAsPeer()
	s.unplug()
	for _, o := range []job.Outcome{job.Complete, job.Extend} {
		if got := s.settle(d, o, now().Add(time.Minute)); got != job.Unreachable {
			t.Errorf("outcome %d: result %d, want unreachable", o, got)
		}
	}
	s.plug()
	s.settledDown()
	s.mustOwn(d, "b2/w1", job.Settled)
	s.mustSettle(d, job.Complete, 0)
	s.silentThroughout()
}

// TestLeaseChangedWhileListed: what a page says of a lease is not mirrored once the
// lease has ended, belongs to somebody else, or was followed by another one.
func TestLeaseChangedWhileListed(t *testing.T) {
	s := newScene(t)
	s.aside(3, "job-%d")
	given := s.claimSlots(3, map[string]int{"b1/w1": 1, "b1": 1, "b1/w3": 1})
	s.stop()
	s.start()
	s.awaitMode(job.ModeRedis)
	freed, owned, again := given["b1/w1"][0], given["b1"][0], given["b1/w3"][0]
	read, listed, done := make(chan struct{}), make(chan struct{}), make(chan struct{})
	s.afterNext("list", func() error {
		s.settleAsPeer(again, job.Retry)
		again = s.claim(1)[0]
		s.mustSettle(freed, job.Release, now().Add(time.Second))
		s.beforeNext("get", func() error { close(read); <-listed; return nil })
		go func() { defer close(done); s.mustOwn(owned, "b1/w2", job.Settled) }()
		s.await("the lease that is owned is read", read)
		return nil
	})
	page, err := s.store.List(context.Background(), job.Query{State: job.Running, Limit: 10})
	close(listed)
	s.await("it is owned", done)
	if err != nil || len(page.Jobs) != 3 {
		t.Fatalf("%d leases listed, %v, want 3", len(page.Jobs), err)
	}
	s.unplug()
	if got := s.settle(freed, job.Complete, 0); got != job.Unreachable {
		t.Errorf("completed after it was given back: result %d, want unreachable", got)
	}
	s.wantOwner(owned, "b1/w2")
	s.mustSettle(again, job.Complete, 0)
	s.plug()
}
