package failover_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/delaybridge/delaybridge/adapter/failover"
	"github.com/delaybridge/delaybridge/job"
)

func TestHorizonLimits(t *testing.T) {
	const size = 1000
	for name, tc := range map[string]struct {
		limit func(*failover.Thresholds)
		want  int
	}{
		"jobs":  {func(l *failover.Thresholds) { l.HorizonJobs = 5 }, 5},
		"bytes": {func(l *failover.Thresholds) { l.HorizonBytes = 3 * size }, 3},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScene(t, withLimits(tc.limit))
			for i := range 10 {
				j := mk(fmt.Sprintf("j-%d", i), 30*time.Second)
				j.Payload = make([]byte, size)
				s.one(j, job.StoredRedis)
			}
			if u := s.mirror.Usage(); u.Jobs != tc.want {
				t.Errorf("%d jobs of %d bytes are mirrored, want %d", u.Jobs, u.Bytes, tc.want)
			}
		})
	}
}

// mirrored checks whether the mirror has a job.
func (s *scene) mirrored(id string, want bool) {
	s.Helper()
	if got := s.mirror.Find([]string{id})[0].State != ""; got != want {
		s.Errorf("%s is in the mirror: %v, want %v", id, got, want)
	}
}

// TestHorizon follows a job across the horizon and back.
func TestHorizon(t *testing.T) {
	s := newScene(t)
	move := func(d time.Duration) {
		c, err := s.store.Reschedule(context.Background(), []job.Reschedule{{ID: "j", Due: now().Add(d)}})
		if err != nil || c[0].Result != job.ResultDone {
			t.Fatalf("reschedule: %+v, %v", c, err)
		}
	}
	s.one(mk("j", time.Hour), job.StoredRedis)
	s.mirrored("j", false)
	move(30 * time.Second)
	s.mirrored("j", true)
	move(time.Hour)
	s.mirrored("j", false)
	move(0)
	d := s.claim(1)[0]
	s.mirrored("j", true)
	s.mustSettle(d, job.Retry, now())
	s.mirrored("j", true)
	s.mustSettle(s.claim(1)[0], job.Retry, now().Add(time.Hour))
	s.mirrored("j", false)
	s.unplug()
	s.silent("beyond the horizon")
}

// TestOfOthers: jobs that another bridge stores come into the mirror as the
// horizon moves on; what nobody takes leaves it.
func TestOfOthers(t *testing.T) {
	t.Parallel() // it waits for the next look at Redis
	s := newScene(t)
	overdue := mk("overdue", 0)
	overdue.Due = now().Add(-20 * time.Second)
	s.one(overdue, job.StoredRedis)
	s.mirrored("overdue", true)
	if _, err := s.behind().Put(context.Background(), []job.Job{mk("theirs", 62*time.Second)}); err != nil {
		t.Fatal(err)
	}
	s.eventually("mirrored", func() bool { return s.mirror.Find([]string{"theirs"})[0].State == job.Pending })
	s.mirrored("overdue", false)
}

// TestRelapse: Redis goes again right after it has come back. What it holds for
// the next minute is delivered without it all the same.
func TestRelapse(t *testing.T) {
	s := newScene(t)
	s.one(mk("j", 20*time.Second), job.StoredRedis)
	s.unplug()
	s.plug()
	s.unplug()
	if ds := s.claimUntil(30 * time.Second); len(ds) != 1 {
		t.Errorf("delivered %+v, want the job of Redis", ds)
	}
}
