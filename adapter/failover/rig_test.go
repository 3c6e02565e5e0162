package failover_test

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/delaybridge/delaybridge/adapter/failover"
	"github.com/delaybridge/delaybridge/internal/testproxy"
	"github.com/delaybridge/delaybridge/internal/testredis"
	"github.com/delaybridge/delaybridge/job"
	"github.com/delaybridge/delaybridge/memdelay"
	"github.com/delaybridge/delaybridge/memdelay/wal"
	"github.com/delaybridge/delaybridge/redisdelay"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patient bounds what a test waits for; it is never what a test measures.
const patient = 20 * time.Second

// quick are thresholds with which a test need not wait.
var quick = failover.Thresholds{
	ProbeEvery: 50 * time.Millisecond, ProbeSuspect: 20 * time.Millisecond, ProbeTimeout: 100 * time.Millisecond,
	Dwell: 50 * time.Millisecond, MaxDwell: 100 * time.Millisecond, HandOver: 100 * time.Millisecond,
}

// synced is a Redis that loses nothing when it is killed. With the default it
// does not write while it syncs what it wrote before.
var synced = []string{"--appendfsync", "always"}

// rig is a failover store over a real Redis behind a proxy.
type rig struct {
	testing.TB
	redis         *testredis.Server
	proxy         *testproxy.Proxy
	dir           string
	opts          rigOptions
	store         *failover.Store
	local, mirror *memdelay.Store
	journal       *memdelay.Store // nil without
	seen          *observer
	known         atomic.Pointer[[]byte] // what the store has remembered
	stop          func()                 // ends the store as a crash of the process would, if later than a commit
}

type rigOptions struct {
	limits    failover.Thresholds
	journal   bool
	journalFS wal.FS // nil: as local has it
	local     memdelay.Options
	redis     []string // arguments of the server
	peers     failover.Peers
	badDisk   bool                                    // what is open cannot be closed properly
	wrap      func(failover.Primary) failover.Primary // nil: the primary as it is
}

func newRig(t testing.TB, change ...func(*rigOptions)) *rig {
	t.Helper()
	o := rigOptions{limits: quick, local: memdelay.Options{MaxJobs: 100_000}, redis: synced}
	for _, f := range change {
		f(&o)
	}
	r := &rig{TB: t, redis: testredis.Start(t, o.redis...), dir: t.TempDir(), opts: o}
	r.proxy = testproxy.Start(t, r.redis.Addr())
	r.start()
	return r
}

func withLimits(f func(*failover.Thresholds)) func(*rigOptions) {
	return func(o *rigOptions) { f(&o.limits) }
}

func withJournal(o *rigOptions) { o.journal = true }

// start opens the store and runs it.
func (r *rig) start() {
	r.Helper()
	r.seen = &observer{}
	var log slog.Handler = slog.NewTextHandler(testWriter{r}, nil)
	logger := slog.New(log)
	durable := func(name string) *memdelay.Store {
		o := r.opts.local
		if name == "journal" && r.opts.journalFS != nil {
			o.FS = r.opts.journalFS
		}
		o.Verdicts, o.Nonce, o.Logger = true, redisdelay.NewNonce, logger
		s, err := memdelay.Open(filepath.Join(r.dir, name), o)
		if err != nil {
			r.Fatal(err)
		}
		return s
	}
	r.local, r.mirror = durable("local"), memdelay.New(memdelay.Options{MaxJobs: 1 << 30})
	opts := failover.Options{
		Bridge: "b1", Local: r.local, Mirror: r.mirror, Peers: r.opts.peers,
		Logger: logger, Thresholds: r.opts.limits, Observer: r.seen, Permanent: redisdelay.Permanent,
		Remember: func(b []byte) error { r.known.Store(&b); return nil },
		Open: func(ctx context.Context, lost func(int, string)) (failover.Primary, error) {
			var known []byte
			if b := r.known.Load(); b != nil {
				known = *b
			}
			p, err := redisdelay.Open(ctx, redisdelay.Options{
				URL: r.proxy.URL(), BridgeID: "b1", OnDataLoss: lost, Known: known, Logger: logger, LookEvery: -1,
			})
			if err != nil || r.opts.wrap == nil {
				return p, err
			}
			return r.opts.wrap(p), nil
		},
	}
	if r.opts.journal {
		r.journal = durable("journal")
		opts.Journal = r.journal
	}
	store, err := failover.Open(context.Background(), opts)
	if err != nil {
		r.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); store.Run(ctx) }()
	var once sync.Once
	r.stop = func() {
		once.Do(func() {
			cancel()
			<-done
			if err := store.Close(); err != nil && !r.opts.badDisk {
				r.Errorf("Close: %v", err)
			}
		})
	}
	r.store = store
	r.Cleanup(r.stop)
}

type testWriter struct{ *rig }

func (w testWriter) Write(p []byte) (int, error) { w.Logf("%s", p); return len(p), nil }

