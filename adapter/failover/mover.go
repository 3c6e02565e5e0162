package failover

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
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
	// changePause is how long to wait when all of a batch has changed while it was
	// merged; after maxIdle such batches the rest is left for the next tick.
	changePause = 20 * time.Millisecond
	maxIdle     = 20
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

// migrate moves all that the local store holds, but for jobs that must wait
// until another one of their id has ended.
func (s *Store) migrate(ctx context.Context) {
	start, moved, back := time.Now(), 0, s.Mode() == job.ModeMigrating
	id := s.o.Bridge + "-" + strconv.FormatInt(start.UnixMilli(), 36)
	busy := map[string]bool{}
	for idle := 0; ; {
		n, left, err := s.mergeBatch(ctx, id, false, busy)
		if moved += n; n > 0 {
			s.o.Observer.Recovery(time.Since(s.recovering(start, back)), n)
		}
		if err != nil {
			s.log.Warn("migration interrupted", "migration", id, "jobs", moved, "error", err)
			s.ProbeSoon()
			return
		}
		if ctx.Err() != nil || !s.remote() {
			return
		}
		if left == 0 || idle > maxIdle {
			break
		}
		if idle++; n > 0 {
			idle = 0
		} else if !pause(ctx, changePause) {
			return
		}
	}
	if moved > 0 {
		level := slog.LevelDebug // single batches that were handed over
		if back {
			level = slog.LevelInfo
			s.o.Observer.Migrated(id, moved, time.Since(start))
		}
		s.log.Log(ctx, level, "migrated", "migration", id, "jobs", moved, "took", time.Since(start))
	}
	s.arrived()
}

// recovering is when the recovery of jobs began: with the first good probe, or,
// where there was no outage, with their move.
func (s *Store) recovering(start time.Time, back bool) time.Time {
	if at := s.goodSince.Load(); back && at != 0 {
		return time.Unix(0, at)
	}
	return start
}

// arrived ends a migration.
func (s *Store) arrived() {
	s.turn.Lock()
	turned := s.mode.CompareAndSwap(int32(job.ModeMigrating), int32(job.ModeRedis))
	s.turn.Unlock()
	if turned {
		s.o.Observer.ModeChanged(job.ModeMigrating, job.ModeRedis, "what this bridge's disk held is in Redis")
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
	busy := map[string]bool{}
	for {
		ctx, cancel := context.WithTimeout(ctx, mergeTimeout)
		n, err := s.mergeStates(ctx, busy)
		cancel()
		if err != nil || n < mergeBatch/4 {
			return err
		}
	}
}

// mergeStates merges a batch of what happened to the primary's own jobs.
func (s *Store) mergeStates(ctx context.Context, busy map[string]bool) (int, error) {
	n, _, err := s.mergeBatch(ctx, "states", true, busy)
	return n, err
}

// mergeBatch merges one batch. It returns how many jobs have left the local
// store and how many were in the batch.
func (s *Store) mergeBatch(ctx context.Context, id string, statesOnly bool, busy map[string]bool) (moved, found int, err error) {
	list := s.disk().Export(mergeBatch, statesOnly, func(id string) bool { return busy[id] })
	if len(list) == 0 {
		return 0, 0, nil
	}
	found = len(list)
	list, err = s.disk().Owe(context.WithoutCancel(ctx), list)
	if err = unlessFull(err); err != nil || len(list) == 0 {
		return 0, found, err
	}
	items := make([]job.MergeItem, len(list))
	for i := range list {
		items[i].Info, items[i].Fresh = list[i].Info, list[i].Fresh
	}
	c, e := s.watch.begin(), s.watchEnd()
	res, err := s.mergeItems(ctx, items)
	if err != nil {
		s.watch.end(c)
		s.ends.end(e)
		return 0, found, err
	}
	done := make([]memdelay.Exported, 0, len(list))
	var merged []job.Info
	for i := range list {
		switch res[i] {
		case job.Busy:
			busy[list[i].ID] = true
			continue
		case job.Joined:
			s.log.Info("two jobs of one id are one now", "id", list[i].ID, "target", list[i].Target, "migration", id)
			s.o.Observer.Joined(id, list[i].Info)
		case job.Merged:
			merged = append(merged, list[i].Info)
		}
		done = append(done, list[i])
	}
	if err := s.journalMoved(context.WithoutCancel(ctx), e, merged, done); err != nil {
		s.watch.end(c)
		return 0, found, err
	}
	if !statesOnly {
		s.o.Observer.Moved(id, merged) // forget does not leave them as they are
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

// forget removes jobs here that the primary has. The merged ones that may be needed
// soon are in the mirror at the same time, so that whoever settles one finds it.
func (s *Store) forget(ctx context.Context, c *watched, done []memdelay.Exported, merged []job.Info) (changed int, err error) {
	ctx = context.WithoutCancel(ctx)
	s.move.Lock()
	defer s.move.Unlock()
	gone := s.watch.end(c)
	// What is being read from the primary now may be from before the merge.
	s.watch.gone(refsOf(done)...)
	if changed, err = s.disk().Forget(ctx, done); unlessFull(err) == nil {
		s.addNear(gone, merged)
	}
	return changed, unlessFull(err)
}

// unlessFull drops the error of a full disk: what was changed is in memory, and
// goes to the log as soon as there is room. If the bridge is killed before, it
// merges the same again.
func unlessFull(err error) error {
	if errors.Is(err, job.ErrFull) {
		return nil
	}
	return err
}

func refsOf(list []memdelay.Exported) []job.Ref {
	refs := make([]job.Ref, len(list))
	for i := range list {
		refs[i] = list[i].Ref()
	}
	return refs
}
