package failover_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/delaybridge/delaybridge/job"
)

// TestRestartWithAllStates: the bridge stops in an outage with jobs in every
// state on its disk. After a start with Redis, what happened to Redis' own jobs
// is there before the first claim, and all is delivered as if nothing had been.
func TestRestartWithAllStates(t *testing.T) {
	s := newScene(t)
	names := []string{"running", "done", "later", "again", "dead"}
	for _, id := range append(names, "cancelled") {
		d := time.Duration(0)
		if id == "cancelled" {
			d = 20 * time.Second
		}
		s.one(mk("redis-"+id, d), job.StoredRedis)
	}
	s.unplug()
	for _, id := range names {
		s.one(mk("own-"+id, 0), job.StoredLocal)
	}
	s.one(mk("own-cancelled", time.Hour), job.StoredLocal)
	held := map[string]job.Delivery{}
	for _, d := range s.claim(2 * len(names)) {
		held[d.ID] = d
	}
	s.one(mk("own-pending", 0), job.StoredLocal)
	for _, owner := range []string{"redis-", "own-"} {
		s.mustSettle(held[owner+"done"], job.Complete, 0)
		s.mustSettle(held[owner+"later"], job.Retry, now().Add(time.Hour))
		s.mustSettle(held[owner+"again"], job.Retry, now())
		s.mustSettle(held[owner+"dead"], job.Bury, 0)
		s.mustCancel(owner + "cancelled")
	}
	s.stop()
	s.setAway(false)
	s.start()
	if s.store.Mode() == job.ModeLocal {
		t.Fatal("started in local mode beside Redis")
	}
	s.checkStates("redis-") // before the first claim

	got := map[string]uint32{}
	s.eventually("the three that are due", func() bool {
		for _, d := range s.claimUntil(30 * time.Second) {
			if got[d.ID] != 0 {
				t.Errorf("%s delivered twice", d.ID)
			}
			got[d.ID] = d.Attempt
		}
		return len(got) >= 3
	})
	if len(got) != 3 || got["redis-again"] != 2 || got["own-again"] != 2 || got["own-pending"] != 1 {
		t.Errorf("delivered at these attempts: %v", got)
	}
	s.awaitMode(job.ModeRedis)
	s.settledDown()
	s.checkStates("own-")
	s.mustSettle(held["own-running"], job.Complete, 0)
	s.mustSettle(held["redis-running"], job.Complete, 0)
	s.silentThroughout()
}

// checkStates checks what Redis itself knows of the jobs with that prefix.
func (s *scene) checkStates(prefix string) {
	s.Helper()
	want := map[string]job.State{"running": job.Running, "done": job.Done, "later": job.Pending, "dead": job.Dead, "cancelled": job.Cancelled}
	for id, state := range want {
		infos, err := s.behind().Get(context.Background(), []string{prefix + id})
		if err != nil || infos[0].State != state {
			s.Errorf("Redis has %s as %q, %v, want %s", prefix+id, infos[0].State, err, state)
		}
	}
}

// TestKilledBeforeForgetting: the bridge dies after Redis has taken its jobs and
// before its disk knows. They run, and end, in Redis; the next start finds them
// on the disk as they were.
func TestKilledBeforeForgetting(t *testing.T) {
	eachID(t, "id", func(t *testing.T, id string) {
		s := newScene(t)
		s.unplug()
		j := s.one(mk(id, 0), job.StoredLocal)
		d := s.claim(1)[0]
		waiting := s.one(mk("waiting", 0), job.StoredLocal)
		disk, copied := filepath.Join(s.dir, "local"), filepath.Join(s.dir, "copy")
		s.homecoming(s.afterNext, func() {
			if err := os.CopyFS(copied, os.DirFS(disk)); err != nil {
				t.Error(err)
			}
		})
		s.mustSettle(d, job.Complete, 0)
		s.mustSettle(s.claim(1)[0], job.Complete, 0)
		s.stop()
		if err := os.RemoveAll(disk); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(copied, disk); err != nil {
			t.Fatal(err)
		}
		s.start()
		s.awaitMode(job.ModeRedis)
		s.silentThroughout()
		s.want(j.ID, job.Done, 1, job.StoredRedis)
		s.want(waiting.ID, job.Done, 1, job.StoredRedis)
	})
}
