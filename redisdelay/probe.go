package redisdelay

import (
	"context"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"
)

// canaryTTL is how long the key that Probe writes lives.
const canaryTTL = time.Minute

// Probe finds out whether Redis answers and takes writes, and whether the data is
// still there, see Options.OnDataLoss: it may go without breaking a connection. It
// uses a client of its own: a busy pool must not hide a Redis that is well, nor the
// reverse.
func (s *Store) Probe(ctx context.Context) error {
	sent := time.Now()
	pipe := s.prober.Pipeline()
	ping := pipe.Ping(ctx)
	canary := pipe.Set(ctx, canaryKey(s.opts.Prefix, s.opts.BridgeID), time.Now().UnixMicro(), canaryTTL)
	_, err := pipe.Exec(ctx) // the errors are the commands', too
	s.observeCall(callProbe, time.Since(sent), err)
	for _, c := range []redis.Cmder{ping, canary} {
		if err := c.Err(); err != nil {
			return fmt.Errorf("redisdelay: probe: %s: %w", c.Name(), err)
		}
	}
	return s.verify(ctx, s.prober)
}
