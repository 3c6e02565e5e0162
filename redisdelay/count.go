package redisdelay

import (
	"context"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/delaybridge/delaybridge/job"
)

// Count implements [job.Index]: a few constant-time commands per shard, and one
// per target that has jobs set aside, in two round trips.
func (s *Store) Count(ctx context.Context) (job.Counts, error) {
	waiting, err := s.waitingTargets(ctx)
	if err != nil {
		return job.Counts{}, err
	}
	pipe := s.client.Pipeline()
	var due, aside, running, dead []*redis.IntCmd
	for shard, targets := range waiting {
		due = append(due, pipe.ZCard(ctx, s.keys[shard][dueKey]))
		running = append(running, pipe.ZCard(ctx, s.keys[shard][infKey]))
		dead = append(dead, pipe.ZCard(ctx, s.keys[shard][deadKey]))
		for _, t := range targets {
			aside = append(aside, pipe.ZCard(ctx, waitKey(s.opts.Prefix, shard, t)))
		}
	}
	sent := time.Now()
	_, err = pipe.Exec(ctx)
	s.observeCall(callCount, time.Since(sent), err)
	if err != nil {
		return job.Counts{}, err
	}
	a := sum(aside)
	return job.Counts{Pending: sum(due) + a, Aside: a, Running: sum(running), Dead: sum(dead)}, nil
}

func sum(cmds []*redis.IntCmd) (n int) {
	for _, c := range cmds {
		n += int(c.Val())
	}
	return n
}
