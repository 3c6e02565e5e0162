package memdelay

import (
	"context"

	"github.com/delaybridge/delaybridge/job"
)

// Count implements [job.Index].
func (s *Store) Count(ctx context.Context) (job.Counts, error) {
	if err := s.lock(ctx); err != nil {
		return job.Counts{}, err
	}
	defer s.mu.Unlock()
	c := job.Counts{Running: s.running.len(), Dead: s.dead.len()}
	for _, h := range s.waiting {
		c.Aside += h.len()
	}
	c.Pending = s.scheduled.len() + c.Aside
	return c, nil
}
