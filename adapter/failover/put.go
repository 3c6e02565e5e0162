package failover

import (
	"context"
	"errors"
	"math/rand/v2"

	"github.com/delaybridge/delaybridge/job"
)

// errDirect is why a put did not even try the primary.
var errDirect = errors.New("it did not answer the call before in time")

// errForgotten is why a put that the primary confirmed is in doubt.
var errForgotten = errors.New("it has lost data at the same time")

// Put implements [job.Queue]. A batch that the primary does not confirm within
// the hand-over time is in the local store when Put returns.
func (s *Store) Put(ctx context.Context, jobs []job.Job) ([]job.PutResult, error) {
	here, there := s.split(jobs)
	if len(here) == 0 {
		return s.put(ctx, jobs)
	}
	// Ids that live here are dealt with here, whatever the mode.
	res := make([]job.PutResult, len(jobs))
	err := s.putSome(jobs, here, res, func(some []job.Job) ([]job.PutResult, error) { return s.putLocal(ctx, some) })
	if err == nil && len(there) > 0 {
		err = s.putSome(jobs, there, res, func(some []job.Job) ([]job.PutResult, error) { return s.put(ctx, some) })
	}
	if err != nil {
		return nil, err
	}
	return res, nil
}

// split returns the indices of the jobs whose ids the local store holds, and of
// the others; nothing when it holds none.
func (s *Store) split(jobs []job.Job) (here, there []int) {
	if u := s.disk().Usage(); u.Jobs+u.Verdicts == 0 {
		return nil, nil
	}
	ids := make([]string, len(jobs))
	for i := range jobs {
		ids[i] = jobs[i].ID
	}
	for i, f := range s.disk().Find(ids) {
		if f.State != "" && ids[i] != "" {
			here = append(here, i)
		} else {
			there = append(there, i)
		}
	}
	return here, there
}

// putSome puts the jobs at those indices and keeps what put sets in them.
func (s *Store) putSome(jobs []job.Job, at []int, res []job.PutResult, put func([]job.Job) ([]job.PutResult, error)) error {
	some := make([]job.Job, len(at))
	for k, i := range at {
		some[k] = jobs[i]
	}
	r, err := put(some)
	for k, i := range at {
		jobs[i] = some[k]
		if err == nil {
			res[i] = r[k]
		}
	}
	return err
}

func (s *Store) put(ctx context.Context, jobs []job.Job) ([]job.PutResult, error) {
	if res, refused, err := s.refuseUnkept(jobs, func(some []job.Job) ([]job.PutResult, error) { return s.put(ctx, some) }); refused {
		return res, err
	}
	why := errDirect
	if s.remote() && (!s.direct.Load() || s.localUsable() != nil) {
		c, e := s.watch.begin(), s.watchEnds(jobs)
		losses := s.lossCount.Load()
		res, err := s.putPrimary(ctx, jobs)
		if err == nil && losses != s.lossCount.Load() {
			err = errForgotten
		}
		if err == nil {
			s.replaced(jobs, res)
			s.mirrorNear(c, s.stored(jobs, res))
			s.keep(ctx, e, jobs, res)
			return res, nil
		}
		s.direct.Store(true)
		why = err
		if res, err = s.putSuspect(ctx, c, jobs, why); err != nil {
			s.ends.end(e)
			return nil, unavailable(why, err)
		}
		s.keep(ctx, e, jobs, res) // those that turned out to be there
		s.handedOver(res)
		return res, nil
	}
	res, err := s.putLocal(ctx, jobs)
	if err != nil {
		return nil, unavailable(why, err)
	}
	s.handedOver(res)
	return res, nil
}

// handedOver tells what went to the local store, and has it moved on.
func (s *Store) handedOver(res []job.PutResult) {
	s.countFallback("triggered", res)
	if s.remote() {
		signal(s.kick)
		s.ProbeSoon()
	}
}

