package integration

import (
	"math/rand/v2"
	"testing"
	"time"
)

// The bounds that hold in every fault.
const (
	answerWithin = 500 * time.Millisecond // a producer, also in the moment of the fault
	noticeWithin = 2 * time.Second        // the bridge, that Redis is gone, under load
	returnWithin = 20 * time.Second       // to Redis, and the backlog gone
	latenessP99  = 250 * time.Millisecond // of jobs that become due once the fault is noticed
)

// faultLoad is light, so that what is late is not so for want of a machine.
var faultLoad = load{producers: 32, rate: 500, delay: func(r *rand.Rand) time.Duration {
	return time.Duration(r.IntN(2000)) * time.Millisecond
}}

// Every fault, once: nobody waits, nothing is lost, due jobs fire, and what
// gathered drains by itself.
func TestFaults(t *testing.T) {
	t.Parallel()
	for _, list := range [][]fault{outages, flaws, kills} {
		for _, f := range list {
			t.Run(f.name, func(t *testing.T) {
				t.Parallel()
				survive(t, f)
			})
		}
	}
}

func survive(t *testing.T, f fault) {
	s := newStand(t)
	l := faultLoad.run(s, 4)
	s.awaitCounts("load", func(c Counts) bool { return c.Accepted > 500 && c.Delivered > 100 })
	span, heal := f.begin(s)
	time.Sleep(pick(3*time.Second, 20*time.Second)) // the length of the fault
	heal()
	s.awaitRedis()
	l.stop()
	s.awaitDrained()
	if took := s.clock().Sub(span.To); took > returnWithin {
		t.Errorf("the backlog was gone %v after the fault had healed, want at most %v", took, returnWithin)
	}
	l.end(Explained, answerWithin)
	s.report(span)
	if f.outage {
		s.judgeOutage(span)
	}
}

// judgeOutage checks that the bridge took and fired jobs without Redis.
func (s *stand) judgeOutage(span *Span) {
	s.t.Helper()
	still := s.pulse.standstill()
	if at := s.FirstLocal(span.From); at == 0 || at.Sub(span.From) > noticeWithin+still {
		s.t.Errorf("first acknowledgement from the local store after %v, want at most %v", at.Sub(span.From), noticeWithin)
	}
	late := s.Lateness(s.target, span.From.Add(noticeWithin), span.To)
	if late.N == 0 || late.P99 > latenessP99+still {
		s.t.Errorf("lateness without Redis %v, want a p99 of at most %v", late, latenessP99)
	}
}

func (s *stand) report(span *Span) {
	s.t.Helper()
	s.t.Logf("%+v; duplicates %v", s.Counts(), s.Duplicates())
	s.t.Logf("waits %v; machine stood still %v", s.Waits(), s.pulse.standstill())
	s.t.Logf("lateness before %v", s.Lateness(s.target, 0, span.From))
	s.t.Logf("lateness within %v", s.Lateness(s.target, span.From, span.To))
	s.t.Logf("lateness after  %v", s.Lateness(s.target, span.To, never))
	if at := s.FirstLocal(span.From); at != 0 {
		s.t.Logf("first local answer after %v", at.Sub(span.From))
	}
}
