package redisdelay

import (
	"sync/atomic"
	"time"
)

// ignoredOffset is the difference to Redis' clock that is not worth a
// correction: measuring it over a network is not more exact than that.
const ignoredOffset = 5 * time.Millisecond

// clock is the local clock corrected to that of Redis. Local time is the wall
// clock at the start, continued by the monotonic clock: a step of the wall clock
// must not make jobs due.
type clock struct {
	start  time.Time
	offset atomic.Int64 // Redis minus local, microseconds, as measured
}

// local is the local time at t, in microseconds since the Unix epoch.
func (c *clock) local(t time.Time) int64 {
	return c.start.UnixMicro() + t.Sub(c.start).Microseconds()
}

// observe learns from a reply that carries Redis' time: it was read between
// sent and received, so the offset lies between the two differences. The
// present estimate is moved only as far as that demands; so a reply that took
// long (a Redis that was stopped) cannot spoil what a quick one showed.
func (c *clock) observe(redisMicro int64, sent, received time.Time) {
	low, high := redisMicro-c.local(received), redisMicro-c.local(sent)
	for {
		now := c.offset.Load()
		next := min(max(now, low), high)
		if next == now || c.offset.CompareAndSwap(now, next) {
			return
		}
	}
}

// ClockOffset is how far Redis' clock is ahead of the local one, as measured.
func (s *Store) ClockOffset() time.Duration {
	return time.Duration(s.clock.offset.Load()) * time.Microsecond
}

// micro is the estimate of Redis' time at t, for deadlines in scripts.
func (c *clock) micro(t time.Time) int64 { return c.local(t) + c.offset.Load() }

// now is the local time, corrected when the difference is worth it.
func (c *clock) now() time.Time {
	off := c.offset.Load()
	if (time.Duration(off) * time.Microsecond).Abs() < ignoredOffset {
		off = 0
	}
	return time.UnixMicro(c.local(time.Now()) + off)
}
