package redisdelay

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/delaybridge/delaybridge/job"
)

// What is paused is a hash, pattern to "<1 or 0> <microseconds>", beside the shards:
// few entries, that hardly change.

// pausesKey is the key of the hash.
func (s *Store) pausesKey() string { return s.opts.Prefix + ":paused" }

// LoadPauses returns what is paused, for all bridges.
func (s *Store) LoadPauses(ctx context.Context) (job.Pauses, error) {
	found, err := s.client.HGetAll(ctx, s.pausesKey()).Result()
	if err != nil {
		return nil, fmt.Errorf("redisdelay: read what is paused: %w", err)
	}
	p := job.Pauses{}
	for pattern, text := range found {
		said, at, _ := strings.Cut(text, " ")
		us, err := strconv.ParseInt(at, 10, 64)
		if err != nil || said != "0" && said != "1" {
			return nil, fmt.Errorf("redis: %s: field %.64q has %.64q, which is no pause: remove the field", s.pausesKey(), pattern, text)
		}
		p[pattern] = job.Pause{Paused: said == "1", At: job.Time(us)}
	}
	return p, nil
}

// savePauses sets the fields that are newer than what is there.
var savePauses = redis.NewScript(savePausesSource)

const savePausesSource = `
for i = 1, #ARGV, 3 do
	local was = redis.call('HGET', KEYS[1], ARGV[i])
	local at = was and tonumber(string.sub(was, 3)) or -1
	local new = tonumber(ARGV[i+2])
	if new > at or new == at and ARGV[i+1] == '1' then
		redis.call('HSET', KEYS[1], ARGV[i], ARGV[i+1] .. ' ' .. ARGV[i+2])
	end
end
return 1`

// SavePauses adds what p knows better.
func (s *Store) SavePauses(ctx context.Context, p job.Pauses) error {
	args := make([]any, 0, 3*len(p))
	for pattern, said := range p {
		paused := "0"
		if said.Paused {
			paused = "1"
		}
		args = append(args, pattern, paused, int64(said.At))
	}
	if len(args) == 0 {
		return nil
	}
	if err := savePauses.Run(ctx, s.client, []string{s.pausesKey()}, args...).Err(); err != nil {
		return fmt.Errorf("redisdelay: write what is paused: %w", denied(savePausesSource, err))
	}
	return nil
}
