package adapter

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/delaybridge/delaybridge/job"
	"github.com/delaybridge/delaybridge/subjects"
	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
)

// Config is what a Bridge is told. The zero value of a field means its
// default.
type Config struct {
	// ID names this bridge in its acknowledgement subject; required, stable
	// across restarts, 1 to 64 of A-Z a-z 0-9 _ -.
	ID string
	// Prefix of all subjects of the bridge; default "delay".
	Prefix string

	// MaxDelay is the farthest a due time may lie ahead; default 10 years.
	MaxDelay time.Duration
	// MaxAttempts is a job's deliveries before it is dead, unless it says
	// otherwise; default 10, negative: no limit.
	MaxAttempts int
	// AckWait is a delivery's lease, unless the job says otherwise; default 30 s.
	AckWait time.Duration
	// Expires is the time after due when a job is not worth running any more,
	// unless it says otherwise; default 7 days.
	Expires time.Duration
	// DeadMaxAge is how long dead jobs are kept; default 30 days.
	DeadMaxAge time.Duration
	// AllowTargets are subject patterns, one of which a target must match;
	// empty: all targets. Can be reloaded.
	AllowTargets []string
	// AllowReplies are subject patterns, one of which a subject that answers or
	// results go to must match, unless it is an inbox; empty: it may be any.
	AllowReplies []string
	// AllowWorkers say which targets workers that own their jobs may take; none:
	// those they say.
	AllowWorkers []WorkerRule

	// MaxInFlight is the ceiling of unsettled deliveries per lane; default
	// 1000. Can be reloaded, for lanes that do not exist yet.
	MaxInFlight int
	// Lanes are patterns whose targets share one ceiling; a target without a
	// pattern is a lane of its own.
	Lanes []Lane
	// ClaimAhead is how far ahead of their due time jobs are leased; default
	// 100 ms, at most 1 s.
	ClaimAhead time.Duration
	// ProbeMin and ProbeMax bound the pause between probes of a parked target;
	// default 250 ms and 2 s.
	ProbeMin, ProbeMax time.Duration

	// IntakeQueue is how many messages may wait to be stored; default 65536.
	// Above 95 % of it for a second, or when it is nearly full, messages go to
	// this bridge's disk or are answered 429.
	IntakeQueue int
	// StoreTimeout bounds one call of the store; default 2 s.
	StoreTimeout time.Duration
	// Drain is how long acknowledgements are still served after Run was told
	// to stop, when no peer takes them over; default 10 s.
	Drain time.Duration

	// WorkerTTL is how long a worker counts as alive after its last heartbeat;
	// default 6 s, three beats of the library.
	WorkerTTL time.Duration
	// WorkerPing is how often a worker that holds jobs is asked whether it is
	// still connected; default 300 ms.
	WorkerPing time.Duration
	// OwnerKeys shows people which worker owns which job; nil: nobody does.
	OwnerKeys OwnerKeys
	// OwnerRenewal is how often what it shows of a worker is renewed, which should
	// be several times in its life; default 5 s.
	OwnerRenewal time.Duration

	// Pauses keep which targets are paused; none: it is known until this bridge
	// ends.
	Pauses []PauseStore

	// Journal says what becomes of jobs with Delay-Durability: local; default:
	// they are refused.
	Journal Journal
	// JournalAll takes every job for one of these.
	JournalAll bool
	// Canary writes to the store that bridges share and reports whether that
	// can be done; nil: it cannot.
	Canary func(context.Context) error
	// LocalJobs is how many jobs only this bridge's disk holds; nil: none.
	LocalJobs func() int
	// Service is the label of that name of the metrics about fallback; default
	// "delaybridge".
	Service string

	// Now is the clock that due times are compared with; default: the wall
	// clock at start, continued by the monotonic clock.
	Now func() time.Time
	// Logger; default slog.Default().
	Logger *slog.Logger
	// Tracer makes the spans; nil: none are made, and the trace context of a job
	// passes through as it came.
	Tracer trace.TracerProvider
	// Propagator reads and writes trace context; default: W3C's.
	Propagator propagation.TextMapPropagator
	// TraceLink makes every delivery the root of a trace of its own, linked to
	// the one that is stored with the job.
	TraceLink bool
	// Registerer for the metrics; default: a registry of its own.
	Registerer prometheus.Registerer
}

// OwnerKeys shows what workers own. What it shows decides nothing.
type OwnerKeys interface {
	WriteOwners(ctx context.Context, updates []job.OwnerUpdate) error
}

// Journal says how a bridge keeps jobs on its own disk that ask for it.
type Journal uint8

// The journals of a bridge.
const (
	NoJournal    Journal = iota // it keeps none
	WithJournal                 // the store journals jobs that name this bridge in their Journal field
	AlwaysOnDisk                // every job is stored here, and durable, anyway
)

// Lane groups the targets that match Pattern under one ceiling of unsettled
// deliveries.
type Lane struct {
	Pattern     string
	MaxInFlight int
}

