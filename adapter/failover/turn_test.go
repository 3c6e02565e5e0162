package failover_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/delaybridge/delaybridge/adapter/failover"
	"github.com/delaybridge/delaybridge/job"
)

// TestTrips: each thing that turns the bridge from Redis does so once, from the
// moment on when the thresholds say so.
func TestTrips(t *testing.T) {
	for _, tc := range []struct {
		name, why string
		limits    failover.Thresholds
		fault     func(*scene)
	}{
		{"failures", "calls failed within", failover.Thresholds{MinCalls: 4}, failing(errLost)},
		{"timeouts", "4 calls timed out", failover.Thresholds{MaxTimeouts: 4, MinCalls: 1000}, failing(context.DeadlineExceeded)},
		{"waiting", "calls waited at once", failover.Thresholds{MaxWaiting: 4}, crowding},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := newScene(t)
			tc.fault(s)
			if m := s.store.Mode(); m != job.ModeRedis {
				t.Fatalf("mode %s with thresholds that are far away", m)
			}
			tc.limits.Dwell, tc.limits.MaxDwell = time.Hour, time.Hour
			if err := s.store.Reload(tc.limits); err != nil {
				t.Fatal(err)
			}
			tc.fault(s)
			s.tripped(tc.why)
		})
	}
}

// failing has calls fail with err.
func failing(err error) func(*scene) {
	return func(s *scene) {
		for range 6 {
			s.beforeNext("claim", func() error { return err })
			s.claimNow(1)
		}
	}
}

// crowding has calls wait at the same time.
func crowding(s *scene) {
	const calls = 6
	var there, done sync.WaitGroup
	there.Add(calls)
	for range calls {
		s.afterNext("claim", func() error { there.Done(); there.Wait(); return nil })
		done.Go(func() { s.claimNow(1) })
	}
	done.Wait()
}

// tripped checks that there was one turn to local mode, and its reason.
func (s *scene) tripped(why string) {
	s.Helper()
	s.awaitMode(job.ModeLocal)
	var whys []string
	s.eventually("the turn is told", func() bool {
		s.seen.mu.Lock()
		defer s.seen.mu.Unlock()
		whys = nil
		for i, to := range s.seen.turns {
			if to == job.ModeLocal {
				whys = append(whys, s.seen.whys[i])
			}
		}
		return len(whys) > 0
	})
	if len(whys) != 1 || !strings.Contains(whys[0], why) {
		s.Errorf("turned because of %q, want once because of %q", whys, why)
	}
}

// TestTripOfProbes: so many failed probes in a row turn, fewer do not.
func TestTripOfProbes(t *testing.T) {
	s := newScene(t)
	limits := onStage
	limits.ProbeFailures, limits.Dwell, limits.MaxDwell = 3, time.Hour, time.Hour
	if err := s.store.Reload(limits); err != nil {
		t.Fatal(err)
	}
	fail := func() error { return errLost }
	two := make(chan struct{})
	s.beforeNext("probe", fail)
	s.beforeNext("probe", fail)
	s.beforeNext("probe", func() error {
		if m := s.store.Mode(); m != job.ModeRedis {
			t.Errorf("mode %s after two failed probes", m)
		}
		close(two)
		return nil
	})
	s.await("a third probe", two)
	for range 3 {
		s.beforeNext("probe", fail)
	}
	s.tripped("3 probes in a row failed")
}

func TestReloadRefusesNonsense(t *testing.T) {
	s := newScene(t)
	if err := s.store.Reload(failover.Thresholds{HandOver: time.Hour}); err == nil || !strings.Contains(err.Error(), "failover.hand_over") {
		t.Errorf("Reload: %v", err)
	}
}

// friends are peers as a test wants them.
type friends struct {
	reachable, unsettled atomic.Bool
	asked                atomic.Int64
	fires                func(id string) bool
}

