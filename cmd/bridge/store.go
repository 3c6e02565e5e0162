package main

import (
	"context"
	"fmt"
	"log/slog"
	"net/url"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/delaybridge/delaybridge/job"
	"github.com/delaybridge/delaybridge/memdelay"
	"github.com/delaybridge/delaybridge/redisdelay"
	"github.com/delaybridge/delaybridge/subjects"
)

// openTimeout bounds the start of a store.
const openTimeout = 10 * time.Second

// openedStore is a store with what the bridge must know about it.
type openedStore struct {
	job.Store
	letter byte             // names it in tokens
	now    func() time.Time // its clock; nil: the local one
	addr   string           // where it is, for the log; empty for the local one
	ping   func(context.Context) error
	check  func(context.Context) error // whether jobs are still safe there; nil: always
}

// openStore opens the store that c asks for.
func openStore(ctx context.Context, c *config, log *slog.Logger) (openedStore, error) {
	if c.store == storeRedis {
		return openRedis(ctx, c, log)
	}
	log.Warn("jobs are held in memory only: they are lost when this process ends; set --redis-url to keep them")
	s := memdelay.New(memdelay.Options{DedupWindow: c.dedupWindow, MaxJobs: c.localMaxJobs})
	return openedStore{Store: s, letter: subjects.StoreLocal, ping: func(context.Context) error { return nil }}, nil
}

func openRedis(ctx context.Context, c *config, log *slog.Logger) (openedStore, error) {
	redis.SetLogger(redisLog{log})
	ctx, cancel := context.WithTimeout(ctx, openTimeout)
	defer cancel()
	s, err := redisdelay.Open(ctx, redisdelay.Options{
		URL: c.redisURL, BridgeID: c.bridge.ID, Prefix: c.bridge.Prefix, Shards: c.redisShards,
		DedupWindow: c.dedupWindow, Logger: log,
	})
	addr := redisAddr(c.redisURL)
	if err != nil {
		return openedStore{}, fmt.Errorf("redis at %s: %w; start or correct it, or set another --redis-url", addr, err)
	}
	return openedStore{Store: s, letter: subjects.StoreRedis, now: s.Now, addr: addr, ping: s.Ping,
		check: func(ctx context.Context) error {
			_, err := s.Check(ctx)
			return err
		}}, nil
}

func redisAddr(s string) string {
	u, err := url.Parse(s)
	if err != nil {
		return "(unreadable)"
	}
	return u.Host + u.Path
}

// redisLog takes what go-redis would print to stderr by itself.
type redisLog struct{ log *slog.Logger }

func (l redisLog) Printf(ctx context.Context, format string, v ...any) {
	l.log.DebugContext(ctx, "redis client", "message", fmt.Sprintf(format, v...))
}

// checkPeriod is how often the settings of a running store are looked at.
const checkPeriod = time.Minute

// watch logs when the store is no longer safe for jobs, for instance because
// somebody let Redis evict keys, until ctx is done.
func (o *openedStore) watch(ctx context.Context, log *slog.Logger, period time.Duration) {
	if o.check == nil {
		return
	}
	ticker := time.NewTicker(period)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		call, cancel := context.WithTimeout(ctx, openTimeout)
		if err := o.check(call); err != nil && ctx.Err() == nil {
			log.Error("the store is not safe for jobs", "address", o.addr, "error", err)
		}
		cancel()
	}
}
