package redisdelay

import (
	"context"
	"fmt"
	"strconv"

	"github.com/redis/go-redis/v9"
)

// onConnect looks at the data before the first call of each new connection.
// Redis that was restarted, or replaced by a replica, has broken all connections
// before; so no call can hide that it has lost data by writing new numbers.
func (s *Store) onConnect(ctx context.Context, c *redis.Conn) error {
	if !s.joined.Load() {
		return nil
	}
	return s.verify(ctx, c)
}

// verify checks that Redis has what it has confirmed, on all shards: it learns
// their epochs, giving one to those that have none, and makes sure that this
// process's call numbers pass those of an earlier one with the same bridge id,
// whatever the clock says. It writes only where there is no epoch.
func (s *Store) verify(ctx context.Context, c redis.Cmdable) error {
	before := s.allConfirmed()
	metas, err := s.readMetas(ctx, c)
	if err == nil && s.changed(metas) {
		metas, err = s.setUp(ctx, c)
	}
	if err != nil {
		return fmt.Errorf("redisdelay: look at the shards: %w", err)
	}
	for shard, m := range metas {
		s.joinShard(shard, m, &before[shard])
	}
	return nil
}

// setUp gives an epoch to the shards that have none, and reads again.
func (s *Store) setUp(ctx context.Context, c redis.Cmdable) ([][]any, error) {
	if err := s.checkFormat(ctx, c); err != nil {
		return nil, err
	}
	pipe := c.Pipeline()
	for _, keys := range s.keys {
		pipe.HSetNX(ctx, keys[metaKey], "epoch", newEpoch())
	}
	if _, err := pipe.Exec(ctx); err != nil {
		return nil, err
	}
	return s.readMetas(ctx, c)
}

// readMetas reads, per shard, the epoch and what is saved of each kind of call.
func (s *Store) readMetas(ctx context.Context, c redis.Cmdable) ([][]any, error) {
	fields := []string{"epoch"}
	for k := range s.kinds {
		fields = append(fields, s.kinds[k].field)
	}
	pipe := c.Pipeline()
	for _, keys := range s.keys {
		pipe.HMGet(ctx, keys[metaKey], fields...)
	}
	cmds, err := pipe.Exec(ctx)
	if err != nil {
		return nil, err
	}
	out := make([][]any, len(cmds))
	for i, c := range cmds {
		out[i] = c.(*redis.SliceCmd).Val()
	}
	return out, nil
}

// changed reports whether a shard has another epoch than it had, or none.
func (s *Store) changed(metas [][]any) bool {
	for shard, m := range metas {
		if epoch, _ := m[0].(string); epoch == "" || epoch != s.epoch(shard) {
			return true
		}
	}
	return false
}

func (s *Store) allConfirmed() [][numKinds]int64 {
	out := make([][numKinds]int64, len(s.keys))
	for shard := range out {
		for k := range s.confirmed {
			out[shard][k] = s.confirmed[k][shard].Load()
		}
	}
	return out
}

// joinShard takes over what meta of a shard says, given the numbers that had been
// confirmed before it was read. What the shard has lost is reported before it is
// forgotten: see Known.
func (s *Store) joinShard(shard int, values []any, confirmed *[numKinds]int64) {
	s.joining.Lock()
	defer s.joining.Unlock()
	var last [numKinds]int64
	back := ""
	for k := range confirmed {
		saved, _ := values[1+k].(string)
		last[k] = savedNumber(saved)
		s.raiseNumber(last[k])
		// Somebody who has seen it before has lowered the number.
		if last[k] < confirmed[k] && s.confirmed[k][shard].Load() >= confirmed[k] {
			back = s.kinds[k].script.name
		}
	}
	epoch, _ := values[0].(string)
	switch was := s.epoch(shard); {
	case was != "" && was != epoch:
		s.lost(shard, fmt.Sprintf("the shard began anew: its epoch is %s, it was %s", epoch, was))
	case back != "":
		s.lost(shard, fmt.Sprintf("the shard is older than it was: it lacks the last %s that Redis confirmed", back))
	}
	s.setEpoch(shard, epoch)
	for k, n := range last {
		if n < confirmed[k] {
			s.confirmed[k][shard].CompareAndSwap(confirmed[k], n)
		}
	}
}

// confirm notes that Redis has done the call.
func (s *Store) confirm(c *call) {
	n := &s.confirmed[c.kind][c.shard]
	for was := n.Load(); was < c.number && !n.CompareAndSwap(was, c.number); was = n.Load() {
	}
}

// lost reports that a shard does not have what it had.
func (s *Store) lost(shard int, why string) {
	s.due.forget(shard)
	s.mu.Lock()
	s.taken.forget(shard, s.opts.Shards)
	for _, h := range s.waiting {
		h.forget(shard)
	}
	s.mu.Unlock()
	s.opts.Logger.Warn("redis lost data", "shard", shard, "why", why)
	if s.opts.OnDataLoss != nil {
		s.opts.OnDataLoss(shard, why)
	}
}

func (s *Store) setEpoch(shard int, epoch string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.epochs[shard] = epoch
}

// raiseNumber makes sure that the next number is above a saved one.
func (s *Store) raiseNumber(n int64) {
	for now := s.number.Load(); n > now && !s.number.CompareAndSwap(now, n); now = s.number.Load() {
	}
}

// savedNumber is the call number in what meta saves of a kind of call; zero:
// there is none.
func savedNumber(saved string) int64 {
	n, err := strconv.ParseInt(saved[:min(len(saved), numberLen)], 10, 64)
	if err != nil {
		return 0
	}
	return n
}
