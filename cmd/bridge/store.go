package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/url"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"

	"github.com/delaybridge/delaybridge/adapter"
	"github.com/delaybridge/delaybridge/adapter/failover"
	"github.com/delaybridge/delaybridge/job"
	"github.com/delaybridge/delaybridge/memdelay"
	"github.com/delaybridge/delaybridge/redisdelay"
	"github.com/delaybridge/delaybridge/subjects"
)

// The directories below data_dir.
const (
	localDir   = "local"   // jobs that are on this bridge's disk
	journalDir = "journal" // copies of jobs that asked for one
)

// openedStore is the store of a bridge with what else must be known of it.
type openedStore struct {
	job.Store
	letter   byte             // names it in tokens
	now      func() time.Time // its clock; nil: the local one
	addr     string           // of Redis, for the log; empty without
	journal  adapter.Journal
	local    *memdelay.Store                   // what is on this bridge's disk, or in its memory
	failover *failover.Store                   // nil without Redis
	redis    *atomic.Pointer[redisdelay.Store] // as soon as it was reached; nil without
	metrics  *redisMetrics                     // nil without
}

// openStore opens the store that c asks for.
func openStore(ctx context.Context, c *config, log *slog.Logger, reg prometheus.Registerer) (*openedStore, error) {
	m, err := newStoreMetrics(reg)
	if err != nil {
		return nil, err
	}
	if c.store == storeRedis {
		return openFailover(ctx, c, log, m)
	}
	o := &openedStore{letter: subjects.StoreLocal, journal: adapter.AlwaysOnDisk}
	if c.dataDir == "" {
		log.Warn("jobs are held in memory only: they are lost when this process ends; set --data-dir or --redis-url to keep them")
		o.journal = adapter.NoJournal
		o.local = memdelay.New(c.localOptions())
	} else if o.local, err = openDir(c, localDir, c.localOptions(), log, m); err != nil {
		return nil, err
	}
	o.Store = o.local
	return o, m.local(o.local)
}

// localOptions are the limits of the local store.
func (c *config) localOptions() memdelay.Options {
	return memdelay.Options{DedupWindow: c.dedupWindow, MaxJobs: c.localMaxJobs, MaxBytes: c.localMaxBytes}
}

// openDir opens a store in a directory below data_dir.
func openDir(c *config, name string, o memdelay.Options, log *slog.Logger, m *storeMetrics) (*memdelay.Store, error) {
	o.Logger, o.OnSync = log, m.onSync(name)
	s, err := memdelay.Open(filepath.Join(c.dataDir, name), o)
	if err != nil {
		return nil, c.dataDirError(err)
	}
	return s, m.disk(name, s)
}

// dataDirError tells a directory that cannot be one from a damaged one.
func (c *config) dataDirError(err error) error {
	for _, wrong := range []error{fs.ErrPermission, fs.ErrNotExist, syscall.ENOTDIR, syscall.EROFS} {
		if errors.Is(err, wrong) {
			return &inputError{err: fmt.Errorf("data_dir %s: %w; make it a directory that this user may write, or set another --data-dir", c.dataDir, err)}
		}
	}
	return fmt.Errorf("data_dir %s: %w; mend it, or set another --data-dir", c.dataDir, err)
}

// openFailover opens Redis with the disk behind it. That Redis is away is no
// error; that it never will do is one.
func openFailover(ctx context.Context, c *config, log *slog.Logger, m *storeMetrics) (_ *openedStore, err error) {
	redis.SetLogger(redisLog{log})
	var opened []*memdelay.Store
	defer func() {
		if err != nil {
			for _, s := range opened {
				err = errors.Join(err, s.Close())
			}
		}
	}()
	durable := func(name string, o memdelay.Options) (*memdelay.Store, error) {
		o.Verdicts, o.Nonce = true, redisdelay.NewNonce
		s, err := openDir(c, name, o, log, m)
		if s != nil {
			opened = append(opened, s)
		}
		return s, err
	}
	local, err := durable(localDir, c.localOptions())
	if err != nil {
		return nil, err
	}
	journal, err := durable(journalDir, memdelay.Options{MaxJobs: unlimitedJobs, MaxBytes: unlimitedBytes})
	if err != nil {
		return nil, err
	}
	known, err := knownOf(c, journal)
	if err != nil {
		return nil, err
	}
	o := &openedStore{letter: subjects.StoreRedis, addr: redisAddr(c.redisURL), journal: adapter.WithJournal, local: local, redis: new(atomic.Pointer[redisdelay.Store])}
	if o.metrics, err = newRedisMetrics(m.reg, o.redis); err != nil {
		return nil, err
	}
	o.failover, err = failover.Open(ctx, failover.Options{
		Bridge: c.bridge.ID, Local: local, Journal: journal, Mirror: memdelay.New(memdelay.Options{MaxJobs: unlimitedJobs, MaxBytes: unlimitedBytes}),
		Logger: log, Thresholds: c.failover, Permanent: permanent,
		Remember: func(b []byte) error { return writeKnown(filepath.Join(c.dataDir, journalDir), b) },
		Open: func(ctx context.Context, lost func(int, string)) (failover.Primary, error) {
			return o.openRedis(ctx, c, log, known, lost)
		},
	})
	if err != nil {
		if permanent(err) {
			err = &inputError{err: err}
		}
		return nil, err
	}
	o.Store, o.now = o.failover, o.failover.Now
	return o, m.local(local)
}