func (s *Store) putPrimary(ctx context.Context, jobs []job.Job) (res []job.PutResult, err error) {
	err = s.call(ctx, s.handOver(), func(ctx context.Context, p Primary) (err error) {
		res, err = p.Put(ctx, jobs)
		return err
	})
	return res, err
}

// stored returns those of jobs that the primary has stored and that are due soon.
func (s *Store) stored(jobs []job.Job, res []job.PutResult) []job.Info {
	var infos []job.Info
	until := s.now().Add(s.limits.Load().Horizon)
	for i := range res {
		if res[i].Err == nil && !res[i].Duplicate && jobs[i].Due <= until {
			infos = append(infos, job.Info{Job: jobs[i], State: job.Pending, Next: jobs[i].Due})
		}
	}
	return infos
}

// putSuspect stores jobs in the local store that the primary may have taken, for the
// reason why. Of those that have been claimed from it since the call c began that is
// known, and a copy here could run a second time. So it is of those that the mirror
// has, unless the primary may have forgotten them since it was read.
func (s *Store) putSuspect(ctx context.Context, c *watched, jobs []job.Job, why error) ([]job.PutResult, error) {
	ctx = context.WithoutCancel(ctx) // the log answers in its own time, which is short
	s.gate.RLock()
	defer s.gate.RUnlock()
	s.move.Lock()
	defer s.move.Unlock()
	ended := s.watch.end(c)
	ids := make([]string, len(jobs))
	for i := range jobs {
		ids[i] = jobs[i].ID
	}
	res := make([]job.PutResult, len(jobs))
	var open []int
	for i, copied := range s.mirror.Find(ids) {
		if j := &jobs[i]; j.Incarnation != 0 && ended[j.ID] == j.Incarnation || copied.State != "" && copied.Incarnation == j.Incarnation && why != errForgotten {
			res[i] = job.PutResult{Due: j.Due, Stored: job.StoredRedis}
		} else {
			open = append(open, i)
		}
	}
	if len(open) == 0 {
		return res, nil
	}
	return res, s.putSome(jobs, open, res, func(some []job.Job) ([]job.PutResult, error) { return s.disk().PutSuspect(ctx, some) })
}

// putLocal stores jobs in the local store that the primary was not asked to
// take.
func (s *Store) putLocal(ctx context.Context, jobs []job.Job) ([]job.PutResult, error) {
	ctx = context.WithoutCancel(ctx)
	s.gate.RLock()
	defer s.gate.RUnlock()
	if s.disk() != s.o.Local {
		return nil, s.localUsable()
	}
	if !s.remote() {
		var chosen []string
		for i := range jobs {
			if j := &jobs[i]; j.ID != "" && !j.Generated {
				chosen = append(chosen, j.ID)
			}
		}
		if err := s.bring(ctx, chosen); err != nil {
			return nil, err
		}
	}
	for i := range jobs {
		if j := &jobs[i]; j.ID == "" {
			j.ID, j.Generated = job.NewID(uint16(rand.N(job.MaxShards))), true
		}
	}
	return s.disk().Put(ctx, jobs)
}

// PutLocal stores jobs in the local store, because the way to the primary is
// too long just now.
func (s *Store) PutLocal(ctx context.Context, jobs []job.Job) ([]job.PutResult, error) {
	res, err := s.putLocal(ctx, jobs)
	if err == nil {
		s.countFallback("spilled", res)
		signal(s.kick)
	}
	return res, err
}

// countFallback tells the observer what the local store took and refused.
func (s *Store) countFallback(status string, res []job.PutResult) {
	taken, refused := 0, 0
	for i := range res {
		switch {
		case errors.Is(res[i].Err, job.ErrFull):
			refused++
		case res[i].Err == nil && !res[i].Duplicate:
			taken++
		}
	}
	if taken > 0 {
		s.o.Observer.Fallback(status, taken)
	}
	if refused > 0 {
		s.o.Observer.Fallback("rejected", refused)
	}
}
