package redisdelay

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// canaryTTL is how long the key that Probe writes lives.
const canaryTTL = time.Minute

// prober has a client of its own: a busy pool must not hide a Redis that is well,
// nor the reverse.
type prober struct {
	client redis.UniversalClient
	runID  atomic.Pointer[string] // of the Redis that was verified last
}

// Probe finds out whether Redis answers and takes writes. When it meets another
// start of Redis than before, it checks that the data is still there, see
// Options.OnDataLoss.
func (s *Store) Probe(ctx context.Context) error {
	pipe := s.prober.client.Pipeline()
	ping := pipe.Ping(ctx)
	canary := pipe.Set(ctx, canaryKey(s.opts.Prefix, s.opts.BridgeID), time.Now().UnixMicro(), canaryTTL)
	info := pipe.Info(ctx, "server")
	_, _ = pipe.Exec(ctx) // the errors are the commands', too
	for _, c := range []redis.Cmder{ping, canary} {
		if err := c.Err(); err != nil {
			return fmt.Errorf("redisdelay: probe: %s: %w", c.Name(), err)
		}
	}
	id := parseInfo(info.Val()).RunID
	if id == "" || id == *s.prober.runID.Load() { // INFO may be forbidden
		return nil
	}
	if err := s.verify(ctx, s.prober.client); err != nil {
		return err
	}
	s.prober.runID.Store(&id)
	return nil
}