// The journal and the mirror are bounded by what they are copies of.
const (
	unlimitedJobs  = 1 << 30
	unlimitedBytes = 1 << 50
)

// knownOf returns what Redis had confirmed when the journal was written. Where the
// journal has something and that is not known, nothing can be read of it.
func knownOf(c *config, journal *memdelay.Store) ([]byte, error) {
	known, err := readKnown(filepath.Join(c.dataDir, journalDir))
	if err != nil {
		return nil, c.dataDirError(err)
	}
	if u := journal.Usage(); known == nil && u.Jobs+u.Verdicts > 0 {
		known = []byte{}
	}
	return known, nil
}

func (o *openedStore) openRedis(ctx context.Context, c *config, log *slog.Logger, known []byte, lost func(int, string)) (failover.Primary, error) {
	s, err := redisdelay.Open(ctx, redisdelay.Options{
		URL: c.redisURL, Adapt: c.redisAccess.adapt, Instrument: c.tracing.instrument, BridgeID: c.bridge.ID, Prefix: c.bridge.Prefix, Shards: c.redisShards,
		DedupWindow: c.dedupWindow, OnDataLoss: lost, Known: known, Logger: log,
		TaskTTL: c.taskTTL, HeartbeatTTL: c.heartbeatTTL, OnCall: o.metrics.onCall,
	})
	if err != nil {
		return nil, fmt.Errorf("redis at %s: %w", o.addr, c.redisError(err))
	}
	if err := c.allowed(ctx); err != nil {
		return nil, fmt.Errorf("redis at %s: %w", o.addr, errors.Join(err, s.Close()))
	}
	o.redis.Store(s)
	return s, nil
}

// allowed looks whether an ACL forbids a command of the scripts, which would show only
// when a job needs it.
func (c *config) allowed(ctx context.Context) error {
	options, err := redisdelay.ClientOptions(c.redisURL, checkTimeout)
	if err == nil {
		err = c.redisAccess.adapt(options)
	}
	if err != nil {
		return err
	}
	client := redis.NewClient(options)
	defer client.Close()
	refused, _ := refusedCommands(ctx, client, c.bridge.Prefix) // not known: the calls will tell
	if len(refused) > 0 {
		return &inputError{err: fmt.Errorf("the ACL forbids %s, or their keys: ACL SETUSER <user> %s", strings.Join(refused, " "), aclRule(c.bridge.Prefix, refused))}
	}
	return nil
}

// permanent reports whether an error of Redis is one that waiting does not mend.
func permanent(err error) bool {
	var wrong *inputError
	return errors.As(err, &wrong) || isTLSProblem(err) || redisdelay.Permanent(err)
}

