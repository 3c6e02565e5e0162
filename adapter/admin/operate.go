package admin

import (
	"context"
	"encoding/json"
	"slices"
	"time"

	"github.com/delaybridge/delaybridge/api"
	"github.com/delaybridge/delaybridge/job"
	"github.com/delaybridge/delaybridge/subjects"
)

// maxParked is how many parked targets stats names.
const maxParked = 100

func (s *Service) pause(ctx context.Context, c *call) (any, error) {
	return s.setPause(ctx, c, s.o.Bridge.Pause)
}

func (s *Service) resume(ctx context.Context, c *call) (any, error) {
	return s.setPause(ctx, c, s.o.Bridge.Resume)
}

func (s *Service) setPause(ctx context.Context, c *call, set func(context.Context, string) *job.Error) (any, error) {
	var req api.TargetRequest
	if err := decode(c.body, &req); err != nil {
		return nil, err
	}
	pattern, err := c.explicit(req.Target)
	if err != nil {
		return nil, err
	}
	if failure := set(ctx, pattern); failure != nil {
		return nil, failure
	}
	return api.PauseState{Paused: s.paused(c)}, nil
}

// paused is what is paused, as far as the call may know.
func (s *Service) paused(c *call) []string {
	paused := s.o.Bridge.Paused()
	if c.target != "" {
		paused = slices.DeleteFunc(slices.Clone(paused), func(p string) bool {
			m, err := subjects.NewMatcher([]string{p})
			return err != nil || !m.Match(c.target)
		})
	}
	if paused == nil {
		return []string{}
	}
	return paused
}

// statsRequest asks for the stats of one target, or of all.
type statsRequest struct {
	Target string `json:"target,omitempty"`
}

func (s *Service) stats(ctx context.Context, c *call) (any, error) {
	var req statsRequest
	if err := decode(c.body, &req); err != nil {
		return nil, err
	}
	sel, err := c.selectTargets(req.Target)
	if err != nil {
		return nil, err
	}
	if subjects.IsPattern(req.Target) && req.Target != ">" {
		return nil, job.ErrTarget.With(`field "target" is the pattern %.64q: stats are of one target, or of all`, req.Target)
	}
	b := s.o.Bridge
	a := api.StatsAnswer{
		Bridge: b.ID(), Mode: b.Mode(), Version: s.o.Version, Started: api.At(s.started),
		Paused: s.paused(c), Parked: []api.Parked{},
	}
	if sel.exact != "" {
		end, err := s.beginScan(ctx, c)
		if err != nil {
			return nil, err
		}
		defer end()
		err = s.statsOf(ctx, &a, sel.exact)
		return a, err
	}
	a.Flying, a.Workers, a.Totals = b.InFlight(), len(b.Workers()), b.Totals()
	a.Parked = append(a.Parked, b.Parked(maxParked)...)
	s.count(ctx, &a)
	return a, nil
}

// count counts all jobs.
func (s *Service) count(ctx context.Context, a *api.StatsAnswer) {
	if local, err := s.local().Count(ctx); err == nil {
		a.Jobs, a.Local = local, local.Pending+local.Running+local.Dead
	}
	if all, err := s.o.Store.Count(ctx); err == nil {
		a.Jobs, a.Counted = all, true
	}
	index := job.Index(s.o.Store)
	if !a.Counted {
		index = s.local()
	}
	if next, err := nextDue(ctx, index, ""); err == nil {
		a.Due = api.At(next)
	}
}

// nextDue returns the earliest time of a pending job's next attempt, zero: none.
func nextDue(ctx context.Context, index job.Index, target string) (job.Time, error) {
	q := job.Query{State: job.Pending, Target: target, Limit: 1}
	for end := time.Now().Add(scanTime); time.Now().Before(end); {
		p, err := index.List(ctx, q)
		switch {
		case err != nil:
			return 0, err
		case len(p.Jobs) > 0:
			return p.Jobs[0].Next, nil
		case p.Cursor == "":
			return 0, nil
		}
		q.Cursor, q.Limit = p.Cursor, maxLimit
	}
	return 0, nil
}

// statsOf counts the jobs of one target, by listing them.
func (s *Service) statsOf(ctx context.Context, a *api.StatsAnswer, target string) error {
	var err error
	if a.Jobs, a.Counted, err = countOf(ctx, s.o.Store, target); err != nil {
		if a.Jobs, _, err = countOf(ctx, s.local(), target); err != nil {
			return err
		}
		a.Counted = false
	}
	if a.Counted {
		if next, err := nextDue(ctx, s.o.Store, target); err == nil {
			a.Due = api.At(next)
		}
	}
	for _, p := range s.o.Bridge.Parked(maxScan) {
		if p.Target == target {
			a.Parked = append(a.Parked, p)
		}
	}
	for _, w := range s.o.Bridge.Workers() {
		if m, err := subjects.NewMatcher(w.Subjects); err == nil && m.Match(target) {
			a.Workers++
		}
	}
	return nil
}

// countOf counts the jobs of a target; all is false when there was no time for all.
func countOf(ctx context.Context, index job.Index, target string) (n job.Counts, all bool, err error) {
	all = true
	end := time.Now().Add(scanTime)
	for state, count := range map[job.State]*int{job.Pending: &n.Pending, job.Running: &n.Running, job.Dead: &n.Dead} {
		q := job.Query{State: state, Target: target, Limit: maxLimit}
		for {
			if time.Now().After(end) {
				all = false
				break
			}
			p, err := index.List(ctx, q)
			if err != nil {
				return n, false, err
			}
			*count += len(p.Jobs)
			if q.Cursor = p.Cursor; p.Cursor == "" {
				break
			}
		}
	}
	return n, all, nil
}

func (s *Service) workers(_ context.Context, c *call) (any, error) {
	if err := decode(c.body, &struct{}{}); err != nil {
		return nil, err
	}
	workers := s.o.Bridge.Workers()
	a := api.WorkersAnswer{Bridge: s.o.Bridge.ID(), Workers: []api.Worker{}}
	room := s.room() - answerHead
	for i := range workers {
		data, err := json.Marshal(&workers[i])
		if err != nil {
			return nil, err
		}
		if room -= int64(len(data)) + 1; room < 0 {
			a.LeftOff = len(workers) - i
			break
		}
		a.Workers = append(a.Workers, workers[i])
	}
	return a, nil
}

func (s *Service) bridges(_ context.Context, c *call) (any, error) {
	if err := decode(c.body, &struct{}{}); err != nil {
		return nil, err
	}
	return api.BridgesAnswer{Bridges: append([]api.Bridge{}, s.o.Bridge.Bridges()...)}, nil
}

func (s *Service) config(_ context.Context, c *call) (any, error) {
	if err := decode(c.body, &struct{}{}); err != nil {
		return nil, err
	}
	a := api.ConfigAnswer{Bridge: s.o.Bridge.ID(), Config: map[string]string{}}
	if s.o.Config != nil {
		a.Config = s.o.Config()
	}
	return a, nil
}
