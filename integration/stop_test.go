package integration

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/delaybridge/delaybridge/adapter"
	"github.com/delaybridge/delaybridge/job"
	"github.com/nats-io/nats.go"
)

// A bridge that is killed in the middle of everything, and started again with
// the same id, loses nothing that it acknowledged. What was under way is
// delivered again, as a further attempt, but nothing after its completion was
// confirmed.
func TestBridgeKilledInMidBurst(t *testing.T) {
	t.Parallel()
	const target = "killed.work"
	kills := pick(3, 50)
	s := newSystem(t, redisStore)
	s.silence = 2 * time.Second
	s.killed.Store(true)
	var workers []*nats.Conn
	asking := s.client() // the workers drain before it
	for range 8 {
		workers = append(workers, s.worker(target, func(m *nats.Msg, _ Delivery) {
			_, _ = s.settleWithin(asking, m, "", s.silence) // while no bridge runs nobody answers, and the job comes again
		}))
	}
	flags := []string{"--jobs-ack-wait", "1s", "--jobs-max-attempts", "0"}
	bridge := s.child("b1", flags...)
	for range kills {
		stop := s.producers(16, func() *nats.Msg { return s.in(20*time.Millisecond, target) })
		before := s.Counts()
		s.awaitCounts("a burst under way", func(c Counts) bool {
			return c.Accepted > before.Accepted+500 && c.Confirmed > before.Confirmed+300
		})
		bridge.kill()
		stop()
		bridge = s.child("b1", flags...)
	}
	s.awaitCounts("all delivered", func(c Counts) bool { return c.Missing == 0 })
	s.awaitEmpty()
	bridge.terminate()
	s.verify(Again, workers)
	t.Logf("%+v", s.Counts())
}

// SIGTERM is no fault: all that was acknowledged is delivered once, whether
// the bridge that stops or the next one does it.
func TestBridgeTerminatedUnderLoad(t *testing.T) {
	t.Parallel()
	const target = "term.work"
	s := newSystem(t, redisStore)
	workers := []*nats.Conn{s.worker(target, doneLater), s.worker(target, doneLater)}
	bridge := s.child("b1")
	for range pick(2, 50) {
		stop := s.producers(16, func() *nats.Msg { return s.in(50*time.Millisecond, target) })
		before := s.Counts()
		s.awaitCounts("load", func(c Counts) bool {
			return c.Accepted > before.Accepted+1000 && c.Delivered > before.Delivered+500
		})
		if took := bridge.terminate(); took > 15*time.Second {
			t.Errorf("SIGTERM took %v", took)
		}
		stop()
		bridge = s.child("b1")
	}
	s.awaitCounts("all delivered", func(c Counts) bool { return c.Missing == 0 })
	s.awaitEmpty()
	bridge.terminate()
	s.verify(Once, workers)
	t.Logf("%+v", s.Counts())
}

// Of two bridges one stops while its deliveries are with workers. The other
// takes their acknowledgements, and nothing is delivered twice.
func TestOneOfTwoBridgesStops(t *testing.T) {
	onBothStores(t, func(t *testing.T, kind storeKind) {
		const target = "two.work"
		s := newSystem(t, kind)
		b1, b2 := s.bridge("b1"), s.bridge("b2")
		w := s.worker(target, doneLater)
		stop := s.producers(16, func() *nats.Msg { return s.in(20*time.Millisecond, target) })
		s.awaitCounts("load", func(c Counts) bool { return c.Delivered > 2000 })
		b1.stop()
		before := s.Counts()
		s.awaitCounts("load on the other", func(c Counts) bool { return c.Delivered > before.Delivered+1000 })
		stop()
		s.awaitEmpty()
		s.verify(Once, []*nats.Conn{w}, b2)
	})
}

// A bridge that stops while it sets jobs aside, which their slow worker has no
// room for, gives them back all the same: the next bridge delivers them, as
// their first attempt.
func TestStopWhileSettingAside(t *testing.T) {
	onBothStores(t, func(t *testing.T, kind storeKind) {
		const target, jobs = "aside.work", 200
		s := newSystem(t, kind)
		aside := &interrupted{reached: make(chan struct{})}
		s.wrap = func(store job.Store) job.Store { aside.Store = store; return aside }
		short := func(c *adapter.Config) { c.AckWait = 5 * time.Second }
		b := s.bridge("b1", short)
		release := make(chan struct{})
		w := s.worker(target, func(m *nats.Msg, d Delivery) {
			<-release
			done(m, d)
		})
		s.flood(jobs, func(int) *nats.Msg { return s.in(0, target) })
		s.await("jobs are being set aside", aside.reached)
		stopped := make(chan struct{})
		go func() {
			defer close(stopped)
			b.stop()
		}()
		close(release)
		s.await("bridge stopped", stopped)
		s.wrap = nil
		b = s.bridge("b1", short)
		s.awaitCounts("all delivered", func(c Counts) bool { return c.Missing == 0 })
		s.verify(Once, []*nats.Conn{w}, b)
	})
}

// interrupted is a store that answers the first call that sets jobs aside only
// when the caller gives up.
type interrupted struct {
	job.Store
	once    sync.Once
	reached chan struct{}
}

func (i *interrupted) Settle(ctx context.Context, now job.Time, s []job.Settlement) ([]job.SettleResult, error) {
	var err error
	if s[0].Outcome == job.SetAside {
		i.once.Do(func() {
			close(i.reached)
			<-ctx.Done()
			err = ctx.Err()
		})
	}
	if err != nil {
		return nil, err
	}
	return i.Store.Settle(ctx, now, s)
}
