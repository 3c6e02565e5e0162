package failover_test

import (
	"testing"
	"time"

	"github.com/delaybridge/delaybridge/adapter/failover"
	"github.com/delaybridge/delaybridge/job"
	"github.com/delaybridge/delaybridge/memdelay/wal/crashfs"
)

// TestReadingOvertaken: what was read from Redis for the mirror is out of date
// when it arrives: the job has ended, and Redis has heard of it, meanwhile.
func TestReadingOvertaken(t *testing.T) {
	eachID(t, "delivered before", func(t *testing.T, id string) {
		s := newScene(t)
		s.one(mk(id, 20*time.Second), job.StoredRedis)
		s.unplug()
		d := s.claimUntil(30 * time.Second)[0]
		s.mustSettle(d, job.Complete, 0)
		merge, read := s.holdMerge(), make(chan struct{})
		s.afterNext("upcoming", func() error { defer close(read); merge(); s.settledDown(); return nil })
		s.setAway(false)
		s.await("the reading", read)
		s.awaitMode(job.ModeRedis)
		s.want(d.ID, job.Done, 1, job.StoredRedis)
		s.silentThroughout()
	})
	eachID(t, "delivered meanwhile", func(t *testing.T, id string) {
		s := newScene(t)
		j := s.one(mk(id, 20*time.Second), job.StoredRedis)
		s.unplug()
		read := make(chan struct{})
		s.afterNext("upcoming", func() error {
			defer close(read)
			for _, d := range s.claimUntil(30 * time.Second) {
				s.mustSettle(d, job.Complete, 0)
			}
			s.settledDown()
			return nil
		})
		s.setAway(false)
		s.await("the reading", read)
		s.awaitMode(job.ModeRedis)
		s.want(j.ID, job.Done, 1, job.StoredRedis)
		s.silentThroughout()
	})
}

// TestCompletionAnsweredAfterTheTurn: Redis confirms a completion when the bridge
// works without it, and has taken the delivery for one that ran out meanwhile.
func TestCompletionAnsweredAfterTheTurn(t *testing.T) {
	eachID(t, "id", func(t *testing.T, id string) {
		s := newScene(t)
		s.one(mk(id, 0), job.StoredRedis)
		d := s.claim(1)[0]
		s.afterNext("settle", func() error {
			s.unplug()
			ds, _, err := s.store.Expired(t.Context(), now().Add(time.Minute), 10)
			if err != nil || len(ds) != 1 {
				t.Errorf("run out: %+v, %v", ds, err)
				return nil
			}
			s.mustSettle(ds[0], job.Retry, now())
			return nil
		})
		s.mustSettle(d, job.Complete, 0)
		s.silent("in local mode")
		s.plug()
		s.settledDown()
		s.want(d.ID, job.Done, 1, job.StoredRedis)
		s.silentThroughout()
	})
}

// TestCancelAnsweredAfterTheTurn: Redis confirms a cancellation when the bridge
// works without it, and has begun to deliver its copy. It is not delivered once
// more.
func TestCancelAnsweredAfterTheTurn(t *testing.T) {
	eachID(t, "cancel", func(t *testing.T, id string) {
		s := newScene(t)
		j := s.one(mk(id, 20*time.Second), job.StoredRedis)
		s.afterNext("cancel", func() error {
			s.unplug()
			for _, d := range s.claimUntil(30 * time.Second) {
				s.mustSettle(d, job.Retry, now())
			}
			return nil
		})
		s.mustCancel(j.ID)
		s.silent("in local mode")
		s.plug()
		s.settledDown()
		s.want(j.ID, job.Cancelled, 0, job.StoredRedis)
		s.silentThroughout()
	})
}

// TestLossAndReading: Redis has lost a completion and been given the job by the
// journal, and the mirror reads it from there before the bridge has told Redis
// once more that it is complete.
func TestLossAndReading(t *testing.T) {
	fs, disk := crashfs.New(1), newGate()
	s := newScene(t, withJournal, onDisk(fs), withLimits(func(l *failover.Thresholds) { l.ProbeFailures = 2 }))
	fs.Inject(disk.pass)
	s.put(journalled(mk("j", 0))...)
	d := s.claim(1)[0]
	read := make(chan struct{})
	s.afterNext("settle", func() error {
		s.redis.RestartEmpty()
		s.awaitOffer()
		s.eventually("Redis is back", func() bool { return s.store.Mode() != job.ModeLocal })
		disk.shut() // keeps the journal from noting the end
		go func() {
			defer close(read)
			<-disk.reached
			for range 3 { // when one begins, what was read before is in the mirror
				s.readAnew()
			}
			disk.open()
		}()
		return nil
	})
	s.mustSettle(d, job.Complete, 0)
	s.await("the reading", read)
	s.awaitMode(job.ModeRedis)
	s.silentThroughout()
	s.want("j", job.Done, 1, job.StoredRedis)
}

// readAnew makes the mirror read Redis from the beginning, and returns when that
// has answered.
func (s *scene) readAnew() {
	read := make(chan struct{})
	s.afterNext("upcoming", func() error { close(read); return nil })
	s.beforeNext("probe", func() error { return errLost }) // the one after it is good again
	select {
	case <-read:
	case <-time.After(patient):
		s.Error("the mirror does not read Redis anew")
	}
}
