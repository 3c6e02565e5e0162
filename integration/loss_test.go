package integration

import (
	"testing"
	"time"
)

// Redis loses data. Jobs that are in the journal, too, are made good, and what
// was completed does not come back.
func TestRedisLosesData(t *testing.T) {
	t.Parallel()
	for _, f := range []fault{
		{name: "empty", inject: func(s *stand) { s.redis.Kill() }, heal: func(s *stand) { s.redis.RestartEmpty() }},
		{name: "empty-at-once", inject: func(s *stand) { s.redis.RestartEmpty() }, heal: func(*stand) {}},
		{name: "flushed", inject: func(s *stand) { s.command("FLUSHALL") }, heal: func(*stand) {}},
		{name: "older", inject: config("appendonly", "no"), heal: func(s *stand) { s.redis.Restart() }},
	} {
		t.Run(f.name, func(t *testing.T) {
			t.Parallel()
			s := newStand(t)
			journalled := faultLoad
			journalled.local = true
			l := journalled.run(s, 4)
			s.awaitCounts("load", func(c Counts) bool { return c.Accepted > 500 && c.Delivered > 100 })
			_, heal := f.begin(s)
			time.Sleep(2 * time.Second) // the length of the fault
			heal()
			s.awaitRedis()
			l.end(Restored, answerWithin)
			t.Logf("%+v", s.Counts())
		})
	}
}
