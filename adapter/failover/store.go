package failover

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/delaybridge/delaybridge/job"
	"github.com/delaybridge/delaybridge/memdelay"
)

// Primary is the store that can fail: Redis.
type Primary interface {
	job.Store
	job.Merger
	// Upcoming returns pending jobs whose next attempt is in [from, until), at
	// most limit; all of them up to complete.
	Upcoming(ctx context.Context, from, until job.Time, limit int) (jobs []job.Info, complete job.Time, err error)
	// Probe tells whether it can be read and written.
	Probe(ctx context.Context) error
	// Known is what it has confirmed until now, for the next process.
	Known() []byte
	// Now is the local time, corrected to that of the primary.
	Now() time.Time
}

// Options are what a Store is made of. Bridge, Open, Permanent, Local and Mirror
// are required.
type Options struct {
	Bridge string // the id of this bridge
	// Open connects to the primary. lost is what it must call when it finds that
	// data has gone.
	Open func(ctx context.Context, lost func(shard int, why string)) (Primary, error)
	// Permanent reports whether an error of Open will not go away by itself.
	Permanent func(error) bool
	Local     *memdelay.Store // with a log, and with verdicts
	Mirror    *memdelay.Store // in memory
	Journal   *memdelay.Store // with a log; nil: no journal
	// Remember makes what Known of the primary has returned durable, in place of what
	// it was given before. Open must hand it to the primary of the next process.
	// nil: nothing is remembered, and a loss while no process runs is not noticed.
	Remember func(known []byte) error
	// Now is the clock until the primary has been reached; nil: the wall clock at
	// start, continued by the monotonic clock.
	Now        func() time.Time
	Logger     *slog.Logger // nil: slog.Default()
	Thresholds Thresholds
	Observer   Observer // nil: nobody
	Peers      Peers    // nil: there are none
}

// Observer is told what happens. It must neither block nor call the store.
type Observer interface {
	// ModeChanged: loops that wait for jobs must look again.
	ModeChanged(from, to job.Mode, why string)
	// Fallback counts jobs that were handed over to the local store
	// ("triggered"), spilled there ("spilled"), or refused by it ("rejected").
	Fallback(status string, jobs int)
	// Recovery tells how long after the first good probe so many jobs are back in
	// the primary.
	Recovery(d time.Duration, jobs int)
	// Moved: these jobs are in the primary now, by the migration of that id.
	Moved(migration string, jobs []job.Info)
	// Migrated: the migration of that id has ended.
	Migrated(migration string, jobs int, took time.Duration)
	// Joined: this job and another one of its id were one, and are.
	Joined(migration string, j job.Info)
	// DataLoss: the primary has lost data; so many jobs of the journal were
	// offered to it.
	DataLoss(why string, offered int)
}

// Peers is what the other bridges know.
type Peers interface {
	// Reachable reports whether a live peer has written to the primary just now.
	Reachable(ctx context.Context) bool
	// Fires reports whether this bridge, of all live ones, is to deliver the job
	// while the primary is away.
	Fires(id string) bool
	// Settled reports whether no live peer is without the primary.
	Settled() bool
	// Alone reports whether there has been no peer for a while.
	Alone() bool
}

// alone is a bridge without peers.
type alone struct{}

func (alone) Reachable(context.Context) bool { return false }
func (alone) Fires(string) bool              { return true }
func (alone) Settled() bool                  { return true }
func (alone) Alone() bool                    { return true }

// deaf observes nothing.
type deaf struct{}

func (deaf) ModeChanged(job.Mode, job.Mode, string) {}
func (deaf) Fallback(string, int)                   {}
func (deaf) Recovery(time.Duration, int)            {}
func (deaf) Moved(string, []job.Info)               {}
func (deaf) Migrated(string, int, time.Duration)    {}
func (deaf) Joined(string, job.Info)                {}
func (deaf) DataLoss(string, int)                   {}