func (f *friends) Reachable(context.Context) bool { f.asked.Add(1); return f.reachable.Load() }
func (f *friends) Settled() bool                  { return !f.unsettled.Load() }
func (f *friends) Alone() bool                    { return false }
func (f *friends) Fires(id string) bool           { return f.fires == nil || f.fires(id) }

func withPeers(f *friends) func(*rigOptions) { return func(o *rigOptions) { o.peers = f } }

// awaitAsked waits until an answer of the peers from now on is known.
func (s *scene) awaitAsked(f *friends) {
	s.Helper()
	n := f.asked.Load()
	s.eventually("peers asked", func() bool { return f.asked.Load() >= n+2 })
}

// TestPeersReachRedis: what is due in Redis is theirs to deliver then, what this
// bridge alone has is not.
func TestPeersReachRedis(t *testing.T) {
	f := &friends{}
	f.reachable.Store(true)
	s := newScene(t, withPeers(f))
	s.put(mk("redis", 20*time.Second))
	s.unplug()
	s.awaitAsked(f)
	s.put(mk("local", 20*time.Second))
	if ds := s.claimUntil(30 * time.Second); len(ds) != 1 || ds[0].ID != "local" {
		t.Errorf("delivered %+v, want the local job", ds)
	}
	f.reachable.Store(false)
	s.awaitAsked(f)
	if ds := s.claimUntil(30 * time.Second); len(ds) != 1 || ds[0].ID != "redis" {
		t.Errorf("delivered %+v once no peer reaches Redis, want its job", ds)
	}
}

func TestPeersFire(t *testing.T) {
	s := newScene(t, withPeers(&friends{fires: func(id string) bool { return id == "mine" }}))
	s.put(mk("mine", 20*time.Second), mk("theirs", 20*time.Second))
	s.unplug()
	if ds := s.claimUntil(30 * time.Second); len(ds) != 1 || ds[0].ID != "mine" {
		t.Errorf("delivered %+v, want mine", ds)
	}
	s.plug()
	s.want("theirs", job.Pending, 0, job.StoredRedis)
}

// TestPeersNotSettled: the way back waits for peers without Redis, but not for
// ever.
func TestPeersNotSettled(t *testing.T) {
	const wait = 200 * time.Millisecond
	f := &friends{}
	s := newScene(t, withPeers(f), withLimits(func(l *failover.Thresholds) { l.PeerWait = wait }))
	f.unsettled.Store(true)
	s.unplug()
	start := time.Now()
	s.plug()
	if took := time.Since(start); took < wait {
		t.Errorf("returned after %v, want to wait %v for peers", took, wait)
	}
	limits := onStage
	limits.PeerWait = time.Hour
	if err := s.store.Reload(limits); err != nil {
		t.Fatal(err)
	}
	s.unplug()
	s.setAway(false)
	again := make(chan struct{})
	s.beforeNext("probe", func() error { return nil })
	s.beforeNext("probe", func() error { close(again); return nil }) // the one before was good, and judged
	s.await("two good probes", again)
	if m := s.store.Mode(); m != job.ModeLocal {
		t.Errorf("mode %s while a peer is without Redis", m)
	}
	f.unsettled.Store(false)
	s.awaitMode(job.ModeRedis)
}

// TestUnavailableIsSaid: in local mode what needs Redis says so.
func TestUnavailableIsSaid(t *testing.T) {
	s := newScene(t)
	s.unplug()
	_, err := s.store.List(context.Background(), job.Query{Limit: 1})
	if !errors.Is(err, job.ErrUnavailable) {
		t.Errorf("List: %v", err)
	}
	stranger := job.Delivery{Job: mk("stranger", 0), Attempt: 1, Nonce: 7}
	stranger.Incarnation = 1
	if got := s.settle(stranger, job.Complete, 0); got != job.Unreachable {
		t.Errorf("settlement of a delivery that is not known: %v", got)
	}
}
