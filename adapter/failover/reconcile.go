package failover

import (
	"context"
	"time"

	"github.com/delaybridge/delaybridge/job"
)

const (
	// reconcileEvery is how often the journal is compared with the primary, for
	// jobs that ended elsewhere.
	reconcileEvery = 10 * time.Second
	// reconcileBatch is how many jobs are compared with one call.
	reconcileBatch = 512
	// reconcileTick and reconcileWork: so much of each tick may be spent on it.
	reconcileTick, reconcileWork = time.Second, 50 * time.Millisecond
)

// reconciling is how far one comparison of all the journal has come.
type reconciling struct {
	cursor string
	state  job.State // which jobs are compared
}

// journalLoop forgets what ended long ago, and copies of jobs that ended
// elsewhere.
func (s *Store) journalLoop(ctx context.Context) {
	if s.journal == nil {
		return
	}
	tick := time.NewTicker(reconcileTick)
	defer tick.Stop()
	next := time.Now().Add(reconcileEvery)
	var at *reconciling
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if at == nil && time.Now().After(next) {
			next = time.Now().Add(reconcileEvery)
			s.forgetEnds()
			at = &reconciling{state: job.Pending}
		}
		for began := time.Now(); at != nil && time.Since(began) < reconcileWork && ctx.Err() == nil; {
			more, done := s.reconcile(ctx, at)
			if done {
				at = nil
			}
			if !more {
				break
			}
		}
	}
}

// reconcile compares the next page of the journal with the primary. It reports
// whether to go on at once, and whether that was the last one.
func (s *Store) reconcile(ctx context.Context, at *reconciling) (more, done bool) {
	losses := s.lossCount.Load()
	if !s.remote() || len(s.pendingLosses()) > 0 {
		return false, false
	}
	page, err := s.journal.List(ctx, job.Query{State: at.state, Limit: reconcileBatch, Cursor: at.cursor})
	if err != nil {
		return false, true
	}
	ctx, cancel := context.WithTimeout(ctx, mergeTimeout)
	defer cancel()
	if !s.tidy(ctx, page.Jobs, losses) {
		return false, false
	}
	if at.cursor = page.Cursor; at.cursor == "" {
		at.state, done = job.Dead, at.state == job.Dead
	}
	return !done, done
}

// tidy ends or forgets those of the copies whose jobs have ended. It reports
// whether the primary could be asked, and has lost nothing since losses.
func (s *Store) tidy(ctx context.Context, copies []job.Info, losses int64) bool {
	if len(copies) == 0 {
		return true
	}
	ids := make([]string, len(copies))
	for i := range copies {
		ids[i] = copies[i].ID
	}
	infos, err := s.Get(ctx, ids)
	if err != nil {
		return false
	}
	var over []job.Info
	var gone []job.Ref
	for i := range infos {
		now, was := &infos[i], &copies[i]
		switch {
		case now.Incarnation == was.Incarnation && (now.State == job.Done || now.State == job.Cancelled):
			over = append(over, *now)
		case now.State == "" || now.Incarnation > was.Incarnation:
			gone = append(gone, was.Ref())
		}
	}
	// What the primary does not know it may have lost, and not noticed yet.
	if len(gone) > 0 && (s.primary.Load().Probe(ctx) != nil || s.lossCount.Load() != losses) {
		return false
	}
	err = s.applyEnds(ctx, over)
	if err == nil && len(gone) > 0 {
		err = s.journal.Discard(ctx, gone)
	}
	if err != nil {
		s.log.Warn("journal not tidied", "error", err)
	}
	return true
}