// Store is a [job.Store]. Make one with [Open].
type Store struct {
	o       Options
	log     *slog.Logger
	local   atomic.Pointer[memdelay.Store] // see disk
	mirror  *memdelay.Store
	journal *memdelay.Store
	limits  atomic.Pointer[Thresholds]

	mode    atomic.Int32
	direct  atomic.Bool  // the primary did not answer in time: puts go local at once
	refused atomic.Int64 // when a trip was refused and logged, ns since the Unix epoch
	answers atomic.Bool  // the latest probe was good
	// goodSince is when the first of the good probes was, ns since the Unix epoch.
	goodSince atomic.Int64
	foreign   atomic.Bool // peers reach the primary: nothing is fired from the mirror
	primary   atomic.Pointer[reached]
	sensor    *sensor
	watch     watch

	gate sync.RWMutex // see the package comment
	turn sync.Mutex   // held while the mode and the primary's period change
	move sync.Mutex   // held while jobs move between mirror and local

	suspicion chan struct{} // a call failed: probe now
	kick      chan struct{} // the local store has something to move
	anew      chan struct{} // the mirror must be read from the beginning
	lossCount atomic.Int64  // how often the primary has lost data
	ends      endings       // what the journal must hear of
	knownMu   sync.Mutex    // held while what the primary has confirmed is written
	known     []byte        // what was written last
	lossMu    sync.Mutex
	losses    []string // data that the primary lost, not yet made good
}

// reached is a primary that was opened, with a context for the calls of one
// period between two trips.
type reached struct {
	Primary
	period context.Context
	end    context.CancelFunc
}

var _ job.Store = (*Store)(nil)

// errNoPrimary is what calls get that need the primary in local mode.
var errNoPrimary = job.ErrUnavailable.With("Redis cannot be reached, and the job may be there; try again later")

// unanswered is the answer about jobs that only the primary knows, when err is what
// it says.
func unanswered(err error) error {
	if errors.Is(err, job.ErrUnavailable) {
		return err // it says so already
	}
	return job.ErrUnavailable.With("Redis does not answer, and the job may be there; try again later: %v", err)
}

