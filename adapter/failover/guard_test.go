package failover_test

import (
	"context"
	"testing"
	"time"

	"github.com/delaybridge/delaybridge/job"
)

// TestGuardedChangeInEachMode: wherever a job is, a change that means another
// incarnation, or another state, leaves it; then the one that means it is made.
func TestGuardedChangeInEachMode(t *testing.T) {
	due := now().Add(2 * time.Hour)
	for _, tc := range indexModes {
		t.Run("cancel/"+tc.mode.String(), func(t *testing.T) {
			s := newScene(t)
			s.testChange(tc.mode, tc.want, job.Cancelled, func(id string) ([]job.Change, error) {
				return s.guarded(id, tc.want[id], func(incarnation uint64, wrong bool) ([]job.Change, error) {
					l := job.Cancellation{ID: id, Incarnation: incarnation}
					if wrong {
						l.State = job.Dead
					}
					return s.store.Cancel(context.Background(), now(), []job.Cancellation{l})
				})
			})
		})
		t.Run("reschedule/"+tc.mode.String(), func(t *testing.T) {
			s := newScene(t)
			s.testChange(tc.mode, tc.want, job.Pending, func(id string) ([]job.Change, error) {
				return s.guarded(id, tc.want[id], func(incarnation uint64, wrong bool) ([]job.Change, error) {
					r := job.Reschedule{ID: id, Incarnation: incarnation, Due: due, Requeue: wrong}
					return s.store.Reschedule(context.Background(), []job.Reschedule{r})
				})
			})
		})
	}
}

// guarded makes a change of a job that must change nothing, twice: of another
// incarnation, and in the wrong state. Then the right one.
func (s *scene) guarded(id string, want answer, change func(incarnation uint64, wrong bool) ([]job.Change, error)) ([]job.Change, error) {
	s.Helper()
	infos, err := s.store.Get(context.Background(), []string{id})
	if err != nil {
		if want != unreachable {
			s.Errorf("get %s: %v", id, err)
		}
		return change(1, false)
	}
	was := infos[0].Incarnation
	if c, err := change(was+1, false); err != nil || c[0].Result != job.ResultUnknown {
		s.Errorf("another incarnation of %s: %+v, %v", id, c, err)
	}
	if c, err := change(was, true); err != nil || c[0].Result == job.ResultDone {
		s.Errorf("%s in the wrong state: %+v, %v", id, c, err)
	}
	return change(was, false)
}

// TestReusedInAChange: while Redis changes a job, the bridge turns to its disk, which
// takes another job of the same id. The change is not for that one.
func TestReusedInAChange(t *testing.T) {
	for kind, change := range map[string]func(s *scene, incarnation uint64) ([]job.Change, error){
		"cancel": func(s *scene, incarnation uint64) ([]job.Change, error) {
			return s.store.Cancel(context.Background(), now(), []job.Cancellation{{ID: "j", Incarnation: incarnation}})
		},
		"reschedule": func(s *scene, incarnation uint64) ([]job.Change, error) {
			return s.store.Reschedule(context.Background(), []job.Reschedule{{ID: "j", Incarnation: incarnation, Due: now()}})
		},
	} {
		t.Run(kind, func(t *testing.T) {
			s := newScene(t)
			s.one(mk("j", time.Hour), job.StoredRedis)
			was := s.get("j").Incarnation
			s.afterNext(kind, func() error {
				s.unplug()
				s.one(mk("j", 2*time.Hour), job.StoredLocal)
				return nil
			})
			if c, err := change(s, was); err != nil || c[0].Result != job.ResultDone {
				t.Errorf("%+v, %v, want what Redis has answered", c, err)
			}
			if i := s.get("j"); i.State != job.Pending || i.Incarnation == was || i.Next < now().Add(90*time.Minute) {
				t.Errorf("the other job is %+v", i)
			}
		})
	}
}

// TestMovedInAPurge: while Redis removes a job that is dead, the bridge turns to its
// disk, with a copy from before it died. The copy goes as well.
func TestMovedInAPurge(t *testing.T) {
	s := newScene(t)
	s.one(mk("j", 20*time.Second), job.StoredRedis)
	was := s.get("j").Incarnation
	s.buryAsPeer("j")
	s.afterNext("cancel", func() error {
		s.unplug()
		// Any change moves the copy to the disk.
		other := job.Cancellation{ID: "j", Incarnation: was + 1}
		if c, err := s.store.Cancel(context.Background(), now(), []job.Cancellation{other}); err != nil || c[0].Result != job.ResultUnknown {
			t.Errorf("%+v, %v", c, err)
		}
		return nil
	})
	l := job.Cancellation{ID: "j", Incarnation: was, State: job.Dead}
	if c, err := s.store.Cancel(context.Background(), now(), []job.Cancellation{l}); err != nil || c[0].Result != job.ResultDone {
		t.Errorf("%+v, %v", c, err)
	}
	if ds := s.claimUntil(time.Minute); len(ds) != 0 {
		t.Errorf("delivered: %+v", ds)
	}
}

// buryAsPeer has another bridge claim a job, which is the first, and bury it.
func (s *scene) buryAsPeer(id string) {
	s.Helper()
	p, at := s.behind(), now().Add(time.Hour)
	c, err := p.Claim(context.Background(), job.ClaimRequest{Now: at, Until: at, Max: 1, Owner: "peer"})
	if err != nil || len(c.Deliveries) != 1 || c.Deliveries[0].ID != id {
		s.Fatalf("claim: %+v, %v", c, err)
	}
	res, err := p.Settle(context.Background(), now(), []job.Settlement{{Ref: c.Deliveries[0].Ref(), Outcome: job.Bury, Reason: "test"}})
	if err != nil || res[0] != job.Settled {
		s.Fatalf("bury: %v, %v", res, err)
	}
}
