package failover_test

import (
	"context"
	"testing"
	"time"

	"github.com/delaybridge/delaybridge/job"
)

// journalled makes jobs that the bridge must journal.
func journalled(jobs ...job.Job) []job.Job {
	for i := range jobs {
		jobs[i].Journal = "b1"
	}
	return jobs
}

func TestJournal(t *testing.T) {
	r := newRig(t, withJournal)
	r.awaitMode(job.ModeRedis)
	if got := r.put(journalled(mkMany(20, "kept-%02d", time.Hour)...)...); got != job.StoredBoth {
		t.Fatalf("stored in %q", got)
	}
	r.put(journalled(mk("done", 0), mk("dead", 0))...)
	for _, d := range r.claim(2) {
		o := job.Complete
		if d.ID == "dead" {
			o = job.Bury
		}
		r.settle(d, o, 0)
	}
	r.put(journalled(mk("cancelled", time.Hour))...)
	if _, err := r.store.Cancel(context.Background(), now(), job.ByIDs("cancelled")); err != nil {
		t.Fatal(err)
	}
	r.put(mk("not-kept", time.Hour))
	r.want("kept-00", job.Pending, 0, job.StoredBoth)

	r.redis.Kill()
	r.redis.RestartEmpty()
	r.eventually("data loss noticed and made good", func() bool {
		r.seen.mu.Lock()
		defer r.seen.mu.Unlock()
		return r.seen.offered == 21
	})
	r.awaitMode(job.ModeRedis)
	for _, id := range []string{"kept-00", "kept-19"} {
		r.want(id, job.Pending, 0, job.StoredBoth)
	}
	r.want("dead", job.Dead, 1, job.StoredBoth)
	r.want("done", job.Done, 1, job.StoredRedis)
	r.want("cancelled", job.Cancelled, 0, job.StoredRedis)
	if i := r.get("not-kept"); i.State != "" {
		t.Errorf("not-kept is %s", i.State)
	}
	r.nothingDue()
}

// TestJournalledInAnOutage: what the disk took alone is journalled when Redis
// takes it over.
func TestJournalledInAnOutage(t *testing.T) {
	r := newRig(t, withJournal)
	r.awaitMode(job.ModeRedis)
	r.down()
	if got := r.put(journalled(mk("a", time.Hour))...); got != job.StoredLocal {
		t.Fatalf("stored in %q", got)
	}
	r.up()
	r.want("a", job.Pending, 0, job.StoredBoth)
	r.redis.Kill()
	r.redis.RestartEmpty()
	r.eventually("offered", func() bool {
		r.seen.mu.Lock()
		defer r.seen.mu.Unlock()
		return r.seen.offered == 1
	})
	r.want("a", job.Pending, 0, job.StoredBoth)
}
