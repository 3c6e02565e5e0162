package redisdelay

import (
	"testing"
	"time"
)

func TestClock(t *testing.T) {
	at := time.Date(2026, 11, 30, 9, 30, 0, 0, time.UTC)
	ms := func(n int) time.Time { return at.Add(time.Duration(n) * time.Millisecond) }
	c := clock{start: at.Add(-time.Hour)}
	steps := []struct {
		name                  string
		redis, sent, received time.Time
		want                  time.Duration // offset afterwards
	}{
		{"equal clocks, slow reply", ms(50), ms(0), ms(100), 0},
		{"redis ahead by 100 ms, 2 ms round trip", ms(101), ms(0), ms(2), 99 * time.Millisecond},
		{"a stopped Redis says nothing new", ms(5099), ms(0), ms(5000), 99 * time.Millisecond},
		{"a quicker reply narrows it down", ms(100), ms(0), ms(0), 100 * time.Millisecond},
		{"redis stepped back", ms(-50), ms(0), ms(10), -50 * time.Millisecond},
	}
	for _, s := range steps {
		c.observe(s.redis.UnixMicro(), s.sent, s.received)
		if got := time.Duration(c.offset.Load()) * time.Microsecond; got != s.want {
			t.Errorf("%s: offset %v, want %v", s.name, got, s.want)
		}
	}
}

func TestClockIgnoresLittle(t *testing.T) {
	c := clock{start: time.Now().Add(-time.Hour)}
	const cut = 2 * time.Microsecond // what is left of fractions
	for _, off := range []time.Duration{0, 4999 * time.Microsecond, -4999 * time.Microsecond, 5 * time.Millisecond, -time.Second} {
		c.offset.Store(off.Microseconds())
		want := off
		if off.Abs() < ignoredOffset {
			want = 0
		}
		before := time.Now()
		now := c.now()
		if now.Before(before.Add(want-cut)) || now.After(time.Now().Add(want)) {
			t.Errorf("offset %v: now is off by %v, want %v", off, now.Sub(before), want)
		}
		if got := time.UnixMicro(c.micro(before)).Sub(before) - off; got > 0 || got < -cut {
			t.Errorf("offset %v: deadlines are off by %v", off, got)
		}
	}
}
