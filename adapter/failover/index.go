package failover

import (
	"context"
	"slices"

	"github.com/delaybridge/delaybridge/job"
)

// Get implements [job.Index]. It fails with ErrUnavailable when one of the jobs
// may be in the primary and that cannot be reached.
func (s *Store) Get(ctx context.Context, ids []string) ([]job.Info, error) {
	infos, err := s.disk().Get(ctx, ids)
	if err != nil {
		return nil, err
	}
	var missing []int
	for i, f := range s.disk().Find(ids) {
		if f.State == "" {
			missing = append(missing, i)
		}
	}
	if len(missing) == 0 {
		return infos, nil
	}
	there := make([]string, len(missing))
	for k, i := range missing {
		there[k] = ids[i]
	}
	remote, err := s.getRemote(ctx, there)
	if err != nil {
		return nil, err
	}
	for k, i := range missing {
		// What ended here long ago is remembered here alone.
		if remote[k].State != "" || infos[i].State == "" {
			infos[i] = remote[k]
		}
	}
	return infos, nil
}

// getRemote asks the primary, or, where that does not answer, its mirror.
func (s *Store) getRemote(ctx context.Context, ids []string) (infos []job.Info, err error) {
	err = errNoPrimary
	if s.remote() {
		err = s.call(ctx, 0, func(ctx context.Context, p Primary) (err error) {
			infos, err = p.Get(ctx, ids)
			return err
		})
	}
	if err != nil {
		if infos, _ = s.mirror.Get(ctx, ids); infos == nil || slices.ContainsFunc(infos, func(i job.Info) bool { return i.State == "" }) {
			return nil, unanswered(err)
		}
		for i := range infos {
			infos[i].Stored = job.StoredRedis
		}
	}
	for i, f := range s.copiesOf(ids).found {
		if living(f) && f.Incarnation == infos[i].Incarnation && infos[i].Stored == job.StoredRedis {
			infos[i].Stored = job.StoredBoth
		}
	}
	return infos, nil
}

// List implements [job.Index]: the jobs of both stores in one order.
func (s *Store) List(ctx context.Context, q job.Query) (page job.Page, err error) {
	if !s.remote() {
		return page, job.ErrUnavailable.With("Redis cannot be reached, and most jobs are there; try again later")
	}
	err = s.listPrimary(ctx, q, &page)
	if u := s.disk().Usage(); err != nil || u.Jobs == 0 {
		return page, err
	}
	local, err := s.disk().List(ctx, q)
	if err != nil {
		return job.Page{}, err
	}
	page.Jobs, page.Cursor = job.FirstOf(q.Limit, slices.Concat(page.Jobs, local.Jobs), []string{page.Cursor, local.Cursor},
		func(i *job.Info) (job.Time, string) { return i.Next, i.ID })
	return page, nil
}

// ListLocal is List of this bridge's disk alone: without the primary, of all that
// can be acted on.
func (s *Store) ListLocal(ctx context.Context, q job.Query) (job.Page, error) {
	return s.disk().List(ctx, q)
}

// listPrimary reads one page from the primary. What it has of this bridge's leases
// is mirrored: after a start nothing else knows them.
func (s *Store) listPrimary(ctx context.Context, q job.Query, page *job.Page) error {
	read := func(ctx context.Context, p Primary) (err error) {
		*page, err = p.List(ctx, q)
		return err
	}
	if q.State != job.Running {
		return s.callLong(ctx, read)
	}
	c := s.watch.begin()
	err := s.callLong(ctx, read)
	s.mirrorLeases(c, page.Jobs)
	return err
}

// Cancel implements [job.Index].
func (s *Store) Cancel(ctx context.Context, now job.Time, list []job.Cancellation) ([]job.Change, error) {
	ids, list := cancelledIDs(list), slices.Clone(list)
	before := s.copiesOf(ids)
	return s.change(ctx, ids,
		func(ctx context.Context, p job.Store, at []int) ([]job.Change, error) {
			return p.Cancel(ctx, now, pick(list, at))
		},
		func(at []int) {
			for _, i := range at {
				if list[i].Incarnation != 0 {
					list[i].State = "" // this job is over: a copy of it goes in any state
				}
			}
			s.cancelledThere(ctx, now, pick(ids, at), before, at)
		})
}

// Reschedule implements [job.Index].
func (s *Store) Reschedule(ctx context.Context, list []job.Reschedule) ([]job.Change, error) {
	ids := make([]string, len(list))
	for i := range list {
		ids[i] = list[i].ID
	}
	return s.change(ctx, ids,
		func(ctx context.Context, p job.Store, at []int) ([]job.Change, error) {
			return p.Reschedule(ctx, pick(list, at))
		},
		func(at []int) { s.rescheduledThere(ctx, pick(ids, at)) })
}

