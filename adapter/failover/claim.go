package failover

import (
	"context"
	"slices"

	"github.com/delaybridge/delaybridge/job"
	"github.com/delaybridge/delaybridge/memdelay"
)

// Claim implements [job.Queue].
func (s *Store) Claim(ctx context.Context, r job.ClaimRequest) (job.Claimed, error) {
	if !s.remote() {
		if c, ok, err := s.claimLocal(ctx, r); ok {
			return c, err
		}
	}
	c, err := s.claimPrimary(ctx, r)
	if err != nil {
		return job.Claimed{}, err
	}
	c.Deliveries = s.claimed(c.Deliveries)
	return c, nil
}

// claimPrimary does not wait for a primary that was turned from, which no
// cancelled context makes a connection do: due jobs are in the mirror. What such a
// claim leases after all is overwritten by the merge, or runs out.
func (s *Store) claimPrimary(ctx context.Context, r job.ClaimRequest) (job.Claimed, error) {
	p := s.primary.Load()
	if p == nil {
		return job.Claimed{}, errNoPrimary
	}
	type answer struct {
		job.Claimed
		err error
	}
	done := make(chan answer, 1)
	r.Slots = slices.Clone(r.Slots) // the call may go on when the caller has them back
	go func() {
		var a answer
		a.err = s.call(ctx, 0, func(ctx context.Context, p Primary) (err error) {
			a.Claimed, err = p.Claim(ctx, r)
			return err
		})
		done <- a
	}()
	select {
	case a := <-done:
		return a.Claimed, a.err
	case <-p.period.Done():
		return job.Claimed{}, errNoPrimary
	}
}

// claimLocal claims in local mode; ok is false when that has ended.
func (s *Store) claimLocal(ctx context.Context, r job.ClaimRequest) (c job.Claimed, ok bool, err error) {
	s.gate.RLock()
	defer s.gate.RUnlock()
	if s.remote() {
		return c, false, nil
	}
	if r.Target == "" {
		if err := s.bringDue(ctx, r.Until, r.Max); err != nil {
			return c, true, err
		}
	}
	if c, err = s.disk().Claim(ctx, r); err != nil {
		return c, true, err
	}
	if r.Target == "" {
		if next := s.mirrorNext(); next != 0 && (c.NextDue == 0 || next < c.NextDue) {
			c.NextDue = next
		}
	}
	for i := range c.Deliveries {
		c.Deliveries[i].Fallback = true
	}
	return c, true, nil
}

// bringDue moves jobs of the mirror that are due to the local store.
func (s *Store) bringDue(ctx context.Context, until job.Time, limit int) error {
	if s.foreign.Load() {
		return nil // peers reach the primary and deliver them
	}
	s.move.Lock()
	defer s.move.Unlock()
	due := s.mirror.TakeDue(until, limit)
	due = slices.DeleteFunc(due, func(i job.Info) bool { return !s.o.Peers.Fires(i.ID) })
	return s.adopt(ctx, due)
}

// mirrorNext is when the next job of the mirror is due, zero: none.
func (s *Store) mirrorNext() job.Time {
	if s.foreign.Load() {
		return 0
	}
	c, _ := s.mirror.Claim(context.Background(), job.ClaimRequest{}) // of no job; fails only when it is closed
	return c.NextDue
}

// Expired implements [job.Queue].
func (s *Store) Expired(ctx context.Context, now job.Time, limit int) ([]job.Delivery, job.Time, error) {
	if !s.remote() {
		if ds, next, ok, err := s.expiredLocal(ctx, now, limit); ok {
			return ds, next, err
		}
	}
	var ds []job.Delivery
	var next job.Time
	err := s.call(ctx, 0, func(ctx context.Context, p Primary) (err error) {
		ds, next, err = p.Expired(ctx, now, limit)
		return err
	})
	return s.notHere(s.unfinished(ds)), next, err
}

func (s *Store) expiredLocal(ctx context.Context, now job.Time, limit int) ([]job.Delivery, job.Time, bool, error) {
	s.gate.RLock()
	defer s.gate.RUnlock()
	if s.remote() {
		return nil, 0, false, nil
	}
	if s.foreign.Load() { // peers end the leases
		ds, next, err := s.disk().Expired(ctx, now, limit)
		return ds, next, true, err
	}
	s.move.Lock()
	err := s.adopt(ctx, s.mirror.TakeExpired(now, limit))
	s.move.Unlock()
	if err != nil {
		return nil, 0, true, err
	}
	ds, next, err := s.disk().Expired(ctx, now, limit)
	_, running, merr := s.mirror.Expired(ctx, now, 0)
	if merr == nil && running != 0 && (next == 0 || running < next) {
		next = running
	}
	return ds, next, true, err
}

// notHere drops deliveries of jobs that the local store knows better: they were
// settled there when the primary did not answer.
func (s *Store) notHere(ds []job.Delivery) []job.Delivery {
	if u := s.disk().Usage(); len(ds) == 0 || u.Jobs+u.Verdicts == 0 {
		return ds
	}
	ids := make([]string, len(ds))
	for i := range ds {
		ids[i] = ds[i].ID
	}
	keep := ds[:0]
	for i, f := range s.disk().Find(ids) {
		if !over(f, &ds[i]) {
			keep = append(keep, ds[i])
		}
	}
	return keep
}

// over reports whether what the local store has found of a job makes a delivery
// of the primary void: the job has ended, or gone on, here.
func over(f memdelay.Found, d *job.Delivery) bool {
	return f.State != "" && f.Incarnation == d.Incarnation &&
		(f.State == job.Done || f.State == job.Cancelled || f.Attempt >= d.Attempt)
}

// Waiting implements [job.Queue].
func (s *Store) Waiting(ctx context.Context) (targets []string, err error) {
	if !s.remote() {
		return s.disk().Waiting(ctx)
	}
	err = s.call(ctx, 0, func(ctx context.Context, p Primary) (err error) {
		targets, err = p.Waiting(ctx)
		return err
	})
	return targets, err
}

// Prune implements [job.Queue]. Dead jobs are pruned in the primary, and their
// copies in the journal: the local store does not keep them for long.
func (s *Store) Prune(ctx context.Context, before job.Time, limit int) (n int, err error) {
	if !s.remote() {
		return 0, nil
	}
	err = s.call(ctx, 0, func(ctx context.Context, p Primary) (err error) {
		n, err = p.Prune(ctx, before, limit)
		return err
	})
	if err == nil && s.journal != nil {
		if _, err := s.journal.Prune(ctx, before, limit); err != nil {
			s.log.Error("dead jobs that were removed stay in the journal", "error", err)
		}
	}
	return n, err
}
