package redisdelay

import (
	"context"
	"errors"
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
//
// All of it is one round trip, and three more make a new connection: whatever bounds
// a probe bounds how far away Redis may be.
func (s *Store) Probe(ctx context.Context) error {
	sent := time.Now()
	var ping, canary *redis.StatusCmd
	before := s.allConfirmed()
	metas, err := s.readMetas(ctx, s.prober, func(pipe redis.Pipeliner) {
		ping = pipe.Ping(ctx)
		canary = pipe.Set(ctx, canaryKey(s.opts.Prefix, s.opts.BridgeID), sent.UnixMicro(), canaryTTL)
	})
	failed := errors.Join(ping.Err(), canary.Err())
	s.observeCall(callProbe, time.Since(sent), errors.Join(failed, err))
	for _, c := range []redis.Cmder{ping, canary} {
		if err := c.Err(); err != nil {
			return fmt.Errorf("redisdelay: probe: %s: %w", c.Name(), err)
		}
	}
	return s.join(ctx, s.prober, before, metas, err)
}