func cancelledIDs(list []job.Cancellation) []string {
	ids := make([]string, len(list))
	for i := range list {
		ids[i] = list[i].ID
	}
	return ids
}

func pick[T any](list []T, at []int) []T {
	out := make([]T, len(at))
	for k, i := range at {
		out[k] = list[i]
	}
	return out
}

// change has each id changed in the store that holds it. done is told which were
// changed in the primary.
func (s *Store) change(ctx context.Context, ids []string, f func(context.Context, job.Store, []int) ([]job.Change, error), done func(at []int)) ([]job.Change, error) {
	changes := make([]job.Change, len(ids))
	there, err := s.changeLocal(ctx, ids, changes, f)
	if err != nil || len(there) == 0 {
		return changes, err
	}
	if !s.remote() {
		return nil, errNoPrimary
	}
	err = s.call(ctx, 0, func(ctx context.Context, p Primary) error {
		some, err := f(ctx, p, there)
		for k := range some {
			changes[there[k]] = some[k]
		}
		return err
	})
	if err != nil {
		return nil, unanswered(err)
	}
	at := slices.DeleteFunc(there, func(i int) bool { return changes[i].Result != job.ResultDone })
	if len(at) == 0 {
		return changes, nil
	}
	done(at)
	return changes, s.changeMoved(ctx, ids, at, changes, f)
}

// changeMoved changes again, in the local store, what has moved there while the
// primary was changing it. What is unknown there is another job of the id.
func (s *Store) changeMoved(ctx context.Context, ids []string, at []int, changes []job.Change, f func(context.Context, job.Store, []int) ([]job.Change, error)) error {
	s.gate.RLock()
	defer s.gate.RUnlock()
	found := s.disk().Find(pick(ids, at))
	var moved []int
	for k, i := range at {
		if st := found[k].State; st != "" && st != job.Cancelled {
			moved = append(moved, i)
		}
	}
	if len(moved) == 0 {
		return nil
	}
	some, err := f(ctx, s.disk(), moved)
	for k := range some {
		if some[k].Result != job.ResultUnknown {
			changes[moved[k]] = some[k]
		}
	}
	signal(s.kick)
	return err
}

// changeLocal changes what the local store holds, and in local mode what the
// mirror does, and returns the indices of the others.
func (s *Store) changeLocal(ctx context.Context, ids []string, changes []job.Change, f func(context.Context, job.Store, []int) ([]job.Change, error)) (there []int, err error) {
	s.gate.RLock()
	defer s.gate.RUnlock()
	if !s.remote() {
		if err := s.bring(ctx, ids); err != nil {
			return nil, err
		}
	}
	var here []int
	for i, found := range s.disk().Find(ids) {
		if found.State != "" {
			here = append(here, i)
		} else {
			there = append(there, i)
		}
	}
	if len(here) == 0 {
		return there, nil
	}
	some, err := f(ctx, s.disk(), here)
	for k := range some {
		changes[here[k]] = some[k]
	}
	signal(s.kick)
	return there, err
}

// cancelledThere forgets the copies of jobs that the primary has cancelled.
func (s *Store) cancelledThere(ctx context.Context, now job.Time, ids []string, before copies, at []int) {
	refs := make([]job.Ref, len(ids))
	for i := range ids {
		refs[i].ID = ids[i]
	}
	s.unmirror(refs)
	s.journalCancelled(ctx, now, ids, before, at)
}

// rescheduledThere makes the copies agree with jobs that the primary has moved.
func (s *Store) rescheduledThere(ctx context.Context, ids []string) {
	refs := make([]job.Ref, len(ids))
	for i := range ids {
		refs[i].ID = ids[i]
	}
	s.unmirror(refs)
	c := s.watch.begin()
	var infos []job.Info
	err := s.call(ctx, 0, func(ctx context.Context, p Primary) (err error) {
		infos, err = p.Get(ctx, ids)
		return err
	})
	if err != nil {
		s.log.Warn("jobs were rescheduled but not mirrored: they are not delivered if Redis fails before they are due", "jobs", len(ids), "error", err)
	}
	s.mirrorNear(c, infos)
	if err := s.copyAgain(ctx, ids); err != nil {
		s.log.Error("jobs were rescheduled, but not in the journal: they have their old time if Redis loses data", "jobs", len(ids), "error", err)
	}
}
