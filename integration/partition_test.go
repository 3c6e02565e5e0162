package integration

import (
	"context"
	"net"
	"net/url"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/delaybridge/delaybridge/internal/testredis"
	"github.com/redis/go-redis/v9"
)

// through makes the bridge reach a server by a relay, as its flag says.
func (s *stand) through(flag, server string, url func(addr string) string) *relay {
	s.t.Helper()
	way := startRelay(s.t, server)
	s.flags = append(s.flags, flag, url(way.addr()))
	s.restartBridge()
	return way
}

// The bridge alone is cut off from NATS: producers and workers are told at once that
// nobody is there, what was due is delivered when it is back, and nothing is lost.
func TestBridgeCutOffFromNATS(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	u, err := url.Parse(s.nats.URL())
	if err != nil {
		t.Fatal(err)
	}
	way := s.through("--nats-url", u.Host, func(addr string) string { return "nats://" + addr })
	s.surviveSilence(fault{name: "nats-partition", inject: func(*stand) { way.cut() }, heal: func(*stand) { way.open() }}, answerWithin)
}

// The bridge stands still, with all its connections: producers are not answered, and
// when it goes on, with messages and leases of long ago, nothing is lost.
func TestBridgeFrozen(t *testing.T) {
	t.Parallel()
	signal := func(sig syscall.Signal) func(*stand) {
		return func(s *stand) {
			if err := s.bridge.cmd.Process.Signal(sig); err != nil {
				s.t.Fatal(err)
			}
		}
	}
	s := newStand(t)
	s.surviveSilence(fault{name: "bridge-frozen", inject: signal(syscall.SIGSTOP), heal: signal(syscall.SIGCONT)}, s.silence+answerWithin)
}

// surviveSilence makes a fault in which no bridge is heard. Nobody waits longer than
// limit for an answer.
func (s *stand) surviveSilence(f fault, limit time.Duration) {
	s.t.Helper()
	l := faultLoad.run(s, 4)
	s.awaitCounts("load", func(c Counts) bool { return c.Accepted > 500 && c.Delivered > 100 })
	_, healed := s.Fault(f.name, true) // to the others as if no bridge ran
	f.inject(s)
	s.awaitCounts("producers get no answer", func(c Counts) bool { return c.Unanswered > 20 })
	time.Sleep(2 * time.Second) // the length of the fault
	accepted, began := s.Counts().Accepted, time.Now()
	f.heal(s)
	s.awaitCounts("jobs are taken again", func(c Counts) bool { return c.Accepted > accepted })
	took := time.Since(began)
	s.t.Logf("jobs were taken again %v after the fault had healed", took)
	if took > returnWithin {
		s.t.Errorf("jobs were taken again %v after the fault had healed, want at most %v", took, returnWithin)
	}
	s.awaitRedis() // the bridge has all its connections again
	healed()
	l.end(Explained, limit)
	s.t.Logf("%+v; duplicates %v", s.Counts(), s.Duplicates())
}

// Redis fails over to a replica, which need not have all that was confirmed. Jobs that
// are in the journal, too, are made good.
func TestRedisFailsOver(t *testing.T) {
	t.Parallel()
	primary := testredis.Start(t, "--appendfsync", "always")
	host, port, err := net.SplitHostPort(primary.Addr())
	if err != nil {
		t.Fatal(err)
	}
	replica := testredis.Start(t, "--appendfsync", "always", "--replicaof", host, port)
	s := newStandOn(t, primary)
	way := s.through("--redis-url", primary.Addr(), func(addr string) string { return "redis://" + addr })
	at := redis.NewClient(&redis.Options{Addr: replica.Addr()})
	t.Cleanup(func() { _ = at.Close() })
	s.eventually("the replica follows", func(ctx context.Context) (bool, error) {
		info, err := at.Info(ctx, "replication").Result()
		return strings.Contains(info, "master_link_status:up"), err
	})
	journalled := faultLoad
	journalled.local = true
	l := journalled.run(s, 4)
	s.awaitCounts("load", func(c Counts) bool { return c.Accepted > 500 && c.Delivered > 100 })
	span, healed := s.Fault("redis-failover", false)
	primary.Kill()
	s.awaitLocal()
	if err := at.Do(context.Background(), "replicaof", "no", "one").Err(); err != nil {
		t.Fatal(err)
	}
	way.lead(replica.Addr())
	healed()
	s.awaitRedis()
	t.Logf("jobs were taken by the replica %v after it had been made the primary", s.clock().Sub(span.To))
	s.url = replica.URL()
	s.look, _ = s.open("test")
	l.end(Restored, answerWithin)
	t.Logf("%+v", s.Counts())
}