// redisError says which keys to look at, if Redis does not let the bridge in.
func (c *config) redisError(err error) error {
	switch text := err.Error(); {
	case isLoginProblem(text):
		return fmt.Errorf("it refuses these credentials: %w; check redis.url, redis.user, redis.password and redis.password_file", err)
	case strings.Contains(text, "NOPERM"):
		return fmt.Errorf("%w; allow the user %s", err, aclRule(c.bridge.Prefix, redisdelay.Commands()))
	case isTLSProblem(err):
		return fmt.Errorf("no TLS connection: %w; check redis.ca, redis.cert and redis.key, and that redis.url begins with rediss:// just when Redis wants TLS", err)
	case permanent(err):
		return fmt.Errorf("%w; correct it, or set another --redis-url", err)
	}
	return err
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

// configure tells the bridge's configuration what the store can do.
func (o *openedStore) configure(c *adapter.Config, cfg *config) {
	c.Now, c.Journal, c.Pauses = o.now, o.journal, o.pauseStores(cfg.dataDir)
	c.LocalJobs = func() int { return o.local.Usage().Jobs }
	if o.redis != nil {
		c.Canary, c.OwnerKeys, c.OwnerRenewal = o.canary, o, min(cfg.taskTTL, cfg.heartbeatTTL)/4
	}
}

var errNoRedisYet = errors.New("redis was not reached yet")

// canary writes to Redis.
func (o *openedStore) canary(ctx context.Context) error {
	s := o.redis.Load()
	if s == nil {
		return errNoRedisYet
	}
	return s.Probe(ctx)
}

// WriteOwners shows in Redis what workers own.
func (o *openedStore) WriteOwners(ctx context.Context, updates []job.OwnerUpdate) error {
	s := o.redis.Load()
	if s == nil {
		return errNoRedisYet
	}
	return s.WriteOwners(ctx, updates)
}

// attend makes the store tell bridge what happens and runs what it has to do by
// itself until the function that is returned is called.
func (o *openedStore) attend(ctx context.Context, bridge *adapter.Bridge) (stop func()) {
	if o.failover == nil {
		return func() {}
	}
	o.failover.SetObserver(bridge)
	o.failover.SetPeers(bridge.Peers())
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx)) // it outlives the drain
	var running sync.WaitGroup
	running.Go(func() { o.failover.Run(ctx) })
	return func() { cancel(); running.Wait() }
}

// mode says where jobs are held now.
func (o *openedStore) mode() string {
	if o.failover == nil {
		return storeLocal
	}
	return o.failover.Mode().String()
}

// usable says why jobs cannot be taken, nil: they can.
func (o *openedStore) usable() error {
	if o.failover != nil && o.failover.Mode() != job.ModeLocal {
		return nil
	}
	return o.local.Usage().LogErr
}

// reload applies what can change while the store runs.
func (o *openedStore) reload(c *config) error {
	if o.failover != nil {
		if err := o.failover.Reload(c.failover); err != nil {
			return err
		}
	}
	o.local.SetLimits(c.localMaxJobs, c.localMaxBytes)
	return nil
}

const (
	// checkPeriod is how often the settings of a running Redis are looked at,
	// checkTimeout bounds one look.
	checkPeriod, checkTimeout = time.Minute, 10 * time.Second
	// usagePeriod is how often it is looked at how full the local store is.
	usagePeriod = time.Second
)

// watch tells the operator when Redis is no longer safe for jobs, for instance
// because somebody let it evict keys, and when the local store is nearly full,
// until ctx is done.
func (o *openedStore) watch(ctx context.Context, log *slog.Logger, period time.Duration) {
	check, usage := time.NewTicker(period), time.NewTicker(usagePeriod)
	defer check.Stop()
	defer usage.Stop()
	full := false
	o.check(ctx, log)
	for {
		select {
		case <-ctx.Done():
			return
		case <-check.C:
			o.check(ctx, log)
		case <-usage.C:
			full = tellUsage(log, o.local.Usage(), full)
		}
	}
}

func (o *openedStore) check(ctx context.Context, log *slog.Logger) {
	if o.failover == nil || o.failover.Mode() == job.ModeLocal {
		return // what is known of Redis then is known from the probes
	}
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	report, err := o.redis.Load().Check(ctx)
	o.metrics.report(report)
	if err != nil && ctx.Err() == nil {
		log.Error("the store is not safe for jobs", "address", o.addr, "error", err)
	}
}

// tellUsage warns once when the local store gets over 80 % of a limit, and again
// only after it has been under 70 %. It returns whether it is over.
func tellUsage(log *slog.Logger, u memdelay.Usage, was bool) bool {
	jobs, most := int64(u.Jobs-u.Adopted), int64(u.MaxJobs)
	bytes := u.OwnBytes + u.VerdictBytes
	over := func(percent int64) bool { return jobs > most/100*percent || bytes > u.MaxBytes/100*percent }
	if !was && over(80) {
		log.Warn("the local store is over 80 % of its limit; beyond it jobs are refused", "jobs", jobs, "max_jobs", most, "bytes", bytes, "max_bytes", u.MaxBytes)
		return true
	}
	return was && over(70)
}
