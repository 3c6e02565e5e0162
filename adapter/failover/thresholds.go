package failover

import (
	"errors"
	"fmt"
	"time"
)

// Thresholds say when to turn from Redis to the local store and back. All can
// change while the store runs. A zero field means its default.
type Thresholds struct {
	HandOver time.Duration // how long Redis has to confirm before a batch goes local; 250 ms

	ProbeEvery    time.Duration // pause between probes; 3 s
	ProbeSuspect  time.Duration // pause between probes after a failed call; 300 ms
	ProbeTimeout  time.Duration // bound of one; 200 ms
	ProbeFailures int           // that many in a row: local; 3

	Window       time.Duration // over which calls are counted; 5 s
	FailureRatio float64       // above that of at least MinCalls calls: local; 0.5
	MinCalls     int           // 20
	MaxTimeouts  int           // that many calls timed out: local; 10
	MaxWaiting   int           // that many calls under way: local; 256
	SlowFactor   float64       // 99th percentile above that multiple of the last minute's ...; 10
	SlowFloor    time.Duration // ... and above this: local; 100 ms

	GoodProbes int           // in a row before Redis is trusted again; 3
	Dwell      time.Duration // least time in local mode; 10 s. Doubles with each relapse
	MaxDwell   time.Duration // but not beyond; 5 min
	PeerWait   time.Duration // how long to wait for peers that are not back yet; 15 s

	Horizon      time.Duration // jobs of Redis due within it are mirrored; 60 s
	HorizonJobs  int           // at most so many; 100,000
	HorizonBytes int64         // of at most so many bytes; 64 MiB
}

// WithDefaults returns t with every zero field set.
func (t Thresholds) WithDefaults() Thresholds {
	def(&t.HandOver, 250*time.Millisecond)
	def(&t.ProbeEvery, 3*time.Second)
	def(&t.ProbeSuspect, 300*time.Millisecond)
	def(&t.ProbeTimeout, 200*time.Millisecond)
	def(&t.ProbeFailures, 3)
	def(&t.Window, 5*time.Second)
	def(&t.FailureRatio, 0.5)
	def(&t.MinCalls, 20)
	def(&t.MaxTimeouts, 10)
	def(&t.MaxWaiting, 256)
	def(&t.SlowFactor, 10)
	def(&t.SlowFloor, 100*time.Millisecond)
	def(&t.GoodProbes, 3)
	def(&t.Dwell, 10*time.Second)
	def(&t.MaxDwell, max(t.Dwell, 5*time.Minute))
	def(&t.PeerWait, 15*time.Second)
	def(&t.Horizon, time.Minute)
	def(&t.HorizonJobs, 100_000)
	def(&t.HorizonBytes, 64<<20)
	return t
}

func def[T comparable](p *T, v T) {
	var zero T
	if *p == zero {
		*p = v
	}
}

// Validate reports everything that is wrong with t at once, each error with the
// name of its key in the configuration.
func (t Thresholds) Validate() error {
	t = t.WithDefaults()
	var errs []error
	check := func(key string, ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf("failover."+key+": "+format, args...))
		}
	}
	between := func(key string, d, low, high time.Duration) {
		check(key, d >= low && d <= high, "%v is not between %v and %v", d, low, high)
	}
	atLeast := func(key string, n, low int64) { check(key, n >= low, "%d is less than %d", n, low) }
	between("hand_over", t.HandOver, 10*time.Millisecond, 10*time.Second)
	between("probe_every", t.ProbeEvery, 10*time.Millisecond, time.Minute)
	between("probe_suspect", t.ProbeSuspect, 10*time.Millisecond, time.Minute)
	between("probe_timeout", t.ProbeTimeout, 10*time.Millisecond, time.Minute)
	atLeast("probe_failures", int64(t.ProbeFailures), 1)
	between("window", t.Window, 100*time.Millisecond, 10*time.Minute)
	check("failure_ratio", t.FailureRatio > 0 && t.FailureRatio <= 1, "%v is not above 0 and at most 1", t.FailureRatio)
	atLeast("min_calls", int64(t.MinCalls), 1)
	atLeast("max_timeouts", int64(t.MaxTimeouts), 1)
	atLeast("max_waiting", int64(t.MaxWaiting), 1)
	check("slow_factor", t.SlowFactor >= 1, "%v is less than 1", t.SlowFactor)
	between("slow_floor", t.SlowFloor, time.Millisecond, time.Minute)
	atLeast("good_probes", int64(t.GoodProbes), 1)
	between("dwell", t.Dwell, time.Millisecond, time.Hour)
	between("max_dwell", t.MaxDwell, t.Dwell, 24*time.Hour)
	between("peer_wait", t.PeerWait, 0, time.Hour)
	between("horizon", t.Horizon, time.Second, time.Hour)
	atLeast("horizon_jobs", int64(t.HorizonJobs), 1)
	atLeast("horizon_bytes", t.HorizonBytes, 1)
	return errors.Join(errs...)
}