// Names of the configuration keys, as the configuration file and the flags
// spell them, used in errors.
const (
	keyID           = "id"
	keyPrefix       = "prefix"
	keyMaxDelay     = "jobs.max_delay"
	keyMaxAttempts  = "jobs.max_attempts"
	keyAckWait      = "jobs.ack_wait"
	keyExpires      = "jobs.expires"
	keyDeadMaxAge   = "dead.max_age"
	keyAllow        = "targets.allow"
	keyMaxInFlight  = "dispatch.max_in_flight"
	keyLanes        = "dispatch.lanes"
	keyClaimAhead   = "dispatch.claim_ahead"
	keyProbe        = "dispatch.probe_min, dispatch.probe_max"
	keyIntakeQueue  = "intake.queue"
	keyStoreTimeout = "store_timeout"
	keyDrain        = "drain"
	keyWorkerTTL    = "workers.ttl"
	keyWorkerPing   = "workers.ping"
	keyDurability   = "durability"
)

const (
	defaultPrefix = "delay"
	// tenYears in days of 24 h, leap days included.
	tenYears = 3653 * 24 * time.Hour
	// maxSpan keeps due times within what Redis scores hold exactly (the year
	// 2255).
	maxSpan = 20 * tenYears
)

// withDefaults returns c with every zero field set.
func (c Config) withDefaults() Config {
	def(&c.Prefix, defaultPrefix)
	def(&c.Service, "delaybridge")
	def(&c.MaxDelay, tenYears)
	def(&c.MaxAttempts, 10)
	def(&c.AckWait, 30*time.Second)
	def(&c.Expires, 7*24*time.Hour)
	def(&c.DeadMaxAge, 30*24*time.Hour)
	def(&c.MaxInFlight, 1000)
	def(&c.ClaimAhead, 100*time.Millisecond)
	def(&c.ProbeMin, 250*time.Millisecond)
	def(&c.ProbeMax, 2*time.Second)
	def(&c.IntakeQueue, 1<<16)
	def(&c.StoreTimeout, 2*time.Second)
	def(&c.Drain, 10*time.Second)
	def(&c.WorkerTTL, 6*time.Second)
	def(&c.WorkerPing, 300*time.Millisecond)
	def(&c.OwnerRenewal, 5*time.Second)
	if c.Now == nil {
		start := time.Now()
		c.Now = func() time.Time { return start.Add(time.Since(start)) }
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	if c.Propagator == nil {
		c.Propagator = propagation.TraceContext{}
	}
	if c.Registerer == nil {
		c.Registerer = prometheus.NewRegistry()
	}
	return c
}

func def[T comparable](p *T, v T) {
	var zero T
	if *p == zero {
		*p = v
	}
}

// Validate reports everything that is wrong with c at once, each error with
// the name of its key.
func (c Config) Validate() error {
	c = c.withDefaults()
	var errs []error
	check := func(key string, err error) {
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", key, err))
		}
	}
	check(keyID, subjects.CheckBridgeID(c.ID))
	check(keyPrefix, subjects.CheckPrefix(c.Prefix))
	check(keyMaxDelay, within(c.MaxDelay, time.Millisecond, maxSpan))
	check(keyAckWait, within(c.AckWait, time.Millisecond, job.MaxAckWait))
	check(keyExpires, within(c.Expires, time.Millisecond, maxSpan))
	check(keyDeadMaxAge, within(c.DeadMaxAge, time.Millisecond, maxSpan))
	check(keyClaimAhead, within(c.ClaimAhead, time.Millisecond, time.Second))
	check(keyProbe, within(c.ProbeMin, time.Millisecond, c.ProbeMax))
	check(keyStoreTimeout, within(c.StoreTimeout, 10*time.Millisecond, time.Minute))
	check(keyDrain, within(c.Drain, time.Millisecond, time.Minute))
	check(keyWorkerTTL, within(c.WorkerTTL, 100*time.Millisecond, time.Hour))
	check(keyWorkerPing, within(c.WorkerPing, 10*time.Millisecond, time.Minute))
	check(keyMaxInFlight, atLeastOne(c.MaxInFlight))
	check(keyIntakeQueue, atLeastOne(c.IntakeQueue))
	_, err := subjects.NewMatcher(c.AllowTargets)
	check(keyAllow, err)
	if _, err := newTrust(c); err != nil {
		errs = append(errs, err)
	}
	if c.JournalAll && c.Journal == NoJournal {
		check(keyDurability, errors.New("local needs a store on this bridge's disk"))
	}
	for _, l := range c.Lanes {
		_, err := subjects.NewMatcher([]string{l.Pattern})
		check(keyLanes, err)
		check(keyLanes, atLeastOne(l.MaxInFlight))
	}
	return errors.Join(errs...)
}

func within(d, low, high time.Duration) error {
	if d < low || d > high {
		return fmt.Errorf("%v is not between %v and %v", d, low, high)
	}
	return nil
}

func atLeastOne(n int) error {
	if n < 1 {
		return fmt.Errorf("%d is less than 1", n)
	}
	return nil
}