// Open returns a store in redis mode when the primary can be reached now, else
// in local mode. It fails only when the primary says that it never will do, or
// ctx ends. Run must be called next.
func Open(ctx context.Context, o Options) (*Store, error) {
	if err := o.Thresholds.Validate(); err != nil {
		return nil, err
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	if o.Now == nil {
		start := time.Now()
		o.Now = func() time.Time { return start.Add(time.Since(start)) }
	}
	if o.Observer == nil {
		o.Observer = deaf{}
	}
	if o.Peers == nil {
		o.Peers = alone{}
	}
	s := &Store{
		o: o, log: o.Logger, mirror: o.Mirror, journal: o.Journal,
		suspicion: make(chan struct{}, 1), kick: make(chan struct{}, 1), anew: make(chan struct{}, 1),
	}
	s.local.Store(o.Local)
	t := o.Thresholds.WithDefaults()
	s.limits.Store(&t)
	s.sensor = newSensor(t)
	s.mode.Store(int32(job.ModeLocal))
	if err := s.connect(ctx); err != nil {
		if o.Permanent(err) || ctx.Err() != nil {
			return nil, err
		}
		s.log.Warn("Redis cannot be reached: jobs are held on this bridge's disk until it can", "error", err)
		return s, nil
	}
	if err := s.comeBack(ctx); err != nil {
		s.log.Warn("Redis does not take over what this bridge holds: going on with the disk", "error", err)
	}
	return s, nil
}

// connectTimeout bounds one attempt to open the primary.
const connectTimeout = 2 * time.Second

// connect opens the primary for the first time.
func (s *Store) connect(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	p, err := s.o.Open(ctx, s.lost)
	if err != nil {
		return err
	}
	s.begin(p)
	return nil
}

// begin makes p the primary for the time until the next trip. s.turn is held, or
// nobody else has the store yet.
func (s *Store) begin(p Primary) {
	ctx, cancel := context.WithCancel(context.Background())
	s.primary.Store(&reached{p, ctx, cancel})
}

// Mode says which store the jobs are in.
func (s *Store) Mode() job.Mode { return job.Mode(s.mode.Load()) }

// Now is the local time, corrected to that of the primary once that is known.
func (s *Store) Now() time.Time {
	if p := s.primary.Load(); p != nil {
		return p.Now()
	}
	return s.o.Now()
}

func (s *Store) now() job.Time { return job.Time(s.Now().UnixMicro()) }

// Reload changes the thresholds from the next call, probe and window on.
func (s *Store) Reload(t Thresholds) error {
	if err := t.Validate(); err != nil {
		return err
	}
	t = t.WithDefaults()
	s.limits.Store(&t)
	s.sensor.reset(t)
	s.ProbeSoon()
	return nil
}

// SetObserver and SetPeers give what exists only later than the store; to be
// called before Run.
func (s *Store) SetObserver(o Observer) { s.o.Observer = o }

// SetPeers: see SetObserver.
func (s *Store) SetPeers(p Peers) { s.o.Peers = p }

// ProbeSoon makes the store look at the primary at once.
func (s *Store) ProbeSoon() { signal(s.suspicion) }

func signal(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}

// Close closes the primary, and the local stores.
func (s *Store) Close() error {
	var errs []error
	if p := s.primary.Load(); p != nil {
		p.end()
		errs = append(errs, p.Close())
	}
	errs = append(errs, s.o.Local.Close(), s.mirror.Close())
	if s.journal != nil {
		errs = append(errs, s.journal.Close())
	}
	return errors.Join(errs...)
}

// call runs one call of the primary that is bounded by limit (zero: only by
// ctx) and by the end of the period, and lets the sensor know.
func (s *Store) call(ctx context.Context, limit time.Duration, f func(context.Context, Primary) error) error {
	return s.watched(ctx, limit, s.sensor.begin, f)
}

// callLong is call for what is long by nature: how long it takes says nothing about
// the primary.
func (s *Store) callLong(ctx context.Context, f func(context.Context, Primary) error) error {
	return s.watched(ctx, 0, s.sensor.beginLong, f)
}

func (s *Store) watched(ctx context.Context, limit time.Duration, begin func() func(error) string, f func(context.Context, Primary) error) error {
	p := s.primary.Load()
	if p == nil {
		return errNoPrimary
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if limit > 0 {
		ctx, cancel = context.WithTimeout(ctx, limit)
		defer cancel()
	}
	defer context.AfterFunc(p.period, cancel)()
	ended := begin()
	err := f(ctx, p)
	if refused := (*job.Error)(nil); errors.As(err, &refused) && refused.Code < 500 {
		ended(nil) // it answered: what was asked was wrong
		return err
	}
	if why := ended(err); why != "" {
		s.trip(why)
	}
	switch {
	case err == nil:
		s.direct.Store(false)
	case !errors.Is(err, context.Canceled):
		s.ProbeSoon()
	}
	return err
}

// handOver is how long the primary has to confirm. When the local store cannot
// take over it has for ever: then only the caller's deadline counts.
func (s *Store) handOver() time.Duration {
	if s.localUsable() != nil {
		return 0
	}
	return s.limits.Load().HandOver
}

// disk is the local store. Once its log has failed for good and Redis has all
// that it held, it is an empty one in memory, that takes nothing.
func (s *Store) disk() *memdelay.Store { return s.local.Load() }

// localUsable says why the local store cannot take jobs over, nil: it can.
func (s *Store) localUsable() error { return s.o.Local.Usage().LogErr }

func (s *Store) remote() bool { return s.Mode() != job.ModeLocal }

// unavailable is the answer when neither store can take something.
func unavailable(primary, local error) error {
	return job.ErrUnavailable.With("%v", fmt.Sprintf("neither Redis (%v) nor the local store (%v)", primary, local))
}
