package redisdelay

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"
)

// onConnect looks at the data before the first call of each new connection.
// Redis that was restarted, or replaced by a replica, has broken all connections
// before; so no call can hide that it has lost data by writing new numbers. On the
// way it names the connection, for those who look at CLIENT LIST.
func (s *Store) onConnect(ctx context.Context, c *redis.Conn) error {
	var named *redis.BoolCmd
	setName := func(pipe redis.Pipeliner) {
		if !s.nameless.Load() {
			named = pipe.ClientSetName(ctx, s.name)
		}
	}
	if !s.joined.Load() {
		pipe := c.Pipeline()
		setName(pipe)
		exec(ctx, pipe)
		return s.noteName(named)
	}
	before := s.allConfirmed()
	metas, err := s.readMetas(ctx, c, setName)
	if err := s.noteName(named); err != nil {
		return err
	}
	return s.join(ctx, c, before, metas, err)
}

// noteName does without names where Redis has no CLIENT, as some have not that are
// operated by others. An ACL that forbids it is an error, as for other [Commands].
func (s *Store) noteName(named *redis.BoolCmd) error {
	if named == nil || named.Err() == nil {
		return nil
	}
	var reply redis.Error
	if !errors.As(named.Err(), &reply) || !strings.HasPrefix(reply.Error(), "ERR ") {
		return named.Err()
	}
	if !s.nameless.Swap(true) {
		s.opts.Logger.Warn("redis takes no names of connections: CLIENT LIST does not show which are the bridge's", "error", reply)
	}
	return nil
}

// verify checks that Redis has what it has confirmed, on all shards: it learns
// their epochs, giving one to those that have none, and makes sure that this
// process's call numbers pass those of an earlier one with the same bridge id,
// whatever the clock says. It writes only where there is no epoch.
func (s *Store) verify(ctx context.Context, c redis.Cmdable) error {
	before := s.allConfirmed()
	var metas [][]any
	var err error
	if s.epochsKnown() { // else all are read when each has one
		metas, err = s.readMetas(ctx, c, nil)
	}
	return s.join(ctx, c, before, metas, err)
}

// join does that with what was read of the shards (nil: nothing), or the error of
// that, given the numbers that had been confirmed before.
func (s *Store) join(ctx context.Context, c redis.Cmdable, before [][numKinds]int64, metas [][]any, err error) error {
	if err == nil && (metas == nil || s.changed(metas)) {
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
	var given []redis.Cmder
	metas, err := s.readMetas(ctx, c, func(pipe redis.Pipeliner) {
		for _, keys := range s.keys {
			given = append(given, pipe.HSetNX(ctx, keys[metaKey], "epoch", newEpoch()))
		}
	})
	for _, cmd := range given {
		err = cmp.Or(err, cmd.Err())
	}
	return metas, err
}

// readMetas reads, per shard, the epoch and what is saved of each kind of call, in
// one round trip with what first adds before; nil: nothing.
func (s *Store) readMetas(ctx context.Context, c redis.Cmdable, first func(redis.Pipeliner)) ([][]any, error) {
	fields := []string{"epoch"}
	for k := range s.kinds {
		fields = append(fields, s.kinds[k].field)
	}
	pipe := c.Pipeline()
	if first != nil {
		first(pipe)
	}
	reads := make([]*redis.SliceCmd, len(s.keys))
	for i, keys := range s.keys {
		reads[i] = pipe.HMGet(ctx, keys[metaKey], fields...)
	}
	exec(ctx, pipe)
	out := make([][]any, len(reads))
	for i, r := range reads {
		var err error
		if out[i], err = r.Result(); err != nil {
			return nil, err
		}
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

func (s *Store) epochsKnown() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !slices.Contains(s.epochs, "")
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
