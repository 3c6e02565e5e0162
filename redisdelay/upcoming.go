package redisdelay

import (
	"context"
	"strconv"

	"github.com/delaybridge/delaybridge/job"
)

// reading is how far Upcoming has come in a shard.
type reading struct {
	position
	done bool
}

// Upcoming returns up to max pending jobs (not those set aside) whose next
// attempt is at or after from and before until, those of each shard earliest
// first. All that are due before complete are among them; it is until when
// nothing was left out. Jobs that change meanwhile may be missing.
func (s *Store) Upcoming(ctx context.Context, from, until job.Time, max int) (jobs []job.Info, complete job.Time, err error) {
	at := make([]reading, len(s.keys))
	for i := range at {
		at[i].at = from
	}
	for len(jobs) < max {
		calls := s.upcomingCalls(at, until, max-len(jobs))
		if len(calls) == 0 {
			break
		}
		if err := s.runRead(ctx, calls); err != nil {
			return nil, 0, err
		}
		for _, c := range calls {
			jobs = append(jobs, s.upcomingReply(c, &at[c.shard])...)
		}
	}
	complete = until
	for _, r := range at {
		if !r.done {
			complete = min(complete, r.at)
		}
	}
	return jobs, complete, nil
}

// upcomingCalls ask the shards that have more for equal shares of room.
func (s *Store) upcomingCalls(at []reading, until job.Time, room int) (calls []*call) {
	open := 0
	for _, r := range at {
		if !r.done {
			open++
		}
	}
	for shard, r := range at {
		if r.done || len(calls) == room {
			continue
		}
		share := min(max(room/open, 1), maxBatch)
		c := s.newCall(upcomingScript, shard)
		c.add(strconv.FormatInt(int64(r.at), 10), r.id, int64(until), share)
		calls = append(calls, c)
	}
	return calls
}

func (s *Store) upcomingReply(c *call, at *reading) []job.Info {
	ids, recs, owns := c.strings(1), c.strings(2), c.strings(3)
	jobs := make([]job.Info, 0, len(ids))
	for i, id := range ids {
		j, err := job.DecodeRecord(id, recs[i])
		if err != nil {
			s.opts.Logger.Error("redis: job not readable", "shard", c.shard, "error", err)
			continue
		}
		t := parseTries(owns[i])
		jobs = append(jobs, job.Info{
			Job: j, State: job.Pending, Shard: uint16(c.shard), Attempt: t.attempts, Base: t.base, Next: t.next(j.Due), Stored: job.StoredRedis,
		})
	}
	done, _ := c.reply[0].(int64)
	at.done = done == 1
	score, _ := c.reply[4].(string)
	at.at = parseTime(score)
	at.id, _ = c.reply[5].(string)
	return jobs
}
