package redisdelay

import (
	"context"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/delaybridge/delaybridge/job"
)

// Count implements [job.Index]: four constant-time commands per shard, in one round
// trip. A job that lives has a record and is in one sorted set, so that those set
// aside are what the others leave, however many targets they have.
func (s *Store) Count(ctx context.Context) (job.Counts, error) {
	pipe := s.client.Pipeline()
	var all, due, running, dead []*redis.IntCmd
	for _, keys := range s.keys {
		all = append(all, pipe.HLen(ctx, keys[jobKey]))
		due = append(due, pipe.ZCard(ctx, keys[dueKey]))
		running = append(running, pipe.ZCard(ctx, keys[infKey]))
		dead = append(dead, pipe.ZCard(ctx, keys[deadKey]))
	}
	sent := time.Now()
	_, err := pipe.Exec(ctx)
	s.observeCall(callCount, time.Since(sent), err)
	if err != nil {
		return job.Counts{}, err
	}
	c := job.Counts{Running: sum(running), Dead: sum(dead)}
	// Less than nothing when others have changed something between two commands.
	c.Pending = max(0, sum(all)-c.Running-c.Dead)
	c.Aside = max(0, c.Pending-sum(due))
	return c, nil
}

func sum(cmds []*redis.IntCmd) (n int) {
	for _, c := range cmds {
		n += int(c.Val())
	}
	return n
}
