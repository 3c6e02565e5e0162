package failover

import (
	"context"
	"errors"
	"math/rand/v2"

	"github.com/delaybridge/delaybridge/job"
)

// errDirect is why a put did not even try the primary.
var errDirect = errors.New("it did not answer the call before in time")

// Put implements [job.Queue]. A batch that the primary does not confirm within
// the hand-over time is in the local store when Put returns.
func (s *Store) Put(ctx context.Context, jobs []job.Job) ([]job.PutResult, error) {
	here, there := s.split(jobs)
	if len(here) == 0 {
		return s.put(ctx, jobs)
	}
	// Ids that live here are dealt with here, whatever the mode.
	res := make([]job.PutResult, len(jobs))
	err := s.putSome(jobs, here, res, func(some []job.Job) ([]job.PutResult, error) { return s.putLocal(ctx, some, false) })
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
	if u := s.local.Usage(); u.Jobs+u.Verdicts == 0 {
		return nil, nil
	}
	ids := make([]string, len(jobs))
	for i := range jobs {
		ids[i] = jobs[i].ID
	}
	for i, f := range s.local.Find(ids) {
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
	err := errDirect
	tried := false
	if s.remote() && (!s.direct.Load() || s.localUsable() != nil) {
		var res []job.PutResult
		if res, err = s.putPrimary(ctx, jobs); err == nil {
			return res, s.keep(ctx, jobs, res)
		}
		tried = true
		s.direct.Store(true)
	}
	res, lerr := s.putLocal(ctx, jobs, tried)
	if lerr != nil {
		return nil, unavailable(err, lerr)
	}
	s.countFallback("triggered", res)
	if s.remote() {
		signal(s.kick)
		s.ProbeSoon()
	}
	return res, nil
}

func (s *Store) putPrimary(ctx context.Context, jobs []job.Job) (res []job.PutResult, err error) {
	c := s.watch.begin()
	err = s.call(ctx, s.handOver(), func(ctx context.Context, p Primary) (err error) {
		res, err = p.Put(ctx, jobs)
		return err
	})
	var stored []job.Info
	if err == nil {
		until := s.now().Add(s.limits.Load().Horizon)
		for i := range res {
			if res[i].Err == nil && !res[i].Duplicate && jobs[i].Due <= until {
				stored = append(stored, job.Info{Job: jobs[i], State: job.Pending, Next: jobs[i].Due})
			}
		}
	}
	s.mirrorNear(c, stored)
	return res, err
}

// putLocal stores jobs in the local store. suspect: the primary may have taken
// them too.
func (s *Store) putLocal(ctx context.Context, jobs []job.Job, suspect bool) ([]job.PutResult, error) {
	ctx = context.WithoutCancel(ctx) // the log answers in its own time, which is short
	s.gate.RLock()
	defer s.gate.RUnlock()
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
	if suspect {
		return s.local.PutSuspect(ctx, jobs)
	}
	return s.local.Put(ctx, jobs)
}

// PutLocal stores jobs in the local store, because the way to the primary is
// too long just now.
func (s *Store) PutLocal(ctx context.Context, jobs []job.Job) ([]job.PutResult, error) {
	res, err := s.putLocal(ctx, jobs, false)
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
