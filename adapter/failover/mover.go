package failover

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/delaybridge/delaybridge/job"
	"github.com/delaybridge/delaybridge/memdelay"
)

const (
	// mergeBatch is how many jobs are merged with one call.
	mergeBatch = 1024
	// mergeTimeout bounds one such call.
	mergeTimeout = 2 * time.Second
	// busyPause is how long to wait for jobs that cannot be merged while another
	// one of their id runs.
	busyPause = 250 * time.Millisecond
)

// moveLoop merges what the local store holds into the primary, whenever there is
// something and the primary is there.
func (s *Store) moveLoop(ctx context.Context) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.kick:
		case <-tick.C:
		}
		if s.remote() {
			s.migrate(ctx)
		}
	}
}

// migrate moves all that the local store holds.
func (s *Store) migrate(ctx context.Context) {
	start, moved := time.Now(), 0
	id := s.o.Bridge + "-" + strconv.FormatInt(start.UnixMilli(), 36)
	for s.remote() && ctx.Err() == nil {
		n, left, err := s.mergeBatch(ctx, id, false)
		moved += n
		if n > 0 {
			s.o.Observer.Recovery(time.Since(time.Unix(0, s.goodSince.Load())), n)
		}
		if err != nil {
			s.log.Warn("migration interrupted", "migration", id, "jobs", moved, "error", err)
			s.ProbeSoon()
			return
		}
		if left == 0 {
			break
		}
		if n == 0 && !pause(ctx, busyPause) {
			return
		}
	}
	if moved > 0 && s.remote() {
		s.log.Info("migrated", "migration", id, "jobs", moved, "took", time.Since(start))
		s.o.Observer.Migrated(id, moved, time.Since(start))
	}
	if s.mode.CompareAndSwap(int32(job.ModeMigrating), int32(job.ModeRedis)) {
		s.o.Observer.ModeChanged(job.ModeMigrating, job.ModeRedis, "nothing is held on this bridge's disk any more")
	}
}

func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// syncStates merges what has happened to the primary's own jobs, in local mode,
// so that little is left to do on the return.
func (s *Store) syncStates(ctx context.Context) {
	if err := s.syncAll(ctx); err != nil && ctx.Err() == nil {
		s.log.Warn("Redis does not take what happened to its jobs", "error", err)
	}
}

// syncAll merges states until few are left.
func (s *Store) syncAll(ctx context.Context) error {
	for {
		ctx, cancel := context.WithTimeout(ctx, mergeTimeout)
		n, err := s.mergeStates(ctx)
		cancel()
		if err != nil || n < mergeBatch/4 {
			return err
		}
	}
}

// mergeStates merges a batch of what happened to the primary's own jobs.
func (s *Store) mergeStates(ctx context.Context) (int, error) {
	n, _, err := s.mergeBatch(ctx, "states", true)
	return n, err
}

// mergeBatch merges one batch. It returns how many jobs have left the local
// store and how many were in the batch.
func (s *Store) mergeBatch(ctx context.Context, id string, statesOnly bool) (moved, found int, err error) {
	list := s.local.Export(mergeBatch, statesOnly)
	if len(list) == 0 {
		return 0, 0, nil
	}
	found = len(list)
	if list, err = s.local.Owe(context.WithoutCancel(ctx), list); err != nil || len(list) == 0 {
		return 0, found, err
	}
	items := make([]job.MergeItem, len(list))
	for i := range list {
		items[i].Info, items[i].Fresh = list[i].Info, list[i].Fresh
	}
	c := s.watch.begin()
	res, err := s.mergeItems(ctx, items)
	if err != nil {
		s.watch.end(c)
		return 0, found, err
	}
	done := make([]memdelay.Exported, 0, len(list))
	var merged []job.Info
	for i := range list {
		switch res[i] {
		case job.Busy:
			continue
		case job.Joined:
			s.log.Info("two jobs of one id are one now", "id", list[i].ID, "target", list[i].Target, "migration", id)
			s.o.Observer.Joined(id, list[i].Info)
		case job.Merged:
			merged = append(merged, list[i].Info)
		}
		done = append(done, list[i])
	}
	changed, err := s.forget(ctx, c, done, merged)
	return len(done) - changed, found, err
}

// mergeItems is one call of Merge.
func (s *Store) mergeItems(ctx context.Context, items []job.MergeItem) ([]job.MergeResult, error) {
	ctx, cancel := context.WithTimeout(ctx, mergeTimeout)
	defer cancel()
	res, err := s.primary.Load().Merge(ctx, s.now(), items)
	if err != nil {
		return nil, fmt.Errorf("merge %d jobs: %w", len(items), err)
	}
	return res, nil
}

// forget removes jobs here that the primary has, once the journal has those that
// ask for it. The merged ones that may be needed soon are in the mirror at the
// same time, so that whoever settles one finds it.
func (s *Store) forget(ctx context.Context, c *watched, done []memdelay.Exported, merged []job.Info) (changed int, err error) {
	ctx = context.WithoutCancel(ctx)
	if err := s.journalMoved(ctx, done); err != nil {
		s.watch.end(c)
		return 0, err
	}
	s.move.Lock()
	defer s.move.Unlock()
	if changed, err = s.local.Forget(ctx, done); err != nil {
		merged = nil
	}
	s.addNear(c, merged)
	return changed, err
}
