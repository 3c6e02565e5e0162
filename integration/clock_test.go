package integration

import (
	"sync"
	"testing"
	"time"

	"github.com/delaybridge/delaybridge/adapter"
	"github.com/nats-io/nats.go"
)

// steppedClock is a clock that somebody sets while it runs.
type steppedClock struct {
	mu          sync.Mutex
	step, ahead time.Duration
	until       time.Time // when ahead ends
}

// reaction is how long what was due by a clock that was set back since may
// still be on its way.
const reaction = 500 * time.Millisecond

func (c *steppedClock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return time.Now().Add(c.step)
}

// latest is now, or what would be, had the clock not been set back just before.
func (c *steppedClock) latest() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	if now := time.Now(); now.Before(c.until) {
		return now.Add(c.ahead)
	}
	return time.Now().Add(c.step)
}

func (c *steppedClock) set(step time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if step < c.step {
		c.ahead, c.until = c.step, time.Now().Add(reaction)
	}
	c.step = step
}

// The clock of the bridge is set forwards and back while jobs come and go:
// none is early by that clock, none is lost, and none is delivered twice.
func TestClockSteps(t *testing.T) {
	onBothStores(t, func(t *testing.T, kind storeKind) {
		const target = "clock.work"
		s := newSystem(t, kind)
		clock := &steppedClock{}
		s.Checker.now = clock.latest
		b := s.bridge("b1", func(c *adapter.Config) { c.Now = clock.now })
		w := s.worker(target, done)
		stop := s.producers(8, func() *nats.Msg {
			return s.at(clock.now().Add(100*time.Millisecond).Truncate(time.Millisecond), target)
		})
		for _, step := range []time.Duration{5 * time.Second, 0, -time.Second, -500 * time.Millisecond, time.Hour, 0} {
			clock.set(step)
			begin, before := time.Now(), s.Counts()
			s.awaitCounts("load", func(c Counts) bool {
				return c.Accepted > before.Accepted+500 && time.Since(begin) > 2*reaction
			})
		}
		clock.set(time.Hour + 10*time.Second)
		stop()
		s.awaitCounts("all delivered", func(c Counts) bool { return c.Missing == 0 })
		s.verify(Once, []*nats.Conn{w}, b)
	})
}
