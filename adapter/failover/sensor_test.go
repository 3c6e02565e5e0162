package failover

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/delaybridge/delaybridge/job"
)

var errFault = errors.New("fault")

// sense gives calls to a sensor, each of that duration, and returns the reasons to
// turn that it gave.
func sense(s *sensor, calls int, took time.Duration, err error) (reasons []string) {
	for range calls {
		ended := s.begin()
		time.Sleep(took) // in the bubble's time
		if why := ended(err); why != "" {
			reasons = append(reasons, why)
		}
	}
	return reasons
}

func TestSensorRatio(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limits := Thresholds{MinCalls: 10, FailureRatio: 0.5, Window: time.Second}.WithDefaults()
		s := newSensor(limits)
		sense(s, 5, 0, nil)
		if got := sense(s, 5, 0, errFault); got != nil {
			t.Errorf("at half of the calls: %q", got)
		}
		if got := sense(s, 1, 0, errFault); len(got) != 1 || !strings.Contains(got[0], "6 of 11 calls failed within 1s") {
			t.Errorf("above half: %q", got)
		}
		s.reset(limits)
		if got := sense(s, 9, 0, errFault); got != nil {
			t.Errorf("below the least number of calls: %q", got)
		}
		time.Sleep(2 * time.Second)
		if got := sense(s, 9, 0, errFault); got != nil {
			t.Errorf("with others that are not within the window: %q", got)
		}
		s.reset(limits)
		if got := sense(s, 100, 0, context.Canceled); got != nil {
			t.Errorf("calls that were given up: %q", got)
		}
	})
}

func TestSensorTimeouts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSensor(Thresholds{MaxTimeouts: 3, Window: time.Second, MinCalls: 1000}.WithDefaults())
		if got := sense(s, 6, 600*time.Millisecond, context.DeadlineExceeded); got != nil {
			t.Errorf("one at a time: %q", got)
		}
		if got := sense(s, 10, 0, errFault); got != nil {
			t.Errorf("failures that are no timeouts: %q", got)
		}
		time.Sleep(time.Second)
		if got := sense(s, 3, 100*time.Millisecond, context.DeadlineExceeded); len(got) != 1 || !strings.Contains(got[0], "3 calls timed out within 1s") {
			t.Errorf("three within the window: %q", got)
		}
	})
}

func TestSensorWaiting(t *testing.T) {
	s := newSensor(Thresholds{MaxWaiting: 2}.WithDefaults())
	first, second, third := s.begin(), s.begin(), s.begin()
	if a, b := first(nil), second(nil); a+b != "" {
		t.Errorf("as many as may wait: %q, %q", a, b)
	}
	if why := third(nil); !strings.Contains(why, "3 calls waited at once") {
		t.Errorf("one more: %q", why)
	}
	if why := s.begin()(nil); why != "" {
		t.Errorf("after they have ended: %q", why)
	}
}

func TestSensorSlow(t *testing.T) {
	limits := Thresholds{MinCalls: 10, Window: 4 * time.Second, SlowFactor: 10, SlowFloor: 100 * time.Millisecond}.WithDefaults()
	for name, tc := range map[string]struct {
		before, after time.Duration
		calls         int
		slow          bool
	}{
		"slow":                 {time.Millisecond, 200 * time.Millisecond, 10, true},
		"below the floor":      {time.Millisecond, 50 * time.Millisecond, 10, false},
		"always slow":          {40 * time.Millisecond, 200 * time.Millisecond, 10, false},
		"too few calls":        {time.Millisecond, 200 * time.Millisecond, 9, false},
		"nothing known before": {0, 200 * time.Millisecond, 10, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newSensor(limits)
				if tc.before > 0 {
					sense(s, 20, tc.before, nil)
				}
				time.Sleep(limits.Window)
				if why := s.slow(); why != "" {
					t.Fatalf("before: %q", why)
				}
				sense(s, tc.calls, tc.after, nil)
				if why := s.slow(); (why != "") != tc.slow {
					t.Errorf("slow: %q, want a reason: %v", why, tc.slow)
				}
			})
		})
	}
}

// TestSensorLongCalls: what is long by nature does not make the primary slow, and
// fails as other calls do.
func TestSensorLongCalls(t *testing.T) {
	limits := Thresholds{MinCalls: 10, Window: 4 * time.Second, FailureRatio: 0.5, SlowFactor: 10, SlowFloor: 100 * time.Millisecond}.WithDefaults()
	synctest.Test(t, func(t *testing.T) {
		s := newSensor(limits)
		long := func(err error) string {
			ended := s.beginLong()
			time.Sleep(200 * time.Millisecond)
			return ended(err)
		}
		sense(s, 20, time.Millisecond, nil)
		time.Sleep(limits.Window)
		sense(s, 10, time.Millisecond, nil)
		for range 15 {
			long(nil)
		}
		if why := s.slow(); why != "" {
			t.Errorf("slow by long calls: %q", why)
		}
		why := ""
		for range 100 {
			if why = long(errFault); why != "" {
				break
			}
		}
		if !strings.Contains(why, "failed") {
			t.Errorf("long calls that fail: %q", why)
		}
	})
}

// TestDwell: a relapse soon after the return doubles the least time in local
// mode, up to a limit; a long time without one resets it.
func TestDwell(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, h := &Store{}, health{left: time.Now(), back: time.Now()}
		s.limits.Store(&Thresholds{Dwell: 10 * time.Second, MaxDwell: 35 * time.Second})
		relapse := func(after, want time.Duration) {
			t.Helper()
			time.Sleep(after)
			s.noteTurn(&h, job.ModeRedis, job.ModeLocal)
			if h.dwell != want || h.left != time.Now() || h.good != 0 {
				t.Errorf("dwell %v from %v, %d good probes; want %v from now", h.dwell, h.left, h.good, want)
			}
			h.good = 3
			time.Sleep(time.Minute) // an outage is no good time
			s.noteTurn(&h, job.ModeLocal, job.ModeMigrating)
		}
		relapse(0, 10*time.Second)
		relapse(time.Second, 20*time.Second)
		relapse(35*time.Second, 35*time.Second) // capped
		relapse(time.Second, 35*time.Second)
		relapse(36*time.Second, 10*time.Second)
		relapse(time.Second, 20*time.Second)
	})
}
