package redisdelay

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/delaybridge/delaybridge/job"
)

// Options says how to reach Redis and what to keep there.
type Options struct {
	// URL of Redis, redis:// or rediss://. Either URL or Client is needed.
	URL string
	// Client is used instead of URL; it should be set up as ClientOptions does.
	// Close leaves it open.
	Client redis.UniversalClient
	// Adapt changes the settings of the clients for URL before they are made:
	// credentials and TLS, for instance; nil: nothing.
	Adapt func(*redis.Options) error
	// Instrument gets the client that is made of URL, to add hooks; nil: none.
	Instrument func(redis.UniversalClient) error
	// BridgeID names this process among those that share the data; no two that
	// run at once may have the same. Required.
	BridgeID string
	// Prefix of all keys; empty: "delay".
	Prefix string
	// Shards is the number of shards, fixed when the data is first written;
	// zero: 8.
	Shards int
	// DedupWindow is how long the id of a job that ended is remembered; zero: 2
	// minutes.
	DedupWindow time.Duration
	// DoneCap and DoneGeneratedCap limit how many ended ids a shard remembers
	// per window; zero: 1,000,000 and 10,000. A generated id is remembered only
	// so that a repeated completion is recognised.
	DoneCap, DoneGeneratedCap int
	// Timeout of one attempt of a call; zero: 1 s. A call is tried again until
	// its context ends.
	Timeout time.Duration
	// LookEvery is how often Claim asks all shards for jobs that others put;
	// zero: 1 s; negative: at every call.
	LookEvery time.Duration
	// TaskTTL and HeartbeatTTL are how long the keys that WriteOwners writes
	// outlive the last heartbeat: which jobs a worker has, and that it lives; zero:
	// 120 s and 30 s.
	TaskTTL, HeartbeatTTL time.Duration
	// OnDataLoss is called when a shard came back without its data, with that of
	// another history, or with less than Redis had confirmed; nil: it is only
	// logged. Calls wait for it, so it must neither block nor call the store.
	OnDataLoss func(shard int, why string)
	// Known is what Known of an earlier process with this BridgeID returned: what
	// Redis has lost since is noticed, too. nil: there was none; where it cannot be
	// read, all counts as lost.
	Known []byte
	// OnCall is called after each attempt of a call, with one of CallNames, how long
	// it took and what failed; nil: nobody is told. Calls wait for it.
	OnCall func(name string, took time.Duration, err error)
	// Logger; nil: slog.Default().
	Logger *slog.Logger
}

// maxShards is what a generated id can name.
const maxShards = job.MaxShards

func (o *Options) withDefaults() error {
	setDefault(&o.Prefix, "delay")
	setDefault(&o.Shards, 8)
	setDefault(&o.DedupWindow, 2*time.Minute)
	setDefault(&o.DoneCap, 1_000_000)
	setDefault(&o.DoneGeneratedCap, 10_000)
	setDefault(&o.Timeout, time.Second)
	setDefault(&o.LookEvery, time.Second)
	setDefault(&o.TaskTTL, 120*time.Second)
	setDefault(&o.HeartbeatTTL, 30*time.Second)
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	if o.BridgeID == "" {
		return permanent("redisdelay: no bridge id: set one that no other running bridge has")
	}
	if o.Shards < 1 || o.Shards > maxShards {
		return permanent("redisdelay: %d shards: use 1 to %d", o.Shards, maxShards)
	}
	if o.URL == "" && o.Client == nil {
		return permanent("redisdelay: no Redis given: set URL, for example redis://127.0.0.1:6379/0")
	}
	return errors.Join(checkPrefix(o.Prefix), checkBridgeID(o.BridgeID))
}

func setDefault[T comparable](v *T, def T) {
	var zero T
	if *v == zero {
		*v = def
	}
}

// ClientOptions are the go-redis settings that the store needs.
func ClientOptions(url string, timeout time.Duration) (*redis.Options, error) {
	o, err := redis.ParseURL(url)
	if err != nil {
		return nil, permanent("redisdelay: URL of Redis: %w; use redis://[user:password@]host:port/db or rediss://", err)
	}
	// The store repeats calls itself, under their numbers. The client's own
	// retry would run a script again behind its back and hide it.
	o.MaxRetries = -1
	// A caller's deadline also bounds the read of a reply.
	o.ContextTimeoutEnabled = true
	// One attempt to connect: a refused connection is news, not something to
	// wait out inside the pool.
	o.DialerRetries = 1
	// A Redis that hangs is given up soon; its script refuses to act by then.
	o.DialTimeout, o.ReadTimeout, o.WriteTimeout = timeout, timeout, timeout
	// RESP2 replies are flat arrays and strings, which is all that is needed.
	o.Protocol = 2
	o.DisableIdentity = true
	// The server feature behind it is that of a hosted offering.
	o.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	// Batches are large, connections few: at most one call per kind at a time.
	o.ReadBufferSize, o.WriteBufferSize = 128<<10, 128<<10
	o.PipelinePoolSize = -1
	o.PoolSize = 16
	o.Dialer = dialer(redis.NewDialer(o))
	return o, nil
}

