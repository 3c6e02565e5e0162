package integration

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/delaybridge/delaybridge/adapter"
	"github.com/delaybridge/delaybridge/internal/testnats"
	"github.com/delaybridge/delaybridge/job"
	"github.com/nats-io/nats.go"
)

// A backlog of a target that nobody serves is no burden to another one: not
// when it becomes due all at once, and not while it is parked. When a worker
// comes it gets all of it, and nothing was counted as an attempt.
//
// This test measures, so it runs beside no other.
func TestBacklogOfAbsentTarget(t *testing.T) {
	for _, kind := range []storeKind{memoryStore, redisStore} {
		t.Run(string(kind), func(t *testing.T) { backlogOfAbsentTarget(t, kind) })
	}
}

func backlogOfAbsentTarget(t *testing.T, kind storeKind) {
	const (
		busy   = "busy.work"
		absent = "absent.work"
		phase  = 2 * time.Second
	)
	backlog := pick(40_000, 1_000_000)
	s := newSystem(t, kind)
	b := s.bridge("b1")
	workers := []*nats.Conn{s.worker("pilot.work", done), s.worker(busy, done), s.worker(busy, done)}

	pulse := startPulse()
	defer pulse.stop()
	// The backlog is due at one instant, when all is stored and the busy
	// stream has run without it for a while.
	burst := s.floodTime(backlog).Add(phase).Truncate(time.Millisecond)
	s.flood(backlog, func(int) *nats.Msg { return s.at(burst, absent) })
	stream := int(3 * phase / time.Millisecond)
	s.flood(stream, func(i int) *nats.Msg { return s.at(burst.Add(-phase).Add(time.Duration(i)*time.Millisecond), busy) })
	if late := time.Since(burst.Add(-phase)); late > 0 {
		t.Fatalf("the jobs were not stored in time, %v too late: is this machine very busy?", late)
	}
	s.awaitCounts("busy stream delivered", func(c Counts) bool { return c.Delivered == pilots+stream })
	alone := s.LatenessOf(busy, burst.Add(-phase), burst.Add(-phase/10))
	together := s.LatenessOf(busy, burst, burst.Add(phase))
	parked := s.LatenessOf(busy, burst.Add(phase), burst.Add(2*phase))
	t.Logf("lateness alone %v; while the backlog becomes due %v; while it is parked %v; machine stood still %v", alone, together, parked, pulse.standstill())
	// What is demanded is about most of the jobs, and forgives what the machine stood
	// still: where it does other things, too, any process does now and then.
	still := pulse.standstill()
	for name, l := range map[string]Spread{"becomes due": together, "is parked": parked} {
		if l.P50 > alone.P50+5*time.Millisecond || l.P90 > alone.P90+50*time.Millisecond+still {
			t.Errorf("while the backlog %s the busy stream is late by %v, without it by %v", name, l, alone)
		}
	}
	workers = append(workers, s.worker(absent, done))
	s.awaitCounts("backlog delivered", func(c Counts) bool { return c.Delivered == pilots+stream+backlog })
	s.verify(Once, workers, b)
}

// pilots is how many jobs floodTime publishes.
const pilots = 5000

// floodTime returns when n jobs will certainly be stored, if they are
// published now; it publishes some jobs, to pilot.work, to find out.
func (s *system) floodTime(n int) time.Time {
	s.t.Helper()
	start := time.Now()
	s.flood(pilots, func(int) *nats.Msg { return s.in(0, "pilot.work") })
	s.awaitCounts("pilot jobs delivered", func(c Counts) bool { return c.Delivered == pilots })
	return time.Now().Add(time.Second + 3*time.Since(start)/2*time.Duration(n/pilots+3))
}

// Who listens to everything and answers nothing hides that no worker is there.
// The jobs wait all the same, and none dies of it.
func TestSilentSubscriberBesideAbsentWorker(t *testing.T) {
	const (
		jobs   = 5
		target = "silent.work"
	)
	onBothStores(t, func(t *testing.T, kind storeKind) {
		s := newSystem(t, kind)
		b := s.bridge("b1", func(c *adapter.Config) { c.ProbeMin, c.ProbeMax = 20*time.Millisecond, 100*time.Millisecond })
		seen := make(chan string, 100*jobs)
		nosy := s.client()
		if _, err := nosy.Subscribe(">", func(m *nats.Msg) {
			if m.Subject == target {
				seen <- m.Header.Get("Delay-Job-Id")
			}
		}); err != nil {
			t.Fatal(err)
		}
		if err := nosy.Flush(); err != nil {
			t.Fatal(err)
		}
		s.flood(jobs, func(int) *nats.Msg {
			m := s.in(0, target)
			m.Header.Set("Delay-Ack-Wait", "300ms")
			m.Header.Set("Delay-Max-Attempts", "2")
			return m
		})
		// Some jobs are shown to it more often than they may be attempted.
		for shown := map[string]int{}; ; {
			id := s.receive(seen)
			if shown[id]++; shown[id] > 3 {
				break
			}
		}
		w := s.worker(target, done)
		s.awaitCounts("all jobs delivered", func(c Counts) bool { return c.Delivered == jobs })
		s.verify(Again, []*nats.Conn{w}, b)
	})
}

func (s *system) receive(ch <-chan string) string {
	s.t.Helper()
	select {
	case v := <-ch:
		return v
	case <-time.After(patient):
		s.t.Fatalf("nothing arrived within %v", patient)
		return ""
	}
}

// A target that the server does not let the bridge publish to is parked like
// an absent one, and is of no concern to the others. Its jobs run when the
// permission is given.
func TestTargetWithoutPermission(t *testing.T) {
	const jobs = 100
	onBothStores(t, func(t *testing.T, kind storeKind) {
		s := newSystem(t, kind, bridgeMayNotPublish("closed.>"))
		s.asBridge, s.asClient = nats.UserInfo("bridge", "b"), nats.UserInfo("client", "c")
		b := s.bridge("b1")
		workers := []*nats.Conn{s.worker("closed.work", done), s.worker("open.work", done)}
		s.flood(jobs, func(int) *nats.Msg { return s.in(0, "closed.work") })
		s.flood(jobs, func(int) *nats.Msg { return s.in(50*time.Millisecond, "open.work") })
		s.awaitCounts("open jobs delivered", func(c Counts) bool { return c.Delivered == jobs })
		s.eventually("closed jobs are all set aside", func(ctx context.Context) (bool, error) {
			n, err := s.pendingUncharged(ctx, "closed.work")
			return n == jobs, err
		})
		s.nats.Reload(t, bridgeMayNotPublish("elsewhere.>"))
		s.awaitCounts("closed jobs delivered", func(c Counts) bool { return c.Delivered == 2*jobs })
		s.verify(Once, workers, b)
	})
}

func bridgeMayNotPublish(subject string) testnats.Option {
	return testnats.Config(fmt.Sprintf(`authorization { users = [
		{ user: bridge, password: b, permissions: { publish: { deny: %q } } }
		{ user: client, password: c }
	] }`, subject))
}

// pendingUncharged counts the pending jobs of a target that have used up no
// attempt.
func (s *system) pendingUncharged(ctx context.Context, target string) (n int, err error) {
	page, err := s.look.List(ctx, job.Query{State: job.Pending, Target: target, Limit: 1000})
	for _, in := range page.Jobs {
		if in.Attempt == 0 {
			n++
		}
	}
	return n, err
}
