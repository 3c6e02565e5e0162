package failover

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sony/gobreaker/v2"
)

// sensor watches the calls of the primary and says when they are bad enough to
// turn away from it. It never blocks one.
type sensor struct {
	waiting atomic.Int64

	mu       sync.Mutex
	limits   Thresholds
	breaker  *gobreaker.TwoStepCircuitBreaker[any]
	ratio    string      // why the breaker opened; set under mu by its callback
	timeouts []time.Time // of the latest MaxTimeouts calls that timed out
	recent   latencies
	minute   [12]latencies // the windows before, latest first
	turned   time.Time     // when recent began
}

func newSensor(t Thresholds) *sensor {
	s := &sensor{}
	s.reset(t)
	return s
}

// reset forgets what was seen.
func (s *sensor) reset(t Thresholds) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.limits, s.ratio, s.timeouts = t, "", nil
	s.recent, s.minute, s.turned = latencies{}, [12]latencies{}, time.Now()
	s.breaker = gobreaker.NewTwoStepCircuitBreaker[any](gobreaker.Settings{
		Interval:     t.Window,
		BucketPeriod: max(t.Window/10, time.Millisecond),
		Timeout:      time.Hour, // it is replaced when the primary is back
		ReadyToTrip: func(c gobreaker.Counts) bool {
			ratio := float64(c.TotalFailures) / float64(c.Requests)
			if int(c.Requests) < t.MinCalls || ratio <= t.FailureRatio {
				return false
			}
			s.ratio = fmt.Sprintf("%d of %d calls failed within %v", c.TotalFailures, c.Requests, t.Window)
			return true
		},
	})
}

// begin notes a call that starts. What it returns is to be called with its
// outcome, and says why to turn away from the primary, or nothing.
func (s *sensor) begin() func(error) string {
	start := time.Now()
	ended := s.beginLong()
	return func(err error) string {
		if !errors.Is(err, context.Canceled) {
			s.lasted(time.Since(start))
		}
		return ended(err)
	}
}

// beginLong is begin of a call whose duration does not count.
func (s *sensor) beginLong() func(error) string {
	n := s.waiting.Add(1)
	return func(err error) string {
		s.waiting.Add(-1)
		return s.ended(err, n)
	}
}

// lasted notes how long a call took.
func (s *sensor) lasted(took time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.turn(time.Now())
	s.recent.add(took)
}

func (s *sensor) ended(err error, waiting int64) string {
	if errors.Is(err, context.Canceled) {
		return "" // says nothing about the primary
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	// Allow and done run here, under mu, so that the breaker's own rule that
	// calls from before its last change do not count costs nothing.
	if done, open := s.breaker.Allow(); open == nil {
		done(err)
	}
	switch {
	case s.ratio != "":
		return s.ratio
	case timedOut(err) && s.tooManyTimeouts(now):
		return fmt.Sprintf("%d calls timed out within %v", s.limits.MaxTimeouts, s.limits.Window)
	case waiting > int64(s.limits.MaxWaiting):
		return fmt.Sprintf("%d calls waited at once", waiting)
	}
	return ""
}

func timedOut(err error) bool {
	var ne net.Error
	return errors.Is(err, context.DeadlineExceeded) || errors.As(err, &ne) && ne.Timeout()
}

// tooManyTimeouts notes one. mu is held.
func (s *sensor) tooManyTimeouts(now time.Time) bool {
	s.timeouts = append(s.timeouts, now)
	n := len(s.timeouts) - s.limits.MaxTimeouts
	if n < 0 {
		return false
	}
	s.timeouts = s.timeouts[n:]
	return now.Sub(s.timeouts[0]) <= s.limits.Window
}

// slow says why the primary is too slow, or nothing.
func (s *sensor) slow() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.turn(time.Now())
	var before latencies
	for i := range s.minute {
		before.merge(&s.minute[i])
	}
	now, usual := s.recent.p99(), before.p99()
	if s.recent.calls < s.limits.MinCalls || before.calls < s.limits.MinCalls ||
		now <= s.limits.SlowFloor || float64(now) <= s.limits.SlowFactor*float64(usual) {
		return ""
	}
	return fmt.Sprintf("calls take %v (99th percentile), %v in the minute before", now, usual)
}

// turn begins a new window when the present one is over. mu is held.
func (s *sensor) turn(now time.Time) {
	if now.Sub(s.turned) < s.limits.Window {
		return
	}
	copy(s.minute[1:], s.minute[:])
	s.minute[0], s.recent, s.turned = s.recent, latencies{}, now
}

// latencies counts calls by duration: bucket i holds those below 2^i * 16 us.
type latencies struct {
	calls   int
	buckets [24]int
}

func bucketLimit(i int) time.Duration { return 16 * time.Microsecond << i }

func (l *latencies) add(d time.Duration) {
	i := 0
	for i < len(l.buckets)-1 && d >= bucketLimit(i) {
		i++
	}
	l.buckets[i]++
	l.calls++
}

func (l *latencies) merge(m *latencies) {
	l.calls += m.calls
	for i, n := range m.buckets {
		l.buckets[i] += n
	}
}

// p99 is an upper bound of the 99th percentile.
func (l *latencies) p99() time.Duration {
	left := l.calls / 100
	for i := len(l.buckets) - 1; i >= 0; i-- {
		if left -= l.buckets[i]; left < 0 {
			return bucketLimit(i)
		}
	}
	return 0
}
