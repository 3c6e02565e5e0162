package integration

import (
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/delaybridge/delaybridge/internal/testredis"
)

// size is how many jobs a soak test has: a few, or in the long form as many as
// DELAYBRIDGE_SOAK_JOBS says, a million without it.
func size(t *testing.T, short int) int {
	t.Helper()
	return number(t, "DELAYBRIDGE_SOAK_JOBS", pick(short, 1_000_000))
}

func number(t *testing.T, env string, def int) int {
	t.Helper()
	v := os.Getenv(env)
	if v == "" {
		return def
	}
	n, err := strconv.Atoi(v)
	if err != nil || n < 1 {
		t.Fatalf("%s=%q is not a number over 0", env, v)
	}
	return n
}

// soakFaults are all faults, or those that DELAYBRIDGE_SOAK_FAULTS names. Some
// are there twice, to come more often.
func soakFaults(t *testing.T) (out []fault) {
	t.Helper()
	names := os.Getenv("DELAYBRIDGE_SOAK_FAULTS")
	for _, list := range [][]fault{outages, flaws, kills, kills} {
		for _, f := range list {
			if names == "" || strings.Contains(","+names+",", ","+f.name+",") {
				out = append(out, f)
			}
		}
	}
	if len(out) == 0 {
		t.Fatalf("DELAYBRIDGE_SOAK_FAULTS=%q names no fault", names)
	}
	return out
}

// soakDelay has jobs that are due at once, that live through no fault, one, or
// several. In the short form delays are a fifth as long.
func soakDelay(r *rand.Rand) time.Duration {
	spread := func(from, to time.Duration) time.Duration {
		return (from + time.Duration(r.Int64N(int64(to-from)))) / pick[time.Duration](5, 1)
	}
	switch r.IntN(10) {
	case 0:
		return 0
	case 1, 2, 3, 4:
		return spread(10*time.Millisecond, time.Second)
	case 5, 6, 7:
		return spread(time.Second, 10*time.Second)
	}
	return spread(5*time.Second, 45*time.Second)
}

// Jobs without a pause, and one fault after the other.
func TestSoak(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	begin := time.Now()
	l := load{producers: 64, rate: number(t, "DELAYBRIDGE_SOAK_RATE", pick(500, 3000)), jobs: size(t, 5_000), delay: soakDelay}.run(s, 8)
	m := s.startMeter()
	made := s.chaos(l.finished(), soakFaults(t))
	healed := s.clock()
	s.awaitDrained()
	drained := s.clock().Sub(healed)
	l.end(Explained, answerWithin)
	s.table(t.Name(), time.Since(begin), append(append(s.faultRows(made), m.rows()...),
		rowf("backlog gone after the last fault", "%v", drained.Round(time.Millisecond))))
}

// chaos makes faults, chosen by the seed, until all jobs are sent.
func (s *stand) chaos(sent <-chan struct{}, faults []fault) (made []*Span) {
	s.t.Helper()
	r := s.random(1 << 62)
	between := func(from, to time.Duration) time.Duration {
		return (from + time.Duration(r.Int64N(int64(to-from)))) / pick[time.Duration](2, 1)
	}
	for {
		select {
		case <-sent:
			return made
		case <-time.After(between(500*time.Millisecond, 3*time.Second)): // the pause between two faults
		}
		span, heal := faults[r.IntN(len(faults))].begin(s)
		time.Sleep(between(300*time.Millisecond, 4*time.Second)) // the length of the fault
		heal()
		made = append(made, span)
	}
}

// The same jobs once on Redis, and once without it from the beginning to the
// end: what is due fires as well.
func TestSoakLocal(t *testing.T) {
	within := pick(2*latenessP99, 50*time.Millisecond) // the short form runs beside other tests
	if !soak {
		t.Parallel()
	}
	for _, degraded := range []bool{false, true} {
		name := map[bool]string{false: "healthy", true: "degraded"}[degraded]
		t.Run(name, func(t *testing.T) {
			if !soak {
				t.Parallel()
			}
			s := newStandOn(t, testredis.Start(t)) // as most are set up: its disk once a second
			if degraded {
				s.redis.Kill()
				s.restartBridge()
			}
			begin := time.Now()
			l := load{producers: 64, rate: number(t, "DELAYBRIDGE_SOAK_RATE", pick(1000, 3000)), jobs: size(t, 5_000),
				delay: soakDelay, steady: true}.run(s, 8)
			<-l.finished()
			s.awaitCounts("all delivered", func(c Counts) bool { return c.Missing == 0 })
			if c := s.Counts(); degraded && c.Local != c.Accepted {
				t.Errorf("%d of %d jobs were acknowledged from elsewhere than the local store", c.Accepted-c.Local, c.Accepted)
			}
			if degraded {
				s.redis.Restart()
			}
			l.end(Once, answerWithin)
			late := s.Lateness(s.target, 0, never)
			if still := pick(s.pulse.standstill(), 0); late.P99 > within+still {
				t.Errorf("lateness %v, want a p99 of at most %v and what the machine stood still, %v", late, within, still)
			}
			s.table(t.Name(), time.Since(begin), nil)
		})
	}
}