// Store keeps jobs in Redis. See the package comment.
type Store struct {
	opts      Options
	client    redis.UniversalClient
	ownClient bool
	prober    redis.UniversalClient // of Probe alone
	name      string                // of the connections, in Redis' CLIENT LIST
	nameless  atomic.Bool           // Redis takes no names
	clock     clock
	keys      [][]string // per shard, in the order of shardKeyNames
	kinds     [numKinds]kindState
	number    atomic.Int64 // of the last call
	latest    atomic.Int64 // the latest time that a caller gave
	mint      atomic.Uint32
	due       *heads
	records   recordSize

	confirmed [numKinds][]atomic.Int64 // per shard: the number of the last call that Redis confirmed
	joined    atomic.Bool              // Open is through
	joining   sync.Mutex               // held while a shard's meta is taken over

	mu      sync.Mutex
	epochs  []string          // per shard
	taken   taken             // by merges whose outcome this process has not seen
	waiting map[string]*heads // per target that was claimed from
}

var _ job.Store = (*Store)(nil)

// Open connects to Redis, checks that it can be relied on and that the data
// there has this layout, and returns the store.
func Open(ctx context.Context, o Options) (*Store, error) {
	if err := o.withDefaults(); err != nil {
		return nil, err
	}
	s := &Store{
		opts: o, client: o.Client, due: newHeads(o.Shards),
		epochs: make([]string, o.Shards), waiting: map[string]*heads{}, clock: clock{start: time.Now()},
	}
	for i := range o.Shards {
		s.keys = append(s.keys, shardKeys(o.Prefix, i))
	}
	s.initKinds(o.BridgeID)
	s.recall(o.Known)
	if err := s.connect(); err != nil {
		return nil, err
	}
	if err := s.open(ctx); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// connect makes the clients, unless one was given.
func (s *Store) connect() error {
	if s.client != nil {
		s.prober = s.client
		return nil
	}
	o, err := ClientOptions(s.opts.URL, s.opts.Timeout)
	if err != nil {
		return err
	}
	if s.opts.Adapt != nil {
		if err := s.opts.Adapt(o); err != nil {
			return permanentError{fmt.Errorf("redisdelay: %w", err)}
		}
	}
	s.name = "delaybridge/" + s.opts.BridgeID
	o.OnConnect = s.onConnect
	alone := *o
	alone.PoolSize = 1
	s.client, s.prober, s.ownClient = redis.NewClient(o), redis.NewClient(&alone), true
	if s.opts.Instrument != nil {
		return s.opts.Instrument(s.client)
	}
	return nil
}

func (s *Store) open(ctx context.Context) error {
	if err := s.measureClock(ctx); err != nil {
		return fmt.Errorf("redisdelay: cannot reach Redis: %w", err)
	}
	report, err := s.Check(ctx)
	if err != nil {
		return err
	}
	for _, w := range report.Warnings {
		s.opts.Logger.Warn("redis", "warning", w)
	}
	if err := s.loadScripts(ctx); err != nil {
		return err
	}
	s.number.Store(time.Now().UnixMicro())
	if err := s.verify(ctx, s.client); err != nil {
		return err
	}
	s.joined.Store(true)
	return nil
}

// clockTime bounds measureClock: each call that a far Redis answers adds to what
// opening takes, and the replies of all other calls correct the clock, too.
const clockTime = 50 * time.Millisecond

// measureClock compares clocks a few times; the quickest reply counts most.
func (s *Store) measureClock(ctx context.Context) error {
	began := time.Now()
	for range 4 {
		sent := time.Now()
		if sent.Sub(began) > clockTime {
			return nil
		}
		t, err := s.client.Time(ctx).Result()
		if err != nil {
			return err
		}
		s.clock.observe(t.UnixMicro(), sent, time.Now())
	}
	return nil
}

// Now is the local time, corrected to that of Redis.
func (s *Store) Now() time.Time { return s.clock.now() }

// Ping asks Redis for a sign of life.
func (s *Store) Ping(ctx context.Context) error { return s.client.Ping(ctx).Err() }

// Close closes the connections.
func (s *Store) Close() error {
	if !s.ownClient {
		return nil
	}
	return errors.Join(s.client.Close(), s.prober.Close())
}

// loadScripts takes one round trip: Redis may be far.
func (s *Store) loadScripts(ctx context.Context) error {
	pipe := s.client.Pipeline()
	loads := make([]*redis.StringCmd, len(allScripts))
	for i, sc := range allScripts {
		loads[i] = pipe.ScriptLoad(ctx, sc.source)
	}
	exec(ctx, pipe)
	for i, sc := range allScripts {
		sha, err := loads[i].Result()
		if err != nil {
			return fmt.Errorf("redisdelay: load script %s: %w", sc.name, err)
		}
		if sha != sc.sha {
			return fmt.Errorf("redisdelay: script %s has hash %s, expected %s", sc.name, sha, sc.sha)
		}
	}
	return nil
}

func (s *Store) epoch(shard int) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.epochs[shard]
}

// seen notes a time that a caller gave, and returns the latest one.
func (s *Store) seen(t job.Time) job.Time {
	for {
		was := s.latest.Load()
		if int64(t) <= was {
			return job.Time(was)
		}
		if s.latest.CompareAndSwap(was, int64(t)) {
			return t
		}
	}
}

// checkBridgeID: Redis takes no connection name with spaces.
func checkBridgeID(id string) error {
	if strings.ContainsAny(id, " \n\r\t") {
		return permanent("redisdelay: bridge id %q: use a name without spaces", id)
	}
	return nil
}
