package integration

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/delaybridge/delaybridge/internal/testproxy"
	"github.com/nats-io/nats.go"
)

// scripts are the script calls of a bridge on its way, and how to tell them
// from each other: one that writes names itself and its bridge in an argument,
// the only one that just reads asks for leases that ran out.
var scripts = map[string]testproxy.Match{
	"ingest":  writes("ingest"),
	"claim":   writes("claim"),
	"settle":  writes("settle"),
	"expired": func(args []string) bool { return isScript(args) && !strings.Contains(strings.Join(args, " "), ":b1 ") },
}

func writes(name string) testproxy.Match {
	return func(args []string) bool {
		if !isScript(args) {
			return false
		}
		for _, a := range args {
			if a == name+":b1" {
				return true
			}
		}
		return false
	}
}

func isScript(args []string) bool { return len(args) > 0 && strings.EqualFold(args[0], "evalsha") }

// A reply of Redis that is lost after the script has run is no fault that a
// producer or worker may notice, whatever the script.
func TestLostReplyAtEveryScript(t *testing.T) {
	t.Parallel()
	rounds := pick(5, 200)
	s := newSystem(t, redisStore)
	proxy := testproxy.Start(t, s.redis.Addr())
	s.url = proxy.URL()
	b := s.bridge("b1")
	w := s.worker("lost.work", done)
	stop := s.producers(16, func() *nats.Msg { return s.in(20*time.Millisecond, "lost.work") })
	for range rounds {
		for name, match := range scripts {
			proxy.DropReplies(1, match)
			s.eventually("a reply of "+name+" is lost", func(context.Context) (bool, error) { return proxy.Dropped() == 1, nil })
		}
	}
	stop()
	s.verify(Once, []*nats.Conn{w}, b)
	s.wantAllAccepted()
}

// producers starts n producers that each publish one message after the other,
// waiting for the answer, until stop is called or an answer does not come. Two
// such reasons are legal: nobody is there to take the message, and, when the
// bridge is killed, silence.
func (s *system) producers(n int, next func() *nats.Msg) (stop func()) {
	s.t.Helper()
	nc := s.client()
	var wg sync.WaitGroup
	var ended atomic.Bool
	for range n {
		wg.Go(func() {
			for !ended.Load() {
				m := next()
				reply, err := nc.RequestMsg(m, s.silence)
				if s.Answered(m, reply, err); err != nil {
					s.unanswered(err)
					return
				}
			}
		})
	}
	stop = sync.OnceFunc(func() {
		ended.Store(true)
		wg.Wait()
	})
	s.t.Cleanup(stop)
	return stop
}

func (s *system) unanswered(err error) {
	if !errors.Is(err, nats.ErrNoResponders) && !(s.killed.Load() && errors.Is(err, nats.ErrTimeout)) {
		s.t.Errorf("a producer got no answer: %v", err)
	}
}

func (s *system) wantAllAccepted() {
	s.t.Helper()
	if c := s.Counts(); c.Accepted != c.Sent || c.Delivered != c.Sent {
		s.t.Errorf("not all that was sent was accepted and delivered: %+v", c)
	}
}

// Redis stops for a moment in the middle of the intake: producers wait a
// little, and that is all.
func TestRedisFrozenInMidIntake(t *testing.T) {
	t.Parallel()
	const freezes, frozen = 3, 300 * time.Millisecond
	s := newSystem(t, redisStore)
	b := s.bridge("b1")
	w := s.worker("frozen.work", done)
	stop := s.producers(64, func() *nats.Msg { return s.in(20*time.Millisecond, "frozen.work") })
	for range freezes {
		before := s.Counts().Accepted
		s.awaitCounts("intake under way", func(c Counts) bool { return c.Accepted >= before+1000 })
		s.redis.Freeze()
		time.Sleep(frozen) // the length of the fault
		s.redis.Thaw()
	}
	before := s.Counts().Accepted
	s.awaitCounts("intake under way again", func(c Counts) bool { return c.Accepted >= before+1000 })
	stop()
	s.verify(Once, []*nats.Conn{w}, b)
	s.wantAllAccepted()
}
