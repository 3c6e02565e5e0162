package failover

import (
	"context"

	"github.com/delaybridge/delaybridge/job"
)

var _ job.Divided = (*Store)(nil)

// Count implements [job.Index]: the jobs of both stores.
func (s *Store) Count(ctx context.Context) (c job.Counts, err error) {
	if !s.remote() {
		return c, job.ErrUnavailable.With("Redis cannot be reached, and most jobs are there; try again later")
	}
	err = s.call(ctx, 0, func(ctx context.Context, p Primary) (err error) {
		c, err = p.Count(ctx)
		return err
	})
	if err != nil {
		return job.Counts{}, err
	}
	local, err := s.disk().Count(ctx)
	return c.Add(local), err
}

// Local implements [job.Divided].
func (s *Store) Local() job.Index { return localIndex{s} }

// localIndex is what this bridge's disk holds.
type localIndex struct{ s *Store }

func (l localIndex) Get(ctx context.Context, ids []string) ([]job.Info, error) {
	return l.s.disk().Get(ctx, ids)
}

func (l localIndex) List(ctx context.Context, q job.Query) (job.Page, error) {
	return l.s.ListLocal(ctx, q)
}

func (l localIndex) Count(ctx context.Context) (job.Counts, error) { return l.s.disk().Count(ctx) }

func (l localIndex) Cancel(ctx context.Context, now job.Time, list []job.Cancellation) ([]job.Change, error) {
	return l.change(ctx, cancelledIDs(list), func(ctx context.Context, disk job.Store, at []int) ([]job.Change, error) {
		return disk.Cancel(ctx, now, pick(list, at))
	})
}

func (l localIndex) Reschedule(ctx context.Context, list []job.Reschedule) ([]job.Change, error) {
	ids := make([]string, len(list))
	for i := range list {
		ids[i] = list[i].ID
	}
	return l.change(ctx, ids, func(ctx context.Context, disk job.Store, at []int) ([]job.Change, error) {
		return disk.Reschedule(ctx, pick(list, at))
	})
}

// change has f change what the disk holds; of the rest nothing is known here.
func (l localIndex) change(ctx context.Context, ids []string, f func(context.Context, job.Store, []int) ([]job.Change, error)) ([]job.Change, error) {
	changes := make([]job.Change, len(ids))
	elsewhere, err := l.s.changeLocal(ctx, ids, changes, f)
	for _, i := range elsewhere {
		changes[i] = job.Change{ID: ids[i], Result: job.ResultUnknown}
	}
	return changes, err
}
