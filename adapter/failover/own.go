package failover

import (
	"context"
	"slices"

	"github.com/delaybridge/delaybridge/job"
)

// ownedThere gives the copies of leases the owners that the primary has given
// them. A lease whose copy has another one, since it moved to the local store while
// the answer was on its way, is taken: what is here is in force.
func (s *Store) ownedThere(ctx context.Context, now job.Time, list []job.Settlement, res []job.SettleResult) {
	var at []int
	for i := range list {
		if list[i].Outcome == job.Own && res[i] == job.Settled {
			at = append(at, i)
		}
	}
	if len(at) == 0 {
		return
	}
	ctx = context.WithoutCancel(ctx)
	at = s.ownCopies(ctx, now, list, at, res)
	at = slices.DeleteFunc(at, func(i int) bool { return !s.ours(list[i].Owner) })
	s.mirrorOwned(ctx, pick(list, at))
}

// ours reports whether an owner is this bridge, or a worker of it.
func (s *Store) ours(owner string) bool {
	bridge, _ := job.SplitOwner(owner)
	return bridge == s.o.Bridge
}

// ownCopies changes the copies in the mirror and in the local store, between which
// none moves meanwhile, and returns the indices of leases that neither has.
func (s *Store) ownCopies(ctx context.Context, now job.Time, list []job.Settlement, at []int, res []job.SettleResult) (left []int) {
	s.move.Lock()
	defer s.move.Unlock()
	s.watch.freed(refsAt(list, at)...)
	mirrored, _ := s.mirror.Settle(ctx, now, pick(list, at)) // fails only when it is closed
	for k, r := range mirrored {
		if r != job.Settled {
			left = append(left, at[k])
		}
	}
	if len(left) == 0 || s.disk().Usage().Jobs == 0 {
		return left
	}
	here, err := s.disk().Settle(ctx, now, pick(list, left))
	if err != nil {
		s.log.Error("workers own jobs in Redis, but not on this bridge's disk: others may claim them if Redis fails now", "error", err)
		return left
	}
	at, left = left, nil
	for k, r := range here {
		switch i := at[k]; r {
		case job.Settled:
			signal(s.kick)
		case job.Taken:
			res[i] = job.Taken
		default:
			left = append(left, i)
		}
	}
	return left
}

// mirrorOwned mirrors leases that this bridge has taken over, from itself before a
// restart or from another one.
func (s *Store) mirrorOwned(ctx context.Context, list []job.Settlement) {
	if len(list) == 0 || !s.remote() {
		return
	}
	c := s.watch.begin()
	var infos []job.Info
	err := s.call(ctx, mergeTimeout, func(ctx context.Context, p Primary) (err error) {
		infos, err = p.Get(ctx, idsOf(list))
		return err
	})
	if err != nil {
		s.log.Warn("leases were taken over but not mirrored: they cannot be settled while Redis is away", "jobs", len(list), "error", err)
	}
	s.mirrorLeases(c, infos)
}

// mirrorLeases adds this bridge's leases that the primary had when the call ended,
// but for those that have changed since it began, or that are known already.
func (s *Store) mirrorLeases(c *watched, infos []job.Info) {
	s.move.Lock()
	defer s.move.Unlock()
	gone := s.watch.end(c)
	var leases []job.Info
	var ids []string
	for i := range infos {
		_, left := gone[infos[i].ID]
		_, freed := c.freed[infos[i].ID]
		if !left && !freed && infos[i].State == job.Running && s.ours(infos[i].Owner) {
			leases, ids = append(leases, infos[i]), append(ids, infos[i].ID)
		}
	}
	if len(leases) == 0 {
		return
	}
	here, copies, finished, room := s.disk().Find(ids), s.mirror.Find(ids), s.finished(ids), s.mirrorRoom()
	keep := leases[:0]
	for i := range leases {
		l, known := &leases[i], copies[i].State != "" && copies[i].Incarnation == leases[i].Incarnation && copies[i].Attempt >= leases[i].Attempt
		if here[i].State == "" && !known && finished(i, l.Incarnation) == "" && len(keep) < room {
			keep = append(keep, *l)
		}
	}
	s.toMirror(keep)
}

func refsAt(list []job.Settlement, at []int) []job.Ref {
	refs := make([]job.Ref, len(at))
	for k, i := range at {
		refs[k] = list[i].Ref
	}
	return refs
}