// observer records what the store tells.
type observer struct {
	mu       sync.Mutex
	turns    []job.Mode
	circuits []string // of each change: from and to
	whys     []string
	fallback map[string]int
	joined   []job.Info
	moved    int
	named    []job.Info // those that moved
	losses   []string
	offered  int
}

func (o *observer) ModeChanged(from, to job.Mode, why string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.turns = append(o.turns, to)
	o.circuits, o.whys = append(o.circuits, from.Circuit()+"->"+to.Circuit()), append(o.whys, why)
}

func (o *observer) Fallback(status string, n int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.fallback == nil {
		o.fallback = map[string]int{}
	}
	o.fallback[status] += n
}

func (o *observer) Recovery(time.Duration, int) {}

func (o *observer) Moved(_ string, jobs []job.Info) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.named = append(o.named, jobs...)
}

func (o *observer) Migrated(_ string, n int, _ time.Duration) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.moved += n
}

func (o *observer) Joined(_ string, i job.Info) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.joined = append(o.joined, i)
}

func (o *observer) DataLoss(why string, offered int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.losses, o.offered = append(o.losses, why), o.offered+offered
}

func (r *rig) eventually(what string, ok func() bool) {
	r.Helper()
	deadline := time.Now().Add(patient)
	for !ok() {
		if time.Now().After(deadline) {
			r.Fatalf("in %v not so: %s", patient, what)
		}
		time.Sleep(2 * time.Millisecond) // between two looks
	}
}

func (r *rig) awaitMode(m job.Mode) {
	r.Helper()
	r.eventually("mode "+m.String(), func() bool { return r.store.Mode() == m })
}

func now() job.Time { return job.At(time.Now()) }

// mk is a job due d from now.
func mk(id string, d time.Duration) job.Job {
	return job.Job{ID: id, Target: "t.x", Due: now().Add(d), AckWait: 30 * time.Second, MaxAttempts: 10, Payload: []byte("payload of " + id)}
}

func mkMany(n int, format string, d time.Duration) []job.Job {
	jobs := make([]job.Job, n)
	for i := range jobs {
		jobs[i] = mk(fmt.Sprintf(format, i), d)
	}
	return jobs
}

// put stores jobs and returns where.
func (r *rig) put(jobs ...job.Job) string {
	r.Helper()
	stored := ""
	for len(jobs) > 0 {
		n := min(len(jobs), 256)
		res, err := r.store.Put(context.Background(), jobs[:n])
		if err != nil {
			r.Fatalf("Put: %v", err)
		}
		for i := range res {
			if res[i].Err != nil || res[i].Duplicate {
				r.Fatalf("Put of %s: %+v", jobs[i].ID, res[i])
			}
			stored = res[i].Stored
		}
		jobs = jobs[n:]
	}
	return stored
}

// claim claims until n deliveries are there.
func (r *rig) claim(n int) []job.Delivery {
	r.Helper()
	var ds []job.Delivery
	r.eventually(fmt.Sprintf("%d deliveries", n), func() bool {
		ds = append(ds, r.claimNow(n-len(ds))...)
		return len(ds) >= n
	})
	return ds
}

func (r *rig) claimNow(limit int) []job.Delivery {
	t := now()
	c, err := r.store.Claim(context.Background(), job.ClaimRequest{Now: t, Until: t, Max: limit, Owner: "b1"})
	if err != nil {
		r.Logf("Claim: %v", err)
	}
	return c.Deliveries
}

func (r *rig) settle(d job.Delivery, o job.Outcome, at job.Time) job.SettleResult {
	r.Helper()
	res, err := r.store.Settle(context.Background(), now(), []job.Settlement{{Ref: d.Ref(), Outcome: o, At: at, Target: d.Target, Due: d.Due, Reason: "test"}})
	if err != nil {
		r.Fatalf("Settle: %v", err)
	}
	return res[0]
}

func (r *rig) get(id string) job.Info {
	r.Helper()
	var info job.Info
	r.eventually("get "+id, func() bool {
		infos, err := r.store.Get(context.Background(), []string{id})
		if err != nil {
			return false
		}
		info = infos[0]
		return true
	})
	return info
}

// want checks the state of a job.
func (r *rig) want(id string, state job.State, attempt uint32, stored string) job.Info {
	r.Helper()
	i := r.get(id)
	if i.State != state || i.Attempt != attempt || i.Stored != stored {
		r.Fatalf("%s is %s at attempt %d in %q, want %s, %d, %q", id, i.State, i.Attempt, i.Stored, state, attempt, stored)
	}
	return i
}

// down kills Redis and waits for local mode.
func (r *rig) down() {
	r.Helper()
	r.redis.Kill()
	r.awaitMode(job.ModeLocal)
}

// up starts Redis with its data and waits until all is back there.
func (r *rig) up() {
	r.Helper()
	r.redis.Restart()
	r.awaitMode(job.ModeRedis)
}

func (r *rig) nothingDue() {
	r.Helper()
	if ds := r.claimNow(10); len(ds) > 0 {
		r.Fatalf("delivered again: %s at attempt %d", ds[0].ID, ds[0].Attempt)
	}
}
